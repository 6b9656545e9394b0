"""Rounds for measuring a model's part alone, without requests and scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sarathi.worker.batch import Batch


def make_round(
    chunks: Sequence[tuple[int, int]], block_size: int, *, blocks: np.ndarray | None = None, vocab_size: int = 1
) -> Batch:
    """A round of (queries, context length) with random tokens below `vocab_size`, each giving an output token.

    `blocks` are handed out in their order, to no two sequences the same; None: 0, 1, 2, ...
    """
    lengths, contexts = (np.array(column) for column in zip(*chunks, strict=True))
    num_blocks = -(-contexts // block_size)
    all_blocks = np.arange(num_blocks.sum()) if blocks is None else blocks
    tables = np.zeros((len(chunks), num_blocks.max()), np.int32)
    for row, own in zip(tables, np.split(all_blocks, np.cumsum(num_blocks))[:-1], strict=True):
        row[: len(own)] = own
    starts = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return Batch(
        token_ids=np.random.default_rng(0).integers(0, vocab_size, starts[-1]),
        positions=np.concatenate([np.arange(context - length, context) for length, context in chunks]),
        query_starts=starts,
        context_lens=contexts.astype(np.int32),
        block_tables=tables,
        output_rows=starts[1:].astype(np.int64) - 1,
        output_seqs=np.arange(len(chunks)),
        sampling=None,
    )
