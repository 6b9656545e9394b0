"""Plots of tables, in the look of a run's own: what is the paper's stands in grey. Knows no table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.statistics import Mean
from sarathi.metrics.plot_style import COLORS, GREY, LINE_STYLES, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIGHT_GREY = "#c5cad2"
TITLE, LEGEND_ROW, ABOVE, BELOW, ROW = 0.42, 0.2, 0.4, 0.72, 2.9  # inches: over and under panels; a further row of them
BARS_AT_ONCE = 0.8  # of the room of a group

Bar = tuple[float, float | None]  # its height, and half its interval


def panels_beside_paper(
    name: str,
    paper: Mapping[str, Sequence[float]],
    ours: Mapping[str, Mapping[str, Sequence[Mean]]],
    constants: Mapping[str, Sequence[float]] | None,
) -> dict[str, Mapping[str, Sequence[Bar]]]:
    """Panels for `bars`: ours[reading][bar], a mean a group. The paper's stand beside our first reading, and again
    beside that plus `constants`, one a bar and group; without these, as levels are not compared, on their own.
    """
    theirs: dict[str, Sequence[Bar]] = {bar: [(value, None) for value in values] for bar, values in paper.items()}
    panels: dict[str, Mapping[str, Sequence[Bar]]] = {}
    if constants is None:
        panels[f"{name}, paper"] = theirs
    for i, (reading, series) in enumerate(ours.items()):
        beside = theirs if i == 0 and constants else {}
        panels[f"{name}, {reading}"] = {**beside, **{bar: [mean.bar for mean in series[bar]] for bar in series}}
        if beside and constants:
            shifted = {bar: zip(means, constants[bar], strict=True) for bar, means in series.items()}
            panels[f"{name}, {reading} + constants"] = {
                **theirs,
                **{bar: [(mean.value + c, mean.half) for mean, c in pairs] for bar, pairs in shifted.items()},
            }
    return panels


def bars(
    path: Path,
    title: str,
    axis: str | Sequence[str],
    panels: Mapping[str, Mapping[str, Sequence[Bar]]],
    groups: Sequence[str],
    caption: str,
) -> Path:
    """Bars in groups, a panel beside the other: panels[panel][bar] are (height, half its interval), one a group.

    With several axes the panels stand in as many rows, each of which has its own axis.
    """
    axes = [axis] if isinstance(axis, str) else axis
    colors = _colors(series for series in panels.values())
    figure = new_figure()
    for ax, series in _panels(figure, panels, num_rows=len(axes)):
        places = np.arange(len(groups))
        width = BARS_AT_ONCE / len(series)
        for j, (name, values) in enumerate(series.items()):
            heights, halves = zip(*values, strict=True)
            spread = [half or 0.0 for half in halves] if any(halves) else None
            ax.bar(places + (j - (len(series) - 1) / 2) * width, heights, width * 0.94, yerr=spread, label=name,
                   color=colors[name], capsize=2, error_kw={"elinewidth": 0.8})  # fmt: skip
        ax.set_xticks(places, groups)
    for i, name in enumerate(axes):
        figure.axes[i * len(panels) // len(axes)].set_ylabel(name, fontsize=9)
    return _save(figure, path, title, caption, num_rows=len(axes))


def cumulative(
    path: Path,
    title: str,
    axis: str,
    panels: Mapping[str, Mapping[str, np.ndarray]],
    caption: str,
    marks: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
    share_of: str = "requests",
) -> Path:
    """Cumulative distributions: panels[panel][line] are values in any order, marks[panel][name] single points (value,
    percent)."""
    colors = _colors(panels.values())
    figure = new_figure()
    for (ax, series), panel in zip(_panels(figure, panels), panels, strict=True):
        for name, values in series.items():
            shares = np.arange(1, len(values) + 1) / len(values)
            ax.step(np.sort(values), 100 * shares, where="post", color=colors[name], label=name, lw=1.6)
        for shape, (name, point) in zip("os^v", (marks or {}).get(panel, {}).items(), strict=False):
            ax.plot(*point, shape, color=GREY, ms=6, label=name, clip_on=False)
        ax.set_xlabel(axis, fontsize=9)
        ax.set_ylim(0, 100)
    figure.axes[0].set_ylabel(f"{share_of}, %", fontsize=9)
    return _save(figure, path, title, caption)


def lines(
    path: Path,
    title: str,
    axes: tuple[str, str],
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, ...]]]],
    caption: str,
    *,
    log_x: bool = False,
) -> Path:
    """Lines with marks: panels[panel][line] are points (x, y), or (x, y, half of its interval)."""
    colors = _colors(panels.values())
    styles = {name: LINE_STYLES[i // len(COLORS) % len(LINE_STYLES)] for i, name in enumerate(colors)}
    figure = new_figure()
    for ax, series in _panels(figure, panels):
        for name, points in series.items():
            x, y, *halves = zip(*points, strict=True)
            ax.errorbar(x, y, halves[0] if halves else None, fmt=styles[name], marker="o", ms=3.5, lw=1.4, capsize=2,
                        elinewidth=0.8, color=colors[name], label=name)  # fmt: skip
        ax.set_xlabel(axes[0], fontsize=9)
        ax.set_xscale("log" if log_x else "linear")
    figure.axes[0].set_ylabel(axes[1], fontsize=9)
    return _save(figure, path, title, caption)


def _panels(figure: Figure, panels: Mapping[str, Any], num_rows: int = 1) -> Iterator[tuple[Axes, Any]]:
    """Axes, each with its panel's title, and what is to be drawn there."""
    for i, (panel, series) in enumerate(panels.items()):
        ax = figure.add_subplot(num_rows, -(-len(panels) // num_rows), i + 1)
        ax.set_title(panel, fontsize=9.5, loc="left")
        yield ax, series


def _colors(panels: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """A colour for each name, the same in all panels."""
    names = list(dict.fromkeys(name for series in panels for name in series))
    papers = [name for name in names if name.startswith("paper")]
    greys = dict(zip(papers, (LIGHT_GREY, GREY) if len(papers) == 2 else (GREY,), strict=False))
    others = [name for name in names if name not in greys]
    return greys | {name: COLORS[i % len(COLORS)] for i, name in enumerate(others)}


def _save(figure: Figure, path: Path, title: str, caption: str, num_rows: int = 1) -> Path:
    """Name what is drawn once, under the title, in as many columns as fit; and write the PNG."""
    named = {label: handle for ax in figure.axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    width, height = figure.get_size_inches()
    columns = max(1, min(len(named), int(width / (0.5 + 0.075 * max(map(len, named))))))
    above = TITLE + ABOVE + LEGEND_ROW * -(-len(named) // columns)
    height += ROW * (num_rows - 1)
    figure.set_size_inches(width, height)
    figure.legend([*named.values()], [*named], loc="upper left", bbox_to_anchor=(0.004, 1 - TITLE / height),
                  ncols=columns, frameon=False, fontsize=9, columnspacing=1.4)  # fmt: skip
    margins = {"top": 1 - above / height, "bottom": BELOW / height, "wspace": 0.2, "hspace": 0.34}
    return save_figure(figure, path, title, "", caption, **margins)
