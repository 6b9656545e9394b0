"""The paper's mixture for APC: many short prompts with long outputs, a few long prompts with short outputs."""

from __future__ import annotations

import random

from sarathi.benchmark.workloads.spec import RequestSpec, Workload

SHORT_PROMPT, SHORT_OUTPUT = (30, 50), (200, 220)
LONG_PROMPT, LONG_OUTPUT = (200, 220), (4, 50)
SHORT_TENANT, LONG_TENANT = "short", "long"


def heterogeneous_workload(
    num_requests: int,
    *,
    shorts_per_long: int,
    interval: float,
    burst_interval: float,
    burst_from: float,
    burst_to: float,
    seed: int,
) -> Workload:
    """Lengths drawn uniformly from the ranges above (tokens, both ends included); one request in
    `shorts_per_long` + 1 is long, at places drawn by `seed`.

    Requests follow each other by `interval` seconds, those from the share `burst_from` to the share `burst_to` of all
    by `burst_interval`. A request's tenant is "short" or "long".
    """
    assert 0 <= burst_from <= burst_to <= 1, (burst_from, burst_to)
    rng = random.Random(seed)
    num_long = round(num_requests / (shorts_per_long + 1))
    long_ones = set(rng.sample(range(num_requests), num_long))
    burst = range(round(burst_from * num_requests), round(burst_to * num_requests))
    requests = []
    arrival = 0.0
    for i in range(num_requests):
        is_long = i in long_ones
        prompt, output = (LONG_PROMPT, LONG_OUTPUT) if is_long else (SHORT_PROMPT, SHORT_OUTPUT)
        if i:
            arrival += burst_interval if i in burst else interval
        num_prompt, num_output = rng.randint(*prompt), rng.randint(*output)
        requests.append(
            RequestSpec(str(i), arrival, num_prompt, num_output, tenant=LONG_TENANT if is_long else SHORT_TENANT)
        )
    notes = [
        f"{num_requests - num_long:,} prompts of {SHORT_PROMPT[0]} to {SHORT_PROMPT[1]} tokens and {num_long:,} of "
        f"{LONG_PROMPT[0]} to {LONG_PROMPT[1]} (seed {seed})",
        f"{interval:g} s apart, requests {burst.start:,} to {burst.stop - 1:,} {burst_interval:g} s",
    ]
    return Workload("heterogeneous", requests, notes)
