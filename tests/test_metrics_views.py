"""Plots and the Chrome trace: they are written for every kind of run and say what happened."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.category import StrCategoryFormatter
from matplotlib.figure import Figure

from sarathi.clock import VirtualClock
from sarathi.engine.engine import Engine, replay
from sarathi.executor.simulated import SimulatedExecutor
from sarathi.metrics import plots
from sarathi.metrics.chrome_trace import ChromeTrace
from sarathi.metrics.recorder import Recorder
from sarathi.metrics.sinks import NullSink
from tests.simulate import make_request, make_scheduler
from tests.test_metrics_recorder import mixed_requests, run

PNG = b"\x89PNG\r\n\x1a\n"


def test_plots_are_images(tmp_path: Path) -> None:
    recorder, _, _ = run([NullSink()], mixed_requests())
    paths = plots.plot_run(recorder.data(), tmp_path / "plots")
    paths.append(plots.plot_comparison({"SARATHI": recorder.data(), "AGING": recorder.data()}, tmp_path / "c.png"))
    assert len(set(paths)) == 6
    for path in paths:
        assert path.read_bytes().startswith(PNG) and path.stat().st_size > 5000


@pytest.mark.parametrize(
    "requests", [[], [make_request("too-long", 5000, 5)], [make_request("a", 1, 1)]], ids=["none", "ignored", "one"]
)
@pytest.mark.filterwarnings("error")
def test_plots_of_runs_with_next_to_nothing(tmp_path: Path, requests: list) -> None:
    recorder, _, _ = run([NullSink()], requests)
    for path in (
        *plots.plot_run(recorder.data(), tmp_path),
        plots.plot_comparison({"A": recorder.data()}, tmp_path / "c.png"),
    ):
        assert path.read_bytes().startswith(PNG)


def test_titles_say_scheduler_device_and_that_it_is_simulated() -> None:
    metadata = {"scheduler": "AGING", "model": "m", "device": "rtx_4090", "simulated": True}
    assert plots.run_title(metadata) == "AGING · m on rtx_4090 (simulated)"
    assert plots.run_title({"scheduler": "AGING", "device": "cpu", "simulated": False}) == "AGING · cpu"
    assert plots.run_title(metadata | {"num_replicas": 3}) == "AGING · m on rtx_4090, 3 replicas (simulated)"
    one = metadata | {"num_replicas": 3, "replica_id": 1}
    assert plots.run_title(one) == "AGING · m on rtx_4090, replica 1 of 3 (simulated)"


@pytest.mark.parametrize("num_stages", [1, 3])
def test_chrome_trace(tmp_path: Path, num_stages: int) -> None:
    path = tmp_path / "trace" / "chrome_trace.json"
    requests = mixed_requests()
    _, summary, outputs = run([ChromeTrace(path)], requests, abort="r3", num_stages=num_stages)
    events = json.loads(path.read_text(), parse_constant=pytest.fail)["traceEvents"]
    assert [p.name for p in path.parent.iterdir()] == [path.name]

    rounds = [event for event in events if event["ph"] == "X"]
    assert len(rounds) == len(outputs)
    tracks = {event["tid"] for event in rounds}
    assert len(tracks) == num_stages
    for track in tracks:
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in rounds if event["tid"] == track)
        assert all(end <= start + 1e-2 for (_, end), (start, _) in pairwise(spans))

    begins = [event for event in events if event["ph"] == "b"]
    ends = {(event["id"], event["name"]): event["ts"] for event in events if event["ph"] == "e"}
    assert len(begins) == len(ends) == 4 * summary["num_finished"]
    by_id = {f"request {request.request_id}": request for request in requests}
    for outer in (event for event in begins if event["name"] in by_id):
        request = by_id[outer["name"]]
        phase = {event["name"]: event["ts"] for event in begins if event["id"] == outer["id"]}
        assert request.prefill_end_time is not None and request.finish_time is not None
        assert outer["ts"] == phase["queued"] == pytest.approx(1e6 * request.arrival_time, abs=1e-2)
        assert phase["prefill"] == ends[outer["id"], "queued"]
        assert phase["decode"] == ends[outer["id"], "prefill"] == pytest.approx(1e6 * request.prefill_end_time, abs=1)
        assert ends[outer["id"], "decode"] == ends[outer["id"], outer["name"]]
        assert ends[outer["id"], "decode"] == pytest.approx(1e6 * request.finish_time, abs=1e-2)


def test_equal_rounds_and_one_request_are_drawn_with_numbers_on_the_axes(tmp_path: Path) -> None:
    """A histogram without spread, and nothing to take a median of."""

    class ConstantLatency:
        def stage_times(self, output):
            return (0.02,)

    recorder = Recorder([NullSink()], {})
    clock = VirtualClock()
    engine = Engine(make_scheduler(), SimulatedExecutor(ConstantLatency(), clock), clock, recorder)
    replay(engine, [make_request("a", 8, 5)])
    recorder.close(clock.now())
    assert len(plots.plot_run(recorder.data(), tmp_path)) == 5
    figure = Figure()
    plots._ttft_by_prompt_length(figure, recorder.data())
    assert not isinstance(figure.axes[0].yaxis.get_major_formatter(), StrCategoryFormatter)
