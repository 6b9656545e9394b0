"""From settings to the workload that they describe.

Knows both configs and constructors. Raises FlagError, one line naming the flag.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sarathi.benchmark.tokenizers import choose_tokenizer, ordinary_token_ids
from sarathi.benchmark.workloads.heterogeneous import heterogeneous_workload
from sarathi.benchmark.workloads.intervals import gamma_arrivals, poisson_arrivals, static_arrivals
from sarathi.benchmark.workloads.lengths import (
    Lengths,
    fixed_lengths,
    synthetic_workload,
    trace_lengths,
    uniform_lengths,
    zipf_lengths,
)
from sarathi.benchmark.workloads.random_tokens import with_random_tokens
from sarathi.benchmark.workloads.sharegpt import sharegpt_workload
from sarathi.benchmark.workloads.spec import Workload
from sarathi.benchmark.workloads.trace import Shaping, trace_arrivals, trace_workload
from sarathi.config import (
    BenchmarkConfig,
    FixedRequestLengthGeneratorConfig,
    GammaRequestIntervalGeneratorConfig,
    HeterogeneousRequestGeneratorConfig,
    PoissonRequestIntervalGeneratorConfig,
    ShareGptRequestGeneratorConfig,
    SloConfig,
    StaticRequestIntervalGeneratorConfig,
    SyntheticRequestGeneratorConfig,
    TraceRequestGeneratorConfig,
    TraceRequestIntervalGeneratorConfig,
    TraceRequestLengthGeneratorConfig,
    UniformRequestLengthGeneratorConfig,
    ZipfRequestLengthGeneratorConfig,
    flag_prefix,
    resolve_seeds,
)
from sarathi.errors import FlagError, naming, shown
from sarathi.request import Request, SamplingParams
from sarathi.system import System


def build_workload(config: BenchmarkConfig, system: System | None = None) -> Workload:
    """The requests to replay; where `system` runs a real model, with token ids that it can read."""
    workload = _build_workload(config, system)
    _check_classes(workload, config.slo_config)
    if system is None or system.simulated or all(spec.prompt_token_ids is not None for spec in workload.requests):
        return workload
    return with_random_tokens(workload, ordinary_token_ids(system), config.seed)


def _build_workload(config: BenchmarkConfig, system: System | None) -> Workload:
    generator = resolve_seeds(config, config.seed).request_generator_config
    prefix = flag_prefix(config, "request_generator_config")
    if isinstance(generator, ShareGptRequestGeneratorConfig):
        assert generator.seed is not None
        arrivals, notes = _arrivals(generator)
        with naming(prefix):
            workload = sharegpt_workload(
                arrivals,
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
        return replace(workload, notes=[*workload.notes, *notes])
    if isinstance(generator, SyntheticRequestGeneratorConfig):
        lengths = _lengths(generator)
        arrivals, notes = _arrivals(generator)
        num_requests = None if generator.duration else generator.num_requests
        if num_requests is None and generator.duration is None and isinstance(arrivals, list):  # of a trace, which ends
            num_requests = len(arrivals)
        with naming(prefix):
            workload = synthetic_workload(lengths, arrivals, num_requests=num_requests, duration=generator.duration)
        return replace(workload, notes=[*workload.notes, *notes])
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
    assert isinstance(generator, TraceRequestGeneratorConfig)
    with naming(prefix, "trace_file"):
        return _trace_workload(generator)


def _trace_workload(generator: TraceRequestGeneratorConfig) -> Workload:
    assert generator.trace_file is not None
    shaping = Shaping(
        prefill_scale_factor=generator.prefill_scale_factor,
        decode_scale_factor=generator.decode_scale_factor,
        max_tokens=generator.max_tokens,
        max_output_tokens=None,
        min_output_tokens=0,
        shorten_prompts_only=generator.shorten == "prompt",
    )
    return trace_workload(
        generator.trace_file,
        num_requests=generator.num_requests,
        time_scale_factor=generator.time_scale_factor,
        shaping=shaping,
        date=generator.date,
    )


def _check_classes(workload: Workload, slo: SloConfig) -> None:
    """Refuse targets of a class that no request has: they would be kept by none and missed by none."""
    if not slo.classes:
        return
    classes = {spec.tenant for spec in workload.requests}
    for name in slo.classes:
        if name not in classes:
            named = ", ".join(sorted(classes - {""})) or "no classes"
            raise FlagError("slo_config_classes", f"no request is of class {shown(name)}; the workload has {named}")


def _lengths(generator: SyntheticRequestGeneratorConfig) -> Lengths:
    config = generator.length_generator_config
    if isinstance(config, FixedRequestLengthGeneratorConfig):
        return fixed_lengths(config.prefill_tokens, config.decode_tokens)
    assert config.seed is not None
    if isinstance(config, UniformRequestLengthGeneratorConfig):
        return uniform_lengths(
            min_tokens=config.min_tokens,
            max_tokens=config.max_tokens,
            prefill_to_decode_ratio=config.prefill_to_decode_ratio,
            seed=config.seed,
        )
    if isinstance(config, ZipfRequestLengthGeneratorConfig):
        return zipf_lengths(
            min_tokens=config.min_tokens,
            max_tokens=config.max_tokens,
            theta=config.theta,
            scramble=config.scramble,
            prefill_to_decode_ratio=config.prefill_to_decode_ratio,
            seed=config.seed,
        )
    assert isinstance(config, TraceRequestLengthGeneratorConfig) and config.trace_file is not None
    shaping = Shaping(
        prefill_scale_factor=config.prefill_scale_factor,
        decode_scale_factor=config.decode_scale_factor,
        max_tokens=config.max_tokens,
        max_output_tokens=config.max_output_tokens,
        min_output_tokens=1,
    )
    with naming(flag_prefix(generator, "length_generator_config"), "trace_file"):
        return trace_lengths(config.trace_file, shaping=shaping, seed=config.seed)


def _arrivals(
    generator: ShareGptRequestGeneratorConfig | SyntheticRequestGeneratorConfig,
) -> tuple[Iterable[float], list[str]]:
    """Arrival times, a list where they end, and what is to be said of them."""
    config = generator.interval_generator_config
    if isinstance(config, StaticRequestIntervalGeneratorConfig):
        interval = config.interval
        how = f"one every {interval:g} s" if interval else "all at once"
        return static_arrivals(interval), [f"static arrivals, {how}"]
    assert config.seed is not None
    if isinstance(config, PoissonRequestIntervalGeneratorConfig):
        note = f"Poisson arrivals, {config.qps:g} per second (seed {config.seed})"
        return poisson_arrivals(config.qps, config.seed), [note]
    if isinstance(config, GammaRequestIntervalGeneratorConfig):
        note = f"gamma arrivals, {config.qps:g} per second, cv {config.cv:g} (seed {config.seed})"
        return gamma_arrivals(config.qps, config.cv, config.seed), [note]
    assert isinstance(config, TraceRequestIntervalGeneratorConfig) and config.trace_file is not None
    with naming(flag_prefix(generator, "interval_generator_config"), "trace_file"):
        return trace_arrivals(
            config.trace_file,
            start_time=config.start_time,
            end_time=config.end_time,
            time_scale_factor=config.time_scale_factor,
        )


def requests_of(workload: Workload, slo: SloConfig) -> Iterable[Request]:
    """Fresh engine requests, made one by one as they are replayed; of some prompts the length alone is known."""
    targets = slo.targets()
    for spec in workload.requests:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=spec.num_output_tokens)
        token_ids = range(spec.num_prompt_tokens) if spec.prompt_token_ids is None else spec.prompt_token_ids
        slo_targets = targets(spec.tenant)
        yield Request(spec.request_id, token_ids, params, spec.arrival_time, tenant=spec.tenant, slo=slo_targets)
