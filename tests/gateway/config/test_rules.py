"""Rules that span fields, and that they run where single fields are wrong."""

from __future__ import annotations

import pytest

from gateway.config import ConfigErrors, default_config, loads

BACKENDS = "backends: [{name: a, url: 'http://h:1', models: [m]}]\n"


def problems(text: str, *, head: str = BACKENDS) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(head + text, "f")
    return [str(problem) for problem in caught.value.problems]


def warnings(text: str, *, head: str = BACKENDS) -> list[str]:
    return [str(problem) for problem in loads(head + text, "f").warnings]


def test_off_loopback_needs_a_word_and_the_message_names_it() -> None:
    (problem,) = problems("listen: {host: 0.0.0.0}")
    assert problem.startswith("f:2:16: listen.host: ")
    assert "listen.allow_unauthenticated: true" in problem
    assert loads(BACKENDS + "listen: {host: 0.0.0.0, allow_unauthenticated: true}").listen.host == "0.0.0.0"


def test_admin_stays_on_loopback() -> None:
    (problem,) = problems("admin: {host: 0.0.0.0}")
    assert "admin.host: must be a loopback address" in problem


def test_two_listeners_need_two_ports_unless_free_ones_are_taken() -> None:
    assert "are the same" in problems("admin: {port: 8000}")[0]
    assert default_config(listen={"port": 0}, admin={"port": 0}).admin.port == 0


def test_only_the_memory_store() -> None:
    (problem,) = problems("store: {url: 'redis://h'}")
    assert "store.url: must be memory" in problem


def test_duplicate_backends() -> None:
    head = "backends:\n- {name: a, url: 'http://h:80'}\n- {name: a, url: 'http://H/'}\n- {name: b, url: 'https://h'}\n"
    assert problems("", head=head) == [
        "f:3:10: backends[1].name: duplicate name (also backends[0])",
        "f:3:18: backends[1].url: duplicate url (also backends[0])",
    ]


def test_no_backend_at_all() -> None:
    for head in ("", "backends:\n", "backends: []\n", "listen: {port: 1}\n"):
        assert "backends: at least one backend is needed" in problems("", head=head)[0]


def test_model_names_and_aliases_clash() -> None:
    found = problems("models: [{name: m, aliases: [x]}, {name: x}, {name: y, aliases: [m, y]}]")
    assert [problem.split(": ", 1)[1] for problem in found] == [
        "models[1].name: this name or alias is already taken (by models[0])",
        "models[2].aliases[0]: this name or alias is already taken (by models[0])",
        "models[2].aliases[1]: this name or alias is already taken (by models[2])",
    ]


def test_tokens_need_a_tokenizer_and_bytes_take_none() -> None:
    assert "needs a tokenizer" in problems("models: [{name: m, encoding: tokens}]")[0]
    (problem,) = problems("models: [{name: m, block_size: 32}]")
    assert "models[0].block_size: has no effect with encoding: bytes" in problem


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("url: 'http://h', tls_verify: false", "tls_verify: has no effect on an http url"),
        ("url: 'https://h', tls_verify: false, ca_file: /dev/null", "ca_file: has no effect with tls_verify: false"),
        ("url: 'http://h', api_key: '${A}', api_key_file: b", "api_key and api_key_file are both given"),
    ],
)
def test_knobs_of_a_backend_that_contradict(fields: str, message: str) -> None:
    assert any(message in problem for problem in problems("", head=f"backends: [{{name: a, {fields}}}]"))


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


def test_warnings_do_not_fail() -> None:
    assert warnings("listen: {keep_alive_s: 120}") == []
    (warning,) = warnings("listen: {keep_alive_s: 121}")
    assert warning.startswith("f:2:24: listen.keep_alive_s: idle connections are held for long")
    (warning,) = warnings("", head="backends: [{name: a, url: 'https://h', tls_verify: false}]")
    assert "any certificate is accepted" in warning
