"""What holds for every scheduler, whatever comes: hypothesis drives real replays and looks at each round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sarathi.core.order import Aging, ShortestPrefillFirst
from sarathi.core.variants import SCHEDULERS
from sarathi.engine.engine import replay
from sarathi.request import RequestStatus
from tests.simulate import (
    LinearLatency,
    assert_blocks_conserved,
    assert_drained,
    check_rounds,
    make_engine,
    make_request,
    make_scheduler,
    run,
)

lengths = st.tuples(
    st.integers(1, 80),  # prompt
    st.integers(0, 30),  # output
    st.floats(0, 0.3),  # arrival
    st.booleans(),  # ends with an end-of-sequence token at once
)
aborts = st.dictionaries(st.integers(0, 11), st.integers(0, 40), max_size=5)  # request -> round


@given(
    name=st.sampled_from(sorted(SCHEDULERS)),
    specs=st.lists(lengths, min_size=1, max_size=12),
    abort_at=aborts,
    num_blocks=st.integers(1, 12),
    block_size=st.sampled_from([1, 4, 16]),
    chunk_size=st.integers(1, 40),
    max_num_seqs=st.integers(1, 9),
    num_stages=st.integers(0, 4),  # 0: one stage, and rounds one ahead of the results
    policy=st.fixed_dictionaries(
        {
            "target_ms": st.floats(10, 15),
            "delta": st.integers(1, 16),
            "c_max": st.integers(1, 4),
            "l_min": st.integers(1, 50),
            "cap_scope": st.sampled_from(["round", "unfinished"]),
            "on_defer": st.sampled_from(["pause", "release"]),
        }
    ),
)
def test_every_round_and_every_end(
    name, specs, abort_at, num_blocks, block_size, chunk_size, max_num_seqs, num_stages, policy
):
    """Blocks conserved, budget kept, every decode progresses, every request ends, with all of its tokens."""
    scheduler = make_scheduler(
        name,
        num_blocks=num_blocks,
        block_size=block_size,
        chunk_size=chunk_size,
        max_num_seqs=max_num_seqs,
        max_model_len=100,
        **policy,
    )
    scheduler.overlap = not num_stages
    num_stages = num_stages or 1
    requests = [
        make_request(str(i), prompt, output, arrival, eos_token_ids=(0,) if eos else ())
        for i, (prompt, output, arrival, eos) in enumerate(sorted(specs, key=lambda spec: spec[2]))
    ]
    engine = make_engine(scheduler, num_stages)
    check_rounds(scheduler, name, requests)
    rounds = 0
    reported_preemptions: list[str] = []
    tokens_at_abort: dict[str, int] = {}

    def abort_some(output) -> None:
        nonlocal rounds
        reported_preemptions.extend(output.preempted_ids)
        for index in [index for index, at in abort_at.items() if at == rounds and index < len(requests)]:
            request = requests[index]
            if engine.abort(request.request_id):
                tokens_at_abort[request.request_id] = len(request.output_token_ids)
        assert_blocks_conserved(scheduler, requests)
        rounds += 1
        assert rounds < 20_000

    replay(engine, requests, on_round=abort_some)
    assert_drained(scheduler)
    # Preemptions are told by the next round that runs; those after the last round have none to tell them.
    untold = scheduler._preempted_ids
    assert len(reported_preemptions) + len(untold) == sum(request.num_preemptions for request in requests)
    for request in requests:
        assert request.status.is_finished and request.finish_time is not None
        assert len(request.token_times) == len(request.output_token_ids)
        if request.status is RequestStatus.FINISHED_IGNORED:
            assert request.ignored_reason and not request.output_token_ids
        elif request.status is RequestStatus.FINISHED_ABORTED:
            assert len(request.output_token_ids) == tokens_at_abort[request.request_id]
        elif request.status is RequestStatus.FINISHED_STOPPED:
            assert len(request.output_token_ids) == 1
        else:
            room = scheduler.max_model_len - request.num_prompt_tokens
            assert len(request.output_token_ids) == min(request.sampling_params.max_tokens, room)
    reported = [*engine.recorder.finished, *engine.recorder.ignored]
    assert sorted(r.request_id for r in reported) == sorted(r.request_id for r in requests)


@given(
    specs=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 20)), min_size=1, max_size=25),
    gaps=st.lists(st.floats(1e-4, 0.05), min_size=25, max_size=25),
    num_blocks=st.integers(16, 60),
    chunk_size=st.integers(8, 64),
)
def test_aging_has_spf_and_fcfs_as_its_limits(specs, gaps, num_blocks, chunk_size):
    """alpha/|beta| -> 0 is shortest prefill first and -> infinity is FCFS, decision for decision."""

    def decisions(name, **policy):
        arrival = 0.0
        requests = []
        for i, (prompt, output) in enumerate(specs):
            arrival += gaps[i]
            requests.append(make_request(str(i), prompt, output, arrival))
        scheduler = make_scheduler(name, num_blocks=num_blocks, chunk_size=chunk_size, **policy)
        return run(scheduler, requests)

    assert decisions("AGING", alpha=1e-9, beta=-1.0) == decisions("SPF")
    assert decisions("AGING", alpha=1e9, beta=-1.0) == decisions("SARATHI")


@given(
    specs=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 15), st.floats(0, 1.0)), min_size=2, max_size=30),
    alpha=st.floats(20, 5000),
    beta=st.floats(-3, -0.2),
)
def test_the_wait_under_aging_is_bounded(specs, alpha, beta):
    """A prompt with r tokens that came at a can be passed only by what came before a + |beta| r / alpha.

    So it starts within that time plus the rounds that those prompts' tokens take, a round doing at least
    budget - seats of them. Precondition: decodes leave budget (seats < budget), and seats and KV do not bind.
    """
    budget, seats = 48, 32
    scheduler = make_scheduler(
        "AGING", alpha=alpha, beta=beta, chunk_size=budget, max_num_seqs=seats, num_blocks=100_000
    )
    requests = [
        make_request(str(i), prompt, output, arrival)
        for i, (prompt, output, arrival) in enumerate(sorted(specs, key=lambda spec: spec[2]))
    ]
    longest_round = LinearLatency.seconds(budget)
    run(scheduler, requests)
    for request in requests:
        overtaken_until = request.arrival_time + request.num_prompt_tokens * -beta / alpha
        ahead = sum(r.num_prompt_tokens for r in requests if r is not request and r.arrival_time <= overtaken_until)
        rounds = -(-ahead // (budget - seats)) + 2  # the round under way when it comes, and its own
        wait = request.first_scheduled_time - request.arrival_time
        assert wait <= overtaken_until - request.arrival_time + rounds * longest_round + 1e-9


def test_spf_starves_a_long_prompt_and_aging_does_not():
    def wait_of_long(name: str) -> float:
        short = [make_request(f"s{i}", 32, 1, arrival=0.012 * i) for i in range(400)]
        long = make_request("long", 200, 1, arrival=0.001)
        requests = sorted([*short, long], key=lambda r: r.arrival_time)
        run(make_scheduler(name, chunk_size=32, max_num_seqs=32, alpha=150.0), requests)
        return long.prefill_end_time - long.arrival_time

    assert wait_of_long("SPF") > 4.0
    assert wait_of_long("AGING") < 2.5


def test_the_heap_agrees_with_eq_1_taken_afresh_every_round():
    """Keys without `now` (Eq. 4) give the decisions of priorities with it (Eq. 1), recomputed each round."""

    class EquationOne(Aging):
        def key(self, request, now):
            return -(self.alpha * (now - request.arrival_time) + self.beta * request.num_remaining_tokens)

        def begin_round(self, plan):
            return True

    class EquationOneScheduler(SCHEDULERS["AGING"]):
        def make_order(self):
            return EquationOne(self.config.alpha, self.config.beta)

    def requests():
        return [make_request(str(i), 1 + (i * 53) % 97, 1 + i % 9, arrival=0.0137 * i) for i in range(80)]

    for alpha in (40.0, 400.0):
        decisions = run(make_scheduler("AGING", num_blocks=60, alpha=alpha), requests())
        assert decisions == run(make_scheduler(EquationOneScheduler, num_blocks=60, alpha=alpha), requests())


def test_a_policy_in_a_few_lines():
    """An order that changes with time asks for fresh keys every round and is used by subclassing one hook."""

    class Newest(ShortestPrefillFirst):
        def key(self, request, now):
            return -request.arrival_time if now > 0.02 else request.arrival_time

        def begin_round(self, plan):
            return True

    class NewestScheduler(SCHEDULERS["SARATHI"]):
        def make_order(self):
            return Newest()

    requests = [make_request(str(i), 16, 1, arrival=0.001 * i) for i in range(5)]
    decisions = run(make_scheduler(NewestScheduler), requests)
    assert [prefills[0][0] for _, prefills in decisions] == ["0", "1", "4", "3", "2"]
