"""What a model asks of an attention backend: build the round's metadata once, then run layer by layer.

A backend owns how pages are written and read. It knows no requests and no scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sarathi.worker.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


class AttentionBackend(Protocol):
    def begin_round(self, batch: Batch) -> None:
        """Take the round's query lengths, context lengths and block tables; the same for every layer."""
        ...

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Write the round's keys and values of one layer to its pages, and attend causally to the whole context.

        Args:
            query: (T, num_heads, head_dim); each `num_heads / num_kv_heads` neighbours share a KV head.
            key, value: (T, num_kv_heads, head_dim).
            kv_cache: the layer's pages, (num_blocks, 2, num_kv_heads, block_size, head_dim): keys, then values
                (FlashInfer's HND layout).
            scale: factor on the scores.
            window: a token sees itself and the window - 1 tokens before it; None: all before it.

        Returns (T, num_heads, head_dim) of query's type.
        """
        ...
