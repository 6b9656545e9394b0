"""Targets of latency: what counts as kept, for whom they hold, and what summary and files say of it."""

from __future__ import annotations

import json

import pytest

from sarathi.benchmark.build import build_workload, requests_of
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.config import SloConfig, parse_args
from sarathi.metrics.run_folder import read_run
from sarathi.metrics.slo import SloCounts, SloVerdict, describe_slo, slo_verdict
from sarathi.request import RequestStatus, SloTargets
from tests.simulate import make_request


def finished(ttft: float, tpot: float, num_output: int, slo: SloTargets):
    request = make_request("r", 8, num_output, arrival=10.0)
    request.slo = slo
    request.status = RequestStatus.FINISHED_LENGTH
    request.output_token_ids = [0] * num_output
    request.prefill_end_time = 10.0 + ttft
    request.finish_time = request.prefill_end_time + tpot * (num_output - 1)
    return request


@pytest.mark.parametrize(
    ("slo", "verdict", "met"),
    [
        (SloTargets(), (None, None), None),
        (SloTargets(ttft=1.0), (True, None), True),
        (SloTargets(ttft=0.99), (False, None), False),
        (SloTargets(tpot=0.25), (None, True), True),
        (SloTargets(tpot=0.24), (None, False), False),
        (SloTargets(1.0, 0.25), (True, True), True),
        (SloTargets(1.0, 0.24), (True, False), False),
        (SloTargets(0.5, 0.25), (False, True), False),
    ],
)
def test_a_target_is_kept_up_to_and_with_its_value(slo, verdict, met):
    given = slo_verdict(finished(1.0, 0.25, 5, slo))
    assert given == verdict and given.met is met


def test_one_token_has_no_tpot_that_could_be_late_and_an_unfinished_request_keeps_nothing():
    assert slo_verdict(finished(1.0, 0.0, 1, SloTargets(None, 0.001))) == (None, True)
    request = finished(0.0, 0.0, 5, SloTargets(5.0, None))
    for status in (RequestStatus.RUNNING, RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_IGNORED):
        request.status = status
        assert slo_verdict(request) == (False, None)


def test_counts_and_goodput():
    counts = {"": SloCounts(), "long": SloCounts()}
    for tenant, verdict in (("", (True, True)), ("", (True, False)), ("", (False, None)), ("long", (True, None))):
        counts[tenant].add(SloVerdict(*verdict))
    assert describe_slo(counts, makespan=4.0) == {
        "num_with_target": 4,
        "num_met": 2,
        "share_met": 0.5,
        "goodput_requests_per_s": 0.5,
        "share_ttft_met": 0.75,
        "share_tpot_met": 0.5,
        "classes": {
            "long": {
                "num_with_target": 1,
                "num_met": 1,
                "share_met": 1.0,
                "goodput_requests_per_s": 0.25,
                "share_ttft_met": 1.0,
                "share_tpot_met": None,
            }
        },
    }
    without = describe_slo({}, makespan=4.0)
    assert without.pop("classes") == {} and without.pop("num_with_target") == 0
    assert set(without.values()) == {None}


def test_targets_of_a_tenant_fill_what_they_leave_out_from_the_others():
    requests = [RequestSpec(str(i), 0.0, 8, 2, tenant=tenant) for i, tenant in enumerate(("", "a", "b", "c"))]
    slo = SloConfig(ttft=1.0, tpot=0.1, classes={"a": {"ttft": 5}, "b": {"tpot": None}})
    got = [(request.tenant, request.slo) for request in requests_of(Workload("w", requests), slo)]
    assert got == [("", (1.0, 0.1)), ("a", (5, 0.1)), ("b", (1.0, None)), ("c", (1.0, 0.1))]


def test_a_run_says_which_requests_kept_their_targets(tmp_path):
    """The paper's mixture has classes: short and long prompts."""
    flags = [
        "--executor_config_type=SIMULATED",
        "--request_generator_config_type=HETEROGENEOUS",
        "--heterogeneous_request_generator_config_num_requests=60",
        "--heterogeneous_request_generator_config_shorts_per_long=4",
        "--slo_config_ttft=0.05",
        "--slo_config_tpot=0.021",
        '--slo_config_classes={"long": {"ttft": 60, "tpot": 60}}',
        f"--output_dir={tmp_path}",
    ]
    config = parse_args(flags)
    result = run_benchmark(config, build_workload(config))
    assert result.directory is not None
    folder = read_run(result.directory)
    requests, slo = folder.requests, result.summary["slo"]
    assert json.loads((result.directory / "summary.json").read_text())["slo"] == slo
    is_long = requests["tenant"] == "long"
    assert is_long.sum() == 12 and (requests["ttft_slo"][is_long] == 60).all()
    kept = (requests["prefill_e2e_time"] <= requests["ttft_slo"]) & (
        requests["decode_time_execution_plus_preemption_normalized"] <= requests["tpot_slo"]
    )
    assert (requests["slo_met"] == kept).all()
    assert 0 < slo["num_met"] == kept.sum() < 60
    assert slo["share_met"] == kept.mean() and slo["classes"]["long"]["share_met"] == 1
    assert slo["goodput_requests_per_s"] == pytest.approx(kept.sum() / result.summary["makespan"])
    assert sum(one["num_met"] for one in slo["classes"].values()) == slo["num_met"]
    assert parse_args(["--config", str(result.directory / "config.yaml")]) == config
