"""`make table5`: Aging against FCFS on two GPUs (Table 5), as tensor and as pipeline parallel, beside one GPU alone.

The paper: two RTX 5090 and Table 4's 200 ShareGPT requests at three pairs of chunk size and seats. It says neither how
the two GPUs share the model nor what a round takes; the latter follows from its own rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from benchmarks.harness.cases import Case, fcfs_or_aging
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.plots import bars, lines
from benchmarks.harness.report import Cell, Report
from benchmarks.harness.run import Figures, finished_requests, latencies, run_cases
from benchmarks.harness.statistics import LEAST, NOT_REPRODUCED, PARTLY, REPRODUCED, Offset, Verdict, percent, verdict
from benchmarks.table4_readings import CONTEXT_512, EXACT, LEVEL_TOLERANCE
from benchmarks.table5_fits import (
    ALPHAS,
    ONE_GPU,
    ONE_WORKER,
    SETTINGS,
    Reading,
    Results,
    paper_change,
    paper_round,
    paper_rounds,
    paper_row,
    round_ms,
)
from sarathi.benchmark.entry_point import exit_status
from sarathi.metrics.run_record import RunRecord

SYSTEMS = {
    "TP 2": ("--parallel_config_tensor_parallel_size=2",),
    "PP 2": ("--parallel_config_pipeline_parallel_size=2",),
    ONE_GPU: (),
}
PROFILES = ("lean", "sarathi_2024")
OUTPUTS = {"exact": (), "to 512 in all": CONTEXT_512}
ALONE = Reading(ONE_WORKER, "lean", "exact")

ASSUMPTIONS = (
    "Workload: that of Table 4, as the paper says: 172 of the first 200 first turns, one every 0.1 s. 'exact': each "
    "generates 512 tokens; 'to 512 in all': prompt and output together end at 512.",
    "Readings: the model split as TP 2, as PP 2 (two rounds in flight, which share the seats), and one GPU alone as a "
    "yardstick; engine profile lean or sarathi_2024, which is the time that the CPU takes a round.",
    "Aging: alpha 150 or 30, beta -1 (Figure 6's weight bases 500 and 100); levels are those of alpha 150.",
    "The RTX 5090's efficiencies are assumed, from the RTX PRO 6000 (same chip) and the RTX 4090, not measured; the "
    "cards talk over PCIe Gen5. The time a sequence in sarathi_2024 was itself fitted to this table's decode rounds "
    "with one GPU's, so that its nearness is no independent evidence for that reading.",
    "Seeds draw 1 % of jitter on round times. Intervals are 95 %, Student's t over seeds; changes are paired by seed.",
)
NO_PARALLEL_WORKERS = (
    "One worker: the executor of a real model has no tensor or pipeline parallel workers yet, so that what Aging "
    "changes is shown in the single-worker form, with alpha 150, and the paper's level on two GPUs is not judged."
)


def readings(options: Options) -> list[Reading]:
    """All; a few for a quick look; on a real device, which has one speed, the single-worker form."""
    if options.backend != "sim":
        return [ALONE]
    if options.quick:
        return [
            Reading(ONE_GPU, "lean", "exact"),
            Reading("TP 2", "lean", "exact"),
            Reading("PP 2", "sarathi_2024", "to 512 in all"),
        ]
    return [Reading(system, profile, outputs) for outputs in OUTPUTS for system in SYSTEMS for profile in PROFILES]


def alphas(options: Options) -> Sequence[float]:
    """Both, or on a real device, which takes its time, Table 4's."""
    return ALPHAS if options.backend == "sim" else ALPHAS[:1]


def _cases(options: Options) -> list[Case]:
    policies = [("FCFS", 0.0), *(("AGING", alpha) for alpha in alphas(options))]
    return [
        Case(
            {**reading.labels, "chunk": chunk, "seqs": seats, "policy": policy, "alpha": alpha},
            EXACT,
            fcfs_or_aging(policy, chunk, seats, alpha),
            device="rtx_5090",
            profile=reading.profile,
            system=(*SYSTEMS.get(reading.system, ()), *OUTPUTS[reading.outputs]),
        )
        for reading in readings(options)
        for chunk, seats in SETTINGS
        for policy, alpha in policies
    ]


def measure(record: RunRecord) -> Figures:
    """Latencies, the mean decode round that follows from them as it does for the paper's rows, and each request's
    arrival, E2E time and TTFT."""
    figures = latencies(record)
    num_tokens = record.summary["request_num_decode_tokens"]["mean"]
    columns = {"arrivals": "arrival_time", "e2e": "request_e2e_time", "ttft": "prefill_e2e_time"}
    requests = finished_requests(record, *columns.values())
    return {
        **figures,
        "decode_round_ms": round_ms(figures["mean_e2e_s"], figures["mean_ttft_s"], num_tokens),
        **{name: requests[column] for name, column in columns.items()},
    }


def add_rounds(report: Report, results: Results) -> None:
    """What a decode round takes by the paper's own rows, and beside ours in each reading."""
    table: list[list[Cell]] = []
    for setting in SETTINGS:
        fcfs, aging = (paper_row(setting, policy) for policy in ("FCFS", "AGING"))
        rounds = [paper_round(fcfs), paper_round(aging)]
        ours = results.change(results.judged[0], setting, "decode_round_ms").value
        changes = [percent(*rounds), paper_change(setting), ours]
        table.append([*map(str, setting), *rounds, paper_round(fcfs, "p95"), *changes])
    report.add_table(
        "What the paper's own rows say of its rounds",
        ["chunk", "seqs", "FCFS, ms a round", "Aging, ms a round", "FCFS, P95 less P95, ms", "round, change %",
         "mean E2E, change %", "our round, change %"],
        table,
        note=f"""Mean E2E less mean TTFT, over the 511 rounds that follow the first of 512 tokens; 'P95 less P95' is the
        same of the P95s, which at 32 seqs are those of the last requests, with fewer beside them. Our round: as
        {results.judged[0].name}. What changes the round itself is the speed of the run, of its machine or of the
        policy's own work, and not the order of prefills.""",
    )  # fmt: skip
    table = []
    for name, points in [("paper", paper_rounds()), *((r.name, results.rounds(r)) for r in results.exact)]:
        (few, short), (many, long) = points
        slope = (long - short) / (many - few)
        table.append([name, short, long, short - slope * few, slope])
    report.add_table(
        "Mean decode round, FCFS, chunk 256",
        ["reading", *(f"{seats} seqs, ms" for _, seats in SETTINGS[:2]), "base ms", "ms a sequence"],
        table,
        note="Base and slope: the straight line through both.",
    )


def add_readings(report: Report, results: Results) -> None:
    """How near each reading comes."""
    table: list[list[Cell]] = []
    for reading in results.ranked:
        fits = results.fits[reading].values()
        table.append(
            [
                *(reading.system, reading.profile, reading.outputs, results.rest(reading)),
                _span(fit.offset.constant for fit in fits),
                _span(fit.slower for fit in fits),
                _span(fit.offset_at_speed.constant for fit in fits),
                max(fit.offset_at_speed.largest_rest for fit in fits),
            ]
        )
    report.add_table(
        "Readings, nearest first",
        ["system", "engine profile", "outputs", "RMS rest s", "constants s", "rounds, times ours", "constants then s",
         "largest rest then s"],
        table,
        note="""RMS rest: what differs over 6 rows of 4 figures after one constant a row, by least squares; readings
        stand in its order. Then our rounds are made as long as each row's own mean decode round: by which factor, and
        the constants and the largest rest that are left. Once its speed is taken from the paper, a reading with the
        right outputs is told from another only by how near to 1, and how alike, its factors are.""",
    )  # fmt: skip


def _span(values: Iterable[float]) -> str:
    low, *_, high = sorted(values)
    return f"{low:.2f} to {high:.2f}"


def add_level(report: Report, results: Results, *, fitted: bool) -> None:
    """The paper's rows beside ours in the nearest reading of each system."""
    systems = dict.fromkeys(reading.system for reading in results.ranked)
    table: list[list[Cell]] = []
    for reading in (next(r for r in results.ranked if r.system == system) for system in systems):
        for (chunk, seats, policy), fit in results.fits[reading].items():
            cells: list[Cell] = [reading.name, f"{chunk}", f"{seats}", policy]
            cells += [f"{ours:.2f} ({theirs:.2f})" for theirs, ours in zip(fit.theirs, fit.ours, strict=True)]
            cells.append(results.runs.mean(fit.case, "itl_p99_ms").value)
            if fitted:
                cells += [fit.offset.constant, fit.offset.largest_rest, fit.slower]
                cells += [fit.offset_at_speed.constant, fit.offset_at_speed.largest_rest]
            table.append(cells)
    columns = ["reading", "chunk", "seqs", "policy", "mean E2E s", "P95 E2E s", "mean TTFT s", "P95 TTFT s"]
    fits = ["constant s", "rest s", "rounds, times ours", "constant then s", "rest then s"] if fitted else []
    heading = "Level: ours (paper's), the nearest reading of each system"
    report.add_table(heading, [*columns, "ITL P99 ms", *fits], table)


def add_changes(report: Report, results: Results) -> None:
    """What Aging changes, in every reading."""
    figures = {"mean_e2e_s": "mean E2E", "p95_e2e_s": "P95 E2E", "mean_ttft_s": "mean TTFT"}
    cells = [(column, setting) for column in figures for setting in SETTINGS]
    theirs = [paper_change(setting, column) for column, setting in cells]
    table: list[list[Cell]] = [["paper", "–", *theirs, f"{len(SETTINGS)}"]]
    halves = []
    for reading in results.fits:
        for alpha in results.alphas:
            changes = [results.change(reading, setting, column, alpha) for column, setting in cells]
            halves += [change.half or 0.0 for change in changes]
            alike = results.verdicts(reading, alpha).count(REPRODUCED)
            table.append([reading.name, f"{alpha:g}", *(change.value for change in changes), f"{alike}"])
    spread = f"; intervals are at most ± {max(halves):.2f}" if any(halves) else ""
    report.add_table(
        "What Aging changes, percent",
        ["reading", "alpha", *(f"{figures[column]}, {c}/{seats}" for column, (c, seats) in cells), "as paper"],
        table,
        note=f"""Against FCFS by chunk/seqs, negative is better{spread}. 'as paper':
        in how many settings mean E2E changes as in the paper, less than {LEAST:g} % being none. P95 TTFT and ITL P99:
        the CSV file. Where prompt and output end at 512 together, the shortest prompts, which Aging takes first, have
        the longest outputs.""",
    )


def add_claims(report: Report, results: Results, *, level: bool) -> None:
    """The paper's statements, judged in the reading nearest to it; directions also in any."""
    nearest = results.judged[0]
    rests = [f"{r.name}: {results.rest(r):.2f} s" for r in results.ranked if r is nearest or r.system == ONE_GPU]
    report.add_text(
        f"""Judged as {nearest.name}; any reading: any of those on two GPUs, if one is. RMS rest, also of one
                    GPU alone: {"; ".join(rests)}."""
        if level
        else f"Judged as {nearest.name}."
    )
    for (chunk, seats, policy), fit in results.fits[nearest].items() if level else ():
        levels: tuple[tuple[Verdict, Offset], ...] = ((REPRODUCED, fit.offset), (PARTLY, fit.offset_at_speed))
        good: list[Verdict] = [word for word, offset in levels if offset.largest_rest <= LEVEL_TOLERANCE]
        report.add_claim(
            f"level at chunk {chunk}, {seats} seqs, {policy}, up to a constant",
            " / ".join(f"{value:.2f}" for value in fit.theirs) + " s",
            f"{fit.offset.constant:.2f} s less, rest {fit.offset.largest_rest:.2f} s; with rounds {fit.slower:.2f} "
            f"times as long {fit.offset_at_speed.constant:.2f} s, rest {fit.offset_at_speed.largest_rest:.2f} s",
            good[0] if good else NOT_REPRODUCED,
            nearest.name,
        )
    verdicts = [results.verdicts(reading, alpha) for reading in results.judged for alpha in results.alphas]
    for i, setting in enumerate(SETTINGS):
        theirs, ours = paper_change(setting), results.change(nearest, setting, "mean_e2e_s")
        word = "worse" if theirs >= LEAST else "better" if theirs <= -LEAST else "about equal"
        alike = sum(by_setting[i] == REPRODUCED for by_setting in verdicts)
        report.add_claim(
            f"Aging {word} at chunk {setting[0]}, {setting[1]} seqs: mean E2E",
            f"{theirs:+.2f} %",
            f"{ours.text(unit=' %')}; as the paper in {alike} of {len(verdicts)} readings and alphas",
            verdict(theirs, ours),
            nearest.name,
        )
    alike = sum(set(by_setting) == {REPRODUCED} for by_setting in verdicts)
    claim, ours = "the three directions together", f"in {alike} of {len(verdicts)}"
    report.add_check(claim, "yes", ours, alike > 0, "any, either alpha")
    for before, after in (SETTINGS[:2], SETTINGS[1:]):
        for policy in ("FCFS", "AGING"):
            theirs = percent(*(paper_row(setting, policy)["mean_e2e_s"] for setting in (before, after)))
            cases = [results.case(nearest, setting, policy) for setting in (before, after)]
            ours = results.runs.change(cases[0], cases[1], "mean_e2e_s")
            report.add_claim(
                f"chunk {before[0]}, {before[1]} seqs to {after[0]}, {after[1]}, {policy}: mean E2E",
                f"{theirs:+.2f} %",
                ours.text(unit=" %"),
                verdict(theirs, ours),
                nearest.name,
            )


def add_figures(report: Report, results: Results) -> None:
    """Decode rounds by seats, and what Aging changes."""
    panels = {
        profile: {
            "paper": paper_rounds(),
            **{r.system: results.rounds(r) for r in results.exact if r.profile == profile},
        }
        for profile in dict.fromkeys(reading.profile for reading in results.exact)
    }
    caption = "Mean decode round, FCFS at chunk 256, by engine profile"
    path = lines(report.path("-rounds.png"), "Table 5: mean decode round", ("seqs", "ms a round"), panels, caption)
    report.add_figure(path, caption)
    changes: dict[str, list[tuple[float, float | None]]] = {"paper": [(paper_change(s), None) for s in SETTINGS]}
    for reading in results.exact:
        ours = [results.change(reading, setting, "mean_e2e_s") for setting in SETTINGS]
        changes[reading.name] = [(change.value, change.half) for change in ours]
    groups = [f"{chunk}, {seats} seqs" for chunk, seats in SETTINGS]
    caption = f"Aging's change of mean E2E by setting and reading, exact outputs, alpha {ALPHAS[0]:g}"
    title, axis = "Table 5: what Aging changes", "mean E2E, %; negative is better"
    report.add_figure(
        bars(report.path("-changes.png"), title, axis, {"chunk, seqs": changes}, groups, caption), caption
    )


def add_headline(report: Report, results: Results) -> None:
    """What Aging's rows change of the paper's rounds and of its E2E times, and what ours change."""
    nearest = results.judged[0]

    def listed(values: Iterable[float]) -> str:
        return " / ".join(f"{value:+.1f}" for value in values) + " %"

    theirs = [[paper_round(paper_row(setting, policy)) for setting in SETTINGS] for policy in ("FCFS", "AGING")]
    rounds = listed(percent(*pair) for pair in zip(*theirs, strict=True))
    report.add_headline(
        f"""Two RTX 5090, Aging's change at {", ".join(f"{c}/{n}" for c, n in SETTINGS)} (chunk/seqs): the paper's mean
        E2E {listed(map(paper_change, SETTINGS))}, while its own decode rounds change by {rounds}; ours as
        {nearest.name}: mean E2E {listed(results.change(nearest, s, "mean_e2e_s").value for s in SETTINGS)}, decode
        rounds {listed(results.change(nearest, s, "decode_round_ms").value for s in SETTINGS)}."""
    )


def run(options: Options) -> None:
    """Run all readings and write the report."""
    is_simulated = options.backend == "sim"
    runs = run_cases("table5", _cases(options), options, measure)
    results = Results(runs, readings(options), alphas(options))
    report = Report("table5", "Table 5: Aging against FCFS on two RTX 5090", options)
    report.add_list("Assumptions", [*(ASSUMPTIONS if is_simulated else (NO_PARALLEL_WORKERS,)), *runs.notes])
    add_rounds(report, results)
    if is_simulated:
        add_readings(report, results)
    add_level(report, results, fitted=is_simulated)
    add_changes(report, results)
    add_figures(report, results)
    add_claims(report, results, level=is_simulated)
    add_headline(report, results)
    report.write_csv("-runs.csv", runs.rows())
    report.finish()


def main(argv: Sequence[str] | None = None) -> None:
    run(parse_options(__doc__, argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
