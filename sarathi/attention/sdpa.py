"""The reference backend: gathers each sequence's pages and calls torch's scaled_dot_product_attention. Any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sarathi.worker.batch import Batch


class SdpaBackend:
    """One call for each sequence and layer, with an explicit mask; simple rather than fast."""

    def begin_round(self, batch: Batch) -> None:
        self._batch = batch
        self._positions = torch.from_numpy(batch.positions)
        self._seqs = torch.repeat_interleave(
            torch.arange(batch.num_seqs), torch.from_numpy(batch.query_starts).diff().long()
        )
        self._block_tables = torch.from_numpy(batch.block_tables).long()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, scale: float, window: int | None
    ) -> Tensor:
        batch, block_size = self._batch, kv_cache.shape[3]
        blocks = self._block_tables[self._seqs, self._positions // block_size]
        offsets = self._positions % block_size
        kv_cache[blocks, 0, :, offsets] = key.to(kv_cache.dtype)
        kv_cache[blocks, 1, :, offsets] = value.to(kv_cache.dtype)
        output = torch.empty_like(query)
        starts = batch.query_starts.tolist()
        for seq, context_len in enumerate(batch.context_lens.tolist()):
            rows = slice(starts[seq], starts[seq + 1])
            num_blocks = -(-context_len // block_size)
            pages = kv_cache[self._block_tables[seq, :num_blocks].to(kv_cache.device)]
            keys, values = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context_len].to(query.dtype)
            seen = torch.arange(context_len)
            mask = seen <= self._positions[rows, None]
            if window is not None:
                mask &= seen > self._positions[rows, None] - window
            attended = functional.scaled_dot_product_attention(
                query[rows].transpose(0, 1)[None],
                keys[None],
                values[None],
                attn_mask=mask.to(query.device),
                scale=scale,
                enable_gqa=True,
            )
            output[rows] = attended[0].transpose(0, 1)
        return output
