from __future__ import annotations

import pytest

from engine.runtime.rates import Rate, Share


def test_rate_is_the_amount_over_the_time_since_work_began() -> None:
    rate = Rate()
    for step in range(10):
        rate.add(100 + step * 0.1, 100 + (step + 1) * 0.1, 5)
    assert rate.per_second(101.0) == pytest.approx(50)


def test_rate_forgets_what_left_the_window() -> None:
    rate = Rate()
    rate.add(0.0, 1.0, 100)
    rate.add(9.0, 10.0, 30)
    assert rate.per_second(10.0) == pytest.approx(30)
    assert rate.per_second(11.0) == pytest.approx(15)
    assert rate.per_second(12.1) == 0


def test_a_long_step_counts_with_the_part_in_the_window() -> None:
    rate = Rate()
    rate.add(0.0, 8.0, 800)
    assert rate.per_second(8.0) == pytest.approx(100)
    assert rate.per_second(9.0) == pytest.approx(50)


def test_share_keeps_the_last_traffic() -> None:
    share = Share()
    assert share.value() == 0
    share.add(0.0, 1, 10)
    share.add(5.0, 3, 4)
    share.add(5.5, 0, 0)
    assert share.value() == pytest.approx(0.75)
