from __future__ import annotations

import pytest

from gateway.limits import RequestLimits
from vocabulary.errors import BodyTooLarge


def test_the_limit_itself_is_allowed_and_the_text_names_the_knob() -> None:
    limits = RequestLimits(100, 3, frozenset({503}))
    limits.check_body_size(100)
    with pytest.raises(BodyTooLarge, match=r"listen\.max_body_mb allows \(100 bytes\)"):
        limits.check_body_size(101)


def test_more_is_drained_than_allowed_but_not_much_more() -> None:
    limits = RequestLimits(100, 3, frozenset())
    assert limits.max_body_bytes < limits.max_drained_bytes <= 1000
