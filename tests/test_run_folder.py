"""A run's folder reads back as what was recorded, and a broken one is told in a line."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import parse_args
from sarathi.metrics.html.run_report import report_page, write_run_report
from sarathi.metrics.percentiles import PERCENTILES, counted_percentile
from sarathi.metrics.records import REQUEST_COLUMNS, REQUEST_METRICS, ROUND_COLUMNS
from sarathi.metrics.run_folder import TABLES, read_run, read_table

FLAGS = (
    "--executor_config_type=SIMULATED",
    "--sharegpt_request_generator_config_num_requests=20",
    "--scheduler_config_type=LPRS",
    "--model_config_max_model_len=200",
    "--metrics_config_plots=false",
    "--metrics_config_report=false",
)


def run(output_dir: Path, *flags: str):
    config = parse_args([*FLAGS, f"--output_dir={output_dir}", *flags])
    return run_benchmark(config, build_workload(config))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def replicas(tmp_path_factory) -> Path:
    """Of two replicas, with targets; some requests are ignored."""
    directory = run(tmp_path_factory.mktemp("replicas"), "--num_replicas=2", "--slo_config_ttft=0.1").directory
    assert directory is not None
    return directory


@pytest.fixture
def copy(replicas: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(replicas, tmp_path / "run"))


def told(path: Path) -> str:
    """What is wrong with the folder or any of its tables: one line."""
    text = ""
    try:
        folder = read_run(path)
        _ = folder.requests, folder.rounds, folder.token_gaps
    except ValueError as error:
        text = str(error)
    assert len(text.splitlines()) == 1, text
    return text


def shown_or_told(path: Path) -> None:
    """A report can be made of the folder, or one line says why not."""
    text = f"{path}: "
    try:
        report_page(read_run(path)).render()
    except ValueError as error:
        text = str(error)
    assert len(text.splitlines()) == 1 and text.startswith(str(path)), text


# ---- what reads back


def test_a_run_reads_back(result):
    folder = read_run(result.directory)
    assert folder.summary == result.summary and folder.config["seed"] == 42
    assert tuple(folder.requests) == REQUEST_COLUMNS and tuple(folder.rounds) == ROUND_COLUMNS
    is_finished = folder.requests["status"] == "finished"
    assert 0 < is_finished.sum() == result.summary["num_finished"] < 20  # some exceed the context
    for name in REQUEST_METRICS:
        assert np.array_equal(np.sort(folder.requests[name][is_finished]), np.sort(result.data.requests[name]), True)
    for name in ("end_time", "batch_execution_time", "batch_num_tokens", "predicted_time", "num_waiting"):
        assert np.allclose(folder.rounds[name], result.data.rounds[name], atol=1e-9, rtol=0, equal_nan=True)
    gaps, counts = folder.token_gaps
    assert counts.sum() == result.data.token_gaps[1].sum() and (np.diff(gaps) > 0).all()
    expected = result.summary["decode_token_execution_plus_preemption_time"]
    got = {f"p{q}": counted_percentile(gaps, counts.astype(int), q) for q in PERCENTILES}
    assert got == {name: pytest.approx(expected[name], abs=1e-6) for name in got}


def test_only_the_columns_asked_for_are_kept(result):
    folder = read_run(result.directory, ("request_id", "slowdown"), ("num_waiting", "reasons"))
    whole = read_run(result.directory)
    assert set(folder.requests) == {"request_id", "slowdown", "status", "request_num_decode_tokens"}
    assert set(folder.rounds) == {"num_waiting", "reasons", "end_time"}
    for name, values in folder.rounds.items():
        assert values.tolist() == whole.rounds[name].tolist()
    assert folder.token_gaps[1].sum() == whole.token_gaps[1].sum()


def test_a_table_longer_than_a_block_reads_in_order(tmp_path):
    lines = [f"{i},{'' if i % 700 == 3 else i / 8},t{i}" for i in range(3000)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c", *lines, ""]))
    table = read_table(tmp_path / "t.csv", ["c"])
    assert table["a"].tolist() == list(range(3000)) and table["c"].tolist() == [f"t{i}" for i in range(3000)]
    assert np.flatnonzero(np.isnan(table["b"])).tolist() == [3, 703, 1403, 2103, 2803] and table["b"][2999] == 2999 / 8
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c", *lines, "1,2", ""]))
    with pytest.raises(ValueError, match=r"t.csv: line 3002: 2 cells, the header has 3"):
        read_table(tmp_path / "t.csv", ["c"])


def test_a_table_without_rows_has_its_columns(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n")
    table = read_table(tmp_path / "t.csv", ["b"])
    assert list(table) == ["a", "b"] and len(table["a"]) == len(table["b"]) == 0


def test_the_folder_of_one_replica_is_a_run(replicas):
    folder = read_run(replicas / "replica_1")
    assert (folder.num_replicas, read_run(replicas).num_replicas) == (1, 2)
    text = report_page(folder).render()
    assert "replica 1 of 2" in text and "Load of each replica" not in text and "2 replicas" not in text
    assert "2 replicas" in report_page(read_run(replicas)).render()


# ---- what is broken


def test_what_is_no_run_is_told_in_one_line(copy, tmp_path):
    assert "not a folder; a run's folder, which holds summary.json" in told(tmp_path / "none")
    assert "cannot be read (File name too long)" in told(tmp_path / ("n" * 300))
    assert "not a folder" in told(tmp_path / "two\nlines")
    (tmp_path / "empty").mkdir()
    assert "holds no summary.json: no run's folder" in told(tmp_path / "empty")
    (tmp_path / "empty" / "rounds.csv.part").touch()
    assert "holds no summary.json: the run is not finished" in told(tmp_path / "empty")
    (copy / "token_gaps.csv").unlink()
    assert told(copy) == f"{copy}: holds no token_gaps.csv"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "summary.json: no JSON"),
        ("[]", "summary.json: holds no mapping"),
        ("[" * 100_000, "summary.json: nested too deeply"),
        ('{"num_requests": 1}', "summary.json: num_rounds is None; a number is needed"),
        ('{"x": ' + "[" * 30 + "]" * 30 + "}", "summary.json: x is nested too deeply"),
        (b"\xff", "summary.json: no JSON"),
    ],
)
def test_a_broken_summary(copy, content, message):
    (copy / "summary.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert message in told(copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not valid YAML"),
        ("[]", "holds no mapping"),
        ("a: " + "[" * 5000, "is not valid YAML"),
        ("a: &a {b: *a}", "a.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b.b is nested too deeply, or holds too many values"),
        ("a: " + "[" * 30 + "]" * 30, "nested too deeply"),
        ("x0: &x0 [1]\n" + "".join(f"x{i}: &x{i} [{f'*x{i - 1},' * 9}]\n" for i in range(1, 15)), "too many values"),
        ("a: !!set {b}", "a is {'b'}"),
        ("a: !!binary aGFsbG8=", "a is b'hallo'"),
        ("a: !!timestamp 2001-01-01", "a is datetime.date"),
        ("a: {1: 2}", "a holds the name 1, which is not text"),
        ("null: 2", "holds the name None"),
        (f"a: 0x{'f' * 9000}", "a is a value of type int with thousands of digits"),
        (b"\xff", "config.yaml' is not a text file in UTF-8"),
    ],
)  # fmt: skip
def test_a_broken_config(copy, content, message):
    (copy / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    text = told(copy)
    assert message in text and "config.yaml" in text and "--config" not in text


def test_a_config_of_other_plain_values_is_shown(copy):
    (copy / "config.yaml").write_text('scheduler_config: 5\nx: {type: [a], y: .nan}\nseed: [1]\nz: "\\uD800"\n')
    shown_or_told(copy)
    assert (copy / "config.yaml").write_text("scheduler_config: {type: {a: b}}\nmodel_config: null\n")
    assert "Settings that differ" in report_page(read_run(copy)).render()


@pytest.mark.parametrize("name", TABLES)
def test_each_column_is_missed(copy, name):
    rows = list(csv.reader((copy / name).read_text().splitlines()))
    for i, column in enumerate(rows[0]):
        write_rows(copy / name, [row[:i] + row[i + 1 :] for row in rows])
        assert told(copy) == f"{copy / name}: lacks column {column}"


@pytest.mark.parametrize("name", TABLES)
def test_each_cut_is_noticed(copy, name):
    """At ends of lines, and at bytes."""
    whole = (copy / name).read_bytes()
    places = [i + 1 for i, byte in enumerate(whole[:-1]) if byte == 10]
    drawn = random.Random(0)
    for place in {0, places[0], places[-1], len(whole) - 1, *drawn.sample(range(len(whole)), 20)}:
        (copy / name).write_bytes(whole[:place])
        assert told(copy).startswith(f"{copy / name}: ")


@pytest.mark.parametrize("name", TABLES)
def test_a_repeated_row_is_noticed(copy, name):
    rows = (copy / name).read_text().splitlines(keepends=True)
    (copy / name).write_text("".join([*rows, rows[-1]]))
    assert told(copy).startswith(f"{copy / name}: ")


@pytest.mark.parametrize(
    ("name", "column", "cell", "message"),
    [
        ("rounds.csv", "num_prefills", "x", "column num_prefills: could not convert string to float: 'x'"),
        ("rounds.csv", "end_time", "", "column end_time is empty in row 3; a number from 0 to 1e+15 is needed"),
        ("rounds.csv", "end_time", "1e9", "the rounds are not in the order of their end_time"),
        ("rounds.csv", "batch_num_prefill_tokens", "-1", "column batch_num_prefill_tokens is -1 in row 3"),
        ("rounds.csv", "predicted_time", "inf", "column predicted_time is inf in row 3"),
        ("requests.csv", "request_num_prefill_tokens", "", "column request_num_prefill_tokens is empty in row 3"),
        ("requests.csv", "request_num_decode_tokens", "-5", "column request_num_decode_tokens is -5 in row 3"),
        ("requests.csv", "request_e2e_time", "1e999", "column request_e2e_time is inf in row 3"),
        ("token_gaps.csv", "count", "0", "column count is 0 in row 3; a number from 1 to"),
        ("token_gaps.csv", "inter_token_latency", "0", "the gaps do not ascend"),
    ],
)
def test_a_wrong_cell_is_named(copy, name, column, cell, message):
    rows = list(csv.reader((copy / name).read_text().splitlines()))
    rows[3][rows[0].index(column)] = cell
    write_rows(copy / name, rows)
    assert message in told(copy)


WRONG: tuple[Any, ...] = ("x", [], {}, [[1]], {"a": {"b": 1}}, True, -1, 1e300, 10**400, float("nan"), None)


def test_each_value_of_a_summary_is_shown_or_told(copy):
    """Of every key at every depth, one wrong value drawn; and of objects and numbers those that cannot be right."""
    whole = json.loads((copy / "summary.json").read_text())
    drawn = random.Random(0)
    for place in places_in(whole):
        value = drawn.choice(WRONG)
        before = put(whole, place, value)
        (copy / "summary.json").write_text(json.dumps(whole))
        if (
            not isinstance(value, dict)
            if isinstance(before, dict)
            else isinstance(before, float) and value in ("x", [])
        ):
            assert f"summary.json: {place[0]}" in told(copy)
        elif drawn.random() < 0.3:
            shown_or_told(copy)
        put(whole, place, before)


def test_cells_drawn_at_random_are_shown_or_told(copy):
    drawn = random.Random(1)
    cells = ("", "nan", "x", "-1", "0", "1e15", "1e-300", "3.5", "-1e14", "\ufffd", '"', "\n")
    for _ in range(80):
        name = drawn.choice([*TABLES])
        kept = (copy / name).read_text()
        rows = list(csv.reader(kept.splitlines()))
        for row in drawn.sample(rows[1:], drawn.choice((1, len(rows) - 1))):
            row[drawn.randrange(len(row))] = drawn.choice(cells)
        write_rows(copy / name, rows)
        shown_or_told(copy)
        (copy / name).write_text(kept)


def test_a_report_of_names_that_are_no_text(copy):
    """Files whose names are not UTF-8, and a summary with half a surrogate pair."""
    (copy / "caf\udce9.txt").touch()
    summary = json.loads((copy / "summary.json").read_text()) | {"model": "\ud800"}
    (copy / "summary.json").write_text(json.dumps(summary))
    text = write_run_report(copy).read_text(encoding="utf-8")
    assert 'href="./caf%E9.txt"' in text and "<h1>" in text


def places_in(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places_in(value, (*path, key))


def put(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    """What stood there before."""
    for key in place[:-1]:
        content = content[key]
    before, content[place[-1]] = content[place[-1]], value
    return before


def write_rows(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
