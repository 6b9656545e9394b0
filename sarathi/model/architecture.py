"""What a config.json says about a decoder-only transformer: sizes, and which of the known variations it uses.

Holds no weights and knows no device. Anything that would compute something else than the model's authors meant is
refused here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from sarathi.errors import FieldError, shown

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
_BIASED = ("qwen2",)  # families whose q, k and v projections have a bias without config.json saying so
_QK_NORM = ("qwen3", "qwen3_moe")


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: base, and the scaling of long contexts."""

    theta: float
    scaling_type: str = "default"  # default, linear or llama3
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """(head_dim / 2,) float32: theta^(-2i/d), scaled as Llama 3.1's rule or linearly."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies = 1.0 / self.theta**exponents
        if self.scaling_type == "linear":
            return frequencies / self.factor
        if self.scaling_type != "llama3":
            return frequencies
        # Long wavelengths are stretched by the factor, short ones left, those between interpolated.
        wavelengths = 2 * math.pi / frequencies
        low = self.original_max_position / self.low_freq_factor
        high = self.original_max_position / self.high_freq_factor
        share = (self.original_max_position / wavelengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        between = (1 - share) * frequencies / self.factor + share * frequencies
        scaled = torch.where(wavelengths > low, frequencies / self.factor, between)
        return torch.where(wavelengths < high, frequencies, scaled)


@dataclass(frozen=True)
class Architecture:
    """A model of one of FAMILIES. Sizes in elements."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_model_len: int
    rms_norm_eps: float
    rope: Rope
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]  # of each layer: a token sees itself and the window - 1 before it; None: all
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    normalize_expert_weights: bool = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> Architecture:
        """Read the fields of Hugging Face's config.json. Raises FieldError of `model` naming `where` and the field."""
        family = config.get("model_type")
        if family not in FAMILIES:
            _refuse(where, "model_type", family, f"one of {', '.join(FAMILIES)}")
        if (act := config.get("hidden_act", "silu")) != "silu":
            _refuse(where, "hidden_act", act, "only silu")
        num_heads = _integer(config, where, "num_attention_heads")
        hidden_size = _integer(config, where, "hidden_size")
        num_layers = _integer(config, where, "num_hidden_layers")
        num_experts = _integer(config, where, "num_local_experts", "num_experts", default=0) if "mi" in family else 0
        if family == "qwen3_moe":
            num_experts = _integer(config, where, "num_experts", "num_local_experts")
            if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
                _refuse(where, "decoder_sparse_step, mlp_only_layers", "set", "experts in every layer")
        elif family != "mixtral":
            num_experts = 0
        head_dim = config.get("head_dim") or hidden_size // num_heads
        if head_dim % 2:
            _refuse(where, "head_dim", head_dim, "an even number")
        intermediate_size = _integer(config, where, "intermediate_size")
        biased = bool(config.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=_integer(config, where, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=_integer(config, where, "num_key_value_heads", default=num_heads),
            head_dim=head_dim,
            intermediate_size=intermediate_size,
            max_model_len=_integer(config, where, "max_position_embeddings"),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=_rope(config, where),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=family in _BIASED or biased,
            output_bias=biased and family not in _BIASED,
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=family in _QK_NORM,
            windows=_windows(config, family, num_layers),
            num_experts=num_experts,
            experts_per_token=_integer(config, where, "num_experts_per_tok", default=0) if num_experts else 0,
            moe_intermediate_size=_integer(config, where, "moe_intermediate_size", default=intermediate_size),
            normalize_expert_weights=family == "mixtral" or bool(config.get("norm_topk_prob", False)),
        )


def _rope(config: Mapping[str, Any], where: str) -> Rope:
    """`rope_parameters` of newer files, or `rope_theta` and `rope_scaling` of older ones."""
    given: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = given.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        _refuse(where, "rope scaling", kind, "one of default, linear, llama3")
    if given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        _refuse(where, "partial_rotary_factor", given.get("partial_rotary_factor"), "only 1")
    if kind == "default":
        return Rope(float(theta))
    if kind == "linear":
        return Rope(float(theta), kind, float(given["factor"]))
    return Rope(
        float(theta),
        kind,
        float(given["factor"]),
        float(given["low_freq_factor"]),
        float(given["high_freq_factor"]),
        int(given["original_max_position_embeddings"]),
    )


def _windows(config: Mapping[str, Any], family: str, num_layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window")
    if window is None or family == "llama":
        return (None,) * num_layers
    if family.startswith("qwen"):
        if not config.get("use_sliding_window", False):
            return (None,) * num_layers
        kinds = config.get("layer_types")
        first = config.get("max_window_layers", num_layers)
        if kinds is None:
            return tuple(window if layer >= first else None for layer in range(num_layers))
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return (window,) * num_layers


def _integer(config: Mapping[str, Any], where: str, *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if value is not None:
            if type(value) is not int or value < 0:
                _refuse(where, name, value, "a positive integer")
            return value
    if default is None:
        raise FieldError("model", f"{where}: {names[0]} is missing")
    return default


def _refuse(where: str, name: str, value: object, allowed: str) -> NoReturn:
    raise FieldError("model", f"{where}: {name} {shown(value)} is not supported; {allowed}")
