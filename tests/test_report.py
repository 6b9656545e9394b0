"""report.html: what stands in it, for every kind of run; and as a browser shows it, without network."""

from __future__ import annotations

import base64
import csv
import gzip
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sarathi.benchmark import report_html
from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.config import parse_args
from sarathi.metrics.html import page as page_module
from sarathi.metrics.html.figures import BLUE, MAX_CDF_POINTS, ORANGE, cdf
from sarathi.metrics.html.page import Cell, Page, number
from sarathi.metrics.html.run_report import report_page, write_run_report
from sarathi.metrics.run_folder import RunFolder, read_run
from sarathi.metrics.thinning import MAX_POINTS, NUM_HIGHEST, binned, medians_by_doubling, thinned
from tests.browser import visit

WORKLOAD = (
    "--request_generator_config_type=SYNTHETIC",
    "--length_generator_config_type=UNIFORM",
    "--poisson_request_interval_generator_config_qps=8",
)
TWO_REPLICAS = ("--num_replicas=2", "--slo_config_ttft=0.5", "--slo_config_tpot=0.02")
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\"><b>'&amp;"


def run(tmp_path: Path, num_requests: int, *flags: str) -> Path:
    count = f"--synthetic_request_generator_config_num_requests={num_requests}"
    config = parse_args([*WORKLOAD, count, f"--output_dir={tmp_path}", *flags])
    directory = run_benchmark(config, build_workload(config)).directory
    assert directory is not None
    return directory


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose rounds have predictions, and its report."""
    directory = run(tmp_path_factory.mktemp("predicted"), 60, "--scheduler_config_type=AGING_LPRS_APC")
    write_run_report(directory)
    return directory


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replicas, no predictions, and targets that some requests miss."""
    directory = run(tmp_path_factory.mktemp("replicas"), 40, *TWO_REPLICAS)
    write_run_report(directory)
    return directory


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One request, so that one of two replicas is idle; texts of the run are as hostile as can be."""
    directory = run(tmp_path_factory.mktemp("hostile"), 1, *TWO_REPLICAS)
    rewrite(directory / "requests.csv", lambda row: row | {"request_id": HOSTILE, "tenant": HOSTILE})
    summary = json.loads((directory / "summary.json").read_text())
    summary |= {"model": HOSTILE, "workload": HOSTILE, "first_ignored": HOSTILE, "reasons": {HOSTILE: 3}}
    summary["slo"]["classes"] = {HOSTILE: {**summary["slo"]}}
    del summary["slo"]["classes"][HOSTILE]["classes"]
    (directory / "summary.json").write_text(json.dumps(summary))
    config = (directory / "config.yaml").read_text()
    (directory / "config.yaml").write_text(config + f"{json.dumps(HOSTILE)}: {json.dumps(HOSTILE)}\n")
    write_run_report(directory)
    return directory


def rewrite(path: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    with path.open(newline="") as file:
        rows = [change(row) for row in csv.DictReader(file)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def text_of(directory: Path) -> str:
    return (directory / "report.html").read_text(encoding="utf-8")


def figures_of(directory: Path) -> dict[str, dict]:
    """Each figure of the report by its title."""
    return figures_in(text_of(directory))


def figures_in(text: str) -> dict[str, dict]:
    packed = re.search(r'id="figures">([^<]*)<', text)
    figures = json.loads(gzip.decompress(base64.b64decode(packed[1]))) if packed else []
    titles = re.findall(r'<h3 id="figure-\d+-title">([^<]*)<', text)
    return dict(zip(titles, figures, strict=True))


def num_figures(text: str) -> int:
    return text.count('class="plot"')


# ---- what stands in it


def test_the_report_holds_the_summary_and_the_settings(predicted: Path):
    text, run_folder = text_of(predicted), read_run(predicted)
    summary = run_folder.summary
    assert '<strong class="badge">simulated</strong>' in text and "no GPU ran" in text
    assert f"<dt>E2E time, mean</dt><dd>{number(summary['request_e2e_time']['mean'])} s</dd>" in text
    assert f"MAPE</dt><dd>{number(summary['prediction']['mape_percent'], 3)} %</dd>" in text
    slowest = int(np.argmax(run_folder.requests["request_e2e_time"]))
    first = text[text.index("slowest requests") :].split("<tbody><tr><td>")[1]
    assert first.startswith(f"{run_folder.requests['request_id'][slowest]}</td>")
    assert "20 rounds with the worst prediction" in text and "What the policies decided" in text
    changed = text[text.index("Settings that differ") : text.index("<details>")]
    assert "AGING_LPRS_APC" in changed and "num_requests" in changed and "chunk_size" not in changed
    assert "chunk_size" in text[text.index("<details>") :]
    assert 'href="./rounds.csv"' in text
    assert list(predicted.glob("*.part")) == []


def test_operators_are_shown_and_what_auto_gives_is_no_change(tmp_path: Path):
    directory = run(tmp_path, 10, "--metrics_config_enable_op_level_metrics", "--seed=5")
    text = report_page(read_run(directory)).render()
    rows = re.findall(r"<td>(\w+_proj)</td><td[^>]*>([\d.]+) %</td>", text)
    assert [name for name, _ in rows][:2] == ["mlp_up_proj", "mlp_down_proj"] and float(rows[0][1]) > 20
    assert "nccl_send" not in text  # one device sends nothing
    changed = text.split("Settings that differ from the defaults")[2].split("</table>")[0]
    assert "executor_config" not in changed and "AUTO" not in changed
    assert re.search(r">run</td><td>seed</td>", changed)


def test_figures_show_the_columns(predicted: Path):
    figures, run_folder = figures_of(predicted), read_run(predicted)
    assert len(figures) == 11
    e2e = np.sort(run_folder.requests["request_e2e_time"])
    assert figures["End-to-end time"]["data"][0]["x"] == pytest.approx([e2e[0], *e2e], rel=1e-5)
    marked = figures["End-to-end time"]["data"][1]
    assert marked["x"] == pytest.approx(
        [run_folder.summary["request_e2e_time"][q] for q in ("p50", "p90", "p99")], 1e-5
    )
    names = [trace["name"] for trace in figures["Round time"]["data"]]
    assert names[:2] == ["measured", "predicted"] and names[-1] == "target"
    assert max(figures["KV blocks in use"]["data"][0]["y"]) == run_folder.rounds["num_used_blocks"].max()
    for figure in figures.values():
        assert all(figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis"))


def test_replicas_are_summed_and_listed(replicas: Path):
    figures, rounds = figures_of(replicas), read_run(replicas).rounds
    at, places = len(rounds["end_time"]) // 2, np.arange(len(rounds["end_time"]))
    latest = [rounds["num_running"][(rounds["replica_id"] == i) & (places <= at)][-1] for i in (0, 1)]
    assert figures["Queue depth"]["data"][1]["y"][at] == sum(latest)
    assert [trace["name"] for trace in figures["Load of each replica"]["data"]] == ["replica 0", "replica 1"]
    text = text_of(replicas)
    assert "Each replica" in text and "Goodput, requests/s" in text
    assert '<td class="bad">missed</td>' in text


def test_a_run_without_predictions_has_no_empty_parts(replicas: Path):
    assert "worst prediction" not in text_of(replicas) and "MAPE" not in text_of(replicas)
    assert "Round times" in figures_of(replicas) and "Predicted against" not in text_of(replicas)


def test_a_run_in_which_nothing_finished(tmp_path: Path):
    directory = run(tmp_path, 3, "--model_config_max_model_len=16", "--cache_config_num_gpu_blocks=50")
    text = write_run_report(directory).read_text()
    assert "No request finished" in text and "No round ran" in text
    assert "3 requests were ignored on arrival; the first: " in text
    assert num_figures(text) == 0 and 'id="plotly-js"' not in text and "slowest" not in text
    seen = visit(directory / "report.html")
    assert (seen.console, seen.requested) == ([], []) and 'data-figures="0"' in seen.dom


def test_what_comes_from_the_run_is_escaped(hostile: Path):
    text = text_of(hostile)
    # title-line twice, notice, class, reason, request, its class, setting and its value
    assert text.count("&lt;/script&gt;&lt;img src=x onerror=&quot;document.title=&#x27;taken") >= 9
    assert "<img" not in text and 'onerror="' not in text
    assert "By class" in text
    hover = figures_of(hostile)["Time to first token by prompt length"]["data"][0]["text"][0]
    assert "&lt;img" in hover and "<img" not in hover


def test_nothing_names_another_place(predicted: Path):
    """Outside plotly.js, whose unused map styles name tile servers, no address stands in the page."""
    text = re.sub(r'(<script type="text/plain" id="[\w-]+">)[^<]*', r"\1", text_of(predicted))
    assert len(text) < 200_000
    assert re.findall(r"https?:|//[a-z]|url\(|@import|\bsrc=", re.sub(r"(?m)^\s*//.*|; //.*", "", text)) == []
    assert "default-src 'none'" in text


def test_the_report_is_the_same_each_time_and_imports_no_plotly(predicted: Path):
    before = text_of(predicted)
    code = (
        f"import sys; from sarathi.benchmark.report_html import main; status = main([{str(predicted)!r}])\n"
        "print([m for m in ('plotly', 'torch', 'pandas', 'matplotlib', 'wandb') if m in sys.modules]); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(predicted / "report.html"), "[]"]
    assert text_of(predicted) == before


def test_a_folder_without_a_run_is_one_line(predicted: Path, tmp_path: Path, capsys):
    assert report_html.main([str(tmp_path / "none"), str(predicted), str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out.split() == [str(predicted / "report.html")]
    assert err.splitlines() == [
        f"error: {tmp_path / 'none'}: not a folder; a run's folder, which holds summary.json, is needed",
        f"error: {tmp_path}: holds no summary.json: no run's folder",
    ]
    assert list(tmp_path.iterdir()) == []


def test_whatever_is_asked_is_one_line(tmp_path: Path, capsys):
    (tmp_path / "two\nlines").mkdir()
    for argv in ([], ["--no-such-flag"], [str(tmp_path / "two\nlines")], ["n" * 300]):
        assert report_html.main(argv) == 2
        out, err = capsys.readouterr()
        assert out == "" and len(err.splitlines()) == 1 and err.startswith("error: "), err


def test_a_folder_whose_name_is_no_text(predicted: Path, tmp_path: Path):
    folder = shutil.copytree(predicted, tmp_path / "caf\udce9")
    command = [sys.executable, "-m", "sarathi.benchmark.report_html", str(folder), str(tmp_path / "\udce9")]
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}  # where locales say UTF-8
    done = subprocess.run(command, capture_output=True, text=True, env=strict)
    assert (done.returncode, done.stdout) == (2, f"{tmp_path}/caf\\udce9/report.html\n")
    assert done.stderr.startswith(f"error: {tmp_path}/\\udce9: not a folder") and len(done.stderr.splitlines()) == 1
    assert "run caf?" in text_of(folder)


def test_a_missing_plotly_is_named(predicted: Path, monkeypatch, capsys):
    before = text_of(predicted)
    page_module._plotly_js.cache_clear()
    monkeypatch.setattr(page_module.importlib.util, "find_spec", lambda name: None)
    assert report_html.main([str(predicted)]) == 2
    assert capsys.readouterr().err == (
        "error: HTML reports need the package plotly; install sarathi-serve-fair[bench]\n"
    )
    assert text_of(predicted) == before


def test_a_hundred_thousand_requests_stay_small(predicted: Path):
    """A real run's rows over and over, so that every column is as it is in a run."""
    run_folder = read_run(predicted)
    many = RunFolder(run_folder.path, run_folder.config, run_folder.summary)
    many.requests = repeated(run_folder.requests, 100_000, ("arrival_time",))
    many.rounds = repeated(run_folder.rounds, 300_000, ("scheduled_time", "end_time"))
    many.token_gaps = run_folder.token_gaps
    text = report_page(many).render()
    assert len(text) < 3_000_000
    assert "100,000 finished requests: about 4,000 drawn, the 100 highest among them" in text
    assert "300,000 rounds, highest value of each of 2,000 slices of time" in text
    figures = figures_in(text)
    assert len(figures) == 11
    for figure in figures.values():
        assert max(len(trace["x"]) for trace in figure["data"]) <= MAX_POINTS


def repeated(columns: dict[str, np.ndarray], num: int, times: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The columns' rows until there are `num`, each repetition 20 s later than the one before, no two alike."""
    size = len(next(iter(columns.values())))
    result = {name: np.resize(values, num) for name, values in columns.items()}
    for name in times:
        result[name] = result[name] + 20 * (np.arange(num) // size)
    noise = np.random.default_rng(0).uniform(0.9, 1.1, num)
    for name in set(result) & {"request_e2e_time", "prefill_e2e_time", "batch_execution_time"}:
        result[name] = result[name] * noise
    return result


# ---- as a browser shows it


def test_it_opens_without_errors_and_without_network_and_looks_right(predicted: Path, tmp_path: Path):
    image = pytest.importorskip("PIL.Image")
    picture = tmp_path / "report.png"
    seen = visit(predicted / "report.html", width=1280, height=1100, screenshot=picture)
    assert (seen.console, seen.requested) == ([], [])
    assert 'data-figures="11"' in seen.dom and len(re.findall(r'class="plot [\w -]*drawn"', seen.dom)) == 11
    buttons = {"Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes", "Download plot as a PNG"}
    assert set(re.findall(r'data-title="([^"]*)"', seen.dom)) == buttons  # no logo, no cloud
    pixels = np.asarray(image.open(picture).convert("RGB")).astype(int)
    assert pixels.shape[:2] == (1100, 1280)

    def where(color: str) -> tuple[np.ndarray, np.ndarray]:
        wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        y, x = np.nonzero(np.abs(pixels - wanted).max(axis=2) <= 10)
        return y, x

    y, x = where("#b4450f")  # the badge 'simulated', beside the title
    assert len(y) > 800 and y.max() < 100 and x.max() < 640
    y, x = where(BLUE)  # the CDF of E2E in the left half
    assert (in_first := y < 900).sum() > 150 and x[in_first].max() < 640 and np.ptp(x[in_first]) > 300
    y, x = where(ORANGE)  # that of TTFT in the right half; the notice's edge is at the far left
    in_first = (y > 400) & (y < 900)
    assert in_first.sum() > 150 and x[in_first].min() > 640 and np.ptp(x[in_first]) > 300
    text_like = (pixels.max(axis=2) < 90).mean()
    assert 0.005 < text_like < 0.2  # neither blank nor dark


TRY = """
const waited = setInterval(async () => {
  const root = document.documentElement;
  if (!root.dataset.figures) return;
  clearInterval(waited);
  const div = document.getElementById("figure-0"), found = {};
  await Plotly.relayout(div, {"xaxis.range": [1, 2]});
  found.zoomed = div._fullLayout.xaxis.range;
  Plotly.Fx.hover(div, [{curveNumber: 0, pointNumber: 20}]);
  await new Promise((resolve) => setTimeout(resolve, 300));
  found.hover = div.querySelector(".hoverlayer").textContent;
  const button = document.querySelector("button.log"), axis = () => div._fullLayout.xaxis.type;
  found.axes = [axis()];
  button.click(); await new Promise((resolve) => setTimeout(resolve, 300));
  found.axes.push(axis(), button.getAttribute("aria-pressed"));
  const table = [...document.querySelectorAll("table.sortable")].find((t) => t.caption.textContent.includes("slowest"));
  const column = () => [...table.tBodies[0].rows].map((row) => Number(row.cells[2].dataset.sort));
  table.tHead.rows[0].cells[2].firstElementChild.click();
  found.descending = column();
  table.tHead.rows[0].cells[2].firstElementChild.click();
  found.ascending = column();
  found.width = [root.scrollWidth, innerWidth];
  found.outside = [...document.querySelectorAll(".main-svg")].filter((svg) => {
    const inner = svg.getBoundingClientRect(), outer = svg.closest(".figure").getBoundingClientRect();
    return inner.left < outer.left || inner.right > outer.right || inner.bottom > outer.bottom;
  }).length;
  const boxes = [...document.querySelectorAll(".figure")].map((figure) => figure.getBoundingClientRect());
  found.overlapping = boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length;
  found.background = getComputedStyle(document.body).backgroundColor;
  document.body.dataset.found = JSON.stringify(found);
}, 20);
"""


def test_plots_zoom_and_hover_and_tables_sort_on_a_narrow_dark_screen(predicted: Path, tmp_path: Path):
    text = text_of(predicted)
    (nonce,) = re.findall(r'<script nonce="(\w+)">', text)
    copy = tmp_path / "tried.html"
    copy.write_text(text.replace("</body>", f'<script nonce="{nonce}">{TRY}</script></body>'), encoding="utf-8")
    seen = visit(copy, width=700, height=900, dark=True)
    assert (seen.console, seen.requested) == ([], [])
    found = json.loads(html.unescape(re.findall(r'data-found="([^"]*)"', seen.dom)[0]))
    assert found["zoomed"] == [1, 2]
    assert re.search(r"[\d.]+ s[\d.]+% at or below", found["hover"])
    assert found["axes"] == ["linear", "log", "true"]
    assert found["descending"] == sorted(found["ascending"], reverse=True) != found["ascending"]
    assert found["width"][0] <= found["width"][1] == 700
    assert found["outside"] == found["overlapping"] == 0
    assert found["background"] == "rgb(16, 20, 26)"


def test_hostile_texts_and_a_lone_request_do_no_harm_in_a_browser(hostile: Path):
    seen = visit(hostile / "report.html")
    assert (seen.console, seen.requested) == ([], [])
    assert num_figures(text_of(hostile)) == 12 and 'data-figures="12"' in seen.dom
    assert "<title>SARATHI · " in seen.dom and "<img" not in seen.dom


def test_a_page_that_asks_for_the_network_is_found_out(tmp_path: Path):
    """What the tests above rely on."""
    path = tmp_path / "page.html"
    path.write_text('<html><img src="https://example.invalid/x.png"><script>console.warn("a\\nb")</script></html>')
    seen = visit(path)
    assert seen.requested == ["https://example.invalid/x.png"]
    assert any(line.startswith("a\nb ") for line in seen.console)


# ---- pieces


def test_a_page_escapes_aligns_and_sorts():
    page = Page("a<b", badge="x&y")
    page.add_section("S<", "t<")
    page.add_numbers([("l<", "1<", "h<")])
    page.add_table(["c<", "n"], [["v<", 1234.5], [Cell("0.5 %", 0.005, "bad", './a"b'), None]], caption="k<")
    text = page.render()
    body = text[text.index("<body>") : text.index("<script")]
    assert re.findall(r"<(?![a-z/])", body) == [] and 'href="./a&quot;b"' in body
    assert '<td class="n" data-sort="1234.5">1,234</td>' in body
    assert '<td class="n bad" data-sort="0.005"><a' in body and '<td class="n">–</td>' in body
    assert '<th scope="col" class="n">' in body and "figures" not in body


def test_numbers_keep_four_digits():
    shown = [number(v) for v in (0.0, 12.0, 123456.0, 123456.7, 1.23456, 0.000123456, -3.21987, None, float("nan"))]
    assert shown == ["0", "12", "123,456", "123,457", "1.235", "0.0001235", "-3.220", "–", "–"]
    assert number(0.0123, 3, 1e3) == "12.3"


def test_a_long_cdf_keeps_its_ends_and_percentiles():
    values = np.random.default_rng(0).lognormal(size=200_000)
    lone = cdf({"a": values}, "x", "s")["data"][0]
    assert len(lone["x"]) <= MAX_CDF_POINTS + 1
    assert (lone["x"][0], lone["x"][-1]) == (pytest.approx(values.min(), 1e-5), pytest.approx(values.max(), 1e-5))
    assert (lone["y"][0], lone["y"][-1]) == (0, 1)
    for share in (0.5, 0.95, 0.99, 0.999):
        drawn = lone["x"][int(np.searchsorted(lone["y"], share - 1e-9))]
        assert drawn == pytest.approx(np.quantile(values, share, method="inverted_cdf"), rel=1e-5)


def test_a_counted_cdf_is_that_of_its_sample():
    counted = np.array([0.1, 0.3, 0.7]), np.array([3.0, 1.0, 4.0])
    sample = np.repeat(*(counted[0], counted[1].astype(int)))
    for values in (counted, sample):
        trace = cdf({"a": values, "none": np.array([np.nan])}, "x", "ms", scale=1e3)["data"]
        assert len(trace) == 1
        steps = dict(zip(trace[0]["x"], trace[0]["y"], strict=True))  # the last of equal x holds
        assert steps == {100.0: 0.375, 300.0: 0.5, 700.0: 1.0}


def test_a_long_tail_starts_on_a_log_axis():
    values = np.full(100, 1.0)
    assert cdf({"a": values}, "x", "s")["layout"]["xaxis"]["type"] == "linear"
    values[0] = 21.0
    assert cdf({"a": values}, "x", "s")["layout"]["xaxis"]["type"] == "log"


def test_thinning_keeps_ends_and_the_highest():
    y = np.random.default_rng(1).random(50_000)
    y[100] = np.nan
    shown = thinned(y)
    assert MAX_POINTS - NUM_HIGHEST <= len(shown) <= MAX_POINTS and {0, 49_999} <= set(shown.tolist())
    assert set(np.argsort(-np.nan_to_num(y))[:NUM_HIGHEST]) <= set(shown.tolist()) and 100 not in shown
    assert thinned(np.array([np.nan, 1.0, 2.0])).tolist() == [1, 2]


def test_medians_by_doubling_need_enough_values():
    lengths, values = np.repeat([100.0, 127.0, 128.0, 300.0, 0.0], [4, 4, 8, 7, 9]), np.arange(32.0)
    values[9] = np.nan  # leaves 7 of the second doubling
    x, y = medians_by_doubling(lengths, values)
    assert x == pytest.approx([64 * 2**0.5]) and y.tolist() == [3.5]


def test_slices_of_time_leave_out_the_empty_ones():
    times, values = np.array([0.0, 1.0, 1.5, 9.0, 10.0]), np.array([1.0, 5.0, 3.0, 2.0, 8.0])
    assert [part.tolist() for part in binned(times, values, 5, "max")] == [[0.0, 8.0], [5.0, 8.0]]
    assert binned(times, values, 5, "mean")[1].tolist() == [3.0, 5.0]
    assert binned(times, values, 5, "median")[1].tolist() == [3.0, 5.0]
    assert binned(times[:1], values[:1], 5, "mean")[1].tolist() == [1.0]
