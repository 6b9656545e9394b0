"""Training: its settings, the loss by hand, a tiny run, and the command."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor import baselines, evaluate
from predictor import train as training
from predictor.features import feature_names
from predictor.model import Predictor
from predictor.train import main, train
from predictor.train_config import PRESETS, TrainConfig
from tests.predictor_rounds import SOURCE, make_split, write_rounds

TINY = TrainConfig(epochs=2, hidden_sizes=(16, 8), batch_size=64)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "NUM_TREES", 40)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="training needs torch, the [predictor] extra")


def test_paper_preset_is_table_7() -> None:
    paper = PRESETS["paper"]
    assert (paper.epochs, paper.lr, paper.weight_decay, paper.batch_size) == (300, 2e-3, 1e-3, 256)
    assert paper.hidden_sizes == (128, 64, 32)
    assert paper.dropout == 0.1
    assert paper.extras == () and len(feature_names(paper.extras)) == 16
    assert paper.lr_schedule == "constant"
    assert paper.under_weight > 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0), ("lr", 0.0), ("lr_schedule", "step"), ("weight_decay", -1.0), ("hidden_sizes", (8, 0)),
        ("hidden_sizes", ()), ("hidden_sizes", (10**9,)), ("hidden_sizes", (8,) * 99),
        ("lr", float("inf")), ("seed", -1),
        ("dropout", 1.0), ("batch_size", 0), ("under_weight", 0.0), ("huber_delta", 0.0), ("extras", ("colour",)),
        ("num_threads", 0),
    ],
)  # fmt: skip
def test_config_names_a_value_that_is_not_allowed(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: .* is not allowed; "):
        TrainConfig(**{name: value})


def test_without_torch_one_line_tells_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main([str(write_rounds(tmp_path / "rounds.csv")), "--output", str(tmp_path / "model.npz")]) == 2
    error = capsys.readouterr().err.strip()
    assert error == "error: training needs torch: pip install 'sarathi-serve-fair[predictor]'"
    assert not (tmp_path / "model.npz").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output", "model.txt"], "--output: model.txt is not allowed"),
        (["--output", "model.npz", "--dropout", "2"], "--dropout: 2.0 is not allowed"),
        (["--output", "model.npz", "--extras", "colour"], "--extras: ('colour',) is not allowed"),
        (["--output", "model.npz", "--hidden-sizes"], "--hidden-sizes: () is not allowed"),
        (["--output", "model.npz", "--split-seed", "-1"], "--split-seed: -1 is not allowed"),
        (["--output", "model.npz"], "rounds.csv: there is no such data file"),
        (["--output", "model.npz", "--num-rounds", "3"], "--num-rounds: 3 is not allowed"),
    ],
)
def test_command_names_a_value_that_is_not_allowed(
    flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # that it lacks is told last
    assert main(["rounds.csv", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_outputs_are_tried_before_the_work(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "prepare", None)
    data = write_rounds(tmp_path / "rounds.csv")
    (tmp_path / "model_loss.csv").mkdir()
    for output, told in ((data / "model.npz", "its folder is a file"), (tmp_path / "model.npz", "it is a folder")):
        assert main([str(data), "--output", str(output)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: --output: ") and told in error and error.count("\n") == 1


def test_loss_by_hand(torch: Any) -> None:
    config = TrainConfig(under_weight=3.0, huber_delta=1.0)
    prediction = torch.tensor([0.5, -0.5, 2.0, -2.0])  # over, under; within delta, beyond
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0])
    value = float(training.loss(prediction, torch.zeros(4), weights, config))
    assert value == pytest.approx((0.125 + 2 * 3 * 0.125 + 1.5 + 3 * 1.5) / 4)


def test_tiny_run_learns(torch: Any) -> None:
    split = make_split()
    seen: list[training.Epoch] = []
    config = replace(TINY, epochs=12, dropout=0.0, extras=("tile_tokens",))
    predictor, history = train(split, config, on_epoch=seen.append)
    assert seen == history and [epoch.epoch for epoch in history] == list(range(1, 13))
    best = min(epoch.validation_mae_ms for epoch in history)
    errors = evaluate.error_metrics(evaluate.predict(predictor, split.validation), split.validation.times)
    assert errors["mae_ms"] == pytest.approx(best, rel=1e-3)  # torch's figure, found again in numpy
    mean = float(np.abs(split.validation.times - split.train.times.mean()).mean())
    assert errors["mae_ms"] < 0.2 * 1e3 * mean
    assert (predictor.kind, predictor.extras, predictor.info.source) == ("mlp", ("tile_tokens",), SOURCE)
    np.testing.assert_array_equal(predictor.high, split.train.raw.max(axis=0))


def test_a_late_epoch_that_is_worse_is_not_kept(torch: Any) -> None:
    split = make_split(300)
    predictor, history = train(split, replace(TINY, epochs=15, lr=0.1, dropout=0.5))
    best = min(epoch.validation_mae_ms for epoch in history)
    assert best < 0.9 * history[-1].validation_mae_ms
    errors = evaluate.error_metrics(evaluate.predict(predictor, split.validation), split.validation.times)
    assert errors["mae_ms"] == pytest.approx(best, rel=1e-3)


def test_constant_columns_and_the_bias(torch: Any) -> None:
    predictor, _ = train(make_split(200), TINY)
    arrays = predictor.regressor.arrays()
    place = {name: column for column, name in enumerate(feature_names())}
    assert (arrays["input_mean"][place["bias"]], arrays["input_scale"][place["bias"]]) == (0, 1)  # stays 1
    assert arrays["input_scale"][place["gpu_mem_used_mb"]] == 1
    assert arrays["input_mean"][place["gpu_mem_used_mb"]] == 20_000


def test_same_seed_same_weights(torch: Any) -> None:
    split = make_split(300)

    def weights(seed: int) -> np.ndarray:
        return train(split, replace(TINY, seed=seed))[0].regressor.arrays()["weights_0"]

    torch.manual_seed(7)
    first = weights(1)
    torch.rand(5)
    np.testing.assert_array_equal(first, weights(1))
    assert not np.array_equal(first, weights(2))


def test_training_leaves_torch_as_it_was(torch: Any) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    num_threads = torch.get_num_threads()
    torch.manual_seed(7)
    train(make_split(200), TINY)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == num_threads


def test_cosine_schedule_falls_from_lr_to_almost_nothing(torch: Any) -> None:
    _, history = train(make_split(200), replace(TINY, epochs=4, lr=1e-3, lr_schedule="cosine"))
    assert [epoch.lr for epoch in history] == pytest.approx([1e-3, 0.853553e-3, 0.5e-3, 0.146447e-3], rel=1e-5)


def test_command_writes_model_curves_and_errors(torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, output = write_rounds(tmp_path / "rounds.csv"), tmp_path / "new" / "model.npz"
    flags = ["--preset", "paper", "--epochs", "2", "--hidden-sizes", "16", "8", "--num-rounds", "0"]
    argv = [str(data), "--output", str(output), *flags]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "of 2, validation MAE" in shown and "Least MAE: " in shown
    predictor = Predictor.load(output, {"device": SOURCE.device, "model": SOURCE.model})
    assert predictor.info.command == "python -m predictor.train " + " ".join(argv)
    assert predictor.info.settings["train"]["hidden_sizes"] == [16, 8]
    assert predictor.info.settings["train"]["dropout"] == 0.1
    assert predictor.info.settings["data"]["read"]["num_rounds"] == 600
    assert predictor.info.test_errors["mape_percent"] > 0
    with (tmp_path / "new" / "model_loss.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2"] and all(float(row["train_loss"]) > 0 for row in rows)
    assert (tmp_path / "new" / "model_loss.png").stat().st_size > 10_000
    mae = predictor.info.test_errors["mae_ms"]
    assert evaluate.main([str(output), str(data)]) == 0
    assert f"mlp  {mae:9.3f}".split() == capsys.readouterr().out.split("us/64\n")[1].split()[:2]
