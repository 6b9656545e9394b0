"""The reference backend: gathers each sequence's pages and calls torch's scaled_dot_product_attention. Any device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sarathi.worker.batch import Batch


class SdpaBackend:
    """One call for each sequence and layer; simple rather than fast. Index tensors and masks are made once a round."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    def begin_round(self, batch: Batch) -> None:
        self._batch = batch
        self._starts: list[int] = batch.query_starts.tolist()
        self._seqs = np.repeat(np.arange(batch.num_seqs), np.diff(batch.query_starts))
        self._positions = self._on_device(batch.positions)
        self._block_tables = self._on_device(batch.block_tables.astype(np.int64))
        self._slots: tuple[Tensor, Tensor] | None = None  # blocks and offsets of this round's tokens
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}  # by sequence and window

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, scale: float, window: int | None
    ) -> Tensor:
        batch, block_size = self._batch, kv_cache.shape[3]
        if self._slots is None:
            blocks = batch.block_tables[self._seqs, batch.positions // block_size].astype(np.int64)
            self._slots = self._on_device(blocks), self._positions % block_size
        blocks, offsets = self._slots
        kv_cache[blocks, 0, :, offsets] = key.to(kv_cache.dtype)
        kv_cache[blocks, 1, :, offsets] = value.to(kv_cache.dtype)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for seq, context_len in enumerate(batch.context_lens.tolist()):
            rows = slice(self._starts[seq], self._starts[seq + 1])
            pages = kv_cache[self._block_tables[seq, : -(-context_len // block_size)]]
            keys, values = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context_len].to(query.dtype)
            attended = functional.scaled_dot_product_attention(
                query[rows].transpose(0, 1)[None],
                keys[None],
                values[None],
                attn_mask=self._mask(seq, rows, context_len, window),
                scale=scale,
                enable_gqa=True,
            )
            output[rows] = attended[0].transpose(0, 1)
        return output

    def _mask(self, seq: int, rows: slice, context_len: int, window: int | None) -> Tensor | None:
        """(queries, context_len), true where a query sees a token; None where one query sees all."""
        if rows.stop - rows.start == 1 and (window is None or window >= context_len):
            return None
        if (seq, window) not in self._masks:
            seen, positions = torch.arange(context_len, device=self._device), self._positions[rows, None]
            mask = seen <= positions
            if window is not None:
                mask &= seen > positions - window
            self._masks[seq, window] = mask
        return self._masks[seq, window]

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)
