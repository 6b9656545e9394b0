"""How this process gets into a Ray cluster, and what keeps it out."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

import psutil
import ray

from sarathi.errors import FieldError
from sarathi.executor.ray_cluster import reserve
from sarathi.executor.ray_session import join_or_start
from tests.ray_workers import all_end, fake_workers

JOIN = """
from sarathi.executor.ray_session import join_or_start
import ray
session = join_or_start(None)
@ray.remote
def double(x):
    return 2 * x
print("joined", ray.get(double.remote(21)), session.is_own)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("ray://10.9.9.9:10001", "Ray Client is not supported"),
        ("nowhere", "Invalid address format: nowhere"),
        ("{closed}", ".*Connection refused"),
    ],
)
def test_an_address_without_a_cluster_is_told_with_where_it_comes_from(
    address: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address.format(closed=f"127.0.0.1:{free.getsockname()[1]}")
    said = (
        rf"address: no Ray cluster takes this process in at '{address}'%s(, which is \S+)?: {reason}; %s, or name the "
    )
    with pytest.raises(FieldError, match=said % ("", "null starts one")):
        join_or_start(address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(FieldError, match=said % (r" \(from RAY_ADDRESS\)", "unset it")):
        join_or_start(None)


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/tmp/" + 120 * "x"])
def test_a_folder_that_ray_cannot_use_is_told_in_one_line(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_AUTH_MODE", os.environ.get("RAY_AUTH_MODE", "disabled"))
    with pytest.raises(
        FieldError, match=r"^executor_config_type: RAY: Ray cannot be started here \(.*RAY_TMPDIR names"
    ):
        join_or_start(None)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_workers_of_one_stay_in_ray_are_none_of_the_next() -> None:
    try:
        assert join_or_start(None).is_own and join_or_start(None) == join_or_start("10.9.9.9:6379")
        reserve(300, "cpu", None).release()  # CPUs of our own Ray are plenty
        with fake_workers(2) as workers:
            ray.shutdown()
            with pytest.raises(RuntimeError, match="the workers have ended: Ray was shut down"):
                workers.call("rank")
            join_or_start(None)
            with fake_workers(1) as others:
                workers.end("nothing more to say")
                assert others.call("rank") == [0]
    finally:
        ray.shutdown()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text(64 * "a")
    return tmp_path


@pytest.fixture
def address(home: Path) -> Iterator[str]:
    """Of a cluster that `ray start` starts, which wants a token where its user has one."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # of a short path, for sockets
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--num-cpus=2"]
    before = {process.pid for process in psutil.process_iter()}
    subprocess.run(
        [*command, "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"],
        env={**environment, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    try:
        yield f"{ray.util.get_node_ip_address()}:{port}"
    finally:
        ours = [process for process in psutil.process_iter() if process.pid not in before and _is_of(process, folder)]
        for process in ours:
            process.send_signal(signal.SIGKILL)
        assert ours and all_end(ours, 10)
        shutil.rmtree(folder)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        files = [file.path for file in process.open_files()]
        return any(str(folder) in text for text in (*process.cmdline(), *files))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@pytest.mark.slow
def test_a_cluster_that_wants_a_token_gets_the_one_there_is(address: str, home: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

    def join(**settings: str) -> subprocess.CompletedProcess[str]:
        environ = {**environment, "RAY_ADDRESS": address, "PYTHONPATH": str(Path(__file__).parents[1]), **settings}
        return subprocess.run([sys.executable, "-c", JOIN], env=environ, capture_output=True, text=True, timeout=60)

    for settings in ({"HOME": str(home)}, {"HOME": "/nowhere", "RAY_AUTH_TOKEN": 64 * "a"}):
        joined = join(**settings)
        assert (joined.stdout, joined.stderr) == ("joined 42 False\n", "")
    for settings in ({"HOME": "/nowhere"}, {"HOME": "/nowhere", "RAY_AUTH_TOKEN": 64 * "b"}):
        refused = join(**settings)
        assert refused.stdout == "" and not re.search(r"^\[", refused.stderr, re.MULTILINE)
        assert "it wants a token; RAY_AUTH_MODE=token has Ray send the one in RAY_AUTH_TOKEN" in refused.stderr
