"""The file of profiling data: rounds of many runs and what they ran on, gathered from their folders, and read again.

As CSV and, where pyarrow is installed, as Parquet. Knows columns only, not what they mean.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from predictor.features import ROUND_COLUMNS as FEATURE_COLUMNS
from predictor.source import Source
from sarathi.metrics.records import ROUND_COLUMNS

TARGET = "batch_execution_time"
SOURCE_COLUMNS: dict[str, type] = {
    "device": str,
    "model": str,
    "engine_profile": str,
    "dtype_bytes": int,
    "tensor_parallel_size": int,
    "pipeline_parallel_size": int,
    "simulated": bool,
    "jitter": float,
}
NUMBER_COLUMNS = ("run", *FEATURE_COLUMNS.values(), "token_budget", TARGET)
# Beside the round's own columns; from a run's summary.json.
SETTING_COLUMNS = (*SOURCE_COLUMNS, "scheduler", "workload", "num_gpu_blocks", "max_model_len", "seed")


def gather(directories: Iterable[Path], output: Path) -> int:
    """Write the rounds of all runs as one CSV file and, where pyarrow is installed, one of Parquet.

    Columns: `run` (from 0), those of rounds.csv (empty where an older run lacks one), then SETTING_COLUMNS of the
    run's summary.json. Returns the number of rounds. Raises ValueError for a folder that holds no finished run, and
    for runs of different devices, models or engine settings. Nothing is left half-written.
    """
    csv_path = output.with_suffix(".csv")
    part = csv_path.with_name(csv_path.name + ".part")
    num_rounds = 0
    first: tuple[Path, Source] | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("run", *ROUND_COLUMNS, *SETTING_COLUMNS))
            for run, directory in enumerate(directories):
                source, settings = _read_summary(directory)
                first = first or (directory, source)
                if differences := first[1].differences(source):
                    raise ValueError(f"{first[0]} and {directory} do not belong in one file; {'; '.join(differences)}")
                for row in _read_rounds(directory / "rounds.csv"):
                    writer.writerow((run, *row, *settings))
                    num_rounds += 1
        if not num_rounds:
            raise ValueError("no rounds were recorded; no request of the runs could be scheduled")
        _write_parquet(part, output.with_suffix(".parquet"))
        os.replace(part, csv_path)
    except OSError as error:
        raise ValueError(f"--output: {output} cannot be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            part.unlink()
    return num_rounds


def _read_summary(directory: Path) -> tuple[Source, list[Any]]:
    """What a run ran on, and the cells of SETTING_COLUMNS."""
    try:
        summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        known = {name: summary[name] for name in SOURCE_COLUMNS if name in summary}
        source = Source(**known)
    except OSError as error:
        raise ValueError(f"{directory}: no finished run; summary.json: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{directory / 'summary.json'}: not a run's summary ({error})") from error
    values = {**summary, **asdict(source)}
    return source, [values.get(name, "") for name in SETTING_COLUMNS]


def _read_rounds(path: Path) -> Iterator[list[str]]:
    """Rows of a rounds.csv with their cells in the order of ROUND_COLUMNS."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            missing = [name for name in NUMBER_COLUMNS if name not in header and name != "run"]
            if missing:
                raise ValueError(f"{path}:1: column(s) {', '.join(missing)} are missing; a rounds.csv has them")
            places = [header.index(name) if name in header else -1 for name in ROUND_COLUMNS]
            for row in reader:
                if len(row) != len(header):
                    raise ValueError(f"{path}:{reader.line_num}: {len(row)} cells are not allowed; {len(header)}")
                row.append("")  # what place -1 reads
                yield [row[place] for place in places]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error


def _write_parquet(csv_path: Path, path: Path) -> None:
    """The same table as Parquet; without pyarrow a line says that there is none."""
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.csv as arrow_csv  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        path.unlink(missing_ok=True)  # an older one would not hold the same rounds
        print("pyarrow is not installed (pip install 'sarathi-serve-fair[predictor]'): CSV alone, no Parquet")
        return
    arrow_types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    # Told, not guessed: a first block of lone numbers would make these columns integers.
    types = {name: arrow_types[kind] for name, kind in SOURCE_COLUMNS.items()}
    types |= dict.fromkeys(("prefill_chunks", "reasons"), pa.string())
    table = arrow_csv.read_csv(csv_path, convert_options=arrow_csv.ConvertOptions(column_types=types))
    part = path.with_name(path.name + ".part")
    try:
        parquet.write_table(table, part)
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink()


def read(path: Path) -> tuple[dict[str, np.ndarray], Source]:
    """NUMBER_COLUMNS of a file that `gather` wrote, Parquet or CSV by its suffix, and what its rounds ran on.

    Raises ValueError for a file that cannot be read, lacks columns, or mixes devices or models.
    """
    check_exists(path)
    try:
        numbers, sources = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    if len(sources) != 1:
        differences = sources[0].differences(sources[1]) if sources else ["no round at all"]
        raise ValueError(f"{path}: all rounds must come from one device and model; {'; '.join(differences)}")
    return numbers, sources[0]


def check_exists(path: Path) -> None:
    """Raises ValueError, with the command that makes it, for a data file that is not there."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such data file; python -m predictor.collect --output {path} makes one")


def _read_parquet(path: Path) -> tuple[dict[str, np.ndarray], list[Source]]:
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            f"Parquet needs pyarrow (pip install 'sarathi-serve-fair[predictor]'); "
            f"{path.with_suffix('.csv').name} holds the same rounds"
        ) from None
    try:
        names = parquet.read_schema(path).names
        _check_columns(names)
        table = parquet.read_table(path, columns=[*NUMBER_COLUMNS, *SOURCE_COLUMNS])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"cannot be read as Parquet ({error})") from error
    numbers = {name: table[name].to_numpy().astype(np.float64) for name in NUMBER_COLUMNS}
    distinct = table.select(list(SOURCE_COLUMNS)).group_by(list(SOURCE_COLUMNS)).aggregate([]).to_pylist()
    return numbers, [Source(**row) for row in distinct]


def _read_csv(path: Path) -> tuple[dict[str, np.ndarray], list[Source]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    _check_columns(names)

    def columns(wanted: Sequence[str], dtype: type) -> np.ndarray:
        places = [names.index(name) for name in wanted]
        return np.loadtxt(
            path, dtype, delimiter=",", quotechar='"', skiprows=1, usecols=places, ndmin=2, encoding="utf-8",
            comments=None,
        )  # fmt: skip

    numbers = columns(NUMBER_COLUMNS, float)
    cells = np.unique(columns(tuple(SOURCE_COLUMNS), str), axis=0)
    sources = [_source(dict(zip(SOURCE_COLUMNS, row, strict=True))) for row in cells.tolist()]
    return dict(zip(NUMBER_COLUMNS, numbers.T, strict=True)), sources


def _check_columns(names: Sequence[str]) -> None:
    missing = [name for name in (*NUMBER_COLUMNS, *SOURCE_COLUMNS) if name not in names]
    if missing:
        raise ValueError(
            f"column(s) {', '.join(missing)} are missing; a data file of python -m predictor.collect is needed "
            "(--from-runs makes one of past runs)"
        )


def _source(cells: Mapping[str, str]) -> Source:
    values: dict[str, Any] = {
        name: cells[name] == "True" if kind is bool else kind(cells[name]) for name, kind in SOURCE_COLUMNS.items()
    }
    return Source(**values)
