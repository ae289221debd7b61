"""Models for the interface: what lies on disk, what this PC is, and whether each model fits it.

Everything here that touches disk, GPU or hub runs in a thread; the outcome comes as a signal.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, Signal

from app.core import fit_command
from app.core.catalog import Entry, catalog
from app.core.downloads import layout, library, token
from app.core.downloads.errors import DownloadError
from app.core.downloads.library import Folder, Library, Model
from app.core.downloads.records import Fault, LookUp, Network, Planned, Request
from app.core.settings import Settings
from app.ui import hub_question
from app.ui.background import Background
from app.ui.child import Child
from app.ui.hub_question import HubQuestion
from engine import child_process, paths
from engine.errors import HeadraceError, told
from engine.formats.model_files import inspect_model
from engine.memory.fit import Fit, fit
from engine.memory.model_facts import ModelFacts
from engine.memory.pc import Pc, this_pc
from engine.messages import Stats
from engine.models.facts import facts_of_files
from engine.options import EngineOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Judged:
    """What is known of one model here: an estimate, or a sentence on why there is none."""

    fit: Fit | None = None
    facts: ModelFacts | None = None
    problem: str = ""


@dataclass(frozen=True)
class Look:
    """One look at this PC and its models."""

    pc: Pc
    folders: tuple[Folder, ...] = ()
    models: dict[str, Judged] = field(default_factory=dict)
    """By path, the bundled model's too."""
    entries: dict[str, Judged] = field(default_factory=dict)
    """By repository, of the catalog."""
    complete: bool = True
    """Else the folders are as they were seen last, since some may take long to look at."""


@dataclass(frozen=True)
class Found:
    """What the hub says of a request."""

    request: Request
    planned: Planned
    judged: Judged


class ModelService(QObject):
    looked = Signal(object)
    """Look, each time that `refresh` was asked for."""
    found = Signal(object)
    """Found, the answer to `look_up`."""
    refused = Signal(object, object)
    """Request and Fault: `look_up` has failed."""
    waiting = Signal(object, str)
    """Request, and why the hub has to be asked once more."""
    deleted = Signal(object, object)
    """Model and Deletion."""
    measuring = Signal(bool)
    failed = Signal(str)
    """A sentence: something that was asked for could not be done."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        stats: Callable[[], Stats],
        network: Network | None = None,
        parent: QObject | None = None,
    ) -> None:
        """`stats` are the engine's, whose memory is free for the model that comes after."""
        super().__init__(parent)
        self._settings = settings
        self._stats = stats
        self._network = network or Network()
        self._background = Background(self)
        self._bench: Child | None = None
        self._question: HubQuestion | None = None
        self._looking = self._again = False
        self._look: Look | None = None

    @property
    def look(self) -> Look | None:
        """The last one; None before the first is done."""
        return self._look

    def refresh(self) -> None:
        """Look anew; while a look is under way, once more after it."""
        if self._looking:
            self._again = True
            return
        self._looking = True
        settings, stats = self._settings(), self._stats()
        if self._look is None:
            self._background.run(
                lambda: _glance(settings, stats), self._have_glanced, self._cannot_look
            )
        self._background.run(
            lambda: _look_around(settings, stats), self._have_looked, self._cannot_look
        )

    def look_up(self, request: Request) -> None:
        """Ask the hub what a request comes to, and judge it. An earlier question is given up."""
        self._give_up_question()
        task = LookUp(
            request=request,
            network=self._network,
            pace=hub_question.PACE,
            read=fit_command.CONFIGS,
        )
        question = self._question = HubQuestion(task, self)
        question.answered.connect(lambda planned: self._answered(request, planned))
        question.refused.connect(lambda fault: self.refused.emit(request, fault))
        question.waiting.connect(lambda reason: self.waiting.emit(request, reason))

    def _answered(self, request: Request, planned: Planned) -> None:
        settings, pc = self._settings(), self._look.pc if self._look is not None else None

        def work() -> Found:
            known = planned
            if not known.free:  # the folder is not there yet: its disk is
                known = msgspec.structs.replace(known, free=_free(layout.root_of(request)))
            return Found(request, known, _judge_repository(request, known, settings, pc))

        def failed(error: Exception) -> None:
            self.refused.emit(request, _fault(error))

        self._background.run(work, self.found.emit, failed)

    def _give_up_question(self) -> None:
        if self._question is not None:
            self._question.close()
            self._question = None

    def plan_deletion(self, model: Model, then: Callable[[library.Deletion], None]) -> None:
        """What deleting would do."""
        self._background.run(lambda: library.deletion(model), then, self._tell)

    def delete(self, model: Model) -> None:
        def done(deletion: library.Deletion) -> None:
            self.deleted.emit(model, deletion)
            self.refresh()

        def failed(error: Exception) -> None:
            self._tell(error)
            self.refresh()

        self._background.run(lambda: Library().delete(model), done, failed)

    def save_token(self, text: str, then: Callable[[], None]) -> None:
        self._background.run(lambda: token.save_token(text), lambda _: then(), self._tell)

    def measure(self) -> None:
        """Measure this PC's rates, which the engine's bench keeps; then look anew."""
        if self._bench is not None:
            return
        todo = [["host", "--formats", "nvfp4", "--rounds", "3"]]
        if self._look is not None and self._look.pc.gpu is not None:
            todo.append(["link"])
        self.measuring.emit(True)
        self._measure_next(todo)

    def _measure_next(self, todo: list[list[str]]) -> None:
        if not todo:
            self._bench = None
            self.measuring.emit(False)
            self.refresh()
            return

        def ended(reason: str) -> None:
            process = bench.process
            bench.deleteLater()
            if not reason and process.exitCode() == 0:
                self._measure_next(todo[1:])
                return
            said = bytes(process.readAllStandardError().data()).decode(errors="replace").strip()
            last = reason or (said.splitlines()[-1] if said else "it ended without a word.")
            self.failed.emit(f"This PC could not be measured: {last}")
            self._measure_next([])

        command = (*child_process.module("engine.cli"), "bench", *todo[0])
        bench = self._bench = Child(command, lambda _: None, ended, self)
        bench.start()

    def close(self) -> None:
        self._give_up_question()
        if self._bench is not None:
            self._bench.close()
        self._background.close()

    def _have_glanced(self, look: Look) -> None:
        if self._look is None:
            self._look = look
            self.looked.emit(look)

    def _have_looked(self, look: Look) -> None:
        self._looking = False
        self._look = look
        self.looked.emit(look)
        if self._again:
            self._again = False
            self.refresh()

    def _cannot_look(self, error: Exception) -> None:
        self._looking = False
        self._tell(error)

    def _tell(self, error: Exception) -> None:
        fault = _fault(error)
        self.failed.emit(told(fault.message, fault.hint))


# --- in threads ----------------------------------------------------------------------------------


def roots(settings: Settings) -> list[Path]:
    """The folders in which models are looked for."""
    return [layout.hub_cache(), *(Path(folder) for folder in settings.model_folders)]


def _glance(settings: Settings, stats: Stats) -> Look:
    """What can be said without looking at the folders."""
    pc = _with_engine_s_memory(this_pc(), stats)
    entries = {entry.repo: _judge_entry(entry, settings, pc) for entry in catalog().models}
    return Look(pc, Library().remembered(roots(settings)), {}, entries, complete=False)


def _look_around(settings: Settings, stats: Stats) -> Look:
    pc = _with_engine_s_memory(this_pc(), stats)
    folders = Library().scan(roots(settings))
    paths_ = [str(paths.demo_model())]
    paths_ += [model.path for folder in folders for model in folder.models]
    models = {path: _judge_files(Path(path), settings, pc) for path in paths_}
    entries = {entry.repo: _judge_entry(entry, settings, pc) for entry in catalog().models}
    return Look(pc, folders, models, entries)


def _free(folder: Path) -> int:
    """Bytes free on the disk where the folder is, or will be."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    return shutil.disk_usage(there).free


def _with_engine_s_memory(pc: Pc, stats: Stats) -> Pc:
    """What the running engine holds is free for the model that follows its own."""
    held = sum(
        (
            stats.vram_dense_bytes,
            stats.vram_expert_bytes,
            stats.vram_kv_bytes,
            stats.vram_snapshot_bytes,
            stats.vram_workspace_bytes,
        )
    )
    pc = replace(pc, ram_free=min(pc.ram_total, pc.ram_free + stats.ram_runtime_bytes))
    if pc.gpu is not None and stats.device == "cuda":
        free = min(pc.gpu.vram_total, pc.gpu.vram_free + held)
        pc = replace(pc, gpu=replace(pc.gpu, vram_free=free))
    return pc


def _judge_files(path: Path, settings: Settings, pc: Pc) -> Judged:
    try:
        return _judge(facts_of_files(inspect_model(path)), settings, pc)
    except HeadraceError as error:
        return Judged(problem=error.message)
    except OSError as error:
        return Judged(problem=f"{path} cannot be read: {error}.")


def _judge_entry(entry: Entry, settings: Settings, pc: Pc) -> Judged:
    return _judge(catalog().facts(entry), settings, pc)


def _judge_repository(
    request: Request, planned: Planned, settings: Settings, pc: Pc | None
) -> Judged:
    entry = catalog().find(request.repo)
    try:
        if entry is not None and not planned.texts:
            facts = catalog().facts(entry)
        else:
            facts = fit_command.facts_of_texts(request.repo, planned.texts)
    except HeadraceError as error:
        return Judged(problem=error.message)
    except ValueError as error:
        return Judged(problem=f"{request.repo} describes itself in no JSON: {error}.")
    return _judge(facts, settings, pc or this_pc())


def _judge(facts: ModelFacts, settings: Settings, pc: Pc) -> Judged:
    options = EngineOptions(
        model="",
        device=settings.device,
        moe_cache_rate=settings.moe_cache_rate,
        context_tokens=min(settings.context_tokens, facts.spec.context_tokens),
    )
    return Judged(fit=fit(facts, pc, options), facts=facts)


def _fault(error: Exception) -> Fault:
    if isinstance(error, DownloadError):
        return error.fault
    if isinstance(error, HeadraceError):
        return Fault(code="other", message=error.message, hint=error.hint)
    log.error("unexpected", exc_info=error)
    return Fault(code="other", message=f"This could not be done: {error}.")
