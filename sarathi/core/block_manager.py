"""Paged KV accounting: which block belongs to which request. No tensors, no policy."""

from __future__ import annotations

from collections.abc import Sequence

from sarathi.request import Request


class BlockManager:
    """`num_blocks` blocks of `block_size` tokens, handed out by number and given back whole."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_gpu_blocks: {num_blocks} is not allowed; at least 1")
        if block_size < 1:
            raise ValueError(f"block_size: {block_size} is not allowed; at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_token_slots(self) -> int:
        return self.num_blocks * self.block_size

    def check_all_free(self) -> None:
        """Raise RuntimeError unless every block is free, each once. O(num_blocks)."""
        if sorted(self._free) != list(range(self.num_blocks)):
            twice = len(self._free) - len(set(self._free))
            raise RuntimeError(f"KV blocks are lost: {self.num_used} of {self.num_blocks} in use, {twice} free twice")

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(self, request: Request, num_blocks: int) -> None:
        """Give `request` that many more blocks. The caller has checked `num_free`."""
        free = self._free
        assert num_blocks <= len(free), f"{num_blocks} blocks asked for, {len(free)} free"
        for _ in range(num_blocks):
            request.block_ids.append(free.pop())

    def append_one_each(self, requests: Sequence[Request]) -> None:
        """One more block for each request: decodes that cross a block's edge in this round."""
        free = self._free
        assert len(requests) <= len(free), f"{len(requests)} blocks asked for, {len(free)} free"
        for request in requests:
            request.block_ids.append(free.pop())

    def free(self, request: Request) -> None:
        """Take back all of its blocks."""
        self._free.extend(reversed(request.block_ids))
        request.block_ids.clear()
