"""The fast backend of a CPU: decodes and short chunks read their pages in place, in a compiled kernel.

Chunks of many tokens gather their context once a layer and go through torch's kernel: what the copy costs is little
beside their own work. It knows no model. float32 only; needs numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sarathi.attention.paged_kernel import attend, write
from sarathi.kernels.threads import num_threads, start_threads
from sarathi.worker.batch import Batch

GATHER_FROM = 16  # queries of a chunk from which on gathering its context pays
_NO_WINDOW = 1 << 30  # more than any context


class _Parts(NamedTuple):
    """The short sequences' blocks cut into one run for each thread; a sequence at a cut becomes several parts."""

    parts: np.ndarray  # (P, 5) int64, see the kernel
    bounds: np.ndarray  # (threads + 1,) int64 into parts
    num_rows: int  # of scratch: one for each query of each part


class PagedCpuBackend:
    """Attention on the CPU with as many threads as torch uses. Contracts as in AttentionBackend; float32 tensors.

    The first call of a process compiles the kernel or loads it from numba's cache; a warm-up round covers that.
    """

    def __init__(self) -> None:
        start_threads()

    def begin_round(self, batch: Batch) -> None:
        self._batch = batch
        self._lengths = np.diff(batch.query_starts)
        self._starts: list[int] = batch.query_starts.tolist()
        self._long: list[int] = np.flatnonzero(self._lengths >= GATHER_FROM).tolist()
        self._slots: tuple[np.ndarray, np.ndarray] | None = None
        self._parts: dict[int, _Parts] = {}  # by window: layers may differ in it
        self._masks: dict[tuple[int, int | None], Tensor] = {}  # of long chunks, by sequence and window
        self._num_threads = num_threads()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, scale: float, window: int | None
    ) -> Tensor:
        batch, block_size = self._batch, kv_cache.shape[3]
        if self._slots is None:
            seqs = np.repeat(np.arange(batch.num_seqs), self._lengths)
            blocks, offsets = np.divmod(batch.positions, block_size)
            self._slots = batch.block_tables[seqs, blocks], offsets
        pages = kv_cache.numpy()
        write(key.contiguous().numpy(), value.contiguous().numpy(), pages, *self._slots)
        output = torch.empty(query.shape)
        if len(self._long) < batch.num_seqs:
            window_size = window or _NO_WINDOW
            parts = self._parts.get(window_size)
            if parts is None:
                parts = self._parts[window_size] = self._divide(block_size, window_size)
            attend(
                query.contiguous().numpy(),
                pages,
                batch.block_tables,
                batch.query_starts,
                batch.context_lens,
                parts.parts,
                parts.bounds,
                np.float32(scale),
                window_size,
                np.empty((parts.num_rows, *query.shape[1:]), np.float32),
                np.empty((parts.num_rows, 2, query.shape[1]), np.float32),
                output.numpy(),
            )
        for seq in self._long:
            self._gather_and_attend(seq, query, kv_cache, scale, window, output)
        return output

    def _divide(self, block_size: int, window: int) -> _Parts:
        """Equal work, in queries times blocks, for each thread, however contexts differ in length."""
        seqs = np.flatnonzero(self._lengths < GATHER_FROM)
        lengths, ends = self._lengths[seqs], self._batch.context_lens[seqs]
        first_blocks = np.maximum(0, ends - lengths + 1 - window) // block_size
        end_blocks = -(-ends // block_size)
        total = int(((end_blocks - first_blocks) * lengths).sum())
        parts: list[list[int]] = []
        bounds = [0]
        row = done = 0
        columns = (array.tolist() for array in (seqs, lengths, first_blocks, end_blocks))
        for seq, length, block, end_block in zip(*columns, strict=True):
            first_part = len(parts)
            while block < end_block:
                share_end = total * len(bounds) // self._num_threads
                stop = min(end_block, block + max(1, -(-(share_end - done) // length)))
                parts.append([seq, block, stop, row, 0])
                row += length
                done += (stop - block) * length
                block = stop
                if done >= share_end:
                    bounds.append(len(parts))
            parts[first_part][4] = len(parts) - first_part
        return _Parts(np.array(parts), np.array(bounds), row)

    def _gather_and_attend(
        self, seq: int, query: Tensor, kv_cache: Tensor, scale: float, window: int | None, output: Tensor
    ) -> None:
        block_size = kv_cache.shape[3]
        rows = slice(self._starts[seq], self._starts[seq + 1])
        num_queries = rows.stop - rows.start
        end = int(self._batch.context_lens[seq])
        first_block = 0 if window is None else max(0, end - num_queries + 1 - window) // block_size
        begin = first_block * block_size
        blocks = torch.from_numpy(self._batch.block_tables[seq, first_block : -(-end // block_size)])
        keys, values = kv_cache[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None, :, : end - begin]
        mask = None
        if num_queries < end or (window is not None and window < end):
            mask = self._masks.get((seq, window))
            if mask is None:
                mask = self._masks[seq, window] = _mask(begin, end, num_queries, window)
        attended = functional.scaled_dot_product_attention(
            query[None, rows].transpose(1, 2),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=True,
        )
        output[rows] = attended[0].transpose(0, 1)


def _mask(begin: int, end: int, num_queries: int, window: int | None) -> Tensor:
    """What the last `num_queries` tokens before `end` see of the context from `begin` on: 0, else minus infinity."""
    seen = torch.arange(begin, end)
    positions = torch.arange(end - num_queries, end)[:, None]
    visible = seen <= positions
    if window is not None:
        visible &= seen > positions - window
    return torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))
