"""Memory of the machine a worker runs on: what is available, and what the worker reports after each round."""

from __future__ import annotations

from pathlib import Path

import psutil

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
