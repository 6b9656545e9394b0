"""What a user gets of a request: its text so far, where it was stopped, and why it ended.

Owns the texts of requests; the scheduler knows only token ids. It is the engine's rule for stop strings.
"""

from __future__ import annotations

from sarathi.core.plan import SchedulerOutput
from sarathi.engine.detokenizer import Decoder, Detokenizer, find_stop, num_held_back
from sarathi.request import Request, RequestOutput, RequestStatus


class OutputProcessor:
    """Texts of requests, made only as far as somebody asks or stop strings must be looked for.

    Args:
        decoder: the tokenizer; None leaves every text empty, and stop strings without effect.
    """

    def __init__(self, decoder: Decoder | None) -> None:
        self._decoder = decoder
        self._texts: dict[Request, _Text] = {}

    def stopped(self, output: SchedulerOutput) -> list[Request]:
        """The round's requests whose newest token completes one of their stop strings.

        As in vLLM, a stop string that the first `min_tokens` tokens complete is none; it may begin in them.
        """
        if self._decoder is None:
            return []
        candidates = [r for r in output.decodes if r.sampling_params.stop]
        candidates += [r for r, _ in output.prefills if r.sampling_params.stop and r.output_token_ids]
        return [r for r in candidates if not r.status.is_finished and self._read(r, self._decoder).stop]

    def make_output(self, request: Request) -> RequestOutput:
        """All that is known of the request. The text of a finished one is forgotten."""
        finished = request.status.is_finished
        text = None if self._decoder is None else self._read(request, self._decoder)
        stop = text.stop[1] if text is not None and text.stop is not None else None
        if finished:
            self.forget(request)
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            text="" if text is None else text.shown(request),
            token_ids=list(request.output_token_ids),
            logprobs=None if request.sampling_params.logprobs is None else list(request.output_logprobs),
            finished=finished,
            finish_reason="stop" if finished and stop else request.status.finish_reason,
            stop_reason=stop or _stop_token(request),
            error=request.ignored_reason,
        )

    def forget(self, request: Request) -> None:
        """Drop the text of a request that nobody will ask for."""
        self._texts.pop(request, None)

    def _read(self, request: Request, decoder: Decoder) -> _Text:
        text = self._texts.get(request)
        if text is None:
            text = self._texts[request] = _Text(decoder, request.sampling_params.skip_special_tokens)
        if text.stop is None:
            text.read(request)
        return text


class _Text:
    """The text of one request, and the first stop string in it once there is one."""

    def __init__(self, decoder: Decoder, skip_special_tokens: bool) -> None:
        self.detokenizer = Detokenizer(decoder, skip_special_tokens)
        self.num_searched = 0  # characters in which no stop string ends
        self.stop: tuple[int, str] | None = None  # where it begins, and which

    def read(self, request: Request) -> None:
        """Take in the new tokens and look for a stop string in what they add."""
        params, token_ids, detokenizer = request.sampling_params, request.output_token_ids, self.detokenizer
        if _ended_by_token(request) and not params.include_stop_str_in_output:
            token_ids = token_ids[:-1]
        if params.stop and detokenizer.num_tokens < params.min_tokens:
            detokenizer.feed(token_ids[: params.min_tokens])
            self.num_searched = len(detokenizer.text)
        detokenizer.feed(token_ids, flush=request.status.is_finished)
        self.stop = find_stop(detokenizer.text, params.stop, self.num_searched)
        self.num_searched = len(detokenizer.text)

    def shown(self, request: Request) -> str:
        """The text without what may be, or is, a stop string and what follows it."""
        params, text = request.sampling_params, self.detokenizer.text
        if self.stop is not None:
            at, stop = self.stop
            return text[: at + len(stop) if params.include_stop_str_in_output else at]
        if request.status.is_finished or not params.stop:
            return text
        return text[: len(text) - num_held_back(text, params.stop)]


def _ended_by_token(request: Request) -> bool:
    tokens = request.output_token_ids
    return request.status is RequestStatus.FINISHED_STOPPED and bool(tokens) and tokens[-1] in request.eos_token_ids


def _stop_token(request: Request) -> int | None:
    """The user's stop token that ended the request; that the model ended its text is no reason to tell."""
    if _ended_by_token(request) and request.output_token_ids[-1] in request.sampling_params.stop_token_ids:
        return request.output_token_ids[-1]
    return None
