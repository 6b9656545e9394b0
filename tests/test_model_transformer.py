"""Our model against transformers' on tiny random checkpoints, whatever the chunks; loading; packed layers."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from torch import Tensor

from sarathi.attention.sdpa import SdpaBackend
from sarathi.errors import FieldError
from sarathi.model.architecture import Architecture
from sarathi.model.checkpoint import open_checkpoint
from sarathi.model.layers import GatedLinear, Linear, RMSNorm
from sarathi.model.packed import can_pack
from sarathi.model.transformer import DecoderModel, load_model
from sarathi.worker.batch import Batch

VOCAB_SIZE, BLOCK_SIZE = 199, 16
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # far from uniform, so that greedy tokens do not hang on rounding
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
WINDOWED = {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, rope of llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("Mistral", {"sliding_window": 24, "head_dim": 16}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {}),
    "qwen2, windows in some layers": ("Qwen2", WINDOWED),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS),
    "qwen3_moe, weights normalised": ("Qwen3Moe", EXPERTS | {"norm_topk_prob": True}),
}


def make_reference(name: str, folder: Path) -> Any:
    """transformers' model, seeded, every weight random (it starts norms at 1 and biases at 0), saved in `folder`."""
    family, fields = MODELS[name]
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**SIZES, **fields)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if parameter_name.endswith("norm.weight") else 0.0, 0.2)
    model.save_pretrained(folder)
    return model


def load(folder: Path, dtype: Any = torch.float32) -> DecoderModel:
    checkpoint = open_checkpoint(str(folder), "auto", 0)
    return load_model(checkpoint, Architecture.from_config(checkpoint.config, checkpoint.path), dtype)


@pytest.fixture(scope="module", params=list(MODELS))
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, DecoderModel]:
    folder = tmp_path_factory.mktemp("model")
    return make_reference(request.param, folder), load(folder)


class Cache:
    """Pages for a few sequences, in blocks that stand in no order; NaN where nothing was written."""

    def __init__(self, model: DecoderModel, num_seqs: int, max_len: int) -> None:
        a = model.architecture
        self.model, self.backend = model, SdpaBackend()
        blocks = -(-max_len // BLOCK_SIZE)
        self.tables = np.random.default_rng(0).permutation(num_seqs * blocks).astype(np.int32).reshape(num_seqs, -1)
        pages = (num_seqs * blocks, 2, a.num_kv_heads, BLOCK_SIZE, a.head_dim)
        dtype = model.embedding.weight.dtype
        self.pages = [torch.full(pages, torch.nan, dtype=dtype) for _ in range(a.num_layers)]
        self.lengths = np.zeros(num_seqs, np.int64)

    @torch.inference_mode()
    def run(self, chunks: dict[int, list[int]], last_only: bool = False) -> Tensor:
        """One round: the next tokens of some sequences. Logits of all of them, or of the last of each sequence."""
        seqs = list(chunks)
        sizes = np.array([len(tokens) for tokens in chunks.values()])
        starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        positions = np.concatenate([self.lengths[seq] + np.arange(len(tokens)) for seq, tokens in chunks.items()])
        self.lengths[seqs] += sizes
        rows = starts[1:].astype(np.int64) - 1 if last_only else np.arange(starts[-1])
        batch = Batch(
            token_ids=np.array([token for tokens in chunks.values() for token in tokens], np.int64),
            positions=positions,
            query_starts=starts,
            context_lens=self.lengths[seqs].astype(np.int32),
            block_tables=self.tables[seqs],
            output_rows=rows,
            output_seqs=np.arange(len(seqs)),
            sampling=None,
        )
        self.backend.begin_round(batch)
        tensors = map(torch.from_numpy, (batch.token_ids, batch.positions, batch.output_rows))
        token_ids, positions, output_rows = tensors
        logits = self.model(token_ids, positions, self.pages, self.backend, output_rows)
        assert logits.shape == (len(rows), VOCAB_SIZE)
        assert logits.dtype == torch.float32
        return logits


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


@torch.inference_mode()
def reference_logits(reference: Any, tokens: list[int]) -> Tensor:
    return reference(torch.tensor([tokens])).logits[0].float()


@pytest.mark.parametrize("chunks", [(100,), (1, 16, 17, 30, 36), (64, *[1] * 36)], ids=["whole", "chunks", "decodes"])
def test_logits_are_those_of_transformers(models: tuple[Any, DecoderModel], chunks: tuple[int, ...]) -> None:
    reference, model = models
    tokens = tokens_of(sum(chunks))
    cache = Cache(model, 1, len(tokens))
    bounds = np.cumsum((0, *chunks))
    logits = torch.cat([cache.run({0: tokens[a:b]}) for a, b in itertools.pairwise(bounds)])
    torch.testing.assert_close(logits, reference_logits(reference, tokens), atol=2e-4, rtol=0)


def test_greedy_tokens_in_mixed_batches(models: tuple[Any, DecoderModel]) -> None:
    """Three sequences that start one after the other: their chunks and decodes share rounds."""
    reference, model = models
    prompts = [tokens_of(length, seed) for seed, length in enumerate((9, 50, 33))]
    cache = Cache(model, 3, 80)
    pending = {seq: list(prompt) for seq, prompt in enumerate(prompts)}
    outputs: list[list[int]] = [[], [], []]
    for round_index in range(30):
        chunks = {seq: pending[seq][:13] for seq in range(3) if seq * 2 <= round_index}
        tokens = cache.run(chunks, last_only=True).argmax(-1).tolist()
        for (seq, chunk), token in zip(chunks.items(), tokens, strict=True):
            pending[seq] = pending[seq][len(chunk) :]
            if not pending[seq]:
                pending[seq] = [token]
                outputs[seq].append(token)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output) > 20
        logits = reference_logits(reference, prompt + output[:-1])
        assert output == logits[len(prompt) - 1 :].argmax(-1).tolist()


def test_no_output_rows_give_no_logits(models: tuple[Any, DecoderModel]) -> None:
    """A round of prefill chunks that complete no prompt still writes its keys and values."""
    reference, model = models
    tokens = tokens_of(40)
    cache = Cache(model, 1, 40)
    positions, none = torch.arange(30), torch.empty(0, dtype=torch.int64)
    cache.run({0: tokens[:1]})
    batch = Batch(
        np.array(tokens[:30]), positions.numpy(), np.array([0, 30], np.int32), np.array([30], np.int32), cache.tables,
        none.numpy(), none.numpy(), None,
    )  # fmt: skip
    cache.backend.begin_round(batch)
    with torch.inference_mode():
        logits = model(torch.tensor(tokens[:30]), positions, cache.pages, cache.backend, none)
    assert logits.shape == (0, VOCAB_SIZE)
    cache.lengths[0] = 30
    expected = reference_logits(reference, tokens)[30:]
    torch.testing.assert_close(cache.run({0: tokens[30:]}), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral"])
def test_sixteen_bit_types_are_as_close_as_transformers_are(name: str, dtype: Any, tmp_path: Path) -> None:
    reference = make_reference(name, tmp_path)
    tokens = tokens_of(40)
    exact = reference_logits(reference, tokens)
    theirs = (reference_logits(reference.to(dtype), tokens) - exact).abs().mean()
    ours = (Cache(load(tmp_path, dtype), 1, 40).run({0: tokens}) - exact).abs().mean()
    assert 0 < ours < 1.3 * theirs


class ListedCheckpoint:
    """Tensors from a dict, and how many of those it had given were alive at most when another was asked for."""

    def __init__(self, folder: Path) -> None:
        origin = open_checkpoint(str(folder), "auto", 0)
        self.path, self.config = "some/folder", origin.config
        self.weights = dict(origin.tensors())
        self.num_alive = 0

    def tensors(self, skip: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        given: weakref.WeakSet[Tensor] = weakref.WeakSet()
        for name in self.weights:
            if name in skip:
                continue
            tensor = self.weights[name].clone()
            given.add(tensor)
            yield name, tensor
            del tensor
            self.num_alive = max(self.num_alive, len(given))

    def load(self) -> DecoderModel:
        return load_model(self, Architecture.from_config(self.config, self.path), torch.float32)


@pytest.fixture
def checkpoint(tmp_path: Path) -> ListedCheckpoint:
    make_reference("llama, tied", tmp_path)
    return ListedCheckpoint(tmp_path)


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def break_missing(weights: dict[str, Tensor]) -> None:
    del weights[Q_PROJ]


def break_two_missing(weights: dict[str, Tensor]) -> None:
    del weights[Q_PROJ], weights["model.norm.weight"]


def break_shape(weights: dict[str, Tensor]) -> None:
    weights[Q_PROJ] = torch.zeros(48, 40)


def break_surplus(weights: dict[str, Tensor]) -> None:
    weights["model.layers.3.self_attn.q_proj.weight"] = torch.zeros(48, 48)


def break_integer(weights: dict[str, Tensor]) -> None:
    weights[Q_PROJ] = torch.zeros(48, 48, dtype=torch.int8)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (break_missing, f"some/folder lacks {Q_PROJ}"),
        (break_two_missing, "some/folder lacks model.norm.weight and 1 more tensors"),
        (break_shape, f"some/folder: {Q_PROJ} has the shape (48, 40); the config asks for (48, 48)"),
        (
            break_surplus,
            "some/folder: model.layers.3.self_attn.q_proj.weight has no place in the model",
        ),
        (break_integer, f"some/folder: {Q_PROJ} is torch.int8; only float32, bfloat16 and float16 can be read"),
    ],
)
def test_tensors_that_do_not_fit_are_named(checkpoint: ListedCheckpoint, spoil: Any, message: str) -> None:
    spoil(checkpoint.weights)
    with pytest.raises(FieldError) as caught:
        checkpoint.load()
    assert str(caught.value).startswith(f"model: {message}")


def test_harmless_tensors_are_skipped(checkpoint: ListedCheckpoint) -> None:
    checkpoint.weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    checkpoint.weights["lm_head.weight"] = torch.zeros(VOCAB_SIZE, 48)
    checkpoint.load()


def test_loading_holds_one_tensor_at_a_time_and_packing_drops_the_plain_weight(checkpoint: ListedCheckpoint) -> None:
    model = checkpoint.load()
    assert checkpoint.num_alive == 1
    linears = [module for module in model.modules() if isinstance(module, (Linear, GatedLinear))]
    assert len(linears) == 3 * 4 + 1
    if can_pack(model.embedding.weight):
        assert [linear for linear in linears if linear.weight is not None] == []
    assert torch.equal(model.embedding.weight, checkpoint.weights["model.embed_tokens.weight"])


@pytest.mark.parametrize("kind", [Linear, GatedLinear])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 64])
@torch.inference_mode()
def test_packed_layers_compute_what_plain_ones_do(kind: Any, num_rows: int) -> None:
    torch.manual_seed(0)
    for bias in (False, True):
        layer = kind(32, 48, bias, torch.float32)
        layer.weight.normal_()
        if bias:
            layer.bias.normal_()
        x, residual = torch.randn(num_rows, 32), torch.randn(num_rows, 48)
        before = residual.clone()
        arguments = [(x,), (x, residual)] if kind is Linear else [(x,)]
        plain = [layer(*given) for given in arguments]
        if kind is Linear:
            torch.testing.assert_close(plain[1], plain[0] + residual)
        layer.pack()
        packed = [layer(*given) for given in arguments]
        torch.testing.assert_close(packed, plain, atol=1e-4, rtol=1e-5)
        assert torch.equal(residual, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@torch.inference_mode()
def test_norm_rounds_where_transformers_does(dtype: Any) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    torch.manual_seed(0)
    theirs = LlamaRMSNorm(24, 1e-5).to(dtype)
    ours = RMSNorm(24, 1e-5, dtype)
    theirs.weight.copy_(ours.weight.normal_())
    x = (torch.randn(50, 3, 24) * 1e-2).to(dtype)
    exact = {} if dtype is torch.float32 else {"rtol": 0, "atol": 0}  # sums in float32 are taken in another order
    torch.testing.assert_close(ours(x), theirs(x), **exact)
