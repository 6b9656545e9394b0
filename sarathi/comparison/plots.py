"""The figures of a comparison: runs over one another. One colour is one row of the comparison throughout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from sarathi.comparison.comparison import Comparison
from sarathi.comparison.groups import Entry
from sarathi.comparison.run import PROMPT_LENGTH
from sarathi.metrics.headline import E2E, METRICS, TPOT, TTFT
from sarathi.metrics.html.figures import (
    COLORS,
    LONG_TAIL,
    MAX_CDF_POINTS,
    Counted,
    Figure,
    bars,
    cdf,
    has_long_tail,
    lines,
    plotly_text,
    scatter,
)
from sarathi.metrics.html.page import Page
from sarathi.metrics.percentiles import merge_counted
from sarathi.metrics.thinning import MIN_IN_MEDIAN, medians_by_doubling

_PERCENTILES = np.arange(1, 100)
_BY_LABEL = {metric.label: metric for metric in METRICS}


def add_plots(page: Page, comparison: Comparison) -> None:
    _add_section(
        page,
        comparison,
        "Distributions",
        "Finished requests; those of all seeds of a row together. A click on a name in the legend hides it, a double "
        f"click all others. Of a line with more than {MAX_CDF_POINTS:,} steps as many are drawn, more of them in the "
        "tail.",
    )
    _add_cdfs(page, comparison.entries)
    _add_section(page, comparison, "Percentiles and prompt lengths")
    for title, metric in (("Time to first token", TTFT), ("End-to-end time", E2E)):
        _add_ratio(page, comparison, title, metric)
    _add_ttft_by_prompt_length(page, comparison.entries)
    _add_section(page, comparison, "Latency against fairness", "A point is a run: to the left is faster.")
    caption = "Slowdown is end-to-end time over execution time. Best is low and to the left."
    _add_fairness(page, comparison.entries, "slowdown max", "worst slowdown", caption)
    caption = "Jain's index of slowdown: 1 where all requests are slowed down alike. Best is high and to the left."
    _add_fairness(page, comparison.entries, "slowdown Jain", "Jain index", caption)
    _add_slo(page, comparison)


def _add_section(page: Page, comparison: Comparison, heading: str, text: str = "") -> None:
    """A section whose figures share a legend."""
    page.add_section(heading, text)
    num = len(COLORS)
    page.add_legend((entry.label, COLORS[i % num], i // num, i // num) for i, entry in enumerate(comparison.entries))


def _add_figure(
    page: Page, figure: Figure, caption: str, title: str, *, log_switch: Literal["x", "y", "xy"], wide: bool = False
) -> None:
    figure["layout"]["showlegend"] = False  # the section has one
    page.add_figure(figure, caption, title=title, wide=wide, log_switch=log_switch)


def _start_in_log(figure: Figure, axes: Literal["x", "y", "xy"]) -> None:
    """Make the axes logarithmic where one of them has values far beyond most."""
    values = [_numbers(value for trace in figure["data"] for value in trace[axis]) for axis in axes]
    if any(len(one) and has_long_tail(float(np.median(one)), float(one.max())) for one in values):
        for axis in axes:
            figure["layout"][f"{axis}axis"]["type"] = "log"


def _numbers(values: Iterable[float | None]) -> np.ndarray:
    return np.array([value for value in values if value is not None], dtype=float)


def _add_cdfs(page: Page, entries: Sequence[Entry]) -> None:
    for title, metric, unit in (
        ("End-to-end time", E2E, "s"),
        ("Time to first token", TTFT, "s"),
        ("Time per output token", TPOT, "ms"),
    ):
        series: dict[str, np.ndarray | Counted] = {entry.label: _pooled(entry, metric) for entry in entries}
        _add_cdf(page, series, title, unit, [len(_known(_pooled(entry, metric))) for entry in entries])
    gaps: dict[str, np.ndarray | Counted] = {
        entry.label: merge_counted([run.token_gaps for run in entry.runs]) for entry in entries
    }
    _add_cdf(page, gaps, "Inter-token latency", "ms", [int(values[1].sum()) for values in gaps.values()])


def _add_cdf(page: Page, series: dict[str, np.ndarray | Counted], title: str, unit: str, counts: list[int]) -> None:
    if not any(counts):
        return
    figure = cdf(series, title.lower(), unit, scale=1e3 if unit == "ms" else 1.0, log_x=True)
    span = " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
    _add_figure(page, figure, f"{span} values in each", title, log_switch="x")


def _add_ratio(page: Page, comparison: Comparison, title: str, metric: str) -> None:
    """Each percentile over the baseline's."""
    base = _known(_pooled(comparison.baseline, metric))
    if not len(base):
        return
    below = np.percentile(base, _PERCENTILES)
    series = {}
    for entry in comparison.entries:
        values = _known(_pooled(entry, metric))
        if len(values):
            with np.errstate(divide="ignore", invalid="ignore"):
                series[entry.label] = _PERCENTILES, np.percentile(values, _PERCENTILES) / below
    hover = "P%{x}: %{y:.3~f} times the baseline's"
    figure = lines(series, "percentile", "times the baseline", hover)
    drawn = _numbers(value for trace in figure["data"] for value in trace["y"])
    if len(drawn) and drawn.max() > LONG_TAIL * drawn.min() > 0:  # a tenth is as far from 1 as 10
        few = {"nticks": 5} if drawn.max() < 100 * drawn.min() else {}  # else every digit has a label
        figure["layout"]["yaxis"] |= {"type": "log", **few}
    caption = (
        f"{title} of P1 to P99 as a multiple of that of {comparison.baseline.label}, which is 1; below 1 is faster. "
        "Not the same requests at each percentile."
    )
    _add_figure(page, figure, caption, f"{title}, percentile by percentile", log_switch="y")


def _add_ttft_by_prompt_length(page: Page, entries: Sequence[Entry]) -> None:
    series = {
        entry.label: medians_by_doubling(_pooled(entry, PROMPT_LENGTH), _pooled(entry, TTFT)) for entry in entries
    }
    hover = "about %{x:,.0f} tokens: %{y:,.4~r} s"
    figure = lines(series, "prompt length (tokens), log scale", "median TTFT (s)", hover, log_x=True, markers=True)
    if figure["data"]:
        _start_in_log(figure, "y")
        caption = f"Median of each doubling of the prompt length; fewer than {MIN_IN_MEDIAN} requests have none"
        _add_figure(page, figure, caption, "Time to first token by prompt length", log_switch="y", wide=True)


def _add_fairness(page: Page, entries: Sequence[Entry], label: str, y_label: str, caption: str) -> None:
    latency, evenness = _BY_LABEL["TTFT mean s"], _BY_LABEL[label]
    series, texts = {}, {}
    for entry in entries:
        points = [(latency.of(run.summary), evenness.of(run.summary)) for run in entry.runs]
        known = [i for i, point in enumerate(points) if None not in point]
        series[entry.label] = tuple(np.array([points[i][axis] for i in known], dtype=float) for axis in (0, 1))
        texts[entry.label] = [plotly_text(entry.runs[i].path.name) for i in known]
    hover = "mean TTFT %{x:,.4~r} s<br>%{y:,.4~r}"
    labels = "mean time to first token (s)", y_label
    figure = scatter(series, *labels, hover, texts=texts, from_zero=False, large=True)
    axes: Literal["x", "xy"] = "x" if label == "slowdown Jain" else "xy"  # of an index from 0 to 1 linear says more
    _start_in_log(figure, axes)
    _add_figure(page, figure, caption, f"Mean TTFT and {label}", log_switch=axes)


def _add_slo(page: Page, comparison: Comparison) -> None:
    page.add_section("Service level targets")
    shares = {label: _values_of(comparison, label) for label in ("SLO met %", "SLO TTFT met %", "SLO TPOT met %")}
    shares = {label: values for label, values in shares.items() if np.isfinite(values).any()}
    if not shares:
        page.add_text(
            "No run had targets (--slo_config_ttft, --slo_config_tpot), so there are no shares and no goodput."
        )
        return
    names = [entry.label for entry in comparison.entries]
    figure = bars(names, shares, "", "share of requests (%)", "%{y:.1f} %")
    caption = "Of all requests with a target, the unfinished ones among them; means over seeds"
    page.add_figure(figure, caption, title="Targets met")
    goodput = {"goodput": _values_of(comparison, "goodput req/s")}
    figure = bars(names, goodput, "", "requests per second", "%{y:,.4~r} requests/s")
    page.add_figure(
        figure, "Requests that finished within all of their targets, over the run's length", title="Goodput"
    )


def _values_of(comparison: Comparison, label: str) -> np.ndarray:
    """Of each entry, in the unit of the label; NaN for None."""
    metric = _BY_LABEL[label]
    values = [comparison.row(entry.label, metric).value for entry in comparison.entries]
    return np.array([np.nan if value is None else value * metric.factor for value in values])


def _pooled(entry: Entry, column: str) -> np.ndarray:
    """Of finished requests of all runs, NaN where one has no value (of an output of one token, say)."""
    return np.concatenate([run.finished[column] for run in entry.runs])


def _known(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]
