"""The runner of CUDA devices on a CPU: rounds of decodes, padded and replayed, give what the plain runner gives.

In the place of a captured graph stands the captured function, which is called again and sees what a graph would: the
same tensors, with what was put into them since.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from sarathi.attention.base import AttentionLayout
from sarathi.attention.sdpa import SdpaBackend
from sarathi.model.architecture import Architecture
from sarathi.model.checkpoint import open_checkpoint
from sarathi.model.transformer import DecoderModel, load_model
from sarathi.worker.batch import Batch
from sarathi.worker.cuda_runner import GRAPH_SIZES, CudaRunner, Replay, graph_sizes
from sarathi.worker.parallel import SINGLE, Parallel
from sarathi.worker.runner import ModelRunner
from sarathi.worker.worker import Worker
from tests.flashinfer_reference import backend_on_reference
from tests.test_attention import make_batch

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "sliding_window": 6,
    "tie_word_embeddings": True,
}
BLOCK_SIZE, NUM_BLOCKS = 4, 40
NUM_SEQS = 64


@pytest.fixture
def flashinfer() -> Any:
    with backend_on_reference() as module:
        yield module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def load(folder: Path, parallel: Parallel = SINGLE) -> DecoderModel:
    checkpoint = open_checkpoint(str(folder), "dummy")
    return load_model(checkpoint, Architecture.from_config(checkpoint.config, ""), torch.float32, CPU, parallel)


class Capture:
    """Counts what is captured and what is replayed."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0

    def __call__(self, run: Replay) -> Replay:
        run()
        self.num_captured += 1

        def replay() -> None:
            self.num_replayed += 1
            run()

        return replay


def pages_of(model: DecoderModel) -> list[torch.Tensor]:
    a = model.shard
    shape = (NUM_BLOCKS + 1, 2, a.num_kv_heads, BLOCK_SIZE, a.head_dim)
    return [torch.randn(shape, generator=torch.Generator().manual_seed(1)) for _ in range(a.num_layers)]


def layout_of(model: DecoderModel) -> AttentionLayout:
    a = model.shard
    return AttentionLayout(a.num_heads, a.num_kv_heads, a.head_dim, BLOCK_SIZE, a.windows)


def decodes(contexts: list[int], seed: int, output_rows: list[int] | None = None) -> Batch:
    batch = make_batch([(1, context) for context in contexts], BLOCK_SIZE, seed=seed)
    tokens = np.random.default_rng(seed).integers(0, CONFIG["vocab_size"], len(contexts))
    rows = np.arange(len(contexts)) if output_rows is None else np.array(output_rows, np.int64)
    return Batch(
        tokens, batch.positions, batch.query_starts, batch.context_lens, batch.block_tables, rows, rows, batch.sampling
    )


class Runners:
    """A plain runner and one of CUDA's, each with pages of its own that start alike."""

    def __init__(self, flashinfer: Any, model: DecoderModel) -> None:
        self.capture = Capture()
        self.plain_pages, self.pages = pages_of(model), pages_of(model)
        self._plain = ModelRunner(model, SdpaBackend(), self.plain_pages, CPU)
        attention = flashinfer.FlashInferBackend(layout_of(model), torch.float32, CPU)
        self.runner = CudaRunner(model, attention, self.pages, CPU, self.capture)

    @torch.inference_mode()
    def check(self, batch: Batch, hidden: torch.Tensor | None = None) -> torch.Tensor:
        expected = self._plain.forward(batch, hidden)
        given = self.runner.forward(batch, hidden)
        assert given is not None and expected is not None
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)
        for ours, plain in zip(self.pages, self.plain_pages, strict=True):
            torch.testing.assert_close(ours[:-1], plain[:-1], atol=1e-5, rtol=1e-5)
        return given


def test_decodes_are_replayed_and_other_rounds_are_not(flashinfer, folder):
    both = Runners(flashinfer, load(folder))
    both.check(decodes([5, 9], 0))
    both.runner.warm_up(NUM_SEQS)
    assert both.capture.num_captured == 7  # 1 to 32: the next size is more than there are blocks
    replayed = 0
    for seed, contexts in enumerate(([5], [3, 9], [4, 1, 7], [1] * 5, [13, 2, 8, 4, 5, 6, 7, 1, 2], [6, 6])):
        both.check(decodes(contexts, seed))
        replayed += 1
        assert both.capture.num_replayed == replayed
    both.check(make_batch([(1, 5), (3, 9)], BLOCK_SIZE))
    both.check(make_batch([(4, 4)], BLOCK_SIZE))
    assert both.capture.num_replayed == replayed
    both.check(decodes([5, 9], 0))
    assert both.capture.num_replayed == replayed + 1


@pytest.mark.parametrize(("num_seqs", "sizes"), [(1, [1]), (3, [1, 2, 4]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 16])])
def test_graphs_for_as_many_requests_as_there_can_be(flashinfer, folder, num_seqs, sizes):
    both = Runners(flashinfer, load(folder))
    assert list(graph_sizes(num_seqs)) == sizes
    both.runner.warm_up(num_seqs)
    assert both.capture.num_captured == len(sizes)
    both.check(decodes([5] * num_seqs, 0))
    both.check(decodes([5] * (sizes[-1] + 1), 0))  # more than was said still works
    assert both.capture.num_replayed == 1
    of_a_size = flashinfer.WRAPPER_BYTES + (4 << 20)  # plan of the one window, graph
    assert both.runner.graph_bytes(num_seqs) == len(sizes) * of_a_size + 4 * CONFIG["vocab_size"] * sizes[-1]


def test_no_graph_for_more_than_the_largest():
    assert graph_sizes(256) == graph_sizes(5000) == GRAPH_SIZES


def test_only_asked_rows_are_given(flashinfer, folder):
    """A last chunk of one token that is not a prompt's last gives none."""
    both = Runners(flashinfer, load(folder))
    both.runner.warm_up(NUM_SEQS)
    assert len(both.check(decodes([5, 9, 3], 1, output_rows=[0, 2]))) == 2
    assert len(both.check(decodes([5, 9], 1, output_rows=[]))) == 0
    assert both.capture.num_replayed == 2


def test_pipeline_stages(flashinfer, folder):
    """What a stage gave is not overwritten by its next round; together the stages are the model."""
    first, last = (Runners(flashinfer, load(folder, Parallel(stage=stage, num_stages=2))) for stage in (0, 1))
    for stage in (first, last):
        stage.runner.warm_up(NUM_SEQS)
    batches = [decodes([5, 9, 3], 2), decodes([4, 2, 6], 3)]
    hidden = [first.check(batch) for batch in batches]
    assert not torch.equal(*hidden)
    logits = [last.check(batch, given) for batch, given in zip(batches, hidden, strict=True)]
    assert first.capture.num_replayed == last.capture.num_replayed == 2
    assert all(tensor.shape == (3, CONFIG["vocab_size"]) for tensor in logits)


def test_without_graphs(flashinfer, folder):
    both = Runners(flashinfer, load(folder))
    both.runner.warm_up(NUM_SEQS)
    both.runner.use_graphs = False
    both.check(decodes([5, 9], 0))
    assert both.capture.num_replayed == 0
    model = load(folder)
    for runner in (
        CudaRunner(model, SdpaBackend(), pages_of(model), CPU, both.capture),
        CudaRunner(load(folder, Parallel(tensor_size=2)), both.runner.attention, both.pages, CPU, both.capture),
    ):
        before = both.capture.num_captured
        runner.warm_up(NUM_SEQS)
        assert not runner.can_capture and runner.graph_bytes(NUM_SEQS) == 0 and both.capture.num_captured == before


def test_a_worker_waits_before_pinned_buffers_are_filled_again(monkeypatch, folder):
    worker = Worker(str(folder), load_format="dummy", device="cpu")
    order: list[str] = []
    monkeypatch.setattr(worker, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append("wait"))
    monkeypatch.setattr(worker._runner, "forward", lambda batch, hidden: order.append("fill"))
    worker.run(decodes([5], 0))
    assert order == ["wait", "fill", "wait"]
