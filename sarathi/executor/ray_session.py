"""This process as a driver of Ray: how it joins a cluster or starts one here, and whether that still stands.

Knows no nodes and no workers. Whatever keeps it out of a cluster is told in one line.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

from sarathi.errors import FieldError
from sarathi.executor.ray_guard import start_guard

logger = logging.getLogger(__name__)

KNOCK_SECONDS = 5.0
PROBE_SECONDS = 20.0  # for the probe's process, which has to import Ray
STORE_BYTES = 80 << 20  # Ray's least: what goes to workers and comes back is small
NUM_CPUS = 1024  # of a Ray of our own: counters, so that no later model finds them taken
RECONNECT_SECONDS = 6  # after which a Ray of our own gives up a GCS that is gone, and every process with it


class Session(NamedTuple):
    """A process's stay in a cluster, told from any other by what Ray knows of it."""

    pid: int
    gcs_address: str
    job_id: str
    is_own: bool  # whether Ray was started by and for this process

    def is_current(self) -> bool:
        """Whether this process is the one, and still in."""
        return self.pid == os.getpid() and _session(self.is_own) == self

    def gcs_answers(self) -> bool:
        """Whether something listens there, which costs a fraction of a millisecond."""
        try:
            knock(self.gcs_address, 1.0)
        except OSError:
            return False
        return True


_joined: Session | None = None  # by the last join_or_start; Ray itself is such a state of the process


def join_or_start(address: str | None) -> Session:
    """Make this process a driver of Ray, unless it is one already.

    Joins the cluster at `address`, or the one that RAY_ADDRESS names; without either Ray is started on this machine
    and ends with this process. Raises FieldError of `address` where no cluster takes it in, of `executor_config_type`
    where Ray cannot be started, and RuntimeError in a process that was forked from a driver.
    """
    global _joined
    session = current_session()
    if session is None:
        from_environment = os.environ.get("RAY_ADDRESS", "")
        where = address or from_environment or "local"
        if where == "local":
            _start()
        else:
            _join(where, is_from_environment=bool(from_environment) and address in (None, "", "auto"))
        session = _session(is_own=where == "local")
        assert session is not None
    elif address not in (None, "auto", session.gcs_address):
        text = "address '%s' has no effect: this process is in the Ray cluster at %s already"
        logger.warning(text, address, session.gcs_address)
    _joined = session
    return session


def current_session() -> Session | None:
    """None where this process is in no cluster. Raises RuntimeError where only the one it was forked from is."""
    session = _session(is_own=False)
    if session is not None and _joined is not None and session[1:3] == _joined[1:3]:
        check_process(_joined.pid)
        return _joined
    return session


def check_process(pid: int) -> None:
    """Raises RuntimeError in any process but that one."""
    if os.getpid() != pid:
        text = f"a process forked from process {pid}, which uses Ray, cannot use it; start it by 'spawn'"
        raise RuntimeError(f"{text}, or make the LLM in it alone")


def _session(is_own: bool) -> Session | None:
    import ray

    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return Session(os.getpid(), context.gcs_address, context.get_job_id(), is_own)


def _start() -> None:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    start_guard()
    try:
        with _heeding_ctrl_c():
            ray.init(
                address="local",
                num_cpus=NUM_CPUS,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _system_config={
                    "prestart_worker_first_driver": False,  # workers are only as many as are asked for
                    "gcs_rpc_server_reconnect_timeout_s": RECONNECT_SECONDS,
                },
            )
    except (OSError, ValueError) as error:
        text = f"RAY: Ray cannot be started here ({error}); RAY_TMPDIR names a folder for its files"
        raise FieldError("executor_config_type", f"{text}, which must be writable and of a short path") from error


def _join(address: str, *, is_from_environment: bool) -> None:
    import ray

    origin, cure = (" (from RAY_ADDRESS)", "unset it") if is_from_environment else ("", "null starts one")
    resolved = address

    def refuse(reason: object, cause: BaseException | None = None) -> NoReturn:
        place = f"'{address}'{origin}" + (f", which is {resolved}" if resolved != address else "")
        text = f"no Ray cluster takes this process in at {place}: {reason}"
        raise FieldError("address", f"{text}; {cure}, or name the host:port of a cluster's GCS") from cause

    if "://" in address:
        refuse("Ray Client is not supported")
    try:
        resolved = _resolved(address)
        knock(resolved, KNOCK_SECONDS)
        reason = _probe(resolved)
        if "AuthenticationError" in reason and _take_token():
            reason = _probe(resolved)
        if "AuthenticationError" in reason:
            refuse("it wants a token; RAY_AUTH_MODE=token has Ray send the one in RAY_AUTH_TOKEN or ~/.ray/auth_token")
        if reason:
            refuse(reason)
        ray.init(address=resolved, log_to_driver=False, logging_level=logging.ERROR)
    except FieldError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        refuse(error, error)


def _resolved(address: str) -> str:
    """The host:port that Ray takes an address for, "auto" too. Raises OSError or ValueError."""
    from ray._private.services import canonicalize_bootstrap_address

    resolved = canonicalize_bootstrap_address(address)
    if resolved is None:  # "local", which only RAY_ADDRESS can say where "auto" was asked for
        raise ValueError("it names no cluster")
    return resolved


def knock(address: str, timeout: float) -> None:
    """Raises OSError where nobody listens, which Ray would try again for ten minutes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout):
        pass


def _probe(address: str) -> str:
    """Why the GCS at an address refuses a driver, or nothing.

    In a process of its own: Ray tries again for half a minute, tells so on stderr, and ends the process that it is in.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_SECONDS:g} seconds"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"Ray's health check gave {done.returncode}"


def _take_token() -> bool:
    """Have Ray send a token, if RAY_AUTH_MODE leaves that open and there is one. By itself it does for "auto" alone."""
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    logging.getLogger("ray").setLevel(logging.ERROR)  # as ray.init will: it is no news to whoever set the token
    return "RAY_AUTH_MODE" not in os.environ and maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


@contextmanager
def _heeding_ctrl_c() -> Iterator[None]:
    """Raises the KeyboardInterrupt that Python drops where it comes while a process is forked."""
    is_main, handler = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGINT)
    if not (is_main and callable(handler)):
        yield
        return
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupted:
        raise KeyboardInterrupt
