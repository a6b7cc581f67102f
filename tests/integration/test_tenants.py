"""Tenants are apart: what one asked, another can neither share nor time nor read, on real sockets."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from tests.support.access import KEY_A, KEY_B, A, B, bearer, setting, tenant
from tests.support.gateway import RawClient, Response, chat, running_gateway
from tests.support.tokens import Signer
from tests.support.upstream import ScriptedUpstream, Served, answer

SEEING_A, SEEING_B = {**A, "sees_decisions": True}, {**B, "sees_decisions": True}
PROMPT = "a long head that two prompts may have in common, word by word and byte by byte; " * 40


async def ask(client: RawClient, key: str, body: Any, **headers: str) -> Response:
    response = await client.ask(body, headers=bearer(key, **headers))
    assert response.status == 200, await response.read()
    await response.read()
    return response


def cached(response: Response) -> int:
    return int(response.header("x-warmroute-cached-tokens") or -1)


def kind(response: Response) -> str | None:
    return response.header("x-warmroute-decision")


async def test_o33_the_same_prompt_of_two_tenants_shares_no_credit_and_no_salt() -> None:
    body = json.dumps(chat(PROMPT, seed=1e-7, note="größe")).encode()
    async with setting(SEEING_A, SEEING_B) as (gw, upstream, client):
        assert cached(await ask(client, KEY_A, body)) == 0
        assert cached(await ask(client, KEY_A, body)) > 200
        assert cached(await ask(client, KEY_B, body)) == 0
        assert cached(await ask(client, KEY_B, body)) > 200
        salts = []
        for served in upstream.requests:
            salt = served.json["cache_salt"]
            salts.append(salt)
            assert served.body == b'{"cache_salt":"%b",%b' % (salt.encode(), body[1:])
        assert salts[0] == salts[1] != salts[2] == salts[3]
        assert {len(salt) for salt in salts} == {32}
        gw.assert_at_rest()


@pytest.mark.parametrize("spelled", ['"cache_salt"', '"cache\\u005fsalt"'])
async def test_o33_a_caller_cannot_choose_anothers_salt(spelled: str) -> None:
    async with setting(SEEING_A, SEEING_B) as (_, upstream, client):
        await ask(client, KEY_A, chat(PROMPT))
        stolen = upstream.requests[0].json["cache_salt"]
        body = json.dumps(chat(PROMPT, salt_here=stolen)).replace('"salt_here"', spelled).encode()
        assert cached(await ask(client, KEY_B, body)) == 0
        got = upstream.requests[1]
        assert got.body.count(b"salt") == 1
        assert stolen not in got.body.decode()
        assert cached(await ask(client, KEY_A, json.dumps(chat(PROMPT, cache_salt="mine")).encode())) > 200


async def test_o33_clients_own_salts_never_share_either() -> None:
    for tenants in ((), (SEEING_A,), ({**SEEING_A, "cache_salt": "client"}, B)):
        async with setting(*tenants) as (_, upstream, client):
            bodies = [chat(PROMPT), chat(PROMPT, cache_salt="s1"), chat(PROMPT, cache_salt="s2")]
            for body in bodies:
                assert cached(await ask(client, KEY_A, body)) == 0
            for body in bodies:
                assert cached(await ask(client, KEY_A, body)) > 200
            assert [served.json for served in upstream.requests] == bodies * 2
            assert upstream.requests[0].body == json.dumps(bodies[0]).encode(), "not a byte is changed"


async def test_a_session_id_of_one_tenant_is_another_session_of_another() -> None:
    async with ScriptedUpstream() as first, ScriptedUpstream() as second:
        tenants = [SEEING_A, SEEING_B]
        async with running_gateway([first.url, second.url], tenants=tenants) as gw, gw.client() as client:
            await ask(client, KEY_A, chat(PROMPT), x_session_id="canary-session")
            again = await ask(client, KEY_A, chat(PROMPT), x_session_id="canary-session")
            assert kind(again) == "session"
            other = await ask(client, KEY_B, chat(PROMPT), x_session_id="canary-session")
            assert kind(other) == "load"
            assert gw.gateway.sessions.stats().sessions == 2
            gw.assert_at_rest()


@pytest.mark.parametrize("salt", ["auto", "client"])
async def test_a_prompt_that_goes_on_with_anothers_is_no_session(salt: str) -> None:
    turns = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "yes"}]
    longer = {"model": "m", "messages": [*turns, {"role": "user", "content": "and then? " * 30}]}
    other = {"model": "m", "messages": [*turns, {"role": "user", "content": "or else? " * 30}]}
    tenants = [{**SEEING_A, "cache_salt": salt}, {**SEEING_B, "cache_salt": salt}]
    async with (
        ScriptedUpstream() as first,
        ScriptedUpstream() as second,
        running_gateway([first.url, second.url], tenants=tenants) as gw,
        gw.client() as client,
    ):
        await ask(client, KEY_A, {"model": "m", "messages": turns[:1]})
        assert kind(await ask(client, KEY_B, longer)) != "session"
        assert kind(await ask(client, KEY_A, other)) == "session"
        assert gw.gateway.sessions.stats().sessions == 2
        gw.assert_at_rest()


@pytest.mark.parametrize("stream", [False, True])
async def test_predictions_are_told_to_those_alone_who_may_see_them(stream: bool) -> None:
    async with setting(A, SEEING_B) as (_, _, client):
        for key, sees in ((KEY_A, False), (KEY_B, True)):
            for _ in range(2):
                response = await ask(client, key, chat(PROMPT, stream=stream))
                names = {name.lower() for name, _ in response.headers if name.lower().startswith("x-warmroute-")}
                told = {"x-warmroute-decision", "x-warmroute-cached-tokens"} if sees else set()
                assert names == {"x-warmroute-backend", *told}
                assert response.header("x-warmroute-backend") == "a"


async def test_a_backend_that_knows_no_salt_gets_none() -> None:
    body = json.dumps(chat(PROMPT)).encode()
    with_salt = json.dumps(chat(PROMPT, cache_salt="mine")).encode()
    async with ScriptedUpstream() as upstream:
        backends = [{"name": "x", "url": upstream.url, "engine": "openai", "models": ["m"]}]
        async with running_gateway(backends, tenants=[SEEING_A, SEEING_B]) as gw, gw.client() as client:
            assert cached(await ask(client, KEY_A, body)) == 0
            assert cached(await ask(client, KEY_B, body)) == 0, "credits stay apart all the same"
            assert upstream.requests[0].body == body
            await ask(client, KEY_A, with_salt)
            assert upstream.requests[2].json == chat(PROMPT)
            gw.assert_at_rest()


async def test_each_attempt_has_the_body_that_its_backend_takes() -> None:
    async def broken(served: Served) -> None:
        served.reset()

    async with ScriptedUpstream(broken) as first, ScriptedUpstream(broken) as second:
        backends = [
            {"name": "salted", "url": first.url, "models": ["m"]},
            {"name": "plain", "url": second.url, "models": ["m"], "engine": "openai"},
        ]
        async with running_gateway(backends, tenants=[A, B]) as gw, gw.client() as client:
            response = await client.ask(chat(PROMPT, cache_salt="mine"), headers=bearer(KEY_A))
            assert response.status == 502
            await response.read()
            assert len(first.requests[0].json["cache_salt"]) == 32
            assert second.requests[0].json == chat(PROMPT)
            gw.assert_at_rest()


async def test_an_upload_is_not_touched() -> None:
    boundary = "b0undary"
    body = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n{{"cache_salt":"x"}}\r\n'
        f"--{boundary}--\r\n"
    ).encode()

    async def accept(served: Served) -> None:
        await served.respond({"text": "hello"})

    async with setting(A, B, script=accept) as (gw, upstream, client):
        headers = bearer(KEY_A, content_type=f"multipart/form-data; boundary={boundary}")
        response = await client.ask(body, path="/v1/audio/transcriptions", headers=headers)
        assert response.status == 200, await response.read()
        await response.read()
        assert upstream.requests[0].body == body
        gw.assert_at_rest()


PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"]


@pytest.mark.parametrize("path", PATHS)
async def test_every_json_route_is_salted_and_guarded(path: str) -> None:
    async def accept(served: Served) -> None:
        await served.respond({})

    fields = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "max_tokens": 1}
    body = {"model": "m", **fields, "cache_salt": "theirs"}
    async with setting(A, B, script=accept) as (gw, upstream, client):
        response = await client.ask(body, path=path, headers=bearer(KEY_A))
        assert response.status == 200, await response.read()
        await response.read()
        assert len(upstream.requests[0].json["cache_salt"]) == 32
        for field in ("kv_transfer_params", "bootstrap_host", "data_parallel_rank"):
            response = await client.ask({**body, field: "canary"}, path=path, headers=bearer(KEY_A))
            assert response.status == 400
            text = (await response.read()).decode()
            assert "canary" not in text
            assert field in text
        assert len(upstream.requests) == 1
        gw.assert_at_rest()


async def test_an_answer_that_an_engine_keeps_is_its_tenants_alone() -> None:
    async def keep(served: Served) -> None:
        await served.respond({"id": "resp_1", "object": "response", "output": []})

    plain = json.dumps({"model": "m", "input": "x", "previous_response_id": "resp_1"})
    path = "/v1/responses"
    async with setting(A, B, script=keep) as (gw, upstream, client):
        response = await client.ask({"model": "m", "input": "x"}, path=path, headers=bearer(KEY_A))
        assert response.status == 200
        await response.read()
        escaped = plain.replace("previous_", "previous\\u005f")
        bodies = [plain.encode(), escaped.encode(), plain.encode("utf-16"), plain.replace("}", ', "x": NaN}').encode()]
        for key, status in ((KEY_B, 404), (KEY_A, 200)):
            for body in bodies:
                response = await client.ask(body, path=path, headers=bearer(key))
                assert response.status == status
                await response.read()
        response = await client.ask(b"", path=f"{path}/resp_1", method="DELETE", headers=bearer(KEY_B))
        assert response.status == 404
        await response.read()
        assert len(upstream.requests) == 1 + len(bodies)
        gw.assert_at_rest()


async def test_without_tenants_engines_judge_their_fields_themselves() -> None:
    body = chat(kv_transfer_params={"x": 1}, data_parallel_rank=1, cache_salt="s")
    async with setting() as (_, upstream, client):
        response = await client.ask(body)
        assert response.status == 200
        await response.read()
        assert upstream.requests[0].body == json.dumps(body).encode()


async def test_explain_tells_what_a_tenants_request_would_find() -> None:
    async with setting(A, B) as (gw, _, client):
        await ask(client, KEY_A, chat(PROMPT))
        async with httpx2.AsyncClient(base_url=gw.admin_url, trust_env=False) as admin:

            async def explained(**params: str) -> Any:
                return (await admin.post("/admin/v1/explain", params=params, json=chat(PROMPT))).json()

            found = await explained(tenant="a")
            assert found["candidates"][0]["cached_tokens"] > 200
            assert (await explained(tenant="b"))["candidates"][0]["cached_tokens"] == 0
            assert (await explained(tenant="c"))["error"]["code"] == "unknown_tenant"
            assert (await explained())["error"]["code"] == "unknown_tenant"


async def test_o72_no_key_token_salt_or_session_id_gets_out(caplog: pytest.LogCaptureFixture) -> None:
    """Not in logs at their loudest, not in errors, not in metrics."""

    async def script(served: Served) -> None:
        if served.number > 3:
            served.reset()
        else:
            await answer(served)

    caplog.set_level(logging.DEBUG)
    token = Signer().token("a")
    limited = tenant("a", KEY_A, requests_per_min=60)
    with capture_logs() as lines:
        async with setting(limited, B, script=script, telemetry={"log_level": "debug"}) as (gw, upstream, client):
            said: list[str] = []
            for key in (KEY_A, "sk-canary-unknown", token):
                for body in (chat("canary prompt"), b'{"canary"', chat("x", bootstrap_host="canary"), chat(model="n")):
                    for method in ("POST", "PUT"):
                        headers = bearer(key, x_session_id="canary-session", x_request_id="request-1")
                        response = await client.ask(body, method=method, headers=headers)
                        said.append(str(response.headers) + (await response.read()).decode())
            for _ in range(10):
                response = await client.ask(chat("canary prompt"), headers=bearer(KEY_A))
                said.append(str(response.headers) + (await response.read()).decode())
            assert any("tenant_rate_limit" in text for text in said)
            assert any("upstream" in text for text in said)
            said += [gw.gateway.metrics.render().decode(), caplog.text, str(lines)]
            salt = upstream.requests[0].json["cache_salt"]
    for text in said:
        assert "canary" not in text
        assert "sk-" not in text
        assert token[:20] not in text
        assert salt not in text
