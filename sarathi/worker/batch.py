"""One round as a model sees it (flat token arrays, block tables, how to sample), and what comes back of it.

Plain numpy without requests; a BatchBuilder makes it of what a round's message brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sarathi.core.plan import MemoryStats
from sarathi.request import SamplingParams, TokenLogprobs


class SamplingInput(NamedTuple):
    """How one output token is drawn. Token ids are empty where no penalty needs them."""

    params: SamplingParams
    seed: int  # the request's own, or one that its engine gave it
    position: int  # output tokens it has already
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    forbidden_token_ids: Sequence[int] = ()  # stop tokens before min_tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """One round: S sequences (the decodes, then the prefill chunks) with T tokens in all, R of which give logits."""

    token_ids: np.ndarray  # (T,) int64
    positions: np.ndarray  # (T,) int64, from 0 in each sequence
    query_starts: np.ndarray  # (S + 1,) int32: sequence s has the tokens query_starts[s] to query_starts[s + 1]
    context_lens: np.ndarray  # (S,) int32: tokens in the KV cache once this round has written its own
    block_tables: np.ndarray  # (S, M) int32: block of each block_size tokens of the context; what follows means nothing
    output_rows: np.ndarray  # (R,) int64 into T: the last token of each sequence that gives an output token
    output_seqs: np.ndarray  # (R,) int64 into S
    sampling: list[SamplingInput] | None  # one for each output row; None: all greedy and plain

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)


class WorkerOutput(NamedTuple):
    """What a round gave, one entry for each output row of its batch."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None
    execution_time: float  # seconds: model and sampler
    memory: MemoryStats
    operator_times: dict[str, float] | None = None  # the same by operator, where it was asked for
