"""Rules in general: that they run where single fields are wrong, and what belongs to no section alone."""

from __future__ import annotations

import pytest

from gateway.config import ConfigErrors, loads

BACKENDS = "backends: [{name: a, url: 'http://h:1', models: [m]}]\n"


def problems(text: str, *, head: str = BACKENDS) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(head + text, "f")
    return [str(problem) for problem in caught.value.problems]


def test_only_the_memory_store() -> None:
    (problem,) = problems("store: {url: 'redis://h'}")
    assert "store.url: must be memory" in problem


def test_interpolation_is_for_secrets_only() -> None:
    (problem,) = problems("", head="backends: [{name: a, url: 'http://${HOST}:1'}]")
    assert "environment variables are read only in secrets" in problem or "not a readable" in problem
    (problem,) = problems("models: [{name: '${MODEL}'}]")
    assert "f:2:17: models[0].name: environment variables are read only in secrets" in problem


def test_rules_run_although_fields_are_wrong() -> None:
    found = problems("listen: {host: 0.0.0.0, port: x}\nstore: {url: redis}\nroutes: [{name: R, models: [nope]}]")
    assert [problem.split(": ")[1] for problem in found] == [
        "listen.host", "listen.port", "store.url", "routes[0].name", "routes[0].models[0]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["listen: 1", "backends: 1", "backends: [1]", "models: {a: 1}", "routes: [{models: 1}]"]
)
def test_rules_skip_what_has_the_wrong_shape(text: str) -> None:
    assert problems(text, head="" if text.startswith("backends") else BACKENDS)


def test_interpolation_is_reported_once_and_the_hint_names_where_it_works() -> None:
    (problem,) = problems("health: {path: '${P}'}")
    assert problem.startswith("f:2:16: health.path: environment variables are read only in secrets (")
    assert "(api_key, api_keys, secret, token)" in problem
