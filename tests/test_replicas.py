"""Several simulated replicas in one virtual time: what each router does, and that nothing is lost or foreseen."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from sarathi.benchmark.build import build_workload
from sarathi.benchmark.replicas import LoadRecorder, route_of
from sarathi.benchmark.runner import run_benchmark
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.config import parse_args
from sarathi.engine.engine import Engine, replay
from sarathi.metrics.percentiles import PERCENTILES
from sarathi.metrics.run_folder import read_run
from sarathi.replica.load import ReplicaLoad
from sarathi.replica.routing import LeastOutstandingTokens, PredictedWait, RandomReplica, RoundRobin
from tests.simulate import make_engine, make_request, make_scheduler

ROUTINGS = ("ROUND_ROBIN", "LEAST_OUTSTANDING_TOKENS", "RANDOM", "PREDICTED_WAIT")
SMALL = (
    "--executor_config_type=SIMULATED",
    "--sharegpt_request_generator_config_num_requests=60",
    "--sharegpt_request_generator_config_max_output_tokens=80",
    "--static_request_interval_generator_config_interval=0.02",
    "--no-write_json_trace",
)


@pytest.fixture(scope="module")
def workload():
    return build_workload(parse_args(SMALL))


def run(workload, *flags, output_dir=None):
    where = ["--no-metrics_config_write_metrics"] if output_dir is None else [f"--output_dir={output_dir}"]
    return run_benchmark(parse_args([*SMALL, *flags, *where]), workload)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_round_robin_is_as_replicas_that_each_serve_every_nth_request_alone(tmp_path, workload):
    """Upstream's rule, and proof that replicas share a time and nothing else."""
    together = run(workload, "--num_replicas=3", output_dir=tmp_path / "all")
    for i in range(3):
        part = Workload("part", workload.requests[i::3])
        alone = run(part, output_dir=tmp_path / f"alone_{i}").directory
        kept = ("request_id", "request_e2e_time", "prefill_e2e_time", "status")
        mine = [row for row in rows_of(together.directory / "requests.csv") if row["replica_id"] == str(i)]
        assert [[row[name] for name in kept] for row in mine] == [
            [row[name] for name in kept] for row in rows_of(alone / "requests.csv")
        ]
        ours, theirs = read_run(together.directory / f"replica_{i}"), read_run(alone)
        assert np.array_equal(ours.rounds["end_time"], theirs.rounds["end_time"])
        assert np.array_equal(ours.token_gaps[1], theirs.token_gaps[1])


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_request_ends_once_and_the_same_seed_gives_the_same_run(workload, routing):
    flags = ("--num_replicas=4", f"--routing_config_type={routing}", "--simulated_executor_config_jitter=0.05")
    summary, again = (run(workload, *flags).summary for _ in range(2))
    assert summary["num_requests"] == summary["num_finished"] == 60
    assert sum(replica["num_requests"] for replica in summary["replicas"]) == 60
    assert summary["num_replicas"] == 4 and summary["routing"] == routing
    host_times = {"schedule_time"}
    for one, two in zip([summary, *summary["replicas"]], [again, *again["replicas"]], strict=True):
        assert {k: v for k, v in one.items() if k not in host_times | {"replicas"}} == {
            k: v for k, v in two.items() if k not in host_times | {"replicas"}
        }


def test_the_whole_is_the_sum_of_its_replicas(tmp_path, workload):
    flags = ("--num_replicas=3", "--routing_config_type=RANDOM", "--slo_config_ttft=0.2", "--slo_config_tpot=0.03")
    result = run(workload, *flags, output_dir=tmp_path)
    folder = read_run(result.directory)
    summary = json.loads((result.directory / "summary.json").read_text())
    assert summary == result.summary
    parts = summary["replicas"]
    for name in ("num_rounds", "num_finished", "num_preemptions"):
        assert summary[name] == sum(part[name] for part in parts)
    makespan = max(folder.rounds["end_time"]) - min(folder.requests["arrival_time"])
    assert summary["makespan"] == pytest.approx(makespan)
    for metric in ("request_e2e_time", "prefill_e2e_time", "batch_execution_time"):
        values = (folder.requests if metric in folder.requests else folder.rounds)[metric]
        expected = np.percentile(values, PERCENTILES)
        assert [summary[metric][f"p{q}"] for q in PERCENTILES] == pytest.approx(list(expected), rel=1e-6)
    num_gaps = int(folder.token_gaps[1].sum())
    assert num_gaps == sum(int(n) - 1 for n in folder.requests["request_num_decode_tokens"])
    assert summary["slo"]["num_met"] == np.nansum(folder.requests["slo_met"])
    assert summary["slo"]["num_met"] == sum(part["slo"]["num_met"] for part in parts)
    # Merged tables stand in order of the ends.
    assert (np.diff(folder.rounds["end_time"]) >= 0).all()
    assert (np.diff(folder.requests["arrival_time"] + folder.requests["request_e2e_time"]) >= -1e-9).all()
    assert Counter(folder.requests["replica_id"]) == {i: part["num_requests"] for i, part in enumerate(parts)}
    # In memory waiting and running are those of all replicas at each instant.
    rounds = result.data.rounds
    for k in (0, len(rounds["end_time"]) // 2, len(rounds["end_time"]) - 1):
        instant, total = rounds["end_time"][k], 0
        for i in range(3):
            of_replica = read_run(result.directory / f"replica_{i}").rounds
            past = of_replica["num_running"][of_replica["end_time"] <= instant + 1e-9]
            total += past[-1] if len(past) else 0
        assert rounds["num_running"][k] == total


def test_each_replica_has_a_jitter_of_its_own(workload):
    same = Workload("same", [RequestSpec(str(i), 0.1 * (i // 2), 100, 10) for i in range(20)])
    flags = ("--num_replicas=2", "--simulated_executor_config_jitter=0.1")
    one, two = run(same, *flags).summary["replicas"]
    assert one["request_e2e_time"]["mean"] != two["request_e2e_time"]["mean"]
    one, two = run(same, "--num_replicas=2").summary["replicas"]
    assert one["request_e2e_time"]["mean"] == pytest.approx(two["request_e2e_time"]["mean"])


def test_jitter_is_shared_by_no_two_replicas_of_neighbouring_seeds(workload):
    times = set()
    for seed in (1, 2, 3):
        flags = ("--num_replicas=3", "--simulated_executor_config_jitter=0.2", f"--seed={seed}")
        parts = run(workload, *flags).summary["replicas"]
        times |= {part["batch_execution_time"]["max"] for part in parts}
    assert len(times) == 9


def test_ignored_requests_stand_where_they_were_refused(tmp_path):
    """Merged rows are in order of their ends though refused ones have none."""
    requests = [RequestSpec(str(i), 0.05 * i, 3000 if i % 4 == 1 else 100, 20) for i in range(40)]
    flags = ("--num_replicas=3", "--model_config_max_model_len=2000")
    result = run(Workload("some", requests), *flags, output_dir=tmp_path)
    table = read_run(result.directory).requests
    ends = np.where(
        table["status"] == "ignored", table["arrival_time"], table["arrival_time"] + table["request_e2e_time"]
    )
    assert result.summary["num_ignored"] == 10 and (np.diff(ends) >= -1e-9).all()


def test_more_replicas_than_requests_and_a_time_limit(tmp_path, workload):
    few = Workload("few", workload.requests[:2])
    result = run(few, "--num_replicas=4", output_dir=tmp_path)
    assert [part["num_requests"] for part in result.summary["replicas"]] == [1, 1, 0, 0]
    assert len(read_run(result.directory / "replica_3").rounds["end_time"]) == 0
    cut = run(workload, "--num_replicas=2", "--time_limit=0.5").summary
    assert cut["num_unfinished"] > 0 and cut["num_requests"] < 60  # later ones never arrived


def test_loads_matter(workload):
    """One heavy request in four, in step with round robin: the others spread them."""
    requests = [RequestSpec(str(i), 0.05 * i, 2000 if i % 4 == 0 else 50, 100 if i % 4 == 0 else 5) for i in range(80)]
    uneven = Workload("uneven", requests)
    mean = {
        routing: run(uneven, "--num_replicas=4", f"--routing_config_type={routing}").summary["request_e2e_time"]["mean"]
        for routing in ROUTINGS
    }
    assert mean["LEAST_OUTSTANDING_TOKENS"] < 0.9 * mean["ROUND_ROBIN"]
    assert mean["PREDICTED_WAIT"] < 0.9 * mean["ROUND_ROBIN"]


def test_a_router_knows_what_has_happened_by_the_arrival_and_no_more():
    """A round that ends after an arrival has told nothing yet; one that ends with it has."""
    load = ReplicaLoad()
    recorded = make_engine(make_scheduler(), latency=FixedLatency(1.0))
    engine = Engine(recorded.scheduler, recorded.executor, recorded.clock, LoadRecorder(load, recorded.recorder))
    seen = []

    class Looks:
        def route(self, request, loads):
            seen.append((loads[0].backlog_tokens, loads[0].outstanding_tokens))
            return 0

    # The first has its prompt computed at 1.0 and ends at 2.0.
    requests = [make_request(str(i), 8, 2, arrival) for i, arrival in enumerate((0.0, 0.5, 1.0, 1.5, 1.999, 2.0))]
    replay([engine], requests, route=route_of(Looks(), [load]))
    assert seen == [(0, 0), (10, 10), (10, 20), (20, 30), (30, 40), (30, 40)]  # the last: 5 sent, 1 ended, 1 begun
    assert (load.backlog_tokens, load.outstanding_tokens) == (0, 0)


class FixedLatency:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def stage_times(self, output):
        return (self.seconds,)


def test_load_counts_and_pace():
    load = ReplicaLoad()
    assert load.pace is None
    load.on_sent("a", 100, 10.0)
    load.on_sent("b", 300, 11.0)
    assert (load.outstanding_tokens, load.backlog_tokens) == (400, 400)
    load.on_first_token("a", 12.0)
    assert load.backlog_tokens == 300 and load.pace == pytest.approx(100 / 2)
    load.on_first_token("b", 15.0)
    assert load.pace == pytest.approx((0.99 * 100 + 300) / (0.99 * 2 + 3))
    load.on_end("a")
    load.on_sent("c", 50, 100.0)  # idle time does not count
    load.on_first_token("c", 100.5)
    assert load.pace == pytest.approx((0.99 * (0.99 * 100 + 300) + 50) / (0.99 * (0.99 * 2 + 3) + 0.5))
    load.on_sent("d", 7, 101.0)
    load.on_end("d")  # refused
    assert (load.outstanding_tokens, load.backlog_tokens) == (350, 0)


def loads_of(*tokens: int) -> list[ReplicaLoad]:
    loads = []
    for number in tokens:
        load = ReplicaLoad()
        if number:
            load.on_sent("x", number, 0.0)
        loads.append(load)
    return loads


def test_routers():
    request = make_request("r", 10, 10)
    robin, loads = RoundRobin(), loads_of(5, 0, 0)
    assert [robin.route(request, loads) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert LeastOutstandingTokens().route(request, loads_of(5, 3, 3)) == 1
    first, second = RandomReplica(1), RandomReplica(1)
    drawn = [first.route(request, loads) for _ in range(300)]
    assert drawn == [second.route(request, loads) for _ in range(300)]
    assert min(Counter(drawn).values()) > 70 and len(Counter(drawn)) == 3


def test_predicted_wait_goes_by_the_backlog_over_the_pace():
    request, router = make_request("r", 10, 10), PredictedWait()
    assert router.route(request, loads_of(9, 4, 7)) == 1  # no pace known: fewest tokens
    fast, slow, unknown = loads_of(0, 0, 0)
    for load, seconds in ((fast, 1.0), (slow, 10.0)):
        load.on_sent("a", 1000, 0.0)
        load.on_first_token("a", seconds)
        load.on_end("a")
        load.on_sent("b", 500, 20.0)
    assert router.route(request, [slow, fast]) == 1
    unknown.on_sent("b", 300, 20.0)  # at the mean pace of 550 tokens/s it waits 0.545 s, the fast one 0.5 s
    assert router.route(request, [unknown, slow, fast]) == 2
    fast.on_sent("c", 100, 20.0)
    assert router.route(request, [unknown, slow, fast]) == 0


def test_config_of_replicas_reads_back(tmp_path, workload):
    flags = ("--num_replicas=2", "--routing_config_type=RANDOM", "--random_routing_config_seed=7")
    result = run(workload, *flags, output_dir=tmp_path)
    again = parse_args(["--config", str(result.directory / "config.yaml")])
    assert again == replace(parse_args([*SMALL, *flags]), output_dir=str(tmp_path))
    rerun = run_benchmark(replace(again, metrics_config=replace(again.metrics_config, write_metrics=False)), workload)
    assert rerun.summary["request_e2e_time"] == result.summary["request_e2e_time"]
