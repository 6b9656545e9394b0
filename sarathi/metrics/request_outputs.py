"""What requests were answered, a line of JSON a request: the file outputs.jsonl."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from sarathi.engine.detokenizer import Decoder
from sarathi.engine.outputs import OutputProcessor
from sarathi.request import Request


class RequestOutputs:
    """Streams `path`, requests in the order they end; while the run lasts the file is called `path`.part.

    Args:
        decoder: the model's tokenizer; None leaves texts null.
    """

    def __init__(self, path: Path, decoder: Decoder | None) -> None:
        self._file = open(path.with_name(path.name + ".part"), "w", encoding="utf-8")
        self._decoder = decoder

    def write(self, requests: Iterable[Request]) -> None:
        """Requests that have just ended, aborted and refused ones too."""
        for request in requests:
            prompt = request.prompt
            if prompt is None and self._decoder is not None:
                prompt = self._decoder.decode(request.prompt_token_ids, False)
            output = OutputProcessor(self._decoder).make_output(request)
            line = {
                "request_id": request.request_id,
                "prompt": prompt,
                "num_prompt_tokens": request.num_prompt_tokens,
                "output_token_ids": output.token_ids,
                "text": None if self._decoder is None else output.text,
                "finish_reason": output.finish_reason,
            }
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Complete the file."""
        self._file.close()
        os.replace(self._file.name, self._file.name.removesuffix(".part"))
