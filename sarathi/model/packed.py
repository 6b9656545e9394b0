"""How a linear layer's weight is laid out for the device that computes with it, and which kernels then do.

On a CPU our compiled loops in float32 where they can be had, else oneDNN's; elsewhere nothing is packed.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


class PackedLinear(Protocol):
    def __call__(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """x W^T + b, (T, in_features) to (T, out_features), added to `residual`."""
        ...


class PackedGated(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """silu(x G^T + g) * (x U^T + u), (T, in_features) to (T, out_features)."""
        ...


def pack_linear(weight: Tensor, bias: Tensor | None) -> PackedLinear | None:
    """Kernels for a weight (out_features, in_features), which is copied; None where the plain one is as good."""
    ops = compiled_ops(weight)
    if ops is not None:
        return ops.CompiledLinear(weight, bias)
    return _OneDnnLinear(weight, bias) if can_pack(weight) else None


def pack_gated(weight: Tensor, bias: Tensor | None) -> PackedGated | None:
    """The same for a weight (2 * out_features, in_features), gate above up, so that both halves are joined at once."""
    ops = compiled_ops(weight)
    if ops is not None:
        return ops.CompiledGated(weight, bias)
    return _OneDnnGated(weight, bias) if can_pack(weight) else None


def compiled_ops(weight: Tensor) -> ModuleType | None:
    """Our compiled loops (sarathi.model.cpu_ops), if they can be had for such a weight."""
    return _load_ops() if weight.dtype is torch.float32 and weight.device.type == "cpu" else None


@functools.cache
def _load_ops() -> ModuleType | None:
    """None without numba, and on a CPU that the tile is not written for."""
    try:
        from sarathi.kernels.tile import HAS_FMA
        from sarathi.model import cpu_ops
    except ImportError as error:
        logger.warning("linear layers go through oneDNN, which is slower for few tokens: %s", error)
        return None
    if not HAS_FMA:
        logger.info("linear layers go through oneDNN: compiled loops need a CPU with AVX-512, or AVX2 and FMA")
        return None
    return cpu_ops


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN packs this weight here: float32 everywhere, 16-bit types where the CPU computes in them."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if weight.dtype is torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return weight.dtype is torch.float32


class _OneDnnLinear:
    """Up to three times as fast at few rows as with the plain weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight: Any = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias

    def __call__(self, x: Tensor, residual: Tensor | None) -> Tensor:
        if residual is None:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")


class _OneDnnGated:
    """Gate and up apart: silu and product are then done by their kernels."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._gate, self._up = (torch.ops.mkldnn._reorder_linear_weight(half) for half in weight.chunk(2))
        self._gate_bias, self._up_bias = (None, None) if bias is None else bias.chunk(2)

    def __call__(self, x: Tensor) -> Tensor:
        gate = torch.ops.mkldnn._linear_pointwise(x, self._gate, self._gate_bias, "swish", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, gate, self._up, self._up_bias, "mul")
