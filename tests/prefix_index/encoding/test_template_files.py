"""Which template and special tokens a model has, by the files beside its tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from prefix_index.encoding.template_files import beside, template_sources

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    return path


def write(tokenizer: Path, name: str, content: object) -> Path:
    path = tokenizer.parent / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_bare_tokenizer_has_no_template(tokenizer: Path) -> None:
    found = template_sources(tokenizer)
    assert (found.default, found.tool_use, dict(found.special_tokens)) == (None, None, {})


def test_the_text_in_tokenizer_config(tokenizer: Path) -> None:
    write(tokenizer, "tokenizer_config.json", {"chat_template": "{{ 1 }}"})
    assert template_sources(tokenizer).default == "{{ 1 }}"


def test_the_list_in_tokenizer_config(tokenizer: Path) -> None:
    listed = [{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"}]
    write(tokenizer, "tokenizer_config.json", {"chat_template": [*listed, {"name": "default", "template": "d"}]})
    found = template_sources(tokenizer)
    assert (found.default, found.tool_use) == ("d", "t")
    write(tokenizer, "tokenizer_config.json", {"chat_template": listed})
    with pytest.raises(ValueError, match="no default template"):
        template_sources(tokenizer)


def test_a_file_beside_goes_before_tokenizer_config(tokenizer: Path) -> None:
    write(tokenizer, "tokenizer_config.json", {"chat_template": "old", "bos_token": "<s>"})
    write(tokenizer, "chat_template.jinja", "new")
    write(tokenizer, "additional_chat_templates/tool_use.jinja", "tools")
    found = template_sources(tokenizer)
    assert (found.default, found.tool_use, found.special_tokens["bos_token"]) == ("new", "tools", "<s>")


def test_the_old_file_of_processors_comes_last(tokenizer: Path) -> None:
    write(tokenizer, "chat_template.json", {"chat_template": "processor"})
    assert template_sources(tokenizer).default == "processor"
    write(tokenizer, "tokenizer_config.json", {"chat_template": "tokenizer"})
    assert template_sources(tokenizer).default == "tokenizer"


@pytest.mark.parametrize(
    ("name", "content"), [("own.jinja", "own"), ("own.json", {"chat_template": "own"}), ("own.txt", "own")]
)
def test_a_file_of_the_operator_goes_before_all(tokenizer: Path, name: str, content: object) -> None:
    write(tokenizer, "chat_template.jinja", "new")
    write(tokenizer, "additional_chat_templates/tool_use.jinja", "tools")
    found = template_sources(tokenizer, write(tokenizer, name, content))
    assert (found.default, found.tool_use) == ("own", None)


def test_a_json_file_of_the_operator_without_a_template_is_wrong(tokenizer: Path) -> None:
    with pytest.raises(ValueError, match=r"own\.json has no chat_template"):
        template_sources(tokenizer, write(tokenizer, "own.json", {}))


def test_special_tokens_in_both_spellings(tokenizer: Path) -> None:
    write(tokenizer, "special_tokens_map.json", {"pad_token": "<pad>", "eos_token": "old"})
    write(
        tokenizer,
        "tokenizer_config.json",
        {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": None, "add_bos_token": True, "x": "y"},
    )
    assert template_sources(tokenizer).special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


@pytest.mark.parametrize("content", ["{", "[]", "\ufeff"])
def test_what_is_no_json_object_is_told_by_the_files_name(tokenizer: Path, content: str) -> None:
    write(tokenizer, "tokenizer_config.json", content)
    with pytest.raises(ValueError, match="tokenizer_config"):
        template_sources(tokenizer)


def test_all_files_that_count_are_told(tokenizer: Path) -> None:
    assert {path.name for path in beside(tokenizer)} >= {"tokenizer_config.json", "chat_template.jinja"}
    assert all(path.is_relative_to(tokenizer.parent) for path in beside(tokenizer))
