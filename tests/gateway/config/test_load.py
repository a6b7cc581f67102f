"""The whole: everything reported in one run, places, hints, the id, and the files in configs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.config import Config, ConfigErrors, Policy, default_config, load, loads
from gateway.config.full import render
from vocabulary.errors import ConfigError

CONFIGS = Path(__file__).parents[3] / "configs"

if TYPE_CHECKING:
    from collections.abc import Mapping

SEEDED = """\
listen:
  host: 0.0.0.0
  port: "8000"
  interval_s: 3
limits:
  conect_timeout_s: 5
  max_attempts: 0
  first_byte_timeout_s: 10s
  first_byte_timeout_s: 11
secret: x
backend: []
store: {url: "redis://x", secret: hunter2}
models:
  - {name: m, encoding: token, tokenizer: nope.json}
  - {name: m}
backends:
  - name: A b
    url: http://u:hunter2@x:1
  - name: a
    url: http://h:1
  - name: a
    url: http://h:1
    api_key: ${NOPE}
    engine: vlm
routes:
  - name: r
    policy: wram
    models: [mm]
telemetry: {log_level: loud}
"""


def problems(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        loads(text, "f", environ=environ)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return [str(problem) for problem in caught.value.problems]


def test_twenty_mistakes_are_twenty_located_messages() -> None:
    found = problems(SEEDED)
    assert [":".join(problem.split(":")[:4]) for problem in found] == [
        "f:2:9: listen.host",
        "f:3:9: listen.port",
        "f:4:3: listen.interval_s",
        "f:6:3: limits.conect_timeout_s",
        "f:7:17: limits.max_attempts",
        "f:8:25: limits.first_byte_timeout_s",
        "f:9:3: limits.first_byte_timeout_s",
        "f:10:1: secret",
        "f:11:1: backend",
        "f:12:14: store.url",
        "f:12:35: store.secret",
        "f:14:25: models[0].encoding",
        "f:14:43: models[0].tokenizer",
        "f:15:12: models[1].name",
        "f:17:11: backends[0].name",
        "f:18:10: backends[0].url",
        "f:21:11: backends[2].name",
        "f:22:10: backends[2].url",
        "f:23:14: backends[2].api_key",
        "f:24:13: backends[2].engine",
        "f:27:13: routes[0].policy.name",
        "f:28:14: routes[0].models[0]",
        "f:29:24: telemetry.log_level",
    ]
    assert "hunter2" not in "\n".join(found)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("limits: {conect_timeout_s: 1}", "did you mean connect_timeout_s?"),
        ("connect_timeout_s: 1", "did you mean limits.connect_timeout_s?"),
        ("health: {connect_timeout: 1}", "did you mean limits.connect_timeout_s?"),
        ("limits: {port: 1}", "did you mean listen.port or admin.port?"),
        ("backend: []", "did you mean backends?"),
        ("auth: {}", "known here: listen, admin, store, models"),
        ("tenants: []", "known here: "),
        ("discovery: {}", "known here: "),
        ("admission: {}", "known here: "),
        ("routes: [{name: r, policy: {name: warm, crowd: 1}}]", "did you mean crowd_s?"),
        ("routes: [{name: r, crowd_s: 1}]", "did you mean routes[].policy.crowd_s?"),
        ("sessions: {qqqqqq: 1}", "known here: idle_ttl_s, max_sessions, lineage"),
    ],
)
def test_unknown_keys_are_errors_with_a_hint(text: str, hint: str) -> None:
    (problem,) = problems(f"backends: [{{name: a, url: 'http://h:1'}}]\n{text}")
    assert "unknown key (" in problem
    assert hint in problem


@pytest.mark.parametrize("text", ["", "7", "[]", "text", "# only a comment"])
def test_a_file_that_is_no_config(text: str) -> None:
    assert len(problems(text)) == 1


def test_a_section_whose_keys_are_commented_out_has_its_defaults() -> None:
    config = loads("backends: [{name: a, url: 'http://h:1'}]\nlimits:\n  # nothing\nmodels:\n")
    assert config.limits == default_config().limits
    assert config.models == ()


def test_o75_defaults_are_long_for_reads_and_separate() -> None:
    limits = default_config().limits
    assert limits.connect_timeout_s == 5
    assert limits.first_byte_timeout_s == limits.idle_timeout_s == 600


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"none.yaml:1:1: cannot be read: No such file"):
        load(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigErrors, match=r"latin.yaml:2:4: not UTF-8"):
        load(tmp_path / "latin.yaml", {})


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfbackends: [{name: a, url: 'http://h:1'}]\n")
    assert load(tmp_path / "bom.yaml", {}).backends[0].name == "a"


def test_a_config_is_immutable() -> None:
    config = default_config()
    with pytest.raises(ValueError, match="frozen"):
        config.listen = config.listen


def test_id_names_the_settings_without_secrets(tmp_path: Path) -> None:
    text = "backends: [{name: a, url: 'http://h:1', api_key: '${K}'}]\nstore: {secret: '${K}'}\n"
    first, second = (loads(text, environ={"K": value}) for value in ("one", "two"))
    assert first.id == second.id
    assert re.fullmatch(r"[0-9a-f]{12}", first.id)
    assert first.id != loads(text + "listen: {port: 1}", environ={"K": "one"}).id
    assert first.id == loads(text + "listen: {port: 8000}", environ={"K": "one"}).id
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.json").write_text("{}")
    tokens = text + "models: [{name: m, encoding: tokens, tokenizer: t.json}]"
    ids = {loads(tokens, environ={"K": "one"}, base=tmp_path / folder).id for folder in ("x", "y")}
    assert len(ids) == 1


def test_routes_are_found_by_name_and_alias() -> None:
    config = default_config(
        models=[{"name": "m", "aliases": ["m-alias"]}, {"name": "n"}],
        routes=[{"name": "one", "models": ["m-alias"], "policy": "lmetric"}],
    )
    assert config.route("m").name == config.route("m-alias").name == "one"
    assert config.route("m").policy == Policy(name="lmetric")
    assert config.route("n").name == config.route("never-heard-of").name == "default"
    assert config.route("n").policy.name == "warm"
    assert config.model("m-alias") is config.models[0]
    assert config.model("x") is None
    assert [route.name for route in config.all_routes] == ["one", "default"]


def test_the_live_window_is_one_for_all_routes() -> None:
    assert default_config().live_window_s == 300
    assert default_config(routes=[{"name": "r", "policy": {"live_window_s": 60}}]).live_window_s == 60


def test_code_may_pass_sections_as_models_and_secrets_as_they_are() -> None:
    parts = default_config(backends=[{"name": "a", "url": "http://h:1", "api_key": "plain"}], listen={"port": 0})
    again = default_config(backends=parts.backends, listen=parts.listen)
    assert again == parts
    assert again.backends[0].credential == parts.backends[0].credential is not None


def test_full_yaml_is_what_the_models_say() -> None:
    assert (CONFIGS / "full.yaml").read_text() == render(), "run python -m gateway.config.full configs/full.yaml"


def test_full_yaml_shows_the_defaults() -> None:
    full, plain = load(CONFIGS / "full.yaml", {}), default_config()
    for name in Config.model_fields:
        if name not in {"models", "backends", "routes"}:
            assert getattr(full, name) == getattr(plain, name), name
    assert full.all_routes == plain.all_routes
    assert full.warnings == ()


def test_full_yaml_names_every_optional_knob_so_that_it_works_uncommented(tmp_path: Path) -> None:
    lines = (CONFIGS / "full.yaml").read_text().splitlines()
    optional = [i for i, line in enumerate(lines) if re.fullmatch(r" +# [a-z_0-9]+: \S.*", line) and _is_knob(line)]
    assert len(optional) >= 12
    for i in optional:
        text = "\n".join(line.replace("# ", "", 1) if i == k else line for k, line in enumerate(lines))
        found: list[str] = []
        try:
            loads(text, base=tmp_path, environ={"WARMROUTE_SECRET": "s", "GPU_1_KEY": "k"})
        except ConfigErrors as error:
            found = [str(problem) for problem in error.problems]
        # files of the examples do not exist, and some knobs do not go with the rest of the example entry
        assert [p for p in found if not re.search("no such file|has no effect|is kept for", p)] == []


def _is_knob(line: str) -> bool:
    word = line.strip().removeprefix("# ").partition(":")[0]
    return f" {word} " not in {" memory ", " bytes ", " json "}


def test_minimal_yaml() -> None:
    assert len(load(CONFIGS / "minimal.yaml", {}).backends) == 2
