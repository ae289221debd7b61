"""What clients of OpenAI's plain completions send."""

from __future__ import annotations

from typing import ClassVar

from engine.errors import InvalidRequest
from engine.server.bodies import in_range
from engine.server.choices import MAX_CHOICES
from engine.server.openai_common import MAX_TOP_LOGPROBS, CommonFields

Prompt = str | list[int]


class CompletionRequest(CommonFields, kw_only=True):
    least_max_tokens: ClassVar[int] = 0

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool = False
    suffix: str = ""
    best_of: int | None = None

    def check(self) -> None:
        """Raises InvalidRequest naming the field."""
        self.check_common()
        self.wanted()
        in_range(self.logprobs, "logprobs", 0, MAX_TOP_LOGPROBS)
        if self.suffix:
            raise InvalidRequest("suffix is not supported.", param="suffix")
        if self.best_of not in (None, self.n):
            raise InvalidRequest(
                f"best_of {self.best_of} is not supported; all {self.n} answers (n) are returned.",
                param="best_of",
            )
        if self.echo and self.logprobs is not None:
            raise InvalidRequest(
                "logprobs of an echoed prompt are not supported: only what is generated has them.",
                hint="Leave out echo or logprobs.",
                param="echo",
            )

    def prompts(self, vocab_size: int) -> list[Prompt]:
        """Each prompt as text or token ids. Raises InvalidRequest."""
        given = self.prompt
        if isinstance(given, str):
            prompts: list[Prompt] = [given]
        elif given and all(isinstance(item, int) for item in given):
            prompts = [[item for item in given if isinstance(item, int)]]
        else:
            prompts = [item for item in given if not isinstance(item, int)]
            if len(prompts) < len(given):
                raise InvalidRequest("prompt mixes token ids with other prompts.", param="prompt")
        if not prompts:
            raise InvalidRequest("prompt is an empty list.", param="prompt")
        if len(prompts) * self.n > MAX_CHOICES:
            raise InvalidRequest(
                f"{len(prompts)} prompts with n = {self.n} are {len(prompts) * self.n} answers, "
                f"at most {MAX_CHOICES}.",
                param="prompt",
            )
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                where = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
                in_vocabulary(prompt, vocab_size, where, "prompt")
        return prompts


def in_vocabulary(tokens: list[int], vocab_size: int, where: str, param: str) -> None:
    """Raises InvalidRequest naming the first id that is no token."""
    for index, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"{where}[{index}] is {token}; the vocabulary ends at {vocab_size - 1}.",
                param=param,
            )
