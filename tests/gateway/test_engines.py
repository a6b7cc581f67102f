"""What the gateway makes of the engine that a backend runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest
from structlog.testing import capture_logs

from backends.engines import EngineName
from gateway.config.fleet import EngineKind
from gateway.status import status
from gateway.wiring import engine_name
from tests.support.access import KEY_A, A, B, bearer
from tests.support.gateway import RunningGateway, chat, running_gateway
from tests.support.upstream import ScriptedUpstream

if TYPE_CHECKING:
    from gateway.app import Gateway


def engine(gw: RunningGateway) -> dict[str, Any]:
    shown: dict[str, Any] = status(gw.gateway)["backends"][0]["engine"]
    return shown


def known(gateway: Gateway) -> bool:
    return all(backend.instance.engine is not None for backend in gateway.registry)


async def test_status_names_the_engine_and_its_figures() -> None:
    metrics = (
        "vllm:num_requests_waiting 3\n"
        'vllm:cache_config_info{block_size="32",num_gpu_blocks="8",enable_prefix_caching="False"} 1\n'
    )
    async with ScriptedUpstream(owner="vllm", metrics=metrics) as upstream, running_gateway([upstream.url]) as gw:
        assert engine(gw) == {
            "name": "vllm",
            "from": "answers",
            "answers_as": None,
            "running": None,
            "waiting": 3,
            "kv_usage": None,
            "block_size": 32,
            "prefix_cache": False,
        }


async def test_a_contradiction_is_logged_and_shown_and_a_reload_settles_it() -> None:
    with capture_logs() as logs:
        async with ScriptedUpstream(owner="sglang", metrics="") as upstream:
            entry = {"name": "a", "url": upstream.url}
            async with running_gateway([{**entry, "engine": "vllm"}]) as gw:
                assert (engine(gw)["name"], engine(gw)["from"]) == ("vllm", "config")
                assert engine(gw)["answers_as"] == "sglang"
                instance = next(iter(gw.gateway.registry)).instance
                await gw.reload([entry])
                await gw.until(known)
                assert (engine(gw)["name"], engine(gw)["from"]) == ("sglang", "answers")
                assert engine(gw)["answers_as"] is None
                assert next(iter(gw.gateway.registry)).instance is instance
    warnings = [log for log in logs if log["event"] == "engine_contradicts"]
    assert [(log["config"], log["answers"], log["log_level"]) for log in warnings] == [("vllm", "sglang", "warning")]
    assert [log["engine"] for log in logs if log["event"] == "backend_engine"][-1] == "sglang"


@pytest.mark.parametrize(
    ("owner", "path", "salted"),
    [
        ("vllm", "/v1/chat/completions", True),
        ("sglang", "/v1/chat/completions", True),
        ("tensorrt_llm", "/v1/chat/completions", True),
        ("tensorrt_llm", "/v1/completions", False),
        ("llamacpp", "/v1/chat/completions", False),
    ],
)
async def test_the_tenants_salt_goes_where_the_engine_takes_it(owner: str, path: str, salted: bool) -> None:
    body = chat() if "chat" in path else {"model": "m", "prompt": "hello"}
    async with (
        ScriptedUpstream(owner=owner, metrics="") as upstream,
        running_gateway([upstream.url], tenants=[A, B]) as gw,
        gw.client() as client,
    ):
        assert (await client.ask(body, path=path, headers=bearer(KEY_A))).status == 200
        assert ("cache_salt" in upstream.requests[0].json) is salted


def test_every_engine_can_be_named_in_the_config() -> None:
    assert {engine_name(kind) for kind in get_args(EngineKind)} == {None, *EngineName}
