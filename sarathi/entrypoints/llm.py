"""LLM: a model and a list of prompts, for scripts and notebooks. A thin layer over LLMEngine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from sarathi.config import system_config_from
from sarathi.entrypoints.llm_engine import LLMEngine
from sarathi.errors import shown
from sarathi.request import Request, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from sarathi.executor.local import LocalParts

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model that answers lists of prompts; all of them run together, under the scheduler that is chosen.

    Args:
        model: known name ("smollm2"), Hugging Face folder or GGUF file.
        parts: a model that is loaded already, as LLMEngine takes it.
        settings: any setting by its field's name (`chunk_size=256, dtype="float32", num_threads=2`), and
            `scheduler` and `executor` by type (`scheduler="aging"`; executor "local" if not given).

    Raises ValueError in one line for a setting that is unknown or makes no sense.
    """

    def __init__(self, model: str, *, parts: LocalParts | None = None, **settings: Any) -> None:
        self.llm_engine = LLMEngine(system_config_from(model, settings), parts)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts (texts, or lists of token ids); one output for each, in their order.

        Args:
            sampling_params: one for all, or one for each; None is SamplingParams().

        A prompt that can never run gives an output with finish_reason "ignored" and its reason in `error`.
        """
        return self._run(
            [
                {"prompt": prompt} if isinstance(prompt, str) else {"prompt": None, "prompt_token_ids": prompt}
                for prompt in _listed(prompts)
            ],
            sampling_params,
        )

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations: each a list of messages, {"role": ..., "content": ...}; one alone may stand bare.

        The prompt is what the model's chat template makes of it, with the start of an answer at its end.
        Raises ValueError for a model without a chat template.
        """
        if not isinstance(conversations, (list, tuple)):
            raise ValueError(
                f"chat: {shown(conversations)} is not allowed; a list of messages, or a list of such lists"
            )
        if conversations and isinstance(conversations[0], Mapping):
            conversations = [conversations]  # pyright: ignore[reportAssignmentType]  # now a list of lists
        tokenizer = self.llm_engine.tokenizer
        if tokenizer is None:
            raise ValueError("chat: the model has no tokenizer here, so no chat template either")
        prompts = [
            {"prompt": None, "prompt_token_ids": tokenizer.apply_chat_template(conversation)}  # pyright: ignore[reportArgumentType]
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params)

    def _run(
        self,
        prompts: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[RequestOutput]:
        if isinstance(sampling_params, SamplingParams) or sampling_params is None:
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if not isinstance(sampling_params, (list, tuple)):
            raise ValueError(
                f"sampling_params: {shown(sampling_params)} is not allowed; SamplingParams, or a list of them"
            )
        if len(sampling_params) != len(prompts):
            raise ValueError(
                f"sampling_params: {len(sampling_params)} for {len(prompts)} prompts; one for all, or one for each"
            )
        llm_engine = self.llm_engine
        # All are made before the first is queued, so that a bad one leaves none behind.
        requests: list[Request] = [
            llm_engine.make_request(**prompt, sampling_params=params)
            for prompt, params in zip(prompts, sampling_params, strict=True)
        ]
        added: list[Request] = []
        try:
            for request in requests:
                llm_engine.engine.add(request)
                added.append(request)
            while llm_engine.engine.has_unfinished_requests():
                llm_engine.run_round()
        except BaseException:  # Ctrl-C too: the next call starts with an empty engine
            for request in added:
                llm_engine.abort_request(request.request_id)
                llm_engine.outputs.forget(request)
            raise
        llm_engine.system.scheduler.blocks.check_all_free()
        return [llm_engine.outputs.make_output(request) for request in requests]

    def shutdown(self) -> None:
        """End the workers, if there are any, and write out the metrics, where a folder for them is set.

        The LLM cannot be used after it.
        """
        self.llm_engine.shutdown()


def _listed(prompts: Any) -> Sequence[Prompt]:
    """One prompt, a text or a list of token ids, as a list of one."""
    if hasattr(prompts, "tolist"):  # arrays of numpy and torch
        prompts = prompts.tolist()
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (list, tuple)):
        return [prompts] if prompts and isinstance(prompts[0], Integral) else prompts
    raise ValueError(f"prompts: {shown(prompts)} is not allowed; a text or a list of token ids, or a list of such")
