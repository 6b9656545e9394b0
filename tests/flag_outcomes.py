"""What flags of the benchmark lead to, and checks of what one of them changes; every run is tiny and simulated."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sarathi.benchmark import main as benchmark_main
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.benchmark.workloads.spec import Workload
from sarathi.config import parse_args, without_effect
from sarathi.metrics.run_record import RunRecord
from sarathi.system import System

NUM_REQUESTS = 12
BASE = (
    f"--synthetic_request_generator_config_num_requests {NUM_REQUESTS} "
    "--fixed_request_length_generator_config_prefill_tokens 300 "
    "--fixed_request_length_generator_config_decode_tokens 8 --poisson_request_interval_generator_config_qps 100 "
    "--gamma_request_interval_generator_config_qps 100 --no-metrics_config_plots --no-metrics_config_report"
)
FILES = {
    "lengths.csv": "num_prefill_tokens,num_decode_tokens\n100,10\n200,20\n50,5\n",
    "other_lengths.csv": "num_prefill_tokens,num_decode_tokens\n77,7\n",
    "requests.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,10\n1.5,200,20\n",
    "other_requests.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0,77,7\n",
    "dated.csv": "Date,Time,PromptTokenCount,CompletionTokenCount\n2023-08-20,43200,10,1\n2023-08-21,43200,20,2\n",
    "arrivals.csv": "arrival_time\n1970-01-04 12:10:00\n1970-01-04 13:00:00\n1970-01-04 14:50:00\n",
    "other_arrivals.csv": "arrival_time\n1970-01-04 12:30:00\n1970-01-04 12:40:00\n",
}


class Outcome:
    """What flags lead to, made as far as somebody looks."""

    def __init__(self, flags: str) -> None:
        self.config = parse_args(flags.split())

    @cached_property
    def told(self) -> str:
        return "; ".join(without_effect(self.config))

    @cached_property
    def system(self) -> System:
        return build_system(self.config)

    @cached_property
    def workload(self) -> Workload:
        return build_workload(self.config)

    @property
    def lengths(self) -> list[tuple[int, int]]:
        return [(spec.num_prompt_tokens, spec.num_output_tokens) for spec in self.workload.requests]

    @property
    def totals(self) -> list[int]:
        return [sum(pair) for pair in self.lengths]

    @property
    def arrivals(self) -> list[float]:
        return [spec.arrival_time for spec in self.workload.requests]

    @cached_property
    def run(self) -> RunRecord:
        return run_benchmark(self.config, self.workload, system=self.system)

    @property
    def files(self) -> set[str]:
        directory = self.run.directory
        return set() if directory is None else {path.name for path in directory.iterdir()}

    @property
    def chunks(self) -> list[int]:
        """Prompt tokens of each round that has any."""
        return [int(tokens) for tokens in self.run.data.rounds["batch_num_prefill_tokens"] if tokens]

    def most(self, column: str) -> float:
        return float(self.run.data.rounds[column].max())


Check = Callable[[Outcome, Outcome], Any]  # of what is without and with the flag


def told(reason: str) -> Check:
    return lambda before, after: reason in after.told and reason not in before.told


def told_of_seed(reason: str) -> Check:
    """It draws nothing, so the requests are the same."""
    return lambda before, after: reason in after.told and before.workload.requests == after.workload.requests


def at_most(column: str, limit: int) -> Check:
    return lambda before, after: before.most(column) > limit >= after.most(column)


def adds_file(name: str) -> Check:
    return lambda before, after: after.files - before.files == {name} and before.files < after.files


def changes(name: str) -> Check:
    return lambda before, after: getattr(before, name) != getattr(after, name)


def lengths_are(prompt_tokens: int, output_tokens: int) -> Check:
    return lambda before, after: set(after.lengths) == {(prompt_tokens, output_tokens)} != set(before.lengths)


def scales_lengths(prompts: float, outputs: float) -> Check:
    return lambda before, after: after.lengths == [(p * prompts, o * outputs) for p, o in before.lengths]


def scales_arrivals(factor: float) -> Check:
    return lambda before, after: after.arrivals == pytest.approx([factor * time for time in before.arrivals])


def shorter_than(limit: int) -> Check:
    """No request is longer, prompt and output; some were."""
    return lambda before, after: max(before.totals) > limit >= max(after.totals) > 0.9 * limit


def of_wandb(name: str) -> Check:
    """What wandb does with it is not looked at here."""
    return lambda before, after: getattr(after.config.metrics_config, name) == "p1" and not after.told


def ratio_is_three(before: Outcome, after: Outcome) -> bool:
    ratios = [sum(p for p, _ in it.lengths) / sum(n for _, n in it.lengths) for it in (before, after)]
    return ratios == [pytest.approx(20, rel=0.1), pytest.approx(3, rel=0.1)]


def faster(before: Outcome, after: Outcome) -> bool:
    return before.arrivals[-1] > 5 * after.arrivals[-1] > 0


def burstier(before: Outcome, after: Outcome) -> bool:
    gaps = [np.array([b - a for a, b in pairwise(it.arrivals)]) for it in (before, after)]
    before_cv, after_cv = (gap.std() / gap.mean() for gap in gaps)
    return after_cv > 3 * before_cv


def sets_log_level(before: Outcome, after: Outcome) -> bool:
    flags = f"--request_generator_config_type SYNTHETIC {BASE} --log_level error --no-metrics_config_write_metrics"
    assert benchmark_main.main(flags.split()) == 0
    return logging.getLogger().level == logging.ERROR


def shrinks_chunks(before: Outcome, after: Outcome) -> bool:
    """The budget falls from stage to stage of a long prompt."""
    return before.chunks[0] == 512 and after.chunks[0] > after.chunks[1] > after.chunks[-2] >= after.chunks[-1]


def moves_chunks(before: Outcome, after: Outcome) -> bool:
    return before.chunks != after.chunks and sum(before.chunks) == sum(after.chunks)
