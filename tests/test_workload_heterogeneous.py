"""The paper's heterogeneous workload."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.workloads.heterogeneous import heterogeneous_workload
from sarathi.config import HeterogeneousRequestGeneratorConfig, parse_args


def workload(num_requests=1000, **changes):
    settings = {"shorts_per_long": 49, "interval": 0.025, "burst_interval": 0.001, "burst_from": 0.1, "burst_to": 0.3}
    return heterogeneous_workload(num_requests, **(settings | {"seed": 3} | changes))


def test_lengths_are_the_papers():
    requests = workload().requests
    short = [r for r in requests if r.num_prompt_tokens <= 50]
    long = [r for r in requests if r.num_prompt_tokens >= 200]
    assert (len(short), len(long)) == (980, 20)
    assert {min(r.num_prompt_tokens for r in short), max(r.num_prompt_tokens for r in short)} == {30, 50}
    assert {min(r.num_output_tokens for r in short), max(r.num_output_tokens for r in short)} == {200, 220}
    assert all(200 <= r.num_prompt_tokens <= 220 and 4 <= r.num_output_tokens <= 50 for r in long)
    assert {r.tenant for r in short} == {"short"} and {r.tenant for r in long} == {"long"}


def test_the_burst_is_a_fifth_of_the_requests():
    gaps = [round(b.arrival_time - a.arrival_time, 9) for a, b in pairwise(workload().requests)]
    assert gaps.count(0.001) == 200 and gaps.count(0.025) == 799
    assert gaps[98] == 0.025 and gaps[99] == 0.001 and gaps[298] == 0.001 and gaps[299] == 0.025


def test_the_seed_decides_all():
    assert workload().requests == workload().requests != workload(seed=4).requests


def test_a_burst_that_ends_before_it_begins_is_refused():
    with pytest.raises(ValueError, match=r"burst_from: 0\.5 is not allowed; at most burst_to, which is 0\.3"):
        HeterogeneousRequestGeneratorConfig(burst_from=0.5)


def test_it_is_chosen_on_the_command_line():
    config = parse_args(
        [
            "--request_generator_config_type=HETEROGENEOUS",
            "--heterogeneous_request_generator_config_num_requests=1000",
            "--seed=3",
        ]
    )
    assert build_workload(config).requests == workload().requests
