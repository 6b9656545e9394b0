"""What the predictor's tests of training and evaluation share: made-up rounds whose times follow a staircase."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from predictor.dataset import Dataset, Split, sample_weights, split_rows
from predictor.features import MEMORY_COLUMNS, ROUND_COLUMNS, round_to_tile
from predictor.rounds_file import NUMBER_COLUMNS, SOURCE_COLUMNS
from predictor.source import Source

SOURCE = Source("rtx_4090", "Qwen/Qwen3-8B", "lean", jitter=0.01)


def make_rounds(num_rounds: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Raw features (n, 11) and seconds (n,): 5 ms, 0.1 ms a tile's row and 1 us a token of decode context."""
    rng = np.random.default_rng(seed)
    raw = np.zeros((num_rounds, 11))
    raw[:, 0] = rng.integers(0, 1000, num_rounds)
    raw[:, 1] = rng.integers(1, 64, num_rounds)
    raw[:, 2] = raw[:, 1] + (raw[:, 0] > 0)
    context = rng.integers(50, 400, num_rounds)
    raw[:, 3], raw[:, 4] = raw[:, 1] * context, context
    raw[:, MEMORY_COLUMNS] = (20_000, 5_000, 18_000, 20_000)
    return raw, 5e-3 + 1e-4 * round_to_tile(raw[:, 0] + raw[:, 1]) + 1e-6 * raw[:, 3]


def make_split(num_rounds: int = 1000) -> Split:
    raw, times = make_rounds(num_rounds)
    data = Dataset(raw, times, np.arange(num_rounds), np.full(num_rounds, 1064.0), SOURCE)
    train, validation, test = (data.take(rows) for rows in split_rows(data.buckets, seed=1))
    return Split(train, validation, test, sample_weights(train.buckets), {"read": num_rounds}, {"seed": 1})


def write_rounds(path: Path, num_rounds: int = 600, source: Source = SOURCE) -> Path:
    """A data file as predictor.collect writes it, of one run."""
    raw, times = make_rounds(num_rounds)
    columns = dict(zip(ROUND_COLUMNS.values(), raw.T, strict=True))
    columns |= {"run": np.zeros(num_rounds), "token_budget": np.full(num_rounds, 1064.0), "batch_execution_time": times}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*NUMBER_COLUMNS, *SOURCE_COLUMNS])
        cells = [getattr(source, name) for name in SOURCE_COLUMNS]
        writer.writerows(
            [*row, *cells] for row in zip(*(columns[name].tolist() for name in NUMBER_COLUMNS), strict=True)
        )
    return path
