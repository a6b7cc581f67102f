from __future__ import annotations

import json

import pytest

from backends.engines import ENGINES, EngineName, Page
from backends.engines.detect import Detection, by_metrics, by_owner

NOT_FOUND = Page(404, {}, b'{"detail":"Not Found"}')
ALL_ASKED = ["/metrics", "/server_info", "/props", "/version"]


def found(detection: Detection, pages: dict[str, Page | None]) -> list[str]:
    """Answers all questions; returns them."""
    asked: list[str] = []
    while (path := detection.question) is not None:
        asked.append(path)
        assert len(asked) < 20, "it must end"
        detection.see(path, pages.get(path, NOT_FOUND))
    return asked


def answer(value: object) -> Page:
    return Page(200, {}, json.dumps(value).encode())


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("vllm", EngineName.VLLM),
        ("sglang", EngineName.SGLANG),
        ("tensorrt_llm", EngineName.TRTLLM),
        ("llamacpp", EngineName.LLAMACPP),
        ("openai", EngineName.OPENAI),
    ],
)
def test_the_model_list_alone_is_enough(owner: str, name: EngineName) -> None:
    detection = Detection()
    detection.see_models([{"id": "m", "owned_by": owner}, {"id": "lora", "owned_by": owner}])
    assert detection.engine is name
    assert detection.question is None


def test_a_model_list_of_several_engines_or_of_none_says_nothing() -> None:
    assert by_owner([{"owned_by": "vllm"}, {"owned_by": "sglang"}]) is None
    assert by_owner([{"owned_by": "acme"}, {"owned_by": 7}, {}]) is None
    assert by_owner([{"owned_by": "acme"}, {"owned_by": "vllm"}]) is EngineName.VLLM


@pytest.mark.parametrize(
    ("page", "name"),
    [
        (b"# HELP x\nvllm:num_requests_running 0\n", EngineName.VLLM),
        (b"sglang:num_queue_reqs 0\n", EngineName.SGLANG),
        (b"llamacpp:requests_deferred 0\n", EngineName.LLAMACPP),
        (b"trtllm_num_requests_running 0\n", EngineName.TRTLLM),
        (b'[{"iter": 1}]', EngineName.TRTLLM),
        (b"[]", EngineName.TRTLLM),
        (b"[vllm", None),
        (b"<html>vllm: see docs</html>", None),
        (b"\xff\xfe", None),
        (b"", None),
    ],
)
def test_metrics(page: bytes, name: EngineName | None) -> None:
    assert by_metrics(page) is name


@pytest.mark.parametrize(
    ("pages", "name", "asked"),
    [
        ({"/metrics": Page(200, {}, b"vllm:x 1\n")}, EngineName.VLLM, 1),
        ({"/server_info": answer({"vllm_config": "..."})}, EngineName.VLLM, 2),
        ({"/server_info": answer({"model_path": "m", "internal_states": []})}, EngineName.SGLANG, 2),
        ({"/server_info": answer({"disaggregated_params": {}})}, EngineName.OPENAI, 4),
        ({"/props": answer({"default_generation_settings": {}, "total_slots": 4})}, EngineName.LLAMACPP, 3),
        ({"/version": answer({"version": "0.33.0"})}, EngineName.VLLM, 4),
        ({"/version": answer({"version": "1.2", "name": "other"})}, EngineName.OPENAI, 4),
        ({path: Page(200, {}, b"<!doctype html>") for path in ALL_ASKED}, EngineName.OPENAI, 4),
        ({path: Page(405, {}, b"") for path in ALL_ASKED}, EngineName.OPENAI, 4),
        ({path: answer([]) for path in ALL_ASKED[1:]}, EngineName.OPENAI, 4),
    ],
)
def test_questions_cheapest_first(pages: dict[str, Page | None], name: EngineName, asked: int) -> None:
    detection = Detection()
    assert found(detection, pages) == ALL_ASKED[:asked]
    assert detection.engine is name
    assert (detection.evidence is None) is (name is EngineName.OPENAI), "nobody has said so"


def test_one_that_does_not_answer_is_asked_again_but_not_for_ever() -> None:
    detection = Detection()
    detection.see("/metrics", None)
    assert (detection.question, detection.engine) == ("/metrics", None)
    detection.see("/metrics", Page(503, {}, b""))
    detection.see("/metrics", Page(200, {}, b"sglang:x 1\n"))
    assert detection.engine is EngineName.SGLANG
    silent = Detection()
    assert len(found(silent, dict.fromkeys(ALL_ASKED))) == 12
    assert silent.engine is EngineName.OPENAI


def test_a_model_list_that_comes_later_is_believed() -> None:
    detection = Detection()
    assert found(detection, {}) == ALL_ASKED
    detection.see_models([{"owned_by": "vllm"}])
    assert detection.engine is EngineName.VLLM


def test_an_answer_to_a_question_that_was_not_asked_changes_nothing() -> None:
    detection = Detection()
    detection.see("/version", answer({"version": "1"}))
    assert (detection.engine, detection.question) == (None, "/metrics")


def test_every_name_has_its_engine() -> None:
    assert set(ENGINES) == set(EngineName)
    assert all(engine.name is name for name, engine in ENGINES.items())
    assert all(engine.health_path.startswith("/") for engine in ENGINES.values())
