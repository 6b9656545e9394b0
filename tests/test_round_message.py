"""What a round sends, read back by a worker: the batch that the requests themselves tell, whatever happened before."""

from __future__ import annotations

import pickle
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sarathi.clock import VirtualClock
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.core.scheduler import BaseScheduler
from sarathi.engine.engine import Engine, replay
from sarathi.executor.simulated import SimulatedExecutor
from sarathi.request import Request, SamplingParams
from sarathi.worker.batch import Batch
from sarathi.worker.message import PENDING, BatchBuilder, RoundEncoder, RoundMessage
from tests.simulate import LinearLatency, ListRecorder, assert_drained, make_scheduler

SEED = 3
KINDS = (
    SamplingParams(temperature=0, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.9, seed=5, max_tokens=7, ignore_eos=True),
    SamplingParams(temperature=0, repetition_penalty=1.2, max_tokens=8, ignore_eos=True),
    SamplingParams(temperature=1.0, frequency_penalty=0.5, max_tokens=12, stop_token_ids=(3,), min_tokens=4),
    SamplingParams(temperature=0, logprobs=2, max_tokens=3, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=0),
)


def token_at(request: Request, position: int) -> int:
    """The output token that the pretended model gives at a position."""
    return zlib.crc32(f"{request.request_id} {position}".encode()) % 50


def known_tokens(request: Request, end: int) -> list[int]:
    output = [token_at(request, position) for position in range(max(0, end - request.num_prompt_tokens))]
    return [*request.prompt_token_ids, *output][:end]


def check_batch(batch: Batch, output: SchedulerOutput) -> None:
    """Against the requests themselves, a sequence at a time."""
    chunks = [(request, 1) for request in output.decodes] + output.prefills
    starts = batch.query_starts.tolist()
    rows, seqs, sampled = [], [], []
    for seq, (request, num_tokens) in enumerate(chunks):
        end = request.num_computed_tokens
        span = slice(starts[seq], starts[seq + 1])
        assert batch.token_ids[span].tolist() == known_tokens(request, end)[end - num_tokens :]
        assert batch.positions[span].tolist() == list(range(end - num_tokens, end))
        assert batch.context_lens[seq] == end
        num_blocks = len(request.block_ids)
        assert batch.block_tables[seq, :num_blocks].tolist() == request.block_ids
        known = request.num_prompt_tokens + len(request.output_token_ids)
        if request.max_output_tokens and (seq < len(output.decodes) or end == known):
            rows.append(span.stop - 1)
            seqs.append(seq)
            sampled.append((request, end - request.num_prompt_tokens))
    assert batch.output_rows.tolist() == rows and batch.output_seqs.tolist() == seqs
    assert batch.block_tables.shape[1] == max(len(request.block_ids) for request, _ in chunks)
    if batch.sampling is None:
        params = [request.sampling_params for request, _ in sampled]
        assert all(p.is_greedy and p.logprobs is None and not p.has_penalties for p in params)
        return
    for row, (request, position) in zip(batch.sampling, sampled, strict=True):
        params = request.sampling_params
        assert (row.params, row.position) == (params, position)
        assert (row.seed == 5) == (params.seed == 5)
        penalised = params.has_penalties
        assert list(row.prompt_token_ids) == (list(request.prompt_token_ids) if penalised else [])
        history = [token_at(request, index) for index in range(position)]
        assert list(row.output_token_ids) == (history if penalised else [])
        forbidden = request.eos_token_ids if position < params.min_tokens else frozenset()
        assert set(row.forbidden_token_ids) == forbidden


class MessagingExecutor(SimulatedExecutor):
    """A simulated device whose tokens are `token_at`, and which reads each round's message as a worker would."""

    def __init__(self, clock: VirtualClock, num_stages: int, overlap: bool) -> None:
        super().__init__(LinearLatency(num_stages), clock, num_stages=num_stages)
        self.overlap = overlap
        self.max_inflight_steps = num_stages + overlap
        self.encoder, self.builder = RoundEncoder(SEED), BatchBuilder()
        self.messages: list[RoundMessage] = []
        self.rounds: list[tuple[list[int], SchedulerOutput]] = []

    def submit(self, output: SchedulerOutput) -> None:
        super().submit(output)
        message = self.encoder.encode(output)
        self.messages.append(message)
        batch = self.builder.build(pickle.loads(pickle.dumps(message)))
        check_batch(batch, output)
        chunks = [(request, 1) for request in output.decodes] + output.prefills
        tokens = [token_at(request, request.num_computed_tokens - request.num_prompt_tokens) for request, _ in chunks]
        if len(batch.output_seqs):
            self.builder.keep([tokens[seq] for seq in batch.output_seqs])
        self.rounds.append((tokens, output))

    def wait(self, until: float | None = None) -> StepResult | None:
        result = super().wait(until)
        return None if result is None else result._replace(token_ids=self.rounds.pop(0)[0])


def engine_of(scheduler: BaseScheduler, num_stages: int = 1, overlap: bool = False) -> Engine:
    clock = VirtualClock()
    scheduler.overlap = overlap
    return Engine(scheduler, MessagingExecutor(clock, num_stages, overlap), clock, ListRecorder())


specs = st.tuples(st.integers(1, 60), st.sampled_from(KINDS), st.floats(0, 0.2), st.booleans())


@given(
    specs=st.lists(specs, min_size=1, max_size=12),
    aborts=st.dictionaries(st.integers(0, 11), st.integers(0, 30), max_size=4),
    num_blocks=st.integers(16, 40),
    block_size=st.sampled_from([1, 4, 16]),
    num_stages=st.integers(0, 3),
)
def test_a_worker_reads_what_the_requests_tell(specs, aborts, num_blocks, block_size, num_stages):
    """Through preemptions, aborts and reused slots; with rounds in flight, and one ahead of the results (0 stages)."""
    scheduler = make_scheduler(num_blocks=num_blocks, block_size=block_size, chunk_size=12, max_num_seqs=6)
    engine = engine_of(scheduler, num_stages or 1, overlap=not num_stages)
    requests = [
        Request(str(i), range(prompt), params, arrival, eos_token_ids=(7,) if eos else ())
        for i, (prompt, params, arrival, eos) in enumerate(sorted(specs, key=lambda spec: spec[2]))
    ]
    rounds = 0

    def abort_some(_: SchedulerOutput) -> None:
        nonlocal rounds
        for index in [index for index, at in aborts.items() if at == rounds]:
            engine.abort(str(index))
        rounds += 1

    replay(engine, requests, on_round=abort_some)
    assert_drained(scheduler)
    for request in requests:
        assert request.output_token_ids == [token_at(request, i) for i in range(len(request.output_token_ids))]


def test_a_decode_sends_little():
    """No prompt, no block table and no settings: they are there already."""
    engine = engine_of(make_scheduler(chunk_size=512, max_num_seqs=64))
    params = SamplingParams(temperature=0.5, repetition_penalty=1.5, max_tokens=40, ignore_eos=True)
    for i in range(8):
        engine.add(Request(str(i), range(60), params, 0.0))
    while engine.has_unfinished_requests():
        engine.step()
    executor = engine.executor
    assert isinstance(executor, MessagingExecutor)
    first, *decodes, _ = executor.messages
    assert len(first.new_sequences) == 8 and len(first.token_ids) == 480
    assert all(not message.new_sequences and len(message.token_ids) == 8 for message in decodes)
    assert sum(bool(message.new_blocks) for message in decodes) == 3  # at 64, 80 and 96 tokens
    plain = next(message for message in decodes if not message.new_blocks)
    assert len(pickle.dumps(plain)) < 1200


def test_tokens_not_known_yet_are_left_out():
    engine = engine_of(make_scheduler(), overlap=True)
    engine.add(Request("0", range(4), SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), 0.0))
    while engine.has_unfinished_requests():
        engine.step()
    executor = engine.executor
    assert isinstance(executor, MessagingExecutor)
    assert [message.token_ids.tolist() for message in executor.messages] == [[0, 1, 2, 3], [PENDING], [PENDING]]


def test_requests_without_a_seed_get_one_each_that_no_user_can_give():
    requests = [Request(str(i), range(4), SamplingParams(max_tokens=2), 0.0) for i in range(2)]
    scheduler = make_scheduler()
    for request in requests:
        scheduler.add(request, 0.0)
    output = scheduler.schedule(0.0)
    assert output is not None
    seeds = []
    for seed in (1, 2):
        batch = BatchBuilder().build(RoundEncoder(seed).encode(output))
        assert batch.sampling is not None
        seeds += [row.seed for row in batch.sampling]
    assert len(set(seeds)) == 4 and min(seeds) >= 1 << 64


def test_a_round_without_output_rows():
    request = Request("0", range(40), SamplingParams(max_tokens=2), 0.0)
    request.block_ids = [2, 0, 1]
    scheduler = make_scheduler(chunk_size=16)
    scheduler.add(request, 0.0)
    output = scheduler.schedule(0.0)
    assert output is not None
    batch = BatchBuilder().build(RoundEncoder(0).encode(output))
    assert batch.output_rows.size == batch.output_seqs.size == 0 and batch.sampling is None
    assert np.array_equal(batch.positions, np.arange(16))


def test_preempted_and_taken_again_before_the_next_message():
    """Its slot is given up though it runs at both messages: its blocks are others."""
    scheduler = make_scheduler(chunk_size=64, block_size=4)
    request = Request("0", range(20), KINDS[0], 0.0)
    scheduler.add(request, 0.0)
    encoder, builder = RoundEncoder(0), BatchBuilder()
    for _ in range(2):
        output = scheduler.schedule(0.0)
        assert output is not None
        check_batch(builder.build(encoder.encode(output)), output)
        tokens = [token_at(request, 0)]
        scheduler.update(output, StepResult(tokens, 0.01), 0.01)
        scheduler.decodes.remove(request)
        scheduler._preempt(request, 0.01)
        scheduler.blocks._free.reverse()
