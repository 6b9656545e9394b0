"""Layers of a CPU in float32 by our compiled loops: weights packed once, tensors in and out.

Beside oneDNN's products they take half the time for one row and some 95 % for hundreds: a call costs microseconds
less, the next weights are asked for while those before are used, and what follows a product is done in the cache.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sarathi.kernels.elementwise import rms_norm as _rms_norm
from sarathi.kernels.linear import multiply, multiply_gated, pack_panels
from sarathi.kernels.threads import num_threads, start_threads

_WORTH_THREADS = 1 << 16  # values from which on a norm by several threads makes up for waking them
_NONE, _NO_ROWS = np.empty(0, np.float32), np.empty((0, 0), np.float32)


class CompiledLinear:
    """x W^T + b, of a weight (out_features, in_features)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        start_threads()
        self._width = len(weight)
        self._panels = pack_panels(weight.numpy())
        self._bias = _NONE if bias is None else bias.numpy()

    def __call__(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """(T, in_features) to (T, out_features), added to `residual`."""
        _check(x, self._panels)
        assert residual is None or residual.shape == (len(x), self._width), residual.shape
        y = x.new_empty(len(x), self._width)
        added = _NO_ROWS if residual is None else residual.contiguous().numpy()
        multiply(x.contiguous().numpy(), self._panels, self._bias, added, y.numpy(), num_threads())
        return y


class CompiledGated:
    """silu(x G^T + g) * (x U^T + u), of a weight (2 * out_features, in_features), gate above up."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        start_threads()
        self._width = len(weight) // 2
        self._gates, self._ups = (pack_panels(half.numpy()) for half in weight.chunk(2))
        self._biases = (_NONE, _NONE) if bias is None else tuple(half.numpy() for half in bias.chunk(2))

    def __call__(self, x: Tensor) -> Tensor:
        """(T, in_features) to (T, out_features)."""
        _check(x, self._gates)
        y = x.new_empty(len(x), self._width)
        gate_bias, up_bias = self._biases
        x = x.contiguous()
        multiply_gated(x.numpy(), self._gates, self._ups, gate_bias, up_bias, y.numpy(), num_threads())
        return y


def _check(x: Tensor, panels: np.ndarray) -> None:
    """The loops go by addresses: of another shape or type they would read what is not theirs."""
    assert x.dtype is torch.float32 and x.shape == (len(x), panels.shape[1]), (x.dtype, x.shape, panels.shape)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    assert weight.shape == x.shape[-1:], (x.shape, weight.shape)
    rows = x.reshape(-1, x.shape[-1])
    y = torch.empty_like(rows)
    threads = num_threads() if x.numel() > _WORTH_THREADS else 1
    _rms_norm(rows.numpy(), weight.numpy(), np.float32(eps), y.numpy(), threads)
    return y.view(x.shape)
