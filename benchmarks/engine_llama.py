"""llama.cpp's own server as an engine of `make bench-engine`, run by the interpreter that has xllamacpp installed.

Requests go to its native /completion over a local socket, one client thread each, as its users' do. The cache of keys
and values is float32 where the weights are, else float16, its default; no prompt is cached.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.engine_jobs import Answer, EngineSettings, JobRequest, Run, serve

GGML_F32 = 0
SLOT_ROUNDING = 256  # llama.cpp gives a slot a multiple of so many tokens


def load(settings: EngineSettings) -> tuple[str, Run]:
    import xllamacpp  # pyright: ignore[reportMissingImports]

    params = xllamacpp.CommonParams()
    params.model.path = settings.model
    params.n_parallel = settings.max_num_seqs
    params.n_ctx = settings.max_num_seqs * -(-settings.max_model_len // SLOT_ROUNDING) * SLOT_ROUNDING
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.num_threads
    params.cache_prompt, params.cache_ram_mib = False, 0
    params.port = 0
    if "f32" in Path(settings.model).stem:
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type(GGML_F32)
    server = xllamacpp.Server(params)
    address = urlsplit(server.listening_address)

    def run(requests: Sequence[JobRequest], streamed: bool) -> list[Answer]:
        clients = [_Client(str(address.hostname), int(address.port or 0), request, streamed) for request in requests]
        started = time.perf_counter()
        for client in clients:
            client.begin(started)
        answers = [client.end() for client in clients]
        assert server.listening_address  # the server must outlive its clients
        return answers

    features = [part.split("=")[0].strip() for part in xllamacpp.get_system_info().split("|") if "AVX" in part]
    version = f"xllamacpp {xllamacpp.__version__}, {features[-1].removeprefix('CPU : ')}"
    return f"llama.cpp ({version})", run


class _Client:
    """One request in a thread of its own. What comes is kept as it is, and read when all have ended."""

    def __init__(self, host: str, port: int, request: JobRequest, streamed: bool) -> None:
        self._host, self._port, self._request, self._streamed = host, port, request, streamed
        self._lines: list[tuple[float, bytes]] = []
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._ask)

    def begin(self, started: float) -> None:
        self._started = started
        self._thread.start()

    def _ask(self) -> None:
        body = {
            "prompt": self._request.prompt_token_ids,
            "n_predict": self._request.num_output_tokens,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
            "stream": self._streamed,
        }
        time.sleep(max(0.0, self._started + self._request.arrival_time - time.perf_counter()))
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            self._failure = response.read().decode()
        for line in response:
            self._lines.append((time.perf_counter() - self._started, line))

    def end(self) -> Answer:
        """Tokens and times. A token whose text is a part of a character is told with the next one, and may lack in
        `token_ids` where they are streamed, not in the times."""
        self._thread.join()
        if self._failure is not None:
            raise RuntimeError(f"llama.cpp refused a request: {self._failure}")
        answer = Answer([], [])
        for at, line in self._lines:
            text = line.removeprefix(b"data: ").strip()
            if text:
                part: dict[str, Any] = json.loads(text)
                answer.token_ids.extend(part["tokens"])
                num_new = part["tokens_predicted"] - len(answer.token_times)
                answer.token_times.extend([at] * num_new)
        return answer


if __name__ == "__main__":
    serve(load)
