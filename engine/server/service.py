"""What the endpoints work with: one model's text side, its runtime, and who is being served."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from engine.chat.model_files import ModelPlace
from engine.chat.text_model import TextModel, load_text_model
from engine.errors import HeadraceError, ModelFilesError, ModelNotFound
from engine.messages import Ready, Stats
from engine.server.runtime_link import RuntimeLink
from engine.server.text_work import TextWork


def _load(place: ModelPlace, family: str) -> TextModel:
    """Missing and broken files are found here, seconds before the runtime has torch imported."""
    from engine.formats.model_files import inspect_model  # numpy: not while the server starts

    inspect_model(place.path)
    text = load_text_model(place, family)
    if text.template is not None:
        _ = text.template.reasoning  # found now, so that no request waits for it
    return text


class Service:
    def __init__(
        self, place: ModelPlace, asked_for: str, link: RuntimeLink, tool_parser: str = ""
    ) -> None:
        """`asked_for`: what the person called the model, which clients may call it too.
        `tool_parser`: how the model writes reasoning and calls; "" means as its template does."""
        self.place = place
        self._names = (place.name, asked_for)
        self.link = link
        self._tool_parser = tool_parser
        self.created = int(time.time())
        self.stopping = asyncio.Event()
        """Set when the server ends: endless streams close."""
        self.prompts = TextWork("prompt", threads=4)
        self.counts = TextWork("count", threads=2)
        """Apart from prompts: who only wants a number keeps nobody from an answer."""
        self.serving = 0
        self.last_served = time.monotonic()
        self._text: TextModel | None = None
        self._loading: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.place.name

    def start(self) -> None:
        self.link.start()
        self._loading = asyncio.create_task(self._load_text())

    async def close(self) -> None:
        self.stopping.set()
        self.prompts.close()
        self.counts.close()
        await self.link.close()
        if self._loading is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._loading

    async def _load_text(self) -> None:
        try:
            self._text = await asyncio.to_thread(_load, self.place, self._tool_parser)
            self.link.vocabulary = self._text.vocabulary
        except HeadraceError as error:
            self.link.fail(error.record())
        except Exception as error:  # noqa: BLE001 - a file broken in a way nobody thought of
            self.link.fail(
                ModelFilesError(f"{self.place.path}: the tokenizer did not load: {error}").record()
            )

    @property
    def efforts(self) -> list[str]:
        """How much the model can be told to reason; [] while that is not known."""
        return self._text.efforts if self._text is not None else []

    @property
    def text_ready(self) -> bool:
        return self._text is not None

    async def text(self) -> TextModel:
        """The text side, once it is there. Raises RuntimeUnavailable when it cannot be."""
        if self._text is None and self._loading is not None:
            await asyncio.shield(self._loading)
        if self._text is None:
            raise self.link.unavailable()
        return self._text

    async def ready(self) -> tuple[TextModel, Ready]:
        """Raises RuntimeUnavailable (with progress, while loading)."""
        ready = self.link.ready
        if self.link.state != "ready" or ready is None:
            raise self.link.unavailable()
        return await self.text(), ready

    def check_model(self, name: str) -> None:
        """Raises ModelNotFound when a request names another model than the one that is served."""
        if name not in self._names:
            raise ModelNotFound(
                f"The model {name!r} is not served here; {self.name!r} is.", param="model"
            )

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Around every request that uses the model: a served client keeps the server alive."""
        self.serving += 1
        try:
            yield
        finally:
            self.serving -= 1
            self.last_served = time.monotonic()

    def stats(self) -> Stats:
        return self.link.stats(self.name)
