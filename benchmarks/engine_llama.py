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

    model = Path(settings.model).stem
    built_for = instruction_sets(xllamacpp.get_system_info())
    return f"llama.cpp (xllamacpp {xllamacpp.__version__}, {built_for}), {model}, asked over HTTP", run


def instruction_sets(system_info: str) -> str:
    """What the wheel's arithmetic was compiled for, as llama.cpp tells it: "CPU : SSE3 = 1 | AVX2 = 1 | ..."."""
    parts = [part.split("=")[0].split(":")[-1].strip() for part in system_info.split("|")]
    vector = [part for part in parts if part.startswith(("AVX", "AMX", "NEON", "SVE"))]
    if not vector:
        return "instruction set not told"
    lesser = "" if any(part.startswith(("AVX512", "AMX")) for part in vector) else ", so no verdict on llama.cpp itself"
    return f"a wheel built for {vector[-1]}{lesser}"


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
        try:
            connection = http.client.HTTPConnection(self._host, self._port)
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                self._failure = f"status {response.status}: {response.read().decode(errors='replace')}"
            for line in response:
                self._lines.append((time.perf_counter() - self._started, line))
        except Exception as error:  # told by `end`, in the thread that asks for the answer
            self._failure = f"{type(error).__name__}: {error}"

    def end(self) -> Answer:
        """Tokens and times. A token whose text is a part of a character is told with the next one, and may lack in
        `token_ids` where they are streamed, not in the times."""
        self._thread.join()
        if self._failure is not None:
            raise RuntimeError(f"llama.cpp did not answer a request: {self._failure}")
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
