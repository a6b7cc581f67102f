"""Rules of routes and policies."""

from __future__ import annotations

import pytest

from gateway.config import ConfigErrors, loads

BACKENDS = "backends: [{name: a, url: 'http://h:1', models: [m]}]\n"


def problems(text: str, *, head: str = BACKENDS) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(head + text, "f")
    return [str(problem) for problem in caught.value.problems]


def warnings(text: str, *, head: str = BACKENDS) -> list[str]:
    return [str(problem) for problem in loads(head + text, "f").warnings]


def test_routes() -> None:
    text = """routes:
- {name: r, models: [m, mm]}
- {name: r, models: [m]}
- {name: default, models: [m]}
- {name: all}
- {name: late}
"""
    found = [problem.removeprefix("f:") for problem in problems(text)]
    assert found == [
        "3:25: routes[0].models[1]: unknown model (did you mean m?)",
        "4:10: routes[1].name: duplicate name (also routes[0])",
        "4:22: routes[1].models[0]: never reached: routes[0] takes this model",
        "5:10: routes[2].name: the name default is kept for the route without models",
        "5:28: routes[2].models[0]: never reached: routes[0] takes this model",
        "7:3: routes[4]: never reached: routes[3] takes every model (put the route without models last)",
    ]


def test_parameters_belong_to_warm() -> None:
    (problem,) = problems("routes: [{name: r, policy: {name: random, crowd_s: 1}}]")
    assert "routes[0].policy.crowd_s: has an effect only with policy warm" in problem
    text = "routes: [{name: r, models: [m], policy: {live_window_s: 10}}, {name: s}]"
    assert "must be the same as in routes[0]" in problems(text)[0]


def test_sessions_outlive_the_time_that_they_count_as_live() -> None:
    (warning,) = warnings("sessions: {idle_ttl_s: 299}")
    assert warning.startswith("f:2:24: sessions.idle_ttl_s: shorter than live_window_s")
    assert warnings("sessions: {idle_ttl_s: 60}\nroutes: [{name: r, policy: {live_window_s: 60}}]") == []
