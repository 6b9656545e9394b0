"""Real engines, real schedulers: every record and summary agrees with what the requests went through."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sarathi.clock import VirtualClock
from sarathi.core.plan import MemoryStats, SchedulerOutput, StepResult
from sarathi.engine.engine import Engine, replay
from sarathi.executor.simulated import SimulatedExecutor
from sarathi.metrics.percentiles import PERCENTILES, STAT_NAMES
from sarathi.metrics.recorder import Recorder
from sarathi.metrics.records import REQUEST_COLUMNS, REQUEST_METRICS, ROUND_COLUMNS
from sarathi.metrics.sinks import CsvSink, NullSink, Sink, write_end, write_json
from sarathi.metrics.summary import summarize
from sarathi.request import Request, RequestStatus
from tests.simulate import LinearLatency, make_output, make_request, make_scheduler

METADATA = {"scheduler": "SARATHI", "device": "rtx_4090", "simulated": True, "seed": 7}
TIMES = REQUEST_METRICS[: REQUEST_METRICS.index("request_num_prefill_tokens")]


def run(
    sinks: list[Sink],
    requests: list[Request],
    *,
    num_stages: int = 1,
    time_limit: float | None = None,
    abort: str | None = None,
    **settings: Any,
) -> tuple[Recorder, dict[str, Any], list[SchedulerOutput]]:
    """Replay `requests`; aborts one while it runs, after ten rounds. Returns recorder, summary and rounds."""
    clock = VirtualClock()
    scheduler = make_scheduler(settings.pop("name", "SARATHI"), **settings)
    executor = SimulatedExecutor(LinearLatency(num_stages), clock, num_stages=num_stages)
    recorder = Recorder(sinks, METADATA)
    engine = Engine(scheduler, executor, clock, recorder)
    outputs: list[SchedulerOutput] = []

    def on_round(output: SchedulerOutput) -> None:
        outputs.append(output)
        if abort is not None and len(outputs) == 10:
            assert engine.abort(abort)

    replay(engine, requests, time_limit=time_limit, on_round=on_round)
    summary = summarize(recorder.close(clock.now(), scheduler.requests.values()))
    return recorder, summary, outputs


def mixed_requests(n: int = 30) -> list[Request]:
    """Short and long prompts, one output token for some, one prompt that can never fit."""
    rng = np.random.default_rng(3)
    prompts, outputs = rng.integers(1, 60, n), rng.integers(1, 25, n)
    requests = [make_request(f"r{i}", int(prompts[i]), int(outputs[i]), 0.02 * i) for i in range(n)]
    return [make_request("too-long", 5000, 5), *requests]


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(cell: str) -> float:
    return float(cell) if cell else math.nan


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_blocks": 14, "block_size": 8, "max_model_len": 100},  # preempts
        {"num_stages": 3},
        {"name": "AGING", "num_blocks": 14, "block_size": 8, "max_model_len": 100, "num_stages": 2},
        {"name": "VLLM"},
    ],
)
def test_each_cell_is_what_the_request_went_through(tmp_path: Path, settings: dict[str, Any]) -> None:
    requests = mixed_requests()
    _, summary, outputs = run([CsvSink(tmp_path)], requests, abort="r3", **settings)
    by_id = {request.request_id: request for request in requests}
    rows = rows_of(tmp_path / "requests.csv")
    assert sorted(row["request_id"] for row in rows) == sorted(by_id)
    for row in rows:
        request = by_id[row["request_id"]]
        assert row["request_num_prefill_tokens"] == str(request.num_prompt_tokens)
        if row["status"] != "finished":
            assert row["status"] == {"too-long": "ignored", "r3": "aborted"}[request.request_id]
            assert all(row[name] == "" for name in TIMES)
            assert bool(row["ignored_reason"]) == (row["status"] == "ignored")
            continue
        value = {name: number(row[name]) for name in REQUEST_METRICS}
        num_output = len(request.output_token_ids)
        assert request.finish_time is not None
        assert value["prefill_e2e_time"] == request.token_times[0] - request.arrival_time
        assert value["request_e2e_time"] == request.token_times[-1] - request.arrival_time
        assert value["prefill_e2e_time"] + value["decode_time_execution_plus_preemption"] == pytest.approx(
            value["request_e2e_time"], abs=1e-9
        )
        assert value["request_scheduling_delay"] + value["prefill_time_execution_plus_preemption"] == pytest.approx(
            value["prefill_e2e_time"], abs=1e-9
        )
        assert value["request_waiting_time"] + value["request_execution_time"] == pytest.approx(
            value["request_e2e_time"], abs=1e-9
        )
        assert value["request_num_decode_tokens"] == num_output == request.max_output_tokens
        assert value["request_num_restarts"] == request.num_preemptions
        if num_output == 1:
            assert row["decode_time_execution_plus_preemption_normalized"] == ""
        else:
            gaps = np.diff(request.token_times)
            assert value["decode_time_execution_plus_preemption_normalized"] == pytest.approx(gaps.mean())
        assert value["slowdown"] == value["request_e2e_time"] / request.execution_time >= 1 - 1e-9
    assert summary["num_preemptions"] == sum(len(output.preempted_ids) for output in outputs)
    assert (summary["num_preemptions"] > 0) == ("num_blocks" in settings)


@pytest.mark.parametrize("num_stages", [1, 3])
def test_summary_agrees_with_numpy_on_plain_samples(tmp_path: Path, num_stages: int) -> None:
    requests = mixed_requests()
    recorder, summary, outputs = run([CsvSink(tmp_path)], requests, abort="r3", num_stages=num_stages)
    write_end(tmp_path, summary, recorder.data())
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    rows = rows_of(tmp_path / "requests.csv")
    finished = [request for request in requests if request.status is RequestStatus.FINISHED_LENGTH]
    samples = {name: [float(row[name]) for row in rows if row["status"] == "finished" and row[name]] for name in TIMES}
    gaps = [float(gap) for request in finished for gap in np.diff(request.token_times)]
    samples["decode_token_execution_plus_preemption_time"] = gaps
    samples["batch_num_tokens"] = [output.num_tokens for output in outputs]
    for name, sample in samples.items():
        expected = [np.mean(sample), *np.percentile(sample, PERCENTILES), np.max(sample)]
        assert [summary[name][stat] for stat in STAT_NAMES] == pytest.approx(expected, rel=1e-12), name
    counts = {"finished": 29, "ignored": 1, "aborted": 1, "unfinished": 0, "requests": 31}
    assert {name: summary[f"num_{name}"] for name in counts} == counts
    makespan = max(request.token_times[-1] for request in finished) - requests[0].arrival_time
    assert summary["makespan"] == pytest.approx(makespan)
    num_output = sum(len(request.output_token_ids) for request in finished)
    assert summary["output_tokens_per_s"] == pytest.approx(num_output / makespan)
    assert METADATA.items() <= summary.items()


def test_rounds_csv_says_what_each_round_was(tmp_path: Path) -> None:
    _, summary, outputs = run([CsvSink(tmp_path)], mixed_requests())
    rows = rows_of(tmp_path / "rounds.csv")
    assert len(rows) == len(outputs) == summary["num_rounds"]
    last_end = None
    for row, output in zip(rows, outputs, strict=True):
        assert tuple(row) == ROUND_COLUMNS
        for name in ("step_id", "token_budget", "num_waiting", "num_running", "num_used_blocks", "num_candidates"):
            assert int(row[name]) == getattr(output, name)
        for name in ("sum_decode_context_len", "max_decode_context_len", "prefill_processed_tokens"):
            assert int(row[name]) == getattr(output, name)
        assert int(row["batch_num_tokens"]) == output.num_tokens
        assert int(row["batch_num_prefill_tokens"]) == output.num_prefill_tokens
        assert int(row["batch_num_decode_tokens"]) == len(output.decodes)
        assert int(row["batch_size"]) == output.num_seqs
        assert [int(n) for n in row["prefill_chunks"].split(";") if n] == [n for _, n in output.prefills]
        assert float(row["batch_execution_time"]) == pytest.approx(0.01 + 1e-4 * output.num_tokens, abs=1e-9)
        start, end = float(row["scheduled_time"]), float(row["end_time"])
        assert end - start == pytest.approx(float(row["batch_execution_time"]), abs=2e-9)
        idle = max(0.0, start - last_end) if last_end is not None else 0.0
        assert float(row["inter_batch_delay"]) == pytest.approx(idle, abs=2e-9)
        last_end = end


def fake_round(step_id: int = 0, **changes: Any) -> SchedulerOutput:
    decode = make_request("d", 4, 4)
    values = {"step_id": step_id, "scheduled_time": 1.0, "token_budget": 2, "num_waiting": 3} | changes
    return make_output([decode] * 2, **values)


def test_starved_rounds_gate_reasons_predictions_and_memory(tmp_path: Path) -> None:
    recorder = Recorder([CsvSink(tmp_path)], {})
    result = StepResult([0, 0], 0.5, MemoryStats(9.0, 9.0, 9.0, 9.0))
    prefill = (make_request("p", 4, 4), 1)
    rounds = [
        # Two decodes, a budget of two, three waiting; memory as the scheduler knew it.
        fake_round(0, memory=MemoryStats(1.5, 2.5, 3.5, 4.5)),
        fake_round(1, num_waiting=0),
        fake_round(2, token_budget=3),
        fake_round(3, prefills=[prefill], num_prefill_tokens=1, reasons={"cap": 2, "warm_start": 1}),
        fake_round(4, predicted_time=0.25, num_candidates=17, reasons={"cap": 1}),
        fake_round(5, num_waiting=0, num_partial=1),
    ]
    for output in rounds:
        recorder.on_step(output, result, [], 1.5, 0.001)
    summary = summarize(recorder.close(1.5))
    rows = rows_of(tmp_path / "rounds.csv")
    assert {row["inter_batch_delay"] for row in rows} == {"0.000000000"}  # in flight together: no gap, none below 0
    assert [row["starved"] for row in rows] == ["1", "0", "0", "0", "1", "1"]
    assert [row["reasons"] for row in rows] == ["", "", "", "cap:2;warm_start:1", "cap:1", ""]
    assert [row["predicted_time"] for row in rows] == ["", "", "", "", "0.25", ""]
    assert [cell for name, cell in rows[0].items() if name.endswith("_mb")] == ["1.500", "2.500", "3.500", "4.500"]
    assert summary["num_starved_rounds"] == 3
    assert summary["reasons"] == {"cap": 3, "warm_start": 1}
    assert summary["schedule_time"]["mean"] == pytest.approx(0.001)


def test_nothing_finished_gives_nulls(tmp_path: Path) -> None:
    recorder, summary, _ = run([CsvSink(tmp_path)], [make_request("too-long", 5000, 5)])
    write_end(tmp_path, summary, recorder.data())
    assert summary["num_ignored"] == summary["num_requests"] == 1
    assert summary["makespan"] is summary["requests_per_s"] is None
    for name in (*REQUEST_METRICS, "decode_token_execution_plus_preemption_time", "batch_execution_time"):
        assert summary[name] == dict.fromkeys(STAT_NAMES)
    assert summary["fairness"]["jain_index_slowdown"] is summary["fairness"]["longest_wait"] is None
    assert (tmp_path / "rounds.csv").read_text() == ",".join(ROUND_COLUMNS) + "\n"
    assert len(rows_of(tmp_path / "requests.csv")) == 1
    json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)


def test_a_run_cut_by_time_keeps_its_unfinished_requests(tmp_path: Path) -> None:
    requests = [make_request(f"r{i}", 40, 5 if i == 0 else 60, 0.0) for i in range(12)]
    _, summary, _ = run([CsvSink(tmp_path)], requests, time_limit=0.6)
    rows = rows_of(tmp_path / "requests.csv")
    unfinished = [row for row in rows if row["status"] == "unfinished"]
    assert 0 < len(unfinished) == summary["num_unfinished"] < 12
    assert summary["num_finished"] + summary["num_unfinished"] == summary["num_requests"] == len(rows) == 12
    assert all(row[name] == "" for row in unfinished for name in TIMES)
    assert summary["request_e2e_time"]["max"] < 0.65
    # Those without a seat have waited from 0 to the cut, longer than any that finished.
    end = float(rows_of(tmp_path / "rounds.csv")[-1]["end_time"])
    assert summary["fairness"]["longest_scheduling_delay"] == pytest.approx(end, abs=1e-8)


def test_a_prompt_only_request_has_no_value_per_output_token() -> None:
    recorder, summary, _ = run([NullSink()], [make_request("a", 20, 0), make_request("b", 20, 3)])
    assert summary["num_finished"] == 2
    per_token = recorder.data().requests["request_e2e_time_normalized"]
    assert np.isfinite(per_token).tolist() == [False, True]
    assert summary["request_e2e_time_normalized"]["mean"] == per_token[1]


def test_makespan_begins_with_the_first_arrival_whoever_ends_first() -> None:
    _, summary, outputs = run([NullSink()], [make_request("a", 20, 50, 1.0), make_request("b", 2, 1, 1.1)])
    assert summary["makespan"] == pytest.approx(sum(0.01 + 1e-4 * output.num_tokens for output in outputs))


def test_json_holds_no_nan_and_is_replaced_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1.5})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": math.nan})
    assert json.loads(path.read_text()) == {"a": 1.5}
    assert list(tmp_path.iterdir()) == [path]


def test_an_unfinished_run_leaves_only_part_files(tmp_path: Path) -> None:
    recorder = Recorder([CsvSink(tmp_path)], METADATA)
    recorder.on_ignored(make_request('odd",\nname', 5, 5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.csv.part", "rounds.csv.part"]
    recorder.close(0.0)
    names = ["requests.csv", "rounds.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert rows_of(tmp_path / "requests.csv")[0]["request_id"] == 'odd",\nname'


def test_rows_reach_every_sink_once_and_in_order() -> None:
    class Lists(NullSink):
        def __init__(self) -> None:
            self.rounds: list[tuple] = []
            self.requests: list[tuple] = []

        def write_rounds(self, rows) -> None:
            self.rounds += rows

        def write_requests(self, rows) -> None:
            self.requests += rows

    sinks = [Lists(), Lists()]
    requests = [make_request(f"r{i}", 8, 1 + i % 3, 0.01 * i) for i in range(1500)]
    recorder, summary, outputs = run(list(sinks), requests)
    assert len(outputs) > 1024  # more than one batch of rows
    for sink in sinks:
        assert [row[0] for row in sink.rounds] == list(range(len(outputs)))
        assert len({row[0] for row in sink.requests}) == len(sink.requests) == 1500
        assert all(len(row) == len(REQUEST_COLUMNS) for row in sink.requests)
    data = recorder.data()
    assert all(len(column) == len(outputs) for column in data.rounds.values())
    assert all(len(column) == 1500 for column in data.requests.values())
    assert summary["num_requests"] == 1500


def test_tables_are_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sarathi.metrics.sinks import CsvSink\n"
        "from tests.test_metrics_recorder import mixed_requests, run\n"
        "run([CsvSink(Path(sys.argv[1]))], mixed_requests(), num_blocks=14, block_size=8, max_model_len=100)"
    )
    for name, hash_seed in (("a", "1"), ("b", "2")):
        command = [sys.executable, "-c", code, str(tmp_path / name)]
        root = Path(__file__).resolve().parents[1]
        subprocess.run(command, check=True, cwd=root, env={"PYTHONHASHSEED": hash_seed, "PATH": ""}, timeout=60)
    for table in ("rounds.csv", "requests.csv"):
        assert (tmp_path / "a" / table).read_bytes() == (tmp_path / "b" / table).read_bytes()


def test_on_step_does_not_look_at_each_decode() -> None:
    class Decodes(list):
        def __iter__(self):
            raise AssertionError("a round's decodes were walked")

    recorder = Recorder([NullSink()], {})
    output = fake_round()._replace(decodes=Decodes([make_request("d", 4, 4)] * 50))
    recorder.on_step(output, StepResult([], 0.5, MemoryStats()), [], 1.5, 0.0)
    assert summarize(recorder.close(1.5))["batch_num_decode_tokens"]["max"] == 50


def test_a_prediction_without_a_target_has_no_share_of_it() -> None:
    """A sizer may foretell rounds and aim at nothing: null, not 0 % of a target that is not there."""
    recorder = Recorder([NullSink()], {})
    for step, target in ((0, None), (1, 0.5), (2, 0.9)):
        output = fake_round(step, predicted_time=0.4, target_time=target)
        recorder.on_step(output, StepResult([0, 0], 0.5), [], 1.5 + step, 0.0)
    assert summarize(recorder.close(4.0))["prediction"]["share_within_5_percent"] == 0.5
    recorder = Recorder([NullSink()], {})
    recorder.on_step(fake_round(predicted_time=0.4), StepResult([0, 0], 0.5), [], 1.5, 0.0)
    prediction = summarize(recorder.close(2.0))["prediction"]
    assert prediction["share_within_5_percent"] is None and prediction["num_rounds"] == 1
