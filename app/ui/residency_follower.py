"""Asks the engine which experts have slots, now and then, while somebody can see the answer."""

from __future__ import annotations

import logging

from PySide6.QtCore import QObject, QTimer

from app.core import residency_view
from app.core.residency_view import ResidencyView
from app.core.supervisor import Phase
from app.ui.engine_service import EngineService
from app.ui.http import Answer
from app.ui.widgets.residency_card import ResidencyCard

log = logging.getLogger(__name__)

PACE_MS = 2_000
"""The runtime answers between two steps and reads its tables back for it."""


class ResidencyFollower(QObject):
    def __init__(self, engine: EngineService, card: ResidencyCard, parent: QObject) -> None:
        super().__init__(parent)
        self._engine = engine
        self._card = card
        self._asked = False
        self._timer = QTimer(self)
        self._timer.setInterval(PACE_MS)
        self._timer.timeout.connect(self.look)
        engine.view_changed.connect(self._engine_changed)

    def set_watched(self, watched: bool) -> None:
        """Whether the card's page is on screen."""
        if watched and not self._timer.isActive():
            self._timer.start()
            self.look()
        elif not watched:
            self._timer.stop()

    def look(self) -> None:
        """Ask, unless nothing would be seen of the answer, or one is still to come."""
        stats = self._engine.stats
        ready = self._engine.view.phase is Phase.READY and stats.expert_slots > 0
        scrolled_away = self._card.isVisible() and self._card.visibleRegion().isEmpty()
        if not ready or self._asked or scrolled_away:
            return
        self._asked = True
        asked_of = self._engine.endpoint

        def answered(answer: Answer) -> None:
            self._asked = False
            if not answer.ok or asked_of != self._engine.endpoint:
                return  # it may be busy with a long step: what is shown stays
            try:
                self._card.show_residency(residency_view.parse(answer.body))
            except ValueError as error:
                log.warning("%s answers strangely: %s", asked_of, error)

        self._engine.ask_for_residency(answered)

    def _engine_changed(self) -> None:
        if self._engine.view.phase is not Phase.READY:
            self._card.show_residency(ResidencyView())
        elif self._timer.isActive():
            self.look()
