"""Tables 3, 7 and 8: what their quick runs write, and the figures behind them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import profiles, table3, table3_profile, table7, table8
from benchmarks.harness.options import Options, parse_options
from benchmarks.harness.statistics import Mean
from predictor import baselines
from predictor.dataset import split_rows
from predictor.train_config import PRESETS, TrainConfig
from sarathi.errors import InputError
from tests.paper_reports import quick_report, rows_of


def column(table: dict[str, Any], name: str) -> list[str]:
    place = table["columns"].index(name)
    return [row[place] for row in table["rows"]]


def claims(report: dict[str, Any], reading: str = "") -> dict[str, list[str]]:
    return {row[1]: row[2:] for row in report["tables"]["Verdict"]["rows"] if row[0] == reading}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rounds of the authors' profiling, collected once for all tests."""
    return profiles.collect_scripted(tmp_path_factory.mktemp("rounds") / "rounds.csv", "lean")


@pytest.fixture(autouse=True)
def collected_once(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (table3_profile, table8):
        monkeypatch.setattr(table, "collect_scripted", lambda path, profile: scripted)
    monkeypatch.setattr(baselines, "NUM_TREES", 20)


def test_table3_gives_the_papers_prompts_and_its_profile(tmp_path: Path) -> None:
    report = quick_report(table3, tmp_path)
    median, p90, test_part = claims(report).values()
    assert (median, p90) == (["19.0", "19.0", "reproduced"], ["179.4", "179.4", "reproduced"])
    assert (test_part[0], test_part[-1]) == ("+26.2 (3,713)", "not reproduced")
    assert len(report["headlines"]) == 1
    as_set = {row[0]: row[1:] for row in report["tables"]["As set"]["rows"]}
    assert as_set["LPRS, high load: requests"] == ["1,000", "1,000 drawn, 994 sent"]
    assert as_set["APC: short to long"] == ["49:1", "49:1"]
    possible = report["tables"]["Whether the paper's profile can be such rounds"]
    assert "'lean, scripted': number of rounds, test part, round time." in possible["note"]
    workloads = report["tables"]["Workloads"]
    assert dict(zip(column(workloads, "workload"), column(workloads, "sent"), strict=True))["Aging, 200"] == "172"
    assert column(report["tables"]["Profiles of rounds"], "buckets") == ["8"]  # of 32 tokens, up to chunk 256
    written = rows_of(tmp_path / "sim-quick" / "table3-workloads.csv")
    assert len(written) == 2 * len(table3.WORKLOADS)
    assert {row["prompt_median"] for row in written if row["workload"] == "Aging, 200"} == {"19.0"}


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_prompts_are_counted_in_the_papers_tokens_on_every_backend(backend: str) -> None:
    (figures,) = table3.measure(table3.WORKLOADS[table3.AGING_200], Options(backend=backend, seeds=(1,)))
    assert (figures["requests"], figures["prompt_median"]) == (172, 19.0)


def test_a_bucket_adds_what_its_rounding_can_add_to_the_test_part() -> None:
    rules = [*table3_profile.ROUNDINGS.values()]
    most = [table3_profile.most_beyond_a_tenth(rule) for rule in rules]
    assert most == pytest.approx([0.5, 0.9, 1.4])
    sizes = np.array([15, 20, 31])
    assert [rule(sizes).tolist() for rule in rules] == [[2, 2, 3], [2, 2, 4], [2, 2, 4]]
    buckets = np.repeat([0, 1, 2], sizes)
    assert len(split_rows(buckets, seed=1)[2]) == rules[0](sizes).sum()  # ours
    assert table3_profile.beyond_a_tenth() == pytest.approx(26.2)
    assert profiles.paper_round_ms() == pytest.approx(89.68, abs=0.01)


def test_table7_tells_what_torch_was_given(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="Table 7 trains")
    report = quick_report(table7, tmp_path)
    found = claims(report, "preset paper")
    for name in ("optimizer", "lr", "weight_decay", "hidden_sizes", "dropout", "batch_size"):
        assert found[f"predictor: {name}"][-1] == "reproduced", name
    assert found["predictor: epochs"][1:] == ["2", "not reproduced"]  # of a quick run
    assert claims(report, "preset shipped")["predictor: dropout"] == ["0.1", "0", "not reproduced"]
    assert claims(report, "schedulers' defaults")["LPRS: token budget"][-1] == "reproduced"
    assert report["notice"].startswith(table7.NOTICE)
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
    report = quick_report(table8, tmp_path)
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
    for preset in PRESETS:  # no round of the quick run is as long as the paper's
        assert [*claims(report, f"preset {preset}")] == ["MAPE % of all rounds: at most the paper's"]


def test_milliseconds_are_judged_on_rounds_as_long_as_the_papers_alone() -> None:
    split = table7.made_up_rounds(2000)
    times = split.test.times * profiles.paper_round_ms() / 1e3 / split.test.times.mean()
    split = split._replace(test=replace(split.test, times=times))
    trained = [table8.Trained(preset, seed, 1.001 * times) for preset in PRESETS for seed in (1, 2)]
    kinds = table8.kinds_of_rounds(split)
    assert 0 < kinds[table8.LIKE].sum() < len(times)
    report = Claims()
    table8.add_claims(report, {kind: table8.errors_of(trained, split, mask) for kind, mask in kinds.items()})  # type: ignore[arg-type]
    assert len(report.rows) == len(PRESETS) * len(table8.METRICS)
    assert {row[-2] for row in report.rows} == {"reproduced"}
    assert {row[0] for row in report.rows if table8.ALL in row[0]} == {"MAPE % of all rounds: at most the paper's"}


class Claims:
    """A report that keeps its claims."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []

    def add_claim(self, *row: str) -> None:
        self.rows.append(row)


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
        ("mae_ms", Mean(1.0, 0.1), "reproduced"), ("mae_ms", Mean(1.1, 0.1), "undecided"),
        ("mae_ms", Mean(1.4, 0.1), "not reproduced"), ("within_5ms_percent", Mean(99.5, 0.4), "reproduced"),
        ("within_5ms_percent", Mean(98.0, 0.4), "not reproduced"), ("within_10ms_percent", Mean(100, 0), "reproduced"),
        ("mae_ms", Mean(1.0), "undecided"),  # of one training
    ],
)  # fmt: skip
def test_an_error_is_reproduced_where_it_is_no_larger(metric: str, ours: Mean, expected: str) -> None:
    assert table8.judged(metric, ours) == expected


def test_without_rounds_one_line_tells_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rtx_pro_5000_72gb\.csv: no such rounds; `make table8` collects them$"):
        table8.main(["--results", str(tmp_path)])


@pytest.mark.parametrize("name", ["wandb", None])
def test_where_nothing_runs_one_line_tells_that_wandb_has_no_effect(
    name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ["--wandb-project", name] if name else []
    assert parse_options(None, flags).wandb_project == name
    assert caplog.messages == []
    assert parse_options(None, flags, logs_runs=False).wandb_project is None
    assert caplog.messages == ["--wandb-project: no effect here, where no request is served"] * len(flags[:1])
