"""Where cases run: flags of the simulated device, of this machine's CPU, or of a CUDA device.

On the CPU a workload is reduced, and its load made as heavy as on the simulated device: overload is the time that the
requests take if all are sent at once, over the time in which they arrive. Both are measured, and the intervals between
arrivals stretched until they are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness.cases import Case
from benchmarks.harness.options import Options

JITTER = 0.01  # relative standard deviation of simulated round times, seeded
CPU = (
    "--executor_config_type=LOCAL",
    "--local_executor_config_device=cpu",
    "--local_executor_config_num_threads=2",
    "--model_config_model=smollm2",
    "--sharegpt_request_generator_config_tokenizer=model",
    "--cache_config_num_gpu_blocks=4000",
)
CUDA = (
    "--executor_config_type=LOCAL",
    "--local_executor_config_device=cuda",
    f"--model_config_model={Path(__file__).parents[1] / 'configs' / 'qwen3-8b'}",
    "--model_config_load_format=dummy",
    "--sharegpt_request_generator_config_tokenizer=qwen",
)


def flags_of(case: Case, options: Options, stretch: Mapping[str, float]) -> list[str]:
    """All flags of `case` but its seed; `stretch`: factors on the intervals, by name of workload."""
    if options.backend == "sim":
        return [*_simulated(case), *_requests(case, 1.0, reduced=options.quick), *_settings(case)]
    if options.backend == "cuda":
        return [*CUDA, *_requests(case, 1.0, reduced=options.quick), *_settings(case)]
    return [*_requests(case, stretch.get(case.workload.name, 1.0), reduced=True), *_settings(case), *CPU]


def stretches(
    cases: Sequence[Case], serve: Callable[[list[str]], tuple[int, float]]
) -> tuple[dict[str, float], list[str]]:
    """For each workload the factor on its intervals that makes this CPU as overloaded as the simulated device, by the
    first of its cases; and what was measured, a line each.

    `serve`: runs flags, and gives the number of requests that finished and the seconds that it took.
    """
    factors: dict[str, float] = {}
    notes = []
    for case in cases:
        name = case.workload.name
        if name in factors or not case.workload.intervals:
            continue
        here, seconds_here = serve([*_requests(case, 0.0, reduced=True), *_settings(case), *CPU])
        there, seconds_there = serve([*_simulated(case), *_requests(case, 0.0, reduced=False), *_settings(case)])
        factors[name] = (seconds_here / here) / (seconds_there / there)
        notes.append(
            f"{name}: sent at once, {here} requests take {seconds_here:.1f} s here, and {there} take "
            f"{seconds_there:.1f} s on the simulated {case.device}; so times between arrivals are "
            f"{factors[name]:.3g} times those of the paper, and the overload is the same."
        )
    return factors, notes


def _simulated(case: Case) -> list[str]:
    return [
        "--executor_config_type=SIMULATED",
        f"--simulated_executor_config_device={case.device}",
        f"--simulated_executor_config_engine_profile={case.profile}",
        f"--simulated_executor_config_jitter={JITTER}",
    ]


def _requests(case: Case, stretch: float, *, reduced: bool) -> list[str]:
    workload = case.workload
    intervals = [f"{flag}={seconds * stretch:.6g}" for flag, seconds in workload.intervals.items()]
    return [*workload.flags, *(workload.reduced if reduced else ()), *intervals]


def _settings(case: Case) -> list[str]:
    return [*case.system, *case.scheduler]
