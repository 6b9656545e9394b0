"""Traces as others publish them: how each format is recognised and read, and the line that refuses the rest."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from sarathi.benchmark.workloads import Shaping, Workload, trace_arrivals, trace_lengths, trace_workload
from sarathi.instants import day_text, instant_text, parse_day, parse_instant

DATED = """Date,Time,PromptTokenCount,CompletionTokenCount
2023-08-20,86000,100,10
2023-08-21,3600.5,1000,0
2023-08-21,3590,300,60
2023-08-22,0,7,7
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,API log
118,GPT-4,417,276,693,API log
"""
NEW_BURST = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log
19440161.5,,2,ChatGPT,36,29,65,API log
"""
AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319601,3180,8
2023-11-17 00:00:00.0000000,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00+00:00,2399,6
2024-05-10 02:00:01.5+02:00,76,15
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}

{"timestamp": 30535, "input_length": 6472.0, "output_length": 26, "hash_ids": []}
"""


def shaping(max_tokens=None, prompts_only=False, least=0, **factors) -> Shaping:
    settings = {"prefill_scale_factor": 1.0, "decode_scale_factor": 1.0, "max_output_tokens": None}
    return Shaping(
        **(settings | factors), max_tokens=max_tokens, min_output_tokens=least, shorten_prompts_only=prompts_only
    )


def replay(path, num_requests=None, time_scale_factor=1.0, date=None, **kwargs) -> Workload:
    return trace_workload(
        path, num_requests=num_requests, time_scale_factor=time_scale_factor, shaping=shaping(**kwargs), date=date
    )


def lengths_of(path, num_rows) -> list[tuple[int, int]]:
    return sorted(islice(trace_lengths(path, shaping=shaping(least=1), seed=1).pairs, num_rows))


def arrivals(path, start=None, end=None, factor=1.0) -> list[float]:
    return trace_arrivals(path, start_time=start, end_time=end, time_scale_factor=factor)[0]


def rows(workload) -> list[tuple[float, int, int, str]]:
    return [(round(r.arrival_time, 9), r.num_prompt_tokens, r.num_output_tokens, r.tenant) for r in workload.requests]


@pytest.fixture
def trace(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "trace.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (
            "tenant,arrived_at,num_prefill_tokens,num_decode_tokens\n chat ,1,5,6\n,2,7,8\nbulk,2.5,1,1\n",
            "",
            [(0, 5, 6, "chat"), (1, 7, 8, ""), (1.5, 1, 1, "bulk")],
        ),
        (DATED, "Sarathi-Serve", [(0, 100, 10, ""), (3990, 300, 60, ""), (4000.5, 1000, 1, ""), (86800, 7, 7, "")]),
        (BURST, "BurstGPT", [(0, 472, 18, "Conversation log"), (113, 417, 276, "API log")]),
        (NEW_BURST, "BurstGPT", [(0, 906, 446, "Conversation log"), (51.5, 36, 29, "API log")]),
        (
            AZURE_2023,
            "Azure LLM inference",
            [(0, 4808, 10, ""), (0.0520001, 3180, 8, ""), (20576.02004, 110, 27, "")],
        ),
        (
            AZURE_2024,
            "Azure LLM inference",
            [(0, 2399, 6, ""), (0.00993, 2162, 5, ""), (1.5, 76, 15, "")],
        ),
        (MOONCAKE, "Mooncake", [(0, 6955, 52, ""), (3.053, 6472, 26, "")]),
    ],
)
def test_a_replay_of_each_format(trace, text, name, expected):
    """With a byte-order mark and blank lines, too, and the lengths alone."""
    path = trace(text)
    workload = replay(path)
    assert rows(workload) == expected
    assert (f"{path} ({name}): " if name else f"{path}: ") in workload.notes[0]
    assert rows(replay(trace("\ufeff" + text.replace("\n", "\n\n")))) == expected
    assert lengths_of(path, len(expected)) == sorted((prompt, output) for _, prompt, output, _ in expected)


def test_arrivals_of_each_format(trace):
    """Seconds that are no dates count from 1970; no length is looked at, so no failed request is left out."""
    assert arrivals(trace("arrived_at\n5\n1.25\n"), factor=2) == [0, 7.5]
    assert arrivals(trace(DATED)) == [0, 3990, 4000.5, 86800]
    assert arrivals(trace(BURST)) == [0, 40, 113]
    assert arrivals(trace(AZURE_2023))[1] == pytest.approx(0.0520001, abs=1e-9)
    assert arrivals(trace(AZURE_2024)) == [0, pytest.approx(0.00993, abs=1e-9), 1.5]
    assert arrivals(trace(MOONCAKE)) == [0, pytest.approx(3.053)]
    assert arrivals(trace("app,func,end_timestamp,duration\nx,y,12.5,2\nx,z,11,1\n")) == [0, 0.5]
    assert arrivals(trace("arrival_time,x\n1970-01-01 12:00:00,1\n1970-01-01T12:00:07,2\n43204.5,3\n")) == [0, 4.5, 7]


def test_a_date_takes_one_day(trace):
    workload = replay(trace(DATED), date="2023-08-21", time_scale_factor=0.5, prefill_scale_factor=0.5)
    assert rows(workload) == [(0, 150, 60, ""), (5.25, 500, 1, "")]
    assert "2 of 4 rows of 2023-08-21, arriving from 0.000 to 5.250 s" in workload.notes[0]
    assert "arrival times begin at 0, the trace's 2023-08-21 00:59:50" in workload.notes
    assert any("not in order (1 rows" in note for note in workload.notes)
    assert any("1 rows with a count of 0 were given 1 token" in note for note in workload.notes)
    assert rows(replay(trace(AZURE_2023), date="2023-11-17")) == [(0, 110, 27, "")]
    assert [prompt for _, prompt, *_ in rows(replay(trace(AZURE_2024), date="2024-05-10"))] == [2399, 2162, 76]


def test_a_date_is_the_rows_own_however_late_its_time_is(trace):
    path = trace("Date,Time,PromptTokenCount,CompletionTokenCount\n2023-08-20,90000,1,1\n2023-08-21,5,2,2\n")
    assert [prompt for _, prompt, *_ in rows(replay(path, date="2023-08-20"))] == [1]


def test_an_empty_selection_says_what_the_file_has(trace):
    path = trace(DATED)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        replay(path, date="2023-09-01")
    days = "2023-08-20, 2023-08-21, 2023-08-22"
    assert str(error.value) == f"date: 2023-09-01 is not allowed; {path} (Sarathi-Serve) has rows of {days}"
    many = "".join(f"2023-08-{day},1,1,1\n" for day in range(10, 20))
    with pytest.raises(ValueError, match="has rows of 10 days from 2023-08-10 to 2023-08-19"):
        replay(trace(DATED.splitlines()[0] + "\n" + many), date="2023-09-01")
    with pytest.raises(ValueError, match=r"date: 2023-09-01 is not allowed; .* \(BurstGPT\) tells times without dates"):
        replay(trace(BURST), date="2023-09-01")
    for bounds, said in (
        (("1970-01-01", "1970-01-02"), "start_time: .* has no arrival from 1970-01-01 to before 1970-01-02; it has 3 "),
        ((None, "2023"), "end_time: .* has no arrival before 2023; it has 3 "),
        (("2024-01-01", None), "start_time: .* has no arrival from 2024-01-01 on; it has 3 "),
        (("2024-01-01", None), r"from 2023-11-16 18:17:03\.980 to 2023-11-17 00:00:00$"),
    ):
        with pytest.raises(ValueError, match=said):
            arrivals(trace(AZURE_2023), *bounds)
    with pytest.raises(ValueError, match=r"it has 1 from 9,000,000,000,000,000,000\.000 s to"):  # no calendar has it
        arrivals(trace("arrived_at\n9e18\n"), end="1970-01-02")


def test_names_of_classes_are_one_line_each(trace):
    """Line breaks and control characters in one would break tables and logs; what is left of them is one blank."""
    header = "arrived_at,num_prefill_tokens,num_decode_tokens,tenant\n"
    text = header + '0,1,1,"a\rb"\n1,1,1,a b\n2,1,1,"\n a \x1b\x00\x85b\u2028"\n3,1,1,"\r"\n4,1,1,ä b\n'
    workload = replay(trace(text.encode()))
    assert [request.tenant for request in workload.requests] == ["a b", "a b", "a b", "", "ä b"]
    burst = BURST.replace("Conversation log", '"Conversation\r\nlog"')
    assert replay(trace(burst.encode())).requests[0].tenant == "Conversation log"
    with pytest.raises(ValueError, match=r"trace\.txt: not a UTF-8 text file"):  # half of a character
        replay(trace(header.encode() + b"0,1,1,\xed\xa0\x80\n"))


def test_failed_requests_are_counted_and_left_out(trace):
    said = "1 of 3 requests failed (0 response tokens) and were left out"
    assert said in replay(trace(BURST)).notes
    assert said in trace_lengths(trace(BURST), shaping=shaping(), seed=1).notes
    with pytest.raises(ValueError, match=r"trace\.txt: all 1 requests failed \(0 response tokens\)"):
        replay(trace("\n".join([BURST.splitlines()[0], BURST.splitlines()[2]])))


def test_prompts_alone_are_shortened_where_that_is_asked_for(trace):
    path = trace("arrived_at,num_prefill_tokens,num_decode_tokens\n0,300,100\n1,50,50\n2,9,9000\n")
    both, prompts = replay(path, max_tokens=200), replay(path, max_tokens=200, prompts_only=True)
    assert [row[1:3] for row in rows(both)] == [(150, 50), (50, 50), (1, 199)]
    assert [row[1:3] for row in rows(prompts)] == [(100, 100), (50, 50), (1, 199)]
    assert any("max_tokens 200 shortened 2 of 3 rows by 9,009 tokens" in note for note in prompts.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DATED + "2023-08-22,9,-5,1\n", "line 6, column PromptTokenCount: -5 is not allowed; a number from 0 to 1,0"),
        (DATED + "22.08.2023,9,5,1\n", "line 6, column Date: '22.08.2023' is not a date like 2023-11-16"),
        (BURST + "130,GPT-4,1,many,2,x\n", "line 5, column Response tokens: 'many' is not a number"),
        (BURST + "130,GPT-4,1\n", "line 5, column Response tokens: '' is not a number"),
        (
            AZURE_2023 + "yesterday,1,1\n",
            "line 5, column TIMESTAMP: 'yesterday' is not a date and time like 2023-11-16",
        ),
        (AZURE_2023 + "2023-02-30 00:00:00,1,1\n", "line 5, column TIMESTAMP: '2023-02-30 00:00:00' is not a date"),
        (AZURE_2023 + "2023-11-17 00:00:01,nan,1\n", "line 5, column ContextTokens: nan is not allowed"),
        (AZURE_2023.replace("Gen", "G"), "line 1: column GeneratedTokens is missing; it has TIMESTAMP, ContextTokens"),
        (AZURE_2023 + "2023-11-17 00:00:99.5,1,1\n", "line 5, column TIMESTAMP: '2023-11-17 00:00:99.5' is not a date"),
        (DATED + "2023-08-22,1_000,5,1\n", "line 6, column Time: '1_000' is not a number"),
        (DATED + "20230822,9,5,1\n", "line 6, column Date: '20230822' is not a date like 2023-11-16"),
        (MOONCAKE + '{"timestamp": 1}', "line 4: input_length is missing; it has 'timestamp'"),
        (MOONCAKE + '{"timestamp": "1", "inp', "line 4: not JSON (Unterminated string"),
        (MOONCAKE + "[1]", "line 4: [1] is not a JSON object"),
        (MOONCAKE + "[" * 100_000, "line 4: not JSON ("),
        (MOONCAKE.replace("27482", '"27482"'), "line 1, timestamp: '27482' is not a number"),
        (MOONCAKE.replace("27482", "true"), "line 1, timestamp: True is not a number"),
        (
            MOONCAKE.replace("26,", "-26,"),
            "line 3, output_length: -26 is not allowed; a number from 0 to 1,000,000,000",
        ),
        (MOONCAKE.replace("26,", "1e999,"), "line 3, output_length: inf is not allowed"),
        (MOONCAKE.replace("26,", "9" * 999 + ","), "line 3, output_length: 99999999999"),
        ("a,b\n1,2\n", "line 1: no trace with the columns 'a, b' is known; arrived_at, num_prefill_tokens, "),
        ("", "empty; a header with arrived_at,num_prefill_tokens,num_decode_tokens is needed"),
        (AZURE_2023.splitlines()[0], "no rows under the header TIMESTAMP,ContextTokens,GeneratedTokens"),
    ],
)
def test_a_bad_trace_is_one_line_naming_file_line_and_column(trace, text, said):
    path = trace(text)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        replay(path)
    message = str(error.value)
    assert message.startswith(str(path)) and said in message and "\n" not in message


def test_lengths_need_no_times_and_arrivals_no_lengths(trace):
    assert lengths_of(trace("ContextTokens,GeneratedTokens\n5,6\n"), 1) == [(5, 6)]
    assert lengths_of(trace('{"input_length": 5, "output_length": 6}'), 1) == [(5, 6)]
    for text in ("arrival_time\n5\n", "end_timestamp,duration\n5,1\n"):
        with pytest.raises(ValueError, match="no trace with the columns"):
            lengths_of(trace(text), 1)
    with pytest.raises(ValueError, match="no trace with the columns"):
        arrivals(trace("num_prefill_tokens,num_decode_tokens\n5,6\n"))


def test_a_part_of_an_interval_trace_and_its_fractions(trace):
    text = "arrival_time\n1970-01-04 12:00:00\n1970-01-04 12:00:09.75\n1970-01-04 12:00:00.25\n1970-01-04 15:00:00\n"
    times, notes = trace_arrivals(
        trace(text), start_time="1970-01-04 12:00:00", end_time="1970-01-04 15:00", time_scale_factor=0.5
    )
    assert times == [0, 0.125, 4.875]  # the start belongs to it, the end does not
    said = (
        ": 3 of 4 from 1970-01-04 12:00:00 to before 1970-01-04 15:00, the first at 1970-01-04 12:00:00; scaled by 0.5"
    )
    assert said in notes[0]
    assert notes[1] == "arrival times were not in order (1 rows earlier than the row before); sorted"
    assert arrivals(trace(text)) == arrivals(trace(text), end="1970-01-04 15:00:01") == [0, 0.25, 9.75, 10800]
    assert arrivals(trace(text), "1970-01-04 12:00:00.25") == [0, 9.5, 10799.75]
    with pytest.raises(ValueError, match=r"time_scale_factor: 1e\+300 is too large for"):
        arrivals(trace(text), factor=1e300)


def test_many_rows_agree_with_a_plain_reader(trace):
    """Against the json and datetime modules, over more than one minute, day and zone."""
    rng = random.Random(3)
    rows_ = [(rng.random() * 2e5, rng.randint(1, 9999), rng.randint(0, 999)) for _ in range(2000)]
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    records = []
    for seconds, prompt, output in rows_:
        day, rest = divmod(seconds, 86400)
        hour = int(rest // 3600)
        lines.append(
            f"2024-05-{10 + int(day)}T{hour:02}:{int(rest % 3600 // 60):02}:{rest % 60:010.7f}Z,{prompt},{output}"
        )
        records.append(json.dumps({"timestamp": seconds * 1000, "input_length": prompt, "output_length": output}))
    first = min(rows_)[0]
    expected = sorted((time - first, prompt, output) for time, prompt, output in rows_)
    for text, precision in (("\n".join(lines), 2e-7), ("\n".join(records), 1e-9)):
        got = [row[:3] for row in rows(replay(trace(text)))]
        assert [row[1:] for row in got] == [row[1:] for row in expected]
        assert [row[0] for row in got] == pytest.approx([row[0] for row in expected], abs=precision)


def test_instants():
    assert parse_instant("1970-01-02") == (1, 0)
    assert parse_instant(" 1970-01-02 03:04 ") == (1, 11040)
    assert parse_instant("1970-01-01T00:30:00.25+01:00") == (-1, 84600.25)
    assert parse_instant("1970-01-01 00:30:00-0100") == (0, 5400)
    assert parse_instant("90000.5") == (1, 3600.5)
    assert instant_text(19677, 65823.9799600) == "2023-11-16 18:17:03.980"
    assert day_text(parse_day("2024-02-29")) == "2024-02-29"
    assert parse_instant("1970-01-01 23:59:59.999") == (0, 86399.999)
    for text in (
        "", "nan", "-1", "1e30", "1_000", "١٢", "2023-13-01", "2023-11-16 25:00", "2023-11-16 18:60",
        "2023-11-16 18:17:60", "2023-11-16 23:59:99.5", "2023-11-16 18:17+01:99", "2023-11-16 18:17:03 UTC",
        "١٩٧٠-01-01",
    ):  # fmt: skip
        with pytest.raises(ValueError, match="is not a date and time like"):
            parse_instant(text)
    for text in ("tomorrow", "20231116", "2023-W46-4", "2023-02-29"):
        with pytest.raises(ValueError, match=f"'{text}' is not a date like"):
            parse_day(text)
