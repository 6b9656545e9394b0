"""The latency predictors that come with the package: one for each device and model that were profiled for it."""

from __future__ import annotations

from pathlib import Path

from predictor.model import training_command

DIRECTORY = Path(__file__).parent / "models"


def shipped_file(device: str, model: str, simulated: bool = True) -> Path:
    """Where the predictor for this device and model is. Raises ValueError, with the command that makes one, if none."""
    path = DIRECTORY / f"{model.rpartition('/')[2]}--{device}.npz"
    if not path.exists():
        there = ", ".join(sorted(file.stem.replace("--", " on ") for file in DIRECTORY.glob("*.npz"))) or "none"
        command = training_command(device=device, model=model, simulated=simulated)
        raise ValueError(f"no predictor is shipped for {model} on {device} (there: {there}); make one with `{command}`")
    return path
