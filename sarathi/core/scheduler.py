"""The round: which requests run next and with how many tokens, and what a finished round changes.

BaseScheduler owns every request's status, counters and (through its BlockManager and queues) blocks and place, and
nobody else writes them. It asks three policies (order, chunk sizer, gate) and knows no executor, clock or metric.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from sarathi.core.admission import OpenGate, PrefillGate
from sarathi.core.block_manager import BlockManager
from sarathi.core.chunking import ChunkSizer, LatencyPredictor, StaticBudget
from sarathi.core.order import FCFS, OrderPolicy
from sarathi.core.plan import BatchPlan, MemoryStats, SchedulerOutput, StepResult
from sarathi.core.queue import Entry, RequestHeap
from sarathi.request import Request, RequestStatus, TokenLogprobs

# Share of the blocks that admission leaves free while something runs, so that decodes can grow before the
# first of them has to be preempted.
WATERMARK = 0.01


class BaseScheduler:
    """Stall-free rounds: every ready decode first, then prefill chunks up to the token budget.

    A variant overrides one of `make_order`, `make_sizer`, `make_gate`; a baseline that composes rounds in
    another way overrides `compose`, `make_token_budget`, `blocks_to_reserve` or `reject_reason`.

    Args:
        config: the scheduler's settings; `max_num_seqs` seats and, for most, `chunk_size`, the token budget.
        blocks: the KV pool.
        max_model_len: longest request in tokens, prompt and output; the pool's size limits it too.
        predictor: what a sizer that aims at a latency asks; None for all others.
    """

    def __init__(
        self, config: Any, blocks: BlockManager, max_model_len: int, predictor: LatencyPredictor | None = None
    ) -> None:
        self.config = config
        self.predictor = predictor
        self.blocks = blocks
        self.max_model_len = min(max_model_len, blocks.num_token_slots)
        self.max_num_seqs: int = config.max_num_seqs
        self.overlap = False  # whether rounds are made one ahead of the results: see take_decodes
        self.token_budget = self.make_token_budget()
        self.order = self.make_order()
        self.sizer = self.make_sizer()
        self.gate = self.make_gate()
        self.requests: dict[str, Request] = {}  # every unfinished request, and those in flight
        self.waiting = RequestHeap()
        self.partial = RequestHeap()  # admitted prompts with tokens left to schedule
        self.decodes: list[Request] = []  # ready: the newest token is known, or with overlap is being computed
        self.num_running = 0  # admitted and unfinished, in flight or not
        self.inflight: deque[SchedulerOutput] = deque()  # rounds, oldest first
        self._num_added = 0
        self._num_rounds = 0
        self._num_ended_in_flight = 0
        self._preempted_ids: list[str] = []  # since the last round that ran
        self.memory = MemoryStats()  # as the last result told it

    # Hooks ------------------------------------------------------------------------------------------

    def make_token_budget(self) -> int:
        return self.config.chunk_size

    def make_order(self) -> OrderPolicy:
        return FCFS()

    def make_sizer(self) -> ChunkSizer:
        return StaticBudget()

    def make_gate(self) -> PrefillGate:
        return OpenGate()

    def compose(self, plan: BatchPlan) -> None:
        """Fill the round: decodes are never delayed by prefill."""
        self.take_decodes(plan)
        self.take_prefills(plan)

    def blocks_to_reserve(self, request: Request) -> int:
        """Blocks held from admission on: the whole prompt, so that no prefill is evicted half-way for space."""
        return self.blocks.blocks_for(request.num_tokens)

    def reject_reason(self, request: Request) -> str | None:
        """Why this request can never run here, with the numbers; None if it can."""
        if request.num_prompt_tokens < 1:
            return "the prompt is empty; at least 1 token"
        # The prompt has to leave room for one generated token, where one is asked for.
        needed = request.num_prompt_tokens + min(1, request.sampling_params.max_tokens)
        if needed > self.blocks.num_token_slots:
            return (
                f"the prompt of {request.num_prompt_tokens} tokens needs {self.blocks.blocks_for(needed)} KV blocks "
                f"of {self.blocks.block_size} tokens; there are {self.blocks.num_blocks}"
            )
        if needed > self.max_model_len:
            return f"the prompt of {request.num_prompt_tokens} tokens exceeds the context of {self.max_model_len}"
        return None

    # Requests come and go ---------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_inflight_rounds(self) -> int:
        return len(self.inflight)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def add(self, request: Request, now: float) -> bool:
        """Queue a request. False if it can never run: it is then FINISHED_IGNORED and says why.

        Raises ValueError if its request_id is in use.
        """
        if request.request_id in self.requests:
            raise ValueError(f"request_id: {request.request_id!r} is in use by an unfinished request")
        reason = self.reject_reason(request)
        if reason is not None:
            request.status = RequestStatus.FINISHED_IGNORED
            request.ignored_reason = reason
            request.finish_time = now
            return False
        request.max_output_tokens = min(
            request.sampling_params.max_tokens, self.max_model_len - request.num_prompt_tokens
        )
        request.sequence_number = self._num_added
        self._num_added += 1
        self.requests[request.request_id] = request
        self.waiting.push(request, self.order.key(request, now))
        return True

    def finish(self, request_id: str, status: RequestStatus, now: float) -> Request | None:
        """End a request from outside, aborted or stopped, at any moment; None if it is not here.

        No token of it is committed from now on. Its blocks are free at once, or when the rounds in flight that use
        them return.
        """
        assert status.is_finished
        request = self.requests.get(request_id)
        if request is None or request.status.is_finished:
            return None
        if request.queue_entry is not None:
            (self.waiting if request.status is RequestStatus.WAITING else self.partial).remove(request)
        elif request.num_inflight_steps == 0:
            self.decodes.remove(request)
        self._finish(request, status, now)
        return request

    def _finish(self, request: Request, status: RequestStatus, now: float) -> bool:
        """End a request; False if rounds in flight still use its blocks: the last of them lets it go."""
        if request.finish_time is None:
            request.finish_time = now
        if request.num_inflight_steps:
            self._num_ended_in_flight += 1
            request.status = status
            return False
        if request.status is not RequestStatus.WAITING:
            self.num_running -= 1
            self.blocks.free(request)
        request.status = status
        del self.requests[request.request_id]
        return True

    def _preempt(self, request: Request, now: float) -> None:
        """Back to the queue with nothing computed; the arrival time and the generated tokens stay."""
        assert request.num_inflight_steps == 0
        if request.queue_entry is not None:
            self.partial.remove(request)
        self.blocks.free(request)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.preempted_time = now
        self.num_running -= 1
        self._preempted_ids.append(request.request_id)
        self.waiting.push(request, self.order.key(request, now))

    def check_idle(self) -> None:
        """With no request left, raise RuntimeError unless nothing of any is left either. O(1)."""
        left = {
            "blocks in use": self.blocks.num_used,
            "running": self.num_running,
            "rounds in flight": self.num_inflight_rounds,
            "partial": len(self.partial),
            "waiting": len(self.waiting),
            "decodes": len(self.decodes),
        }
        if any(left.values()):
            raise RuntimeError(f"no request is left, but {', '.join(f'{n} {what}' for what, n in left.items() if n)}")

    def drop_rounds(self, now: float) -> None:
        """Forget the rounds in flight, which will never return; what their requests had computed is not trusted.

        They start again, as after preemption; those that were ended meanwhile are let go.
        """
        requests = self._inflight_requests()
        self.inflight.clear()
        self.decodes = [request for request in self.decodes if request not in requests]
        for request in sorted(requests, key=_latest):
            request.num_inflight_steps = 0
            if request.status.is_finished:
                self._release_ended(request, [], now)
            else:
                self._preempt(request, now)

    def _inflight_requests(self) -> set[Request]:
        return {r for output in self.inflight for r in (*output.decodes, *(request for request, _ in output.prefills))}

    # The round --------------------------------------------------------------------------------------

    def schedule(self, now: float) -> SchedulerOutput | None:
        """The next round, or None if nothing can run before a round in flight returns or a request comes.

        `now` in seconds of the engine's clock. What is returned counts as in flight until `update`. What a policy
        raises passes through, and leaves a round half made: the scheduler must not be used after it.
        """
        plan = self._compose_round(now)
        while not plan.num_tokens and not self.num_inflight_rounds and self.partial:
            # Every block is held by prompts that may not go on: the latest gives way, or nothing ever moves.
            self._preempt(max(self.partial, key=_latest), now)
            plan = self._compose_round(now)
        if not plan.num_tokens:
            return None
        self._num_rounds += 1
        if self.overlap:
            self.decodes += plan.decodes
            self.decodes += [r for r, _ in plan.prefills if not r.num_remaining_tokens and r.max_output_tokens]
        preempted_ids, self._preempted_ids = self._preempted_ids, []
        output = SchedulerOutput(
            step_id=self._num_rounds - 1,
            scheduled_time=now,
            token_budget=plan.token_budget,
            decodes=plan.decodes,
            prefills=plan.prefills,
            preempted_ids=preempted_ids,
            num_prefill_tokens=plan.num_prefill_tokens,
            sum_decode_context_len=plan.sum_decode_context_len,
            max_decode_context_len=plan.max_decode_context_len,
            prefill_processed_tokens=plan.prefill_processed_tokens,
            max_prefill_processed_tokens=plan.max_prefill_processed_tokens,
            predicted_time=plan.predicted_time,
            target_time=self.sizer.target_time,
            num_candidates=plan.num_candidates,
            prefill_cap=self.gate.cap,
            reasons=plan.reasons,
            num_waiting=len(self.waiting),
            num_partial=len(self.partial),
            num_running=self.num_running,
            num_used_blocks=self.blocks.num_used,
            memory=self.memory,
        )
        self.inflight.append(output)
        return output

    def _compose_round(self, now: float) -> BatchPlan:
        plan = BatchPlan(self.token_budget, now)
        if self.order.begin_round(plan):
            for heap in (self.waiting, self.partial):
                heap.rekey(lambda request: self.order.key(request, now))
        self.compose(plan)
        return plan

    def take_decodes(self, plan: BatchPlan) -> None:
        """One token for each ready decode; room is made first, so that none taken is preempted later.

        With overlap a decode is ready while the round in flight still computes its newest token: whether a stop token
        ended it is known one round too late, whether its length did is known now.
        """
        ready, self.decodes = self.decodes, []
        if self.overlap:
            ready = [
                r
                for r in ready
                if r.finish_time is None and len(r.output_token_ids) + r.num_inflight_steps < r.max_output_tokens
            ]
        if not ready:
            return
        block_size = self.blocks.block_size
        edge = [request for request in ready if not request.num_computed_tokens % block_size]
        if edge:
            edge = [r for r in edge if len(r.block_ids) * block_size == r.num_computed_tokens]
            if len(edge) > self.blocks.num_free:
                ready, edge = self._make_room(ready, edge, plan)
            self.blocks.append_one_each(edge)
        total = longest = 0
        for request in ready:
            context = request.num_computed_tokens + 1
            request.num_computed_tokens = context
            request.num_inflight_steps += 1
            total += context
            if context > longest:
                longest = context
        plan.add_decodes(ready, total, longest)

    def _make_room(
        self, ready: list[Request], edge: list[Request], plan: BatchPlan
    ) -> tuple[list[Request], list[Request]]:
        """Preempt the latest arrivals until each of `edge` can have a block; returns what is left of both.

        One with a step in flight is never preempted, nor is an earlier one in its place: its blocks are waited for, and
        whoever needs one and does not get it sits this round out. Nothing is admitted in such a round, and with blocks
        to wait for nothing prefilled: the room is for decodes.
        """
        plan.admitting = False
        in_flight = self._inflight_requests()
        coming = sum(len(request.block_ids) for request in in_flight if request.status.is_finished)
        candidates = sorted({r for r in (*ready, *self.partial, *in_flight) if not r.status.is_finished}, key=_latest)
        taken, at_edge = set(ready), set(edge)
        while len(at_edge) > self.blocks.num_free + coming and candidates:
            victim = candidates.pop()
            if not victim.num_inflight_steps:
                self._preempt(victim, plan.now)
            else:
                coming += len(victim.block_ids)
                if victim in taken:
                    self.decodes.append(victim)
            taken.discard(victim)
            at_edge.discard(victim)
        late = sorted(at_edge, key=_latest)[self.blocks.num_free :]
        self.decodes += late
        taken.difference_update(late)
        at_edge.difference_update(late)
        plan.prefilling = not coming
        return [request for request in ready if request in taken], [request for request in edge if request in at_edge]

    def take_prefills(self, plan: BatchPlan) -> None:
        """Chunks for partial and waiting prompts, in one order, while budget is left; new ones need a seat and KV."""
        if not plan.prefilling:
            return
        plan.num_partial = len(self.partial)
        self.sizer.begin_round(plan, self.memory)
        self.gate.begin_round(plan, self.memory)
        admitting = plan.admitting
        unfinished: list[Request] = []
        released: list[Request] = []
        while plan.num_tokens < plan.token_budget:
            entry = self._next_prefill(admitting)
            if entry is None:
                break
            request: Request = entry[3]
            is_waiting = request.status is RequestStatus.WAITING
            if is_waiting and not self._can_admit(request):
                admitting = False
                continue
            decision = self.sizer.size(request, plan)
            verdict = self.gate.review(request, decision.num_tokens, plan)
            num_tokens = verdict.num_tokens
            plan.note(decision.num_candidates, decision.reason, verdict.reason)
            if not num_tokens:
                if is_waiting:
                    admitting = False
                elif verdict.release and not request.num_inflight_steps and not request.num_preemptions:
                    released.append(self.partial.pop())
                else:
                    unfinished.append(self.partial.pop())
                if verdict.ends_scan:
                    break
                continue
            plan.predicted_time = (
                decision.predicted_time
                if num_tokens == decision.num_tokens
                else self.sizer.predict(request, num_tokens, plan)
            )
            self._check_chunk(request, num_tokens, plan)
            if is_waiting:
                self.waiting.pop()
                self._admit(request)
                plan.num_admitted += 1
            else:
                self.partial.pop()
            self._take_chunk(request, num_tokens, plan)
            if request.num_remaining_tokens:
                unfinished.append(request)
        for request in unfinished:
            self.partial.push(request, self.order.key(request, plan.now))
        for request in released:  # not before the scan is over, or it would be its next candidate
            self._preempt(request, plan.now)

    def _check_chunk(self, request: Request, num_tokens: int, plan: BatchPlan) -> None:
        """Policies may come from anywhere, and a chunk that cannot be would loop for ever or break the KV cache."""
        remaining = request.num_remaining_tokens
        room = plan.budget_left if plan.num_tokens else remaining
        if not 1 <= num_tokens <= min(remaining, room):
            raise RuntimeError(
                f"{type(self.sizer).__name__} and {type(self.gate).__name__} give request {request.request_id!r} "
                f"a chunk of {num_tokens} tokens; it has {remaining} left to compute and the round has room for {room}"
            )

    def _next_prefill(self, admitting: bool) -> Entry | None:
        """The head of the two heaps taken as one."""
        partial = self.partial.head()
        waiting = self.waiting.head() if admitting else None
        if partial is None or (waiting is not None and waiting < partial):
            return waiting
        return partial

    def _can_admit(self, request: Request) -> bool:
        if self.num_running >= self.max_num_seqs:
            return False
        spare = int(WATERMARK * self.blocks.num_blocks) if self.num_running else 0
        return self.blocks_to_reserve(request) + spare <= self.blocks.num_free

    def _admit(self, request: Request) -> None:
        self.blocks.allocate(request, self.blocks_to_reserve(request))
        request.status = RequestStatus.RUNNING
        self.num_running += 1

    def _take_chunk(self, request: Request, num_tokens: int, plan: BatchPlan) -> None:
        plan.add(request, num_tokens)
        request.num_computed_tokens += num_tokens
        request.num_inflight_steps += 1
        if request.first_scheduled_time is None:
            request.first_scheduled_time = plan.now
        if request.preempted_time is not None:
            request.preemption_time += plan.now - request.preempted_time
            request.preempted_time = None

    # What a finished round changes ------------------------------------------------------------------

    def update(self, output: SchedulerOutput, result: StepResult, now: float) -> list[Request]:
        """Commit the oldest round in flight, ended at `now` (seconds); returns the requests that ended with it."""
        token_ids, execution_time, self.memory, logprobs, _ = result
        self.inflight.popleft()
        if logprobs is not None:
            _keep_logprobs(output, logprobs)
        finished: list[Request] = []
        decodes = output.decodes
        if self._num_ended_in_flight:
            decodes, token_ids = self._drop_ended(output, token_ids, finished, now)
        ended: list[Request] = []
        for request, token_id in zip(decodes, token_ids, strict=False):
            request.num_inflight_steps -= 1
            request.execution_time += execution_time
            request.token_times.append(now)
            tokens = request.output_token_ids
            tokens.append(token_id)
            if len(tokens) >= request.max_output_tokens or token_id in request.eos_token_ids:
                ended.append(request)
        for request in ended:
            self._ends(request, finished, now)
        if not self.overlap:
            self.decodes.extend([r for r in decodes if r.finish_time is None] if ended else decodes)
        first_prefill = len(decodes)
        for index, (request, _) in enumerate(output.prefills):
            self._commit_chunk(request, token_ids[first_prefill + index], execution_time, now, finished)
        if self.overlap and finished:
            self.decodes = [request for request in self.decodes if request.finish_time is None]
        self.order.observe(output, execution_time)
        self.sizer.observe(output, execution_time)
        self.gate.observe(output, execution_time)
        return finished

    def _commit_chunk(
        self, request: Request, token_id: int, execution_time: float, now: float, finished: list[Request]
    ) -> None:
        request.num_inflight_steps -= 1
        if request.status.is_finished:  # ended while this chunk was in flight
            self._release_ended(request, finished, now)
            return
        request.execution_time += execution_time
        if request.num_remaining_tokens + request.num_inflight_steps > 0:  # with overlap -1 + 1: its first decode
            return
        # The last chunk: chunks of one request return in order, so its prompt is complete.
        if request.prefill_end_time is None:
            request.prefill_end_time = now
        if request.max_output_tokens:
            request.output_token_ids.append(token_id)
            request.token_times.append(now)
        if not self._ends(request, finished, now) and not self.overlap:
            self.decodes.append(request)

    def _ends(self, request: Request, finished: list[Request], now: float) -> bool:
        """Finish the request if its newest token ends it."""
        tokens = request.output_token_ids
        if tokens and tokens[-1] in request.eos_token_ids:
            status = RequestStatus.FINISHED_STOPPED
        elif len(tokens) >= request.max_output_tokens:
            status = RequestStatus.FINISHED_LENGTH
        else:
            return False
        if self._finish(request, status, now):
            finished.append(request)
        return True

    def _drop_ended(
        self, output: SchedulerOutput, token_ids: list[int], finished: list[Request], now: float
    ) -> tuple[list[Request], list[int]]:
        """The round's decodes and tokens without the requests that were ended while it ran."""
        kept = [i for i, request in enumerate(output.decodes) if not request.status.is_finished]
        for request in output.decodes:
            if request.status.is_finished:
                request.num_inflight_steps -= 1
                self._release_ended(request, finished, now)
        prefill_tokens = token_ids[len(output.decodes) :]
        return [output.decodes[i] for i in kept], [token_ids[i] for i in kept] + prefill_tokens

    def _release_ended(self, request: Request, finished: list[Request], now: float) -> None:
        if request.num_inflight_steps == 0:
            self._num_ended_in_flight -= 1
            self._finish(request, request.status, now)
            finished.append(request)


def _keep_logprobs(output: SchedulerOutput, logprobs: list[TokenLogprobs | None]) -> None:
    requests = (*output.decodes, *(request for request, _ in output.prefills))
    for request, entry in zip(requests, logprobs, strict=True):
        if entry is not None and not request.status.is_finished:
            request.output_logprobs.append(entry)


def _latest(request: Request) -> tuple[float, int]:
    """Sort key whose maximum is the latest arrival."""
    return request.arrival_time, request.sequence_number
