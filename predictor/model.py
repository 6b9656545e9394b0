"""The latency predictor as the scheduler uses it, and its file: one .npz a model, whatever its kind.

Knows no training and no scheduler; inference is numpy. Correction by measured rounds is the scheduler's business.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from predictor.features import NUM_RAW, RAW_FEATURES, derive, feature_names, from_plan
from predictor.regressors import REGRESSORS, Linear, Mlp, Regressor, Trees, TwoPiece, numbers
from predictor.source import Source
from sarathi.core.plan import BatchPlan, MemoryStats
from sarathi.request import Request

__all__ = ["Linear", "Mlp", "ModelInfo", "Predictor", "Trees", "TwoPiece"]

logger = logging.getLogger(__name__)

FORMAT = "sarathi-latency-predictor"
VERSION = 1
RANGE_SLACK = 0.02  # of a feature's training range, beyond which a value counts as outside
UNITS = {"time": "seconds", "gpu_mem_*, cuda_*": "MB (10^6 bytes)", "all other features": "tokens or requests"}


@dataclass(frozen=True)
class ModelInfo:
    """Where a model comes from and how good it is."""

    source: Source
    num_rounds: int = 0  # trained on
    test_errors: Mapping[str, float] = field(default_factory=dict)  # names with their unit: mae_ms, mape_percent, ...
    command: str = ""  # that made it
    settings: Mapping[str, Any] = field(default_factory=dict)  # of data set and training, JSON values

    def __post_init__(self) -> None:
        for name, kind in (("num_rounds", int), ("test_errors", Mapping), ("command", str), ("settings", Mapping)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}: {getattr(self, name)!r} is not allowed; a {kind.__name__}")


class Predictor:
    """Seconds of a round from its features.

    regressor: from features (n, 16 + extras) to seconds (n,).
    extras: names of EXTRA_FEATURES that it takes beside the 16.
    training_range: least and greatest of each raw feature in the training data, (11,) each.
    """

    def __init__(
        self,
        regressor: Regressor,
        info: ModelInfo,
        training_range: tuple[np.ndarray, np.ndarray],
        extras: Sequence[str] = (),
    ) -> None:
        self.regressor = regressor
        self.info = info
        self.extras = tuple(extras)
        self.low, self.high = (numbers("training_range", bound, (NUM_RAW,)) for bound in training_range)
        if (self.low > self.high).any():
            raise ValueError("training_range: a least value above the greatest is not allowed")
        used, free, allocated, reserved = self.low[7], self.high[8], self.low[9], self.low[10]
        self._idle_memory = MemoryStats(float(used), float(free), float(allocated), float(reserved))
        # The range that is watched, with a little slack; what has been warned of leaves it.
        slack = RANGE_SLACK * (self.high - self.low)
        self._watched_low, self._watched_high = self.low - slack, self.high + slack

    @property
    def kind(self) -> str:
        return self.regressor.kind

    def predict(self, request: Request, chunks: np.ndarray, plan: BatchPlan, memory: MemoryStats) -> np.ndarray:
        """Seconds (len(chunks),) of the round, were `request` given each of `chunks` (tokens) on top of `plan`.

        Before the first result the memory is all zeros; then the least load of the training data stands for it.
        """
        if not memory.gpu_mem_used_mb:
            memory = self._idle_memory
        return self.predict_features(from_plan(request, chunks, plan, memory))

    def predict_features(self, raw: np.ndarray) -> np.ndarray:
        """Seconds (n,) for raw features (n, 11). The first value outside a feature's training range is warned of."""
        outside = (raw < self._watched_low) | (raw > self._watched_high)
        if outside.any():
            self._warn(raw, outside)
        return self.regressor(derive(raw, self.extras))

    def without_warnings(self) -> Predictor:
        """The same model, watching no training range, in the same time."""
        model = copy.copy(self)
        model._watched_low, model._watched_high = np.full(NUM_RAW, -np.inf), np.full(NUM_RAW, np.inf)
        return model

    def _warn(self, raw: np.ndarray, outside: np.ndarray) -> None:
        for column, name in enumerate(RAW_FEATURES):
            rows = np.flatnonzero(outside[:, column])
            if not len(rows):
                continue
            logger.warning(
                "latency predictor: %s = %g is outside the training range %g to %g (%s); said once for this feature",
                name,
                raw[rows[0], column],
                self.low[column],
                self.high[column],
                self.info.source,
            )
            self._watched_low[column], self._watched_high[column] = -np.inf, np.inf

    def save(self, path: str | Path) -> None:
        """Write the model in one piece. Raises ValueError if `path` does not end in .npz or cannot be written."""
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"predictor file: {path} is not allowed; a name that ends in .npz")
        header = {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "features": feature_names(self.extras),
            "extras": self.extras,
            "units": UNITS,
            "training_range": {
                name: (float(low), float(high))
                for name, low, high in zip(RAW_FEATURES, self.low, self.high, strict=True)
            },
            **asdict(self.info),
        }
        part = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                arrays: dict[str, Any] = {f"array_{name}": array for name, array in self.regressor.arrays().items()}
                np.savez_compressed(file, header=np.array(json.dumps(header, indent=1)), **arrays)
            os.replace(part, path)
        except OSError as error:
            raise ValueError(f"predictor file: {path} cannot be written ({error.strerror})") from error

    @classmethod
    def load(cls, path: str | Path, asked: Mapping[str, object] = MappingProxyType({})) -> Predictor:
        """Read a model, refusing one that was trained for something else than is asked (values of Source by name).

        Raises ValueError, one line with the command that makes the right file, for a file that is missing, corrupt,
        of another kind, with features that this version does not have, or for another device, LLM and so on.
        """
        path = Path(path)
        header, arrays = _read(path, asked)
        try:
            features, extras = list(header["features"]), header["extras"]
            known = list(feature_names(extras))
            if features != known:
                strange = sorted(set(features) ^ set(known)) or ["their order"]
                _refuse(path, f"was made for other features: {', '.join(strange)}", asked)
            source = Source(**header["source"])
            names = ("num_rounds", "test_errors", "command", "settings")
            info = ModelInfo(source, **{name: header[name] for name in names})
            bounds = [header["training_range"][name] for name in RAW_FEATURES]
            low, high = numbers("training_range", bounds, (NUM_RAW, 2)).T
            model = cls(REGRESSORS[header["kind"]].from_arrays(arrays), info, (low, high), extras)
            probes = np.stack([low, (low + high) / 2, high, np.ones(NUM_RAW)])
            with np.errstate(all="ignore"):
                numbers("predicted times", model.regressor(derive(probes, extras)), (len(probes),))
        except RefusedFileError:
            raise
        except Exception as error:  # a strange header can break anything
            _refuse(
                path,
                f"is damaged or of another version ({type(error).__name__}: {' '.join(str(error).split())})",
                asked,
            )
        for name, value in asked.items():
            trained_for = getattr(source, name)
            if trained_for != value:
                _refuse(path, f"was trained for {name} {trained_for}, not {value}", asked, is_foreign=True)
        return model


class RefusedFileError(ValueError):
    """A predictor file that cannot be used: why, and the command that makes the right one."""


def _read(path: Path, asked: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the regressor's arrays."""
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            prefix = "array_"
            arrays = {name.removeprefix(prefix): file[name] for name in file.files if name.startswith(prefix)}
    except FileNotFoundError:
        _refuse(path, "does not exist", asked)
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror or error})", asked)
    except Exception:  # of a damaged archive zipfile, zlib, json and numpy raise a dozen kinds
        _refuse(path, "is no predictor file, or is damaged", asked)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        _refuse(path, "is no predictor file", asked)
    if header.get("version") != VERSION:
        _refuse(path, f"has version {header.get('version')} of the format, not {VERSION}", asked)
    return header, arrays


def _refuse(path: Path, problem: str, asked: Mapping[str, object], is_foreign: bool = False) -> NoReturn:
    """A foreign file is somebody's good work: the command that is told must not overwrite it."""
    command = training_command("predictor.npz" if is_foreign else path, **asked)
    raise RefusedFileError(f"predictor file: {path} {problem}; make one with `{command}`") from None


_COLLECT_FLAGS = {
    "device": "--simulated_executor_config_device",
    "engine_profile": "--simulated_executor_config_engine_profile",
    "model": "--model_config_model",
    "dtype_bytes": "--model_config_dtype",
    "tensor_parallel_size": "--parallel_config_tensor_parallel_size",
    "pipeline_parallel_size": "--parallel_config_pipeline_parallel_size",
}


def training_command(path: str | Path = "predictor.npz", **asked: object) -> str:
    """The commands that profile what is asked (names of Source) and train a model on it into `path`."""
    is_real = asked.get("simulated") is False
    sizes = asked.get("tensor_parallel_size", 1), asked.get("pipeline_parallel_size", 1)
    executor = "LOCAL" if sizes == (1, 1) else "RAY"
    defaults = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "dtype_bytes": 2}
    values = {name: value for name, value in asked.items() if name != "simulated" and value != defaults.get(name)}
    if "dtype_bytes" in values:
        values["dtype_bytes"] = "float32"
    if is_real:
        values["device"] = str(values.get("device", "auto")).partition(":")[0]
    names = _COLLECT_FLAGS | ({"device": f"--{executor.lower()}_executor_config_device"} if is_real else {})
    flags = f" --executor_config_type {executor}" if is_real else ""
    flags += "".join(f" {names[name]} {shlex.quote(str(value))}" for name, value in values.items())
    return (
        f"python -m predictor.collect --output rounds.csv{flags} && "
        f"python -m predictor.train rounds.csv --output {shlex.quote(str(path))}"
    )
