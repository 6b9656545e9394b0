"""What a model asks of an attention backend: build the round's metadata once, then run layer by layer.

A backend owns how pages are written and read. It knows no requests and no scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sarathi.worker.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AttentionLayout:
    """What one rank's attention is made of: its share of the heads, and the layers that its stage has."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int  # tokens
    windows: tuple[int | None, ...]  # of each layer, as in AttentionBackend.forward


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


@runtime_checkable
class GraphBackend(AttentionBackend, Protocol):
    """A backend whose `forward` can be captured in a CUDA graph, for rounds of decodes of certain numbers."""

    @property
    def graph_bytes(self) -> int:
        """Device memory that each size takes, beside what is captured."""
        ...

    def reserve_graphs(self, sizes: Sequence[int], num_pages: int) -> None:
        """Make what rounds of so many decodes need, with block ids below `num_pages`. Once, before any is captured."""
        ...

    def begin_graph_round(self, batch: Batch) -> None:
        """As `begin_round`, for one of these sizes; the round's metadata replaces what a captured `forward` reads."""
        ...
