"""The CPU's compiled loops against numpy in float64, over sizes that vectors, tiles and threads divide or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
numba = pytest.importorskip("numba")

from sarathi.kernels.elementwise import exp, rms_norm
from sarathi.kernels.linear import multiply, multiply_gated, pack_panels
from sarathi.kernels.threads import start_threads
from sarathi.kernels.tile import PANEL, VECTORS, make_tile
from sarathi.model import packed
from sarathi.model.layers import GatedLinear, Linear

ROOT = Path(__file__).resolve().parents[1]
NONE, NO_ROWS = np.empty(0, np.float32), np.empty((0, 0), np.float32)
# in_features, out_features: whole panels, an edge, less than a panel, and odd numbers all round
SIZES = [(64, 4 * PANEL), (40, 2 * PANEL + 1), (64, PANEL - 1), (33, 7), (1, 1)]


@pytest.fixture(scope="module", autouse=True)
def threads():
    """Loops of up to three threads, and torch as it was before."""
    before = torch.get_num_threads()
    start_threads()
    yield
    torch.set_num_threads(before)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def empty(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)  # what is not written shows


@pytest.mark.parametrize(("in_features", "out_features"), SIZES)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 8, 9, 31, 64])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_products(num_rows, in_features, out_features, num_threads):
    x, weight, bias = random(num_rows, in_features), random(out_features, in_features), random(out_features)
    residual, panels = random(num_rows, out_features, seed=1), pack_panels(weight)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    y = empty(num_rows, out_features)
    multiply(x, panels, NONE, NO_ROWS, y, num_threads)
    np.testing.assert_allclose(y, expected, atol=1e-4)
    kept, y = residual.copy(), empty(num_rows, out_features)
    multiply(x, panels, bias, residual, y, num_threads)
    np.testing.assert_allclose(y, expected + bias + residual, atol=1e-4)
    assert np.array_equal(residual, kept)


@pytest.mark.parametrize(("in_features", "out_features"), SIZES)
@pytest.mark.parametrize("num_rows", [1, 7, 9, 64])
@pytest.mark.parametrize("biased", [False, True])
def test_gated_products(num_rows, in_features, out_features, biased):
    x, gate, up = random(num_rows, in_features), *random(2, out_features, in_features)
    gate_bias, up_bias = random(2, out_features) if biased else (NONE, NONE)
    y = empty(num_rows, out_features)
    multiply_gated(x, pack_panels(gate), pack_panels(up), gate_bias, up_bias, y, 2)
    wide = x.astype(np.float64)
    g = wide @ gate.T + (gate_bias if biased else 0)
    expected = g / (1 + np.exp(-g)) * (wide @ up.T + (up_bias if biased else 0))
    np.testing.assert_allclose(y, expected, atol=1e-4, rtol=1e-4)


def test_gates_far_from_zero():
    """Neither overflow nor a lost sign where silu is flat."""
    gates = np.array([[-1e4, -90.0, -20.0, 0.0, 20.0, 90.0, 1e4]], np.float32)
    identity = np.eye(7, dtype=np.float32)
    y = empty(1, 7)
    multiply_gated(
        gates, pack_panels(identity), pack_panels(np.ones_like(identity)), NONE, np.ones(0, np.float32), y, 1
    )
    total = float(gates.sum())
    silu = [g / (1 + np.exp(-g)) if g > -700 else 0.0 for g in gates[0].astype(np.float64)]
    np.testing.assert_allclose(y[0], [value * total for value in silu], rtol=1e-5, atol=1e-20)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("num_rows", [1, 4, 8])
def test_tile_of_any_vector(num_rows, lanes):
    """Vectors that this CPU's are not are cut or joined by the compiler; sums start from zero or from what is there."""
    tile, depth, width = make_tile(num_rows, lanes), 21, VECTORS * lanes

    @numba.njit
    def run(a, b, start, c):
        tile(a.ctypes.data, a.shape[1], b.ctypes.data, c.ctypes.data, c.shape[1], depth, 0)
        tile(a.ctypes.data, a.shape[1], b.ctypes.data, start.ctypes.data, c.shape[1], depth, start.ctypes.data)

    a, start, c = random(num_rows, depth), random(num_rows, width), empty(num_rows, width)
    memory = np.empty(depth * width + 16, np.float32)
    offset = -memory.ctypes.data % 64 // 4
    b = memory[offset : offset + depth * width].reshape(depth, width)
    b[:] = random(depth, width, seed=2)
    expected, before = a.astype(np.float64) @ b, start.copy()
    run(a, b, start, c)
    np.testing.assert_allclose(c, expected, atol=1e-5)
    np.testing.assert_allclose(start, before + expected, atol=1e-5)


def test_panels_begin_at_a_cache_line_and_end_in_zeros():
    panels = pack_panels(random(PANEL + 2, 5))
    assert panels.shape == (2, 5, PANEL) and panels.ctypes.data % 64 == 0
    assert panels[1, :, :2].all() and not panels[1, :, 2:].any()


@pytest.mark.parametrize("num_rows", [1, 5, 64])
@pytest.mark.parametrize("size", [1, 7, 576])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_norm(num_rows, size, num_threads):
    x, weight, y = 1e-2 * random(num_rows, size), random(size), empty(num_rows, size)
    rms_norm(x, weight, np.float32(1e-5), y, num_threads)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y, wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight, rtol=3e-6)


def test_exponential():
    @numba.njit
    def run(x, y):
        for i in range(len(x)):
            y[i] = exp(x[i])

    x = np.linspace(-86.0, 0.0, 20_001, dtype=np.float32)
    y = empty(len(x))
    run(x, y)
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)), rtol=2.5e-7)


@pytest.mark.parametrize("kind", [Linear, GatedLinear])
@torch.inference_mode()
def test_without_our_loops_onednn_computes_the_same(kind, monkeypatch):
    torch.manual_seed(0)
    x, layers = torch.randn(5, 24), [kind(24, 40, True, torch.float32) for _ in range(2)]
    layers[0].weight.normal_()
    layers[0].bias.normal_()
    layers[1].weight.copy_(layers[0].weight)
    layers[1].bias.copy_(layers[0].bias)
    layers[0].pack()
    monkeypatch.setattr(packed, "_load_ops", lambda: None)
    layers[1].pack()
    torch.testing.assert_close(layers[0](x), layers[1](x), atol=1e-4, rtol=1e-5)


def test_packing_leaves_torch_its_number_of_threads():
    code = (
        "import torch; torch.set_num_threads(1); from sarathi.model.layers import Linear;"
        "layer = Linear(8, 8, False, torch.float32); layer.weight.zero_(); layer.pack(); layer(torch.ones(1, 8));"
        "print(torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1"], done.stderr
