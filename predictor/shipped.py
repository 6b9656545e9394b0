"""The latency predictors that come with the package: one for each device and model that were profiled for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.model import training_command

DIRECTORY = Path(__file__).parent / "models"


def shipped_file(device: str, model: str, **asked: Any) -> Path:
    """Where the predictor for this device and model is. Raises ValueError, with the command that makes one, if none.

    `asked` is what else the rounds are of, by names of Source, for that command.
    """
    path = DIRECTORY / f"{model.rpartition('/')[2]}--{device}.npz"
    if not path.exists():
        there = ", ".join(sorted(file.stem.replace("--", " on ") for file in DIRECTORY.glob("*.npz"))) or "none"
        command = training_command(device=device, model=model, **asked)
        raise ValueError(f"no predictor is shipped for {model} on {device} (there: {there}); make one with `{command}`")
    return path
