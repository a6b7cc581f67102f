"""Cases of the field on token parity."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.gateway import RunningGateway, chat, running_gateway
from tests.support.scrape import counted
from tests.support.token_engine import TEMPLATE, TokenEngine, write_model

if TYPE_CHECKING:
    from pathlib import Path


def parity(gw: RunningGateway) -> str | None:
    (model,) = gw.gateway.self_check.status()
    return model["parity"][0]["state"] if model["parity"] else None


async def test_o30_router_hashes_raw_text_engine_hashes_templated_tokens(tmp_path: Path) -> None:
    """Parity is proven per model and backend; where it is not, that is named while traffic flows."""
    tokens = TokenEngine(head="<s>")
    model = write_model(tmp_path, "<s>" + TEMPLATE)
    async with tokens.upstream() as upstream, running_gateway([upstream.url], models=[model]) as gw:
        await gw.until(lambda _: parity(gw) is not None)
        assert parity(gw) == "equal"
        async with gw.client() as client:
            await (await client.ask(chat("x" * 100))).read()
        assert gw.gateway.index.stats().blocks == (len("<s>[user]>") + 100) // 16, "of the templated ids"
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))  # without <s>
        assert (await gw.reload()).applied
        await gw.until(lambda _: parity(gw) == "different")
        (model_status,) = gw.gateway.self_check.status()
        assert model_status["parity"][0]["position"] == 0, "from the first token on"
        assert counted(gw.gateway, "warmroute_parity", model="m", state="different") == 1
