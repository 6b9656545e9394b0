"""What a probe's figures follow from: settings, the files that they name, and code. Knows no probe and no rate."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import predictor
import sarathi
from sarathi.config import BenchmarkConfig, Config, CustomSchedulerConfig, LprsSchedulerConfig, to_dict
from sarathi.config.setting import fields_of

# Settings without an influence on what a run measures.
_NO_MATTER = ("output_dir", "log_level", "write_json_trace", "metrics_config")
_SOURCES = (".py", ".npz")


def identity(config: BenchmarkConfig) -> dict[str, Any]:
    """All that a run's latencies follow from, as JSON can hold it. Code is that of the first call in a process."""
    scheduler = config.scheduler_config
    own = scheduler.class_path.rpartition(".")[0] if isinstance(scheduler, CustomSchedulerConfig) else None
    names = {*_input_files(config), config.model_config.model}
    if isinstance(scheduler, LprsSchedulerConfig) and scheduler.predictor_file is not None:
        names.add(scheduler.predictor_file)  # no is_input_file: its reader says how to make one that is not there
    return {
        "code": [_source_digest(), *([] if own is None else [_module_digest(own)])],
        "files": {name: state for name in sorted(names) if (state := _file_states(name))},
        "settings": {key: value for key, value in to_dict(config).items() if key not in _NO_MATTER},
    }


def digest(value: object) -> str:
    """Eight hexadecimal digits that differ where the JSON of `value` does."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


@functools.cache
def _source_digest() -> str:
    """Of both packages, with the predictors that are shipped."""
    found = hashlib.sha256()
    for package in (sarathi, predictor):
        folder = Path(package.__path__[0])
        for file in sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES):
            found.update(
                f"{folder.name}/{file.relative_to(folder)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}".encode()
            )
    return found.hexdigest()


@functools.cache
def _module_digest(name: str) -> str:
    """Of the module's file; empty where there is none to be found, which the run will say."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _input_files(config: Config) -> Iterator[str]:
    for name, f in fields_of(type(config)).items():
        value = getattr(config, name)
        if isinstance(value, Config):
            yield from _input_files(value)
        elif value is not None and "setting" in f.metadata and f.metadata["setting"].is_input_file:
            yield value


def _file_states(name: str) -> list[tuple[str, int, int]]:
    """Name, size and time of the last change of the file `name`, or of every file in the folder `name`."""
    name = os.path.expanduser(name)
    paths = sorted(entry.path for entry in os.scandir(name)) if os.path.isdir(name) else [name]
    states = [(path, os.stat(path)) for path in paths if os.path.isfile(path)]
    return [(os.path.basename(path), state.st_size, state.st_mtime_ns) for path, state in states]
