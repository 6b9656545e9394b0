"""GGUF files: every supported quantisation against its definition, names and order of weights, damaged files."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
import numpy as np

from sarathi.errors import FieldError
from sarathi.model.architecture import Architecture, Rope
from sarathi.model.checkpoint import DummyCheckpoint, open_checkpoint
from sarathi.model.gguf_file import KINDS, GgufFile
from tests.gguf_files import Kind, model_metadata, model_tensors, write_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "tied": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "mixtral": {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1000000.0},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "head_dim": 16},
}


class Origin:
    """A checkpoint that has a config alone."""

    path = "here"

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config


def tiny_model(path: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a GGUF file of random weights; returns config and weights as Hugging Face has them."""
    config = SIZES | MODELS[name]
    arch = config["model_type"] if config["model_type"].startswith("qwen") else "llama"
    weights = dict(DummyCheckpoint(Origin(config), 1).tensors())
    write_gguf(path, model_metadata(config, arch), model_tensors(weights.items(), config, arch), arch)
    return config, weights


def half(data: bytes) -> float:
    return struct.unpack("<e", data)[0]


def low_high(data: bytes) -> list[int]:
    return [byte & 15 for byte in data] + [byte >> 4 for byte in data]


def block_q8_0(b: bytes) -> list[float]:
    return [half(b[:2]) * q for q in struct.unpack("<32b", b[2:])]


def block_q4_0(b: bytes) -> list[float]:
    return [half(b[:2]) * (q - 8) for q in low_high(b[2:])]


def block_q4_1(b: bytes) -> list[float]:
    return [half(b[:2]) * q + half(b[2:4]) for q in low_high(b[4:])]


def fifth_bits(data: bytes) -> list[int]:
    (bits,) = struct.unpack("<I", data)
    return [bits >> i & 1 for i in range(32)]


def block_q5_0(b: bytes) -> list[float]:
    values = zip(low_high(b[6:]), fifth_bits(b[2:6]), strict=True)
    return [half(b[:2]) * ((q | high << 4) - 16) for q, high in values]


def block_q5_1(b: bytes) -> list[float]:
    values = zip(low_high(b[8:]), fifth_bits(b[4:8]), strict=True)
    return [half(b[:2]) * (q | high << 4) + half(b[2:4]) for q, high in values]


def scales_and_minima(s: bytes) -> list[tuple[int, int]]:
    """Of the 8 groups of 32 in a block: 6 bits each in 12 bytes, the last four split over two places."""
    first = [(s[j] & 63, s[j + 4] & 63) for j in range(4)]
    rest = [((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4) for j in range(4, 8)]
    return first + rest


def block_q4_k(b: bytes) -> list[float]:
    d, dmin, quants = half(b[:2]), half(b[2:4]), b[16:]
    values = []
    for group, (scale, minimum) in enumerate(scales_and_minima(b[4:16])):
        for i in range(32):
            q = quants[group // 2 * 32 + i] >> 4 * (group % 2) & 15
            values.append(d * scale * q - dmin * minimum)
    return values


def block_q5_k(b: bytes) -> list[float]:
    d, dmin, high, quants = half(b[:2]), half(b[2:4]), b[16:48], b[48:]
    values = []
    for group, (scale, minimum) in enumerate(scales_and_minima(b[4:16])):
        for i in range(32):
            q = (quants[group // 2 * 32 + i] >> 4 * (group % 2) & 15) + 16 * (high[i] >> group & 1)
            values.append(d * scale * q - dmin * minimum)
    return values


def block_q6_k(b: bytes) -> list[float]:
    low, high, scales, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), half(b[208:])
    values = [0.0] * 256
    for part in range(2):
        for i in range(32):
            for k in range(4):
                four = low[64 * part + 32 * (k % 2) + i] >> 4 * (k // 2) & 15
                two = high[32 * part + i] >> 2 * k & 3
                at = 128 * part + 32 * k + i
                values[at] = d * scales[at // 16] * ((four | two << 4) - 32)
    return values


BLOCKS = {
    Kind.Q8_0: (block_q8_0, 32, 34),
    Kind.Q4_0: (block_q4_0, 32, 18),
    Kind.Q4_1: (block_q4_1, 32, 20),
    Kind.Q5_0: (block_q5_0, 32, 22),
    Kind.Q5_1: (block_q5_1, 32, 24),
    Kind.Q4_K: (block_q4_k, 256, 144),
    Kind.Q5_K: (block_q5_k, 256, 176),
    Kind.Q6_K: (block_q6_k, 256, 210),
}
HALVES = {Kind.Q4_1: (0, 2), Kind.Q5_1: (0, 2), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}


def random_blocks(kind: Any, rows: int, blocks: int) -> np.ndarray:
    """(rows, bytes): any bytes are a valid block but for its float16 factors."""
    rng = np.random.default_rng(kind.value)
    data = rng.integers(0, 256, (rows, blocks, BLOCKS[kind][2]), np.uint8)
    for at in HALVES.get(kind, (0,)):
        data[..., at : at + 2] = rng.normal(0, 0.1, (rows, blocks, 1)).astype("<f2").view(np.uint8)
    return data.reshape(rows, -1)


def test_every_kind_has_a_case() -> None:
    assert {Kind.F32, Kind.F16, Kind.BF16, *BLOCKS} == set(KINDS)


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.name)
def test_dequantised_as_defined(tmp_path: Path, kind: Any) -> None:
    decode, num_values, num_bytes = BLOCKS[kind]
    data = random_blocks(kind, rows=3, blocks=2)
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {}, {"first": np.ones(5, np.float32), "x": (data, kind)}))
    tensor = file.tensor("x")
    blocks = data.reshape(-1, num_bytes)
    expected = np.array([decode(block.tobytes()) for block in blocks]).reshape(3, 2 * num_values)
    assert tensor.dtype == torch.float32
    assert tensor.shape == (3, 2 * num_values)
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1], ids=lambda kind: kind.name)
def test_quantised_weights_come_back_near(tmp_path: Path, kind: Any) -> None:
    weights = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {}, {"x": (gguf.quantize(weights, kind), kind)}))
    step = np.abs(weights).max() / (100 if kind is Kind.Q8_0 else 7)
    assert np.abs(file.tensor("x").numpy() - weights).max() < step


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Kind.F32, torch.float32), (Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)]
)
def test_floats_keep_their_type(tmp_path: Path, kind: Any, dtype: Any) -> None:
    weights = torch.randn(6, 10, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    stored = weights.view(torch.int16).numpy().view(np.uint8) if dtype is not torch.float32 else weights.numpy()
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {}, {"x": (stored, kind)}))
    assert file.tensor("x").dtype == dtype
    assert torch.equal(file.tensor("x"), weights)
    assert torch.equal(file.tensor("x", 4), weights[4])
    file.tensor("x").zero_()  # in memory of its own
    assert torch.equal(file.tensor("x"), weights)


def test_a_slice_of_a_quantised_tensor(tmp_path: Path) -> None:
    data = random_blocks(Kind.Q4_K, rows=6, blocks=1).reshape(3, 2, -1)
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {}, {"x": (data, Kind.Q4_K)}))
    whole = file.tensor("x")
    assert whole.shape == (3, 2, 256)
    for index in range(3):
        assert torch.equal(file.tensor("x", index), whole[index])


@pytest.mark.parametrize("name", MODELS)
def test_config_and_weights_as_hugging_face_has_them(tmp_path: Path, name: str) -> None:
    config, weights = tiny_model(tmp_path / "a.gguf", name)
    checkpoint = open_checkpoint(str(tmp_path / "a.gguf"), "auto", 0)
    assert checkpoint.config == config
    loaded = dict(checkpoint.tensors())
    assert loaded.keys() == weights.keys()
    for key, tensor in loaded.items():
        assert torch.equal(tensor, weights[key]), key
        assert tensor.is_contiguous()
    Architecture.from_config(checkpoint.config, checkpoint.path)


def test_experts_one_by_one_as_older_files_have_them(tmp_path: Path) -> None:
    config = SIZES | MODELS["mixtral"]
    weights = dict(DummyCheckpoint(Origin(config), 1).tensors())
    tensors = model_tensors(weights.items(), config, "llama")
    for name in [name for name in tensors if "_exps." in name]:
        for expert, array in enumerate(tensors.pop(name)):
            tensors[name.replace("_exps.", f".{expert}.")] = array
    write_gguf(tmp_path / "a.gguf", model_metadata(config, "llama"), tensors)
    loaded = dict(open_checkpoint(str(tmp_path / "a.gguf"), "gguf", 0).tensors())
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_sliding_window_means_mistral(tmp_path: Path) -> None:
    config = SIZES | MODELS["llama"]
    weights = model_tensors(DummyCheckpoint(Origin(config), 1).tensors(), config, "llama")
    write_gguf(tmp_path / "a.gguf", model_metadata(config, "llama") | {"llama.attention.sliding_window": 7}, weights)
    architecture = Architecture.from_config(open_checkpoint(str(tmp_path / "a.gguf"), "auto", 0).config, "here")
    assert (architecture.family, architecture.windows) == ("mistral", (7, 7))


def rope_factors(**other: Any) -> np.ndarray:
    scaled = Rope(500000.0, "llama3", **({"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | other))
    return (Rope(500000.0).inverse_frequencies(64) / scaled.inverse_frequencies(64)).numpy()


def llama3_file(path: Path, factors: np.ndarray) -> str:
    metadata = model_metadata(SIZES | {"head_dim": 64, "rope_theta": 500000.0}, "llama")
    tensors = {"token_embd.weight": np.ones((48, 32), np.float32), "rope_freqs.weight": factors}
    return str(write_gguf(path, metadata, tensors))


def test_llama3_rope_scaling_is_recovered(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama3_file(tmp_path / "a.gguf", rope_factors()), "auto", 0)
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert [name for name, _ in checkpoint.tensors()] == ["model.embed_tokens.weight"]


@pytest.mark.parametrize("factors", [rope_factors(high_freq_factor=8.0), np.full(32, np.nan, np.float32)])
def test_other_rope_factors_are_refused(tmp_path: Path, factors: np.ndarray) -> None:
    with pytest.raises(FieldError, match=r"rope_freqs\.weight is not Llama 3's scaling"):
        open_checkpoint(llama3_file(tmp_path / "a.gguf", factors), "auto", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama.block_count": None}, "lacks the metadata llama.block_count"),
        ({"llama.attention.head_count": [4, 4]}, r"head_count \[4, 4\] is not allowed; of type int"),
        ({"llama.attention.head_count": 0}, "0 heads"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn' is not supported; none or linear"),
        ({"llama.rope.dimension_count": 4}, "rotary embedding of 4 of a head's 8 dimensions"),
        ({"split.count": 3}, "is one part of a split GGUF file"),
    ],
)
def test_metadata_not_allowed(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    metadata = model_metadata(SIZES, "llama") | change
    metadata = {key: value for key, value in metadata.items() if value is not None}
    write_gguf(tmp_path / "a.gguf", metadata, {"token_embd.weight": np.ones((48, 32), np.float32)})
    with pytest.raises(FieldError, match=message):
        open_checkpoint(str(tmp_path / "a.gguf"), "auto", 0)


def test_architecture_and_tensors_not_known(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {}, {"token_embd.weight": np.ones((2, 2), np.float32)}, arch="gemma")
    with pytest.raises(FieldError, match=r"general\.architecture 'gemma' is not supported; one of llama, qwen2, qwen3"):
        open_checkpoint(str(path), "auto", 0)
    path = write_gguf(tmp_path / "b.gguf", model_metadata(SIZES, "llama"), {"output.weight": np.ones(2, np.float32)})
    with pytest.raises(FieldError, match=r"lacks the tensor token_embd\.weight"):
        open_checkpoint(str(path), "auto", 0)
    tensors = {"token_embd.weight": np.ones((48, 32), np.float32), "blk.0.ssm_in.weight": np.ones(2, np.float32)}
    path = write_gguf(tmp_path / "c.gguf", model_metadata(SIZES, "llama"), tensors)
    with pytest.raises(FieldError, match=r"tensor 'blk\.0\.ssm_in\.weight' belongs to no part"):
        list(open_checkpoint(str(path), "auto", 0).tensors())


def test_quantisation_not_supported(tmp_path: Path) -> None:
    data = np.zeros((2, 84), np.uint8)
    path = write_gguf(tmp_path / "a.gguf", {}, {"x": (data, Kind.Q2_K)})
    with pytest.raises(FieldError, match="tensor 'x' is of type Q2_K, which is not supported; one of F32, F16"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"", "is no GGUF file"),
        (b"PK\3\4 and so on", "is no GGUF file"),
        (b"GGUF", "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported; 2 or 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**64 - 1), "cut off"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**62), "cut off"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1), "a list of lists"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "unknown type 77"),
    ],
)
def test_not_a_gguf_file(tmp_path: Path, start: bytes, message: str) -> None:
    (tmp_path / "a.gguf").write_bytes(start)
    with pytest.raises(FieldError, match=message):
        GgufFile(tmp_path / "a.gguf")


def test_cut_off_or_damaged_files_are_told_in_one_line(tmp_path: Path) -> None:
    tiny_model(tmp_path / "a.gguf", "llama")
    whole = (tmp_path / "a.gguf").read_bytes()
    path = tmp_path / "b.gguf"
    rng = random.Random(0)
    padding = 32  # the last tensor may be followed by less than an alignment
    for end in [rng.randrange(len(whole) - padding) for _ in range(40)] + list(range(0, 1500, 25)):
        path.write_bytes(whole[:end])
        with pytest.raises(FieldError) as caught:
            open_checkpoint(str(path), "auto", 0)
        assert "\n" not in str(caught.value)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.randrange(2500)] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(str(path), "auto", 0)
            Architecture.from_config(checkpoint.config, "here")
            list(checkpoint.tensors())
        except FieldError:
            refused += 1
    assert refused > 50


@pytest.mark.slow
def test_smollm2_is_what_transformers_reads() -> None:
    pytest.importorskip("transformers")
    try:
        checkpoint = open_checkpoint("smollm2", "auto", 0)
    except FieldError as error:
        pytest.skip(str(error))
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**checkpoint.config))
    read = load_gguf_checkpoint(checkpoint.path, return_tensors=True, model_to_load=model)
    assert read["config"]["rms_norm_eps"] == pytest.approx(checkpoint.config["rms_norm_eps"], rel=1e-6)
    same = {"rms_norm_eps", "pad_token_id", "architectures", "hidden_act"}
    assert read["config"].items() >= {k: v for k, v in checkpoint.config.items() if k not in same}.items()
    reference = read["tensors"]
    names = set()
    for name, tensor in checkpoint.tensors():
        assert torch.equal(tensor, reference[name]), name
        names.add(name)
    assert names == reference.keys()
