"""The traffic port beside the hot routes."""

from __future__ import annotations

from tests.support.gateway import chat, running_gateway
from tests.support.upstream import ScriptedUpstream, Served


class WithCards(ScriptedUpstream):
    """Describes its models as vLLM does."""

    async def _probe(self, served: Served) -> None:
        if served.target != "/v1/models":
            await super()._probe(served)
            return
        card = {"id": "org/m", "object": "model", "created": 7, "owned_by": "vllm", "max_model_len": 4096, "é": None}
        await served.respond({"object": "list", "data": [card, {**card, "id": "lora", "parent": "org/m"}]})


async def test_models_are_listed_as_the_first_backend_describes_them() -> None:
    async with (
        ScriptedUpstream(models=("m",)) as a,
        WithCards() as b,
        running_gateway([a.url, b.url]) as gw,
        gw.client() as client,
    ):
        listed = await (await client.ask(b"", path="/v1/models", method="GET")).json()
        assert listed["data"][0] == {"id": "m", "object": "model"}
        assert listed["data"][1] == {
            "id": "org/m",
            "object": "model",
            "created": 7,
            "owned_by": "vllm",
            "max_model_len": 4096,
            "é": None,
        }
        assert listed["data"][2]["parent"] == "org/m"
        for path in ("/v1/models/org/m", "/v1/models/org%2Fm"):
            one = await client.ask(b"", path=path, method="GET")
            assert await one.json() == listed["data"][1]
        head = await client.ask(b"", path="/v1/models", method="HEAD")
        assert head.status == 200


async def test_configured_models_are_listed_with_a_card_of_our_own() -> None:
    async with ScriptedUpstream(models=()) as upstream:
        entry = {"name": "a", "url": upstream.url, "models": ["mine"]}
        async with running_gateway([entry]) as gw, gw.client() as client:
            listed = await (await client.ask(b"", path="/v1/models", method="GET")).json()
            assert listed["data"] == [{"id": "mine", "object": "model", "created": 0, "owned_by": "warmroute"}]


async def test_the_admin_interface_is_not_on_the_traffic_port() -> None:
    async with ScriptedUpstream() as upstream, running_gateway([upstream.url]) as gw, gw.client() as client:
        for path in ("/metrics", "/admin/v1/status", "/admin/v1/explain", "/docs", "/openapi.json"):
            response = await client.ask(chat(), path=path, method="GET", headers={"host": "localhost"})
            assert response.status == 404
            assert (await response.error())["code"] == "not_found"
