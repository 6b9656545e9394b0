"""The replicas of a simulated run: an engine each, in one virtual time, and a router that knows their loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from sarathi.config import (
    BenchmarkConfig,
    LeastOutstandingTokensRoutingConfig,
    PredictedWaitRoutingConfig,
    RandomRoutingConfig,
    RoundRobinRoutingConfig,
    SimulatedExecutorConfig,
    resolve_seeds,
)
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.engine.engine import StepRecorder
from sarathi.replica.load import ReplicaLoad
from sarathi.replica.routing import LeastOutstandingTokens, PredictedWait, RandomReplica, RoundRobin, Router
from sarathi.request import Request
from sarathi.system import System, build_system


def build_replicas(config: BenchmarkConfig, first: System) -> list[System]:
    """`num_replicas` systems, `first` among them, each with a jitter of its own."""
    systems = [first]
    for replica_id in range(1, config.num_replicas):
        executor = resolve_seeds(config, config.seed).executor_config
        assert isinstance(executor, SimulatedExecutorConfig)
        # Far apart, so that no replica has the noise of another one in a run of a neighbouring seed.
        seed = (executor.jitter_seed or 0) + 1_000_003 * replica_id
        executor = dataclasses.replace(executor, jitter_seed=seed % 2**32)
        systems.append(build_system(dataclasses.replace(config, executor_config=executor)))
    return systems


def build_router(config: BenchmarkConfig) -> Router:
    routing = resolve_seeds(config, config.seed).routing_config
    if isinstance(routing, RandomRoutingConfig):
        assert routing.seed is not None
        return RandomReplica(routing.seed)
    rules: dict[type, Callable[[], Router]] = {
        RoundRobinRoutingConfig: RoundRobin,
        LeastOutstandingTokensRoutingConfig: LeastOutstandingTokens,
        PredictedWaitRoutingConfig: PredictedWait,
    }
    return rules[type(routing)]()


def route_of(router: Router, loads: Sequence[ReplicaLoad]) -> Callable[[Request], int]:
    """Ask the router at a request's arrival, and tell the load of the replica that gets it."""

    def route(request: Request) -> int:
        replica = router.route(request, loads)
        num_tokens = request.num_prompt_tokens + request.sampling_params.max_tokens
        loads[replica].on_sent(request.request_id, num_tokens, request.arrival_time)
        return replica

    return route


class LoadRecorder:
    """Tells a replica's load what its engine tells the recorder, which hears everything too."""

    def __init__(self, load: ReplicaLoad, recorder: StepRecorder) -> None:
        self._load = load
        self._recorder = recorder

    def on_step(
        self, output: SchedulerOutput, result: StepResult, finished: list[Request], now: float, schedule_time: float
    ) -> None:
        for request, _ in output.prefills:
            if request.prefill_end_time == now:
                self._load.on_first_token(request.request_id, now)
        for request in finished:
            self._load.on_end(request.request_id)
        self._recorder.on_step(output, result, finished, now, schedule_time)

    def on_ignored(self, request: Request) -> None:
        self._load.on_end(request.request_id)
        self._recorder.on_ignored(request)

    def on_aborted(self, request: Request) -> None:
        self._load.on_end(request.request_id)
        self._recorder.on_aborted(request)
