"""The settings of training, each once, with its flag; and the presets. Knows nothing of what is done with them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from predictor.features import EXTRA_FEATURES

MAX_LAYERS, MAX_UNITS, MAX_THREADS = 16, 4096, 1024
SCHEDULES = ("constant", "cosine")


def _option(default: Any, description: str) -> Any:
    return field(default=default, metadata={"help": description})


@dataclass(frozen=True)
class TrainConfig:
    """How the MLP is trained. The defaults are the paper's Table 7; it leaves the loss's two constants open."""

    epochs: int = _option(300, "passes over the training rounds")
    lr: float = _option(2e-3, "learning rate of AdamW")
    lr_schedule: str = _option("constant", "constant, or cosine: from lr to 0 over the epochs")
    weight_decay: float = _option(1e-3, "decoupled weight decay of AdamW")
    hidden_sizes: tuple[int, ...] = _option((128, 64, 32), "units of each hidden layer")
    dropout: float = _option(0.1, "probability that a hidden unit is left out of a training step")
    batch_size: int = _option(256, "rounds a training step")
    under_weight: float = _option(2.0, "what an underestimate costs, an overestimate of the same size costing 1")
    huber_delta: float = _option(1.0, "error where the loss turns linear, in standard deviations of the round time")
    extras: tuple[str, ...] = _option((), f"features beyond the paper's 16: {', '.join(EXTRA_FEATURES)}")
    seed: int = _option(42, "of initial weights, order of rounds and dropout")
    num_threads: int = _option(1, "threads of torch; results are repeated to the last bit only at the same number")

    def __post_init__(self) -> None:
        for name, is_allowed, allowed in (
            ("epochs", self.epochs >= 1, "at least 1"),
            ("lr", 0 < self.lr < math.inf, "above 0"),
            ("lr_schedule", self.lr_schedule in SCHEDULES, " or ".join(SCHEDULES)),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0"),
            (
                "hidden_sizes",
                0 < len(self.hidden_sizes) <= MAX_LAYERS and all(1 <= size <= MAX_UNITS for size in self.hidden_sizes),
                f"1 to {MAX_LAYERS} layers of 1 to {MAX_UNITS:,} units",
            ),
            ("dropout", 0 <= self.dropout < 1, "in [0, 1)"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("under_weight", 0 < self.under_weight < math.inf, "above 0"),
            ("huber_delta", 0 < self.huber_delta < math.inf, "above 0"),
            ("extras", set(self.extras) <= set(EXTRA_FEATURES), f"among {', '.join(EXTRA_FEATURES)}"),
            ("seed", 0 <= self.seed < 2**63, "0 to 2^63 - 1"),
            ("num_threads", 1 <= self.num_threads <= MAX_THREADS, f"1 to {MAX_THREADS:,}"),
        ):
            if not is_allowed:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not allowed; {allowed}")


PRESETS: dict[str, TrainConfig] = {
    "paper": TrainConfig(),
    # Round time is a staircase in tokens: dropout blurs its edges, and its tiles as a feature give them away.
    "shipped": TrainConfig(dropout=0.0, lr_schedule="cosine", extras=("tile_tokens",)),
}


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """`--preset`, and a flag for each setting, that wins over the preset's value."""
    group = parser.add_argument_group("training", "In parentheses: the values of the presets paper and shipped.")
    group.add_argument("--preset", choices=PRESETS, default="shipped", help="paper: its Table 7 (default: shipped)")
    for option in fields(TrainConfig):
        values = [getattr(config, option.name) for config in PRESETS.values()]
        is_tuple = isinstance(values[0], tuple)
        group.add_argument(
            f"--{option.name.replace('_', '-')}",
            type={"hidden_sizes": int, "extras": str}[option.name] if is_tuple else type(values[0]),
            action=_StoreTuple if is_tuple else "store",
            nargs="*" if is_tuple else None,
            help=f"{option.metadata['help']} ({', '.join(_shown(value) for value in values)})",
        )


def config_from_flags(arguments: argparse.Namespace) -> TrainConfig:
    """Raises ValueError naming a setting that makes no sense."""
    given = {option.name: getattr(arguments, option.name) for option in fields(TrainConfig)}
    return replace(PRESETS[arguments.preset], **{name: value for name, value in given.items() if value is not None})


class _StoreTuple(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, tuple(values or ()))


def _shown(value: object) -> str:
    return (" ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
