"""Which configs are read, how, and which are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sarathi.errors import FieldError
from sarathi.model.architecture import Architecture, Rope

SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(family: str, **fields: Any) -> Architecture:
    """Fields of value ... are left out."""
    config = {"model_type": family, **SMALL, **fields}
    return Architecture.from_config({k: v for k, v in config.items() if v is not ...}, "some/folder")


def test_llama_with_as_few_fields_as_early_files_have() -> None:
    found = read("llama", num_key_value_heads=...)
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (4, 4, 16)
    assert (found.rms_norm_eps, found.rope) == (1e-6, Rope(10000.0))
    assert not any((found.qkv_bias, found.output_bias, found.mlp_bias, found.qk_norm, found.tied_embeddings))
    assert found.windows == (None,) * 4
    assert found.num_experts == 0


def test_biases_are_where_each_family_has_them() -> None:
    def biases(found: Architecture) -> tuple[bool, bool, bool]:
        return found.qkv_bias, found.output_bias, found.mlp_bias

    assert biases(read("llama", attention_bias=True, mlp_bias=True)) == (True, True, True)
    assert biases(read("qwen2")) == (True, False, False)
    assert biases(read("qwen3", head_dim=16, attention_bias=True)) == (True, True, False)
    assert biases(read("mistral", attention_bias=True)) == (False, False, False)


@pytest.mark.parametrize("newer", [False, True])
def test_rope_of_older_and_newer_files(newer: bool) -> None:
    scaling: dict[str, Any] = LLAMA3_SCALING
    old = {"rope_theta": 500000.0, "rope_scaling": scaling}
    found = read("llama", **({"rope_parameters": scaling | {"rope_theta": 500000.0}} if newer else old))
    assert found.rope == Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    assert read("llama", rope_scaling={"type": "linear", "factor": 4}).rope == Rope(10000.0, "linear", 4.0)
    assert read("mixtral", num_local_experts=4, num_experts_per_tok=2).rope == Rope(1e6)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 4.0}, LLAMA3_SCALING])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rope_frequencies_are_those_of_transformers(scaling: dict[str, Any] | None, head_dim: int) -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": "default", "rope_theta": 500000.0} | (scaling or {})
    sizes = SMALL | {"head_dim": head_dim, "max_position_embeddings": 131072}
    expected = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=parameters)).inv_freq
    found = read("llama", rope_parameters=parameters).rope.inverse_frequencies(head_dim)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("mistral", {"sliding_window": 24}, [24, 24, 24, 24]),
        ("mistral", {"sliding_window": None}, [None] * 4),
        ("mistral", {}, [4096] * 4),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}, [None] * 4),
        ("llama", {"sliding_window": 24}, [None] * 4),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": False, "max_window_layers": 0}, [None] * 4),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 3}, [None, None, None, 24]),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True}, [None] * 4),
        (
            "qwen3",
            {
                "head_dim": 16,
                "sliding_window": 24,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            [None, 24, None, 24],
        ),
    ],
)
def test_sliding_window_of_each_layer(family: str, fields: dict[str, Any], windows: list[int | None]) -> None:
    assert list(read(family, **fields).windows) == windows


def test_experts() -> None:
    mixtral = read("mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert (mixtral.num_experts, mixtral.experts_per_token, mixtral.intermediate_size) == (8, 2, 96)
    assert mixtral.normalize_expert_weights
    qwen = read("qwen3_moe", num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32)
    assert (qwen.num_experts, qwen.experts_per_token, qwen.intermediate_size) == (8, 3, 32)
    assert not qwen.normalize_expert_weights and qwen.qk_norm
    assert read("llama", num_local_experts=8).num_experts == 0


MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
REFUSED = [
    ("deepseek_v3", {"kv_lora_rank": 512}, "model_type 'deepseek_v3' is not supported; one of llama, mistral,"),
    ("llama", {"model_type": ...}, "model_type None is not supported"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; only silu"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_type 'yarn' is not supported; one of"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": "4"}}, "factor '4' is not supported; a number above 0"),
    (
        "llama",
        {"rope_scaling": LLAMA3_SCALING | {"low_freq_factor": 4.0}},
        "low_freq_factor 4.0 is not supported",
    ),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling 'linear' is not supported; an object"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported; only 1"),
    ("llama", {"rope_theta": 0}, "rope_theta 0 is not supported"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps nan is not supported"),
    ("llama", {"vocab_size": ...}, "vocab_size is missing"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers 0 is not supported; an integer of at least 1"),
    ("llama", {"num_attention_heads": True}, "num_attention_heads True is not supported"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3 is not supported; a divisor of the 4 query heads"),
    ("llama", {"head_dim": 15}, "head_dim 15 is not supported; an even number"),
    ("llama", {"num_attention_heads": 128, "num_key_value_heads": 128}, "head_dim 0 is not supported"),
    ("mistral", {"sliding_window": -1}, "sliding_window -1 is not supported"),
    ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok 3 is not supported; at most"),
    ("mixtral", {"num_experts_per_tok": 2}, "num_local_experts is missing"),
    (
        "qwen3_moe",
        {**MOE, "mlp_only_layers": [0]},
        "mlp_only_layers [0] is not supported; only []: experts in every layer",
    ),
    ("qwen3_moe", {**MOE, "decoder_sparse_step": 2}, "decoder_sparse_step 2 is not supported; only 1: experts"),
    (
        "qwen2",
        {"sliding_window": 24, "use_sliding_window": True, "layer_types": ["full_attention"] * 3},
        "for each of 4 layers",
    ),
    (
        "qwen2",
        {"sliding_window": 24, "use_sliding_window": True, "layer_types": ["chunked_attention"] * 4},
        "layer_types ['chunked_attention', ",
    ),
]


@pytest.mark.parametrize(("family", "fields", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_would_be_computed_wrongly_is_refused(family: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(family, **fields)
    assert caught.value.field == "model"
    assert str(caught.value).startswith("model: some/folder: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
