"""`make gpu-check` where there is no GPU: one line; and its sections on a CPU, tiny, which shows that they run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")

import torch

from benchmarks import gpu_check, gpu_check_sections, gpu_check_serving
from benchmarks.gpu_check_setup import Report, Setup, dry_setup, real_setup, simulated_twin
from predictor.grids import Pool, local_grid
from sarathi.config import BenchmarkConfig, CustomSchedulerConfig
from sarathi.simulation.devices import DEVICES

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def setup() -> Iterator[Setup]:
    with dry_setup() as setup:
        yield setup


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_is_one_line(capsys):
    assert gpu_check.main([]) == 1
    assert capsys.readouterr() == ("no CUDA device\n", "")


def test_attention(setup, capsys):
    gpu_check_sections.attention(Report(setup))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.startswith("PASS ") for line in lines)


def test_attention_that_differs_fails(setup, capsys, monkeypatch):
    class Wrong(gpu_check_sections.SdpaBackend):
        def forward(self, query, key, value, kv_cache, scale, window):
            return super().forward(query, key, value, kv_cache, 1.1 * scale, window)

    monkeypatch.setattr(gpu_check_sections, "make_backend", lambda *args: Wrong())
    report = Report(setup)
    gpu_check_sections.attention(report)
    assert report.num_failed == 2 and capsys.readouterr().out.count("FAIL Wrong = SDPA") == 2


def test_tokens(setup, capsys):
    gpu_check_sections.tokens(Report(setup))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(line.startswith("PASS ") for line in lines)


def test_overlap(setup, capsys):
    gpu_check_serving.overlap(Report(setup))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PASS tokens with overlap") and "output tokens/s" in lines[1]


def test_rounds_against_a_device_of_the_simulator(setup, capsys, monkeypatch):
    monkeypatch.setattr(gpu_check_sections, "simulated_twin", lambda name: DEVICES["h200"])
    report = Report(setup)
    gpu_check_sections.rounds(report)
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines() if re.match(r" +2 decodes at 20 .*\d$", line)]
    assert [len(row) for row in rows] == [8, 10] and all(float(row[-1]) > 0 and float(row[-2]) >= 0 for row in rows)
    assert report.num_failed == 0 and text.count("not checked in a dry run") == 5


def test_the_roofline_of_a_known_model():
    """10 decodes of Qwen3-8B on an H200: 15.1 GB of weights, embedding aside, and 0.75 GB of KV at 4,800 GB/s."""
    from sarathi.simulation.models import load_model_shape

    roof, predicted = gpu_check_sections._bounds(load_model_shape("Qwen/Qwen3-8B"), DEVICES["h200"], 10, 512, 0)
    assert roof == pytest.approx(15.89e9 / 4800e9, rel=0.02)
    assert roof < predicted < 2 * roof


def test_twins():
    names = ("NVIDIA GeForce RTX 4090", "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla T4")
    twins = [simulated_twin(name) for name in names]
    assert [twin and twin.name for twin in twins] == ["rtx_4090", "h200", "h100", "a100_80gb", None]


def test_an_error_is_a_failed_section_and_told(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check_sections, "attention", lambda report: 1 / 0)
    assert gpu_check.run_section("attention", is_dry=True) == 1
    given = capsys.readouterr()
    assert given.out == "FAIL attention: ended with the error above\n" and "ZeroDivisionError" in given.err


def test_a_section_ends_with_its_budget(monkeypatch):
    monkeypatch.setattr(gpu_check, "COMPILING_SECONDS", 0)
    section = gpu_check.Section("gpu_check_sections", 0, "none")
    lines, failed = gpu_check._run_apart("attention", section, is_dry=True)
    assert failed and lines == ["-- none", "FAIL attention: stopped after its 0 s"]


STARTS_ANOTHER = """#!/bin/sh
sleep 300 >&2 &
echo $!
wait
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_a_section_started_ends_with_it(monkeypatch, tmp_path, interrupted):
    script, printed = tmp_path / "python", []
    script.write_text(STARTS_ANOTHER)
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))

    def told(text: str, **options: object) -> None:
        printed.append(text)
        if interrupted and len(printed) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(gpu_check, "print", told, raising=False)
    section = gpu_check.Section("none", 60 if interrupted else 1, "none")
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            gpu_check._run_apart("lprs", section, is_dry=True)
    else:
        lines, failed = gpu_check._run_apart("lprs", section, is_dry=True)
        assert failed and lines[-1] == "FAIL lprs: stopped after its 1 s"
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(printed[1]))
        deadline = time.monotonic() + 5
        while process.status() != psutil.STATUS_ZOMBIE:  # whoever inherits it may not look
            assert time.monotonic() < deadline, "still running"
            time.sleep(0.01)


def test_budgets_leave_room():
    assert sum(section.seconds for section in gpu_check.SECTIONS.values()) <= 240
    assert real_setup().device == "cuda"


def test_what_lprs_may_choose_was_collected():
    jobs = local_grid(BenchmarkConfig(), Pool([(10, 4)], [(10, 4)], []))
    schedulers = [job.config.scheduler_config for job in jobs]
    random_chunks = [one.chunk_size for one in schedulers if isinstance(one, CustomSchedulerConfig)]
    assert real_setup().max_target_tokens <= max(random_chunks)


@pytest.mark.slow
def test_a_whole_dry_run():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--dry-run-on-cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    block = done.stdout.split("results\n")[1]
    assert done.returncode == 0, done.stdout + done.stderr
    assert block.startswith("DRY RUN ON A CPU with a tiny model: no result of a GPU\n")
    assert "FAIL" not in block and block.count("PASS") >= 7 and "all sections passed" in block
