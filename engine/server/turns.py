"""One answer in a conversation: from what every chat protocol asks for to what is generated."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.requests import Request

from engine.chat.conversation import Message
from engine.chat.structured import (
    AnswerFormat,
    compiled_beside,
    enforced_calls,
    structured_answer,
)
from engine.chat.templates import Ending
from engine.chat.text_model import ChatPrompt, TextModel
from engine.messages import Ready, Sampling
from engine.server.generation import Generation
from engine.server.text_work import TextWork
from engine.server.tool_use import NO_TOOLS, ToolUse


@dataclass(frozen=True, kw_only=True)
class Turn:
    messages: list[Message]
    sampling: Sampling
    max_tokens: int | None = None
    """An upper bound: more than the context holds is no fault. None: all that it holds."""
    tools: ToolUse = NO_TOOLS
    variables: dict[str, Any] = field(default_factory=dict)
    """Of the model's template."""
    ending: Ending = "answer"
    """Where the prompt ends."""
    thinking_tokens: int | None = None
    """Most tokens of thinking."""
    wanted: AnswerFormat | None = None
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int = -1


async def rendered(
    work: TextWork,
    request: Request,
    text: TextModel,
    messages: list[Message],
    tools: ToolUse,
    variables: dict[str, Any],
    context_tokens: int,
    ending: Ending = "answer",
) -> ChatPrompt:
    """The prompt of a turn. Raises InvalidRequest, and PromptTooLong."""
    return await work.run(
        request,
        text.chat_prompt,
        messages,
        context_tokens=context_tokens,
        variables=variables,
        tools=list(tools.offered) or None,
        ending=ending,
    )


async def prepared(
    work: TextWork, request: Request, text: TextModel, ready: Ready, turn: Turn
) -> Generation:
    """Raises InvalidRequest, and PromptTooLong."""
    tools = turn.tools
    prompt = await rendered(
        *(work, request, text, turn.messages, tools, turn.variables),
        *(ready.context_tokens, turn.ending),
    )
    room = ready.context_tokens - len(prompt.tokens)
    parser = partial(
        text.speaking(tools=bool(tools.callable)).parser,
        tools.callable,
        text.tokenizer.special,
        thinking=prompt.thinking == "opened",
    )
    held = tools.enforced or turn.wanted is not None
    beside = await work.run(
        *(request, partial(compiled_beside, enforced=held)),
        *(tools.callable, text.tokenizer.special),
    )
    return Generation(
        prompt=prompt.tokens,
        max_tokens=room if turn.max_tokens is None else min(turn.max_tokens, room),
        sampling=turn.sampling,
        stop_tokens=() if turn.ignore_eos else text.end_tokens,
        stop_strings=turn.stop_strings,
        logprobs=turn.logprobs,
        # Without calls and without reasoning output is text as it comes.
        parser=parser if text.thinks or tools.callable else None,
        grammar=await work.run(request, _grammar, text, turn, prompt) if held else "",
        thinking=text.thinking_budget(prompt, turn.thinking_tokens, tools.callable),
        compiled_beside=beside,
        one_call=not tools.several,
        only_calls=tools.enforced,
    )


def _grammar(text: TextModel, turn: Turn, prompt: ChatPrompt) -> str:
    """Of a turn whose answer is held to a format or to calls. Raises InvalidRequest."""
    tools, several = turn.tools.callable, turn.tools.several
    family, special = text.speaking(tools=bool(tools)), text.tokenizer.special
    if turn.wanted is None or turn.tools.enforced:
        return enforced_calls(family, tools, special, prompt.thinking, several=several)
    return structured_answer(family, turn.wanted, special, prompt.thinking, tools, several=several)
