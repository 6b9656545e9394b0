"""A rank's place among the workers that share one model, and what they tell each other while a round runs.

Knows torch.distributed, and neither models nor rounds. All ranks must make the same calls in the same order.
"""

from __future__ import annotations

import ipaddress
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"  # torch's own name of the setting
LOOPBACK = "127.0.0.1"


class PeerError(RuntimeError):
    """Another rank is gone, or did not answer in time."""


@dataclass(frozen=True)
class Parallel:
    """One of `tensor_size` ranks that share each layer of one of `num_stages` pipeline stages; alone by default.

    Made without `connect` it is a layout, enough to cut a model by, with nobody to talk to. What waits for another rank
    raises PeerError when that is gone, or silent for longer than the timeout. That is gloo's: NCCL only puts calls in
    the device's queue, so that nothing raises here and whoever watches the processes has to tell which rank is gone.
    """

    tensor_rank: int = 0
    tensor_size: int = 1
    stage: int = 0
    num_stages: int = 1
    _group: Any = field(default=None, repr=False, compare=False)  # torch's, of the ranks of this stage
    _sent: deque[tuple[Any, Tensor]] = field(default_factory=deque, repr=False, compare=False)  # maybe on their way

    @property
    def rank(self) -> int:
        return self.stage * self.tensor_size + self.tensor_rank

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.num_stages - 1

    def layers(self, num_layers: int) -> range:
        """The stage's share of a model's layers, equal for all: ModelShape.check_parallel refuses other numbers."""
        assert num_layers % self.num_stages == 0, f"{num_layers} layers in {self.num_stages} stages"
        size = num_layers // self.num_stages
        return range(self.stage * size, (self.stage + 1) * size)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of the tensor group's x, in place; the same to the last bit on every rank.

        On a CPU rank 0 adds them in the order of the ranks and sends the sum back. For the few rows of a decode round,
        among three processes of one machine, that takes a third of the time of gloo's ring: each message costs more
        than the bytes in it.
        """
        if self.tensor_size == 1:
            return x
        try:
            if x.device.type != "cpu":
                dist.all_reduce(x, group=self._group)
                return x
            if self.tensor_rank:
                dist.send(x, group=self._group, group_dst=0)
            else:
                parts = [torch.empty_like(x) for _ in range(1, self.tensor_size)]
                works = [dist.irecv(part, group=self._group, group_src=rank) for rank, part in enumerate(parts, 1)]
                for work, part in zip(works, parts, strict=True):
                    _wait(work)
                    x.add_(part)
            return self._spread(x)
        except RuntimeError as error:  # torch's, for a lost connection and for a timeout
            raise self._failed("all-reduce", error) from error

    def gather_last_dim(self, x: Tensor) -> Tensor | None:
        """On tensor rank 0 the group's (..., n) joined in the order of ranks to (..., tensor_size * n), else None."""
        if self.tensor_size == 1:
            return x
        parts = x.new_empty(self.tensor_size, *x.shape) if self.tensor_rank == 0 else None
        if x.numel():
            try:
                dist.gather(x, None if parts is None else list(parts), group=self._group, group_dst=0)
            except RuntimeError as error:
                raise self._failed("gather", error) from error
        return None if parts is None else parts.movedim(0, -2).flatten(-2)

    def broadcast_tokens(self, token_ids: Sequence[int], num_tokens: int, device: torch.device) -> list[int]:
        """The `num_tokens` token ids that tensor rank 0 gives, on every rank of its group."""
        if self.tensor_size == 1:
            return list(token_ids)
        if self.tensor_rank == 0:
            assert len(token_ids) == num_tokens, f"{len(token_ids)} token ids instead of {num_tokens}"
            tokens = torch.tensor(token_ids, dtype=torch.int64, device=device)
        else:
            tokens = torch.empty(num_tokens, dtype=torch.int64, device=device)
        try:
            return self._spread(tokens).tolist()
        except RuntimeError as error:
            raise self._failed("broadcast", error) from error

    def send(self, x: Tensor) -> None:
        """Start to send x to the same tensor rank of the next stage, and return; x must not be changed afterwards."""
        try:
            if len(self._sent) == self.num_stages:  # no more rounds are in flight, so the oldest has long arrived
                _wait(self._sent.popleft()[0])
            x = x.contiguous()
            self._sent.append((dist.isend(x, self.rank + self.tensor_size), x))
        except RuntimeError as error:
            raise self._failed("sending to the next stage", error) from error

    def receive(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """What the same tensor rank of the previous stage has sent, or sends next; waits for it."""
        x = torch.empty(tuple(shape), dtype=dtype, device=device)
        try:
            dist.recv(x, self.rank - self.tensor_size)
        except RuntimeError as error:
            raise self._failed("receiving from the previous stage", error) from error
        return x

    def close(self) -> None:
        """Leave the other ranks, once every round is over: what has not arrived is lost."""
        self._sent.clear()
        if self._group is not None:
            dist.destroy_process_group()

    def _spread(self, x: Tensor) -> Tensor:
        """Tensor rank 0's x on all of its group, in place."""
        if x.device.type != "cpu":
            dist.broadcast(x, group=self._group, group_src=0)
        elif self.tensor_rank:
            dist.recv(x, group=self._group, group_src=0)
        else:
            for work in [dist.isend(x, group=self._group, group_dst=rank) for rank in range(1, self.tensor_size)]:
                _wait(work)
        return x

    def _failed(self, what: str, error: RuntimeError) -> PeerError:
        place = f"rank {self.rank} (tensor rank {self.tensor_rank} of stage {self.stage})"
        cause = str(error).split(". ", 1)[0]  # gloo's advice follows
        return PeerError(f"{place}: {what} failed, another rank is gone or stalled: {cause}")


SINGLE = Parallel()


def connect(
    rank: int, tensor_size: int, num_stages: int, init_method: str, device: torch.device, timeout: float = 600.0
) -> Parallel:
    """Join the other ranks of a model, of which each process can serve one at a time; returns when all are there.

    Args:
        rank: stage * tensor_size + tensor rank.
        init_method: tcp:// and the address and a free port of rank 0, or file:// and a new file that ranks of one
            machine share.
        device: decides between NCCL and gloo.
        timeout: seconds that a rank waits for another, which must be longer than any round takes.

    Raises PeerError if they do not come together in that time.
    """
    num_ranks = tensor_size * num_stages
    assert 0 <= rank < num_ranks, f"rank {rank} of {num_ranks}"
    if num_ranks == 1:
        return SINGLE
    if _is_local(init_method):  # gloo would look for an address that others can reach, which there may be none of
        os.environ.setdefault(GLOO_INTERFACE, _loopback_interface())
    limit = timedelta(seconds=timeout)
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=init_method,
            timeout=limit,
            world_size=num_ranks,
            rank=rank,
        )
        stages = [range(stage * tensor_size, (stage + 1) * tensor_size) for stage in range(num_stages)]
        groups = [dist.new_group(list(ranks), timeout=limit) for ranks in stages]  # every rank must help to make each
    except RuntimeError as error:
        raise PeerError(f"rank {rank} and {num_ranks - 1} others did not find each other: {error}") from error
    stage, tensor_rank = divmod(rank, tensor_size)
    return Parallel(tensor_rank, tensor_size, stage, num_stages, groups[stage])


def _wait(work: Any) -> None:
    """Until a message is through; torch gives None for a rank that is in no group, which none of ours is."""
    assert work is not None
    work.wait()


def _is_local(init_method: str) -> bool:
    host = urlsplit(init_method).hostname or LOOPBACK
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _loopback_interface() -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == LOOPBACK for address in addresses):
            return name
    raise RuntimeError(f"no network interface of this machine has the address {LOOPBACK}")
