"""Plots of tables, in the look of a run's own. Knows no table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sarathi.metrics.plot_style import COLORS, GREY, LINE_STYLES, legend_above, new_figure, save_figure


def bars(
    path: Path,
    title: str,
    axis: str,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    groups: Sequence[str],
    caption: str,
) -> Path:
    """Bars in groups, a panel beside the other: panels[panel][bar] are (height, half its interval), one a group."""
    figure = new_figure()
    for i, (panel, series) in enumerate(panels.items()):
        ax = figure.add_subplot(1, len(panels), i + 1)
        places = np.arange(len(groups))
        width = 0.8 / len(series)
        for j, (name, values) in enumerate(series.items()):
            heights, halves = zip(*values, strict=True)
            color = GREY if name.startswith("paper") and len(series) == 2 else COLORS[j % len(COLORS)]
            ax.bar(places + (j - (len(series) - 1) / 2) * width, heights, width * 0.94, yerr=halves, color=color,
                   label=name, capsize=2, error_kw={"elinewidth": 0.8})  # fmt: skip
        ax.set_xticks(places, groups)
        ax.set_title(panel, fontsize=9.5, loc="right")
        if i == 0:
            ax.set_ylabel(axis, fontsize=9)
            legend_above(ax)
    return save_figure(figure, path, title, "", caption, wspace=0.18)


def cumulative(path: Path, title: str, axis: str, panels: Mapping[str, Mapping[str, np.ndarray]], caption: str) -> Path:
    """Cumulative distributions: panels[panel][line] are values in any order."""
    figure = new_figure()
    for i, (panel, series) in enumerate(panels.items()):
        ax = figure.add_subplot(1, len(panels), i + 1)
        for j, (name, values) in enumerate(series.items()):
            shares = np.arange(1, len(values) + 1) / len(values)
            ax.step(np.sort(values), 100 * shares, where="post", color=COLORS[j], label=name, lw=1.6)
        ax.set_title(panel, fontsize=9.5, loc="right")
        ax.set_xlabel(axis, fontsize=9)
        ax.set_ylim(0, 100)
        if i == 0:
            ax.set_ylabel("requests, %", fontsize=9)
            legend_above(ax)
    return save_figure(figure, path, title, "", caption, wspace=0.18)


def lines(
    path: Path,
    title: str,
    axes: tuple[str, str],
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    caption: str,
    *,
    log_y: bool = False,
) -> Path:
    """Lines with marks: panels[panel][line] are points (x, y)."""
    figure = new_figure()
    for i, (panel, series) in enumerate(panels.items()):
        ax = figure.add_subplot(1, len(panels), i + 1)
        for j, (name, points) in enumerate(series.items()):
            style = LINE_STYLES[j // len(COLORS) % len(LINE_STYLES)]
            ax.plot(
                *zip(*points, strict=True), style, marker="o", ms=3.5, lw=1.4, color=COLORS[j % len(COLORS)], label=name
            )
        ax.set_title(panel, fontsize=9.5, loc="right")
        ax.set_xlabel(axes[0], fontsize=9)
        if log_y:
            ax.set_yscale("log")
        if i == 0:
            ax.set_ylabel(axes[1], fontsize=9)
            legend_above(ax)
    return save_figure(figure, path, title, "", caption, wspace=0.2)
