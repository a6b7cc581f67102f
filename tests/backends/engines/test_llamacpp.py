from __future__ import annotations

import pytest

from backends.engines import ENGINES, Ask, EngineName, Page
from backends.load import EngineLoad

LLAMACPP = ENGINES[EngineName.LLAMACPP]
METRICS = b"""# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
"""


def test_metrics_and_the_mark_of_the_process() -> None:
    page = Page(200, {"process-start-time-unix": "12345678"}, METRICS)
    assert LLAMACPP.read_load("/metrics", page) == EngineLoad(2, 1, start_time_s=12345678.0)
    assert LLAMACPP.read_load("/metrics", Page(200, {}, METRICS)) == EngineLoad(2, 1)


def test_the_usage_of_older_builds() -> None:
    page = Page(200, {}, METRICS + b"llamacpp:kv_cache_usage_ratio 0.5\n")
    assert LLAMACPP.read_load("/metrics", page) == EngineLoad(2, 1, 0.5)


def test_an_answer_without_its_metrics() -> None:
    with pytest.raises(ValueError):
        LLAMACPP.read_load("/metrics", Page(200, {}, b'{"error": {"code": 501}}'))


@pytest.mark.parametrize(
    ("answer", "cached"),
    [
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 129}}, "timings": {"cache_n": 7}}, 129),
        ({"usage": {"prompt_tokens": 130}, "timings": {"cache_n": 129, "prompt_n": 1}}, 129),
        ({"content": "x", "tokens_cached": 12}, 12),
        ({"timings": {"cache_n": 0}, "tokens_cached": 12}, 0),
        ({"choices": [], "timings": None}, None),
    ],
)
def test_cached_tokens(answer: dict[str, object], cached: int | None) -> None:
    assert LLAMACPP.cached_tokens(answer) == cached


def test_a_chat_is_rendered_and_then_tokenised() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [1], "stream": True}
    (ask,) = LLAMACPP.token_asks("chat", body)
    assert ask == Ask("/apply-template", {"messages": body["messages"], "tools": [1]})
    tokenize = Ask("/tokenize", {"content": "<s>hi", "add_special": True, "parse_special": True})
    assert LLAMACPP.read_tokens({"prompt": "<s>hi"}) == tokenize
    assert LLAMACPP.read_tokens({"tokens": [1, 2]}) == [1, 2]
    assert LLAMACPP.token_asks("completions", {"prompt": "<s>hi"}) == (tokenize,)
    assert LLAMACPP.token_asks("completions", {"prompt": ["a", "b"]}) == ()


def test_it_has_no_salt_and_no_events() -> None:
    assert not LLAMACPP.takes_cache_salt(b"/v1/chat/completions")
    assert (LLAMACPP.events_page, LLAMACPP.events_drain, LLAMACPP.event_publishers({})) == (None, None, ())
