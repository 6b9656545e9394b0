"""Latency against rate, one panel for each objective and one curve for each job, as PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sarathi.benchmark.capacity_search.options import Slo
from sarathi.metrics.plot_style import COLORS, DPI, LINE_STYLES, RED, save_figure, seconds_text
from sarathi.metrics.plots import machine_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sarathi.benchmark.capacity_search.pool import Outcome

PANEL = 4.6  # inches, the width of a panel
MARKERS = "osD^vP"
FLOOR = 1e-3  # seconds, where a logarithmic axis begins: one delay of microseconds would flatten all others


def plot_capacity(outcomes: Sequence[Outcome], slos: Sequence[Slo], path: Path) -> None:
    """Draw every finished probe, each objective's limit, and a dotted line at each job's capacity.

    Points without a finite value (requests unfinished at the time limit) stand at the upper edge, hollow; those below
    FLOOR of a logarithmic axis at its lower edge.
    """
    from matplotlib.figure import Figure

    shown = [outcome for outcome in outcomes if outcome.probes]
    width = max(8.0, PANEL * len(slos) + 1)
    legend_rows = math.ceil(len(shown) / 3)
    height = 4.6 + 0.22 * legend_rows
    figure = Figure(figsize=(width, height), dpi=DPI)
    panels = figure.subplots(1, len(slos), squeeze=False)[0]
    for ax, slo in zip(panels, slos, strict=True):
        _panel(ax, shown, slo)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        below = (0.5, 0.25 / height)
        figure.legend(handles, labels, loc="lower center", bbox_to_anchor=below, ncols=3, frameon=False, fontsize=8.5)
    margins = {
        "left": 0.75 / width,
        "right": 1 - 0.2 / width,
        "top": 1 - 0.65 / height,
        "bottom": (0.95 + 0.22 * legend_rows) / height,
        "wspace": 0.25,
    }
    caption = "each point a probe, a job's probes with the same requests"
    save_figure(figure, path, "Latency against rate", _machine(shown), caption, **margins)


def _panel(ax: Axes, outcomes: Sequence[Outcome], slo: Slo) -> None:
    values = [value for o in outcomes for p in o.probes if (value := p.figures[slo.quantity]) and value < math.inf]
    floor = min(FLOOR, slo.limit / 10)
    low, high = max(min([*values, slo.limit]), floor), max([*values, slo.limit])
    is_wide = high > 30 * low
    top = high * (2 if is_wide else 1.15)
    if is_wide:
        ax.set_yscale("log")
    for i, outcome in enumerate(outcomes):
        color, style = COLORS[i % len(COLORS)], LINE_STYLES[i // len(COLORS) % len(LINE_STYLES)]
        points = sorted((p.rate, value) for p in outcome.probes if (value := p.figures[slo.quantity]) is not None)
        if not points:
            continue
        rates = [rate for rate, _ in points]
        heights = [min(max(value, floor) if is_wide else value, top) for _, value in points]
        marker = MARKERS[i % len(MARKERS)]
        ax.plot(rates, heights, style, color=color, linewidth=1.5, marker=marker, markersize=4, label=outcome.job.key)
        lost = [rate for rate, value in points if value == math.inf]
        ax.plot(lost, [top] * len(lost), marker, color="white", markeredgecolor=color, markersize=5, clip_on=False)
        capacity = getattr(outcome.end, "low", None)
        if capacity is not None:
            ax.axvline(capacity, color=color, linestyle=":", linewidth=1)
    ax.axhline(slo.limit, color=RED, linestyle="--", linewidth=1.2)
    ax.annotate(
        f"limit {seconds_text(slo.limit)}", (0.02, slo.limit), xycoords=("axes fraction", "data"), xytext=(0, 3),
        textcoords="offset points", fontsize=8.5, color=RED,
    )  # fmt: skip
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "235" else "")
    if is_wide:
        ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.set_ylim(low / 1.5, top) if is_wide else ax.set_ylim(0, top)
    ax.set(xlabel="rate (requests/s)", ylabel=f"{slo.label} (s)")


def _machine(outcomes: Sequence[Outcome]) -> str:
    """What served, where that is the same for all."""
    names = set()
    for machine in (outcome.job.machine for outcome in outcomes):
        replicas = {"num_replicas": machine["num_replicas"]} if machine["num_replicas"] > 1 else {}
        told = {"model": machine["identifier"], "device": machine["device"], "simulated": machine["simulated"]}
        names.add(machine_title({**told, **replicas}))
    return names.pop() if len(names) == 1 else ""
