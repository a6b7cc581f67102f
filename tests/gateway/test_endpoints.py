"""Which requests reach a backend, and which never do."""

from __future__ import annotations

import pytest

from gateway.endpoints import Endpoints, dialect_of, response_id


def name(endpoints: Endpoints, method: str, path: str) -> str | None:
    endpoint = endpoints.find(method.encode(), path.encode("latin-1"))
    return None if endpoint is None else endpoint.name


@pytest.mark.parametrize("path", Endpoints().paths)
def test_built_in_paths_take_post_only(path: str) -> None:
    endpoints = Endpoints()
    assert name(endpoints, "POST", path) is not None
    assert endpoints.methods(path.encode()) == ("POST",)
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"):
        assert name(endpoints, method, path) is None
    for other in (path + "/", path + "x", path.upper(), path[:-1], "/" + path, path.replace("/v1/", "/v1//")):
        assert name(endpoints, "POST", other) is None, other


def test_only_prompts_are_matched() -> None:
    with_prompt = {path for path in Endpoints().paths if Endpoints().find(b"POST", path.encode()).prompt}  # type: ignore[union-attr]
    assert with_prompt == {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}


def test_answers_that_are_kept_by_a_backend() -> None:
    endpoints = Endpoints()
    assert name(endpoints, "GET", "/v1/responses/resp_1") == "response"
    assert name(endpoints, "DELETE", "/v1/responses/resp_1") == "response"
    assert name(endpoints, "POST", "/v1/responses/resp_1/cancel") == "response"
    assert name(endpoints, "GET", "/v1/responses/resp_1/input_items") == "response"
    assert endpoints.methods(b"/v1/responses/resp_1") == ("GET", "DELETE")
    for method, path in (
        ("POST", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/"),
        ("GET", "/v1/responses/.."),
        ("GET", "/v1/responses/a/b"),
        ("GET", "/v1/responses/a%2fb"),
        ("GET", "/v1/responses/" + "a" * 257),
    ):
        assert name(endpoints, method, path) is None, path
    assert response_id(b"/v1/responses/resp-1_A/cancel") == "resp-1_A"
    assert response_id(b"/v1/responses") is None


def test_paths_of_the_config() -> None:
    endpoints = Endpoints(["/v1/tokenize", "/v1/images/*", "/v1/fine*"])
    for method in ("GET", "POST", "DELETE"):
        for path in ("/v1/tokenize", "/v1/images/edits", "/v1/images/a/b.c~d", "/v1/images/", "/v1/fine_tuning/jobs"):
            assert name(endpoints, method, path) == "passed", path
    assert name(endpoints, "PUT", "/v1/tokenize") is None
    assert name(endpoints, "POST", "/v1/images/generations") == "images", "what is built in stays what it is"
    assert name(endpoints, "GET", "/v1/images") is None
    assert name(endpoints, "GET", "/v1/tokenize/") is None
    assert endpoints.methods(b"/v1/images/x") == ("GET", "POST", "DELETE")
    assert name(Endpoints([]), "GET", "/v1/tokenize") is None


@pytest.mark.parametrize(
    "rest",
    [
        "..",
        "../x",
        "a/../../admin",
        "./a",
        "a/.",
        "a//b",
        "/a",
        "%2e%2e/x",
        "a%5fb",
        "%41",
        "%7Eroot",
        "%2E./x",
        "a%2fb",
        "a%2Fb",
        "a%5cb",
        "a\\b",
        "a%252e",
        "a%00",
        "a b",
        "a\tb",
        "a#b",
        "é",
        "a\x7f",
    ],
)
def test_paths_that_a_server_could_take_for_others_are_refused(rest: str) -> None:
    endpoints = Endpoints(["/v1/images/*"])
    for method in ("GET", "POST", "DELETE"):
        assert name(endpoints, method, f"/v1/images/{rest}") is None
    assert endpoints.methods(f"/v1/images/{rest}".encode("latin-1")) == ()


def test_dots_in_names_and_other_escapes_pass() -> None:
    endpoints = Endpoints(["/v1/files*"])
    for path in ("/v1/files/a.b", "/v1/files/..a", "/v1/files/a..", "/v1/files/a%20b", "/v1/files/.hidden/x"):
        assert name(endpoints, "GET", path) == "passed", path


def test_our_own_paths_are_never_passed() -> None:
    endpoints = Endpoints(["/v1/m*", "/v1/models", "/v1/models/*"])
    for path in ("/v1/models", "/v1/models/org/m", "/v1/models/"):
        assert name(endpoints, "GET", path) is None
    assert name(endpoints, "GET", "/v1/modelsx") == "passed"


def test_whose_errors() -> None:
    assert b'"type": "error"' in _error(b"/v1/messages")
    assert b'"type": "error"' in _error(b"/v1/messages/batches")
    for path in (b"/v1/messagesx", b"/v1/chat/completions", b"/"):
        assert b'"type": "error"' not in _error(path)


def _error(path: bytes) -> bytes:
    from vocabulary.errors import NoSuchPath

    return dialect_of(path).error_body(NoSuchPath("none"))
