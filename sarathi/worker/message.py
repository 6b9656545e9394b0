"""What a round sends to its workers, and how they read it: only what they do not have yet, so it is small.

The encoder, beside the scheduler, keeps how much it has sent of each running request; the builder, in a worker, keeps
what it got, by slot, and makes the round's batch of it. A worker that has read every message since the encoder was made
knows all it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sarathi.core.plan import SchedulerOutput
from sarathi.request import Request, RequestStatus, SamplingParams
from sarathi.worker.batch import Batch, SamplingInput

PENDING = -1  # in place of a token id: the one that the worker has sampled last for this sequence

_64_BITS = (1 << 64) - 1


class NewSequence(NamedTuple):
    """What does not change of a request while it keeps its slot. Token ids are empty where no penalty needs them."""

    num_prompt_tokens: int
    params: SamplingParams
    seed: int  # the request's own, or one that its engine gave it
    stop_token_ids: tuple[int, ...]  # forbidden before min_tokens
    prompt_token_ids: tuple[int, ...] = ()
    output_token_ids: tuple[int, ...] = ()  # so far: a preempted request has some


class RoundMessage(NamedTuple):
    """One round: S sequences (the decodes, then the prefill chunks), each in a slot, with T tokens in all."""

    slots: np.ndarray  # (S,) int32
    query_lens: np.ndarray  # (S,) int32: tokens of this round
    context_lens: np.ndarray  # (S,) int32: tokens in the KV cache once this round has written its own
    gives_token: np.ndarray  # (S,) bool: whether an output token follows
    token_ids: np.ndarray  # (T,) int32, or PENDING
    new_sequences: list[tuple[int, NewSequence]]  # (slot, what it holds from now on)
    new_blocks: list[tuple[int, list[int]]]  # (slot, block ids that follow those it has)


@dataclass(slots=True)
class _Sent:
    """What the workers have of a request."""

    slot: int
    num_preemptions: int
    num_blocks: int = 0


class RoundEncoder:
    """Makes the messages of one engine's rounds, which workers must read in this order.

    Args:
        seed: of the sampling of requests that bring no seed of their own.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sent: dict[Request, _Sent] = {}
        self._free_slots: list[int] = []

    def encode(self, output: SchedulerOutput) -> RoundMessage:
        """The round's message; to be called when it has been scheduled, before anything else is.

        A request's num_computed_tokens already counts this round.
        """
        for request in [r for r, sent in self._sent.items() if not _is_current(r, sent)]:
            self._free_slots.append(self._sent.pop(request).slot)
        requests = [*output.decodes, *(request for request, _ in output.prefills)]
        new_sequences: list[tuple[int, NewSequence]] = []
        new_blocks: list[tuple[int, list[int]]] = []
        slots: list[int] = []
        for request in requests:
            sent = self._sent.get(request)
            if sent is None:
                slot = self._free_slots.pop() if self._free_slots else len(self._sent)
                sent = self._sent[request] = _Sent(slot, request.num_preemptions)
                new_sequences.append((slot, _new_sequence(request, self._seed)))
            slots.append(sent.slot)
            if sent.num_blocks < len(request.block_ids):
                new_blocks.append((sent.slot, request.block_ids[sent.num_blocks :]))
                sent.num_blocks = len(request.block_ids)
        num_decodes, num_seqs = len(output.decodes), len(requests)
        token_ids = [r.output_token_ids[-1] if r.num_remaining_tokens >= 0 else PENDING for r in output.decodes]
        query_lens = np.ones(num_seqs, np.int32)
        gives_token = np.ones(num_seqs, np.bool_)
        for index, (request, num_tokens) in enumerate(output.prefills, num_decodes):
            end = request.num_computed_tokens
            query_lens[index] = num_tokens
            gives_token[index] = not request.num_remaining_tokens and request.max_output_tokens > 0
            token_ids += _tokens(request, end - num_tokens, end)
        return RoundMessage(
            slots=np.array(slots, np.int32),
            query_lens=query_lens,
            context_lens=np.fromiter((r.num_computed_tokens for r in requests), np.int32, num_seqs),
            gives_token=gives_token,
            token_ids=np.array(token_ids, np.int32),
            new_sequences=new_sequences,
            new_blocks=new_blocks,
        )


def _is_plain(params: SamplingParams) -> bool:
    return params.is_greedy and not params.has_penalties and params.logprobs is None and not params.min_tokens


def _is_current(request: Request, sent: _Sent) -> bool:
    return request.status is RequestStatus.RUNNING and request.num_preemptions == sent.num_preemptions


def _new_sequence(request: Request, seed: int) -> NewSequence:
    params = request.sampling_params
    if params.seed is not None:
        own_seed = params.seed & _64_BITS
    else:  # keys above all that a user can give
        own_seed = (1 << 127) | ((seed & _64_BITS >> 1) << 64) | request.sequence_number
    return NewSequence(
        num_prompt_tokens=request.num_prompt_tokens,
        params=params,
        seed=own_seed,
        stop_token_ids=tuple(request.eos_token_ids) if params.min_tokens else (),
        prompt_token_ids=tuple(request.prompt_token_ids) if params.has_penalties else (),
        output_token_ids=tuple(request.output_token_ids) if params.has_penalties else (),
    )


def _tokens(request: Request, start: int, end: int) -> Sequence[int]:
    """Known tokens of a request: after preemption its output is computed again like its prompt."""
    num_prompt = request.num_prompt_tokens
    if end <= num_prompt:
        return request.prompt_token_ids[start:end]
    output = request.output_token_ids[max(0, start - num_prompt) : end - num_prompt]
    return [*request.prompt_token_ids[start:num_prompt], *output]


class BatchBuilder:
    """Turns messages into batches. What it keeps of a slot is overwritten when the slot is given to another."""

    def __init__(self) -> None:
        self._sequences: list[NewSequence | None] = []  # by slot
        self._outputs: list[list[int]] = []  # by slot: tokens given so far, where a penalty needs them
        self._blocks = np.zeros((0, 1), np.int32)  # a row a slot
        self._num_blocks = np.zeros(0, np.int32)
        self._last_tokens = np.zeros(0, np.int64)  # by slot
        self._plain = np.zeros(0, np.bool_)  # by slot: greedy, and nothing else is ever asked for
        self._output_slots = np.zeros(0, np.int32)  # of the newest batch

    def build(self, message: RoundMessage) -> Batch:
        for slot, sequence in message.new_sequences:
            self._grow(slot)
            self._sequences[slot] = sequence
            self._outputs[slot] = list(sequence.output_token_ids)
            self._plain[slot] = _is_plain(sequence.params)
            self._num_blocks[slot] = 0
        for slot, block_ids in message.new_blocks:
            self._add_blocks(slot, block_ids)
        slots, query_lens, context_lens = message.slots, message.query_lens, message.context_lens
        query_starts = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(query_lens, out=query_starts[1:])
        token_ids = message.token_ids.astype(np.int64)
        pending = np.flatnonzero(token_ids == PENDING)  # decodes alone, whose tokens are the first
        token_ids[pending] = self._last_tokens[slots[pending]]
        first_positions = context_lens - query_lens - query_starts[:-1]
        output_seqs = np.flatnonzero(message.gives_token)
        self._output_slots = slots[output_seqs]
        return Batch(
            token_ids=token_ids,
            positions=np.repeat(first_positions.astype(np.int64), query_lens) + np.arange(len(token_ids)),
            query_starts=query_starts,
            context_lens=context_lens,
            block_tables=self._blocks[slots, : self._num_blocks[slots].max()],
            output_rows=query_starts[1:][output_seqs].astype(np.int64) - 1,
            output_seqs=output_seqs,
            sampling=self._sampling(context_lens[output_seqs], token_ids[query_starts[:-1][output_seqs]]),
        )

    def keep(self, token_ids: Sequence[int]) -> None:
        """Remember what the newest batch gave, one token for each output row: a later message may leave it out."""
        self._last_tokens[self._output_slots] = token_ids

    def _grow(self, slot: int) -> None:
        if slot < len(self._sequences):
            return
        assert slot == len(self._sequences), f"slot {slot} of {len(self._sequences)}: a message is missing"
        self._sequences.append(None)
        self._outputs.append([])
        if slot >= len(self._blocks):
            more = max(8, slot)
            self._blocks = np.pad(self._blocks, ((0, more), (0, 0)))
            self._num_blocks = np.pad(self._num_blocks, (0, more))
            self._last_tokens = np.pad(self._last_tokens, (0, more))
            self._plain = np.pad(self._plain, (0, more))

    def _add_blocks(self, slot: int, block_ids: list[int]) -> None:
        start = int(self._num_blocks[slot])
        end = start + len(block_ids)
        width = self._blocks.shape[1]
        if end > width:
            self._blocks = np.pad(self._blocks, ((0, 0), (0, max(end, 2 * width) - width)))
        self._blocks[slot, start:end] = block_ids
        self._num_blocks[slot] = end

    def _sampling(self, context_lens: np.ndarray, first_tokens: np.ndarray) -> list[SamplingInput] | None:
        """How each output row is drawn; None where all are greedy and plain.

        `first_tokens` are those of this round's queries: of a decode, the output token before the one to be drawn.
        """
        if self._plain[self._output_slots].all():
            return None
        rows: list[SamplingInput] = []
        columns = (self._output_slots.tolist(), context_lens.tolist(), first_tokens.tolist())
        for slot, context_len, token_id in zip(*columns, strict=True):
            sequence = self._sequences[slot]
            assert sequence is not None, f"slot {slot} is empty: a message is missing"
            params, position = sequence.params, context_len - sequence.num_prompt_tokens
            outputs = self._outputs[slot]
            if params.has_penalties and len(outputs) < position:
                outputs.append(token_id)
            forbidden = sequence.stop_token_ids if position < params.min_tokens else ()
            rows.append(SamplingInput(params, sequence.seed, position, sequence.prompt_token_ids, outputs, forbidden))
        return rows
