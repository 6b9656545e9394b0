"""Whole comparisons of real (simulated) runs through the command line: tables, CSV, page, warnings and bad input."""

from __future__ import annotations

import csv
import hashlib
import html
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from sarathi.benchmark import compare as command
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.compare import compare
from sarathi.benchmark.runner import run_benchmark
from sarathi.comparison.comparison import Row
from sarathi.comparison.page import comparison_page
from sarathi.comparison.plots import _start_in_log
from sarathi.config import parse_args
from sarathi.metrics.headline import E2E, METRICS
from sarathi.metrics.html.figures import COLORS, _style

SEEDS = (1, 2, 3, 4)
NUM_REQUESTS = 40
FLAGS = (
    "--executor_config_type=SIMULATED",
    "--request_generator_config_type=SYNTHETIC",
    f"--synthetic_request_generator_config_num_requests={NUM_REQUESTS}",
    "--length_generator_config_type=TRACE",
    "--trace_request_length_generator_config_max_tokens=4096",
    "--poisson_request_interval_generator_config_qps=20",
    "--no-metrics_config_plots",
    "--log_level=warning",
)


def make_run(output_dir: Path, *flags: str) -> Path:
    """A small run under a load that lets a queue grow; its folder."""
    lengths = output_dir.parent / "lengths.csv"
    if not lengths.exists():
        pairs = [(1800 if i % 5 == 0 else 60 + 11 * i, 10 + i % 30) for i in range(50)]
        rows = "".join(f"{prompt},{output}\n" for prompt, output in pairs)
        lengths.write_text(f"num_prefill_tokens,num_decode_tokens\n{rows}")
    trace = f"--trace_request_length_generator_config_trace_file={lengths}"
    config = parse_args([*FLAGS, trace, f"--output_dir={output_dir}", *flags])
    directory = run_benchmark(config, build_workload(config)).directory
    assert directory is not None
    return directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name: runs of seed 1, 'sarathi' and 'aging' the first of SEEDS that lie in the folder 'seeds'."""
    root = tmp_path_factory.mktemp("compare")
    seeds = {
        (name, seed): make_run(
            root / "seeds", f"--scheduler_config_type={name}", f"--{name}_scheduler_config_max_num_seqs=6",
            f"--seed={seed}", "--slo_config_ttft=1",
        )
        for name in ("sarathi", "aging") for seed in SEEDS
    }  # fmt: skip
    return {
        "seeds": root / "seeds",
        "sarathi": seeds["sarathi", 1],
        "aging": seeds["aging", 1],
        "aging of seed 2": seeds["aging", 2],
        "cut": make_run(root / "cut", "--sarathi_scheduler_config_max_num_seqs=6", "--seed=1", "--time_limit=2"),
        "slower": make_run(root / "slower", "--poisson_request_interval_generator_config_qps=2", "--seed=1"),
    }


@pytest.fixture(autouse=True)
def own_log_level(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        yield


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def test_schedulers_over_seeds_are_paired_and_nothing_is_to_warn_of(runs, tmp_path, capsys, caplog) -> None:
    before = digest(runs["seeds"])
    assert command.main([str(runs["seeds"]), "--output-dir", str(tmp_path / "out")]) == 0
    assert digest(runs["seeds"]) == before
    assert not caplog.records
    out = capsys.readouterr().out
    assert "8 runs; changes are against SARATHI" in out and str(tmp_path / "out" / "comparison.html") in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["comparison.csv", "comparison.html"]


def test_the_csv_file_reads_back_to_the_rows(runs, tmp_path) -> None:
    path = tmp_path / "table.csv"
    assert command.main([str(runs["seeds"]), "--csv", str(path), "--html", str(tmp_path / "page.html")]) == 0
    assert b"\r" not in path.read_bytes()
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    comparison = compare([runs["seeds"]])
    assert list(table[0]) == list(Row._fields) and len(table) == len(comparison.rows) == 2 * len(METRICS) + 10
    for cells, row in zip(table, comparison.rows, strict=True):
        assert [cells["label"], cells["metric"], cells["statistic"]] == list(row[:3])
        for name in ("value", "ci_low", "ci_high", "delta_percent", "delta_ci_low", "delta_ci_high"):
            assert cells[name] == "" if (value := getattr(row, name)) is None else float(cells[name]) == value
        assert cells["paired"] == {None: "", True: "true", False: "false"}[row.paired]


def test_means_and_changes_are_those_of_the_summaries(runs) -> None:
    comparison = compare([runs["seeds"]])
    summaries = [json.loads((path / "summary.json").read_text()) for path in sorted(runs["seeds"].iterdir())]
    means = {
        name: sum(s[E2E]["mean"] for s in summaries if s["scheduler"] == name) / len(SEEDS)
        for name in ("SARATHI", "AGING")
    }
    row = comparison.row("AGING", METRICS[0])
    assert row.value == pytest.approx(means["AGING"]) and row.ci_low < row.value < row.ci_high
    assert row.delta_percent == pytest.approx(100 * (means["AGING"] / means["SARATHI"] - 1))
    assert row.delta_ci_low < row.delta_percent < row.delta_ci_high
    assert (row.paired, row.num_runs, row.num_pairs) == (True, 4, 4)
    assert comparison.row("SARATHI", METRICS[0]).delta_percent is None
    paired = comparison.paired_requests[0]
    assert (paired.num_requests, paired.num_pairs) == (4 * NUM_REQUESTS, 4)
    assert paired.mean - paired.baseline_mean == pytest.approx(paired.difference)
    assert paired.mean == pytest.approx(means["AGING"])
    by_statistic = {metric.statistic: metric for metric in METRICS if metric.name == "slo.share_met"}
    assert comparison.row("AGING", by_statistic["value"]).value == pytest.approx(
        sum(s["slo"]["share_met"] for s in summaries if s["scheduler"] == "AGING") / 4
    )


def test_two_runs_of_one_workload_compare_request_by_request(runs) -> None:
    comparison = compare([runs["sarathi"], runs["aging"]], baseline=runs["aging"])
    assert comparison.warnings == [] and comparison.baseline.label == "AGING"
    e2e = comparison.paired_requests[0]
    assert (e2e.label, e2e.num_requests, e2e.num_pairs) == ("SARATHI", NUM_REQUESTS, 1)
    assert e2e.difference_interval is None and e2e.share_faster_interval is None and e2e.difference != 0
    assert 0 < e2e.share_faster < 1 and e2e.share_faster + e2e.share_slower <= 1
    row = comparison.row("SARATHI", METRICS[0])
    assert row.paired is True and row.delta_ci_low is None and row.ci_low is None


def test_a_run_against_its_copy_changes_by_nothing(runs, tmp_path) -> None:
    shutil.copytree(runs["aging"], tmp_path / "copy")
    comparison = compare([runs["aging"], tmp_path / "copy"])
    for row in comparison.rows:
        if row.label == comparison.entries[1].label:
            assert row.delta_percent in (0.0, None), row
    assert comparison.row(comparison.entries[1].label, METRICS[0]).delta_percent == 0.0
    assert comparison.paired_requests[0].share_faster == comparison.paired_requests[0].share_slower == 0.0


def test_other_seeds_and_workloads_are_told_to_be_unpaired(runs, capsys, caplog, tmp_path) -> None:
    argv = [str(runs[name]) for name in ("sarathi", "aging of seed 2", "slower")]
    assert command.main([*argv, "--output-dir", str(tmp_path)]) == 0
    told = caplog.messages
    assert any("not paired: seeds differ (2 and 1)" in line for line in told)
    assert any("not paired: arrival times differ (40 of 40 requests" in line for line in told)
    assert all("\n" not in line for line in told)
    page = (tmp_path / "comparison.html").read_text()
    assert page.count('class="notice"') == len(told) > 0 and "seeds differ (2 and 1)" in page
    comparison = compare(argv)
    others = [entry.label for entry in comparison.entries[1:]]
    assert [comparison.row(label, METRICS[0]).paired for label in others] == [False, False]
    assert comparison.paired_requests == []


def test_a_run_cut_short_is_told_and_compared_over_what_both_finished(runs) -> None:
    comparison = compare([runs["sarathi"], runs["cut"]])
    whole, cut = (entry.runs[0].summary["num_finished"] for entry in comparison.entries)
    assert cut < whole == NUM_REQUESTS
    assert any("requests unfinished or aborted; its means" in line for line in comparison.warnings)
    assert any(f"different requests: {cut} finished and 40 in the baseline" in line for line in comparison.warnings)
    e2e = comparison.paired_requests[0]
    assert e2e.num_requests == cut and e2e.difference == pytest.approx(0, abs=1e-9)  # the same until the cut
    assert comparison.row(comparison.entries[1].label, METRICS[0]).delta_percent < 0  # the trap that is warned of


def test_without_requests_json_workloads_are_compared_by_the_table(runs, tmp_path) -> None:
    for name in ("sarathi", "aging"):
        shutil.copytree(runs[name], tmp_path / name)
        (tmp_path / name / "requests.json").unlink()
    comparison = compare([tmp_path], baseline="SARATHI")
    assert comparison.warnings == [] and comparison.row("AGING", METRICS[0]).paired is True


def test_the_baseline_may_be_a_row_or_a_folder_that_is_not_among_the_runs(runs) -> None:
    assert compare([runs["seeds"]], baseline="AGING").baseline.label == "AGING"
    outside = compare([runs["aging"]], baseline=runs["sarathi"])
    assert [entry.label for entry in outside.entries] == ["AGING", "SARATHI"] and outside.baseline.label == "SARATHI"
    with pytest.raises(ValueError, match=r"--baseline: .* holds several rows \(SARATHI, AGING\)"):
        compare([runs["seeds"]], baseline=runs["seeds"])
    with pytest.raises(
        ValueError, match="--baseline: SPF is no folder with a run, and no row; rows are SARATHI, AGING"
    ):
        compare([runs["seeds"]], baseline="SPF")


ASKS_FOR_A_LIST = '[{"request_id": 1, "arrived_at": [0], "num_prefill_tokens": 1, "num_decode_tokens": 1}]'


def change_summary(folder: Path, **values: object) -> None:
    content = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**content, **values}))


def unfinished(folder: Path) -> None:
    (folder / "summary.json").unlink()
    (folder / "requests.csv").rename(folder / "requests.csv.part")


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (unfinished, "holds no summary.json: the run is not finished"),
        (lambda folder: (folder / "requests.csv").unlink(), "holds no requests.csv"),
        (lambda folder: (folder / "summary.json").write_text('{"schedu'), "summary.json: "),
        (lambda folder: (folder / "requests.json").write_text("[{}]"), "lacks 'request_id'"),
        (lambda folder: (folder / "requests.json").write_text("[1]"), "requests.json is broken"),
        (lambda folder: (folder / "requests.json").write_text("[" * 100_000), "requests.json is broken"),
        (lambda folder: (folder / "requests.json").write_text(ASKS_FOR_A_LIST), "requests.json is broken"),
        (lambda folder: (folder / "config.yaml").write_text("seed: !!set {a}\n"), "config.yaml"),
        (lambda folder: (folder / "config.yaml").write_text("seed: !!binary aGk=\n"), "config.yaml"),
        (lambda folder: (folder / "config.yaml").write_text("1: 2\n"), "config.yaml"),
        (lambda folder: (folder / "config.yaml").write_text("a: &a [*a]\n"), "config.yaml"),
        (lambda folder: (folder / "config.yaml").write_text(f"a: {'[' * 600}{']' * 600}\n"), "config.yaml"),
        (lambda folder: change_summary(folder, num_finished="many"), "num_finished"),
        (lambda folder: change_summary(folder, fairness=[1]), "fairness"),
    ],
    ids=[
        "unfinished", "no table", "half a summary", "other keys", "no objects", "deep JSON", "a list in a cell",
        "a set", "bytes", "a number as name", "a loop", "deep YAML", "a word for a count", "no object",
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_read_is_one_line(runs, tmp_path, capsys, caplog, harm, told) -> None:
    shutil.copytree(runs["aging"], tmp_path / "runs" / "bad")
    harm(tmp_path / "runs" / "bad")
    argv = [str(runs["sarathi"]), str(runs["aging"]), str(tmp_path / "runs"), f"--output-dir={tmp_path / 'out'}"]
    assert command.main(argv) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(error) == 1
    assert told in error[0] and str(tmp_path / "runs" / "bad") in error[0] and "--skip-incomplete" in error[0]
    assert not (tmp_path / "out").exists()
    assert command.main([*argv, "--skip-incomplete"]) == 0
    assert any("left out" in line for line in caplog.messages)


def test_bad_arguments_are_one_line(runs, tmp_path, capsys) -> None:
    one, two = str(runs["sarathi"]), str(runs["aging"])
    for argv, told in (
        ([one], "two runs or more are needed"),
        ([one, one], "two runs or more are needed"),
        ([one, str(tmp_path / "none")], "is not a folder"),
        ([one, "r" * 300], "is not a folder"),
        ([one, two, "--baseline", "r" * 300], "--baseline: rrr"),
        ([one, str(tmp_path)], "holds no summary.json, and no folder in it does"),
        ([one, two, f"--output-dir={two}/plots"], "would lie in a run's folder"),
        ([one, two, f"--csv={one}/comparison.csv"], "would lie in a run's folder"),
        ([one, two, "--output"], "unrecognized arguments"),
        ([], "RUN"),
    ):
        assert command.main(argv) == 2
        error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
        assert len(error) == 1 and told in error[0], argv


def test_what_cannot_be_written_is_one_line_before_anything_is(runs, tmp_path, capsys) -> None:
    file, folder, pipe, out = (tmp_path / name for name in ("file", "folder", "pipe", "out"))
    file.write_text("mine")
    folder.mkdir()
    os.mkfifo(pipe)
    (tmp_path / "to_pipe").symlink_to(pipe)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "to_run").symlink_to(runs["aging"])
    before = sorted(tmp_path.iterdir())
    for flags, told in (
        ([f"--html={pipe}"], f"--html: {pipe} is a device"),
        ([f"--csv={tmp_path / 'to_pipe'}"], f"--csv: {tmp_path / 'to_pipe'} is a device"),
        ([f"--html={folder}"], f"--html: {folder} is a folder"),
        ([f"--csv={tmp_path / 'loop'}"], f"--csv: {tmp_path / 'loop'} cannot be written"),
        ([f"--output-dir={file}"], f"--output-dir: {file}/comparison.csv cannot be written"),
        ([f"--html={file}/a/b.html"], f"--html: {file}/a/b.html cannot be written"),
        ([f"--csv={tmp_path}/new/{'n' * 300}"], f"--csv: {tmp_path}/new/nnn"),
        ([f"--csv={tmp_path}/{'n' * 254}"], "name too long"),
        ([f"--output-dir={tmp_path / 'to_run'}/new"], "would lie in a run's folder"),
        ([f"--csv={file}", f"--html={folder}/../file"], "cannot both be written"),
        ([f"--csv={out}", f"--html={out}/page.html"], "cannot both be written"),
        ([f"--csv={out}.part", f"--html={out}"], "cannot both be written"),
        ([f"--output-dir={out}", f"--html={out}/comparison.csv"], "cannot both be written"),
    ):
        assert command.main([str(runs["sarathi"]), str(runs["aging"]), f"--output-dir={out}", *flags]) == 2, flags
        printed = capsys.readouterr()
        assert len(printed.err.splitlines()) == 1 and printed.out == "", flags
        assert printed.err.startswith("error: --") and told in printed.err
        assert sorted(tmp_path.iterdir()) == before and file.read_text() == "mine"


def test_a_link_is_written_through(runs, tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "page.html").write_text("old")
    (tmp_path / "page.html").symlink_to("real/page.html")
    argv = [str(runs["sarathi"]), str(runs["aging"]), f"--output-dir={tmp_path}", f"--html={tmp_path / 'page.html'}"]
    assert command.main(argv) == 0
    assert (tmp_path / "page.html").is_symlink() and (tmp_path / "real" / "page.html").stat().st_size > 100_000
    assert quote(os.path.relpath(runs["aging"], (tmp_path / "real"))) in (tmp_path / "page.html").read_text()


def test_neither_file_is_written_where_one_cannot_be_made(runs, tmp_path, monkeypatch) -> None:
    def broken(comparison: object, directory: Path) -> None:
        raise RuntimeError("no page")

    monkeypatch.setattr("sarathi.comparison.page.comparison_page", broken)
    with pytest.raises(RuntimeError, match="no page"):
        command.main([str(runs["sarathi"]), str(runs["aging"]), f"--output-dir={tmp_path / 'out'}"])
    assert not (tmp_path / "out").exists()


def test_the_same_command_works_again_beside_its_own_results(runs, tmp_path, caplog) -> None:
    for name in ("sarathi", "aging"):
        shutil.copytree(runs[name], tmp_path / name)
    (tmp_path / "comparison.png").write_bytes(b"of the shootout")
    for num_earlier in range(3):
        caplog.clear()
        assert command.main([str(path) for path in sorted(tmp_path.iterdir())]) == 0
        assert sum("passed over" in line for line in caplog.messages) == num_earlier + 1
    assert command.main([str(tmp_path / "aging"), str(next(tmp_path.glob("comparison_*")))]) == 2


def test_names_may_be_of_any_bytes(runs, tmp_path, capsys, caplog) -> None:
    folders = [Path(os.fsdecode(os.fsencode(tmp_path / "runs") + name)) for name in (b"/\xff1", b"/a\n\xff\r2")]
    for folder in folders:
        shutil.copytree(runs["cut"], folder)
    assert command.main([*map(str, folders), f"--output-dir={tmp_path / 'out'}"]) == 0
    assert "\\udcff1" in capsys.readouterr().out
    assert all(len(line.splitlines()) == 1 for line in caplog.messages) and "unfinished" in caplog.text
    page = (tmp_path / "out" / "comparison.html").read_text(encoding="utf-8")
    assert 'href="../runs/%FF1"' in page and 'href="../runs/a%0A%FF%0D2"' in page
    with (tmp_path / "out" / "comparison.csv").open(encoding="utf-8", newline="") as file:
        assert {row["label"] for row in csv.DictReader(file)} == {r"\udcff1", r"a \udcff 2"}


def test_counts_that_a_summary_lacks_are_0(runs, tmp_path) -> None:
    shutil.copytree(runs["aging"], tmp_path / "older")
    change_summary(tmp_path / "older", num_aborted=None, num_unfinished=None, slo={"goodput_requests_per_s": None})
    comparison = compare([runs["sarathi"], tmp_path / "older"])
    assert not any("unfinished" in line for line in comparison.warnings)
    comparison_page(comparison, tmp_path).render()


def test_only_changes_with_an_interval_are_coloured(runs, tmp_path, capsys) -> None:
    def tones(*argv: Path) -> set[str]:
        assert command.main([*map(str, argv), f"--output-dir={tmp_path}"]) == 0
        return set(re.findall(r'<td class="n (\w+)"', (tmp_path / "comparison.html").read_text()))

    assert tones(runs["sarathi"], runs["aging"]) == set()
    assert "one pair of runs has no interval" in capsys.readouterr().out
    assert tones(runs["seeds"]) >= {"good", "muted"}


def test_by_default_files_go_beside_the_runs(runs, capsys) -> None:
    assert command.main([str(runs["sarathi"]), str(runs["cut"])]) == 0
    made = list(runs["seeds"].parent.glob("comparison_*/comparison.*"))
    assert sorted(path.name for path in made) == ["comparison.csv", "comparison.html"]
    assert str(made[0].parent) in capsys.readouterr().out
    shutil.rmtree(made[0].parent)


def test_the_page_draws_every_figure_without_a_word_on_the_console(runs, tmp_path) -> None:
    browser = pytest.importorskip("tests.browser")
    assert command.main([str(runs["seeds"]), "--output-dir", str(tmp_path)]) == 0
    page = tmp_path / "comparison.html"
    visit = browser.visit(page)
    assert visit.console == []
    assert page.read_text().count('class="plot"') == 11 and 'data-figures="11"' in visit.dom
    assert "paired by seed" in visit.dom and page.stat().st_size < 4_000_000


DRIVE = """
const done = (text) => { document.body.dataset.told = text; };
const wait = () => {
  if (!document.documentElement.dataset.figures) { setTimeout(wait, 50); return; }
  const plots = [...document.querySelectorAll(".plot")];
  const key = [...document.querySelectorAll(".legend button")].find((one) => one.dataset.name === "AGING");
  const hidden = () => plots.map((div) => div.data.filter((trace) => trace.visible === false).map((t) => t.name));
  const told = [];
  for (const clicks of [["click"], ["click"], ["click", "click", "dblclick"], ["click", "click", "dblclick"]]) {
    for (const kind of clicks) key.dispatchEvent(new MouseEvent(kind));
    told.push([...new Set(hidden().map(String))]);
  }
  const fairness = plots[7], button = fairness.closest(".figure").querySelector("button.log");
  button.click();
  told.push([fairness.layout.xaxis.type, fairness.layout.yaxis.type]);
  document.querySelectorAll(".figure")[2].scrollIntoView();
  told.push([document.querySelector(".legend").getBoundingClientRect().top]);
  done(JSON.stringify(told));
};
wait();
"""


def test_a_shared_legend_hides_rows_in_every_figure_and_stays_in_sight(runs, tmp_path) -> None:
    browser = pytest.importorskip("tests.browser")
    assert command.main([str(runs["seeds"]), "--output-dir", str(tmp_path)]) == 0
    page = tmp_path / "comparison.html"
    text = page.read_text()
    nonce = re.findall(r"'nonce-(\w+)'", text)[0]
    page.write_text(text.replace("</body>", f'<script nonce="{nonce}">{DRIVE}</script></body>'))
    visit = browser.visit(page, height=500)
    found = re.search(r'data-told="([^"]*)"', visit.dom)
    assert visit.console == [] and found, visit.console
    told = json.loads(html.unescape(found[1]))
    assert told == [["AGING", ""], [""], ["SARATHI", ""], [""], ["log", "log"], [0]]


def test_one_row_far_beyond_the_others_starts_on_a_log_axis() -> None:
    def types(*values: float) -> list[str]:
        axes = {f"{axis}axis": {"type": "linear"} for axis in "xy"}
        figure = {"data": [{"x": [1.0], "y": [value, None]} for value in values], "layout": axes}
        _start_in_log(figure, "y")
        return [axes[f"{axis}axis"]["type"] for axis in "xy"]

    assert types(1, 1, 2, 300) == ["linear", "log"]
    assert types(1, 1, 2, 9) == types() == ["linear", "linear"]


def test_every_row_of_all_schedulers_has_its_own_look() -> None:
    looks = {(style["color"], style["dash"]) for style in map(_style, range(3 * len(COLORS)))}
    assert len(looks) == 3 * len(COLORS) >= 36


def test_warnings_carry_the_name_of_the_command(runs, tmp_path) -> None:
    argv = [sys.executable, "-m", "sarathi.benchmark.compare", str(runs["sarathi"]), str(runs["slower"])]
    done = subprocess.run([*argv, f"--output-dir={tmp_path}"], capture_output=True, text=True, timeout=60)
    told = [line for line in done.stderr.splitlines() if "not paired" in line]
    assert done.returncode == 0 and len(told) == 1 and told[0].startswith("WARNING compare: "), done.stderr
