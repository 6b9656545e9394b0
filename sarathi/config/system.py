"""Settings of the system that serves: model, device, memory, parallelism, metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from sarathi.config.metrics import MetricsConfig, SloConfig
from sarathi.config.schedulers import SCHEDULER_CONFIGS, BaseSchedulerConfig, CustomSchedulerConfig
from sarathi.config.setting import MAX_SEED, Config, choice, component, setting

Device = Literal[
    "rtx_4090",
    "rtx_5090",
    "rtx_pro_5000_72gb",
    "rtx_pro_6000",
    "a100_80gb",
    "h100",
    "h200",
    "ascend_910b3",
    "ascend_910b4",
]
EngineProfile = Literal["lean", "sarathi_2024"]
DEVICE_NAMES: tuple[str, ...] = get_args(Device)
ENGINE_PROFILE_NAMES: tuple[str, ...] = get_args(EngineProfile)
MAX_GPU_BLOCKS = 10**7  # the pool is a list of them
# Of settings that matter only where a model is loaded.
_OF_A_MODEL = {"no_effect": "the simulated device loads no model", "no_effect_with": ("SIMULATED",)}
_PAIRS = '[["10.0.0.1", 0]]'
PLACES_OF_RAY = {"no_effect": "it places the workers of RAY", "no_effect_with": ("SIMULATED", "LOCAL")}
_NO_HUB = "models are read from files here, never from a hub"


@dataclass(frozen=True)
class ModelConfig(Config):
    model: str = setting("Qwen/Qwen3-8B", "Model name, a folder with a config.json, or a GGUF file.")
    trust_remote_code: bool = setting(True, "Run code that comes with a model from a hub.", no_effect=_NO_HUB)
    download_dir: str | None = setting(
        None, "Where weights are downloaded to; null takes the hub's cache.", no_effect=_NO_HUB
    )
    load_format: Literal["auto", "pt", "safetensors", "npcache", "gguf", "dummy"] = setting(
        "auto", "Format of the weights; dummy makes random ones.", **_OF_A_MODEL
    )
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = setting(
        "auto", "Type of weights, activations and KV cache; auto is float32 on a CPU, elsewhere bfloat16."
    )
    seed: int = setting(0, "Seed of sampling, and of dummy weights.", at_least=0, at_most=MAX_SEED, **_OF_A_MODEL)
    revision: str | None = setting(None, "Branch, tag or commit of a model from a hub.", no_effect=_NO_HUB)
    max_model_len: int | None = setting(
        None, "Longest request, prompt and output; null takes the model's context.", unit="tokens", at_least=1
    )


@dataclass(frozen=True)
class WorkerConfig(Config):
    gpu_memory_utilization: float = setting(
        0.8,
        "Share of device memory for weights, activations and KV blocks; of a CPU's, of what is available at start.",
        above=0,
        at_most=1,
    )
    attention_backend: Literal["AUTO", "FLASHINFER", "SDPA", "CPU_PAGED", "NO_OP"] = setting(
        "AUTO", "Attention kernels; AUTO takes the fastest for the device, NO_OP skips attention.", **_OF_A_MODEL
    )


@dataclass(frozen=True)
class CacheConfig(Config):
    block_size: int = setting(16, "Tokens in a KV block.", unit="tokens", at_least=1)
    num_gpu_blocks: int | None = setting(
        None, "KV blocks; null takes what device memory holds.", unit="blocks", at_least=1, at_most=MAX_GPU_BLOCKS
    )


@dataclass(frozen=True)
class ParallelConfig(Config):
    pipeline_parallel_size: int = setting(1, "Pipeline stages.", unit="devices", at_least=1, at_most=1024)
    tensor_parallel_size: int = setting(1, "Devices that share each layer.", unit="devices", at_least=1, at_most=1024)

    @property
    def world_size(self) -> int:
        return self.pipeline_parallel_size * self.tensor_parallel_size


def are_node_device_pairs(value: object) -> bool:
    """Whether this lists the places of one replica's workers: [node or None, number of a device], at least one."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_node_device_pair, value))


def _is_node_device_pair(value: object) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 2):
        return False
    node, device = value
    return (node is None or (isinstance(node, str) and node != "")) and type(device) is int and device >= 0


@dataclass(frozen=True)
class ReplicaConfig(Config):
    replica_id: int = setting(0, "Number of the replica: a column of its tables.", at_least=0)
    output_dir: str | None = setting(None, "Folder for the engine's metrics; null writes none.")
    resource_mapping: list | None = setting(
        None, "Node and device of each worker, JSON, as in " + _PAIRS + ".", **PLACES_OF_RAY
    )

    def check(self) -> None:
        if self.resource_mapping is not None and not are_node_device_pairs(self.resource_mapping):
            self.reject("resource_mapping", f"null or pairs of node (null: any) and device, as in {_PAIRS}")


@dataclass(frozen=True)
class ExecutorConfig(Config):
    """Base of what runs the rounds."""


@dataclass(frozen=True)
class SimulatedExecutorConfig(ExecutorConfig):
    device: Device = setting("rtx_4090", "Simulated device.")
    engine_profile: EngineProfile = setting("lean", "CPU overhead of a round: a lean engine's, or the paper's.")
    jitter: float = setting(0.0, "Relative standard deviation of round times; 0 turns it off.", at_least=0, at_most=1)
    jitter_seed: int | None = setting(
        None, "Seed of the jitter; null takes the run's seed.", at_least=0, at_most=MAX_SEED
    )
    rounds_file: str | None = setting(
        None, "rounds.csv of a real run, used in place of the formula for round times.", is_input_file=True
    )


@dataclass(frozen=True)
class LocalExecutorConfig(ExecutorConfig):
    """A real model in this process, on the real clock."""

    device: Literal["auto", "cpu", "cuda"] = setting("auto", "Where the model runs; auto is CUDA where there is some.")
    num_threads: int | None = setting(
        None, "Threads of a CPU; null leaves the number to torch.", unit="threads", at_least=1, at_most=1024
    )
    overlap: bool = setting(False, "Make the next round while one runs, before its tokens are known.")


@dataclass(frozen=True)
class RayExecutorConfig(ExecutorConfig):
    """A real model on workers of Ray, a process for each part that the parallel_config cuts it into."""

    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "Where the model runs; auto is CUDA where the Ray cluster has GPUs."
    )
    num_threads: int | None = setting(
        None,
        "Threads of a worker on a CPU; null shares its node's cores among the workers there.",
        unit="threads",
        at_least=1,
        at_most=1024,
    )
    address: str | None = setting(
        None,
        "Ray cluster to join, auto for one that runs on this machine; null joins what RAY_ADDRESS names, and where it "
        "names none starts Ray here, for as long as the process lives.",
    )
    timeout: float = setting(
        300.0, "After it a worker that has not done its round, or not loaded, is lost.", unit="seconds", above=0
    )
    overlap: bool = setting(False, "Make the next round while one runs, before its tokens are known.")

    def check(self) -> None:
        if self.address is not None and self.address.startswith("ray://"):
            self.reject("address", "null, auto or the host:port of a cluster's GCS; Ray Client is not supported")


EXECUTOR_CONFIGS: dict[str, type[ExecutorConfig]] = {
    "SIMULATED": SimulatedExecutorConfig,
    "LOCAL": LocalExecutorConfig,
    "RAY": RayExecutorConfig,
}


def _automatic_executor() -> str:
    from sarathi.worker.cuda import has_cuda_device

    return "LOCAL" if has_cuda_device() else "SIMULATED"


def _executor_choice(default: str) -> Any:
    return choice(
        EXECUTOR_CONFIGS,
        default,
        "executor_config",
        "What runs the rounds: a simulated device, a model in this process, or one on several workers of Ray; AUTO is "
        "LOCAL where there is a CUDA device, else SIMULATED.",
        aliases={"AUTO": _automatic_executor},
    )


class WorkerPlaces(NamedTuple):
    """Where the workers of RAY are to run: a pair of node and device for each, or None; and the flag that says so."""

    flag: str
    mapping: list | None


@dataclass(frozen=True)
class EndpointConfig(Config):
    """What every entry point that runs an engine needs."""

    model_config: ModelConfig = component(ModelConfig)
    worker_config: WorkerConfig = component(WorkerConfig)
    cache_config: CacheConfig = component(CacheConfig)
    parallel_config: ParallelConfig = component(ParallelConfig)
    scheduler_config: BaseSchedulerConfig = choice(
        {**SCHEDULER_CONFIGS, "CUSTOM": CustomSchedulerConfig},
        "SARATHI",
        "scheduler_config",
        "Scheduler, or the import path of your own, as in my_module.MyScheduler.",
    )
    executor_config: ExecutorConfig = _executor_choice("AUTO")
    metrics_config: MetricsConfig = component(MetricsConfig)
    slo_config: SloConfig = component(SloConfig)

    @property
    def worker_places(self) -> WorkerPlaces:
        return WorkerPlaces("replica_config_resource_mapping", None)


@dataclass(frozen=True)
class SystemConfig(EndpointConfig):
    """One engine, for the Python API, whose texts only a real model can give."""

    executor_config: ExecutorConfig = _executor_choice("LOCAL")
    replica_config: ReplicaConfig = component(ReplicaConfig)

    @property
    def worker_places(self) -> WorkerPlaces:
        return WorkerPlaces("replica_config_resource_mapping", self.replica_config.resource_mapping)
