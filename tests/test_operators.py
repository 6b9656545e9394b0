"""Time by operator and of the host's own work: where asked for, and else nothing."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path

import numpy as np
import pytest

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.system import build_system
from sarathi.config import parse_args
from sarathi.metrics.instruments import Instruments
from sarathi.metrics.operators import OperatorTable
from sarathi.request import Request, SamplingParams
from sarathi.simulation.devices import DEVICES, ENGINE_PROFILES
from sarathi.simulation.latency import RoundLatency
from sarathi.simulation.models import MODELS, ModelShape
from tests.instrumented import (
    CPU_OPERATORS,
    OPERATORS,
    OUTPUTS,
    TINY_LOAD,
    Rounds,
    lines,
    local,
    replayed,
    table,
    write_models,
)
from tests.simulate import make_output

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
        times = latency.operator_times(output)
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
    last, first = light.operator_times(MIXED), heavy.operator_times(MIXED)
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


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_a_table_of_rounds_has_no_operators(
    num_replicas: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{tokens},3,{tokens * 10},0,{0.01 + tokens * 1e-5}" for tokens in range(40)]
    header = "batch_num_prefill_tokens,batch_num_decode_tokens,sum_decode_context_len,prefill_processed_tokens,"
    (tmp_path / "rounds.csv").write_text("\n".join([f"{header}batch_execution_time", *rows]))
    flags = [OPERATORS, f"--simulated_executor_config_rounds_file={tmp_path / 'rounds.csv'}"]
    flags += [f"--num_replicas={num_replicas}", f"--output_dir={tmp_path / 'out'}"]
    config = parse_args([*TINY_LOAD, *flags])
    with caplog.at_level(logging.WARNING):
        result = run_benchmark(config, build_workload(config))
    assert "operators" not in result.summary
    assert [record.getMessage() for record in caplog.records] == [
        "--metrics_config_enable_op_level_metrics has no effect: a rounds_file has no operators"
    ]
    assert result.directory is not None and not list(result.directory.glob("operators*"))


def test_a_run_without_rounds_leaves_an_empty_table(tmp_path: Path) -> None:
    operators = OperatorTable(tmp_path / "operators.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["operators.csv.part"]
    operators.close()
    assert (tmp_path / "operators.csv").read_text() == "step_id,replica_id\n"
    assert operators.summary() == {}


# What the host does ------------------------------------------------------------------------------


def test_where_nothing_is_asked_for_the_engine_has_the_recorder_itself() -> None:
    config = parse_args([*TINY_LOAD])
    rounds = Rounds()
    assert Instruments(config.metrics_config, None).attach(rounds, build_system(config)) is rounds


def test_the_hosts_work_of_a_simulated_run(tmp_path: Path) -> None:
    run = replayed(parse_args([*TINY_LOAD, CPU_OPERATORS]), tmp_path)
    names, seconds = table(tmp_path / "cpu_operators.csv")
    assert names == ["schedule", "simulation", "process_model_outputs", "metrics"] == list(run.summary["cpu_operators"])
    assert (seconds > 0).all() and len(seconds) == len(run.rounds.results)
    assert seconds.sum() < run.wall
    # The engine measures the same from outside.
    scheduling = seconds[:, names.index("schedule")] + seconds[:, names.index("process_model_outputs")]
    assert (scheduling < run.rounds.schedule_times).all()
    for part in (run.system.scheduler, run.system.executor):
        assert not {"schedule", "update", "submit", "wait"} & vars(part).keys()


# A real model ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return write_models(tmp_path_factory.mktemp("models"))


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
    assert not any("forward" in vars(module) for module in modules) and "run" not in vars(worker)
    run = replayed(config, tmp_path, system)
    found, seconds = table(tmp_path / "operators.csv")
    assert found == names
    measured = np.array([result.execution_time for result in run.rounds.results])
    assert seconds.sum(1) == pytest.approx(measured, abs=1e-9 * len(names))
    gives_token = seconds[:, names.index("lm_head_linear")] > 0
    assert gives_token.any() and (seconds[gives_token] > 0).all()
    # What the host saw of the model is what the worker measured, and copying its result.
    host_names, host = table(tmp_path / "cpu_operators.csv")
    assert host_names == [
        "schedule", "prepare_inputs_e2e", "model_execution_e2e", "sample_e2e", "process_model_outputs", "metrics",
    ]  # fmt: skip
    in_model = host[:, host_names.index("model_execution_e2e")] + host[:, host_names.index("sample_e2e")]
    assert (in_model > measured).all()
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
