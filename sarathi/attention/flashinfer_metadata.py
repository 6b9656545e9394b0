"""The arrays that FlashInfer's paged kernels read, made from a batch. Knows their meaning and not FlashInfer.

Meaning as documented in flashinfer.page and flashinfer.prefill (flashinfer-python 0.7): sequence s has the pages
`kv_indices[kv_indptr[s] : kv_indptr[s + 1]]`, all full but the last, which holds `last_page_lens[s]` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sarathi.worker.batch import Batch


class Chunks(NamedTuple):
    """The sequences of a round that are not decodes, in offsets of their own; fields as in PagedMetadata."""

    query_starts: np.ndarray
    kv_indptr: np.ndarray
    kv_indices: np.ndarray
    last_page_lens: np.ndarray


@dataclass(frozen=True, slots=True)
class PagedMetadata:
    """A round of S sequences with T tokens, of which the first `num_decodes` have one query each. All int32.

    What holds for the context counts this round's tokens, whose keys and values are written before they are read.
    """

    num_decodes: int
    query_starts: np.ndarray  # (S + 1,) into the tokens
    kv_indptr: np.ndarray  # (S + 1,) into kv_indices
    kv_indices: np.ndarray  # (N,) pages
    last_page_lens: np.ndarray  # (S,), 1 to block_size
    batch_indices: np.ndarray  # (T,) into S: where each token's key and value go
    positions: np.ndarray  # (T,): and at which position of its sequence

    def chunks(self) -> Chunks:
        first = self.num_decodes
        return Chunks(
            query_starts=self.query_starts[first:] - first,
            kv_indptr=self.kv_indptr[first:] - self.kv_indptr[first],
            kv_indices=self.kv_indices[self.kv_indptr[first] :],
            last_page_lens=self.last_page_lens[first:],
        )


def build_metadata(batch: Batch, block_size: int) -> PagedMetadata:
    """Chunks of one token count as decodes where only such stand before them."""
    lengths = np.diff(batch.query_starts)
    num_pages = -(-batch.context_lens // block_size)
    kv_indptr = np.zeros(batch.num_seqs + 1, np.int32)
    np.cumsum(num_pages, out=kv_indptr[1:])
    in_use = np.arange(batch.block_tables.shape[1]) < num_pages[:, None]
    longer = np.flatnonzero(lengths != 1)
    return PagedMetadata(
        num_decodes=int(longer[0]) if len(longer) else batch.num_seqs,
        query_starts=batch.query_starts,
        kv_indptr=kv_indptr,
        kv_indices=batch.block_tables[in_use],
        last_page_lens=(batch.context_lens - (num_pages - 1) * block_size).astype(np.int32),
        batch_indices=np.repeat(np.arange(batch.num_seqs, dtype=np.int32), lengths),
        positions=batch.positions.astype(np.int32),
    )


def pad_decodes(batch: Batch, num_seqs: int, scratch_block: int) -> Batch:
    """A round of decodes with further ones up to `num_seqs`, each of a context of one token in a block of no one's."""
    more = num_seqs - batch.num_seqs
    assert more >= 0 and batch.num_tokens == batch.num_seqs
    tables = np.pad(batch.block_tables, ((0, more), (0, 0)))
    tables[batch.num_seqs :, 0] = scratch_block
    return replace(
        batch,
        token_ids=np.pad(batch.token_ids, (0, more)),
        positions=np.pad(batch.positions, (0, more)),
        query_starts=np.arange(num_seqs + 1, dtype=np.int32),
        context_lens=np.pad(batch.context_lens, (0, more), constant_values=1),
        block_tables=tables,
    )
