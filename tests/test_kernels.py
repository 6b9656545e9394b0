"""The CPU's compiled loops against numpy in float64, over sizes that vectors, tiles and threads divide or not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
numba = pytest.importorskip("numba")

from sarathi.kernels import cache
from sarathi.kernels.elementwise import exp, rms_norm
from sarathi.kernels.linear import multiply, multiply_gated, pack_panels
from sarathi.kernels.threads import start_threads
from sarathi.kernels.tile import HAS_FMA, PANEL, VECTORS, make_tile
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


def run_python(code: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=kept | environment, capture_output=True, text=True, timeout=120
    )


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
@pytest.mark.parametrize("compiled", [True, False] if HAS_FMA else [False])
@torch.inference_mode()
def test_layers_by_our_loops_and_by_onednn(kind, compiled, monkeypatch):
    """Of whatever tensor a caller has: no rows, rows or columns apart, an address that no vector begins at."""
    weight, bias = random(80, 24), random(80)
    layer = kind(24, 40 if kind is GatedLinear else 80, True, torch.float32)
    layer.weight.copy_(torch.from_numpy(weight))
    layer.bias.copy_(torch.from_numpy(bias))
    if not compiled:
        monkeypatch.setattr(packed, "_load_ops", lambda: None)
    layer.pack()
    assert type(layer._packed).__name__.startswith("Compiled" if compiled else "_OneDnn")
    wide = torch.from_numpy(random(9, 60))
    inputs = [wide[:0, :24], wide[:5, :24], wide[::3, 1:49:2], wide[:, :24].t().contiguous().t()]
    inputs.append(wide.flatten()[1 : 1 + 5 * 24].view(5, 24))
    for x in inputs:
        expected = x.double() @ torch.from_numpy(weight).double().t() + torch.from_numpy(bias).double()
        if kind is GatedLinear:
            expected = torch.nn.functional.silu(expected[:, :40]) * expected[:, 40:]
        torch.testing.assert_close(layer(x).double(), expected, atol=1e-4, rtol=1e-5)
        if kind is Linear:
            residual = torch.from_numpy(random(160, len(x)))[::2].t()
            torch.testing.assert_close(layer(x, residual).double(), expected + residual, atol=1e-4, rtol=1e-5)


@pytest.mark.skipif(not HAS_FMA, reason="old CPU")
def test_what_the_loops_would_read_beyond_is_refused():
    from sarathi.model.cpu_ops import CompiledGated, CompiledLinear
    from sarathi.model.cpu_ops import rms_norm as norm

    linear, gated = CompiledLinear(torch.ones(80, 24), None), CompiledGated(torch.ones(80, 24), None)
    for x in (torch.ones(2, 23), torch.ones(2, 3, 24), torch.ones(2, 24, dtype=torch.bfloat16)):
        for call in (lambda x=x: linear(x, None), lambda x=x: gated(x)):
            with pytest.raises(AssertionError):
                call()
    for residual in (torch.ones(1, 80), torch.ones(2, 79)):
        with pytest.raises(AssertionError):
            linear(torch.ones(2, 24), residual)
    with pytest.raises(AssertionError):
        norm(torch.ones(2, 24), torch.ones(23), 1e-5)


LAYER = """
import sys, torch
{before}
from sarathi.model.layers import Linear
layer = Linear(8, 8, False, torch.float32)
layer.weight.fill_(1.0)
layer.pack()
y = layer(torch.ones(64, 8))
assert y.shape == (64, 8) and (y == 8).all()
import numba
{after}
"""


@pytest.mark.parametrize("num_threads", [1, (os.cpu_count() or 1) + 1])
def test_packing_leaves_torch_its_number_of_threads(num_threads):
    before = f"torch.set_num_threads({num_threads})"
    done = run_python(LAYER.format(before=before, after="print(torch.get_num_threads())"))
    assert done.stdout.split() == [str(num_threads)], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere numba's own choice stays")
def test_threads_where_numba_lacks_openmp_or_a_user_chose():
    lacking = "sys.modules['numba.np.ufunc.omppool'] = None"
    done = run_python(LAYER.format(before=lacking, after="print(numba.threading_layer() != 'omp')"))
    assert done.stdout.split() == ["True"] and done.stderr.count("\n") == 1 and "libgomp1" in done.stderr, done.stderr
    chosen = LAYER.format(before="", after="print(numba.threading_layer())")
    done = run_python(chosen, NUMBA_THREADING_LAYER="workqueue")
    assert (done.stdout.split(), done.stderr) == (["workqueue"], "")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"NUMBA_CPU_NAME": "generic"}, "False 4"),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}, "True 8"),
    ],
)
def test_tile_is_for_the_cpu_that_numba_compiles_for(environment, expected):
    done = run_python("from sarathi.kernels.tile import HAS_FMA, LANES; print(HAS_FMA, LANES)", **environment)
    assert done.stdout.strip() == expected, done.stderr


def test_without_numba_one_warning_says_what_computes():
    done = run_python(LAYER.format(before="sys.modules['numba'] = None", after="").replace("\nimport numba", ""))
    assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr
    assert "go through oneDNN" in done.stderr and "pip install numba" in done.stderr


ALL_LOOPS = """
import hashlib, torch
from sarathi.model import cpu_ops
torch.manual_seed(0)
x, weight, bias = torch.randn(9, 48), torch.randn(160, 48), torch.randn(160)
given = cpu_ops.CompiledLinear(weight, bias)(x, torch.randn(9, 160)), cpu_ops.CompiledGated(weight, None)(x)
for y in (*given, cpu_ops.rms_norm(x, torch.rand(48), 1e-6)):
    print(hashlib.sha256(y.numpy().tobytes()).hexdigest())
"""


def test_a_first_start_computes_what_later_ones_do(tmp_path):
    """To the last bit: compiled here or read from numba's cache."""
    first, later = (run_python(ALL_LOOPS, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first.stdout.count("\n") == 3 and later.stdout == first.stdout, first.stderr


def test_machine_code_of_other_sources_is_not_used(tmp_path):
    """A loop that is compiled with another file's code, before and after that file changes."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(cache.__file__, package)
    (package / "inner.py").write_text("import numba\n@numba.njit\ndef value():\n    return 1\n")
    (package / "outer.py").write_text(
        "from .cache import compiled\nfrom .inner import value\n@compiled()\ndef fill(y):\n    y[0] = value()\n"
    )
    code = (
        "import numpy as np; from kernels.outer import fill; y = np.zeros(1); fill(y);"
        "print(int(y[0]), sum(fill.stats.cache_hits.values()))"
    )
    outputs = [run_python(code, tmp_path).stdout.split() for _ in range(2)]
    inner = package / "inner.py"
    inner.write_text(inner.read_text().replace("1", "2"))
    outputs.append(run_python(code, tmp_path).stdout.split())
    assert outputs == [["1", "0"], ["1", "1"], ["2", "0"]]


def test_where_nothing_can_be_kept_loops_are_compiled_anew_with_one_warning(monkeypatch, caplog):
    from numba.core.caching import CacheImpl

    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    cache._warn_once.cache_clear()
    y = np.zeros(2)

    def fill(y):
        y[0] = 3.0

    def fill_other(y):
        y[1] = 4.0

    for function in (fill, fill_other):
        cache.compiled()(function)(y)
    assert y.tolist() == [3.0, 4.0]
    assert len(caplog.records) == 1 and "NUMBA_CACHE_DIR" in caplog.text
