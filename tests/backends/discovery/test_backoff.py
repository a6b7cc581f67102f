from __future__ import annotations

import random

from backends.discovery.backoff import Backoff


def test_grows_to_a_limit_and_starts_over() -> None:
    backoff = Backoff(random.Random(1), least_s=1.0, most_s=8.0)
    waits = [backoff.next_s() for _ in range(40)]
    for wait, longest in zip(waits, [1, 2, 4, 8, 8, 8], strict=False):
        assert longest / 2 <= wait <= longest
    assert all(4 <= wait <= 8 for wait in waits[3:])
    backoff.reset()
    assert backoff.next_s() <= 1


def test_two_gateways_do_not_come_back_in_step() -> None:
    one, other = Backoff(random.Random(1)), Backoff(random.Random(2))
    assert [one.next_s() for _ in range(5)] != [other.next_s() for _ in range(5)]
