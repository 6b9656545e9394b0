"""A module in the place of flashinfer that computes, slowly and on any device, what flashinfer's documentation says.

Its arguments are checked as flashinfer checks them, or more strictly. It stands for the kernels in tests of what is
built around them; that the kernels do what their documentation says only a GPU can show.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

BACKEND = "sarathi.attention.flashinfer_backend"


@contextmanager
def backend_on_reference() -> Iterator[Any]:
    """The backend's module, made with the reference in flashinfer's place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flashinfer", make_module())
        patch.delitem(sys.modules, BACKEND, raising=False)
        module = importlib.import_module(BACKEND)
        patch.setattr(module, "WORKSPACE_BYTES", 16)
        yield module
        sys.modules.pop(BACKEND)


def make_module() -> ModuleType:
    module = ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper = Decode  # pyright: ignore[reportAttributeAccessIssue]
    module.BatchPrefillWithPagedKVCacheWrapper = Prefill  # pyright: ignore[reportAttributeAccessIssue]
    module.append_paged_kv_cache = append_paged_kv_cache  # pyright: ignore[reportAttributeAccessIssue]
    return module


def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    assert kv_layout == "HND" and append_key.stride(-1) == append_value.stride(-1) == 1
    for tensor in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
        assert tensor.dtype is torch.int32 and tensor.is_contiguous()
    assert len(kv_indptr) == len(kv_last_page_len) + 1
    assert len(batch_indices) == len(positions) == len(append_key) == len(append_value)
    assert append_key.dtype == append_value.dtype == paged_kv_cache.dtype
    page_size = paged_kv_cache.shape[3]
    for token, (row, position) in enumerate(zip(batch_indices.tolist(), positions.tolist(), strict=True)):
        page = int(kv_indices[int(kv_indptr[row]) + position // page_size])
        paged_kv_cache[page, 0, :, position % page_size] = append_key[token]
        paged_kv_cache[page, 1, :, position % page_size] = append_value[token]


class _Wrapper:
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype is torch.uint8 and kv_layout == "HND"
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None

    def _set(self, indptr: Tensor, indices: Tensor, last: Tensor, sizes: tuple[int, ...], **options: Any) -> None:
        assert all(tensor.dtype is torch.int32 for tensor in (indptr, indices, last))
        assert indptr.device.type == last.device.type == "cpu"  # else a plan would wait for the device
        assert indptr[0] == 0 and int(indptr[-1]) == len(indices) and len(indptr) == len(last) + 1
        num_qo_heads, num_kv_heads, _, page_size = sizes
        assert num_qo_heads % num_kv_heads == 0
        assert (indptr.diff() >= 1).all() and ((last >= 1) & (last <= page_size)).all()
        self._paging = indptr.clone(), indices, last.clone()
        self._sizes, self._options = sizes, options

    def _attend(self, query: Tensor, paged_kv_cache: Tensor, query_starts: list[int], out: Tensor) -> Tensor:
        num_qo_heads, num_kv_heads, head_dim, page_size = self._sizes
        assert query.shape[1:] == (num_qo_heads, head_dim) and query.stride(-1) == 1
        assert paged_kv_cache.shape[1:] == (2, num_kv_heads, page_size, head_dim)
        assert query.dtype is self._options["q_data_type"] and paged_kv_cache.dtype is self._options["kv_data_type"]
        assert out.shape == query.shape and out.dtype is query.dtype
        indptr, indices, last = (tensor.tolist() for tensor in self._paging)
        for row, last_page_len in enumerate(last):
            rows = slice(query_starts[row], query_starts[row + 1])
            pages = paged_kv_cache[indices[indptr[row] : indptr[row + 1]]]
            length = (len(pages) - 1) * page_size + last_page_len
            keys, values = pages.transpose(0, 1).transpose(2, 3).flatten(1, 2)[:, :length].double()
            out[rows] = self._dense(query[rows].double(), keys, values).to(out.dtype)
        return out

    def _dense(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        group = query.shape[1] // keys.shape[1]
        scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(group, 1)) * self._options["sm_scale"]
        positions = torch.arange(len(keys) - len(query), len(keys))[:, None]
        hidden = torch.arange(len(keys)) > positions
        if (window_left := self._options["window_left"]) >= 0:  # inclusive
            hidden |= torch.arange(len(keys)) < positions - window_left
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1))


class Decode(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self.use_tensor_cores = use_tensor_cores
        if use_cuda_graph:
            assert paged_kv_indptr_buffer is not None and paged_kv_indices_buffer is not None
            assert paged_kv_last_page_len_buffer is not None
            assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1
            self._buffers = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = -1,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
    ) -> None:
        sizes = num_qo_heads, num_kv_heads, head_dim, page_size
        self._set(
            indptr,
            indices,
            last_page_len,
            sizes,
            window_left=window_left,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            sm_scale=sm_scale,
        )
        if self._buffers is not None:  # of a graph: what is run later reads these
            assert len(last_page_len) == len(self._buffers[2]), "a graph's batch size is fixed"
            assert len(indices) <= len(self._buffers[1])
            for buffer, given in zip(self._buffers, (indptr, indices, last_page_len), strict=True):
                buffer[: len(given)].copy_(given)
            self._paging = self._buffers

    def run(self, q: Tensor, paged_kv_cache: Tensor, *, out: Tensor) -> Tensor:
        assert len(q) == len(self._paging[2])
        return self._attend(q, paged_kv_cache, list(range(len(q) + 1)), out)


class Prefill(_Wrapper):
    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        assert causal and qo_indptr.dtype is torch.int32 and qo_indptr.device.type == "cpu" and qo_indptr[0] == 0
        assert len(qo_indptr) == len(paged_kv_indptr)
        sizes = num_qo_heads, num_kv_heads, head_dim_qk, page_size
        self._set(
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            sizes,
            window_left=window_left,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            sm_scale=sm_scale,
        )
        self._query_starts: list[int] = qo_indptr.tolist()

    def run(self, q: Tensor, paged_kv_cache: Tensor, *, out: Tensor) -> Tensor:
        assert len(q) == self._query_starts[-1]
        return self._attend(q, paged_kv_cache, self._query_starts, out)
