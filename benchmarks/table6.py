"""`make table6`: 200 ShareGPT requests under Aging on an Ascend 910B (Table 6), in many readings of an untold setup.

The paper: vLLM-Ascend on one Ascend 910B, an OpenPangu-family model, eight figures and no FCFS row. It does not say
which model, how long outputs, how fast arrivals or how many seats: readings are ranked by distance to its figures.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case, fcfs_or_aging, sharegpt
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.plots import lines
from benchmarks.harness.report import Cell, Report
from benchmarks.harness.run import Figures, Runs, finished_requests, latencies, run_cases
from benchmarks.harness.statistics import change, mean_of
from benchmarks.paper import paper
from benchmarks.table4 import ALPHA
from sarathi.metrics.run_record import RunRecord
from sarathi.simulation.devices import DEVICES

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

ASSUMPTIONS = (
    f"Devices: {' and '.join(CARDS)}: {'; '.join(dict.fromkeys(DEVICES[card].calibration for card in CARDS))}. So no "
    "measurement of an Ascend stands behind any round time here; engine profile lean.",
    "Models: openPangu-Embedded-1B and 7B, by the sizes they were published with; their tokenizer is not at hand, so "
    "prompts and answers are counted with Qwen's.",
    "Requests: the first human turn of the first 200 conversations, none left out. Outputs: 'natural' as long as the "
    "dataset's answer, 'natural to n' at most n, 'all n' exactly n, as with ignore_eos.",
    "Arrivals: at once, or one every so many seconds; 'closed loop': as many clients as seats, each of which sends its "
    "next request when the last has ended, so that none waits and order cannot matter (run under FCFS; 256 clients "
    "send all at once).",
    f"Aging: alpha {ALPHA:g}, beta -1. max_num_seqs 32 to 256; 512 or 2,048 tokens a round (vLLM's default).",
    "All readings run with the first seed, the nearest with all seeds, which draw 1 % of jitter on round times; "
    "intervals are 95 %, Student's t.",
)

REAL = (
    "A real device has its own model and speed, so that only the shape is compared: its figures are multiplied by "
    "one factor, 'speed', which brings them nearest to the paper's. The device named is the one whose load it is given."
)


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
        self.all = run_cases("table6", cases(options), dataclasses.replace(options, seeds=options.seeds[:1]), measure)
        self.figures = {case.key: eight(case, self.all.of(case)[0]) for case in self.all.cases}
        self.near = {case.key: self.key(self.figures[case.key]) for case in self.all.cases}
        ranked = sorted(self.all.cases, key=lambda case: self.near[case.key])[:NUM_BEST]
        fcfs = [
            _case({**case.labels, "policy": "FCFS"}, model=MODELS.get(str(case.labels["model"])))
            for case in ranked
            if case.labels["policy"] != "FCFS"
        ]
        self.runs: Runs = run_cases("table6-best", [*ranked, *fcfs], options, measure)
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


def add_bounds(report: Report) -> None:
    """What the paper's figures say by themselves, whatever ran."""
    theirs, rate = paper_eight(), paper()["table6"]["throughput_rps"]
    last, total = INTERVAL * (NUM_REQUESTS - 1), theirs["total"]
    ended = rate * total
    report.add_table(
        "What the paper's figures say by themselves",
        ["question", "figures", "answer"],
        [
            ["Were requests sent 0.1 s apart, as elsewhere?", f"the last would arrive at {last:.1f} s, the run takes "
             f"{total:.2f} s", "possible" if last < total else f"no; at most {total / (NUM_REQUESTS - 1):.3f} s apart"],
            ["Were long prompts left out, as elsewhere?", f"{rate:.2f} a second for {total:.2f} s are {ended:.1f}",
             "no" if round(ended) >= NUM_REQUESTS else f"{NUM_REQUESTS - round(ended)} were"],
            ["Were all sent at once?", f"the longest E2E time is {total - theirs['max']:.2f} s less than the total",
             "then that much of the total is no request's" if theirs["max"] < total else "possible"],
            ["How many were in the system?", f"{NUM_REQUESTS} x {theirs['mean']:.3f} s / {total:.2f} s (Little)",
             f"{NUM_REQUESTS * theirs['mean'] / total:.1f} on average"],
        ],
    )  # fmt: skip


def add_best(report: Report, ranking: Ranking) -> None:
    """The nearest readings: figures, and what else is known of them."""
    names = list(paper_eight())
    first: list[list[Cell]] = [["paper", "–", "–", "–", "–", None, *paper_eight().values()]]
    second: list[list[Cell]] = []
    for i, case in enumerate(ranking.best, start=1):
        ours, labels = ranking.mean(case), case.labels
        shown, difference = ranking.compared(case), distance(paper_eight(), ours)
        seats = f"{labels['seqs']}/{labels['chunk']}"
        where = [str(labels[name]) for name in ("device", "outputs", "arrivals")]
        percent = 100 * (difference.level if ranking.is_simulated else difference.shape)
        first.append([f"{i}: {labels['model']}", *where, seats, percent, *(shown[name] for name in names)])
        itl = ranking.runs.mean(case, "itl_p99_ms").value
        rate = ranking.runs.mean(case, "num_finished").value / ours["total"]
        second.append([f"{i}", rate, itl, 100 * difference.shape, difference.speed, _gain(ranking, case)])
    report.add_table(
        f"The nearest {len(ranking.best)} of {len(ranking.all.cases)} readings",
        ["reading", "device", "outputs", "arrivals", "seqs/chunk", "distance %", *(f"{name} s" for name in names)],
        first,
        note="distance: root mean square of the log ratios of the eight figures.",
    )
    report.add_table(
        "The same readings",
        ["reading", "requests/s", "ITL P99 ms", "distance in shape %", "speed", "Aging's change of mean E2E %"],
        second,
        note=f"""The paper's throughput is {paper()["table6"]["throughput_rps"]} requests a second. speed: the factor on
        our figures that brings them nearest; distance in shape: what is then left. Aging against FCFS in the same
        reading, which the paper does not print.""",
    )


def _gain(ranking: Ranking, aging: Case) -> str | None:
    """Aging's change of mean E2E against FCFS; none where none waits."""
    if aging.labels["policy"] == "FCFS":
        return None
    fcfs = ranking.runs.find(**{**aging.labels, "policy": "FCFS"})
    means = [[eight(case, figures)["mean"] for figures in ranking.runs.of(case)] for case in (fcfs, aging)]
    return change(*means).text()


def add_labels(report: Report, ranking: Ranking) -> None:
    """How near one comes with each choice: what the paper's figures decide, and what they leave open."""
    table: list[list[Cell]] = []
    for label in ("model", "device", "outputs", "arrivals", "seqs", "chunk"):
        for value in dict.fromkeys(case.labels[label] for case in ranking.all.cases):
            distances = [ranking.near[case.key] for case in ranking.all.cases if case.labels[label] == value]
            near = sum(d <= NEAR for d in distances)
            table.append([label, str(value), 100 * min(distances), f"{near} of {len(distances)}"])
    total = sum(d <= NEAR for d in ranking.near.values())
    report.add_table(
        "How near one comes with each choice",
        ["choice", "value", "nearest, distance %", f"within {100 * NEAR:.0f} %"],
        table,
        note=f"""{total} of {len(ranking.near)} readings come within {100 * NEAR:.0f} %. Eight figures of one run cannot
        tell so many readings apart, so the nearest is an example of what fits, not the setup found.""",
    )


def add_claims(report: Report, ranking: Ranking) -> None:
    """Each of the paper's figures in the nearest reading."""
    case = ranking.best[0]
    ours = ranking.compared(case)
    labels = ", ".join(f"{value}" for name, value in case.labels.items() if name != "policy")
    differences = {name: ours[name] / theirs - 1 for name, theirs in paper_eight().items()}
    for name, theirs in paper_eight().items():
        report.add_check(
            "total time" if name == "total" else f"E2E time, {name}",
            f"{theirs:.2f} s",
            f"{ours[name]:.2f} s ({100 * differences[name]:+.1f} %)",
            abs(differences[name]) <= WITHIN,
            "the nearest",
        )
    got = [name for name, difference in differences.items() if abs(difference) <= WITHIN]
    missed = [f"{name} ({100 * d:+.0f} %)" for name, d in differences.items() if abs(d) > WITHIN]
    sentence = f"""Nearest reading of Table 6 ({labels}): within {100 * WITHIN:.0f} % in {", ".join(got) or "none"}; not
        in {", ".join(missed) or "none"}."""
    report.add_text(f"""{sentence} Verdicts below are of this reading, which was chosen for its nearness: they say which
                    of the figures can be had together, not that the setup is found.""")
    near = sum(d <= NEAR for d in ranking.near.values())
    report.add_headline(f"{sentence} {near} of {len(ranking.near)} readings come within {100 * NEAR:.0f} % in all.")


def add_figure(report: Report, ranking: Ranking) -> None:
    def points(figures: Mapping[str, float]) -> list[tuple[float, ...]]:
        return [(figures[name], percent) for name, percent in QUANTILES.items()]

    series = {"paper": points(paper_eight())}
    for i, case in enumerate(ranking.best[:3], start=1):
        series[f"reading {i}"] = points(ranking.compared(case))
    caption = "Quantiles of E2E time from P50 to the maximum: the paper's and those of the three nearest readings"
    axes = ("E2E time, s", "requests, %")
    report.add_figure(lines(report.path("-e2e.png"), "Table 6: E2E times", axes, {"": series}, caption), caption)


def _rows(ranking: Ranking) -> list[dict[str, Any]]:
    """Every reading with its eight figures and distances, first seed, nearest first."""
    rows = []
    for case in sorted(ranking.all.cases, key=lambda case: ranking.near[case.key]):
        ours = ranking.figures[case.key]
        difference = dataclasses.asdict(distance(paper_eight(), ours))
        figures = {f"{name}_s": value for name, value in ours.items()}
        rows.append({**case.labels, **difference, **figures, "itl_p99_ms": ranking.all.of(case)[0]["itl_p99_ms"]})
    return rows


def run(options: Options) -> None:
    """Run all readings, then the nearest with every seed, and write the report."""
    ranking = Ranking(options)
    report = Report("table6", "Table 6: 200 ShareGPT requests on an Ascend 910B", options)
    assumptions = ASSUMPTIONS if ranking.is_simulated else (REAL, *ASSUMPTIONS[2:5])
    report.add_list("Assumptions", [*assumptions, *ranking.all.notes])
    add_bounds(report)
    add_best(report, ranking)
    add_labels(report, ranking)
    add_figure(report, ranking)
    add_claims(report, ranking)
    report.write_csv("-readings.csv", _rows(ranking))
    report.write_csv("-runs.csv", ranking.runs.rows())
    report.finish()


def main(argv: Sequence[str] | None = None) -> None:
    run(parse_options(__doc__, argv))


if __name__ == "__main__":
    main()
