"""What a search found, as a table on the terminal, results.csv and results.json."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sarathi.benchmark.capacity_search.options import SearchOptions, Slo, quantile_name
from sarathi.benchmark.capacity_search.pool import Outcome
from sarathi.benchmark.capacity_search.probe import Probe
from sarathi.benchmark.capacity_search.worker import Failure
from sarathi.metrics.plot_style import seconds_text
from sarathi.metrics.sinks import write_json, write_text
from sarathi.metrics.terminal_table import table_of


def told_probe(probe: Probe, slos: Sequence[Slo]) -> str:
    """`4 requests/s holds: scheduling delay P50 120 ms; time between tokens P99 41 ms`"""
    verdict = "holds" if probe.holds(slos) else "does not hold"
    note = f"; {probe.note}" if probe.note else ""
    return f"{probe.rate:g} requests/s {verdict}: {_told_figures(probe, slos)}{note}"


def _told_figures(probe: Probe, slos: Sequence[Slo]) -> str:
    values = [f"{slo.label} {_duration(probe.figures[slo.quantity])}" for slo in slos]
    told = {"ignored": "requests ignored", "unfinished": "cut off by the time limit", "not_sent": "not sent before it"}
    counts = [f"{probe.counts[word]:,} {text}" for word, text in told.items() if probe.counts[word]]
    return "; ".join([*values, *counts])


def best_probe(outcome: Outcome) -> Probe | None:
    """The probe at the capacity; where nothing holds the lowest one, None where there is none or the job failed."""
    if isinstance(outcome.end, Failure) or not outcome.probes:
        return None
    rate = outcome.end.low if outcome.end.low is not None else min(probe.rate for probe in outcome.probes)
    return next(probe for probe in outcome.probes if probe.rate == rate)


def capacity_table(outcomes: Sequence[Outcome], slos: Sequence[Slo]) -> str:
    """A row a job: the highest rate under the objectives, what they come to there, and how it was found."""
    headers = ["max requests/s"]
    headers += [f"{slo.label} <={seconds_text(slo.limit).replace(' ', '')}" for slo in slos]
    rows: dict[str, list[str]] = {}
    for outcome in outcomes:
        name = outcome.job.key if outcome.job.key not in rows else outcome.job.folder  # a_b with c reads as a with b_c
        probe = best_probe(outcome)
        figures = ["-" if probe is None else _duration(probe.figures[slo.quantity]) for slo in slos]
        rows[name] = [_capacity(outcome), *figures, str(len(outcome.probes)), _bracket(outcome)]
    return table_of(rows, "job", [*headers, "probes", "bracket"])


def remarks(outcomes: Sequence[Outcome], options: SearchOptions) -> list[str]:
    """What a reader of the table must know of single jobs, a line each."""
    lines = []
    ignored: dict[int, list[str]] = {}
    for outcome in outcomes:
        end, probe = outcome.end, best_probe(outcome)
        if isinstance(end, Failure):
            lines.append(f"{outcome.job.key} failed: {end.why}")
            continue
        if probe is None:
            continue
        if end.low is None:
            figures = _told_figures(probe, options.slos)
            lines.append(f"{outcome.job.key}: nothing holds, not even {probe.rate:g} requests/s: {figures}")
        elif end.high is None:
            lines.append(
                f"{outcome.job.key}: everything that was probed holds, so it is at least {end.low:g} requests/s"
            )
        if not end.is_close:
            lines.append(f"{outcome.job.key}: ended by --max-iterations {options.max_iterations}, before it was close")
        if end.low is not None and (probe.counts["unfinished"] or probe.counts["not_sent"]):
            cut, later = probe.counts["unfinished"], probe.counts["not_sent"]
            told = f"of the requests at {probe.rate:g} requests/s {cut:,} were cut off by --time-limit"
            lines.append(f"{outcome.job.key}: {told} {options.time_limit:g} (minutes), {later:,} not sent before it")
        if probe.counts["ignored"]:
            ignored.setdefault(probe.counts["ignored"], []).append(outcome.job.key)
    for count, keys in ignored.items():
        jobs = "all jobs" if len(keys) == len(outcomes) else ", ".join(keys)
        lines.append(f"{count:,} requests were ignored in each probe of {jobs} (too long for context or pool)")
    return lines


def write_results(outcomes: Sequence[Outcome], options: SearchOptions) -> None:
    """results.csv, a row a job, and results.json with every probe, into the output folder."""
    folder = Path(options.output_dir or ".")
    rows = [_row(outcome, options) for outcome in outcomes]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "results.csv", text.getvalue())
    jobs = [
        {**_row(outcome, options), "probes": [_probe(probe, options, folder) for probe in outcome.probes]}
        for outcome in outcomes
    ]
    slos = [slo._asdict() for slo in options.slos]
    write_json(folder / "results.json", {"slos": slos, "jobs": [_plain(job) for job in jobs]})


def _row(outcome: Outcome, options: SearchOptions) -> dict[str, Any]:
    job, end, probe = outcome.job, outcome.end, best_probe(outcome)
    found = None if isinstance(end, Failure) else end
    figures = {
        f"{name}_{quantile_name(quantile).lower()}": None if probe is None else probe.figures[name]
        for name, quantile, _ in options.targets
    }
    return {
        "job": job.key,
        "model": job.model,
        "trace": job.trace,
        "scheduler": job.scheduler,
        "parallel_spec": job.parallel,
        **job.machine,
        "max_qps_under_slo": found and found.low,
        "min_qps_over_slo": found and found.high,
        "is_within_granularity": found and found.is_close,
        "at_qps": probe and probe.rate,
        **figures,
        "num_ignored": probe and probe.counts["ignored"],
        "num_unfinished": probe and probe.counts["unfinished"],
        "num_not_sent": probe and probe.counts["not_sent"],
        "num_probes": len(outcome.probes),
        "run": probe and str(probe.run.relative_to(options.output_dir or ".")),
        "error": end.why if isinstance(end, Failure) else None,
    }


def _probe(probe: Probe, options: SearchOptions, folder: Path) -> dict[str, Any]:
    row = probe._asdict()
    row.pop("note")
    return {**row, "run": str(probe.run.relative_to(folder)), "holds": probe.holds(options.slos)}


def _plain(value: Any) -> Any:
    """`value` with infinities as text, which JSON has no number for."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return "inf" if value == math.inf else value


def _capacity(outcome: Outcome) -> str:
    if isinstance(outcome.end, Failure):
        return "failed"
    if outcome.end.low is None:
        return "none"
    return f"{'' if outcome.end.high is not None else '>= '}{outcome.end.low:g}"


def _bracket(outcome: Outcome) -> str:
    if isinstance(outcome.end, Failure):
        return ""
    low, high, *_ = outcome.end
    if low is None or high is None:
        return f"< {high:g}" if high is not None else ""
    return f"{low:g} to {high:g} ({100 * (high / low - 1):.1f} %)"


def _duration(value: float | None) -> str:
    return "-" if value is None else "unfinished" if value == math.inf else seconds_text(value)
