from __future__ import annotations

from backends.health import Health, HealthPolicy, State


def make_health(**policy: float) -> Health:
    health = Health(HealthPolicy(**policy))  # type: ignore[arg-type]
    health.probe_passed()
    return health


def test_takes_no_traffic_before_the_first_probe_passed() -> None:
    health = Health(HealthPolicy())
    assert not health.admits(0.0)
    assert health.probe_passed()
    assert health.admits(0.0)


def test_goes_down_after_the_threshold_and_back_after_the_other() -> None:
    health = make_health(fail_threshold=3, pass_threshold=2)
    assert [health.probe_failed(t, 0.0) for t in (1.0, 2.0, 3.0)] == [False, False, True]
    assert health.state is State.DOWN
    assert [health.probe_passed() for _ in range(2)] == [False, True]
    assert health.admits(9.0)


def test_a_refused_connection_takes_it_out_at_once() -> None:
    health = make_health(fail_threshold=3)
    assert health.probe_failed(1.0, 10.0, refused=True)
    assert health.state is State.DOWN


def test_o61_recent_success_counts_as_life_while_probes_are_slow() -> None:
    health = make_health(fail_threshold=1)
    health.request_succeeded(10.0)
    assert not health.probe_failed(12.0, grace_s=5.0)
    assert health.state is State.UP
    assert health.probe_failed(16.0, grace_s=5.0)


class Request:
    """One on the backend, as health sees it."""

    def __init__(self) -> None:
        self.open = True


def test_ejection_trial_and_return() -> None:
    health = make_health(eject_after_failures=3, eject_s=10)
    assert [health.request_failed(0.0) for _ in range(3)] == [False, False, True]
    assert health.state is State.EJECTED
    assert not health.admits(9.9)
    assert health.retry_in_s(4.0) == 6.0
    assert health.admits(10.0)
    assert health.admits(10.0), "until somebody goes"
    health.try_with(Request())
    assert not health.admits(10.0), "one trial at a time"
    assert health.request_succeeded(11.0)
    assert health.admits(11.0)


def test_a_trial_that_ends_without_a_verdict_makes_room_for_another() -> None:
    health = make_health(eject_after_failures=1, eject_s=10)
    health.request_failed(0.0)
    assert health.admits(10.0)
    first, second = Request(), Request()
    health.try_with(first)
    health.try_with(second)
    second.open = False
    assert not health.admits(10.0), "the first one is on trial"
    first.open = False
    assert health.admits(10.0)


def test_what_ran_before_the_ejection_does_not_fail_the_trial() -> None:
    health = make_health(eject_after_failures=1, eject_s=10)
    old = Request()
    health.request_failed(0.0, old)
    assert health.admits(10.0)
    trial = Request()
    health.try_with(trial)
    assert not health.request_failed(10.5, Request())
    assert health.state is State.TRIAL
    assert health.request_failed(11.0, trial)
    assert not health.admits(30.9), "out for twice as long"
    assert health.admits(31.0)


def test_a_new_policy_counts_on_from_where_it_is() -> None:
    health = make_health(eject_after_failures=5, fail_threshold=5)
    health.request_failed(0.0)
    health.probe_failed(0.0, 0.0)
    health.set_policy(HealthPolicy(eject_after_failures=2, fail_threshold=2, eject_s=1))
    assert health.request_failed(0.0)
    assert health.admits(1.0)
    assert health.probe_failed(1.0, 0.0)


def test_a_failed_trial_doubles_the_ejection_up_to_the_bound() -> None:
    health = make_health(eject_after_failures=1, eject_s=10, eject_max_s=25)
    health.request_failed(0.0)
    assert health.admits(10.0)
    health.request_failed(10.0)
    assert not health.admits(29.9)
    assert health.admits(30.0)
    health.request_failed(30.0)
    assert not health.admits(54.9)
    assert health.admits(55.0)


def test_success_in_between_resets_the_count() -> None:
    health = make_health(eject_after_failures=2)
    for _ in range(10):
        assert not health.request_failed(0.0)
        health.request_succeeded(0.0)
    assert health.state is State.UP


def test_late_failures_of_an_ejected_backend_do_not_lengthen_its_ejection() -> None:
    health = make_health(eject_after_failures=1, eject_s=10)
    health.request_failed(0.0)
    for t in range(1, 9):
        assert not health.request_failed(float(t))
    assert health.admits(10.0)
