"""What the scheduler itself costs on this host: schedule + update a round, add and abort a request, under AGING; and
what LPRS asks of the predictor. No latency model, no metrics. Medians, in microseconds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import numpy as np

from predictor.model import Predictor
from predictor.shipped import shipped_file
from sarathi.config import AgingSchedulerConfig
from sarathi.config.schedulers import LprsApcSchedulerConfig
from sarathi.core.block_manager import BlockManager
from sarathi.core.plan import BatchPlan, MemoryStats, StepResult
from sarathi.core.variants import AgingScheduler, LPRSAPCScheduler
from sarathi.request import Request, RequestStatus, SamplingParams

NUM_DECODES = 256
BLOCK_SIZE = 16
REPEATS = 5


def _request(index: int, prompt: int, output: int, arrival_time: float | None = None) -> Request:
    params = SamplingParams(ignore_eos=True, max_tokens=output)
    return Request(f"r{index}", range(prompt), params, 0.001 * index if arrival_time is None else arrival_time)


def _scheduler(num_waiting: int, spare_seats: int) -> AgingScheduler:
    """256 requests decoding, their block edges spread over rounds, and `num_waiting` prompts behind them."""
    config = AgingSchedulerConfig(chunk_size=512, max_num_seqs=NUM_DECODES)
    scheduler = AgingScheduler(config, BlockManager(200_000, BLOCK_SIZE), max_model_len=1_000_000)
    for i in range(NUM_DECODES):
        scheduler.add(_request(i, 100 + i % BLOCK_SIZE, 100_000), 0.0)
    while len(scheduler.decodes) < NUM_DECODES:
        _round(scheduler, 0.0)
    scheduler.max_num_seqs += spare_seats
    for i in range(spare_seats):  # early enough to go first however long it is
        scheduler.add(_request(-1 - i, 100_000, 100, arrival_time=-1e4), 1.0)
    for i in range(num_waiting):
        scheduler.add(_request(NUM_DECODES + i, 50 + i % 2000, 100), 1.0)
    return scheduler


def _round(scheduler: AgingScheduler, now: float) -> None:
    output = scheduler.schedule(now)
    assert output is not None
    scheduler.update(output, StepResult([0] * output.num_seqs, 0.02), now)


def _median_us(action: Callable[[int], object], repeats: int) -> float:
    times = []
    for i in range(repeats):
        started = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def round_cost(num_waiting: int, spare_seats: int = 0) -> tuple[float, float]:
    """Median microseconds of schedule and of update with 256 decodes.

    With `spare_seats` 1 a long prompt is prefilled beside the decodes in every round.
    """
    scheduler = _scheduler(num_waiting, spare_seats)
    schedule_us, update_us = [], []
    for i in range(300):
        started = time.perf_counter()
        output = scheduler.schedule(2.0 + i)
        middle = time.perf_counter()
        assert output is not None and len(output.decodes) == NUM_DECODES
        result = StepResult([0] * output.num_seqs, 0.02)
        restarted = time.perf_counter()
        scheduler.update(output, result, 2.5 + i)
        ended = time.perf_counter()
        schedule_us.append(1e6 * (middle - started))
        update_us.append(1e6 * (ended - restarted))
    return statistics.median(schedule_us), statistics.median(update_us)


def queue_cost(num_waiting: int) -> tuple[float, float]:
    """Median microseconds to add and to abort one request among `num_waiting`."""
    scheduler = _scheduler(num_waiting, 0)
    new = [_request(10_000_000 + i, 50 + (i * 7919) % 3000, 100) for i in range(2000)]
    add_us = _median_us(lambda i: scheduler.add(new[i], 3.0), len(new))
    victims = list(scheduler.waiting)[:: max(1, num_waiting // 2000)][:2000]
    abort_us = _median_us(
        lambda i: scheduler.finish(victims[i].request_id, RequestStatus.FINISHED_ABORTED, 4.0), len(victims)
    )
    return add_us, abort_us


def predictor_cost() -> None:
    """What LPRS asks of the predictor, and a whole round of LPRS_APC with 64 decodes and 1,000 waiting."""
    predictor = Predictor.load(shipped_file("rtx_4090", "Qwen/Qwen3-8B"))
    request, plan = _request(0, 4096, 10), BatchPlan(1024, 0.0)
    memory = MemoryStats(19_500.0, 6_200.0, 17_400.0, 19_500.0)
    chunks = np.arange(16, 16 * 65, 16)
    predict_us = _median_us(lambda _: predictor.predict(request, chunks, plan, memory), 2000)
    config = LprsApcSchedulerConfig(max_num_seqs=256, chunk_size=1024)
    finer = LprsApcSchedulerConfig(max_num_seqs=256, chunk_size=1024, delta=16)
    sizer = LPRSAPCScheduler(finer, BlockManager(1000, BLOCK_SIZE), 4096, predictor).make_sizer()
    sizer.begin_round(plan, memory)
    num_candidates = sizer.size(request, plan).num_candidates
    decide_us = _median_us(lambda _: sizer.size(request, plan), 2000)
    schedule_us, num_prefills = _lprs_round(config, predictor, memory)
    print("LPRS with the shipped predictor; host microseconds, medians")
    print(
        f"one prediction of {len(chunks)} candidates {predict_us:.0f}; "
        f"one decision among {num_candidates} {decide_us:.0f}"
    )
    print(
        f"schedule under LPRS_APC with 64 decodes and 1,000 waiting {schedule_us:.0f}, "
        f"with {num_prefills:.1f} prefills a round"
    )


def _lprs_round(config: LprsApcSchedulerConfig, predictor: Predictor, memory: MemoryStats) -> tuple[float, float]:
    """Median microseconds of schedule with 64 decodes and 1,000 waiting, and the prefills a round took."""
    times, num_prefills = [], []
    for _ in range(30):
        scheduler = LPRSAPCScheduler(config, BlockManager(100_000, BLOCK_SIZE), 4096, predictor)
        for i in range(64):
            scheduler.add(_request(i, 8, 2000), 0.0)
        while len(scheduler.decodes) < 64:
            output = scheduler.schedule(0.0)
            assert output is not None
            scheduler.update(output, StepResult([0] * output.num_seqs, 0.02, memory), 0.0)
        for i in range(1000):
            scheduler.add(_request(64 + i, 50 + i % 700, 100), 1.0)
        started = time.perf_counter()
        output = scheduler.schedule(2.0)
        times.append(time.perf_counter() - started)
        assert output is not None and len(output.decodes) == 64
        num_prefills.append(len(output.prefills))
    return 1e6 * statistics.median(times), statistics.mean(num_prefills)


def main() -> None:
    print("Scheduler under AGING, chunk 512, 256 decodes; host microseconds, medians")
    print(f"{'waiting':>9} {'prefill':>9} {'schedule':>9} {'update':>9} {'sum':>9} {'add':>7} {'abort':>7}")
    cases = [(num_waiting, spare_seats) for num_waiting in (1_000, 10_000, 100_000) for spare_seats in (0, 1)]
    rounds: dict[tuple[int, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(REPEATS):  # cases take turns, since the host's speed drifts
        for case in cases:
            gc.collect()
            rounds[case].append(round_cost(*case))
    for num_waiting, spare_seats in cases:
        schedule_us, update_us = (statistics.median(us) for us in zip(*rounds[num_waiting, spare_seats], strict=True))
        add_us, abort_us = queue_cost(num_waiting)
        print(
            f"{num_waiting:>9} {'yes' if spare_seats else 'no':>9} {schedule_us:>9.1f} {update_us:>9.1f} "
            f"{schedule_us + update_us:>9.1f} {add_us:>7.2f} {abort_us:>7.2f}"
        )
    for spare_seats, what in ((0, "seats full"), (1, "one prompt in prefill")):
        few, many = (statistics.median(map(sum, rounds[n, spare_seats])) for n in (1_000, 100_000))
        print(f"a round at 100,000 waiting costs {many / few:.2f}x that at 1,000 ({what}; limit 2)")
    print()
    predictor_cost()


if __name__ == "__main__":
    main()
