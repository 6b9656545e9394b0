"""What memory of a GPU is left for KV blocks, and what is reported of it, with torch's numbers made up."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch

from sarathi.errors import FieldError
from sarathi.worker.cuda_runner import graph_sizes
from sarathi.worker.memory import CudaMemory, available_memory, cuda_kv_room
from sarathi.worker.worker import Worker
from tests.test_cuda_runner import CONFIG

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

    def round(self, activations: int = 120) -> None:
        self.take(activations)
        self.allocated -= activations

    def _empty_cache(self) -> None:
        self.reserved = self.allocated

    def _reset(self, device: object) -> None:
        self.peak = self.allocated


@pytest.mark.parametrize(("graph_bytes", "room"), [(0, 810 - 50 - 300 - 120), (40, 810 - 50 - 300 - 120 - 70 - 40)])
def test_room_for_kv_blocks(monkeypatch, graph_bytes, room):
    """90 % of the 900 that were free, less context, weights, the longest round's activations and the graphs' own."""
    gpu = Gpu(monkeypatch)
    gpu.take(400)
    gpu.allocated -= 100  # what loading took and gave back
    assert cuda_kv_room(gpu.round, lambda: gpu.round(70), 900, 0.9, graph_bytes, DEVICE) == room


def test_statistics(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.take(300)
    gpu.round()
    assert CudaMemory(DEVICE).stats() == pytest.approx((570e-6, 430e-6, 300e-6, 420e-6))


def test_what_torch_keeps_is_free(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.take(400)
    gpu.allocated -= 100
    assert available_memory(DEVICE) == 550


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """One that believes to be on a GPU with 64 MB free, of which a tiny model takes next to nothing."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    worker = Worker(str(tmp_path), load_format="dummy", device="cpu")
    monkeypatch.setattr(worker, "device", DEVICE)
    monkeypatch.setattr(worker, "_make_pages", lambda num_blocks: None)
    monkeypatch.setattr("sarathi.worker.worker.available_memory", lambda device: 64_000_000)
    monkeypatch.setattr(worker._runner, "graph_bytes", lambda max_num_seqs: 1_000_000 * len(graph_sizes(max_num_seqs)))
    return worker


LIMITS = {"max_num_seqs": 8, "max_num_tokens": 32, "max_len": 1 << 20}


def test_blocks_of_the_users_are_checked_against_what_is_free_now(worker):
    """Less an estimate of activations, and of graphs of 1 to 8 decodes with theirs."""
    budget = worker._budget
    free = 60_000_000 - budget.activation_bytes(8, 8) - budget.activation_bytes(32, 8)
    most = free // budget.block_bytes
    worker.allocate_kv_cache(most, **LIMITS)
    with pytest.raises(FieldError, match=f"^num_gpu_blocks: {most + 1} blocks of 16 tokens need .* at most {most}, "):
        worker.allocate_kv_cache(most + 1, **LIMITS)


def test_blocks_that_the_profile_found_are_not_checked_by_an_estimate(worker, monkeypatch):
    ran = []
    monkeypatch.setattr(worker, "run", lambda batch: ran.append((batch.num_seqs, batch.num_tokens)))

    def room(run_longest_round, run_largest_graph, *sizes):
        run_longest_round()
        run_largest_graph()
        return 70_000_000  # more than the estimate would allow

    monkeypatch.setattr("sarathi.worker.worker.cuda_kv_room", room)
    found = worker.max_num_blocks(**LIMITS | {"max_num_seqs": 7})
    assert ran == [(7, 32), (8, 8)] and found == 70_000_000 // worker._budget.block_bytes
    worker.allocate_kv_cache(found, **LIMITS)
    worker.allocate_kv_cache(found - 1, **LIMITS)  # what another rank found
    with pytest.raises(FieldError, match=r"^num_gpu_blocks: "):
        worker.allocate_kv_cache(found + 1, **LIMITS)
