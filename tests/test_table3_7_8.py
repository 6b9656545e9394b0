"""Tables 3, 7 and 8: what their quick runs write, and the figures behind them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import profiles, table3, table7, table8
from benchmarks.harness.options import Options
from benchmarks.harness.statistics import Mean
from predictor import baselines
from predictor.dataset import split_rows
from predictor.train_config import PRESETS, TrainConfig

VERDICTS = {"reproduced", "direction only", "opposite", "no effect", "not reproduced", "not told apart", "possible",
            "impossible"}  # fmt: skip


def run(table: Any, results: Path) -> dict[str, Any]:
    """The report of a quick run, with its tables by heading."""
    table.main(["--quick", "--results", str(results), "--processes", "1"])
    name = table.__name__.rpartition(".")[2]
    report = json.loads((results / "sim-quick" / f"{name}.json").read_text(encoding="utf-8"))
    assert (results / "sim-quick" / f"{name}.md").stat().st_size > 1000
    tables = {block["heading"]: block for block in report["blocks"] if block["kind"] == "table"}
    assert {row[-1] for row in tables["Verdict"]["rows"]} <= VERDICTS
    return {**report, "tables": tables}


def column(table: dict[str, Any], name: str) -> list[str]:
    place = table["columns"].index(name)
    return [row[place] for row in table["rows"]]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def claims(report: dict[str, Any]) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in report["tables"]["Verdict"]["rows"]}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rounds of the authors' profiling, collected once for all tests."""
    return profiles.collect_scripted(tmp_path_factory.mktemp("rounds") / "rounds.csv", "lean")


@pytest.fixture(autouse=True)
def collected_once(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (table3, table8):
        monkeypatch.setattr(table, "collect_scripted", lambda path, profile: scripted)
    monkeypatch.setattr(baselines, "NUM_TREES", 20)


def test_table3_gives_the_papers_prompts_and_its_profile(tmp_path: Path) -> None:
    report = run(table3, tmp_path)
    assert claims(report)["Aging, 200 requests: median of prompt tokens"] == ["19.0", "19.0", "reproduced"]
    assert claims(report)["Aging, 200 requests: P90 of prompt tokens"] == ["179.4", "179.4", "reproduced"]
    assert claims(report)["APC: short to long"][-1] == "reproduced"
    workloads = report["tables"]["Workloads"]
    assert dict(zip(column(workloads, "workload"), column(workloads, "sent"), strict=True))["Aging, 200"] == "172"
    assert column(report["tables"]["Profiles of rounds"], "buckets") == ["8"]  # of 32 tokens, up to chunk 256
    written = rows_of(tmp_path / "sim-quick" / "table3-workloads.csv")
    assert len(written) == 2 * len(table3.WORKLOADS)
    assert {row["prompt_median"] for row in written if row["workload"] == "Aging, 200"} == {"19.0"}


def test_a_bucket_adds_what_its_rounding_can_add_to_the_test_part() -> None:
    most = [profiles.most_beyond_a_tenth(rounding) for rounding in profiles.ROUNDINGS.values()]
    assert most == pytest.approx([0.5, 0.9, 1.4])
    sizes = np.array([15, 20, 31])
    assert [rounding(sizes).tolist() for rounding in profiles.ROUNDINGS.values()] == [[2, 2, 3], [2, 2, 4], [2, 2, 4]]
    buckets = np.repeat([0, 1, 2], sizes)
    assert len(split_rows(buckets, seed=1)[2]) == next(iter(profiles.ROUNDINGS.values()))(sizes).sum()  # ours
    assert profiles.beyond_a_tenth() == pytest.approx(26.2)
    assert profiles.paper_round_ms() == pytest.approx(89.68, abs=0.01)


def test_table7_tells_what_torch_was_given(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="Table 7 trains")
    report = run(table7, tmp_path)
    found = claims(report)
    for name in ("optimizer", "lr", "weight_decay", "hidden_sizes", "dropout", "batch_size"):
        assert found[f"predictor: {name}"][-1] == "reproduced", name
    assert found["predictor: epochs"][1:] == ["2", "not reproduced"]  # of a quick run
    shipped = rows_of(tmp_path / "sim-quick" / "table7-settings.csv")[1]
    assert (shipped["preset"], shipped["dropout"], shipped["other inputs"]) == ("shipped", "0", "tile_tokens")


def test_a_training_is_observed_rather_than_its_settings_read() -> None:
    torch = pytest.importorskip("torch", reason="Table 7 trains")
    config = TrainConfig(epochs=2, hidden_sizes=(8, 4), dropout=0.3, batch_size=100, weight_decay=0.5, lr=0.01)
    split = table7.made_up_rounds(200)
    seen = table7.observe(config, split)
    assert (seen["optimizer"], seen["lr"], seen["weight_decay"]) == ("AdamW", 0.01, 0.5)
    assert (seen["dropout"], seen["batch_size"], seen["hidden_sizes"], seen["inputs"]) == (0.3, 100, [8, 4], 16)
    original = torch.optim.AdamW
    torch.optim.AdamW = lambda *args, **kwargs: torch.optim.SGD(args[0], lr=1e-3)
    try:
        assert table7.observe(replace(config, epochs=1), split)["optimizer"] == "SGD"
    finally:
        torch.optim.AdamW = original


def test_table8_sets_both_presets_beside_the_paper(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="Table 8 trains")
    report = run(table8, tmp_path)
    table = report["tables"]["Errors on all test rounds"]
    models = dict(zip(column(table, "model"), table["rows"], strict=True))
    assert models["the paper"][2:5] == ["1.13", "1.53", "1.26"]
    assert {f"preset {name}" for name in PRESETS} | {table8.PERFECT, *baselines.BASELINES} <= set(models)
    assert models["preset paper"][1] == "2"  # seeds
    assert (tmp_path / "sim-quick" / "table8.png").stat().st_size > 10_000
    written = rows_of(tmp_path / "sim-quick" / "table8-errors.csv")
    mape = {row["model"]: float(row["mape_percent"]) for row in written if row["rounds"] == table8.ALL}
    assert mape[table8.PERFECT] == min(mape.values())
    assert mape["mean"] == max(mape.values())
    assert len(report["headlines"]) == 1


def test_trainings_repeat_to_the_last_bit() -> None:
    pytest.importorskip("torch", reason="Table 8 trains")
    split = table7.made_up_rounds(200)
    options = Options(seeds=(1, 2), quick=True)
    first, again = (table8.train_all(split, options) for _ in range(2))
    assert [(one.preset, one.seed) for one in first] == [(name, seed) for name in PRESETS for seed in (1, 2)]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.predicted, other.predicted)
    assert not np.array_equal(first[0].predicted, first[1].predicted)


def test_noise_of_one_percent_sets_a_floor() -> None:
    errors = table8.perfect_errors(np.array([0.02, 0.1]), jitter=0.01)
    assert errors["mape_percent"] == pytest.approx(100 * 0.01 * np.sqrt(2 / np.pi), rel=0.01)
    assert errors["mae_ms"] == pytest.approx(0.6 * np.sqrt(2 / np.pi), rel=0.01)
    assert errors["bias_ms"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "ours", "expected"),
    [
        ("mae_ms", Mean(1.0, 0.1), "reproduced"), ("mae_ms", Mean(1.1, 0.1), "not told apart"),
        ("mae_ms", Mean(1.4, 0.1), "not reproduced"), ("within_5ms_percent", Mean(99.5, 0.4), "reproduced"),
        ("within_5ms_percent", Mean(98.0, 0.4), "not reproduced"), ("within_10ms_percent", Mean(100.0), "reproduced"),
    ],
)  # fmt: skip
def test_an_error_is_reproduced_where_it_is_no_larger(metric: str, ours: Mean, expected: str) -> None:
    assert table8.judged(metric, ours) == expected


def test_without_rounds_one_line_tells_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"rtx_pro_5000_72gb\.csv: no such rounds; `make table8` collects them$"):
        table8.main(["--results", str(tmp_path)])
