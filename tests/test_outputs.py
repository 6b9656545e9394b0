"""What users get of requests: stop strings cut and never shown in part, reasons, and texts made only when asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sarathi.clock import VirtualClock
from sarathi.core.plan import SchedulerOutput, StepResult
from sarathi.engine.engine import Engine, replay
from sarathi.engine.outputs import OutputProcessor
from sarathi.request import Request, RequestOutput, RequestStatus, SamplingParams, TokenLogprobs
from tests.simulate import ListRecorder, make_output, make_scheduler

EOS = 999  # shows nothing


class Pieces:
    """A tokenizer whose tokens are pieces of text; counts what it decodes."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.num_calls = 0

    def ids(self) -> list[int]:
        return list(range(len(self.pieces)))

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        self.num_calls += 1
        eos = "" if skip_special_tokens else "<eos>"
        return "".join(eos if i == EOS else self.pieces[i] for i in token_ids)


def make_request(
    *, request_id: str = "a", eos_token_ids: Sequence[int] = (EOS,), prompt: str | None = "hi", **params
) -> Request:
    sampling_params = SamplingParams(**({"max_tokens": 100} | params))
    return Request(request_id, [1, 2], sampling_params, 0.0, eos_token_ids=eos_token_ids, prompt=prompt)


def generate(processor: OutputProcessor, request: Request, token_ids: Sequence[int]) -> list[RequestOutput]:
    """The outputs after each token of a request that runs alone, until it ends."""
    outputs = []
    for token_id in token_ids:
        request.output_token_ids.append(token_id)
        first = len(request.output_token_ids) == 1
        output = make_output(prefills=[(request, 2)]) if first else make_output(decodes=[request])
        if token_id in request.eos_token_ids:
            request.status = RequestStatus.FINISHED_STOPPED
        elif len(request.output_token_ids) == request.max_output_tokens:
            request.status = RequestStatus.FINISHED_LENGTH
        stopped = processor.stopped(output)
        assert not (stopped and request.status.is_finished)
        if stopped:
            assert stopped == [request]
            request.status = RequestStatus.FINISHED_STOPPED
        outputs.append(processor.make_output(request))
        if request.status.is_finished:
            break
    assert [o.token_ids for o in outputs] == [list(token_ids[: i + 1]) for i in range(len(outputs))]
    return outputs


def texts(pieces: Sequence[str], **params) -> list[str]:
    tokenizer = Pieces(*pieces)
    return [o.text for o in generate(OutputProcessor(tokenizer), make_request(**params), tokenizer.ids())]


# Stop strings ----------------------------------------------------------------------------------------


def test_no_part_of_a_stop_string_is_shown():
    shown = texts(["AB", "C", "DE", "FG", "HIJ", "K"], stop=("DEFGHIJ",))
    assert shown == ["AB", "ABC", "ABC", "ABC", "ABC"]


def test_what_turns_out_to_be_no_stop_string_is_shown_later():
    assert texts(["ABCDEF", "X", "DE"], stop=("DEFGHIJ",), max_tokens=3) == ["ABC", "ABCDEFX", "ABCDEFXDE"]


def test_the_end_of_a_stopped_request():
    tokenizer = Pieces("one ", "two th", "ree four", "five")
    request = make_request(stop=["never", "three"])
    *_, last = generate(OutputProcessor(tokenizer), request, tokenizer.ids())
    assert (last.text, last.token_ids) == ("one two ", [0, 1, 2])
    assert (last.finished, last.finish_reason, last.stop_reason) == (True, "stop", "three")


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "aSTOP")])
def test_the_stop_string_is_part_of_the_text_only_if_asked_for(include, text):
    assert texts(["a", "ST", "OPb"], stop="STOP", include_stop_str_in_output=include)[-1] == text


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [(("cd", "b"), "a", "b"), (("cd", "bcd"), "a", "bcd"), (("bc", "bcd"), "a", "bc"), (("d", "c"), "ab", "c")],
)
def test_the_stop_string_that_begins_first_counts(stop, text, reason):
    tokenizer = Pieces("abcd")
    (output,) = generate(OutputProcessor(tokenizer), make_request(stop=stop), [0])
    assert (output.text, output.stop_reason) == (text, reason)


def test_only_text_is_searched_that_is_new():
    tokenizer = Pieces(*["ab"] * 300)
    processor, request = OutputProcessor(tokenizer), make_request(stop=("x",))
    generate(processor, request, tokenizer.ids()[:99])
    request.sampling_params = SamplingParams(stop=("ab",), max_tokens=100)  # would match all that was searched
    request.output_token_ids.append(99)
    assert processor.stopped(make_output(decodes=[request])) == [request]
    assert processor.make_output(request).text == "ab" * 99


@pytest.mark.parametrize(
    ("min_tokens", "num_tokens"),
    [(0, 2), (1, 2), (2, 4), (3, 4), (4, None)],
)
def test_a_stop_string_that_the_first_min_tokens_tokens_complete_is_none(min_tokens, num_tokens):
    """As in vLLM: it must end in what a later token says, and may begin before."""
    pieces = ["a", "b-", "a", "b-", "c", "d"]
    tokenizer = Pieces(*pieces)
    request = make_request(stop=("ab",), min_tokens=min_tokens, max_tokens=6)
    last = generate(OutputProcessor(tokenizer), request, tokenizer.ids())[-1]
    if num_tokens is None:
        assert (last.text, last.finish_reason) == ("ab-ab-cd", "length")
    else:
        assert (last.text, last.finish_reason) == ("ab-"[: 3 * (num_tokens > 2)], "stop")
        assert len(last.token_ids) == num_tokens


def test_the_borderline_is_the_same_when_all_is_read_at_the_end():
    tokenizer = Pieces("ab", "-a", "b", "-")
    request = make_request(stop=("ab",), min_tokens=2)
    request.output_token_ids += tokenizer.ids()
    request.status = RequestStatus.FINISHED_ABORTED
    processor = OutputProcessor(tokenizer)
    first, second = processor.make_output(request), processor.make_output(request)
    assert first == second
    assert (first.text, first.stop_reason) == ("ab-", "ab")


def test_characters_over_tokens_on_either_side_of_the_borderline():
    class Bytes(Pieces):
        def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
            return b"".join([b"\xe3\x83", b"\xbc\xe3\x83", b"\xbc"][i] for i in token_ids).decode(errors="replace")

    last = generate(OutputProcessor(Bytes()), make_request(stop=("ーーー",), min_tokens=3), [0, *[1] * 9, 2])[-1]
    assert (last.text, len(last.token_ids)) == ("", 4)
    request = make_request(stop=("x",), min_tokens=5, max_tokens=11)
    assert [o.text for o in generate(OutputProcessor(Bytes()), request, [0, *[1] * 9, 2])] == [
        "ー" * n for n in range(11)
    ]


def test_a_stop_string_in_the_last_token_that_fits_is_the_reason():
    tokenizer = Pieces("a", "STOP")
    last = generate(OutputProcessor(tokenizer), make_request(stop=("STOP",), max_tokens=2), [0, 1])[-1]
    assert (last.text, last.finish_reason, last.stop_reason) == ("a", "stop", "STOP")


@given(
    pieces=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 4),
)
def test_texts_grow_and_never_show_what_is_cut(pieces, stops, include, min_tokens):
    tokenizer = Pieces(*pieces)
    params = {"stop": stops, "include_stop_str_in_output": include, "min_tokens": min_tokens}
    request = make_request(**params, max_tokens=max(len(pieces), min_tokens))
    outputs = generate(OutputProcessor(tokenizer), request, tokenizer.ids())
    last = outputs[-1]
    for before, after in pairwise(outputs):
        assert after.text.startswith(before.text)
    said = "".join(pieces[: len(outputs)])
    earlier = len("".join(pieces[: max(min_tokens, len(outputs) - 1)]))
    if last.stop_reason is None:
        assert last.text == said if last.finished else said.startswith(last.text)
        searched = len("".join(pieces[:min_tokens]))
        assert not any(stop in said[max(0, searched - len(stop) + 1) :] for stop in stops)
    else:
        at = len(last.text) - len(last.stop_reason) * include
        assert said[at:].startswith(last.stop_reason)
        for stop in stops:  # none begins earlier of those that end in the last token
            found = said.find(stop, max(0, earlier - len(stop) + 1))
            assert found < 0 or (found, len(stop)) >= (at, len(last.stop_reason))


# Stop tokens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "text", "reason"),
    [
        ({"stop_token_ids": (1,)}, "a", 1),
        ({"stop_token_ids": (1,), "include_stop_str_in_output": True}, "ab", 1),
        ({"stop_token_ids": (1,), "ignore_eos": True}, "a", 1),
        ({"stop_token_ids": (1,), "stop": ("b",)}, "a", 1),
        ({"eos_token_ids": (1,)}, "a", None),
        ({"eos_token_ids": (1,), "stop_token_ids": (5,)}, "a", None),
    ],
)
def test_the_token_that_ends_a_request_is_kept_but_not_shown(params, text, reason):
    tokenizer = Pieces("a", "b", "c")
    last = generate(OutputProcessor(tokenizer), make_request(**params), tokenizer.ids())[-1]
    assert (last.text, last.token_ids, last.stop_reason) == (text, [0, 1], reason)
    assert (last.finished, last.finish_reason) == (True, "stop")


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<eos>b")])
def test_special_tokens_are_shown_only_if_asked_for(skip, text):
    tokenizer = Pieces("a", "b")
    request = make_request(ignore_eos=True, skip_special_tokens=skip)
    assert generate(OutputProcessor(tokenizer), request, [0, EOS, 1])[-1].text == text


# Outputs ---------------------------------------------------------------------------------------------


def test_an_output_while_the_request_runs():
    tokenizer = Pieces("a", "b")
    request = make_request()
    request.status = RequestStatus.RUNNING
    first, second = generate(OutputProcessor(tokenizer), request, [0, 1])
    assert first == RequestOutput(
        request_id="a",
        prompt="hi",
        prompt_token_ids=[1, 2],
        text="a",
        token_ids=[0],
        logprobs=None,
        finished=False,
        finish_reason=None,
    )
    assert first.seq_id == "a" and (first.stop_reason, first.error) == (None, None)
    assert (second.text, second.token_ids, first.token_ids) == ("ab", [0, 1], [0])


def test_logprobs_are_copied_where_asked_for():
    entry = TokenLogprobs(-0.5, 1, ((0, -0.5),))
    request = make_request(logprobs=1)
    request.output_token_ids.append(0)
    request.output_logprobs.append(entry)
    output = OutputProcessor(Pieces("a")).make_output(request)
    request.output_logprobs.append(entry)
    assert output.logprobs == [entry]


def test_a_refused_request_says_why():
    scheduler = make_scheduler(max_model_len=64)
    request = Request("big", range(65), SamplingParams(), 0.0)
    assert not scheduler.add(request, 0.0)
    output = OutputProcessor(Pieces()).make_output(request)
    assert (output.finished, output.finish_reason, output.text, output.token_ids) == (True, "ignored", "", [])
    assert "65 tokens" in output.error and "64" in output.error


def test_without_a_tokenizer_there_are_tokens_and_no_text():
    request = make_request(stop=("a",))
    last = generate(OutputProcessor(None), request, [0, 1, EOS])[-1]
    assert (last.text, last.token_ids, last.finish_reason) == ("", [0, 1, EOS], "stop")


def test_a_request_without_stop_strings_is_not_decoded_until_asked():
    tokenizer = Pieces(*["ab"] * 50)
    processor, request = OutputProcessor(tokenizer), make_request()
    for token_id in tokenizer.ids():
        request.output_token_ids.append(token_id)
        assert processor.stopped(make_output(decodes=[request])) == []
    assert tokenizer.num_calls == 0
    request.status = RequestStatus.FINISHED_LENGTH
    assert processor.make_output(request).text == "ab" * 50
    assert tokenizer.num_calls == 1


def test_texts_of_ended_requests_are_dropped_and_a_name_can_be_used_again():
    tokenizer = Pieces("x", "y")
    processor = OutputProcessor(tokenizer)
    generate(processor, make_request(max_tokens=1), [0])
    unfinished = make_request(stop=("z",))
    generate(processor, unfinished, [0])
    assert generate(processor, make_request(max_tokens=1), [1])[-1].text == "y"  # another request of that name
    processor.forget(unfinished)
    processor.forget(unfinished)
    assert not processor._texts


# In the engine ---------------------------------------------------------------------------------------


class Scripted:
    """An executor that gives each request the tokens that a script holds for it."""

    max_inflight_steps = 1

    def __init__(self, script: Mapping[str, Sequence[int]]) -> None:
        self.script = script
        self.inflight: deque[SchedulerOutput] = deque()

    def submit(self, output: SchedulerOutput) -> None:
        self.inflight.append(output)

    def wait(self, until: float | None = None) -> StepResult:
        output = self.inflight.popleft()
        requests = [*output.decodes, *(request for request, _ in output.prefills)]
        return StepResult([self.script[r.request_id][len(r.output_token_ids)] for r in requests], 0.01)

    def shutdown(self) -> None: ...


def test_the_engine_ends_requests_at_their_stop_strings_in_the_round_that_completes_them():
    tokenizer = Pieces("a", "b", "c", "STOP", "d")
    script = {"stops": [0, 3, 4], "at once": [3, 0, 0], "length": [0, 1, 3], "eos": [0, EOS], "free": [0, 3, 4]}
    stop = {"stop": ("STOP",), "max_tokens": 3}
    requests = [make_request(request_id=name, **(stop if name != "free" else {"max_tokens": 3})) for name in script]
    processor, recorder, scheduler = OutputProcessor(tokenizer), ListRecorder(), make_scheduler()
    engine = Engine(scheduler, Scripted(script), VirtualClock(), recorder, stop_rule=processor)
    replay(engine, requests)
    outputs = {r.request_id: processor.make_output(r) for r in requests}
    assert {name: (o.text, len(o.token_ids), o.finish_reason) for name, o in outputs.items()} == {
        "stops": ("a", 2, "stop"),
        "at once": ("", 1, "stop"),
        "length": ("ab", 3, "stop"),
        "eos": ("a", 2, "stop"),
        "free": ("aSTOPd", 3, "length"),
    }
    assert outputs["stops"].stop_reason == outputs["length"].stop_reason == "STOP"
    assert outputs["eos"].stop_reason is None
    assert sorted(r.request_id for r in recorder.finished) == sorted(script)
    assert not processor._texts


def test_a_preempted_request_goes_on_with_its_text():
    """It is computed again chunk by chunk; those chunks give no token and are nothing to stop at."""
    tokenizer = Pieces("S", "T", "O", "P", "x")
    script = {"a": [0, 4] * 8, "b": [4] * 14 + [0, 1, 2, 3]}
    requests = [make_request(request_id=name, stop=("STOP",), max_tokens=len(script[name])) for name in script]
    processor, scheduler = OutputProcessor(tokenizer), make_scheduler(num_blocks=4, block_size=8, chunk_size=4)
    replay(Engine(scheduler, Scripted(script), VirtualClock(), ListRecorder(), stop_rule=processor), requests)
    assert sum(r.num_preemptions for r in requests) > 0
    assert [processor.make_output(r).text for r in requests] == ["Sx" * 8, "x" * 14]
