"""The parts of a transformer: linear layers with packed weights, norms, rotary embedding, MLPs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sarathi.model.architecture import Architecture, Rope


class Linear(nn.Module):
    """y = x W^T + b. On a CPU oneDNN packs the weight once, which is up to three times as fast at few rows.

    `weight` is (out_features, in_features) until `pack` takes its place.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight: Tensor | None = torch.empty(out_features, in_features, dtype=dtype)
        self.bias = torch.empty(out_features, dtype=dtype) if bias else None
        self._packed: Any = None

    def pack(self) -> None:
        """Have oneDNN lay the weight out for its kernels; the plain one is given up."""
        assert self.weight is not None
        if can_pack(self.weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)
            self.weight = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None:
            assert self.weight is not None
            return functional.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN packs this weight here: float32 everywhere, 16-bit types where the CPU computes in them."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if weight.dtype is torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return weight.dtype is torch.float32


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32 inside."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.empty(size, dtype=dtype)
        self._eps = eps
        self._shape = (size,)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is torch.float32:
            return functional.rms_norm(x, self._shape, self.weight, self._eps)
        return functional.rms_norm(x.float(), self._shape, None, self._eps).to(x.dtype).mul_(self.weight)


class RotaryEmbedding(nn.Module):
    """cos and sin of every position, computed once in float32, and their application to query and key heads."""

    def __init__(self, rope: Rope, head_dim: int, max_len: int, dtype: torch.dtype) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(max_len).float(), rope.inverse_frequencies(head_dim))
        cos, sin = angles.cos(), angles.sin()
        self.cos = torch.cat((cos, cos), -1).to(dtype)
        self.sin = torch.cat((-sin, sin), -1).to(dtype)  # the sign of the rotated half is in it

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(T, 1, head_dim) each, for the round's positions."""
        return self.cos[positions, None], self.sin[positions, None]

    @staticmethod
    def apply(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate (T, num_heads, head_dim): halves (a, b) become (a cos - b sin, b cos + a sin)."""
        return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, 2 * intermediate_size, bias, dtype)
        self.down = Linear(intermediate_size, hidden_size, bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(functional.silu(gate).mul_(up))

    def targets(self, prefix: str, names: tuple[str, str, str]) -> dict[str, Tensor]:
        """Where a checkpoint's tensors go; `names` are those of gate, up and down."""
        gate, up, down = names
        targets: dict[str, Tensor] = {}
        for kind in ("weight", "bias"):
            both, out = getattr(self.gate_up, kind), getattr(self.down, kind)
            if both is not None:
                half = both.shape[0] // 2
                targets[f"{prefix}.{gate}.{kind}"] = both[:half]
                targets[f"{prefix}.{up}.{kind}"] = both[half:]
                targets[f"{prefix}.{down}.{kind}"] = out
        return targets


class MixtureOfExperts(nn.Module):
    """Each token goes through its `experts_per_token` likeliest experts, weighted by the router's softmax."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        a = architecture
        self.router = Linear(a.hidden_size, a.num_experts, False, dtype)
        self.experts = nn.ModuleList(
            GatedMLP(a.hidden_size, a.moe_intermediate_size, False, dtype) for _ in range(a.num_experts)
        )
        self._per_token = a.experts_per_token
        self._normalize = a.normalize_expert_weights

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).float().softmax(-1).topk(self._per_token, -1)
        if self._normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(x.dtype)
        output = torch.zeros_like(x)
        for index in chosen.unique().tolist():
            rows, place = (chosen == index).nonzero(as_tuple=True)
            output.index_add_(0, rows, self.experts[index](x[rows]) * weights[rows, place, None])
        return output
