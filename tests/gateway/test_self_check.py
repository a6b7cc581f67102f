"""The gateway's token ids against an engine's, on real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway import self_check
from gateway.parity import PROBES
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.scrape import counted, series
from tests.support.token_engine import TEMPLATE, TokenEngine, write_model
from tests.support.upstream import ScriptedUpstream

if TYPE_CHECKING:
    from pathlib import Path


def found(gw: RunningGateway) -> dict[str, dict[str, Any]]:
    """By backend."""
    (model,) = gw.gateway.self_check.status()
    assert model["name"] == "m"
    return {one["backend"]: one for one in model["parity"]}


async def until_checked(gw: RunningGateway, backends: int = 1) -> dict[str, dict[str, Any]]:
    await gw.until(lambda _: len(found(gw)) == backends)
    return found(gw)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
async def test_an_engine_with_the_same_tokens_is_equal(tmp_path: Path, engine: Any) -> None:
    tokens = TokenEngine(engine)
    async with (
        tokens.upstream() as upstream,
        running_gateway([upstream.url], models=[write_model(tmp_path)]) as gw,
    ):
        assert await until_checked(gw) == {"a": {"backend": "a", "state": "equal"}}
        assert {body.get("model", "m") for _, body in tokens.asked} == {"m"}
        assert len(tokens.asked) >= len(PROBES)


async def test_the_first_difference_is_told_by_its_place(tmp_path: Path) -> None:
    async with (
        TokenEngine(head="<s>").upstream() as same,
        TokenEngine(head="").upstream() as other,
        running_gateway([same.url, other.url], models=[write_model(tmp_path, "<s>" + TEMPLATE)]) as gw,
    ):
        results = await until_checked(gw, 2)
        assert results["a"]["state"] == "equal"
        shown = results["b"]
        assert (shown["state"], shown["probe"], shown["position"]) == ("different", "user", 0)
        assert shown["tokens"] == shown["engine_tokens"] + 3
        shown_by = {
            state: counted(gw.gateway, "warmroute_parity", model="m", state=state)
            for state in ("equal", "different", "unknown")
        }
        assert shown_by == {"equal": 1, "different": 1, "unknown": 0}


async def test_a_difference_in_tools_alone_is_found(tmp_path: Path) -> None:
    template = TEMPLATE.replace("tool | tojson", "tool.function | tojson")
    async with (
        TokenEngine().upstream() as upstream,
        running_gateway([upstream.url], models=[write_model(tmp_path, template)]) as gw,
    ):
        shown = (await until_checked(gw))["a"]
        assert (shown["state"], shown["probe"]) == ("different", "tools")
        assert 0 < shown["position"] < shown["tokens"]


async def test_nothing_is_known_of_an_engine_that_does_not_tell(tmp_path: Path) -> None:
    async with (
        TokenEngine(gives=False).upstream() as silent,
        ScriptedUpstream(owner="openai") as other,
        running_gateway([silent.url, other.url], models=[write_model(tmp_path)]) as gw,
    ):
        results = await until_checked(gw, 2)
        assert {one["state"] for one in results.values()} == {"unknown"}


async def test_an_older_way_of_asking_is_taken_where_the_best_one_is_not_there(tmp_path: Path) -> None:
    tokens = TokenEngine(renders=False)
    async with (
        tokens.upstream() as upstream,
        running_gateway([upstream.url], models=[write_model(tmp_path)]) as gw,
    ):
        assert (await until_checked(gw))["a"]["state"] == "equal"
        paths = [path for path, _ in tokens.asked]
        assert paths.count("/v1/chat/completions/render") == 1, "once, then never again"
        assert paths.count("/tokenize") == len(PROBES)


async def test_without_a_template_the_rest_is_compared(tmp_path: Path) -> None:
    entry = write_model(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    tokens = TokenEngine()
    async with tokens.upstream() as upstream, running_gateway([upstream.url], models=[entry]) as gw:
        assert (await until_checked(gw))["a"]["state"] == "equal"
        assert [path for path, _ in tokens.asked] == ["/v1/completions/render"]


async def test_a_model_by_another_name(tmp_path: Path) -> None:
    tokens = TokenEngine()
    entry = {**write_model(tmp_path), "aliases": ["served-as"]}
    async with (
        tokens.upstream(models=("served-as",)) as upstream,
        running_gateway([upstream.url], models=[entry]) as gw,
    ):
        assert (await until_checked(gw))["a"]["state"] == "equal"
        assert {body["model"] for _, body in tokens.asked} == {"served-as"}


async def test_other_files_are_checked_anew_and_the_same_are_not(tmp_path: Path) -> None:
    tokens = TokenEngine()
    entry = write_model(tmp_path)
    async with tokens.upstream() as upstream, running_gateway([upstream.url], models=[entry]) as gw:
        await until_checked(gw)
        asked = len(tokens.asked)
        assert (await gw.reload(limits={"max_attempts": 5})).applied
        assert found(gw)["a"]["state"] == "equal"
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "other " + TEMPLATE}))
        assert (await gw.reload()).applied
        await gw.until(lambda _: found(gw).get("a", {}).get("state") == "different")
        assert len(tokens.asked) == 2 * asked
        assert (await gw.reload(models=[{"name": "m"}])).applied
        assert gw.gateway.self_check.status() == []


async def test_a_new_life_is_checked_anew(tmp_path: Path) -> None:
    tokens = TokenEngine()
    async with (
        tokens.upstream() as upstream,
        running_gateway([upstream.url], models=[write_model(tmp_path)]) as gw,
    ):
        await until_checked(gw)
        tokens.head = "<s>"
        gw.gateway.registry.restart(next(iter(gw.gateway.registry)))
        assert found(gw) == {}
        assert (await until_checked(gw))["a"]["state"] == "different"


async def test_a_gateway_without_such_models_asks_nobody() -> None:
    async with ScriptedUpstream(owner="vllm") as upstream, running_gateway([upstream.url]) as gw:
        await gw.until(lambda gateway: gateway.ready)
        assert gw.gateway.self_check.status() == []
        assert upstream.requests == []
        assert not any(name == "warmroute_parity" for name, *_ in series(gw.gateway))


async def test_an_engine_that_could_not_be_asked_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "_FIRST_RETRY_S", 0.0)
    tokens = TokenEngine(gives=False)
    async with (
        tokens.upstream() as upstream,
        running_gateway([upstream.url], models=[write_model(tmp_path)]) as gw,
    ):
        assert (await until_checked(gw))["a"]["state"] == "unknown"
        tokens.gives = True
        await gw.until(lambda _: found(gw)["a"]["state"] == "equal")
