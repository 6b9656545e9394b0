"""PNG plots of a training run and of predictions. Matplotlib is imported inside functions, without pyplot's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110
COLORS = ("#3b6fb6", "#e8833a", "#3a9a6e", "#c8443f", "#8465b5", "#8c6248")
GREY = "#6b7280"


class LossPoint(Protocol):
    @property
    def epoch(self) -> int: ...
    @property
    def train_loss(self) -> float: ...
    @property
    def validation_loss(self) -> float: ...
    @property
    def validation_mae_ms(self) -> float: ...


def plot_loss(history: Sequence[LossPoint], path: Path) -> None:
    """Losses and validation MAE by epoch, the kept epoch marked."""
    figure = _figure()
    losses, errors = figure.subplots(1, 2)
    epochs = [point.epoch for point in history]
    losses.plot(epochs, [point.train_loss for point in history], color=COLORS[0], label="training")
    losses.plot(epochs, [point.validation_loss for point in history], color=COLORS[1], label="validation")
    losses.set(xlabel="epoch", ylabel="loss (Eq. 5, standardised), log scale", yscale="log")
    losses.legend(frameon=False)
    best = min(history, key=lambda point: point.validation_mae_ms)
    errors.plot(epochs, [point.validation_mae_ms for point in history], color=COLORS[1])
    errors.plot([best.epoch], [best.validation_mae_ms], "o", color=COLORS[3], label=f"kept: epoch {best.epoch}")
    errors.set(xlabel="epoch", ylabel="validation MAE (ms), log scale", yscale="log")
    errors.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    errors.yaxis.set_minor_formatter(lambda y, _: f"{y:g}")
    errors.legend(frameon=False)
    _save(figure, path, "Training of the latency predictor")


def plot_predictions(
    predictions: Mapping[str, np.ndarray], true: np.ndarray, name: str, path: Path, title: str
) -> None:
    """The model `name` against the truth, and the distribution of every model's absolute error.

    predictions: seconds (n,) by model; true: seconds (n,).
    """
    figure = _figure()
    scatter, errors = figure.subplots(1, 2)
    true_ms = 1e3 * true
    top = 1.05 * float(max(true_ms.max(), 1e3 * predictions[name].max()))
    scatter.plot([0, top], [0, top], color=GREY, linewidth=0.8, label="predicted = measured")
    scatter.scatter(true_ms, 1e3 * predictions[name], s=6, alpha=0.35, linewidths=0, color=COLORS[0], label=name)
    scatter.set(xlabel="measured round time (ms)", ylabel="predicted (ms)", xlim=(0, top), ylim=(0, top))
    scatter.legend(frameon=False, loc="upper left", markerscale=3)
    share = np.arange(1, len(true) + 1) / len(true)
    for color, (label, predicted) in zip(COLORS, predictions.items(), strict=False):
        error = np.sort(np.abs(1e3 * predicted - true_ms))
        errors.step(error, 100 * share, where="post", color=color, linewidth=1.6, label=label)
    errors.axvline(5, color=GREY, linewidth=0.8, linestyle="--")
    errors.set(xlabel="absolute error (ms), log scale; dashed: 5 ms", ylabel="rounds with at most that error (%)")
    errors.set(xscale="log", xlim=(1e-2, None), ylim=(0, 100))
    errors.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    errors.legend(frameon=False, loc="upper left")
    _save(figure, path, title)


def _figure() -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(10, 4.4), dpi=DPI, facecolor="white", layout="constrained")


def _save(figure: Figure, path: Path, title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="#e5e7eb", linewidth=0.7)
        ax.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
