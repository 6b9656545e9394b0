"""The loop of Sarathi-Serve's examples: add requests, step until all have ended, then read metrics and plots.

python examples/llm_engine.py [OUTPUT_DIR]
"""

import sys

from sarathi import LLMEngine, RequestOutput, SamplingParams
from sarathi.config import (
    CacheConfig,
    MetricsConfig,
    ModelConfig,
    ParallelConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SystemConfig,
    WorkerConfig,
)


def generate(engine: LLMEngine, prompts: list[str], sampling_params: SamplingParams) -> list[RequestOutput]:
    """All outputs, in the order of the prompts."""
    order = [engine.add_request(prompt, sampling_params) for prompt in prompts]
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                finished[output.seq_id] = output
    return [finished[seq_id] for seq_id in order]


def main(output_dir: str) -> None:
    config = SystemConfig(
        model_config=ModelConfig(model="smollm2", max_model_len=2048),
        worker_config=WorkerConfig(gpu_memory_utilization=0.5),
        cache_config=CacheConfig(block_size=16),
        parallel_config=ParallelConfig(tensor_parallel_size=1, pipeline_parallel_size=1),
        scheduler_config=SarathiSchedulerConfig(chunk_size=100, max_num_seqs=10),
        metrics_config=MetricsConfig(write_metrics=True),
        replica_config=ReplicaConfig(output_dir=output_dir),
    )
    engine = LLMEngine.from_system_config(config)
    prompts = [
        "The immediate reaction in some circles of the archaeological community was that",
        "Hydrogen is the chemical element with",
        "In the year 2050, trains",
    ]
    for output in generate(engine, prompts, SamplingParams(temperature=0.8, top_p=0.95, max_tokens=50, seed=0)):
        print(f"{output.prompt!r} -> {output.text!r}")
    engine.pull_worker_metrics()
    summary = engine.plot_metrics()
    print(f"{summary['output_tokens_per_s']:.0f} output tokens/s; tables and plots in {output_dir}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "offline_inference_output")
