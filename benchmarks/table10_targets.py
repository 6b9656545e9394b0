"""From which target of LPRS on APC matters: its gain by target, beside Table 10."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.harness.plots import lines
from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs
from benchmarks.harness.statistics import LEAST, Mean
from benchmarks.table10_distance import pair
from benchmarks.table10_readings import DYNAMICS, LATENCIES, Reading

E2E, TTFT, P90_E2E, _ = LATENCIES


def add_sweep(report: Report, runs: Runs, sweep: Sequence[Reading]) -> None:
    """APC's change against LPRS's target: table, figure, and where it begins to matter."""
    table, panels = [], {}
    for profile in dict.fromkeys(reading.profile for reading in sweep):
        sarathi = runs.find(profile=profile, scheduler="SARATHI")
        mine = {reading.target_ms: pair(runs, reading) for reading in sweep if reading.profile == profile}
        decode_only = statistics.fmean(runs.values(sarathi, "decode_only_ms"))
        changes = {
            metric: {target: runs.change(*both, metric) for target, both in mine.items()} for metric in LATENCIES
        }
        panels[f"{profile}: a round of 32 decodes takes {decode_only:.1f} ms"] = {
            name: [(target, -mean.value, mean.half or 0.0) for target, mean in changes[metric].items()]
            for name, metric in (("mean request E2E", E2E), ("P90 request E2E", P90_E2E))
        }
        best = min(mine, key=lambda target: runs.mean(mine[target][1], E2E).value)
        to_sarathi = runs.change(sarathi, mine[best][1], E2E)
        report.add_text(
            f"""{profile}: {where_it_matters(changes[E2E], decode_only)} LPRS with APC is fastest at {best:g} ms, and
            its mean E2E time is then {to_sarathi.text(unit=" %", signed=True)} against plain SARATHI with a budget of
            512."""
        )
        for target, both in mine.items():
            table.append(
                [
                    profile,
                    f"{target:g}",
                    *(runs.mean(case, E2E).value for case in both),
                    *(changes[metric][target].text(signed=True) for metric in (E2E, TTFT)),
                    *(runs.change(sarathi, case, E2E).text(signed=True) for case in both),
                    *(runs.mean(case, DYNAMICS[0]).value for case in both),
                    *(runs.mean(case, "itl_p99_ms").value for case in both),
                ]
            )
    report.add_table(
        "From which target APC matters: 1,000 requests at 100/s",
        ["profile", "target ms", "LPRS E2E s", "with APC s", "APC: E2E %", "APC: TTFT %", "LPRS to SARATHI %",
         "with APC to SARATHI %", "prefills off", "on", "ITL P99 off ms", "on ms"],
        table,
        note="""Changes by APC against LPRS alone; of both against plain SARATHI with a budget of 512, mean E2E
        time.""",
    )  # fmt: skip
    title = "What APC gains over LPRS alone, by LPRS's target"
    caption = "How much APC lowers it against LPRS alone; bars are 95 % intervals over seeds. SIMULATED."
    report.add_figure(lines(report.path("-targets.png"), title, ("target, ms", "gain, %"), panels, caption), title)


def where_it_matters(changes: Mapping[float, Mean], decode_only: float) -> str:
    """A sentence on APC's changes of the mean E2E time (percent) by target, and the round of decodes alone (ms)."""
    targets = [target for target, change in changes.items() if change.high < -LEAST]
    last = max(changes)
    if targets:
        where = f"""APC lowers mean E2E time by more than {LEAST:g} % (beyond the interval) up to a target of
        {max(targets):g} ms, {max(targets) / decode_only:.2f} of a round of 32 decodes;"""
    else:
        where = f"at no target of the sweep does APC lower mean E2E time by more than {LEAST:g} %;"
    return f"{where} at {last:g} ms it changes it by {changes[last].text(unit=' %', signed=True)}."
