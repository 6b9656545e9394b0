"""Plotly figures as plain dicts, from numpy arrays. Knows plotly's JSON, not plotly, and nothing of runs.

Values are rounded to six significant digits; NaN becomes a gap. `thinning` tells which points are drawn.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from sarathi.metrics.html.page import number
from sarathi.metrics.percentiles import counted_percentile
from sarathi.metrics.plot_style import BLUE, COLORS, GREEN, GREY, ORANGE, RED
from sarathi.metrics.thinning import MAX_CDF_POINTS, Counted, binned, cdf_indices, distinct, rounded

# Taken from here by those who draw: one colour means one thing in PNGs and in pages.
__all__ = ["BLUE", "COLORS", "GREEN", "GREY", "MAX_CDF_POINTS", "ORANGE", "RED", "Counted"]

Figure = dict[str, Any]

MAX_STEPS = 2000  # of a line over time; beyond, it is drawn as that many slices of time
DASHES = ("solid", "dash", "dot")  # the next one where the colours have run out
MARKED_PERCENTILES = (50, 90, 99)
MAX_IN_A_ROW = 6  # names of a legend above the axes; more stand beside them
LONG_TAIL = 20  # times the median: where a maximum is farther out, a CDF starts with a log axis


def plotly_text(text: str) -> str:
    """A text that may come from anywhere, for a trace's name or hover label: plotly reads those as a kind of HTML."""
    return html.escape(text, quote=False)


# ---- figures


def cdf(
    series: Mapping[str, np.ndarray | Counted],
    label: str,
    unit: str,
    *,
    scale: float = 1.0,
    color: str = "",
    log_x: bool = False,
) -> Figure:
    """The share of values at or below x, for each of `series`, as steps. Empty series are left out. The axis is
    logarithmic at first with `log_x`, or where one has a long tail.

    Values are multiplied by `scale`, which leads to `unit`; those not finite do not count. Of a lone series, drawn in
    `color`, the percentiles MARKED_PERCENTILES are marked.
    """
    traces: list[dict[str, Any]] = []
    is_log = log_x
    for i, (name, values) in enumerate(series.items()):
        x, cumulative = distinct(values)
        if not len(x):
            continue
        x, share = x * scale, cumulative / cumulative[-1]
        median = x[np.searchsorted(share, 0.5)]
        is_log = is_log or has_long_tail(float(median), float(x[-1]))
        shown = cdf_indices(share)
        line = {"shape": "hv", "width": 2, **_style(i), **({"color": color} if color else {})}
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plotly_text(name),
                "x": rounded(np.append(x[:1], x[shown])),
                "y": rounded(np.append(0.0, share[shown])),
                "line": line,
                "hovertemplate": f"%{{x:,.4~r}} {unit}<br>%{{y:.2%}} at or below",
            }
        )
        if len(series) == 1:
            traces.append(_marked_percentiles(x, cumulative, unit, is_log))
    xaxis = {"type": "log" if is_log else "linear", "rangemode": "tozero"}
    yaxis = {"range": [0, 1.09], "tickformat": ".0%", "tickvals": [0, 0.2, 0.4, 0.6, 0.8, 1]}
    figure = _figure(traces, f"{label} ({unit})", "share", xaxis=xaxis, yaxis=yaxis)
    figure["layout"]["showlegend"] = len(series) > 1
    return figure


def scatter(
    series: Mapping[str, tuple[np.ndarray, np.ndarray]],
    x_label: str,
    y_label: str,
    hover: str,
    *,
    texts: Mapping[str, Sequence[str]] | None = None,
    colors: Sequence[str] = COLORS,
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = True,
    large: bool = False,
) -> Figure:
    """Points (x, y) of each of `series`; `texts` gives each point's own line or lines of its hover label, escaped.

    `large` suits a few points, and gives them other shapes where the colours have run out.

    `hover` is plotly's template of the label's common part, such as '%{x:,} tokens<br>%{y:,.4~r} s'. Callers thin:
    see `thinned`.
    """
    traces = []
    for i, (name, (x, y)) in enumerate(series.items()):
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "markers",
            "name": plotly_text(name),
            "x": rounded(x),
            "y": rounded(y),
            "marker": {"size": 6 if len(x) < 1000 else 4, "color": colors[i % len(colors)], "line": {"width": 0}},
            "opacity": 0.8 if len(x) < 500 else 0.5,
            "hovertemplate": hover,
        }
        if large:
            trace |= {"marker": {**trace["marker"], "size": 11, "symbol": i // len(colors)}, "opacity": 0.85}
        if texts and name in texts:
            trace |= {"text": list(texts[name]), "hovertemplate": f"%{{text}}<br>{hover}"}
        traces.append(trace)
    xaxis, yaxis = ({"type": "log" if is_log else "linear"} for is_log in (log_x, log_y))
    if from_zero:
        xaxis["rangemode"] = yaxis["rangemode"] = "tozero"
    return _figure(traces, x_label, y_label, xaxis=xaxis, yaxis=yaxis)


def lines(
    series: Mapping[str, tuple[np.ndarray, np.ndarray]],
    x_label: str,
    y_label: str,
    hover: str,
    *,
    log_x: bool = False,
    markers: bool = False,
) -> Figure:
    """A line through the points (x, y) of each of `series`, in colours and dashes as `cdf`. Empty series are left out.

    `hover`: as of `scatter`, without the name, which is added.
    """
    traces = [
        _line(x, y, name, hover=f"{hover}<extra>{plotly_text(name)}</extra>", markers=markers, **_style(i))
        for i, (name, (x, y)) in enumerate(series.items())
        if len(x)
    ]
    xaxis = {"type": "log" if log_x else "linear"}
    return _figure(traces, x_label, y_label, xaxis=xaxis, showlegend=True)


def over_time(
    times: np.ndarray,
    series: Mapping[str, np.ndarray],
    y_label: str,
    unit: str,
    *,
    reduce: Literal["max", "mean"] = "max",
    stacked: bool = False,
    colors: Sequence[str] = COLORS,
    num_slices: int = MAX_STEPS,
) -> Figure:
    """Steps over `times` (seconds, ascending), all `series` known at each of them; as areas that add up if `stacked`.

    With more than `num_slices` times, what is drawn is the highest value or the mean of each slice of time.
    """
    traces = []
    for i, (name, values) in enumerate(series.items()):
        x, y = binned(times, values, num_slices, reduce) if len(times) > num_slices else (times, values)
        color = colors[i % len(colors)]
        fill: dict[str, Any] = {"stackgroup": "one"} if stacked else {"fill": "tozeroy"}
        if len(series) > 2:  # areas over one another hide each other
            fill = {}
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plotly_text(name),
                "x": rounded(x),
                "y": rounded(y),
                "line": {"shape": "hv", "width": 0.5 if stacked else 1.5, "color": color},
                "fillcolor": _translucent(color, 0.8 if stacked else 0.16),
                "hovertemplate": f"%{{y:,.4~r}} {unit}",
                **fill,
            }
        )
    return _figure(
        traces,
        "time (s)",
        y_label,
        xaxis={"hoverformat": ",.5~r", "unifiedhovertitle": {"text": "%{x} s"}},
        yaxis={"rangemode": "tozero"},
        hovermode="x unified",
    )


def histogram(values: np.ndarray, label: str, unit: str, what: str, *, color: str = BLUE, bins: int = 60) -> Figure:
    """How many `what` (a plural) fall into each of `bins` equal ranges of the finite `values`."""
    values = values[np.isfinite(values)]
    counts, edges = np.histogram(values, bins=bins)
    trace = {
        "type": "bar",
        "x": rounded((edges[:-1] + edges[1:]) / 2),
        "y": counts.tolist() if len(values) else [],
        "width": float(edges[1] - edges[0]),
        "customdata": [[lo, hi] for lo, hi in zip(rounded(edges[:-1], 4), rounded(edges[1:], 4), strict=True)],
        "marker": {"color": color, "line": {"width": 0}},
        "hovertemplate": f"%{{customdata[0]:,}} to %{{customdata[1]:,}} {unit}<br>%{{y:,}} {what}<extra></extra>",
    }
    return _figure([trace], f"{label} ({unit})", what, showlegend=False, bargap=0)


def bars(names: Sequence[str], series: Mapping[str, np.ndarray], x_label: str, y_label: str, hover: str) -> Figure:
    """Groups of bars side by side: one group for each of `names`, one bar of it for each of `series`."""
    traces = [
        {
            "type": "bar",
            "name": plotly_text(name),
            "x": [plotly_text(text) for text in names],
            "y": rounded(values),
            "marker": {"color": COLORS[i % len(COLORS)]},
            "hovertemplate": hover,
        }
        for i, (name, values) in enumerate(series.items())
    ]
    return _figure(traces, x_label, y_label, xaxis={"type": "category"}, bargap=0.3)


def add_line(
    figure: Figure, x: np.ndarray, y: np.ndarray, name: str, color: str, hover: str = "", dash: str = "solid"
) -> None:
    """Draw a line over what the figure holds. Without `hover` it has no label of its own."""
    figure["data"].append(_line(x, y, name, color, hover, dash))


# ---- pieces


def _line(
    x: np.ndarray, y: np.ndarray, name: str, color: str, hover: str, dash: str, markers: bool = False
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": plotly_text(name),
        "x": rounded(x),
        "y": rounded(y),
        "line": {"width": 2, "color": color, "dash": dash},
        "marker": {"size": 7},
        **({"hovertemplate": hover} if hover else {"hoverinfo": "skip"}),
    }


def _style(i: int) -> dict[str, str]:
    """Of the line of the i-th series."""
    return {"color": COLORS[i % len(COLORS)], "dash": DASHES[i // len(COLORS) % len(DASHES)]}


def has_long_tail(median: float, largest: float) -> bool:
    """Whether a log axis shows the values better."""
    return largest > LONG_TAIL * median > 0


def _marked_percentiles(x: np.ndarray, cumulative: np.ndarray, unit: str, is_log: bool) -> dict[str, Any]:
    counts = np.diff(cumulative, prepend=0)
    values = np.array([counted_percentile(x, counts, q) for q in MARKED_PERCENTILES])
    low, span = (x[0], np.log(x[-1] / x[0])) if is_log and x[0] > 0 else (0.0, x[-1])
    places = np.log(values / low) / span if low else values / span if span else values
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": rounded(values),
        "y": [q / 100 for q in MARKED_PERCENTILES],
        "text": [f"P{q} {number(value)} {unit}" for q, value in zip(MARKED_PERCENTILES, values, strict=True)],
        "textposition": ["top left" if place > 0.62 else "bottom right" for place in places],
        "textfont": {"size": 11},
        "marker": {"size": 7, "color": GREY},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def _translucent(color: str, alpha: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _figure(traces: list[dict[str, Any]], x_label: str, y_label: str, **layout: Any) -> Figure:
    xaxis = {"title": {"text": x_label}, **layout.pop("xaxis", {})}
    yaxis = {"title": {"text": y_label}, "separatethousands": True, **layout.pop("yaxis", {})}
    if len(traces) > MAX_IN_A_ROW:
        beside = {"orientation": "v", "x": 1.02, "xanchor": "left", "y": 1, "yanchor": "top"}
        layout["legend"] = {**beside, "maxheight": 275}  # pixels, down to the plot's lower edge
    return {"data": traces, "layout": {"xaxis": xaxis, "yaxis": yaxis, **layout}}
