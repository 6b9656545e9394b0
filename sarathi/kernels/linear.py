"""Matrix products with packed weights, and what is done with their results while those are in the cache."""

from __future__ import annotations

import numba
import numpy as np

from sarathi.kernels.cache import compiled
from sarathi.kernels.elementwise import exp
from sarathi.kernels.tile import PANEL, ROWS, make_tile

_F32 = np.float32
_LINE = 64  # bytes of a cache line
_TASKS_PER_THREAD = 4  # from so many on, shares differ little
_tile8, _tile4, _tile2, _tile1 = (make_tile(rows) for rows in (8, 4, 2, 1))


def pack_panels(weight: np.ndarray) -> np.ndarray:
    """(out_features, in_features) as (P, in_features, PANEL): panels of out_features as the loops read them.

    The last one is filled up with zeros. Its memory begins at a cache line.
    """
    out_features, in_features = weight.shape
    num_panels = -(-out_features // PANEL)
    size = num_panels * in_features * PANEL
    memory = np.zeros(size * 4 + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    panels = memory[start : start + size * 4].view(np.float32).reshape(num_panels, in_features, PANEL)
    whole = out_features // PANEL
    panels[:whole] = weight[: whole * PANEL].reshape(whole, PANEL, in_features).transpose(0, 2, 1)
    if whole < num_panels:
        panels[whole, :, : out_features - whole * PANEL] = weight[whole * PANEL :].T
    return panels


@numba.njit(error_model="numpy")
def _some_rows(num_rows, a, lda, b, c, ldc, depth, start):
    """A tile of 8, 4, 2 or 1 rows, of at most `num_rows`; returns how many."""
    if ROWS == 8 and num_rows >= 8:
        _tile8(a, lda, b, c, ldc, depth, start)
        return 8
    if num_rows >= 4:
        _tile4(a, lda, b, c, ldc, depth, start)
        return 4
    if num_rows >= 2:
        _tile2(a, lda, b, c, ldc, depth, start)
        return 2
    _tile1(a, lda, b, c, ldc, depth, start)
    return 1


@numba.njit(error_model="numpy")
def _share(thread, num_threads, num_rows, num_panels):
    """Which tasks are a thread's, begin and end, and how many rows a task has: of one panel all rows, or a part of them
    where panels are too few to share out evenly."""
    num_tiles = (num_rows + ROWS - 1) // ROWS
    num_blocks = 1 if num_panels % num_threads == 0 else 1 + _TASKS_PER_THREAD * num_threads // num_panels
    block_rows = max(1, num_tiles // num_blocks) * ROWS
    num_tasks = num_panels * ((num_rows + block_rows - 1) // block_rows)
    return num_tasks * thread // num_threads, num_tasks * (thread + 1) // num_threads, block_rows


@numba.njit(fastmath=True, error_model="numpy")
def _silu_times(gate, up, y):
    for j in range(len(y)):
        e = exp(-abs(gate[j]))
        y[j] = gate[j] * (_F32(1) if gate[j] >= 0 else e) / (_F32(1) + e) * up[j]


@compiled(parallel=True, fastmath=True, error_model="numpy")
def multiply(x, panels, bias, residual, y, num_threads):
    """y = x W^T + bias + residual.

    x: (T, in_features). panels: of W. bias: (out_features,), or empty. residual: as y, or with no rows.
    y: (T, out_features). All are contiguous.
    """
    num_rows, depth = x.shape
    num_panels, width = len(panels), y.shape[1]
    for thread in numba.prange(num_threads):
        edge = np.empty((ROWS, PANEL), np.float32)  # of a panel that is wider than what is left of y
        begin, end, block_rows = _share(thread, num_threads, num_rows, num_panels)
        for task in range(begin, end):
            block, panel = divmod(task, num_panels)
            b, left = panels[panel].ctypes.data, panel * PANEL
            right = min(width, left + PANEL)
            row, stop = block * block_rows, min(num_rows, (block + 1) * block_rows)
            while row < stop:
                a = x.ctypes.data + row * depth * 4
                if right - left == PANEL:
                    place = (row * width + left) * 4
                    start = residual.ctypes.data + place if len(residual) else 0
                    done = _some_rows(stop - row, a, depth, b, y.ctypes.data + place, width, depth, start)
                else:
                    done = _some_rows(stop - row, a, depth, b, edge.ctypes.data, PANEL, depth, 0)
                    for i in range(done):
                        y[row + i, left:right] = edge[i, : right - left]
                        if len(residual):
                            y[row + i, left:right] += residual[row + i, left:right]
                if len(bias):
                    for i in range(row, row + done):
                        y[i, left:right] += bias[left:right]
                row += done


@compiled(parallel=True, fastmath=True, error_model="numpy")
def multiply_gated(x, gates, ups, gate_bias, up_bias, y, num_threads):
    """y = silu(x G^T + gate_bias) * (x U^T + up_bias). Arrays as in `multiply`; both biases, or both empty."""
    num_rows, depth = x.shape
    num_panels, width = len(gates), y.shape[1]
    for thread in numba.prange(num_threads):
        gate, up = np.empty((ROWS, PANEL), np.float32), np.empty((ROWS, PANEL), np.float32)
        begin, end, block_rows = _share(thread, num_threads, num_rows, num_panels)
        for task in range(begin, end):
            block, panel = divmod(task, num_panels)
            g, u, left = gates[panel].ctypes.data, ups[panel].ctypes.data, panel * PANEL
            right = min(width, left + PANEL)
            row, stop = block * block_rows, min(num_rows, (block + 1) * block_rows)
            while row < stop:
                a = x.ctypes.data + row * depth * 4
                done = _some_rows(stop - row, a, depth, g, gate.ctypes.data, PANEL, depth, 0)
                _some_rows(stop - row, a, depth, u, up.ctypes.data, PANEL, depth, 0)
                if len(gate_bias):
                    for i in range(done):
                        gate[i, : right - left] += gate_bias[left:right]
                        up[i, : right - left] += up_bias[left:right]
                for i in range(done):
                    _silu_times(gate[i], up[i], y[row + i, left:right])
                row += done
