"""What memory of a GPU is left for KV blocks, and what is reported of it, with torch's numbers made up."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from sarathi.worker.memory import CudaMemory, cuda_kv_room

DEVICE = torch.device("cuda")


class Gpu:
    """One with 1,000 bytes, of which others have 100 and this process's context 50. Rounds take memory and free it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated = self.peak = self.reserved = 0
        for name, function in (
            ("synchronize", lambda device: None),
            ("empty_cache", self._empty_cache),
            ("reset_peak_memory_stats", self._reset),
            ("memory_allocated", lambda device: self.allocated),
            ("memory_reserved", lambda device: self.reserved),
            ("max_memory_allocated", lambda device: self.peak),
            ("mem_get_info", lambda device: (850 - self.reserved, 1000)),
        ):
            monkeypatch.setattr(torch.cuda, name, function)

    def take(self, num_bytes: int) -> None:
        self.allocated += num_bytes
        self.peak, self.reserved = max(self.peak, self.allocated), max(self.reserved, self.allocated)

    def round(self) -> None:
        self.take(120)
        self.allocated -= 120

    def _empty_cache(self) -> None:
        self.reserved = self.allocated

    def _reset(self, device: object) -> None:
        self.peak = self.allocated


@pytest.mark.parametrize(("graph_bytes", "room"), [(0, 810 - 50 - 300 - 120), (40, 810 - 50 - 300 - 120 - 120 - 40)])
def test_room_for_kv_blocks(monkeypatch, graph_bytes, room):
    """90 % of the 900 that were free, less context, weights and the longest round's activations; graphs have theirs."""
    gpu = Gpu(monkeypatch)
    gpu.take(400)
    gpu.allocated -= 100  # what loading took and gave back
    assert cuda_kv_room(gpu.round, 900, 0.9, graph_bytes, DEVICE) == room


def test_statistics(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.take(300)
    gpu.round()
    assert CudaMemory(DEVICE).stats() == pytest.approx((570e-6, 430e-6, 300e-6, 420e-6))
