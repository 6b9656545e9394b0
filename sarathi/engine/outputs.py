"""What a user gets of a request: its text so far, where it was stopped, and why it ended.

Owns the texts of requests; the scheduler knows only token ids. It is the engine's rule for stop strings.
"""

from __future__ import annotations

from sarathi.core.plan import SchedulerOutput
from sarathi.engine.detokenizer import Decoder, Detokenizer, find_stop, num_held_back
from sarathi.request import Request, RequestOutput, RequestStatus


class _Text:
    """The text of one request, and the stop string in it once there is one."""

    def __init__(self, decoder: Decoder, request: Request) -> None:
        self.detokenizer = Detokenizer(decoder, request.sampling_params.skip_special_tokens)
        self.num_searched = 0  # characters in which no stop string ends
        self.stop: tuple[int, str] | None = None


class OutputProcessor:
    """Texts of unfinished requests, made as far as somebody asks: a round costs nothing without stop strings.

    Args:
        decoder: the tokenizer; None leaves every text empty, and stop strings without effect.
    """

    def __init__(self, decoder: Decoder | None) -> None:
        self._decoder = decoder
        self._texts: dict[str, _Text] = {}

    def stopped(self, output: SchedulerOutput) -> list[Request]:
        """The round's requests whose newest token completes one of their stop strings.

        As in vLLM, what the first `min_tokens` tokens say is not searched; a stop string may begin in it.
        """
        if self._decoder is None:
            return []
        candidates = [r for r in output.decodes if r.sampling_params.stop]
        candidates += [r for r, _ in output.prefills if r.sampling_params.stop and r.output_token_ids]
        return [request for request in candidates if not request.status.is_finished and self._search(request)]

    def make_output(self, request: Request) -> RequestOutput:
        """All that is known of the request; a finished one is forgotten."""
        finished = request.status.is_finished
        text = "" if self._decoder is None else self._shown(request, finished)
        stop = None if self._decoder is None else self._text(request).stop
        if finished:
            self.forget(request)
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            text=text,
            token_ids=list(request.output_token_ids),
            logprobs=None if request.sampling_params.logprobs is None else list(request.output_logprobs),
            finished=finished,
            finish_reason="stop" if stop else request.status.finish_reason,
            stop_reason=stop[1] if stop else _stop_token(request),
            error=request.ignored_reason,
        )

    def forget(self, request: Request) -> None:
        """Drop the text of a request that ended, or that nobody asks for any more."""
        self._texts.pop(request.request_id, None)

    def _text(self, request: Request) -> _Text:
        assert self._decoder is not None
        text = self._texts.get(request.request_id)
        if text is None:
            text = self._texts[request.request_id] = _Text(self._decoder, request)
        return text

    def _search(self, request: Request) -> bool:
        """Take in the request's new tokens; whether its text holds a stop string."""
        text, params, token_ids = self._text(request), request.sampling_params, request.output_token_ids
        if text.stop is None:
            if _ended_by_token(request) and not params.include_stop_str_in_output:
                token_ids = token_ids[:-1]
            text.detokenizer.feed(token_ids, flush=request.status.is_finished)
            so_far = text.detokenizer.text
            if params.stop and len(token_ids) > params.min_tokens:
                text.stop = find_stop(so_far, params.stop, text.num_searched)
            text.num_searched = len(so_far)
        return text.stop is not None

    def _shown(self, request: Request, finished: bool) -> str:
        params, text = request.sampling_params, self._text(request)
        self._search(request)
        so_far = text.detokenizer.text
        if text.stop is not None:
            at, stop = text.stop
            return so_far[: at + len(stop) if params.include_stop_str_in_output else at]
        if finished or not params.stop:
            return so_far
        return so_far[: len(so_far) - num_held_back(so_far, params.stop)]


def _ended_by_token(request: Request) -> bool:
    tokens = request.output_token_ids
    ended = request.status is RequestStatus.FINISHED_STOPPED
    return ended and bool(tokens) and tokens[-1] in request.eos_token_ids


def _stop_token(request: Request) -> int | None:
    """The stop token of the user's that ended the request; the model's own end of text is no reason to tell."""
    if _ended_by_token(request) and request.output_token_ids[-1] in request.sampling_params.stop_token_ids:
        return request.output_token_ids[-1]
    return None
