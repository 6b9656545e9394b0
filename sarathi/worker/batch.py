"""What one round sends to a worker (flat token arrays, block tables, how to sample) and what comes back.

Plain numpy without requests, built by the real executors from a SchedulerOutput; a worker needs nothing else and
remembers nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sarathi.core.plan import MemoryStats, SchedulerOutput
from sarathi.request import Request, SamplingParams, TokenLogprobs

_64_BITS = (1 << 64) - 1


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
    block_tables: np.ndarray  # (S, M) int32, padded with 0: block of each block_size tokens of the context
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


def build_batch(output: SchedulerOutput, seed: int) -> Batch:
    """Token ids, positions and block tables of a round. `seed` is for requests that bring none.

    A request's num_computed_tokens already counts this round.
    """
    chunks = [(request, 1) for request in output.decodes] + output.prefills
    num_seqs = len(chunks)
    query_starts = np.zeros(num_seqs + 1, np.int32)
    np.cumsum([num_tokens for _, num_tokens in chunks], out=query_starts[1:])
    context_lens = np.fromiter((request.num_computed_tokens for request, _ in chunks), np.int32, num_seqs)
    token_ids: list[int] = [request.output_token_ids[-1] for request in output.decodes]
    positions: list[np.ndarray] = [context_lens[: len(token_ids)] - 1]
    for request, num_tokens in output.prefills:
        end = request.num_computed_tokens
        token_ids.extend(_tokens(request, end - num_tokens, end))
        positions.append(np.arange(end - num_tokens, end))
    block_tables = np.zeros((num_seqs, max(len(request.block_ids) for request, _ in chunks)), np.int32)
    for row, (request, _) in zip(block_tables, chunks, strict=True):
        row[: len(request.block_ids)] = request.block_ids
    sampled = [i for i, (request, _) in enumerate(chunks) if gives_token(request)]
    requests = [chunks[i][0] for i in sampled]
    output_seqs = np.array(sampled, np.int64)
    return Batch(
        token_ids=np.array(token_ids, np.int64),
        positions=np.concatenate(positions).astype(np.int64),
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=block_tables,
        output_rows=query_starts[1:][output_seqs].astype(np.int64) - 1,
        output_seqs=output_seqs,
        sampling=None if all(map(_is_plain, requests)) else [_sampling_input(r, seed) for r in requests],
    )


def gives_token(request: Request) -> bool:
    """Whether a chunk that ends at num_computed_tokens is followed by an output token."""
    return not request.num_remaining_tokens and request.max_output_tokens > 0


def _tokens(request: Request, start: int, end: int) -> list[int]:
    """Known tokens of a request: after preemption its output is computed again like its prompt."""
    num_prompt = request.num_prompt_tokens
    if end <= num_prompt:
        return list(request.prompt_token_ids[start:end])
    output = request.output_token_ids[max(0, start - num_prompt) : end - num_prompt]
    return [*request.prompt_token_ids[start:num_prompt], *output]


def _is_plain(request: Request) -> bool:
    params = request.sampling_params
    return (
        params.is_greedy
        and not params.has_penalties
        and params.logprobs is None
        and len(request.output_token_ids) >= params.min_tokens
    )


def _sampling_input(request: Request, seed: int) -> SamplingInput:
    params, tokens = request.sampling_params, request.output_token_ids
    if params.seed is not None:
        own_seed = params.seed & _64_BITS
    else:  # keys above all that a user can give
        own_seed = (1 << 127) | ((seed & _64_BITS >> 1) << 64) | request.sequence_number
    return SamplingInput(
        params=params,
        seed=own_seed,
        position=len(tokens),
        prompt_token_ids=request.prompt_token_ids if params.has_penalties else (),
        output_token_ids=tokens if params.has_penalties else (),
        forbidden_token_ids=tuple(request.eos_token_ids) if len(tokens) < params.min_tokens else (),
    )
