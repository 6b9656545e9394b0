"""Norms and exponentials: loops that read and write each value once."""

from __future__ import annotations

import numba
import numpy as np

from sarathi.kernels.cache import compiled

_F32, _I32 = np.float32, np.int32


@numba.njit(fastmath=True, inline="always")
def exp(x):
    """e^x of x <= 0 in float32, to 2 units in the last place: range reduction and Cephes' polynomial (expf).

    Unlike a call of the library's, a loop of it becomes vector instructions, if error_model="numpy" keeps checks of
    divisors out of the loop.
    """
    x = max(x, _F32(-87.0))
    k = np.floor(x * _F32(1.4426950408889634) + _F32(0.5))
    r = x - k * _F32(0.693359375) + k * _F32(2.12194440e-4)
    p = _F32(1.9875691500e-4)
    p = p * r + _F32(1.3981999507e-3)
    p = p * r + _F32(8.3334519073e-3)
    p = p * r + _F32(4.1665795894e-2)
    p = p * r + _F32(1.6666665459e-1)
    p = p * r + _F32(5.0000001201e-1)
    p = p * r * r + r + _F32(1.0)
    return p * _I32((_I32(k) + _I32(127)) << _I32(23)).view(np.float32)


# Inlined, or fastmath makes other last digits of it when it is compiled than when it is read from the cache.
@numba.njit(fastmath=True, error_model="numpy", inline="always")
def _norm_rows(x, weight, eps, y, begin, end):
    size = x.shape[1]
    for row in range(begin, end):
        squares = _F32(0)
        for i in range(size):
            squares += x[row, i] * x[row, i]
        scale = _F32(1) / np.sqrt(squares / _F32(size) + eps)
        for i in range(size):
            y[row, i] = x[row, i] * scale * weight[i]


@compiled(parallel=True, fastmath=True, error_model="numpy")
def rms_norm(x, weight, eps, y, num_threads):
    """y = x / sqrt(mean(x^2) + eps) * weight. x, y: (rows, size); weight: (size,); eps: float32."""
    num_rows = len(x)
    if num_threads == 1:  # others are not even woken
        _norm_rows(x, weight, eps, y, 0, num_rows)
    else:
        for thread in numba.prange(num_threads):
            begin, end = num_rows * thread // num_threads, num_rows * (thread + 1) // num_threads
            _norm_rows(x, weight, eps, y, begin, end)
