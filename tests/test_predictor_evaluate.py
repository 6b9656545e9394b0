"""Evaluation: the formulas, the baselines' fits, the tables and the command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from predictor import baselines, evaluate
from predictor.dataset import DatasetSettings, prepare
from predictor.features import derive
from predictor.model import Linear, ModelInfo, Predictor
from predictor.source import Source
from tests.predictor_rounds import SOURCE, make_rounds, make_split, write_rounds


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "NUM_TREES", 40)


def save_model(path: Path, source: Source = SOURCE, **settings: object) -> Path:
    raw, _ = make_rounds(600)
    info = ModelInfo(source, 480, settings=settings)
    Predictor(Linear(np.eye(17)[16] * 1e-4, 5e-3), info, (raw.min(0), raw.max(0)), ["tile_tokens"]).save(path)
    return path


def test_metrics_by_hand() -> None:
    # errors: +1, -2, +5, -12 ms
    metrics = evaluate.error_metrics(np.array([0.011, 0.018, 0.055, 0.028]), np.array([0.010, 0.020, 0.050, 0.040]))
    assert metrics["mae_ms"] == pytest.approx((1 + 2 + 5 + 12) / 4)
    assert metrics["rmse_ms"] == pytest.approx(((1 + 4 + 25 + 144) / 4) ** 0.5)
    assert metrics["mape_percent"] == pytest.approx((10 + 10 + 10 + 30) / 4)
    assert metrics["bias_ms"] == pytest.approx((1 - 2 + 5 - 12) / 4)
    assert metrics["p50_ms"] == pytest.approx(3.5)
    assert metrics["p90_ms"] == pytest.approx(5 + 0.7 * 7)
    assert metrics["max_ms"] == pytest.approx(12)


def test_bounds_count_errors_up_to_them() -> None:
    true = np.full(4, 0.1)
    metrics = evaluate.error_metrics(true + np.array([0.0, 4.9e-3, -5.1e-3, 10.1e-3]), true)
    assert metrics["within_5ms_percent"] == 50
    assert metrics["within_10ms_percent"] == 75


def test_buckets_partition_the_rounds() -> None:
    data = make_split().test
    data.raw[:2, :2] = ((52, 12), (53, 12))  # at the edge
    table = evaluate.errors_by_bucket(data.times + 1e-3, data)
    assert list(table)[:2] == ["1-64", "65-128"]
    assert table["1-64"]["num_rounds"] == int((data.scheduled_tokens <= 64).sum())
    assert sum(errors["num_rounds"] for errors in table.values()) == len(data)
    assert all(errors["bias_ms"] == pytest.approx(1) for errors in table.values())


def test_mean_is_weighted() -> None:
    assert baselines.fit_mean(np.ones((2, 16)), np.array([1.0, 4.0]), np.array([2.0, 1.0])).bias == pytest.approx(2.0)


def test_linear_finds_a_plane_among_repeated_and_constant_columns() -> None:
    raw, _ = make_rounds(300)
    features = derive(raw)
    seconds = 0.004 + 2e-5 * raw[:, 0] + 3e-4 * raw[:, 1] + 1e-7 * raw[:, 3]
    fit = baselines.fit_linear(features, seconds, np.ones(300))
    unseen, _ = make_rounds(50, seed=9)
    expected = 0.004 + 2e-5 * unseen[:, 0] + 3e-4 * unseen[:, 1] + 1e-7 * unseen[:, 3]
    np.testing.assert_allclose(fit(derive(unseen)), expected, rtol=1e-6)
    assert fit.weights[11] == 0  # the constant: its effect stands in the bias
    assert np.abs(fit.weights).max() < 1  # nothing blown up by columns that repeat each other


def test_linear_follows_the_weights() -> None:
    features = derive(make_rounds(200)[0])
    seconds = np.r_[np.full(100, 0.01), np.full(100, 0.02)]
    fit = baselines.fit_linear(features, seconds, np.r_[np.full(100, 1e6), np.ones(100)])
    np.testing.assert_allclose(fit(features), 0.01, atol=2e-4)


def test_two_piece_fits_each_side_of_512_tokens() -> None:
    raw, _ = make_rounds(600)
    tokens = raw[:, 0] + raw[:, 1]
    seconds = np.where(tokens > 512, 0.001 + 1e-4 * tokens, 0.02 + 2e-5 * tokens)
    fit = baselines.fit_two_piece(derive(raw), seconds, np.ones(600))
    np.testing.assert_allclose(fit(derive(raw)), seconds, rtol=1e-6)


def test_two_piece_of_small_rounds_alone_is_one_line() -> None:
    raw, _ = make_rounds(300)
    raw = raw[raw[:, 0] + raw[:, 1] <= 512]
    seconds = 0.02 + 2e-5 * raw[:, 0]
    fit = baselines.fit_two_piece(derive(raw), seconds, np.ones(len(raw)))
    np.testing.assert_allclose(fit.weights[0], fit.weights[1])
    np.testing.assert_allclose(fit(derive(raw)), seconds, rtol=1e-6)


def test_trees_come_out_of_sklearn_unchanged_and_climb_stairs() -> None:
    pytest.importorskip("sklearn", reason="gradient-boosted trees are fitted by scikit-learn")
    split = make_split()
    fitted = evaluate.fit_baselines(split)
    assert list(fitted) == ["mean", "linear", "two_piece", "gbt"]
    trained = np.full(len(split.train), 1e-9)
    trained[:100] = 1.0
    few = baselines.fit_trees(derive(split.train.raw), np.r_[np.full(100, 0.01), split.train.times[100:]], trained)
    np.testing.assert_allclose(few(derive(split.test.raw)), 0.01, rtol=1e-3)  # what counts for nothing changes nothing
    mae = {kind: model.info.test_errors["mae_ms"] for kind, model in fitted.items()}
    assert mae["gbt"] < 0.5 * mae["linear"] < 0.5 * mae["mean"]


def test_without_sklearn_the_trees_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    assert list(evaluate.fit_baselines(make_split(200))) == ["mean", "linear", "two_piece"]
    assert "gbt: left out (needs scikit-learn" in caplog.text


def test_evaluation_tells_models_apart_and_names_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    split = make_split()
    bounds = (split.train.raw.min(0), split.train.raw.max(0))
    exact = Linear(np.eye(17)[16] * 1e-4 + np.eye(17)[3] * 1e-6, 5e-3)
    predictor = Predictor(exact, ModelInfo(SOURCE), bounds, ["tile_tokens"])
    mean = Predictor(Linear(np.zeros(16), 0.06), ModelInfo(SOURCE), bounds)
    linear = Predictor(Linear(np.zeros(16), 0.05), ModelInfo(SOURCE), bounds)
    monkeypatch.setattr(evaluate, "time_predictions", lambda models: dict.fromkeys(models, 42.0))
    models = evaluate.named_models(predictor, {"mean": mean, "linear": linear})
    predictions = {name: evaluate.predict(model, split.test) for name, model in models.items()}
    figures = evaluate.evaluate(models, predictions, split.test)
    assert list(figures["models"]) == ["linear (file)", "mean", "linear"]
    assert figures["models"]["linear (file)"]["mae_ms"] == pytest.approx(0, abs=1e-9)
    json.dumps(figures)
    assert evaluate.verdict(figures["models"]).startswith(
        "Least MAE: linear (file) 0.000 ms (42 us a prediction), then"
    )
    table = evaluate.comparison_table(figures["models"]).splitlines()
    assert [line.split("  ")[0] for line in table] == ["model", *figures["models"]]
    assert len({len(line) for line in table}) == 1
    assert table[0].split()[:3] == ["model", "MAE", "ms"]


def test_a_baseline_without_error_is_no_division() -> None:
    errors = {"mae_ms": 0.0, "mape_percent": 0.0, "us_per_prediction": 1.0}
    text = evaluate.verdict({"mean": errors, "linear": errors})
    assert text == (
        "Least MAE: mean 0.000 ms (1 us a prediction), then linear 0.000 ms (1 us a prediction). "
        "Least MAPE: mean, 0.00 %."
    )


def test_timing_warns_of_no_range(caplog: pytest.LogCaptureFixture) -> None:
    split = make_split()
    split.train.raw[:, 3] = split.train.raw[:, 4] = 7.0  # a constant, that no timed plan meets
    fitted = evaluate.fit_baselines(split)
    times = evaluate.time_predictions(fitted, num_repeats=1, num_calls=1)
    assert times.keys() == fitted.keys() and all(value > 0 for value in times.values())
    assert "outside the training range" not in caplog.text


def test_command_prints_table_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    data = write_rounds(tmp_path / "data" / "rounds.csv")
    settings = asdict(DatasetSettings(num_rounds=500, seed=3))
    model = save_model(tmp_path / "model.npz", data=settings)
    arguments = ["--json", str(tmp_path / "out" / "figures.json"), "--save-baselines", str(tmp_path / "kinds")]
    assert evaluate.main([str(model), str(data), *arguments]) == 0
    shown = capsys.readouterr().out
    assert "two_piece" in shown and "Least MAE: " in shown and "193-256" in shown
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert figures["counts"]["kept"] == 500  # the data were split as the model's file tells
    assert figures["models"]["linear"]["max_ms"] >= figures["models"]["linear"]["p99_ms"] > 0
    assert (tmp_path / "data" / "model_evaluation.png").stat().st_size > 10_000
    for kind in ("mean", "linear", "two_piece"):
        saved = Predictor.load(tmp_path / "kinds" / f"{kind}.npz", {"device": SOURCE.device, "model": SOURCE.model})
        assert saved.kind == ("linear" if kind == "mean" else kind)
        assert saved.info.command.startswith("python -m predictor.evaluate ")
        assert saved.info.settings["data"]["seed"] == 3
        assert saved.info.test_errors["mae_ms"] == pytest.approx(figures["models"][kind]["mae_ms"])


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (replace(SOURCE, device="a100_80gb"), None, "device: a100_80gb against rtx_4090"),
        (SOURCE, {"bucket": 3}, "data settings"),
        (SOURCE, [1], "data settings"),
    ],
)
def test_command_refuses_what_does_not_belong_together(
    source: Source, settings: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_rounds(tmp_path / "rounds.csv")
    model = save_model(tmp_path / "model.npz", source, **({} if settings is None else {"data": settings}))
    assert evaluate.main([str(model), str(data)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and message in error


def test_another_jitter_may_be_evaluated(tmp_path: Path) -> None:
    data = write_rounds(tmp_path / "rounds.csv")
    model = save_model(tmp_path / "model.npz", replace(SOURCE, jitter=0.05))
    assert evaluate.main([str(model), str(data)]) == 0


@pytest.mark.parametrize("flag", ["--plot", "--json", "--save-baselines"])
def test_an_output_that_cannot_be_written_is_told_before_the_work(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "prepare", None)
    data, model = write_rounds(tmp_path / "rounds.csv"), save_model(tmp_path / "model.npz")
    assert evaluate.main([str(model), str(data), flag, str(data / "below")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {flag}: ") and "cannot be written" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [(KeyboardInterrupt(), 130, "interrupted"), (OSError(28, "No space left"), 1, "error: [Errno 28] No space left")],
)
def test_what_stops_the_command_is_one_line(
    raised: BaseException,
    status: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*arguments: object) -> None:
        raise raised

    monkeypatch.setattr(evaluate, "prepare", stop)
    data, model = (
        write_rounds(tmp_path / "rounds.csv"),
        save_model(tmp_path / "model.npz", data=asdict(DatasetSettings())),
    )
    assert evaluate.main([str(model), str(data)]) == status
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize("num_rounds", [600, 601])
def test_other_rounds_than_those_of_training_are_warned_of(
    num_rounds: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = prepare(write_rounds(tmp_path / "rounds.csv", 600)).settings
    model = save_model(tmp_path / "model.npz", data=trained)
    assert evaluate.main([str(model), str(write_rounds(tmp_path / "other.csv", num_rounds))]) == 0
    assert ("DATA is not the file that the model was trained on" in caplog.text) == (num_rounds != 600)
