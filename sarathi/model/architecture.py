"""What a config.json says about a decoder-only transformer: sizes, and which of the known variations it uses.

Holds no weights and knows no device. Anything that would compute something else than the model's authors meant is
refused here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from sarathi.errors import FieldError, shown
from sarathi.worker.parallel import Parallel

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
ROPE_TYPES = ("default", "linear", "llama3")
_MOE = ("mixtral", "qwen3_moe")
_QK_NORM = ("qwen3", "qwen3_moe")

MAX_SIZE, MAX_LAYERS = 10**9, 10**4  # of any size in a config.json, and of its layers


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: base, and the scaling of long contexts."""

    theta: float
    scaling_type: str = "default"  # one of ROPE_TYPES
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """(head_dim / 2,) float32: theta^(-2i/d), scaled linearly or by Llama 3.1's rule.

        Computed on the CPU and then moved: the same for every device, and for "meta" without what torch loads for that.
        """
        device = torch.get_default_device()
        with torch.device("cpu"):
            return self._inverse_frequencies(head_dim).to(device)

    def _inverse_frequencies(self, head_dim: int) -> Tensor:
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
    intermediate_size: int  # of an expert, where there are experts
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
    normalize_expert_weights: bool = False
    kv_replicas: int = 1  # of a shard: ranks of its tensor group that hold the same KV heads

    def shard(self, parallel: Parallel) -> Architecture:
        """What one rank has: its stage's layers, its heads, its share of the MLP's or of each expert's width.

        Where there are fewer KV heads than ranks, several have the same one. The vocabulary stays whole.
        """
        size, layers = parallel.tensor_size, parallel.layers(self.num_layers)
        num_kv_heads = max(1, self.num_kv_heads // size)
        kv_replicas = max(1, size // self.num_kv_heads)
        assert self.num_heads % size == 0 and self.intermediate_size % size == 0, f"{size} ranks"
        assert num_kv_heads * size == kv_replicas * self.num_kv_heads, f"{size} ranks, {self.num_kv_heads} KV heads"
        return replace(
            self,
            num_layers=len(layers),
            num_heads=self.num_heads // size,
            num_kv_heads=num_kv_heads,
            intermediate_size=self.intermediate_size // size,
            windows=self.windows[layers.start : layers.stop],
            kv_replicas=kv_replicas,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> Architecture:
        """Read the fields of Hugging Face's config.json, with defaults for those that may be missing.

        A default of another size than the weights have is found when they are loaded.

        Raises FieldError of `model` naming `where` and the field.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            _refuse(where, "model_type", family, f"one of {', '.join(FAMILIES)}")
        if (activation := config.get("hidden_act", "silu")) != "silu":
            _refuse(where, "hidden_act", activation, "only silu")
        for name, in_every_layer in (("decoder_sparse_step", 1), ("mlp_only_layers", [])):
            if family == "qwen3_moe" and (config.get(name) or in_every_layer) != in_every_layer:
                _refuse(where, name, config[name], f"only {in_every_layer}: experts in every layer")
        hidden_size = _integer(config, where, "hidden_size")
        num_layers = _integer(config, where, "num_hidden_layers")
        if num_layers > MAX_LAYERS:
            _refuse(where, "num_hidden_layers", num_layers, f"at most {MAX_LAYERS:,}")
        num_heads, num_kv_heads, head_dim = _heads(config, where, hidden_size)
        width = _integer(config, where, "moe_intermediate_size" if family == "qwen3_moe" else "intermediate_size")
        num_experts, experts_per_token = _experts(config, where, family)
        biased = family in ("llama", *_QK_NORM) and bool(config.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=_integer(config, where, "vocab_size"),
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=width,
            max_model_len=_integer(config, where, "max_position_embeddings"),
            rms_norm_eps=_number(config, where, "rms_norm_eps", 1e-5 if family == "mixtral" else 1e-6),
            rope=_rope(config, where, 1e6 if family == "mixtral" else 1e4),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=biased or family == "qwen2",
            output_bias=biased,
            mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
            qk_norm=family in _QK_NORM,
            windows=_windows(config, where, family, num_layers),
            num_experts=num_experts,
            experts_per_token=experts_per_token,
            normalize_expert_weights=family == "mixtral" or bool(config.get("norm_topk_prob", False)),
        )


def _heads(config: Mapping[str, Any], where: str, hidden_size: int) -> tuple[int, int, int]:
    """Query heads, KV heads and the size of a head."""
    num_heads = _integer(config, where, "num_attention_heads")
    num_kv_heads = _integer(config, where, "num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        _refuse(where, "num_key_value_heads", num_kv_heads, f"a divisor of the {num_heads} query heads")
    head_dim = _integer(config, where, "head_dim", default=hidden_size // num_heads)
    if head_dim % 2 or not head_dim:
        _refuse(where, "head_dim", head_dim, "an even number of at least 2")
    return num_heads, num_kv_heads, head_dim


def _experts(config: Mapping[str, Any], where: str, family: str) -> tuple[int, int]:
    """Experts of a layer, and how many a token goes through; 0 and 0 where the MLP is dense."""
    if family not in _MOE:
        return 0, 0
    num_experts = _integer(config, where, "num_local_experts", "num_experts")
    per_token = _integer(config, where, "num_experts_per_tok")
    if per_token > num_experts:
        _refuse(where, "num_experts_per_tok", per_token, f"at most the {num_experts} experts")
    return num_experts, per_token


def _rope(config: Mapping[str, Any], where: str, default_theta: float) -> Rope:
    """`rope_parameters` of newer files, or `rope_theta` and `rope_scaling` of older ones."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        _refuse(where, "rope_scaling", given, "an object")
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind not in ROPE_TYPES:
        _refuse(where, "rope_type", kind, f"one of {', '.join(ROPE_TYPES)}")
    partial = given.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
    if partial != 1:
        _refuse(where, "partial_rotary_factor", partial, "only 1")
    theta = _number(given, where, "rope_theta", _number(config, where, "rope_theta", default_theta))
    if kind == "default":
        return Rope(theta)
    factor = _number(given, where, "factor")
    if kind == "linear":
        return Rope(theta, kind, factor)
    low, high = _number(given, where, "low_freq_factor"), _number(given, where, "high_freq_factor")
    if low >= high:
        _refuse(where, "low_freq_factor", low, f"less than high_freq_factor, which is {high:g}")
    return Rope(theta, kind, factor, low, high, _integer(given, where, "original_max_position_embeddings"))


def _windows(config: Mapping[str, Any], where: str, family: str, num_layers: int) -> tuple[int | None, ...]:
    """As transformers decides: Mistral's window holds in all layers, Qwen's only where it is switched on."""
    is_qwen = family.startswith("qwen")
    default = 4096 if family == "mistral" or is_qwen else None
    if family == "llama" or config.get("sliding_window", default) is None:
        return (None,) * num_layers
    if is_qwen and not config.get("use_sliding_window", False):
        return (None,) * num_layers
    window = _integer(config, where, "sliding_window", default=default)
    if family not in ("qwen2", "qwen3"):
        return (window,) * num_layers
    kinds = config.get("layer_types")
    if kinds is None:
        first = config.get("max_window_layers", 28)
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        _refuse(where, "layer_types", kinds, f"full_attention or sliding_attention for each of {num_layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _integer(config: Mapping[str, Any], where: str, *names: str, default: int | None = None) -> int:
    """The first of `names` that is set."""
    for name in names:
        value = config.get(name)
        if value is not None:
            if type(value) is not int or not 1 <= value <= MAX_SIZE:
                _refuse(where, name, value, "an integer of at least 1")
            return value
    if default is None:
        raise FieldError("model", f"{where}: {names[0]} is missing")
    return default


def _number(config: Mapping[str, Any], where: str, name: str, default: float | None = None) -> float:
    value = config.get(name)
    if value is None:
        if default is None:
            raise FieldError("model", f"{where}: {name} is missing")
        return default
    if type(value) not in (int, float) or not 0 < value < math.inf:
        _refuse(where, name, value, "a number above 0")
    return float(value)


def _refuse(where: str, name: str, value: object, allowed: str) -> NoReturn:
    raise FieldError("model", f"{where}: {name} {shown(value)} is not supported; {allowed}")
