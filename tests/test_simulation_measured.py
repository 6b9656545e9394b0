"""A table of measured rounds in place of the formula."""

from __future__ import annotations

import csv
import random

import pytest

from sarathi.core.plan import SchedulerOutput
from sarathi.request import Request, SamplingParams
from sarathi.simulation.devices import DEVICES, ENGINE_PROFILES
from sarathi.simulation.latency import RoundLatency
from sarathi.simulation.measured import FEATURES, TARGET, MeasuredLatency
from sarathi.simulation.models import load_model_shape
from tests.simulate import make_output

HEADER = ["step_id", *FEATURES, TARGET]


def random_round(rng: random.Random) -> SchedulerOutput:
    num_decodes = rng.randint(1, 32)
    chunk = rng.choice([0, rng.randint(1, 512 - num_decodes)])
    processed = rng.randint(0, 1024) if chunk else 0
    prefills = []
    if chunk:
        request = Request("p", range(processed + chunk + 1), SamplingParams(), 0.0)
        request.num_computed_tokens = processed + chunk
        prefills = [(request, chunk)]
    context = num_decodes * rng.randint(20, 800)
    decodes = [Request("d", range(1), SamplingParams(), 0.0)] * num_decodes
    return make_output(decodes, prefills, sum_decode_context_len=context)


def read(path, pipeline_parallel_size=1) -> MeasuredLatency:
    return MeasuredLatency.from_rounds_csv(path, pipeline_parallel_size)


def write_rounds(path, rows, header=HEADER):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def record(path, latency, num_rounds, seed=0):
    rng = random.Random(seed)
    rows = []
    for step_id in range(num_rounds):
        output = random_round(rng)
        features = (
            output.num_prefill_tokens,
            output.num_decode_tokens,
            output.sum_decode_context_len,
            output.prefill_processed_tokens,
        )
        rows.append([step_id, *features, latency.stage_times(output)[0]])
    return write_rounds(path, rows)


@pytest.fixture
def formula():
    return RoundLatency(load_model_shape("Qwen/Qwen3-8B"), DEVICES["rtx_4090"], profile=ENGINE_PROFILES["lean"])


def mean_error(measured, formula, num_rounds=400):
    rng = random.Random(99)
    errors = []
    for _ in range(num_rounds):
        output = random_round(rng)
        known = formula.stage_times(output)[0]
        errors.append(abs(measured.stage_times(output)[0] / known - 1))
    return sum(errors) / len(errors)


def test_recorded_rounds_reproduce_the_device_with_its_staircase(tmp_path, formula):
    measured = read(record(tmp_path / "rounds.csv", formula, 3000))
    assert mean_error(measured, formula) < 0.02
    few = read(record(tmp_path / "few.csv", formula, 15))
    assert mean_error(few, formula) < 0.25  # one line through a staircase


def test_unseen_token_counts_fall_back_to_the_fit_of_all_rounds(tmp_path):
    rows = [[i, 10 * i, 5, 100 * i, 0, 0.01 + 1e-4 * 10 * i] for i in range(1, 20)]
    measured = read(write_rounds(tmp_path / "rounds.csv", rows))
    assert measured._time((250, 5, 2500, 0)) == pytest.approx(0.01 + 1e-4 * 250, rel=1e-6)
    assert measured._time((100_000, 5, 0, 0)) == pytest.approx(2 * 0.029)  # bounded by what was measured
    assert measured._time((0, 0, 0, 0)) >= 0.5 * 0.011


def test_each_pipeline_stage_takes_the_measured_time(tmp_path, formula):
    path = record(tmp_path / "rounds.csv", formula, 50)
    output = random_round(random.Random(5))
    (one,) = read(path).stage_times(output)
    assert read(path, 3).stage_times(output) == (one,) * 3


def test_byte_order_mark_blank_lines_other_columns_and_empty_rounds(tmp_path):
    rows = [[32 * i, 1, 10, 0, 0.02 + 0.001 * i, "kept"] for i in range(12)]
    path = write_rounds(tmp_path / "rounds.csv", [*rows, [0, 0, 0, 0, 0.0, ""]], [*FEATURES, TARGET, "note"])
    path.write_text("\ufeff" + path.read_text().replace("\r\n", "\n\n"), encoding="utf-8")
    measured = read(path)
    assert measured._time((64, 1, 10, 0)) == pytest.approx(0.022, rel=0.01)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([9, 1, 1, "many", 0, 0.01], r"rounds\.csv, line 4, column sum_decode_context_len: 'many' is not a number"),
        ([9, 1, 1, 1, 0, 0], r"rounds\.csv, line 4, column batch_execution_time: 0 is not allowed; more than 0"),
    ],
)
def test_bad_value_is_named_with_its_line(tmp_path, row, message):
    good = [[i, 1, 1, 1, 0, 0.01] for i in range(2)]
    with pytest.raises(ValueError, match=message):
        read(write_rounds(tmp_path / "rounds.csv", [*good, row]))


def test_files_that_are_no_table_of_rounds(tmp_path):
    with pytest.raises(ValueError, match=r"column prefill_processed_tokens, batch_execution_time is missing"):
        read(write_rounds(tmp_path / "a.csv", [], HEADER[:-2]))
    with pytest.raises(ValueError, match=r"b\.csv: 3 measured rounds are too few; at least 10"):
        read(write_rounds(tmp_path / "b.csv", [[0, 1, 1, 1, 0, 0.01]] * 3))
