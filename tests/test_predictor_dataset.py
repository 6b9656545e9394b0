"""Profiling data: what cleaning drops, which ratios thinning keeps, and that splits are stratified and repeatable."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from predictor.dataset import (
    Dataset,
    DatasetSettings,
    clean,
    downsample,
    find_outliers,
    load,
    prepare,
    sample_weights,
    split_rows,
    subsample,
    thin,
)
from predictor.rounds_file import NUMBER_COLUMNS, SOURCE_COLUMNS
from predictor.source import Source

SOURCE = Source("rtx_4090", "Qwen/Qwen3-8B", engine_profile="lean", jitter=0.01)


def make_dataset(num_rounds: int = 400, seed: int = 0, max_tokens: int = 200) -> Dataset:
    """Rounds of one run whose times are linear in their features, with 1 % noise; every fourth has no prefill."""
    rng = np.random.default_rng(seed)
    raw = np.zeros((num_rounds, 11))
    raw[:, 0] = rng.integers(1, max_tokens, num_rounds) * (np.arange(num_rounds) % 4 > 0)
    raw[:, 1] = rng.integers(1, 30, num_rounds)
    raw[:, 2] = raw[:, 1] + (raw[:, 0] > 0)
    raw[:, 3] = raw[:, 1] * rng.integers(10, 500, num_rounds)
    times = (0.02 + 1e-4 * raw[:, 0] + 3e-7 * raw[:, 3]) * rng.normal(1, 0.01, num_rounds)
    return Dataset(raw, times, np.arange(num_rounds), np.full(num_rounds, 512.0), SOURCE)


def write_csv(path: Path, data: Dataset, run: np.ndarray, **changes: object) -> Path:
    names = (*NUMBER_COLUMNS, *SOURCE_COLUMNS)
    source = {name: getattr(SOURCE, name) for name in SOURCE_COLUMNS}
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for i in range(len(data)):
            numbers = dict(zip(NUMBER_COLUMNS[1:12], data.raw[i], strict=True))
            writer.writerow({
                "run": run[i], **numbers, "token_budget": 512, "batch_execution_time": data.times[i], **source,
                **{name: value for name, value in changes.items() if i == len(data) - 1},
            })  # fmt: skip
    return path


def test_a_bucket_is_32_scheduled_tokens_that_end_at_a_tile() -> None:
    data = make_dataset(6)
    data.raw[:, 0] = (1, 32, 33, 64, 65, 1024)
    data.raw[:, 1] = 0
    assert data.buckets.tolist() == [0, 0, 1, 1, 2, 31]


def test_each_cleaning_rule_drops_and_counts_its_own_rounds() -> None:
    data = make_dataset()
    data.raw[10, 3] = np.nan
    data.times[11] = np.inf
    data.times[12] = 0.0
    data.raw[13, :2] = 0
    data.raw[14, 0], data.raw[15, 3] = 1e300, -1.0
    data.times[100] *= 3
    data.times[101] *= 0.3
    data.positions[200:] -= 200  # a second run
    data.times[201] = np.nan  # within its warm-up: counted once
    cleaned, counts = clean(data, DatasetSettings(warmup_rounds=7))
    assert counts == {"dropped_warmup": 14, "dropped_non_finite": 5, "dropped_empty": 1, "dropped_outlier": 2}
    assert len(cleaned) == 400 - 14 - 5 - 1 - 2
    assert np.isfinite(cleaned.raw).all() and cleaned.positions.min() == 7


def test_a_long_context_is_no_outlier() -> None:
    """Half as long again as the bucket's median, because the contexts are twenty times as long."""
    data = make_dataset(200, max_tokens=30)
    data.raw[50, 3] *= 20
    expected = 0.02 + 1e-4 * data.raw[50, 0] + 3e-7 * data.raw[50, 3]
    data.times[50] = expected
    assert expected > 1.3 * np.median(data.times)
    assert not find_outliers(data, 8.0).any()
    data.times[60] = expected
    assert find_outliers(data, 8.0).nonzero()[0].tolist() == [60]


def test_outliers_are_kept_where_the_rule_is_off_or_the_bucket_is_small() -> None:
    data = make_dataset(15, max_tokens=2)
    data.times[3] *= 10
    assert not find_outliers(data, 8.0).any()
    data = make_dataset(200)
    data.times[3] *= 10
    assert len(clean(data, DatasetSettings(warmup_rounds=0, outlier_limit=None))[0]) == 200


def test_full_chunk_rounds_are_cut_to_twice_the_rest() -> None:
    data = make_dataset(100)
    data.raw[:, 1] = 1
    data.raw[:90, 0] = 511  # fills 512
    settings = DatasetSettings(decode_only_ratio=None, num_rounds=None)
    thinned, counts = thin(data, settings)
    assert counts == {"dropped_full_chunk": 70}
    assert (thinned.scheduled_tokens == 512).sum() == 20 and len(thinned) == 30


def test_decode_only_rounds_are_cut_to_as_many_as_the_rest() -> None:
    data = make_dataset(100)
    data.raw[:80, 0] = 0
    num_with_prefill = int((data.raw[:, 0] > 0).sum())
    thinned, counts = thin(data, DatasetSettings(num_rounds=None))
    assert len(thinned) == 2 * num_with_prefill
    assert counts == {"dropped_full_chunk": 0, "dropped_decode_only": 100 - 2 * num_with_prefill}


def test_few_common_rounds_are_left_alone() -> None:
    data = make_dataset(100)
    assert downsample(data, np.arange(100) < 50, 1.0, seed=1) is data


def test_a_subsample_has_the_number_asked_for_and_every_bucket() -> None:
    data = make_dataset(1000)
    data.raw[0, 0] = 5000  # a bucket of its own
    sample = subsample(data, 100, seed=3)
    assert len(sample) == 100
    assert set(sample.buckets) == set(data.buckets)
    for bucket, size in zip(*np.unique(data.buckets, return_counts=True), strict=True):
        assert abs((sample.buckets == bucket).sum() - size / 10) <= 1
    assert subsample(data, 1000, seed=3) is data
    assert len(subsample(data, 3, seed=3)) == 3  # fewer rounds than buckets


def test_the_split_is_8_1_1_within_each_bucket() -> None:
    buckets = np.repeat([0, 1, 2, 3, 4], [1000, 25, 14, 3, 2])
    train, validation, test = split_rows(buckets, seed=1)
    assert sorted([*train, *validation, *test]) == list(range(len(buckets)))
    assert np.bincount(buckets[test], minlength=5).tolist() == [100, 3, 1, 1, 0]
    assert np.bincount(buckets[validation], minlength=5).tolist() == [100, 3, 1, 1, 0]


def test_the_seed_decides_the_split() -> None:
    buckets = np.repeat([0, 1], 500)
    first, again, other = (split_rows(buckets, seed)[2].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_weights_are_one_over_count_of_mean_1_clipped() -> None:
    buckets = np.repeat([0, 1, 2], [90, 9, 1])
    # 1/90, 1/9 and 1/1 have the mean 3/100; over it 0.37, 3.7 and 33.
    weights = sample_weights(buckets)
    assert weights[0] == 1.0 and weights[90] == pytest.approx(100 / 27) and weights[99] == 10.0
    assert sample_weights(buckets, 0.1, 100)[[0, 99]] == pytest.approx([100 / 270, 100 / 3])


def test_the_same_file_and_settings_give_the_same_parts(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rounds.csv", make_dataset(), np.repeat([0, 1], 200))
    settings = DatasetSettings(num_rounds=200)
    first, again = prepare(path, settings), prepare(path, settings)
    for part in ("train", "validation", "test"):
        assert np.array_equal(getattr(first, part).raw, getattr(again, part).raw)
    counts = first.counts
    assert counts["read"] == 400 and counts["dropped_warmup"] == 10 and counts["kept"] == 200
    dropped = sum(count for name, count in counts.items() if name.startswith("dropped"))
    assert counts["read"] - dropped == counts["kept"] == counts["train"] + counts["validation"] + counts["test"]
    assert len(first.train_weights) == counts["train"]
    assert prepare(path, DatasetSettings(num_rounds=200, seed=1)).test.times.sum() != first.test.times.sum()


def test_a_csv_file_is_read_in_the_order_of_the_features(tmp_path: Path) -> None:
    data = make_dataset(30)
    read = load(write_csv(tmp_path / "rounds.csv", data, np.repeat([0, 1, 2], 10)))
    assert np.array_equal(read.raw[:, :7], data.raw[:, :7]) and np.array_equal(read.times, data.times)
    assert read.positions.tolist() == [*range(10)] * 3
    assert read.source == SOURCE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "h100"}, "one device and model; device: h100 against rtx_4090"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"batch_size": "many"}, "many"),
        ({"dtype_bytes": ""}, "invalid literal"),
        ({"device": "\udcff"}, "utf-8"),
    ],
)
def test_a_bad_cell_is_told_in_one_line(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rounds.csv", make_dataset(30), np.zeros(30, int), **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_with_a_comma_is_one_cell(tmp_path: Path) -> None:
    source = {"model": 'models/8B, "new"'}
    data = make_dataset(1)
    assert load(write_csv(tmp_path / "rounds.csv", data, np.zeros(1, int), **source)).source.model == source["model"]


def test_a_split_without_validation_or_test_is_refused(tmp_path: Path) -> None:
    data = make_dataset(30)
    data.raw[:, 0] = 32 * np.arange(30)
    data.raw[:, 1] = 1
    path = write_csv(tmp_path / "rounds.csv", data, np.zeros(30, int))
    with pytest.raises(ValueError, match="rounds are left, and none of them for validation or test"):
        prepare(path)


def test_a_missing_file_or_column_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such data file; python -m predictor\.collect"):
        load(tmp_path / "none.csv")
    (tmp_path / "rounds.csv").write_text("batch_size,token_budget\n1,2\n")
    with pytest.raises(ValueError, match=r"run, batch_num_prefill_tokens, .* are missing; .*--from-runs"):
        load(tmp_path / "rounds.csv")


def test_too_few_rounds_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rounds.csv", make_dataset(12), np.zeros(12, int))
    with pytest.raises(ValueError, match="rounds are left of 12; at least 10 are needed"):
        prepare(path)


@pytest.mark.parametrize(
    "settings",
    [
        {"warmup_rounds": -1},
        {"outlier_limit": 0},
        {"full_chunk_ratio": -1},
        {"num_rounds": 3},
        {"weight_range": (2, 1)},
        {"seed": -1},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))}: .* is not allowed"):
        DatasetSettings(**settings)
