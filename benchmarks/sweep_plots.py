"""Plots of the sweep: metrics over the rate offered, and latency against fairness with the Pareto-optimal joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.report import Report
from benchmarks.harness.run import Runs
from benchmarks.sweep_verdicts import METRICS, TRADES, optimal_at, points_at
from sarathi.metrics.plot_style import COLORS, DPI, GREEN, GREY, LINE_STYLES, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Mapping[str, Sequence[tuple[float, float]]]  # by scheduler
MARKERS = "osD^v"
FONT_SIZE = 7
CAPTION = "means over seeds"


def add_figures(report: Report, runs: Runs, names: Sequence[str], load: float, targets: Mapping[str, float]) -> None:
    """Curves over the rate offered, and the trades at `load`; `targets`: by metric, drawn across its curves."""
    curves = (
        ("p99_ttft_s", "P99 TTFT, s", "P99 time to first token", "TTFT"),
        ("itl_p99_ms", "ITL P99, ms", "P99 inter-token latency", "TPOT"),
        ("mean_e2e_s", "mean E2E, s", "Mean end-to-end time", ""),
    )
    for key, axis, title, target in curves:
        level = targets.get(key)
        panels = {name: curve(runs, name, key) for name in names}
        caption = CAPTION if level is None else f"grey: the target of {target}, {level:g}; {CAPTION}"
        path = plot_curves(report.path(f"-{key}.png"), title, axis, panels, caption, log_y=True, level=level)
        report.add_figure(path, f"{title}, by rate offered")
    title = "Goodput: requests a second that keep both targets"
    panels = {name: curve(runs, name, "goodput_requests_per_s") for name in names}
    path = plot_curves(report.path("-goodput.png"), title, "requests a second", panels, CAPTION)
    report.add_figure(path, f"{title}, by rate offered")
    for trade in TRADES:
        axes = METRICS[trade[0]].heading, METRICS[trade[1]].heading
        title = f"{axes[1]} against {axes[0]}, at {load:g} times capacity"
        points = {name: points_at(runs, name, load, trade) for name in names}
        optimal = {name: optimal_at(runs, name, load, trade) for name in names}
        better = "higher" if METRICS[trade[1]].sign < 0 else "lower"
        caption = f"better: further left and {better}; {CAPTION}"
        path = plot_pareto(report.path(f"-pareto-{trade[1]}.png"), title, axes, points, optimal, caption)
        report.add_figure(path, title)


def curve(runs: Runs, workload: str, figure: str) -> dict[str, list[tuple[float, float]]]:
    """By scheduler a figure over the rate offered, means over seeds."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for case in runs.cases:
        if case.labels["workload"] == workload:
            point = float(case.labels["qps"]), runs.mean(case, figure).value
            lines.setdefault(str(case.labels["scheduler"]), []).append(point)
    return lines


def style_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour for each family, which is a name's first word; within it shades from light to dark, a marker and a line
    style for each."""
    from matplotlib.colors import to_rgb

    families = list(dict.fromkeys(name.split()[0] for name in names))
    styles = {}
    for name in names:
        family = name.split()[0]
        members = [other for other in names if other.split()[0] == family]
        place = members.index(name)
        light = 0.55 * (1 - place / (len(members) - 1)) if len(members) > 1 else 0.0
        styles[name] = {
            "color": tuple(part + light * (1 - part) for part in to_rgb(COLORS[families.index(family)])),
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": LINE_STYLES[place % len(LINE_STYLES)],
        }
    return styles


def plot_curves(
    path: Path,
    title: str,
    axis: str,
    panels: Mapping[str, Points],
    caption: str,
    *,
    log_y: bool = False,
    level: float | None = None,
) -> Path:
    """A panel a workload, a line a scheduler over the rate offered; `level`: a target, drawn across."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    styles = style_of(list(next(iter(panels.values()))))
    figure, axes = _grid(panels, ("requests offered a second", axis))
    for ax, lines in zip(axes, panels.values(), strict=True):
        for name, points in lines.items():
            ax.plot(*zip(*points, strict=True), ms=3.5, lw=1.2, label=name, **styles[name])
        if level is not None:
            ax.axhline(level, color=GREY, lw=0.9)
        if log_y:
            ax.set_yscale("log")
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8.5, loc="center left",
                  bbox_to_anchor=(0.835, 0.5))  # fmt: skip
    return save_figure(figure, path, title, "", caption, **_margins(figure, 0.83))


def plot_pareto(
    path: Path,
    title: str,
    axes: tuple[str, str],
    panels: Mapping[str, Mapping[str, tuple[float, float]]],
    optimal: Mapping[str, Sequence[str]],
    caption: str,
) -> Path:
    """A panel a workload, a point a scheduler, labelled. `optimal`, in their order, are joined by a line, and those
    named AGING with a number by a dotted one."""
    styles = style_of(list(next(iter(panels.values()))))
    figure, drawn = _grid(panels, axes)
    margins = _margins(figure, 0.98)
    figure.subplots_adjust(**margins)  # labels are placed by pixels
    for ax, (workload, points) in zip(drawn, panels.items(), strict=True):
        joined = [points[name] for name in optimal[workload]]
        path_of_alpha = [point for name, point in points.items() if name.startswith("AGING ")]
        ax.plot(*zip(*joined, strict=True), color=GREY, lw=1.0, zorder=1, label="Pareto-optimal")
        if len(path_of_alpha) > 1:
            ax.plot(*zip(*path_of_alpha, strict=True), ":", color=GREEN, lw=1.6, zorder=1, label="AGING's alpha")
        for name, point in points.items():
            style = {"color": styles[name]["color"], "marker": styles[name]["marker"]}
            ax.plot(*point, ms=6 if name in optimal[workload] else 4, linestyle="none", **style)
        ax.margins(0.14)
        ax.autoscale_view()
        _label(ax, points)
    drawn[0].legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 0.985), borderaxespad=0)
    return save_figure(figure, path, title, "", caption, **margins)


def _grid(panels: Iterable[str], labels: tuple[str, str]) -> tuple[Figure, list[Axes]]:
    """Two panels a row, each with its title."""
    figure = new_figure()
    titles = list(panels)
    columns, rows = min(2, len(titles)), -(-len(titles) // 2)
    figure.set_size_inches(10, 1.5 + 2.9 * rows)
    axes = []
    for i, title in enumerate(titles):
        ax = figure.add_subplot(rows, columns, i + 1)
        ax.set_title(title, fontsize=9.5, loc="right")
        if i + columns >= len(titles):
            ax.set_xlabel(labels[0], fontsize=9)
        if i % columns == 0:
            ax.set_ylabel(labels[1], fontsize=9)
        axes.append(ax)
    return figure, axes


def _margins(figure: Figure, right: float) -> dict[str, float]:
    """Room for title and caption, the same in inches whatever the height."""
    height = figure.get_figheight()
    return {
        "left": 0.075,
        "right": right,
        "top": 1 - 0.8 / height,
        "bottom": 0.75 / height,
        "hspace": 0.33,
        "wspace": 0.17,
    }


def _label(ax: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Names beside their points, each where it covers the least of other names and points."""
    scale = DPI / 72
    places = {name: ax.transData.transform(point) for name, point in points.items()}
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in places.values()]
    for name, (x, y) in places.items():
        width, height = 0.62 * FONT_SIZE * scale * len(name), 1.15 * FONT_SIZE * scale
        boxes = [
            (x + dx - (width if dx < 0 else 0), y + dy, x + dx + (width if dx > 0 else 0), y + dy + height)
            for distance in (1, 2, 3, 4)
            for dx in (6 * distance, -6 * distance)
            for dy in (-height / 2, 3 * distance, -height - 3 * distance)
        ]
        inside = ax.get_window_extent()
        box = min(
            boxes, key=lambda b: sum(_overlap(b, t) for t in taken) + 1e3 * (b[0] < inside.x0 or b[2] > inside.x1)
        )
        taken.append(box)
        x, y = ax.transData.inverted().transform(box[:2])
        ax.annotate(name, (x, y), fontsize=FONT_SIZE, color="#374151")


def _overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """The area that two boxes (left, bottom, right, top) share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
