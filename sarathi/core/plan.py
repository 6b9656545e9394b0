"""One round: the plan while it is being filled, the frozen output that leaves the scheduler, the result that returns.

The running totals are what policies and the latency model need, kept in O(1) a chunk, so that nobody walks
the batch again. Nothing here decides anything.
"""

from __future__ import annotations

from typing import NamedTuple

from sarathi.request import Request, TokenLogprobs


class BatchPlan:
    """A round under construction. Token counts throughout; `now` in seconds.

    `num_tokens` (U_t of the paper) counts decodes and prefill chunks taken so far. Decodes may exceed
    `token_budget` (B_max); then no prefill fits.
    """

    __slots__ = (
        "admitting", "decodes", "max_decode_context_len", "max_prefill_processed_tokens", "now", "num_prefill_tokens",
        "num_tokens", "predicted_time", "prefill_processed_tokens", "prefills", "reasons",
        "num_admitted", "num_candidates", "num_partial", "prefilling", "sum_decode_context_len", "token_budget",
    )  # fmt: skip

    def __init__(self, token_budget: int, now: float) -> None:
        self.token_budget = token_budget
        self.num_partial = 0  # admitted prompts with tokens left to schedule, when prefills were about to be chosen
        self.now = now
        self.num_admitted = 0  # waiting requests that this round took in
        self.admitting = True  # False once decodes had to be given room by preemption
        self.prefilling = True  # False while decodes wait for blocks
        self.decodes: list[Request] = []
        self.prefills: list[tuple[Request, int]] = []
        self.num_tokens = 0
        self.num_prefill_tokens = 0
        self.sum_decode_context_len = 0
        self.max_decode_context_len = 0
        self.prefill_processed_tokens = 0
        self.max_prefill_processed_tokens = 0
        self.reasons: dict[str, int] = {}
        self.predicted_time: float | None = None
        self.num_candidates = 0

    @property
    def budget_left(self) -> int:
        return max(0, self.token_budget - self.num_tokens)

    def add_decodes(self, requests: list[Request], sum_context_len: int, max_context_len: int) -> None:
        """Take one token of each request; the context lengths count that token."""
        self.decodes = requests
        self.num_tokens += len(requests)
        self.sum_decode_context_len = sum_context_len
        self.max_decode_context_len = max_context_len

    def add(self, request: Request, num_tokens: int) -> None:
        """Take a prefill chunk of `num_tokens`, not yet counted in the request's num_computed_tokens."""
        processed = request.num_computed_tokens
        self.prefills.append((request, num_tokens))
        self.num_tokens += num_tokens
        self.num_prefill_tokens += num_tokens
        self.prefill_processed_tokens += processed
        if processed > self.max_prefill_processed_tokens:
            self.max_prefill_processed_tokens = processed

    def note(self, num_candidates: int, *reasons: str | None) -> None:
        """What policies said of one candidate, for the round's record: chunks tried, labels to count."""
        self.num_candidates += num_candidates
        for reason in reasons:
            if reason is not None:
                self.reasons[reason] = self.reasons.get(reason, 0) + 1


class MemoryStats(NamedTuple):
    """Device memory as the worker saw it after its last round, MB (10^6 bytes)."""

    gpu_mem_used_mb: float = 0.0
    gpu_mem_free_mb: float = 0.0
    cuda_allocated_mb: float = 0.0
    cuda_reserved_mb: float = 0.0


class StepResult(NamedTuple):
    """The outcome of one round.

    `token_ids` has one entry for each decode, then one for each prefill chunk, in the order of the
    SchedulerOutput; the entry of a chunk that does not complete its request is ignored. `logprobs` goes with it:
    None for a request that asks for none, and for a chunk that gives no token.
    """

    token_ids: list[int]
    execution_time: float  # seconds, one stage's round as the worker measured it
    memory: MemoryStats = MemoryStats()
    logprobs: list[TokenLogprobs | None] | None = None
    operator_times: dict[str, float] | None = None  # seconds by operator of the model; None where nobody asks


class SchedulerOutput(NamedTuple):
    """What one round runs. `prefills` holds (request, num_tokens); a decode is one token.

    A request's num_computed_tokens already includes this round, so the context before a chunk is
    num_computed_tokens - num_tokens at the moment of submission.
    """

    step_id: int
    scheduled_time: float
    token_budget: int
    decodes: list[Request]
    prefills: list[tuple[Request, int]]
    preempted_ids: list[str]
    num_prefill_tokens: int
    sum_decode_context_len: int  # the token now computed counts
    max_decode_context_len: int
    prefill_processed_tokens: int  # summed over the prefill chunks: tokens computed before this round
    max_prefill_processed_tokens: int
    predicted_time: float | None  # seconds, where the chunk sizer predicts
    target_time: float | None  # seconds, where it aims at one
    num_candidates: int  # chunk sizes that were tried
    prefill_cap: int | None  # active prefills that the gate allows, where it caps them
    reasons: dict[str, int]  # what sizer and gate gave as reasons, counted
    num_waiting: int  # after the round was filled
    num_partial: int  # admitted prompts with tokens left to schedule
    num_running: int
    num_used_blocks: int
    memory: MemoryStats  # what the scheduler knew: as the last result before this round told it

    @property
    def num_decode_tokens(self) -> int:
        return len(self.decodes)

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + self.num_prefill_tokens

    @property
    def num_seqs(self) -> int:
        return len(self.decodes) + len(self.prefills)
