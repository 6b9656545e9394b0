"""Opens a page of files in headless Chromium, through its command line: what the page became, said, and asked for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OWN_SCHEMES = ("file:", "data:", "blob:", "about:", "chrome:", "chrome-error:", "devtools:")
CONSOLE = re.compile(r':CONSOLE[:(]\d+\)?\] "(.*?)", source: (\S*) \(\d+\)$', re.DOTALL | re.MULTILINE)
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run
    --no-default-browser-check --disable-background-networking --disable-component-update --disable-sync
    --disable-extensions --disable-default-apps --disable-client-side-phishing-detection --metrics-recording-only
    --hide-scrollbars --force-device-scale-factor=1 --host-resolver-rules=MAP[*][~NOTFOUND --enable-logging=stderr
    --v=0"""


class Visit(NamedTuple):
    dom: str  # when the page's scripts had come to rest
    console: list[str]  # every line, whatever its level
    requested: list[str]  # URLs asked for from elsewhere than the page's own file


def visit(
    page: Path,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    screenshot: Path | None = None,
    budget_ms: int = 20_000,
) -> Visit:
    """Open `page` and let it run for at most `budget_ms` of the browser's virtual time. Skips without a browser."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory(prefix="sarathi-browser-", ignore_cleanup_errors=True) as profile:
        net_log = Path(profile) / "net.json"
        command = [program, *(flag.replace("[", " ") for flag in FLAGS.split()), f"--user-data-dir={profile}/profile"]
        command += [f"--window-size={width},{height}", f"--virtual-time-budget={budget_ms}", f"--log-net-log={net_log}"]
        command += ["--blink-settings=preferredColorScheme=0"] if dark else []
        command += [f"--screenshot={screenshot}"] if screenshot else []
        run = subprocess.run(
            [*command, "--dump-dom", page.absolute().as_uri()],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
        )
        assert run.returncode == 0 and "</html>" in run.stdout, run.stderr[-2000:]
        console = [f"{text} ({source})" for text, source in CONSOLE.findall(run.stderr)]
        return Visit(run.stdout, console, requested_urls(net_log))


def requested_urls(net_log: Path) -> list[str]:
    """URLs in Chromium's log of its network that are not the page's own."""
    text = net_log.read_text(encoding="utf-8", errors="replace").rstrip().rstrip(",")
    try:
        log = json.loads(text)
    except json.JSONDecodeError:  # the browser ended before it closed the log
        log = json.loads(text + "]}")
    requests = [event["params"] for event in log["events"] if "initiator" in event.get("params", {})]
    # The browser's own errands have no page behind them; none gets anywhere.
    found = {request["url"] for request in requests if request["initiator"] != "not an origin"}
    return sorted(url for url in found if not url.startswith(OWN_SCHEMES))
