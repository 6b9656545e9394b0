"""The model file and inference of every kind: exact values, round trips, refusals that say what to do, warnings."""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from predictor.features import RAW_FEATURES, derive, from_plan
from predictor.model import FORMAT, Linear, Mlp, ModelInfo, Predictor, Trees, TwoPiece
from predictor.source import Source
from sarathi.core.plan import BatchPlan, MemoryStats
from sarathi.request import Request, SamplingParams

SOURCE = Source("rtx_4090", "Qwen/Qwen3-8B", engine_profile="lean", jitter=0.01)
INFO = ModelInfo(SOURCE, 1000, {"mae_ms": 0.5}, "python -m predictor.train x", {"epochs": 3})
RANGE = (np.zeros(11), np.full(11, 1e6))
MEAN = Linear(np.zeros(16), 0.04)
MEMORY = MemoryStats(20_000.0, 4_000.0, 18_000.0, 20_000.0)


def random_raw(num_rounds: int = 50) -> np.ndarray:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 1000, (num_rounds, 11)).astype(float)
    raw[:, 7:] += 20_000
    return raw


def make_mlp(num_inputs: int, widths: tuple[int, ...] = (128, 64, 32)) -> Mlp:
    rng = np.random.default_rng(1)
    sizes = (num_inputs, *widths, 1)
    layers = [(rng.normal(size=(a, b)) / a**0.5, 0.1 * rng.normal(size=b)) for a, b in pairwise(sizes)]
    features = derive(random_raw(), ("tile_tokens",) if num_inputs == 17 else ())
    return Mlp(
        layers,
        input_mean=features.mean(axis=0),
        input_scale=features.std(axis=0) + 1.0,
        target_mean=0.06,
        target_scale=0.02,
    )


def make_trees() -> Trees:
    """Two trees on prefill_tokens (column 0): 0.1 up to 10 tokens, else 0.2 up to 500, else 0.3; and 0.01 or 0.02."""
    return Trees(
        feature=np.array([0, 0, 0, 0, 0, 0, 0, 0]),
        threshold=np.array([10, np.inf, 500, np.inf, np.inf, 100, np.inf, np.inf]),
        left=np.array([1, 1, 3, 3, 4, 6, 6, 7]),
        right=np.array([2, 1, 4, 3, 4, 7, 6, 7]),
        value=np.array([0, 0.1, 0, 0.2, 0.3, 0, 0.01, 0.02]),
        roots=np.array([0, 5]),
        base=1.0,
    )


REGRESSORS = {
    "linear": Linear(np.arange(16) * 1e-6, 0.01),
    "two_piece": TwoPiece(np.arange(32).reshape(2, 16) * 1e-6, np.array([0.01, 0.02]), 600),
    "mlp": make_mlp(16),
    "gbt": make_trees(),
}


def test_mlp_equals_its_formula_in_double_precision() -> None:
    mlp = make_mlp(17)
    raw = random_raw()
    hidden = (derive(raw, ("tile_tokens",)) - mlp.input_mean) / mlp.input_scale
    for weights, bias in mlp.layers[:-1]:
        hidden = np.maximum(hidden @ weights.astype(float) + bias, 0)
    weights, bias = mlp.layers[-1]
    expected = (hidden @ weights + bias)[:, 0] * 0.02 + 0.06
    predicted = Predictor(mlp, INFO, RANGE, ("tile_tokens",)).predict_features(raw)
    assert predicted == pytest.approx(expected, rel=1e-5)
    assert predicted.std() > 1e-3


def test_two_pieces_are_chosen_by_scheduled_tokens() -> None:
    raw = np.zeros((3, 11))
    raw[:, 0], raw[:, 1] = (500, 500, 500), (0, 12, 13)  # 500, 512 and 513 tokens
    weights = np.zeros((2, 16))
    weights[:, 0] = (1e-3, 2e-3)
    model = Predictor(TwoPiece(weights, np.array([0.1, 0.2]), 512), INFO, RANGE)
    assert model.predict_features(raw) == pytest.approx([0.6, 0.6, 1.2])


def test_trees_go_left_at_the_threshold() -> None:
    raw = np.zeros((4, 11))
    raw[:, 0] = (10, 11, 500, 501)
    predicted = Predictor(make_trees(), INFO, RANGE).predict_features(raw)
    assert predicted == pytest.approx([1.11, 1.21, 1.22, 1.32])


def test_trees_of_sklearn_predict_the_same() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    features = derive(random_raw(2000))
    model = ensemble.HistGradientBoostingRegressor(max_iter=20).fit(features, features[:, 12] * 1e-4)
    assert Trees.from_sklearn(model)(features) == pytest.approx(model.predict(features), rel=1e-9)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_a_saved_model_predicts_the_same(kind: str, tmp_path: Path) -> None:
    model = Predictor(REGRESSORS[kind], INFO, RANGE)
    model.save(tmp_path / "deep" / "model.npz")
    loaded = Predictor.load(tmp_path / "deep" / "model.npz", {"device": "rtx_4090", "model": "Qwen/Qwen3-8B"})
    raw = random_raw()
    assert loaded.kind == kind
    assert np.array_equal(loaded.predict_features(raw), model.predict_features(raw))
    assert (loaded.info, loaded.extras) == (INFO, ())
    assert np.array_equal(loaded.low, RANGE[0]) and np.array_equal(loaded.high, RANGE[1])
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["model.npz"]


def test_extras_survive_the_file(tmp_path: Path) -> None:
    model = Predictor(make_mlp(17), INFO, RANGE, ("tile_tokens",))
    model.save(tmp_path / "model.npz")
    raw = random_raw()
    assert np.array_equal(Predictor.load(tmp_path / "model.npz").predict_features(raw), model.predict_features(raw))


def test_predict_is_predict_features_of_the_plan() -> None:
    model = Predictor(make_mlp(16), INFO, RANGE)
    plan = BatchPlan(512, 0.0)
    request = Request("r", range(400), SamplingParams(), 0.0)
    chunks = np.array([1, 32, 64, 400])
    expected = model.predict_features(from_plan(request, chunks, plan, MEMORY))
    assert np.array_equal(model.predict(request, chunks, plan, MEMORY), expected)


def test_before_the_first_result_memory_is_that_of_an_idle_device(caplog: pytest.LogCaptureFixture) -> None:
    low, high = np.zeros(11), np.full(11, 1e6)
    low[7:], high[7:] = (17_000, 500, 16_000, 17_000), (24_000, 7_000, 23_000, 24_000)
    model = Predictor(make_mlp(16), INFO, (low, high))
    plan, request = BatchPlan(512, 0.0), Request("r", range(400), SamplingParams(), 0.0)
    idle = MemoryStats(17_000.0, 7_000.0, 16_000.0, 17_000.0)
    chunks = np.array([1, 400])
    first = model.predict(request, chunks, plan, MemoryStats())
    assert np.array_equal(first, model.predict(request, chunks, plan, idle))
    assert not caplog.records


def test_outside_the_training_range_is_warned_of_once_for_each_feature(caplog: pytest.LogCaptureFixture) -> None:
    model = Predictor(MEAN, INFO, (np.zeros(11), np.full(11, 100.0)))
    inside = np.full((3, 11), 100.0)
    above, below = inside.copy(), inside.copy()
    above[1, 0], below[2, 3] = 103.0, -3.0
    inside[0, 5] = 101.9  # within the slack of 2 %
    with caplog.at_level(logging.WARNING):
        for raw in (inside, above, above, below, above, below):
            model.predict_features(raw)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "prefill_tokens = 103 is outside the training range 0 to 100" in messages[0]
    assert "sum_decode_context_len = -3" in messages[1] and "rtx_4090" in messages[1]


def refusal(path: Path, **asked) -> str:
    with pytest.raises(ValueError, match=r"^predictor file: ") as caught:
        Predictor.load(path, asked)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


def test_a_missing_file_names_the_commands_that_make_it(tmp_path: Path) -> None:
    message = refusal(tmp_path / "none.npz", device="h100", model="smollm2")
    assert "does not exist" in message
    assert "python -m predictor.collect" in message
    assert "--simulated_executor_config_device h100 --model_config_model smollm2" in message
    assert f"python -m predictor.train rounds.csv --output {tmp_path / 'none.npz'}" in message


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04 cut off"])
def test_a_corrupt_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    message = refusal(path)
    assert "is no predictor file, or is damaged; make one" in message and "pickle" not in message


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    Predictor(make_mlp(16), INFO, RANGE).save(path)
    path.write_bytes(path.read_bytes()[:-500])
    assert "damaged" in refusal(path)


def test_a_foreign_file_is_not_told_to_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    Predictor(make_mlp(16), INFO, RANGE).save(path)
    message = refusal(path, device="h100", dtype_bytes=4, tensor_parallel_size=2)
    assert "was trained for device rtx_4090, not h100" in message and "--output predictor.npz`" in message
    assert "--model_config_dtype float32 --parallel_config_tensor_parallel_size 2" in message


@pytest.mark.parametrize("features", [["prefill_tokens"], None, 3])
def test_other_features_are_told_as_such(features: object, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    Predictor(Linear(np.ones(16), 0.0), INFO, RANGE).save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(str(arrays["header"])) | {"features": features}
    np.savez(path, **{**arrays, "header": np.array(json.dumps(header))})
    assert ("made for other features" if isinstance(features, list) else "damaged or of another") in refusal(path)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("linear", {"weights": np.ones(3)}),
        ("linear", {"weights": np.full(16, np.nan)}),
        ("linear", {"weights": np.ones((16, 5))}),
        ("linear", {"weights": np.ones((16, 1))}),
        ("linear", {"weights": np.ones(16, complex)}),
        ("linear", {"weights": np.ones(16, "M8[s]")}),
        ("linear", {"weights": np.full(16, "1")}),
        ("linear", {"weights": np.full(16, 1e305)}),  # finite, its predictions are not
        ("linear", {"bias": np.zeros(1)}),
        ("linear", {"slope": np.zeros(1)}),
        ("two_piece", {"weights": np.array([[1.0] * 16, [np.nan] * 16])}),
        ("two_piece", {"biases": np.zeros(1)}),
        ("mlp", {"input_mean": np.zeros((3, 16))}),
        ("mlp", {"input_scale": np.zeros(16)}),
        ("mlp", {"target_scale": np.array(0.0)}),
        ("mlp", {"weights_0": np.full((16, 128), 1e38)}),
        ("mlp", {"weights_0": np.full((16, 128), 1e39)}),  # not in float32
        ("mlp", {"weights_3": np.ones((32, 5)), "bias_3": np.ones(5)}),
        ("mlp", {"bias_0": np.zeros(1)}),
        ("mlp", {"weights_9": np.ones((1, 1))}),
        ("gbt", {"value": np.r_[np.zeros(7), np.inf]}),
        ("gbt", {"left": np.array([1, 0, 3, 3, 4, 6, 6, 7])}),  # a cycle
        ("gbt", {"right": np.array([2, 1, 4, 3, 4, 7, 6, 8])}),
        ("gbt", {"right": np.array([99, 1, 4, 3, 4, 7, 6, 7])}),
        ("gbt", {"feature": np.array([0, 0, 0, 0, 0, 0, 0, -1])}),
        ("gbt", {"feature": np.array([0, 0, 0, 16, 0, 0, 0, 0])}),
        ("gbt", {"threshold": np.full(8, np.nan)}),
        ("gbt", {"roots": np.array([], int)}),
        ("gbt", {"roots": np.array([8])}),
        ("gbt", {"roots": np.array([0.0])}),
    ],
)
def test_arrays_that_make_no_model_are_refused(kind: str, changes: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    Predictor(REGRESSORS[kind], INFO, RANGE).save(path)
    Predictor.load(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, **{f"array_{name}": array for name, array in changes.items()}})
    assert "damaged or of another version" in refusal(path)


def test_a_flipped_byte_is_refused_or_harmless(tmp_path: Path) -> None:
    """Wherever it is: archive, checksums, compressed data, header."""
    path = tmp_path / "model.npz"
    Predictor(Linear(np.arange(16) * 1e-6, 0.01), INFO, RANGE).save(path)
    whole = path.read_bytes()
    raw = random_raw()
    expected = Predictor.load(path).predict_features(raw)
    num_refused = 0
    for place in range(0, len(whole), 3):
        content = bytearray(whole)
        content[place] ^= 0xFF
        path.write_bytes(content)
        try:
            model = Predictor.load(path)
        except ValueError:
            num_refused += 1
        else:
            assert np.array_equal(model.predict_features(raw), expected), place
    assert num_refused > len(whole) / 6


def test_another_npz_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", weights=np.ones(3))
    assert "no predictor file" in refusal(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"device": "h100"}, "was trained for device rtx_4090, not h100"),
        ({"model": "smollm2"}, "was trained for model Qwen/Qwen3-8B, not smollm2"),
        ({"engine_profile": "sarathi_2024"}, "was trained for engine_profile lean, not sarathi_2024"),
        ({"tensor_parallel_size": 2}, "was trained for tensor_parallel_size 1, not 2"),
    ],
)
def test_a_foreign_file_is_refused(asked: dict[str, object], found: str, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    Predictor(MEAN, INFO, RANGE).save(path)
    message = refusal(path, **asked)
    assert found in message
    assert str(next(iter(asked.values()))) in message.split("make one with")[1]


def with_header(path: Path, **changes: object) -> Path:
    """The file with other values in its header; None takes a key out."""
    with np.load(path) as file:
        arrays = dict(file)
    header = {**json.loads(str(arrays.pop("header"))), **changes}
    np.savez(path, header=np.array(json.dumps({k: v for k, v in header.items() if v is not None})), **arrays)
    return path


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"features": [*list(RAW_FEATURES)[::-1], "bias"]}, "was made for other features"),
        ({"features": ["temperature"]}, "temperature"),
        ({"extras": ["tiles"]}, "was made for other features"),
        ({"kind": "oracle"}, "damaged or of another version"),
        ({"kind": "mlp"}, "damaged or of another version"),
        ({"source": None}, "damaged or of another version"),
        ({"source": {"device": 1, "model": "x"}}, "damaged or of another version"),
        ({"settings": [1]}, "damaged or of another version"),
        ({"test_errors": "none"}, "damaged or of another version"),
        ({"training_range": {}}, "damaged or of another version"),
        ({"training_range": dict.fromkeys(RAW_FEATURES, 1.0)}, "damaged or of another version"),
        ({"training_range": {name: ["1", "2"] for name in RAW_FEATURES}}, "damaged or of another version"),
        ({"training_range": {name: [2.0, 1.0] for name in RAW_FEATURES}}, "damaged or of another version"),
        ({"training_range": {name: [0.0, float("nan")] for name in RAW_FEATURES}}, "damaged or of another version"),
        ({"features": [["a"]]}, "damaged or of another version"),
        ({"version": 99}, "has version 99 of the format, not 1"),
        ({"format": "something"}, "no predictor file"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(changes: dict[str, object], found: str, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    Predictor(Linear(np.ones(16), 0.0), INFO, RANGE).save(path)
    assert FORMAT in str(np.load(path)["header"])
    assert found in refusal(with_header(path, **changes))


def test_saving_elsewhere_than_npz_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        Predictor(MEAN, INFO, RANGE).save(tmp_path / "model.pt")
