"""Memory of the machine or GPU a worker runs on: what is available, what a round takes, and what is reported of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from sarathi.core.plan import MemoryStats

GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")


def available_host_memory() -> int:
    """Bytes that a process can still take without swapping, within the limit of its control group."""
    available = psutil.virtual_memory().available
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            available = min(available, int(limit) - _used_in_group())
    except (OSError, ValueError):
        pass  # no control groups here, or of the first version: the machine's memory is the limit
    return max(0, available)


def _used_in_group() -> int:
    """Bytes of the control group that cannot be had back at once: without the file cache that nobody uses."""
    statistics = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    return int((_CGROUP / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))


def available_memory(device: torch.device) -> int:
    """Bytes that are free on a device, with those of a GPU that torch keeps for tensors to come."""
    if device.type != "cuda":
        return available_host_memory()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


class HostMemory:
    """Memory statistics of this process on a CPU, under the names that a GPU's have.

    used: resident memory; free: what the machine has available; allocated: weights and KV pool; reserved: the same,
    or the most that was resident so far where that is more. The KV pool counts whole, though the system gives its pages
    only as they are used. All in MB (10^6 bytes).
    """

    def __init__(self, allocated_bytes: int) -> None:
        self._process = psutil.Process()
        self._allocated_mb = allocated_bytes / 1e6
        self._peak_mb = self._allocated_mb

    def stats(self) -> MemoryStats:
        used_mb = self._process.memory_info().rss / 1e6
        self._peak_mb = max(self._peak_mb, used_mb)
        return MemoryStats(used_mb, available_host_memory() / 1e6, self._allocated_mb, self._peak_mb)


class CudaMemory:
    """Memory statistics of a GPU and of this process on it, in MB (10^6 bytes).

    used: what all processes have of the device; free: the rest; allocated: what this one's tensors hold; reserved: that
    and what torch keeps for tensors to come.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stats(self) -> MemoryStats:
        free, total = torch.cuda.mem_get_info(self._device)
        allocated, reserved = torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device)
        return MemoryStats((total - free) / 1e6, free / 1e6, allocated / 1e6, reserved / 1e6)


def cuda_kv_room(
    run_longest_round: Callable[[], object],
    run_largest_graph: Callable[[], object],
    available: int,
    utilization: float,
    graph_bytes: int,
    device: torch.device,
) -> int:
    """Bytes of a GPU that KV blocks may take, by running rounds once (the profile run of vLLM).

    Args:
        run_longest_round: does all that a round does, the sampler's part too, with pages of its own.
        run_largest_graph: does what the largest CUDA graph will hold, if there are any.
        available: bytes that were free before this process loaded anything.
        utilization: share of them that it may take in all.
        graph_bytes: what CUDA graphs take beside activations, which they have of their own; 0 without graphs.

    May be negative.
    """
    reserve = _peak_bytes(run_longest_round, device)
    graph_activations = _peak_bytes(run_largest_graph, device)
    if graph_bytes:
        reserve += graph_activations + graph_bytes
    taken = available - available_memory(device)  # weights, workspaces, libraries, the context
    return int(available * utilization) - taken - reserve


def _peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most that a call takes beside what there was."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
