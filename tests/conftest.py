"""What every test shares: deterministic hypothesis, a throw-away cache folder, and the optional traces."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import sarathi.worker  # noqa: F401  # before any test loads torch: it says how long threads spin

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Machines that run these tests differ in speed, so no example is judged by its time.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("dev"), max_examples=5000)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

_cache_dir: str | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Point the package's cache away from the user's home; xdist's workers inherit the controller's folder."""
    global _cache_dir
    if not hasattr(config, "workerinput"):
        _cache_dir = os.environ["SARATHI_CACHE_DIR"] = tempfile.mkdtemp(prefix="sarathi-tests-")


def pytest_unconfigure() -> None:
    if _cache_dir is not None:
        shutil.rmtree(_cache_dir, ignore_errors=True)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with published traces that may lie beside the repository; the test skips without it."""
    if not (SHARED / "traces").is_dir():
        pytest.skip("needs ../shared/traces beside the repository")
    return SHARED
