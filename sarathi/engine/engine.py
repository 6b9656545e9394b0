"""The one loop: fill the pipeline, wait for the oldest round, commit it, record it.

The engine joins a scheduler, an executor, a clock and a recorder, and knows nothing of how any of them works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from sarathi.clock import Clock, host_time
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.core.scheduler import BaseScheduler
from sarathi.executor.base import Executor
from sarathi.request import Request, RequestStatus


class StepRecorder(Protocol):
    """What the engine tells of its rounds. One call a round."""

    def on_step(
        self, output: SchedulerOutput, result: StepResult, finished: list[Request], now: float, schedule_time: float
    ) -> None: ...

    def on_ignored(self, request: Request) -> None: ...

    def on_aborted(self, request: Request) -> None: ...


class StopRule(Protocol):
    """What ends requests besides token ids and lengths: stop strings."""

    def stopped(self, output: SchedulerOutput) -> list[Request]:
        """The round's requests that end with the token it has just given them."""
        ...


class Engine:
    """Runs requests round by round. Single-threaded: callers take turns."""

    def __init__(
        self,
        scheduler: BaseScheduler,
        executor: Executor,
        clock: Clock,
        recorder: StepRecorder,
        stop_rule: StopRule | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.recorder = recorder
        self.stop_rule = stop_rule
        self._schedule_time = 0.0  # host seconds spent scheduling since the last recorded round

    def add(self, request: Request) -> bool:
        """Queue a request; False if it was refused because it can never run (see request.ignored_reason)."""
        if self.scheduler.add(request, self.clock.now()):
            return True
        self.recorder.on_ignored(request)
        return False

    def abort(self, request_id: str) -> bool:
        """End a request now; False if there is no such unfinished request."""
        request = self.scheduler.finish(request_id, RequestStatus.FINISHED_ABORTED, self.clock.now())
        if request is None:
            return False
        if not request.num_inflight_steps:  # otherwise the round in flight reports it
            self.recorder.on_aborted(request)
        return True

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests()

    def step(self, until: float | None = None) -> SchedulerOutput | None:
        """Run one round to its end and return it.

        None if nothing can run now, or if `until` (the next arrival, seconds of the engine's clock) comes before the
        oldest round ends and the executor can return so early.
        """
        inflight = self.scheduler.inflight
        max_inflight_steps = self.executor.max_inflight_steps
        while len(inflight) < max_inflight_steps:
            started = host_time()
            output = self.scheduler.schedule(self.clock.now())
            self._schedule_time += host_time() - started
            if output is None:
                break
            try:
                self.executor.submit(output)
            except BaseException:
                self._drop_rounds()
                raise
        if not inflight:
            return None
        try:
            result = self.executor.wait(until)
        except BaseException:
            self._drop_rounds()
            raise
        if result is None:
            return None
        output = inflight[0]
        now = self.clock.now()
        started = host_time()
        finished = self.scheduler.update(output, result, now)
        schedule_time, self._schedule_time = self._schedule_time + host_time() - started, 0.0
        if self.stop_rule is not None:
            for request in self.stop_rule.stopped(output):
                self.scheduler.finish(request.request_id, RequestStatus.FINISHED_STOPPED, now)
                if not request.num_inflight_steps:  # otherwise the round in flight reports it
                    finished.append(request)
        self.recorder.on_step(output, result, finished, now, schedule_time)
        if not self.scheduler.requests:
            self.scheduler.check_idle()
        return output

    def check_progress(self) -> None:
        """Where `step` returned None and nobody is to come: raise RuntimeError if requests wait in vain."""
        if self.scheduler.requests:
            raise RuntimeError(
                f"{type(self.scheduler).__name__} makes no round though {self.scheduler.num_waiting} requests "
                "wait and nothing runs: its gate or chunk sizer refuses the first of them"
            )

    def _drop_rounds(self) -> None:
        """Whatever ends a round early, Ctrl-C too, ends all in flight; their requests can run again."""
        self.executor.shutdown()
        self.scheduler.drop_rounds(self.clock.now())


def replay(
    engines: Engine | Sequence[Engine],
    requests: Iterable[Request],
    *,
    route: Callable[[Request], int] = lambda request: 0,
    time_limit: float | None = None,
    on_round: Callable[[SchedulerOutput], Any] = lambda output: None,
) -> None:
    """Feed requests at their arrival times and run until all have ended.

    Args:
        engines: one, or several replicas in virtual time, each on a clock of its own.
        requests: by ascending arrival_time (seconds of the engines' clocks).
        route: the index of the engine that gets a request; asked at its arrival, when every engine has done what it
            had done by then.
        time_limit: each engine stops at its first round that ends after so many seconds; what is unfinished stays so.
        on_round: called after each round, for progress bars and tests.
    """
    engines = [engines] if isinstance(engines, Engine) else engines
    for request in requests:
        if time_limit is not None and request.arrival_time >= time_limit:
            break
        for engine in engines:
            if engine.has_unfinished_requests():
                _advance(engine, request.arrival_time, time_limit, on_round)
        engine = engines[route(request)]
        engine.clock.sleep_until(request.arrival_time)
        engine.add(request)
    for engine in engines:
        _advance(engine, None, time_limit, on_round)


def _advance(
    engine: Engine, arrival: float | None, time_limit: float | None, on_round: Callable[[SchedulerOutput], Any]
) -> None:
    """Run rounds until a request arrives; where none does, to the end of all. None begins at `time_limit` or later."""
    clock = engine.clock
    while (now := clock.now()) < (math.inf if time_limit is None else time_limit):
        if arrival is not None and arrival <= now:
            return
        output = engine.step(arrival)
        if output is not None:
            on_round(output)
        elif arrival is not None:
            clock.sleep_until(arrival)
        else:
            engine.check_progress()
            engine.scheduler.blocks.check_all_free()
            return
