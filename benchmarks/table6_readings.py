"""The readings of Table 6: what is run, the eight figures of a run, and how near each comes. Knows no report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case, fcfs_or_aging, sharegpt
from benchmarks.harness.options import Options
from benchmarks.harness.run import Figures, Runs, finished_requests, latencies, run_cases
from benchmarks.harness.statistics import mean_of
from benchmarks.paper import paper
from benchmarks.table4_readings import ALPHA
from sarathi.metrics.run_record import RunRecord

# Sizes of the two dense models of the family that fit one card, as in their published config.json.
CONFIGS = Path(__file__).parent / "configs"
MODELS = {f"openPangu-Embedded-{size}": CONFIGS / f"openpangu-embedded-{size.lower()}" for size in ("1B", "7B")}
CARDS = ("ascend_910b3", "ascend_910b4")
OUTPUTS: Mapping[str, dict[str, int]] = {
    "natural": {},
    **{f"natural to {n}": {"max_output_tokens": n} for n in (512, 256, 128)},
    **{f"all {n}": {"output_tokens": n} for n in (256, 128)},
}
CLOSED = "closed loop"
ARRIVALS = {"at once": 0.0, "0.01 s": 0.01, "0.02 s": 0.02, "0.03 s": 0.03, "0.05 s": 0.05, CLOSED: 0.0}
SEATS = (32, 64, 128, 256)
CHUNKS = (512, 2048)
NUM_REQUESTS = paper()["setup"]["ascend"]["requests"]
INTERVAL = paper()["setup"]["aging"]["arrival_gap_s"]
QUANTILES = {"p50": 50, "p80": 80, "p90": 90, "p95": 95, "p99": 99, "max": 100}
NUM_BEST = 10  # readings that are run with every seed and shown
NEAR = 0.2  # a reading within this distance counts as near
WITHIN = 0.1  # of a figure of the paper's: reproduced


def _case(labels: Mapping[str, Any], *, model: Path | None) -> Case:
    outputs, arrivals = str(labels["outputs"]), str(labels["arrivals"])
    policy, chunk, seats = str(labels["policy"]), int(labels["chunk"]), int(labels["seqs"])
    length = next(iter(OUTPUTS[outputs]), "max_output_tokens")
    reduced = {"num_requests": 40, length: 32, "max_prompt_tokens": 512}
    return Case(
        labels,
        sharegpt(outputs, NUM_REQUESTS, ARRIVALS[arrivals], reduced=reduced, **OUTPUTS[outputs]),
        fcfs_or_aging(policy, chunk, seats, ALPHA),
        device=str(labels["device"]),
        system=() if model is None else (f"--model_config_model={model}",),
    )


def cases(options: Options) -> list[Case]:
    """Every reading; a few of them for a quick look, and on a real device, which has its own speed and model."""
    models, cards, outputs, seats, chunks = tuple(MODELS), CARDS, tuple(OUTPUTS), SEATS, CHUNKS
    arrivals = tuple(ARRIVALS)
    if options.backend != "sim":
        models, cards, outputs, seats, chunks = ("the backend's",), CARDS[:1], ("natural",), (16,), CHUNKS[:1]
        arrivals = ("at once", "0.03 s", CLOSED)
    elif options.quick:
        cards, outputs, seats, chunks = CARDS[:1], ("natural", "all 128"), (16,), CHUNKS[1:]
    grid = itertools.product(models, cards, outputs, arrivals, seats, chunks)
    return [
        _case(
            {
                "model": model, "device": card, "outputs": output, "arrivals": arrival, "seqs": num_seats,
                "chunk": chunk, "policy": "FCFS" if arrival == CLOSED else "AGING",
            },
            model=MODELS.get(model),
        )
        for model, card, output, arrival, num_seats, chunk in grid
    ]  # fmt: skip


def measure(record: RunRecord) -> Figures:
    """Latencies, and when each request arrived and ended, by its number."""
    requests = finished_requests(record, "arrival_time", "request_e2e_time")
    arrivals = requests["arrival_time"]
    return {**latencies(record), "arrived": arrivals, "ended": arrivals + requests["request_e2e_time"]}


def sending_times(ended: np.ndarray, num_clients: int) -> np.ndarray:
    """When requests are sent of which each waits for one of `num_clients` clients to end its last, the first at 0."""
    return np.concatenate([np.zeros(min(num_clients, len(ended))), np.sort(ended)[: max(0, len(ended) - num_clients)]])


def eight(case: Case, figures: Figures) -> dict[str, float]:
    """The paper's eight figures of a run, in its order: total time, and E2E times."""
    arrived, ended = (figures[name] - figures["arrived"].min() for name in ("arrived", "ended"))
    if case.labels["arrivals"] == CLOSED:
        arrived = sending_times(ended, int(case.labels["seqs"]))
    e2e = ended - arrived
    quantiles = {name: float(np.percentile(e2e, percent)) for name, percent in QUANTILES.items()}
    return {"total": float(ended.max()), "mean": float(e2e.mean()), **quantiles}


def paper_eight() -> dict[str, float]:
    return {"total": paper()["table6"]["total_time_s"], **paper()["table6"]["e2e_s"]}


@dataclass(frozen=True)
class Distance:
    """Between two rows of figures: root mean square of log ratios, which is about the mean relative difference; and
    what is left of it once one row is made `speed` times as long."""

    level: float
    shape: float
    speed: float


def distance(theirs: Mapping[str, float], ours: Mapping[str, float]) -> Distance:
    ratios = np.log([theirs[name] / ours[name] for name in theirs])
    return Distance(float(np.sqrt(np.mean(ratios**2))), float(np.std(ratios)), float(np.exp(ratios.mean())))


class Ranking:
    """Readings by their distance to the paper's figures: the level where rounds are the paper's device's, else the
    shape; the nearest with every seed, and beside FCFS."""

    def __init__(self, options: Options) -> None:
        self.is_simulated = options.backend == "sim"
        self.all = run_cases("table6", cases(options), options.for_search(), measure)
        self.figures = {case.key: eight(case, self.all.of(case)[0]) for case in self.all.cases}
        self.near = {case.key: self.key(self.figures[case.key]) for case in self.all.cases}
        ranked = sorted(self.all.cases, key=lambda case: self.near[case.key])[:NUM_BEST]
        fcfs = [
            _case({**case.labels, "policy": "FCFS"}, model=MODELS.get(str(case.labels["model"])))
            for case in ranked
            if case.labels["policy"] != "FCFS"
        ]
        self.runs: Runs = run_cases("table6", [*ranked, *fcfs], options, measure)
        means = {case.key: self.mean(case) for case in ranked}
        self.best = sorted(ranked, key=lambda case: self.key(means[case.key]))

    def key(self, figures: Mapping[str, float]) -> float:
        difference = distance(paper_eight(), figures)
        return difference.level if self.is_simulated else difference.shape

    def mean(self, case: Case) -> dict[str, float]:
        """The eight figures over seeds."""
        by_seed = [eight(case, figures) for figures in self.runs.of(case)]
        return {name: mean_of([figures[name] for figures in by_seed]).value for name in by_seed[0]}

    def compared(self, case: Case) -> dict[str, float]:
        """The same as they are compared: a real device's at the paper's speed."""
        ours = self.mean(case)
        speed = 1.0 if self.is_simulated else distance(paper_eight(), ours).speed
        return {name: value * speed for name, value in ours.items()}
