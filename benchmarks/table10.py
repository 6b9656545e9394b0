"""`make table10`: LPRS without and with APC (Table 10), in every reading of its setup; from which target APC matters.

The paper: Qwen3-8B on an RTX PRO 5000, 49 short prompts to a long one, budget 512, 32 seqs, C_max 6, L_min 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.harness.cases import Case
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs, run_cases
from benchmarks.harness.statistics import Mean, level, verdict
from benchmarks.table10_distance import COLUMNS, PAPER, Judged, distinct, judged
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

READING = "requests, arrivals, profile, target, penalties"
E2E, _, P90_E2E, _ = LATENCIES

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


def add_ranking(report: Report, runs: Runs, found: Sequence[Judged], same: Mapping[Reading, Reading]) -> None:
    """Readings from the closest to the paper's figures on."""
    report.add_table(
        "Which reading gives the paper's figures",
        [
            READING,
            "distance",
            "changes",
            "dynamics",
            "counters",
            "level",
            "level as simulated",
            "change of mean E2E %",
            "of P90 E2E %",
        ],
        [
            [
                one.reading.text(),
                *one.distances.values(),
                *(runs.change(*one.cases, metric).text() for metric in (E2E, P90_E2E)),
            ]
            for one in found
        ],
        note=f"""Distance of a figure: |paper - ours| over the larger of the two, so 0 if equal and 1 if one is 0.
        changes: over APC's four changes of latency; dynamics: prefills and chunk, without and with APC; counters: the
        two with APC; level: the four latencies without and with APC, once rounds last as long as the paper's; distance:
        the mean of these four, without the level as simulated. The paper's changes: {PAPER[E2E]["change_percent"]} and
        {PAPER[P90_E2E]["change_percent"]} %.""",
    )
    for twin in dict.fromkeys(same.values()):
        others = "; ".join(reading.text() for reading, other in same.items() if other == twin)
        report.add_text(f"Request for request the same as {twin.text()}: {others}.")


def add_rows(report: Report, runs: Runs, named: Mapping[str, Judged]) -> None:
    """The paper's eight rows beside ours."""
    table = []
    for name, one in named.items():
        for metric, row in PAPER.items():
            digits = 0 if metric in COUNTERS else 2
            changed = row["change_percent"]
            table.append(
                [
                    name,
                    metric,
                    *(f"{row[column]:,.{digits}f}" for column in COLUMNS),
                    changed,
                    *(runs.mean(case, metric).text(digits) for case in one.cases),
                    None if changed is None else runs.change(*one.cases, metric).text(),
                ]
            )
    report.add_table(
        "The paper's rows beside ours",
        ["reading", "metric", "paper: off", "on", "change %", "ours: off", "on ", "change % "],
        table,
        note="; ".join(f"{name}: {one.reading.text()}" for name, one in named.items()) + ".",
    )


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
    report.add_table(
        "By kind of prompt",
        [READING, "short: off s", "on s", "change %", "long: off s", "on s ", "change % "],
        [
            [
                one.reading.text(),
                *(
                    cell
                    for figure in ("short_e2e_s", "long_e2e_s")
                    for cell in (
                        *(runs.mean(case, figure).value for case in one.cases),
                        runs.change(*one.cases, figure).text(),
                    )
                ),
            ]
            for one in found
        ],
        note="Mean E2E time of short and of long prompts, without (off) and with APC (on).",
    )


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
        counts one refusal, by the cap or by the minimum chunk, the paper's two counters sum to their number.""",
    )


def add_level(report: Report, found: Sequence[Judged]) -> None:
    """Seconds, once rounds last as long as in the paper."""
    report.add_table(
        "Level: ours (paper's), once rounds last as long as the paper's",
        [READING, "APC", "token gap ms", "mean E2E s", "mean TTFT s", "P90 E2E s", "P90 TTFT s", "largest rest %"],
        [
            [
                one.reading.text(),
                column.removeprefix("apc_"),
                run.itl_ms,
                *(f"{ours:.2f} ({PAPER[m][column]:.2f})" for m, ours in zip(LATENCIES, run.values(), strict=True)),
                max(100 * abs(o / PAPER[m][column] - 1) for m, o in zip(LATENCIES, run.values(), strict=True)),
            ]
            for one in found
            for column, run in zip(COLUMNS, one.retimed, strict=True)
        ],
        note="""From the end of its prefill a request takes one round a token, so the paper's mean E2E less its mean
        prefill E2E tells how long its rounds are: token gap. Our rounds are stretched by one factor a run to last as
        long, and arrivals are kept: that difference is all that is taken from the paper. largest rest: of the four.""",
    )


def add_round_times(report: Report, runs: Runs, closest: Judged, printed: Judged) -> None:
    """What of APC's change is fewer rounds and what is shorter ones, by the paper's own figures."""
    gaps = [run.itl_ms for run in closest.retimed]
    ours = [runs.mean(case, "itl_mean_ms").value for case in closest.cases]
    looks = [_looks(runs, case) for case in closest.cases]
    report.add_text(
        f"""Of APC's {PAPER[E2E]["change_percent"]} % of mean E2E time the closest reading gives
        {runs.change(*closest.cases, E2E).text(2, " %")} by simulated rounds, and
        {closest.retimed_change(E2E).text(2, " %")} once they last as the paper's own figures say: {gaps[0]:.1f} ms
        without and {gaps[1]:.1f} ms with APC, where simulated ones last {ours[0]:.1f} and {ours[1]:.1f} ms. LPRS looks
        at {looks[0]:.2f} prompts a round without APC and at {looks[1]:.2f} with it; simulated rounds do not charge for
        a look. If that is the difference, a look costs the paper's engine
        {(gaps[0] - gaps[1] - ours[0] + ours[1]) / (looks[0] - looks[1]):.2f} ms."""
    )
    report.add_text(
        f"""A control, since these round times are the paper's and so hold a part of its gain: in the reading as
        printed, where APC changes mean E2E time by {runs.change(*printed.cases, E2E).text(2, " %")} by simulated
        rounds, the same stretch makes it {printed.retimed_change(E2E).text(2, " %")}."""
    )


def _looks(runs: Runs, case: Case) -> float:
    """Prompts that a chunk was chosen for, a round: those scheduled and those refused."""
    refused = sum(runs.mean(case, metric).value for metric in COUNTERS)
    return runs.mean(case, DYNAMICS[0]).value + refused / runs.mean(case, "rounds").value


def add_claims(report: Report, runs: Runs, named: Mapping[str, Judged]) -> None:
    """The paper's rows, judged in the reading that comes closest and in those of its text and script."""
    for name, one in named.items():
        for metric in LATENCIES:
            paper, ours = PAPER[metric]["change_percent"], runs.change(*one.cases, metric)
            report.add_claim(f"{name}: {metric}", f"{paper:+.2f} %", ours.text(2, " %"), verdict(paper, ours))
        for metric in DYNAMICS:
            both = [PAPER[metric][column] for column in COLUMNS]
            means = [runs.mean(case, metric).value for case in one.cases]
            theirs, text = (f"{off:.2f} to {on:.2f}" for off, on in (both, means))
            report.add_claim(f"{name}: {metric}", theirs, text, level(both, means))
        for metric in COUNTERS:
            _claim_count(report, f"{name}: {metric}", PAPER[metric]["apc_on"], runs.mean(one.cases[1], metric))


def add_closest_claims(report: Report, runs: Runs, one: Judged) -> None:
    """What the closest reading says of counters in another sense, of seconds, and of changes with rounds alike."""
    cap, least = (PAPER[metric]["apc_on"] for metric in COUNTERS)
    for claim, paper, figure in (
        ("cap, as rounds with prompts waiting and no seat or C_t = 0", cap, "rounds_waiting_either"),
        ("cap and minimum chunk, as rounds with prompts waiting", cap + least, "rounds_waiting"),
    ):
        _claim_count(report, f"closest: {claim}", paper, runs.mean(one.cases[1], figure))
    for column, case, run in zip(COLUMNS, one.cases, one.retimed, strict=True):
        paper = [PAPER[metric][column] for metric in LATENCIES]
        simulated = [runs.mean(case, metric).value for metric in LATENCIES]
        for how, ours in (("simulated rounds", simulated), ("rounds as long as the paper's", run.values())):
            theirs, text = (" / ".join(f"{value:.2f}" for value in values) for values in (paper, ours))
            report.add_claim(f"closest: seconds, {column.replace('_', ' ')}, {how}", theirs, text, level(paper, ours))
    for metric in LATENCIES:
        percent, change = PAPER[metric]["change_percent"], one.retimed_change(metric)
        claim = f"closest: {metric}, rounds as long as the paper's"
        report.add_claim(claim, f"{percent:+.2f} %", change.text(2, " %"), verdict(percent, change))


def _claim_count(report: Report, claim: str, paper: int, ours: Mean) -> None:
    report.add_claim(claim, f"{paper:,}", ours.text(0), level([paper], [ours.value]))


def add_headline(report: Report, runs: Runs, closest: Judged) -> None:
    """APC's change of the mean E2E time and of what a round does, beside the paper's."""
    told = []
    for metric, name in zip(DYNAMICS, ("prefills a round", "mean chunk a round"), strict=True):
        ours = " to ".join(f"{runs.mean(case, metric).value:.2f}" for case in closest.cases)
        told.append(f"{name} {ours} (paper {PAPER[metric]['apc_off']} to {PAPER[metric]['apc_on']})")
    report.add_headline(
        f"""APC in the closest reading: {", ".join(told)}; mean E2E {runs.change(*closest.cases, E2E).value:+.1f} %
        (paper {PAPER[E2E]["change_percent"]:+.1f} %)."""
    )


def run(options: Options) -> None:
    """Run all readings and the sweep, and write the report; beside it the figures of every run."""
    readings, sweep = readings_of(options)
    runs = run_cases("table10", cases_of(options), options, measure)
    kept, same = distinct(runs, readings)
    found = sorted((judged(runs, reading) for reading in kept), key=lambda one: one.distances["distance"])
    closest = found[0]
    told = {"as printed": AS_PRINTED, "as scripted": AS_SCRIPTED}
    named = {"closest": closest, **{n: one for n, r in told.items() for one in found if one.reading == same.get(r, r)}}
    report = Report("table10", "Table 10: LPRS without and with APC, two kinds of prompt", options)
    report.add_list("Assumptions", [*ASSUMPTIONS, *runs.notes])
    add_ranking(report, runs, found, same)
    add_rows(report, runs, named)
    add_readings(report, runs, found)
    add_counters(report, runs, found)
    add_claims(report, runs, named)
    if options.backend == "sim":
        add_level(report, found)
        add_round_times(report, runs, closest, named["as printed"])
        add_sweep(report, runs, sweep)
        add_closest_claims(report, runs, closest)
    add_headline(report, runs, closest)
    report.write_csv("-runs.csv", runs.rows())
    report.finish()


def main(argv: Sequence[str] | None = None) -> None:
    run(parse_options(__doc__, argv))


if __name__ == "__main__":
    main()
