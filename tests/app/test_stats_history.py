"""What the dashboard keeps of the engine's figures, and what it holds them against."""

import math

import pytest

from app.core import residency_view, units
from app.core.ceilings import Ceilings
from app.core.residency_view import ResidencyView
from app.core.stats_history import FIGURES, StatsHistory, describe
from engine.messages import Stats


def test_a_curve_is_cut_by_time_not_by_samples() -> None:
    history = StatsHistory(100)
    for at in (0, 10, 20, 30, 31, 32):  # hidden at first: a sample in ten seconds
        history.add(at, Stats(decode_tokens_per_s=at))
    curve = history.recent("decode_tokens_per_s", 12)
    assert curve.times == curve.values == (20, 30, 31, 32)
    assert history.highest("decode_tokens_per_s") == 32


def test_the_span_grows_with_what_there_is() -> None:
    history = StatsHistory()
    spans = []
    for at in range(400):
        history.add(at, Stats())
        spans.append(history.span())
    assert spans == sorted(spans)
    assert (spans[60], spans[61], spans[120], spans[121], spans[-1]) == (60, 120, 120, 300, 300)


def test_what_is_not_known_is_no_number() -> None:
    history = StatsHistory()
    history.add(1, Stats())
    history.add(2, Stats(ttft_s=0.5, expert_misses=1))
    first, second = history.recent("ttft_s", 60).values
    assert math.isnan(first) and second == 0.5
    first, second = history.recent("expert_hit_rate", 60).values
    assert math.isnan(first) and second == 0
    assert history.highest("ttft_s") == 0.5
    _, row, _ = history.table().csv().splitlines()
    assert row.split(",")[1 + FIGURES.index("ttft_s")] == ""


def test_a_clock_that_is_set_back_begins_anew() -> None:
    history = StatsHistory()
    for at in (100, 101, 50):
        history.add(at, Stats())
    assert history.recent("ttft_s", 60).times == (50,)


def test_only_the_newest_are_kept() -> None:
    history = StatsHistory(10)
    for at in range(1000):
        history.add(at, Stats(steps=at))
    assert len(history) == len(history.table().times) == 10


def test_every_figure_has_words() -> None:
    assert {name: describe(name)(0.25) for name in ("expert_hit_rate", "ttft_s")} == {
        "expert_hit_rate": "25.0 %",
        "ttft_s": "250 ms",
    }
    assert describe("link_bytes_per_s")(2e9) == "2.00 GB/s"
    assert describe("gather_us_per_step")(840.0) == "840 µs"
    assert describe("expert_hits")(12.0) == "12"
    assert all(hasattr(Stats(), name) and describe(name)(1.0) for name in FIGURES)


def test_ceilings_are_of_one_engine() -> None:
    ceilings = Ceilings()
    ceilings.take(Stats(runtime_pid=1, link_bytes_per_s=3, gather_bytes_per_s=9))
    ceilings.take(Stats(runtime_pid=1, link_bytes_per_s=5, host_bytes_per_s=4))
    assert (ceilings.link, ceilings.host) == (9, 4)
    ceilings.take(Stats(runtime_pid=2, link_bytes_per_s=1))
    assert (ceilings.link, ceilings.host) == (1, 0)


@pytest.mark.parametrize(
    ("value", "end"), [(0, 0), (0.7, 0.8), (1, 1), (69.4, 80), (84, 100), (201, 300)]
)
def test_scales_end_at_round_numbers(value: float, end: float) -> None:
    assert units.round_up(value) == pytest.approx(end)


class TestResidency:
    def test_it_is_read(self) -> None:
        body = b'{"experts": 4, "generation": 2, "layers": [{"layer": 1, "resident": [0, 3]}]}'
        view = residency_view.parse(body)
        assert view == ResidencyView(4, (1,), ((0, 3),))
        assert view.picture() == bytes([255, 0, 0, 255])
        assert residency_view.parse(b'{"experts": 0, "layers": []}') == ResidencyView()

    @pytest.mark.parametrize(
        "body",
        [b"", b"[]", b'{"experts": 4, "layers": [{"layer": 1, "resident": [4]}]}'],
    )
    def test_what_is_none_is_refused(self, body: bytes) -> None:
        with pytest.raises(ValueError, match="residency|expert"):
            residency_view.parse(body)
