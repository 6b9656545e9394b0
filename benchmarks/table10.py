"""`make table10`: LPRS without and with APC (Table 10), in every reading of its setup; from which target APC matters.

The paper: Qwen3-8B on an RTX PRO 5000, 49 short prompts to a long one, budget 512, 32 seqs, C_max 6, L_min 16.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs, run_cases
from benchmarks.harness.statistics import UNDECIDED, Mean, level, verdict
from benchmarks.table10_distance import COLUMNS, DISTANCE, OWN_DISTANCE, PAPER, Judged, distinct, judged
from benchmarks.table10_level import add_level, add_round_times
from benchmarks.table10_readings import (
    AS_PRINTED,
    AS_SCRIPTED,
    BELOW,
    COUNTERS,
    DYNAMICS,
    LATENCIES,
    OFF,
    ON,
    Reading,
    cases_of,
    measure,
    readings_of,
)
from benchmarks.table10_targets import add_sweep
from sarathi.benchmark.entry_point import exit_status

READING = "requests, arrivals, profile, target, penalties"
E2E, _, P90_E2E, _ = LATENCIES
CLOSEST, CLOSEST_OWN = "closest", "closest, own rounds"
WITHIN = 10.0  # percent, of what is judged by its level
CLOSE = 0.01  # of distances: what is no farther apart could as well be the closest

ASSUMPTIONS = (
    "The paper prints 'ms'; only seconds are consistent: between its prefill and its end a request would take 7 ms, "
    "less than one decode round of this model on this card.",
    "A reading: number of requests (the script has 240, the level needs about 1,000); arrivals (scripted: 25 ms apart, "
    "1 ms from 10 % to 30 % of the run; or 100 a second); engine profile; target; penalties (paper: over 2.5, under "
    "1.0; script: over 1.5, under 4.0); and for APC whether P_t counts unfinished prompts, and whether a deferred "
    "prompt releases its KV.",
    "Short prompts of 30 to 50 tokens get 200 to 220 output tokens, long ones of 200 to 220 get 4 to 50.",
    f"A target of {BELOW:g} ms stands for any below the decode-only round, where every choice of LPRS should be 1 "
    "token. The script's target is 100 ms, the paper's text says 105. The predictor is the one that make trains.",
    "The average chunk is a mean over all rounds, 0 where a round has no prefill: only so can it be below 1.",
    "A refusal of a waiting prompt ends admission for the round, so each round refuses at most one waiting prompt.",
    "Seeds draw lengths, the places of the long prompts and 1 % of jitter on round times. Intervals are 95 %, "
    "Student's t over seeds; changes are paired by seed.",
)


def add_ranking(
    report: Report, runs: Runs, found: Sequence[Judged], same: Mapping[Reading, Reading], named: Mapping[str, Judged]
) -> None:
    """Readings from the closest to the paper's figures on, and which of them claims are judged in."""
    report.add_table(
        "Which reading gives the paper's figures",
        [READING, *found[0].distances, "change of mean E2E %", "of P90 E2E %"],
        [
            [
                one.reading.text(),
                *one.distances.values(),
                *(runs.change(*one.cases, metric).text(signed=True) for metric in (E2E, P90_E2E)),
            ]
            for one in found
        ],
        note=f"""Distance of a figure: |paper - ours| over the larger of the two, so 0 if equal and 1 if one is 0.
        changes: over APC's four changes of latency; dynamics: prefills and chunk, without and with APC. Where a run is
        of the paper's size, counters: the two with APC; level: the four latencies without and with APC, once rounds
        last as long as the paper's, or own rounds: as simulated. distance: the mean of all, with the one level or the
        other. The paper's changes: {PAPER[E2E]["change_percent"]} and {PAPER[P90_E2E]["change_percent"]} %.""",
    )
    report.add_text(
        "Claims are judged in: " + "; ".join(f"{n}: {one.reading.text()}" for n, one in named.items()) + "."
    )
    for name in (name for name in found[0].distances if name in (DISTANCE, OWN_DISTANCE)):
        least = min(one.distances[name] for one in found)
        near = sum(one.distances[name] < least + CLOSE for one in found) - 1
        report.add_text(f"Other readings within {CLOSE:g} of the closest by {name}: {near}.")
    for twin in dict.fromkeys(same.values()):
        others = "; ".join(reading.text() for reading, other in same.items() if other == twin)
        report.add_text(f"Request for request the same as {twin.text()}: {others}.")


def add_rows(report: Report, runs: Runs, one: Judged) -> None:
    """The paper's eight rows beside those of the closest reading."""
    table = []
    for metric, row in PAPER.items():
        digits = 0 if metric in COUNTERS else 2
        changed = row["change_percent"]
        table.append(
            [
                metric,
                *(f"{row[column]:,.{digits}f}" for column in COLUMNS),
                None if changed is None else f"{changed:+.2f}",
                *(runs.mean(case, metric).text(digits) for case in one.cases),
                None if changed is None else runs.change(*one.cases, metric).text(signed=True),
            ]
        )
    columns = ["metric", "paper: off", "on", "change %", "ours: off", "on ", "change % "]
    report.add_table("The paper's rows beside ours", columns, table, note=f"{CLOSEST}: {one.reading.text()}.")


def add_readings(report: Report, runs: Runs, found: Sequence[Judged]) -> None:
    """All figures of every reading, and of plain Sarathi and APC without LPRS."""
    cases = [(one.reading.text(), case) for one in found for case in one.cases]
    yardsticks = [case for case in runs.cases if case.labels["scheduler"] not in (OFF, ON)]
    cases += [(f"yardstick, {case.labels['profile']}", case) for case in yardsticks]
    report.add_table(
        "Every reading",
        [READING, "scheduler", "mean E2E s", "mean TTFT s", "P90 E2E s", "P90 TTFT s", "prefills", "chunk", "accepted",
         "by cap", "by min", "warm", "round ms", "ITL P99 ms"],
        [
            [
                text,
                str(case.labels["scheduler"]),
                *(runs.mean(case, name).value for name in (*LATENCIES, *DYNAMICS, "chunk_of_accepted")),
                *(round(runs.mean(case, name).value) for name in (*COUNTERS, "warm_starts")),
                *(runs.mean(case, name).value for name in ("round_ms", "itl_p99_ms")),
            ]
            for text, case in cases
        ],
        note="""Means over seeds; each run: the CSV file. prefills: scheduled a round; chunk: over all rounds; accepted:
        tokens of a prefill that was scheduled; by cap, by min: refusals; warm: warm starts. yardstick: budget 512
        without LPRS, 1,000 requests at 100/s.""",
    )  # fmt: skip


def add_counters(report: Report, runs: Runs, found: Sequence[Judged]) -> None:
    """What the refusals by the cap may have counted."""
    others = ("rounds_waiting_no_seat", "rounds_waiting_c_t_0", "rounds_waiting_either", "rounds_waiting", "rounds")
    cap, least = (PAPER[metric]["apc_on"] for metric in COUNTERS)
    report.add_table(
        "Readings of the counters, with APC",
        [READING, "by cap", "by min", "no seat", "C_t = 0", "either", "prompts waiting", "rounds"],
        [
            ["the paper", cap, least, None, None, None, cap + least, None],
            *(
                [one.reading.text(), *(round(runs.mean(one.cases[1], name).value) for name in (*COUNTERS, *others))]
                for one in found
            ),
        ],
        note="""by cap, by min: refusals as our scheduler counts them. no seat, C_t = 0, either: rounds that left
        prompts waiting and no seat free, or that allowed no prefill. Here a prompt is then not looked at; an engine
        that looks counts a refusal by the cap each time. prompts waiting: rounds that left any waiting; if each of them
        counts one refusal, by the cap or by the minimum chunk, the paper's two counters sum to their number. None of it
        is a claim: a sense that fits was picked afterwards, of four senses.""",
    )


def add_claims(report: Report, runs: Runs, named: Mapping[str, Judged], *, simulated: bool) -> None:
    """The paper's rows, judged in the closest reading and in those of its text and script; what depends on a run's size
    or on the card, only where the paper's are `simulated`."""
    for name, one in named.items():
        for metric in LATENCIES:
            paper, ours = PAPER[metric]["change_percent"], runs.change(*one.cases, metric)
            text = ours.text(unit=" %", signed=True)
            report.add_claim(f"APC's change of {metric}", f"{paper:+.2f} %", text, verdict(paper, ours), name)
        for metric in DYNAMICS:
            theirs = [PAPER[metric][column] for column in COLUMNS]
            means = [runs.mean(case, metric) for case in one.cases]
            _add_level_claim(report, f"{metric} without / with APC", theirs, means, name)
        if not simulated:
            continue
        for metric in COUNTERS:
            theirs, ours = PAPER[metric]["apc_on"], runs.mean(one.cases[1], metric)
            _add_level_claim(report, f"{metric} with APC", [theirs], [ours], name, digits=0)
        for how, column, case in zip(("without", "with"), COLUMNS, one.cases, strict=True):
            theirs = [PAPER[metric][column] for metric in LATENCIES]
            means = [runs.mean(case, metric) for metric in LATENCIES]
            _add_level_claim(report, f"the four latencies {how} APC, s", theirs, means, name)


def _add_level_claim(
    report: Report, claim: str, paper: Sequence[float], ours: Sequence[Mean], reading: str, *, digits: int = 2
) -> None:
    one_seed = any(mean.half is None for mean in ours)
    report.add_claim(
        f"{claim}, within {WITHIN:g} %",
        " / ".join(f"{value:,.{digits}f}" for value in paper),
        " / ".join(mean.text(digits) for mean in ours),
        UNDECIDED if one_seed else level(paper, [mean.value for mean in ours], WITHIN),
        reading,
    )


def add_headlines(report: Report, runs: Runs, named: Mapping[str, Judged], *, simulated: bool) -> None:
    """What APC changes in the closest reading, and how that was chosen; and in the others."""
    changes = {name: f"{runs.change(*one.cases, E2E).value:+z.1f} %" for name, one in named.items()}
    setups = {name: f"({one.reading.profile}, {one.reading.target_ms:g} ms)" for name, one in named.items()}
    one, metric = named[CLOSEST], DYNAMICS[0]
    prefills = " to ".join(f"{runs.mean(case, metric).value:.2f}" for case in one.cases)
    chosen = "by level, changes and dynamics" if simulated else "by changes and dynamics"
    report.add_headline(
        f"""In the reading closest to the paper {chosen} {setups[CLOSEST]} APC changes mean E2E by {changes[CLOSEST]}
        (paper {PAPER[E2E]["change_percent"]:+.1f} %), prefills a round {prefills} ({PAPER[metric]["apc_off"]} to
        {PAPER[metric]["apc_on"]})."""
    )
    others = "; ".join(f"{name} {setups[name]} {changes[name]}" for name in named if name != CLOSEST)
    report.add_headline(f"In other readings: {others}.")


def name_readings(found: Sequence[Judged], same: Mapping[Reading, Reading]) -> dict[str, Judged]:
    """The readings that claims are judged in: the closest, by either distance if they differ, and as told."""
    told = {"as printed": AS_PRINTED, "as scripted": AS_SCRIPTED}
    named = {CLOSEST: found[0]}
    if OWN_DISTANCE in found[0].distances:
        own = min(found, key=lambda one: one.distances[OWN_DISTANCE])
        named |= {CLOSEST_OWN: own} if own is not found[0] else {}
    return named | {name: one for name, r in told.items() for one in found if one.reading == same.get(r, r)}


def run(options: Options) -> None:
    """Run all readings and the sweep, and write the report; beside it the figures of every run."""
    simulated = options.backend == "sim"
    readings, sweep = readings_of(options)
    runs = run_cases("table10", cases_of(options), options, measure)
    kept, same = distinct(runs, readings)
    found = [judged(runs, reading, simulated=simulated) for reading in kept]
    found.sort(key=lambda one: one.distances[DISTANCE])
    named = name_readings(found, same)
    report = Report("table10", "Table 10: LPRS without and with APC, two kinds of prompt", options)
    report.add_list("Assumptions", [*ASSUMPTIONS, *runs.notes])
    add_claims(report, runs, named, simulated=simulated)
    add_ranking(report, runs, found, same, named)
    add_rows(report, runs, named[CLOSEST])
    add_readings(report, runs, found)
    if simulated:
        add_counters(report, runs, found)
        add_level(report, found, READING)
        add_round_times(report, runs, named[CLOSEST], named["as printed"])
        add_sweep(report, runs, sweep)
    add_headlines(report, runs, named, simulated=simulated)
    report.write_csv("-runs.csv", runs.rows())
    report.finish()


def main(argv: Sequence[str] | None = None) -> None:
    run(parse_options(__doc__, argv))


if __name__ == "__main__":
    sys.exit(exit_status(main))
