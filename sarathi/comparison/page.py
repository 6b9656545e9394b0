"""The page of a comparison: warnings first, then tables of means and changes. Its figures are those of `plots`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from sarathi.comparison.bootstrap import LEVEL, NUM_RESAMPLES, Interval
from sarathi.comparison.comparison import Comparison, PairedRequests, Row
from sarathi.comparison.groups import Entry
from sarathi.comparison.plots import add_plots
from sarathi.metrics.headline import E2E, HIGHER, METRICS, TTFT, Metric
from sarathi.metrics.html.page import NO_VALUE, Cell, Page, Tone, Value, number

_TILES = ("E2E mean s", "TTFT mean s", "TTFT p99 s", "ITL p99 ms", "tok/s", "slowdown Jain", "goodput req/s")
_METHOD = (
    f"Brackets hold {LEVEL:.0%} confidence intervals over seeds: expanded percentile bootstrap, {NUM_RESAMPLES:,} "
    "seeded resamples of the runs. One run has none; of two or three seeds it means little, and of five it covers "
    "about 92 % rather than 95 %."
)
_REQUESTS = (
    "Requests that finished in both runs. 'Faster' and 'slower' leave out those that took the same time. Brackets are "
    "over pairs of runs; a single pair has none. Requests in a queue depend on each other over most of a run, so how "
    "they vary does not tell what other seeds would give: only runs of several seeds do."
)


def comparison_page(comparison: Comparison, directory: Path) -> Page:
    """The page; links to runs are relative to `directory`, where it will lie."""
    runs = list({id(run): run for entry in comparison.entries for run in entry.runs}.values())
    kinds = {bool(run.summary.get("simulated")) for run in runs}
    badge = {(True,): "simulated", (False, True): "simulated and real"}.get(tuple(sorted(kinds)), "")
    models = ", ".join(dict.fromkeys(f"{run.summary.get('model')} on {run.summary.get('device')}" for run in runs))
    page = Page(
        f"{len(comparison.entries)} rows of {len(runs)} runs compared",
        f"{models}. Changes are against {comparison.baseline.label}.",
        badge=badge,
    )
    for warning in comparison.warnings:
        page.add_notice(warning)
    page.add_numbers(_tiles(comparison))
    _add_runs(page, comparison, directory)
    _add_changes(page, comparison)
    if comparison.paired_requests:
        _add_paired_requests(page, comparison)
    add_plots(page, comparison)
    _add_values(page, comparison)
    return page


def _tiles(comparison: Comparison) -> Iterable[tuple[str, str, str]]:
    """The best row of each headline metric."""
    for metric in METRICS:
        if metric.label in _TILES:
            rows = [comparison.row(entry.label, metric) for entry in comparison.entries]
            known = [(row.value, row.label) for row in rows if row.value is not None]
            if known:
                value, label = max(known, key=lambda pair: metric.better * pair[0])
                word = "highest" if metric.better == HIGHER else "lowest"
                same = sum(metric.show(other) == metric.show(value) for other, _ in known)
                yield (
                    f"{word} {metric.label}",
                    metric.show(value),
                    label if same == 1 else f"{label} and {same - 1} more",
                )


def _used_metrics(comparison: Comparison) -> list[Metric]:
    known = {(row.metric, row.statistic) for row in comparison.rows if row.value is not None}
    return [metric for metric in METRICS if (metric.name, metric.statistic) in known]


def _add_changes(page: Page, comparison: Comparison) -> None:
    others = [entry for entry in comparison.entries if entry is not comparison.baseline]
    ways = [_way(comparison, entry) for entry in others]
    same = ways[0] if len(set(ways)) == 1 else ""
    page.add_section(
        "Change against the baseline",
        f"Percent of {comparison.baseline.label}{same and f', runs {same}'}. Green is better, red is worse: less time, "
        "more throughput, more even treatment. Grey: the interval holds 0, or neither direction is better. A change "
        f"without an interval has no colour: it may be chance. {_METHOD}",
    )
    rows: list[list[Value]] = []
    for metric in _used_metrics(comparison):
        base = comparison.row(comparison.baseline.label, metric)
        cells: list[Value] = [_change(metric, comparison.row(entry.label, metric)) for entry in others]
        rows.append([_unbroken(metric.label), _shown(base.value, metric.show(base.value)), *cells])
    headings = [e.label if same or not way else f"{e.label} ({way})" for e, way in zip(others, ways, strict=True)]
    page.add_table(["metric", comparison.baseline.label, *headings], rows)


def _way(comparison: Comparison, entry: Entry) -> str:
    """How the entry's changes came about."""
    return {None: "", True: "paired by seed", False: "not paired"}[comparison.row(entry.label, METRICS[0]).paired]


def _change(metric: Metric, row: Row) -> Cell:
    if row.delta_percent is None:
        return Cell(NO_VALUE, math.nan)
    interval = None
    if row.delta_ci_low is not None and row.delta_ci_high is not None:
        interval = Interval(row.delta_ci_low, row.delta_ci_high)
    text = _signed(row.delta_percent, 1) + (
        "" if interval is None else f" [{_signed(interval.low, 1)}, {_signed(interval.high, 1)}]"
    )
    return Cell(text, row.delta_percent, _tone(metric.better * row.delta_percent, interval))


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _shown(value: float | None, text: str) -> Cell:
    return Cell(NO_VALUE, math.nan) if value is None else Cell(text, value)


def _tone(gain: float, interval: Interval | None) -> Tone:
    """`gain` above 0 is for the better; the interval is of the same change, whatever its sign. Without one, none."""
    if interval is None:
        return ""
    if gain == 0 or interval.low <= 0 <= interval.high:
        return "muted"
    return "good" if gain > 0 else "bad"


def _signed(value: float, digits: int) -> str:
    return f"{value:+,.{digits}f}".replace("-", "−")


def _add_paired_requests(page: Page, comparison: Comparison) -> None:
    page.add_section("The same requests, one by one", _REQUESTS)
    headers = [
        "run", "time", "requests", "pairs of runs", f"mean in {comparison.baseline.label}, s", "mean here, s",
        "mean difference, s", "faster, %", "slower, %",
    ]  # fmt: skip
    page.add_table(headers, [_paired_row(paired) for paired in comparison.paired_requests])


def _paired_row(paired: PairedRequests) -> list[Value]:
    share = paired.share_faster_interval
    between = "" if share is None else f" [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    change = paired.difference_interval
    around = "" if change is None else f" [{_signed(change.low, 3)}, {_signed(change.high, 3)}]"
    return [
        paired.label,
        _unbroken({E2E: "end to end", TTFT: "to first token"}[paired.metric]),
        float(paired.num_requests),
        float(paired.num_pairs),
        paired.baseline_mean,
        paired.mean,
        Cell(f"{_signed(paired.difference, 3)}{around}", paired.difference, _tone(-paired.difference, change)),
        Cell(f"{100 * paired.share_faster:.1f}{between}", paired.share_faster),
        Cell(f"{100 * paired.share_slower:.1f}", paired.share_slower),
    ]


def _add_values(page: Page, comparison: Comparison) -> None:
    several = any(len(entry.runs) > 1 for entry in comparison.entries)
    page.add_section("Values", f"Means over the seeds of each row. {_METHOD}" if several else "")
    headers = [
        "metric",
        *(f"{e.label} ({len(e.runs)} runs)" if len(e.runs) > 1 else e.label for e in comparison.entries),
    ]
    rows: list[list[Value]] = []
    for metric in _used_metrics(comparison):
        cells: list[Value] = []
        for entry in comparison.entries:
            row = comparison.row(entry.label, metric)
            around = "" if row.ci_low is None else f" [{metric.show(row.ci_low)}, {metric.show(row.ci_high)}]"
            cells.append(_shown(row.value, metric.show(row.value) + around))
        rows.append([_unbroken(metric.label), *cells])
    page.add_table(headers, rows)


def _add_runs(page: Page, comparison: Comparison, directory: Path) -> None:
    page.add_section("What is compared", "Settings that are not the same in all rows.")
    settings = [[key, *(value or NO_VALUE for value in values)] for key, values in comparison.settings.items()]
    page.add_table(["setting", *(entry.label for entry in comparison.entries)], settings, sortable=False)
    rows: list[list[Value]] = []
    listed: set[int] = set()
    for entry in comparison.entries:
        for run in entry.runs:
            if id(run) in listed:
                continue
            listed.add(id(run))
            target = run.path / "report.html" if (run.path / "report.html").is_file() else run.path
            href = quote(os.fsencode(os.path.relpath(target.resolve(), directory.resolve())))
            summary = run.summary
            rows.append(
                [
                    entry.label,
                    Cell(run.path.name, href=href),
                    str(run.seeds.get("seed", NO_VALUE)),
                    *(number(summary.get(f"num_{word}")) for word in ("requests", "finished", "ignored", "unfinished")),
                ]
            )
    headers = ["row", "folder", "seed", "requests", "finished", "ignored", "unfinished"]
    page.add_table(headers, rows, caption=f"The {len(rows)} runs, with links to their reports", folded=len(rows) > 6)
