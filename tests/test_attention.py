"""Attention backends against dense attention in float64, over batches that mix decodes and chunks."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from sarathi.attention import make_backend
from sarathi.attention.base import AttentionBackend
from sarathi.attention.sdpa import SdpaBackend
from sarathi.errors import FieldError
from sarathi.worker.batch import Batch

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[1]
FILL = torch.nan  # in slots that nobody may read: seen in any result that touches them


def make_batch(chunks: list[tuple[int, int]], block_size: int, num_spare: int = 3, seed: int = 0) -> Batch:
    """A batch of (queries, context length), its blocks drawn from a shuffled pool with `num_spare` left over."""
    num_blocks = [-(-context // block_size) for _, context in chunks]
    pool = np.random.default_rng(seed).permutation(sum(num_blocks) + num_spare).astype(np.int32)
    tables = np.zeros((len(chunks), max(num_blocks)), np.int32)
    for row, blocks in zip(tables, np.split(pool, np.cumsum(num_blocks))[:-1], strict=True):
        row[: len(blocks)] = blocks
    starts = np.cumsum([0, *(queries for queries, _ in chunks)]).astype(np.int32)
    return Batch(
        token_ids=np.zeros(starts[-1], np.int64),
        positions=np.concatenate([np.arange(context - queries, context) for queries, context in chunks]),
        query_starts=starts,
        context_lens=np.array([context for _, context in chunks], np.int32),
        block_tables=tables,
        output_rows=starts[1:].astype(np.int64) - 1,
        output_seqs=np.arange(len(chunks)),
        sampling=None,
    )


class Case:
    """A batch with one layer's tensors, the pages before it, and what they and the output must be after it."""

    def __init__(
        self,
        chunks: list[tuple[int, int]],
        block_size: int = 16,
        window: int | None = None,
        heads: tuple[int, int, int] = (6, 2, 16),
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        scale: float = 0.3,
    ) -> None:
        num_heads, num_kv_heads, head_dim = heads
        self.batch, self.window = make_batch(chunks, block_size, seed=seed), window
        self.scale = scale
        generator = torch.Generator().manual_seed(seed)

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        num_tokens = self.batch.num_tokens
        self.query = 2 * randn(num_tokens, num_heads, head_dim)
        self.key, self.value = randn(num_tokens, num_kv_heads, head_dim), randn(num_tokens, num_kv_heads, head_dim)
        num_blocks = sum(-(-context // block_size) for _, context in chunks) + 3
        self.pages = torch.full((num_blocks, 2, num_kv_heads, block_size, head_dim), FILL, dtype=dtype)
        self.written = self.pages.clone()
        self.expected = torch.empty(self.query.shape, dtype=torch.float64)
        for seq, (queries, context) in enumerate(chunks):
            rows = slice(*self.batch.query_starts[seq : seq + 2].tolist())
            past = randn(2, context - queries, num_kv_heads, head_dim)
            whole = torch.cat((past, torch.stack((self.key[rows], self.value[rows]))), 1)
            blocks, offsets = np.divmod(np.arange(context), block_size)
            blocks = self.batch.block_tables[seq, blocks]
            self.written[blocks, :, :, offsets] = whole.transpose(0, 1)
            self.pages[blocks[:-queries], :, :, offsets[:-queries]] = past.transpose(0, 1)
            self.expected[rows] = self._dense(self.query[rows].double(), whole.double())

    def _dense(self, query: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        queries, context = len(query), whole.shape[1]
        keys, values = whole.repeat_interleave(query.shape[1] // whole.shape[2], 2)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * self.scale
        distance = torch.arange(context - queries, context)[:, None] - torch.arange(context)
        hidden = (distance < 0) | (distance >= (self.window or context))
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)

    def check(self, backend: AttentionBackend, tolerance: float = 2e-5) -> torch.Tensor:
        pages = self.pages.clone()
        backend.begin_round(self.batch)
        output = backend.forward(self.query, self.key, self.value, pages, self.scale, self.window)
        assert output.shape == self.query.shape and output.dtype == self.query.dtype
        torch.testing.assert_close(output.double(), self.expected, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(pages, self.written, atol=0, rtol=0, equal_nan=True)  # right slots, and no others
        return output


def paged() -> AttentionBackend:
    pytest.importorskip("numba")
    return make_backend("CPU_PAGED", CPU, torch.float32)


BACKENDS = {"CPU_PAGED": paged, "SDPA": SdpaBackend}
# One token; decodes; chunks short and long for the paged backend, whole prompts, straddling pages, all at once.
MIXED = [(1, 1), (1, 17), (1, 100), (5, 5), (3, 40), (15, 47), (32, 32), (40, 75)]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return BACKENDS[request.param]()


@pytest.mark.parametrize("window", [None, 1, 7, 31])
@pytest.mark.parametrize("block_size", [1, 16, 17])
def test_mixed_batches(backend, block_size, window):
    Case(MIXED, block_size, window).check(backend)


@pytest.mark.parametrize("heads", [(1, 1, 64), (8, 1, 80), (9, 3, 64), (4, 4, 128), (16, 2, 20), (3, 1, 7)])
def test_heads_of_any_number_and_size(backend, heads):
    Case(MIXED, heads=heads).check(backend)


chunks_of_any_length = st.tuples(st.integers(1, 50), st.sampled_from([0, 0, 1, 15, 16, 60, 300])).map(
    lambda chunk: (chunk[0], sum(chunk))
)
decodes = st.integers(1, 200).map(lambda context: (1, context))


@settings(max_examples=25)
@given(
    chunks=st.lists(decodes | chunks_of_any_length, min_size=1, max_size=6),
    block_size=st.sampled_from([1, 2, 16, 17, 64]),
    window=st.none() | st.integers(1, 80),
    num_threads=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 1000),
)
def test_any_batch(chunks, block_size, window, num_threads, seed):
    case = Case(chunks, block_size, window, seed=seed)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for make in BACKENDS.values():
            case.check(make())
    finally:
        torch.set_num_threads(before)


def test_a_long_sequence_is_shared_by_the_threads():
    case = Case([(1, 20), (2, 1000), (1, 30)], block_size=4)
    outputs = []
    before = torch.get_num_threads()
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        try:
            backend = paged()
            outputs.append(case.check(backend))
        finally:
            torch.set_num_threads(before)
    assert torch.allclose(*outputs, atol=1e-6)
    (plan,) = vars(backend)["_parts"].values()
    work = [(end - first) * (2 if seq == 1 else 1) for seq, first, end, _, _ in plan.parts.tolist()]
    loads = [sum(work[i:j]) for i, j in zip(plan.bounds[:-1], plan.bounds[1:], strict=True)]
    assert len(loads) == vars(backend)["_num_threads"]  # 2, unless the machine has a single one
    assert sum(loads) == 5 + 2 * 250 + 8 and max(loads) - min(loads) <= 2 * 2


def test_pages_before_the_window_are_not_read():
    case = Case([(1, 100), (3, 90), (40, 140)], window=20)
    for seq, first_seen in enumerate((80, 68, 81)):
        before = case.batch.block_tables[seq, : first_seen // case.pages.shape[3]]
        case.pages[before] = case.written[before] = FILL
    case.check(paged())


@pytest.mark.parametrize("scale", [0.0, 1e-3, 30.0])
def test_scores_of_any_size(backend, scale):
    """A maximum that rises by hundreds from page to page neither overflows nor loses what is largest."""
    Case([(1, 64), (2, 64), (40, 64)], block_size=4, scale=scale).check(backend, tolerance=2e-4)


def test_layers_may_differ_in_their_window(backend):
    case = Case(MIXED)
    backend.begin_round(case.batch)
    for window in (7, None, 20, None):
        expected = Case(MIXED, window=window)
        pages = expected.pages.clone()
        output = backend.forward(case.query, case.key, case.value, pages, case.scale, window)
        torch.testing.assert_close(output.double(), expected.expected, atol=2e-5, rtol=2e-5)


def test_views_are_taken_as_they_come(backend):
    """Queries, keys and values are often slices of one projection."""
    case = Case(MIXED)
    fused = torch.cat((case.query, case.key, case.value), 1)
    case.query, case.key, case.value = fused.split([6, 2, 2], 1)
    case.check(backend)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reference_in_16_bits(dtype):
    Case(MIXED, dtype=dtype).check(make_backend("AUTO", CPU, dtype), tolerance=3e-2)


def test_no_op_writes_nothing():
    case = Case(MIXED)
    backend = make_backend("NO_OP", CPU, torch.float32)
    pages = case.pages.clone()
    backend.begin_round(case.batch)
    output = backend.forward(case.query, case.key, case.value, pages, case.scale, None)
    torch.testing.assert_close(pages, case.pages, atol=0, rtol=0, equal_nan=True)
    assert torch.equal(output, torch.zeros_like(case.query))


def test_the_number_of_threads_stays_torchs():
    """numba's start sets the number of threads of the OpenMP library that it shares with torch."""
    pytest.importorskip("numba")
    code = (
        "import torch; torch.set_num_threads(1); from sarathi.attention.paged_cpu import PagedCpuBackend;"
        "PagedCpuBackend(); print(torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1"], done.stderr


def test_which_backend(caplog):
    pytest.importorskip("numba")
    from sarathi.attention.paged_cpu import PagedCpuBackend

    assert isinstance(make_backend("AUTO", CPU, torch.float32), PagedCpuBackend)
    assert isinstance(make_backend("AUTO", CPU, torch.bfloat16), SdpaBackend)
    assert isinstance(make_backend("SDPA", CPU, torch.float32), SdpaBackend)
    assert not caplog.records
    assert isinstance(make_backend("AUTO", torch.device("cuda"), torch.float32), SdpaBackend)
    assert "FLASHINFER computes in float16 and bfloat16" in caplog.text
    assert isinstance(make_backend("FLASHINFER", CPU, torch.float32), PagedCpuBackend)
    assert "FLASHINFER needs a CUDA device" in caplog.text
    for name, device, dtype in (
        ("CPU_PAGED", CPU, torch.bfloat16),
        ("CPU_PAGED", torch.device("cuda"), torch.float32),
        ("FLASHINFER", torch.device("cuda"), torch.float16),
    ):
        with pytest.raises(FieldError, match=f"^attention_backend: {name}"):
            make_backend(name, device, dtype)


def test_without_numba(monkeypatch, caplog):
    real_import = builtins.__import__

    def no_numba(name, *args, **kwargs):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ImportError(f"No module named {name!r}")
        return real_import(name, *args, **kwargs)

    for module in ("paged_cpu", "paged_kernel"):
        monkeypatch.delitem(sys.modules, f"sarathi.attention.{module}", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_numba)
    assert isinstance(make_backend("AUTO", CPU, torch.float32), SdpaBackend)
    assert "numba is not installed" in caplog.text
    with pytest.raises(FieldError, match="pip install numba"):
        make_backend("CPU_PAGED", CPU, torch.float32)
