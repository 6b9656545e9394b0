"""What is built around FlashInfer, on a CPU: its arrays by their documented meaning, and rounds replayed as graphs are.

tests/flashinfer_reference.py stands for the package, which needs a GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from sarathi.attention import make_backend
from sarathi.attention.base import AttentionLayout, GraphBackend
from sarathi.attention.flashinfer_metadata import build_metadata, pad_decodes
from sarathi.attention.sdpa import SdpaBackend
from sarathi.errors import FieldError
from tests import flashinfer_reference
from tests.flashinfer_reference import BACKEND, backend_on_reference
from tests.test_attention import MIXED, Case, make_batch

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HEADS = (6, 2, 16)
BLOCK_SIZE = 4


@pytest.fixture
def backends() -> Any:
    with backend_on_reference() as module:
        yield module


def make_layout(
    windows: tuple[int | None, ...] = (None,), block_size: int = BLOCK_SIZE, **sizes: int
) -> AttentionLayout:
    num_heads, num_kv_heads, head_dim = HEADS
    layout = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim} | sizes
    return AttentionLayout(**layout, block_size=block_size, windows=windows)


def make_case(chunks: list[tuple[int, int]], window: int | None = None, seed: int = 0) -> Case:
    return Case(chunks, BLOCK_SIZE, window, HEADS, seed, scale=HEADS[2] ** -0.5)


def test_arrays_of_a_round():
    batch = make_batch([(1, 9), (1, 4), (3, 8), (1, 1)], block_size=4)
    metadata = build_metadata(batch, 4)
    tables = batch.block_tables
    assert metadata.num_decodes == 2  # the last chunk has one token too, but is behind a longer one
    assert metadata.kv_indptr.tolist() == [0, 3, 4, 6, 7]
    assert metadata.kv_indices.tolist() == [*tables[0, :3], tables[1, 0], *tables[2, :2], tables[3, 0]]
    assert metadata.last_page_lens.tolist() == [1, 4, 4, 1]
    assert metadata.batch_indices.tolist() == [0, 1, 2, 2, 2, 3]
    assert metadata.positions.tolist() == [8, 3, 5, 6, 7, 0]
    chunks = metadata.chunks()
    assert chunks.query_starts.tolist() == [0, 3, 4] and chunks.kv_indptr.tolist() == [0, 2, 3]
    assert chunks.kv_indices.tolist() == [*tables[2, :2], tables[3, 0]] and chunks.last_page_lens.tolist() == [4, 1]
    for part in (metadata, chunks):
        for name in ("query_starts", "kv_indptr", "kv_indices", "last_page_lens"):
            assert getattr(part, name).dtype == np.int32, name
    assert metadata.batch_indices.dtype == metadata.positions.dtype == np.int32


def test_blocks_that_a_prompt_has_and_does_not_use_yet_are_left_out():
    batch = make_batch([(2, 3), (4, 12)], block_size=4)
    batch.block_tables[0, 1:] = 77
    assert 77 not in build_metadata(batch, 4).kv_indices


@st.composite
def rounds(draw: Any) -> list[tuple[int, int]]:
    """Decodes, then chunks that begin and end anywhere, at the edges of blocks more often."""
    edges = st.sampled_from([1, 3, 4, 5, 8, 9]) | st.integers(1, 13)
    decodes = [(1, draw(edges)) for _ in range(draw(st.integers(0, 4)))]
    chunks = [(queries, queries + draw(st.just(0) | edges)) for queries in draw(st.lists(edges, max_size=3))]
    return decodes + chunks or [(1, 1)]


@settings(max_examples=60)
@given(chunks=rounds(), window=st.none() | st.integers(1, 12), seed=st.integers(0, 9))
def test_random_rounds_equal_dense_attention_and_sdpa(chunks, window, seed):
    with backend_on_reference() as backends:
        case = make_case(chunks, window, seed)
        output = case.check(backends.FlashInferBackend(make_layout((window,)), torch.float32, CPU))
    torch.testing.assert_close(output, case.check(SdpaBackend()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunks", [MIXED, [(1, 5)] * 3, [(7, 7)], [(1, 1)], [(5, 9), (1, 4)]])
def test_layers_with_windows_of_their_own(backends, chunks):
    """Each window is planned for, whichever layer asks first, and a second round replaces the first."""
    backend = backends.FlashInferBackend(make_layout((None, 3, None, 8)), torch.float32, CPU)
    for seed in range(2):
        for window in (3, None, 8, 3):
            make_case(chunks, window, seed).check(backend)


@pytest.mark.parametrize("block_size", [4, 128])
def test_kernels_of_short_and_long_chunks_are_tried_out(backends, monkeypatch, block_size):
    """FlashInfer chooses by the longest chunk of a plan, on Hopper at 64; decodes are planned as such."""
    longest: list[int] = []
    wrapper = flashinfer_reference.Prefill
    run = wrapper.run

    def note(self: Any, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        longest.append(int(np.diff(self._query_starts).max()))
        return run(self, q, *args, **kwargs)

    monkeypatch.setattr(wrapper, "run", note)
    backends.FlashInferBackend(make_layout((None, 3), block_size), torch.float32, CPU)
    assert len(longest) == 4 and min(longest) <= 64 < max(longest)


@pytest.mark.parametrize(("num_heads", "uses"), [(2, False), (6, False), (8, True), (14, True)])
def test_tensor_cores_for_large_groups(backends, num_heads, uses):
    backend = backends.FlashInferBackend(make_layout(num_heads=num_heads), torch.float32, CPU)
    assert backend._decode[None].use_tensor_cores is uses


def test_another_scale_than_planned_is_a_bug(backends):
    backend = backends.FlashInferBackend(make_layout(), torch.float32, CPU)
    with pytest.raises(AssertionError, match="plans are made for"):
        Case([(1, 3)], BLOCK_SIZE, heads=HEADS).check(backend)


def test_graph_rounds_use_the_same_buffers_and_equal_others(backends):
    backend = backends.FlashInferBackend(make_layout((None, 3)), torch.float32, CPU)
    assert [isinstance(made, GraphBackend) for made in (backend, SdpaBackend())] == [True, False]
    assert backend.graph_bytes == 2 * backends.WRAPPER_BYTES
    backend.reserve_graphs([2, 4], num_pages=64)
    addresses = None
    for contexts in ([9, 4], [1, 13]):
        for window in (None, 3):
            case = make_case([(1, context) for context in contexts], window)
            expected = case.check(backend)
            scratch = len(case.pages)
            padded = pad_decodes(case.batch, 4, scratch)
            pages = torch.cat((case.pages, torch.zeros_like(case.pages[:1])))
            rows = [tensor.repeat(2, 1, 1) for tensor in (case.query, case.key, case.value)]
            backend.begin_graph_round(padded)
            output = backend.forward(rows[0], rows[1], rows[2], pages, case.scale, window)
            torch.testing.assert_close(output[:2], expected, atol=0, rtol=0)
            torch.testing.assert_close(pages[:scratch], case.written, atol=0, rtol=0, equal_nan=True)
            now = [tensor.data_ptr() for tensor in backend._round[1:6]]
            assert addresses in (None, now), "a captured kernel would read what was there"
            addresses = now


def test_a_padded_round():
    batch = make_batch([(1, 9), (1, 4)], block_size=4)
    padded = pad_decodes(batch, 4, scratch_block=50)
    assert padded.num_seqs == padded.num_tokens == 4
    assert padded.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert padded.context_lens.tolist() == [9, 4, 1, 1] and padded.positions.tolist() == [8, 3, 0, 0]
    assert padded.block_tables[2:, 0].tolist() == [50, 50]
    assert padded.output_rows is batch.output_rows
    metadata = build_metadata(padded, 4)
    assert metadata.num_decodes == 4 and metadata.kv_indices[-2:].tolist() == [50, 50]


def test_which_backend_on_cuda(backends, monkeypatch, caplog):
    class NoCompiler:
        def __init__(self, *sizes: object) -> None:
            raise RuntimeError("Could not find nvcc\nand much more")

    layout = make_layout(head_dim=64)
    made = make_backend("FLASHINFER", CPU, torch.bfloat16, layout)  # a CPU keeps its own
    assert isinstance(made, SdpaBackend)
    caplog.clear()
    for dtype, sizes, reason in (
        (torch.float32, layout, "computes in float16 and bfloat16, not in float32"),
        (torch.bfloat16, make_layout(head_dim=80), "heads of 64, 128, 256, not of 80"),
        (torch.bfloat16, None, "needs the sizes of the heads"),
        (torch.bfloat16, layout, r"does not run on cuda \(Could not find nvcc\)"),
    ):
        monkeypatch.setattr(backends, "FlashInferBackend", NoCompiler)
        caplog.clear()
        assert isinstance(make_backend("AUTO", CUDA, dtype, sizes), SdpaBackend)
        assert reason.replace("\\", "") in caplog.text and "several times slower" in caplog.text
        with pytest.raises(FieldError, match=rf"^attention_backend: FLASHINFER .*{reason}.*; AUTO, SDPA or NO_OP$"):
            make_backend("FLASHINFER", CUDA, dtype, sizes)


def test_without_flashinfer(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.delitem(sys.modules, BACKEND, raising=False)
    assert isinstance(make_backend("AUTO", CUDA, torch.bfloat16, make_layout()), SdpaBackend)
    assert "pip install 'sarathi-serve-fair[cuda]'" in caplog.text
    with pytest.raises(FieldError, match="needs flashinfer-python"):
        make_backend("FLASHINFER", CUDA, torch.bfloat16, make_layout())
