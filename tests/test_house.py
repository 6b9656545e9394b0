"""What must not enter the repository: large files, paths of one machine, addresses of package hosts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_BYTES = 2_000_000
# Written so that no pattern matches itself.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|home|Users|root)/[\w.]")
PACKAGE_HOST = re.compile(r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs")
LOCAL_TRACES = re.compile(r"[.][.]/shared")


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """Tracked files: what a user's own runs leave in the checkout does not count."""
    command = ["git", "ls-files", "-z", "--cached"]
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("needs git")
    if run.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in run.stdout.split("\0") if name]
    assert "setup.py" in names
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def lines_matching(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    found = []
    for file in files:
        data = file.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def test_files_are_small(files: list[Path]) -> None:
    assert [file.name for file in files if file.stat().st_size > MAX_BYTES] == []


def test_no_path_of_one_machine(files: list[Path]) -> None:
    assert lines_matching(MACHINE_PATH, files) == []


def test_no_address_of_a_package_host(files: list[Path]) -> None:
    assert lines_matching(PACKAGE_HOST, files) == []


def test_package_and_documents_do_not_mention_local_traces(files: list[Path]) -> None:
    """Users do not have that folder; tests and benchmarks look for it and do without."""
    read_by_users = [file for file in files if file.suffix == ".md" or ROOT / "sarathi" in file.parents]
    assert lines_matching(LOCAL_TRACES, read_by_users) == []
