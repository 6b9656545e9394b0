"""Time by operator and of the host's own work, requests' outputs, profiles: where asked for, and else nothing."""

from __future__ import annotations

import csv
import gzip
import json
import logging
import pstats
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import sarathi.benchmark.profiling as profiling
import sarathi.executor.local
from sarathi.benchmark.build import build_workload, requests_of
from sarathi.benchmark.profiling import profiled
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.call_timer import CallTimer
from sarathi.clock import WallClock, host_time
from sarathi.config import BenchmarkConfig, parse_args
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.engine.engine import Engine, replay
from sarathi.metrics.instruments import Instruments
from sarathi.metrics.operators import OperatorTable
from sarathi.request import Request, SamplingParams
from sarathi.simulation.devices import DEVICES, ENGINE_PROFILES
from sarathi.simulation.latency import RoundLatency
from sarathi.simulation.models import MODELS, ModelShape
from sarathi.simulation.operators import operator_times
from sarathi.system import System
from tests.fake_local import FakeLoader, FakeTokenizer
from tests.simulate import make_output

TINY_LOAD = (
    "--request_generator_config_type=SYNTHETIC",
    "--synthetic_request_generator_config_num_requests=8",
    "--fixed_request_length_generator_config_prefill_tokens=40",
    "--fixed_request_length_generator_config_decode_tokens=6",
    "--poisson_request_interval_generator_config_qps=200",
    "--sarathi_scheduler_config_chunk_size=64",
)
OPERATORS = "--metrics_config_enable_op_level_metrics"
CPU_OPERATORS = "--metrics_config_enable_cpu_op_level_metrics"
OUTPUTS = "--metrics_config_enable_request_outputs"


class Rounds:
    """A recorder that keeps the results, and the host's time spent on scheduling."""

    def __init__(self) -> None:
        self.results: list[StepResult] = []
        self.chunks: list[tuple[float, list[int]]] = []
        self.ended: list[Request] = []
        self.schedule_times: list[float] = []

    def on_step(
        self, output: SchedulerOutput, result: StepResult, finished: list[Request], now: float, schedule_time: float
    ) -> None:
        self.results.append(result)
        self.chunks.append((now, [num_tokens for _, num_tokens in output.prefills]))
        self.schedule_times.append(schedule_time)
        self.ended += finished

    def on_ignored(self, request: Request) -> None:
        self.ended.append(request)

    def on_aborted(self, request: Request) -> None:
        self.ended.append(request)


class Replayed(NamedTuple):
    rounds: Rounds
    summary: dict[str, Any]
    system: System
    wall: float  # host seconds


def replayed(config: BenchmarkConfig, directory: Path | None, system: System | None = None) -> Replayed:
    system = system or build_system(config)
    rounds, instruments = Rounds(), Instruments(config.metrics_config, directory)
    workload = build_workload(config, system)
    clock = system.clock if system.simulated else WallClock()
    engine = Engine(system.scheduler, system.executor, clock, instruments.attach(rounds, system, replica_id=3))
    started = host_time()
    replay([engine], requests_of(workload, config.slo_config))
    wall = host_time() - started
    return Replayed(rounds, instruments.close(), system, wall)


def table(path: Path) -> tuple[list[str], np.ndarray]:
    """Names of the operators, and their seconds, a row a round; the keys are checked."""
    with path.open() as file:
        header, *rows = list(csv.reader(file))
    assert header[:2] == ["step_id", "replica_id"] and {row[1] for row in rows} == {"3"}
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    return header[2:], np.array([[float(cell) for cell in row[2:]] for row in rows])


# The timer ---------------------------------------------------------------------------------------


class Clockwork:
    """Calls that take what they say."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def inner(self, seconds: float) -> None:
        self.now += seconds

    def outer(self, seconds: float) -> str:
        self.inner(seconds)
        self.now += 1.0
        self.inner(seconds)
        return "done"

    def failing(self) -> None:
        self.inner(2.0)
        raise OSError


def test_a_call_owns_its_time_without_that_of_timed_calls_inside() -> None:
    work = Clockwork()
    timer = CallTimer(work.read)
    timer.time(work, "inner", "inner")
    timer.time(work, "outer", "outer")
    timer.time(work, "failing", "failing")
    assert work.outer(0.25) == "done"
    work.inner(8.0)
    with pytest.raises(OSError, match=r"^$"):
        work.failing()
    assert timer.take() == {"inner": 0.5 + 8.0 + 2.0, "outer": 1.0, "failing": 0.0}
    assert timer.take() == {"inner": 0.0, "outer": 0.0, "failing": 0.0}
    timer.stop()
    assert vars(work).keys() == {"now"}
    work.outer(1.0)
    assert timer.take()["outer"] == 0.0


def test_a_class_can_be_timed_and_is_left_as_it_was() -> None:
    before, work = Clockwork.__dict__["inner"], Clockwork()
    timer = CallTimer(work.read)
    timer.time(Clockwork, "inner", "inner")
    work.inner(3.0)
    timer.stop()
    assert timer.take() == {"inner": 3.0}
    assert Clockwork.__dict__["inner"] is before


# Simulated rounds --------------------------------------------------------------------------------

MIXTRAL = ModelShape("mixtral", 32, 4096, 32, 8, 128, 14336, 32000, 32768, False, 8, 2, 14336)
QWEN = MODELS["Qwen/Qwen3-8B"]


def prompt(num_prompt_tokens: int, num_computed_tokens: int) -> Request:
    request = Request("r", range(num_prompt_tokens), SamplingParams(), 0.0)
    request.num_computed_tokens = num_computed_tokens
    return request


def decodes(num_seqs: int, context_len: int) -> list[Request]:
    return [prompt(context_len, context_len)] * num_seqs


MIXED = make_output(decodes(2, 1000), [(prompt(500, 500), 500)])
PREFILLS = make_output([], [(prompt(3000, 3000), 17), (prompt(40, 40), 40)])
DECODES = make_output(decodes(120, 7))
UNFINISHED = make_output([], [(prompt(900, 64), 64)])


@pytest.mark.parametrize("profile", [None, "sarathi_2024"])
@pytest.mark.parametrize(
    ("model", "sizes"), [(QWEN, (1, 1)), (QWEN, (4, 1)), (QWEN, (2, 2)), (MIXTRAL, (1, 1)), (MIXTRAL, (2, 4))]
)
def test_operators_of_a_simulated_round_sum_to_its_time(model, sizes, profile) -> None:
    latency = RoundLatency(model, DEVICES["h100"], *sizes, profile=profile and ENGINE_PROFILES[profile])
    for output in (MIXED, PREFILLS, DECODES, UNFINISHED):
        times = operator_times(latency, output)
        assert sum(times.values()) == pytest.approx(max(latency.stage_times(output)), rel=1e-12)
        assert all(seconds >= 0 for seconds in times.values())
        assert (times["attn_decode"] > 0) == bool(output.decodes)
        assert (times["attn_prefill"] > 0) == bool(output.prefills)
        assert (times["mlp_down_proj_all_reduce"] > 0) == (sizes[0] > 1)
        if sizes[1] == 1:
            assert (times["sampler"] > 0) == (output is not UNFINISHED)
    assert times["mlp_up_proj"] == pytest.approx(2 * times["mlp_down_proj"], rel=0.01 if sizes[0] < 4 else 0.2)


def test_the_longest_stage_tells_its_operators() -> None:
    """Qwen3's LM head is more than sending activations on, and less than the CPU of the first stage."""
    light = RoundLatency(QWEN, DEVICES["h100"], 1, 4)
    heavy = RoundLatency(QWEN, DEVICES["h100"], 1, 4, ENGINE_PROFILES["sarathi_2024"])
    last, first = operator_times(light, MIXED), operator_times(heavy, MIXED)
    assert last["lm_head_linear"] > 0 and last["nccl_send"] == 0 and last["cpu_overhead"] == 0
    assert first["lm_head_linear"] == 0 and first["nccl_send"] > 0 and first["cpu_overhead"] > 0


def test_a_simulated_run_with_operators(tmp_path: Path) -> None:
    flags = [*TINY_LOAD, "--simulated_executor_config_jitter=0.1", "--parallel_config_pipeline_parallel_size=2"]
    plain = replayed(parse_args(flags), tmp_path)
    assert plain.summary == {} and list(tmp_path.iterdir()) == []
    assert all(result.operator_times is None for result in plain.rounds.results)
    timed = replayed(parse_args([*flags, OPERATORS]), tmp_path)
    assert timed.rounds.chunks == plain.rounds.chunks, "looking must not change what happens"
    names, seconds = table(tmp_path / "operators.csv")
    measured = np.array([result.execution_time for result in timed.rounds.results])
    assert len(measured) > 10
    assert seconds.sum(1) == pytest.approx(measured, abs=1e-9 * len(names))  # of cells to the nanosecond
    summary = timed.summary["operators"]
    assert list(summary) == names
    assert sum(operator["share"] for operator in summary.values()) == pytest.approx(1)
    column = seconds[:, names.index("attn_pre_proj")]
    assert summary["attn_pre_proj"]["mean"] == pytest.approx(column.mean(), rel=1e-4)
    assert summary["attn_pre_proj"]["max"] == pytest.approx(column.max(), rel=1e-4)


def test_replicas_share_the_tables(tmp_path: Path) -> None:
    """A row a round of any replica, found in rounds.csv by its two keys."""
    config = parse_args([*TINY_LOAD, OPERATORS, CPU_OPERATORS, "--num_replicas=2", f"--output_dir={tmp_path}"])
    result = run_benchmark(config, build_workload(config))
    assert result.directory is not None

    def by_key(name: str) -> dict[tuple[str, str], dict[str, str]]:
        with (result.directory / name).open() as file:
            return {(row.pop("step_id"), row.pop("replica_id")): row for row in csv.DictReader(file)}

    rounds, operators, host = by_key("rounds.csv"), by_key("operators.csv"), by_key("cpu_operators.csv")
    assert rounds.keys() == operators.keys() == host.keys() and {replica for _, replica in rounds} == {"0", "1"}
    for key, row in operators.items():
        assert sum(map(float, row.values())) == pytest.approx(float(rounds[key]["batch_execution_time"]), abs=2e-8)
    assert result.summary["operators"].keys() == next(iter(operators.values())).keys()
    assert result.summary["cpu_operators"].keys() == next(iter(host.values())).keys()


def test_a_table_of_rounds_has_no_operators(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"{tokens},3,{tokens * 10},0,{0.01 + tokens * 1e-5}" for tokens in range(40)]
    header = "batch_num_prefill_tokens,batch_num_decode_tokens,sum_decode_context_len,prefill_processed_tokens,"
    (tmp_path / "rounds.csv").write_text("\n".join([f"{header}batch_execution_time", *rows]))
    out = tmp_path / "out"
    out.mkdir()
    config = parse_args([*TINY_LOAD, OPERATORS, f"--simulated_executor_config_rounds_file={tmp_path / 'rounds.csv'}"])
    with caplog.at_level(logging.WARNING):
        assert replayed(config, out).summary == {}
    assert [record.getMessage() for record in caplog.records] == [
        "--metrics_config_enable_op_level_metrics has no effect: a rounds_file has no operators"
    ]
    assert list(out.iterdir()) == []


def test_a_run_without_rounds_leaves_an_empty_table(tmp_path: Path) -> None:
    operators = OperatorTable(tmp_path / "operators.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["operators.csv.part"]
    operators.close()
    assert (tmp_path / "operators.csv").read_text() == "step_id,replica_id\n"
    assert operators.summary() == {}


# What the host does ------------------------------------------------------------------------------


def test_the_hosts_work_of_a_simulated_run(tmp_path: Path) -> None:
    run = replayed(parse_args([*TINY_LOAD, CPU_OPERATORS]), tmp_path)
    names, seconds = table(tmp_path / "cpu_operators.csv")
    assert names == ["schedule", "simulation", "process_model_outputs", "metrics"] == list(run.summary["cpu_operators"])
    assert (seconds > 0).all() and len(seconds) == len(run.rounds.results)
    assert 0.3 * run.wall < seconds.sum() < run.wall
    # The engine measures the same from outside.
    scheduling = seconds[:, names.index("schedule")] + seconds[:, names.index("process_model_outputs")]
    assert (scheduling < run.rounds.schedule_times).all()
    assert np.median(scheduling / run.rounds.schedule_times) > 0.6
    for part in (run.system.scheduler, run.system.executor):
        assert not {"schedule", "update", "submit", "wait"} & vars(part).keys()


# A real model ------------------------------------------------------------------------------------


SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a dense model and of one with experts, without weights."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("models")
    for family in ("qwen3", "mixtral"):
        (folder / family).mkdir()
        (folder / family / "config.json").write_text(json.dumps(SIZES | {"model_type": family}))
    return folder


def local(models: Path, family: str, *flags: str) -> BenchmarkConfig:
    return parse_args(
        [
            *TINY_LOAD,
            "--executor_config_type=LOCAL",
            f"--model_config_model={models / family}",
            "--model_config_load_format=dummy",
            "--cache_config_num_gpu_blocks=200",
            "--local_executor_config_num_threads=1",
            *flags,
        ]
    )


PROJECTIONS = ["input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm"]
EXPERTS = ["moe_gating", "moe_linear"]
REST = ["mlp_up_proj", "mlp_down_proj", "attn", "norm", "lm_head_linear", "sampler", "other"]


@pytest.mark.parametrize(
    ("family", "names"), [("qwen3", PROJECTIONS + REST), ("mixtral", PROJECTIONS + EXPERTS + REST)]
)
def test_operators_of_a_model(models, family, names, tmp_path) -> None:
    config = local(models, family, OPERATORS, CPU_OPERATORS)
    system = build_system(config)
    worker = system.executor.worker  # pyright: ignore[reportAttributeAccessIssue]
    modules = list(worker._model.modules())
    assert not any("forward" in vars(module) for module in modules) and "execute" not in vars(worker)
    run = replayed(config, tmp_path, system)
    found, seconds = table(tmp_path / "operators.csv")
    assert found == names
    measured = np.array([result.execution_time for result in run.rounds.results])
    assert seconds.sum(1) == pytest.approx(measured, abs=1e-9 * len(names))
    gives_token = seconds[:, names.index("lm_head_linear")] > 0
    assert gives_token.any() and (seconds[gives_token] > 0).all()
    assert np.median(seconds[:, names.index("other")] / measured) < 0.4
    # What the host saw of the model is what the worker measured, and copying its result.
    host_names, host = table(tmp_path / "cpu_operators.csv")
    assert host_names == [
        "schedule", "prepare_inputs_e2e", "model_execution_e2e", "sample_e2e", "process_model_outputs", "metrics",
    ]  # fmt: skip
    in_model = host[:, host_names.index("model_execution_e2e")] + host[:, host_names.index("sample_e2e")]
    assert (in_model > measured).all() and np.median(in_model / measured) < 1.25
    assert "sample" in vars(worker._sampler) and "submit" not in vars(system.executor)


def test_measuring_changes_no_token(models, tmp_path) -> None:
    plain = replayed(local(models, "qwen3"), tmp_path)
    timed = replayed(local(models, "qwen3", OPERATORS, CPU_OPERATORS), tmp_path)
    tokens = [{r.request_id: r.output_token_ids for r in run.rounds.ended} for run in (plain, timed)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 8
    assert all(result.operator_times is None for result in plain.rounds.results)


def test_an_engine_with_everything_on(models, tmp_path) -> None:
    from sarathi import LLMEngine, SamplingParams
    from sarathi.config import ReplicaConfig

    config = local(models, "qwen3", OPERATORS, CPU_OPERATORS, OUTPUTS)
    engine = LLMEngine(config.create_system_config(ReplicaConfig(replica_id=3, output_dir=str(tmp_path))))
    for number in range(3):
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=4)
        engine.add_request(None, params, prompt_token_ids=list(range(10 + number)))
    given = {output.seq_id: output.token_ids for _ in range(6) for output in engine.step() if output.finished}
    engine.shutdown()
    answers = {line["request_id"]: line["output_token_ids"] for line in lines(tmp_path / "outputs.jsonl").values()}
    assert answers == given and len(given) == 3
    _, seconds = table(tmp_path / "operators.csv")
    names, host = table(tmp_path / "cpu_operators.csv")
    assert len(seconds) == len(host) > 3 and (host[:, names.index("process_model_outputs")] > 0).all()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["operators"]["attn"]["share"] > 0 and summary["cpu_operators"]["schedule"]["mean"] > 0


# What requests were answered ---------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeLoader:
    loader = FakeLoader()
    monkeypatch.setattr(sarathi.executor.local, "build_local", loader)
    return loader


def fake_config(*flags: str) -> BenchmarkConfig:
    return parse_args([*TINY_LOAD, "--executor_config_type=LOCAL", "--model_config_model=smollm2", *flags])


def lines(path: Path) -> dict[str, dict[str, Any]]:
    return {line["request_id"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_outputs_of_a_run(fake: FakeLoader, tmp_path: Path) -> None:
    run = replayed(fake_config(OUTPUTS), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["outputs.jsonl"]
    written = lines(tmp_path / "outputs.jsonl")
    assert list(written) == [request.request_id for request in run.rounds.ended] and len(written) == 8
    for request in run.rounds.ended:
        assert written[request.request_id] == {
            "request_id": request.request_id,
            "prompt": FakeTokenizer().decode(list(request.prompt_token_ids), False),
            "num_prompt_tokens": 40,
            "output_token_ids": [7] * 6,
            "text": chr(7) * 6,
            "finish_reason": "length",
        }


def test_outputs_without_a_tokenizer_and_of_refused_requests(fake: FakeLoader, tmp_path: Path) -> None:
    fake.tokenizer = None
    replayed(fake_config(OUTPUTS, "--model_config_max_model_len=30"), tmp_path)
    written = lines(tmp_path / "outputs.jsonl")
    assert len(written) == 8
    for line in written.values():
        assert (line["prompt"], line["text"], line["output_token_ids"]) == (None, None, [])
        assert line["finish_reason"] == "ignored"


def test_simulated_rounds_have_no_outputs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert replayed(parse_args([*TINY_LOAD, OUTPUTS]), tmp_path).summary == {}
    assert f"{OUTPUTS} has no effect: simulated rounds make no tokens" in caplog.messages
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_is_asked_for_the_engine_has_the_recorder_itself() -> None:
    config = parse_args([*TINY_LOAD])
    rounds = Rounds()
    assert Instruments(config.metrics_config, None).attach(rounds, build_system(config)) is rounds


# Profiles ----------------------------------------------------------------------------------------


def profiled_run(config: BenchmarkConfig, directory: Path, at_round: Callable[[int], None] = lambda count: None) -> int:
    system = build_system(config)
    clock = system.clock if system.simulated else WallClock()
    engine = Engine(system.scheduler, system.executor, clock, Rounds())
    count = 0
    with profiled(directory, system.simulated) as after_round:

        def on_round(output: SchedulerOutput) -> None:
            nonlocal count
            after_round()
            count += 1
            at_round(count)

        replay([engine], requests_of(build_workload(config, system), config.slo_config), on_round=on_round)
    return count


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield


def test_profile_of_a_simulated_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    num_rounds = profiled_run(parse_args([*TINY_LOAD]), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["profile.pstats"]
    stats = pstats.Stats(str(tmp_path / "profile.pstats")).get_stats_profile().func_profiles
    assert stats["stage_times"].ncalls == str(num_rounds)
    assert f"python -m pstats {tmp_path / 'profile.pstats'}" in caplog.messages[-1]


def test_profile_of_a_model_is_of_its_first_rounds(models, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(profiling, "PROFILED_ROUNDS", 3)
    assert profiled_run(local(models, "qwen3"), tmp_path) > 5
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json.gz"]
    with gzip.open(tmp_path / "profile.json.gz") as file:
        events = json.load(file)["traceEvents"]
    num_embeddings = sum(event["name"] == "aten::embedding" for event in events)
    assert num_embeddings == 3, "one a round"
    assert "of the first 3 rounds; open it in ui.perfetto.dev" in caplog.messages[-1]


@pytest.mark.parametrize("simulated", [True, False])
def test_a_run_that_breaks_off_leaves_no_profile(simulated, models, tmp_path) -> None:
    def interrupt(count: int) -> None:
        if count == 2:
            raise KeyboardInterrupt

    config = parse_args([*TINY_LOAD]) if simulated else local(models, "qwen3")
    with pytest.raises(KeyboardInterrupt):
        profiled_run(config, tmp_path, interrupt)
    assert list(tmp_path.iterdir()) == []
    profiled_run(parse_args([*TINY_LOAD]), tmp_path)  # no profiler is left running
