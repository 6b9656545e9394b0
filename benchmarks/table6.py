"""`make table6`: 200 ShareGPT requests under Aging on an Ascend 910B (Table 6), in many readings of an untold setup.

The paper: vLLM-Ascend on one Ascend 910B, an OpenPangu-family model, eight figures and no FCFS row. It does not say
which model, how long outputs, how fast arrivals or how many seats: readings are ranked by distance to its figures.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.cases import Case
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.plots import lines
from benchmarks.harness.report import Cell, Report
from benchmarks.harness.statistics import change
from benchmarks.paper import paper
from benchmarks.table4_readings import ALPHA
from benchmarks.table6_readings import (
    CARDS,
    INTERVAL,
    NEAR,
    NUM_REQUESTS,
    QUANTILES,
    WITHIN,
    Ranking,
    distance,
    eight,
    paper_eight,
)
from sarathi.benchmark.entry_point import exit_status
from sarathi.simulation.devices import DEVICES

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
    report.add_text(f"""{sentence} The verdicts are of this reading, which was chosen for its nearness: they say which
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
    sys.exit(exit_status(main))
