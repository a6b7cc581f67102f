from __future__ import annotations

import pytest

from backends.engines import ENGINES, EngineName, Page

OPENAI = ENGINES[EngineName.OPENAI]


def test_it_is_asked_for_its_models_and_nothing_else() -> None:
    assert (OPENAI.health_path, OPENAI.load_pages, OPENAI.events_page) == ("/v1/models", (), None)
    assert OPENAI.read_load("/metrics", Page(200, {}, b"vllm:num_requests_running 1\n")) is None
    assert OPENAI.token_asks("chat", {"messages": []}) == ()
    assert OPENAI.event_publishers([]) == ()
    with pytest.raises(ValueError):
        OPENAI.read_tokens({"tokens": [1]})


def test_it_gets_no_salt_but_may_report_cached_tokens() -> None:
    assert not OPENAI.takes_cache_salt(b"/v1/chat/completions")
    assert OPENAI.cached_tokens({"usage": {"prompt_tokens_details": {"cached_tokens": 1024}}}) == 1024
    assert OPENAI.cached_tokens({"usage": {"prompt_tokens_details": {"cached_tokens": "many"}}}) is None
    assert OPENAI.cached_tokens({"usage": None}) is None
