"""The list in a file: taken whole or refused with the lines of its mistakes."""

from __future__ import annotations

import json

import pytest

from backends.discovery.backend_list import read_list
from backends.discovery.protocol import InvalidList

GOOD = [
    {"name": "gpu-1", "url": "http://10.0.0.1:8000"},
    {"name": "gpu-2", "url": "https://gpu-2.test", "models": ["llama", "org/model:v1"]},
]


def mistakes(text: str) -> str:
    with pytest.raises(InvalidList) as caught:
        read_list(text.encode(), "b.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        json.dumps(GOOD, indent=2),
        json.dumps(GOOD, indent="\t"),
        "# by hand\n- name: gpu-1\n  url: http://10.0.0.1:8000/\n"
        "- {name: gpu-2, url: HTTPS://GPU-2.test, models: [llama, 'org/model:v1']}\n",
    ],
)
def test_yaml_and_json(text: str) -> None:
    first, second = read_list(text.encode(), "b.yaml")
    assert (first.name, str(first.address), first.models) == ("gpu-1", "http://10.0.0.1:8000", ())
    assert (second.name, str(second.address)) == ("gpu-2", "https://gpu-2.test:443")
    assert second.models == ("llama", "org/model:v1")
    assert first.takes_traffic


def test_an_empty_list_is_a_list() -> None:
    assert read_list(b"[]", "b.yaml") == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "null", "gpu-1", "backends: []"])
def test_an_empty_file_is_none(text: str) -> None:
    assert mistakes(text) == "b.yaml:1: must be a list of {name, url, models}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- name: a\n", "b.yaml:1: url is missing"),
        ("- url: http://h:1\n", "b.yaml:1: name is missing"),
        ("- {name: a, url: http://h:1}\n- gpu-2\n", "b.yaml:2: must be {name, url, models}"),
        ("- name: A\n  url: http://h:1", "b.yaml:1: name: must be 1 to 64 of a-z 0-9 _ . -"),
        ("- name: 7\n  url: http://h:1", "b.yaml:1: name: must be text"),
        ("- name: a\n  url: ftp://h", "b.yaml:2: url: must start with http:// or https:// and name a host"),
        ("- name: a\n  url: http://u:secret@h", "b.yaml:2: url: a URL holds no credentials"),
        (
            "- name: a\n  url: http://h/v1",
            "b.yaml:2: url: only scheme, host and port: the gateway adds the paths itself",
        ),
        (
            "- name: a\n  url: http://169.254.169.254",
            "b.yaml:2: url: not an address of a backend: a link-local address",
        ),
        ("- name: a\n  url: http://h\n  weight: 3", "b.yaml:3: unknown key: there are name, url, models"),
        ("- name: a\n  url: http://h\n  name: b", "b.yaml:3: name: given twice"),
        ("- name: a\n  url: http://h\n  models: []", "b.yaml:3: models: must be a list of names, or left out"),
        ("- name: a\n  url: http://h\n  models: llama", "b.yaml:3: models: must be a list of names, or left out"),
        ("- name: a\n  url: http://h\n  models: [1]", "b.yaml:3: models: must be text"),
        ("- {name: a, url: http://h}\n- {name: a, url: http://i}", "b.yaml:2: name: the same as in line 1"),
        ("- {name: a, url: http://h}\n- {name: b, url: http://H:80/}", "b.yaml:2: url: the same as in line 1"),
        ("- name: !!python/object:os.system a\n  url: http://h", "b.yaml:1: name: must be text"),
        ("- {name: a, url: http://h", "b.yaml:1: not valid YAML or JSON"),
        ("- name: a\n  url: 'http://h\n", "b.yaml:3: not valid YAML or JSON"),
        ("- name: a\n  url: http://h\n\x00", "b.yaml:1: not valid YAML or JSON"),
    ],
)
def test_mistakes_and_their_lines(text: str, told: str) -> None:
    assert mistakes(text) == told


def test_all_mistakes_are_told_at_once() -> None:
    text = "- {name: A, url: http://h}\n- {name: b}\n- {name: c, url: x}\n"
    assert mistakes(text).count("b.yaml:") == 3
    many = mistakes("".join(f"- {{name: n{i}}}\n" for i in range(20)))
    assert many.count("url is missing") == 5
    assert many.endswith("and 15 more")


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InvalidList, match=r"^b.yaml:2: not UTF-8$"):
        read_list(b"- name: a\n  url: http://\xff\n", "b.yaml")


def test_deep_nesting_is_no_crash() -> None:
    assert "b.yaml:" in mistakes("[\n" * 5000)
