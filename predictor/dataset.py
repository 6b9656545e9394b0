"""Profiling data on its way from a file of rounds to training: cleaned, thinned, split, weighted.

Every step is seeded and counts what it drops. Knows no model, and no file's format.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from predictor.features import from_rounds
from predictor.rounds_file import TARGET, read
from predictor.source import Source

BUCKET_TOKENS = 32
ROBUST_FITS = 8
MOST = 1e9  # tokens, requests, MB or seconds that a round can have


@dataclass(frozen=True)
class Dataset:
    """Rounds as arrays. raw (n, 11) is in the order of RAW_FEATURES; times (n,) in seconds."""

    raw: np.ndarray
    times: np.ndarray
    positions: np.ndarray  # (n,) place of the round in its run, from 0
    token_budgets: np.ndarray  # (n,) of the round's run
    source: Source

    def __len__(self) -> int:
        return len(self.times)

    @property
    def scheduled_tokens(self) -> np.ndarray:
        return (self.raw[:, 0] + self.raw[:, 1]).astype(np.int64)

    @property
    def buckets(self) -> np.ndarray:
        """Bucket of each round: 0 for 1 to 32 scheduled tokens, 1 for 33 to 64, ... so that edges are GEMM tiles'."""
        return (self.scheduled_tokens - 1) // BUCKET_TOKENS

    def take(self, rows: np.ndarray) -> Dataset:
        """The rounds that an index array or mask names."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "source"}
        return replace(self, **arrays)


@dataclass(frozen=True)
class DatasetSettings:
    """How a data file becomes training data. A field that is None switches its step off."""

    warmup_rounds: int = 5  # first rounds of each run that are dropped
    outlier_limit: float | None = 8.0  # robust standard deviations from the bucket's linear fit
    full_chunk_ratio: float | None = 2.0  # rounds that fill their token budget, for each that does not
    decode_only_ratio: float | None = 1.0  # rounds without prefill, for each with some; beyond the paper
    num_rounds: int | None = 36_868
    weight_range: tuple[float, float] = (1.0, 10.0)
    seed: int = 42

    def __post_init__(self) -> None:
        low, high = self.weight_range
        for name, is_allowed, allowed in (
            ("warmup_rounds", self.warmup_rounds >= 0, "at least 0"),
            ("outlier_limit", self.outlier_limit is None or self.outlier_limit > 0, "a number above 0"),
            ("full_chunk_ratio", self.full_chunk_ratio is None or self.full_chunk_ratio >= 0, "at least 0"),
            ("decode_only_ratio", self.decode_only_ratio is None or self.decode_only_ratio >= 0, "at least 0"),
            ("num_rounds", self.num_rounds is None or self.num_rounds >= 10, "at least 10"),
            ("weight_range", 0 < low <= high, "0 < low <= high"),
            ("seed", self.seed >= 0, "at least 0"),
        ):
            if not is_allowed:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not allowed; {allowed}")


class Split(NamedTuple):
    """Three disjoint parts of a data set, and the weight of each round of the first (mean near 1)."""

    train: Dataset
    validation: Dataset
    test: Dataset
    train_weights: np.ndarray
    counts: dict[str, int]  # rounds: read, dropped by each step, left, in each part
    settings: dict[
        str, Any
    ]  # that made it, JSON values; `read` tells the file: its rounds and a checksum of their times


def prepare(path: str | Path, settings: DatasetSettings | None = None) -> Split:
    """Read, clean, thin, subsample, split and weigh: the same file and settings give the same parts.

    Raises ValueError for a file that cannot be read or leaves too few rounds.
    """
    settings = settings or DatasetSettings()
    data = load(path)
    counts = {"read": len(data)}
    made_by = {**asdict(settings), "read": {"num_rounds": len(data), "times_crc32": zlib.crc32(data.times.tobytes())}}
    data, dropped = clean(data, settings)
    counts |= dropped
    data, dropped = thin(data, settings)
    counts |= {**dropped, "kept": len(data)}
    if len(data) < 10:
        raise ValueError(f"{path}: {len(data)} rounds are left of {counts['read']}; at least 10 are needed")
    train, validation, test = (data.take(rows) for rows in split_rows(data.buckets, settings.seed))
    counts |= {"train": len(train), "validation": len(validation), "test": len(test)}
    if not (train and validation and test):
        raise ValueError(
            f"{path}: {len(data)} rounds are left, and none of them for validation or test; "
            f"at least 3 of one bucket of {BUCKET_TOKENS} tokens are needed"
        )
    return Split(train, validation, test, sample_weights(train.buckets, *settings.weight_range), counts, made_by)


def load(path: str | Path) -> Dataset:
    """Read a file that predictor.collect wrote, Parquet or CSV by its suffix.

    Raises ValueError for a file that cannot be read, lacks columns, or mixes devices or models.
    """
    numbers, source = read(Path(path))
    run = numbers["run"]
    starts = np.flatnonzero(np.r_[True, run[1:] != run[:-1]])
    lengths = np.diff(np.r_[starts, len(run)])
    return Dataset(
        raw=from_rounds(numbers),
        times=numbers[TARGET],
        positions=np.arange(len(run)) - np.repeat(starts, lengths),
        token_budgets=numbers["token_budget"],
        source=source,
    )


def clean(data: Dataset, settings: DatasetSettings) -> tuple[Dataset, dict[str, int]]:
    """Without the first rounds of each run, empty rounds, values that are not finite or that no round has, outliers.

    Also returns how many rounds each rule dropped; a round counts for the first that drops it.
    """
    counts: dict[str, int] = {}
    possible = ((data.raw >= 0) & (data.raw <= MOST)).all(axis=1) & (data.times > 0) & (data.times <= MOST)
    keep = np.ones(len(data), dtype=bool)
    for name, good in (
        ("dropped_warmup", data.positions >= settings.warmup_rounds),
        ("dropped_non_finite", possible),
        ("dropped_empty", np.nan_to_num(data.raw[:, 0]) + np.nan_to_num(data.raw[:, 1]) > 0),
    ):
        counts[name] = int(np.count_nonzero(keep & ~good))
        keep &= good
    data = data.take(keep)
    counts["dropped_outlier"] = 0
    if settings.outlier_limit is not None:
        outliers = find_outliers(data, settings.outlier_limit)
        counts["dropped_outlier"] = int(np.count_nonzero(outliers))
        data = data.take(~outliers)
    return data, counts


def find_outliers(data: Dataset, limit: float, min_rounds: int = 20) -> np.ndarray:
    """Mask (n,) of rounds whose time is far from what their bucket's rounds say.

    Within a bucket time is nearly linear in tokens, requests and contexts. A round is an outlier if its residual
    from the least-absolute-deviation fit exceeds `limit` robust standard deviations (1.4826 * the median absolute
    residual, at least 3 % of the bucket's median time). Buckets with fewer than `min_rounds` rounds have none.
    """
    outliers = np.zeros(len(data), dtype=bool)
    buckets = data.buckets
    for bucket in np.unique(buckets):
        rows = np.flatnonzero(buckets == bucket)
        if len(rows) < min_rounds:
            continue
        raw, times = data.raw[rows], data.times[rows]
        terms = np.column_stack([np.ones(len(rows)), raw[:, :7], raw[:, 0] * raw[:, 5]])
        terms /= np.maximum(terms.max(axis=0), 1.0)
        least = 0.03 * float(np.median(times))
        residuals, deviation = np.full(len(rows), least), least
        for _ in range(ROBUST_FITS):  # least squares, weighted by the inverse of the residuals before
            weighted = terms * (least / np.maximum(residuals, least))[:, None]
            fit, *_ = np.linalg.lstsq(weighted.T @ terms, weighted.T @ times, rcond=None)
            residuals = np.abs(times - terms @ fit)
            deviation = max(1.4826 * float(np.median(residuals)), least)
        outliers[rows[residuals > limit * deviation]] = True
    return outliers


def thin(data: Dataset, settings: DatasetSettings) -> tuple[Dataset, dict[str, int]]:
    """Fewer of the rounds that there are too many of, then the number of rounds wanted; and how many went each time.

    Rounds that fill their token budget exactly are a spike in the paper's data. Rounds without prefill are most of
    what an engine runs, and nothing that a chunk is ever chosen for.
    """
    counts: dict[str, int] = {}
    for name, ratio, is_common in (
        ("dropped_full_chunk", settings.full_chunk_ratio, lambda data: data.scheduled_tokens == data.token_budgets),
        ("dropped_decode_only", settings.decode_only_ratio, lambda data: data.raw[:, 0] == 0),
    ):
        if ratio is not None:
            before = len(data)
            data = downsample(data, is_common(data), ratio, settings.seed)
            counts[name] = before - len(data)
    if settings.num_rounds is not None:
        before = len(data)
        data = subsample(data, settings.num_rounds, settings.seed)
        counts["dropped_subsample"] = before - len(data)
    return data, counts


def downsample(data: Dataset, is_common: np.ndarray, ratio: float, seed: int) -> Dataset:
    """At most `ratio` of the common rounds (mask (n,)) for each other one."""
    common = np.flatnonzero(is_common)
    allowed = int(ratio * (len(data) - len(common)))
    if len(common) <= allowed:
        return data
    kept = ~is_common
    kept[np.random.default_rng(seed).choice(common, allowed, replace=False)] = True
    return data.take(kept)


def subsample(data: Dataset, num_rounds: int, seed: int) -> Dataset:
    """`num_rounds` of the rounds, each bucket with its share of them (a bucket keeps at least one where that fits)."""
    if len(data) <= num_rounds:
        return data
    rng = np.random.default_rng(seed)
    _, bucket_of, sizes = np.unique(data.buckets, return_inverse=True, return_counts=True)
    shares = sizes * (num_rounds / len(data))
    quotas = np.maximum(np.floor(shares).astype(int), 1) if len(sizes) <= num_rounds else np.zeros(len(sizes), int)
    # What is over or lacking goes where rounding took or gave most.
    while (lacking := num_rounds - int(quotas.sum())) != 0:
        error = shares - quotas
        candidates = np.argsort(-error if lacking > 0 else error, kind="stable")
        if lacking < 0:
            candidates = candidates[quotas[candidates] > 1]
        quotas[candidates[: abs(lacking)]] += 1 if lacking > 0 else -1
    rows = [
        rng.choice(np.flatnonzero(bucket_of == bucket), quota, replace=False) for bucket, quota in enumerate(quotas)
    ]
    return data.take(np.sort(np.concatenate(rows)))


def split_rows(
    buckets: np.ndarray, seed: int, validation_share: float = 0.1, test_share: float = 0.1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row numbers of train, validation and test: 8:1:1 within each bucket, so the whole is not exactly that.

    Shares are rounded half up; a bucket of three rounds or more has at least one in each part.
    """
    rng = np.random.default_rng(seed)
    parts: tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]] = ([], [], [])
    for bucket in np.unique(buckets):
        rows = rng.permutation(np.flatnonzero(buckets == bucket))
        least = 1 if len(rows) >= 3 else 0
        num_validation = max(least, int(validation_share * len(rows) + 0.5))
        num_test = max(least, int(test_share * len(rows) + 0.5))
        cuts = np.cumsum([num_validation, num_test])
        for part, taken in zip((1, 2, 0), np.split(rows, cuts), strict=True):
            parts[part].append(taken)
    train, validation, test = (np.sort(np.concatenate(part)) for part in parts)
    return train, validation, test


def sample_weights(buckets: np.ndarray, low: float = 1.0, high: float = 10.0) -> np.ndarray:
    """Weight (n,) of each round: 1 / rounds in its bucket, normalised to mean 1, then clipped to [low, high]."""
    _, bucket_of, sizes = np.unique(buckets, return_inverse=True, return_counts=True)
    weights = 1.0 / sizes[bucket_of]
    return np.clip(weights / weights.mean(), low, high)
