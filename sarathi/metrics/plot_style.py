"""How plots look: colours, which pages have too, and the frame of a PNG. Knows nothing of what is plotted.

Matplotlib is imported inside functions and drawn on the Agg canvas, without pyplot's global state.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
BLUE, ORANGE, GREEN, RED, GREY = "#3b6fb6", "#e8833a", "#3a9a6e", "#c8443f", "#6b7280"
COLORS = (
    *(BLUE, ORANGE, GREEN, RED, "#8465b5", "#8c6248", "#d774b0", "#4bb3c3"),
    *("#a3a531", "#7d8794", "#e0b000", "#7fb0ee", "#7bcf8f", "#a33d75"),
)  # on white and on dark ground
LINE_STYLES = ("-", "--", ":")  # the next one where the colours have run out


def new_figure() -> Figure:
    """Of the usual size and empty."""
    from matplotlib.figure import Figure

    return Figure(figsize=(9, 4.2), dpi=DPI, facecolor="white")


def save_figure(figure: Figure, path: Path, title: str, run: str, caption: str, **margins: float) -> Path:
    """Style all axes, add the texts and write the PNG in one piece; `margins` are those of subplots_adjust."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color("#9ca3af")
        ax.tick_params(which="both", color="#9ca3af", labelsize=9)
        ax.grid(True, color="#e5e7eb", linewidth=0.7)
        ax.set_axisbelow(True)
    figure.subplots_adjust(**{"left": 0.08, "right": 0.98, "top": 0.84, "bottom": 0.17, "wspace": 0.09, **margins})
    figure.text(0.012, 0.965, title, va="top", fontsize=12, fontweight="bold", color="#111827")
    figure.text(0.988, 0.96, run, va="top", ha="right", fontsize=9.5, color="#374151")
    figure.text(0.988, 0.015, caption, ha="right", fontsize=8, color=GREY)
    part = path.with_name(path.name + ".part")
    figure.savefig(part, format="png")
    part.replace(path)
    return path


def legend_above(ax: Axes) -> None:
    """What is drawn, named over the axes, its colours at full strength."""
    legend = ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 0.985), fontsize=9, borderaxespad=0)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def seconds_text(value: float) -> str:
    """Three significant digits, in milliseconds below a second."""
    if value < 0.9995:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 99.95 else f"{value:,.0f} s"
