"""From settings to the workload that they describe.

Knows both configs and constructors. Raises FlagError, one line naming the flag.
"""

from __future__ import annotations

from collections.abc import Iterable

from sarathi.benchmark.tokenizers import choose_tokenizer, ordinary_token_ids
from sarathi.benchmark.workloads.heterogeneous import heterogeneous_workload
from sarathi.benchmark.workloads.intervals import poisson_arrivals, static_arrivals
from sarathi.benchmark.workloads.lengths import Lengths, fixed_lengths, synthetic_workload, trace_lengths
from sarathi.benchmark.workloads.random_tokens import with_random_tokens
from sarathi.benchmark.workloads.sharegpt import sharegpt_workload
from sarathi.benchmark.workloads.spec import Workload
from sarathi.benchmark.workloads.trace import Shaping, trace_workload
from sarathi.config import (
    BenchmarkConfig,
    FixedRequestLengthGeneratorConfig,
    HeterogeneousRequestGeneratorConfig,
    PoissonRequestIntervalGeneratorConfig,
    RequestIntervalGeneratorConfig,
    ShareGptRequestGeneratorConfig,
    StaticRequestIntervalGeneratorConfig,
    SyntheticRequestGeneratorConfig,
    TraceRequestGeneratorConfig,
    TraceRequestLengthGeneratorConfig,
    flag_prefix,
    resolve_seeds,
)
from sarathi.errors import naming
from sarathi.request import Request, SamplingParams
from sarathi.system import System


def build_workload(config: BenchmarkConfig, system: System | None = None) -> Workload:
    """The requests to replay; where `system` runs a real model, with token ids that it can read."""
    workload = _build_workload(config, system)
    if system is None or system.simulated or all(spec.prompt_token_ids is not None for spec in workload.requests):
        return workload
    return with_random_tokens(workload, ordinary_token_ids(system), config.seed)


def _build_workload(config: BenchmarkConfig, system: System | None) -> Workload:
    generator = resolve_seeds(config, config.seed).request_generator_config
    prefix = flag_prefix(config, "request_generator_config")
    if isinstance(generator, ShareGptRequestGeneratorConfig):
        assert generator.seed is not None
        with naming(prefix):
            return sharegpt_workload(
                _arrivals(generator.interval_generator_config),
                file=generator.file,
                num_requests=generator.num_requests,
                turns=generator.turns,
                tokenizer=choose_tokenizer(generator.tokenizer, config.model_config.model, system),
                max_prompt_tokens=generator.max_prompt_tokens,
                max_output_tokens=generator.max_output_tokens,
                output_tokens=generator.output_tokens,
                shuffle=generator.shuffle,
                seed=generator.seed,
                with_token_ids=system is not None and not system.simulated,
            )
    if isinstance(generator, SyntheticRequestGeneratorConfig):
        with naming(prefix):
            return synthetic_workload(
                _lengths(generator),
                _arrivals(generator.interval_generator_config),
                num_requests=None if generator.duration else generator.num_requests,
                duration=generator.duration,
            )
    if isinstance(generator, HeterogeneousRequestGeneratorConfig):
        assert generator.seed is not None
        return heterogeneous_workload(
            generator.num_requests,
            shorts_per_long=generator.shorts_per_long,
            interval=generator.interval,
            burst_interval=generator.burst_interval,
            burst_from=generator.burst_from,
            burst_to=generator.burst_to,
            seed=generator.seed,
        )
    assert isinstance(generator, TraceRequestGeneratorConfig) and generator.trace_file is not None
    shaping = Shaping(
        prefill_scale_factor=generator.prefill_scale_factor,
        decode_scale_factor=generator.decode_scale_factor,
        max_tokens=generator.max_tokens,
        max_output_tokens=None,
        min_output_tokens=0,
    )
    with naming(prefix, "trace_file"):
        return trace_workload(
            generator.trace_file,
            num_requests=generator.num_requests,
            time_scale_factor=generator.time_scale_factor,
            shaping=shaping,
        )


def _lengths(generator: SyntheticRequestGeneratorConfig) -> Lengths:
    config = generator.length_generator_config
    if isinstance(config, FixedRequestLengthGeneratorConfig):
        return fixed_lengths(config.prefill_tokens, config.decode_tokens)
    assert isinstance(config, TraceRequestLengthGeneratorConfig)
    assert config.trace_file is not None and config.seed is not None
    shaping = Shaping(
        prefill_scale_factor=config.prefill_scale_factor,
        decode_scale_factor=config.decode_scale_factor,
        max_tokens=config.max_tokens,
        max_output_tokens=config.max_output_tokens,
        min_output_tokens=1,
    )
    with naming(flag_prefix(generator, "length_generator_config"), "trace_file"):
        return trace_lengths(config.trace_file, shaping=shaping, seed=config.seed)


def _arrivals(config: RequestIntervalGeneratorConfig) -> Iterable[float]:
    if isinstance(config, StaticRequestIntervalGeneratorConfig):
        return static_arrivals(config.interval)
    assert isinstance(config, PoissonRequestIntervalGeneratorConfig) and config.seed is not None
    return poisson_arrivals(config.qps, config.seed)


def requests_of(workload: Workload) -> Iterable[Request]:
    """Fresh engine requests, made one by one as they are replayed; of some prompts the length alone is known."""
    for spec in workload.requests:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=spec.num_output_tokens)
        token_ids = range(spec.num_prompt_tokens) if spec.prompt_token_ids is None else spec.prompt_token_ids
        yield Request(spec.request_id, token_ids, params, spec.arrival_time)
