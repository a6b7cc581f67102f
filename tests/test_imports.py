"""The import directions of the design, by reading every file: no import at run time is needed, none is missed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "gateway": {"gateway", "routing", "prefix_index", "backends", "vocabulary"},
    "routing": {"routing", "prefix_index", "vocabulary"},
    "prefix_index": {"prefix_index", "vocabulary"},
    "backends": {"backends", "vocabulary"},
    "vocabulary": {"vocabulary"},
}
"""What each package may import of ours."""

ENGINE_ALLOWED = ("backends.engine.", "vocabulary.")
"""The simulated engine judges the gateway: it shares no code with it."""


def imported(source: str, module: str) -> set[str]:
    """Dotted names that a module imports, those under TYPE_CHECKING and inside functions included. `module` is the
    module's own dotted name, with `.__init__` for a package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from a import b`: b may be a module of its own
            found |= {name, *(f"{name}.{alias.name}".lstrip(".") for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return found


def offences(source: str, module: str) -> set[str]:
    """Imports of ours that the design does not allow in this module."""
    package = module.split(".")[0]
    ours = {name for name in imported(source, module) if name.split(".")[0] in {*ALLOWED, "tests"}}
    bad = {name for name in ours if name.split(".")[0] not in ALLOWED[package]}
    if module.startswith("backends.engine."):
        bad |= {name for name in ours if name != "backends" and not f"{name}.".startswith(ENGINE_ALLOWED)}
    elif module.startswith("backends."):
        bad |= {name for name in ours if f"{name}.".startswith("backends.engine.")}
    return bad


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in ALLOWED
    for path in sorted((ROOT / package).rglob("*.py"))
}


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    assert not offences(MODULES[module].read_text("utf-8"), module)


def test_every_package_was_read() -> None:
    assert {module.split(".")[0] for module in MODULES} == set(ALLOWED)
    assert len(MODULES) > 50


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("routing.decision", "from gateway.app import Gateway"),
        ("routing.decision", "import backends.instance"),
        ("routing.decision", "def f():\n    from backends import instance"),
        ("routing.decision", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from backends.x import Y"),
        ("prefix_index.memory", "import routing"),
        ("prefix_index.encoding.worker", "from ... import routing"),
        ("prefix_index.memory", "from ..gateway import app"),
        ("backends.upstream", "from prefix_index.keys import root_state"),
        ("backends.upstream", "from routing import decide"),
        ("backends.upstream", "from backends.engine.core import EngineCore"),
        ("backends.engine.core", "from backends.upstream import Pool"),
        ("backends.engine.core", "from prefix_index.keys import root_state"),
        ("vocabulary.__init__", "from backends.health import State"),
        ("vocabulary.errors", "import gateway"),
        ("routing.decision", "import importlib\nimportlib.import_module('gateway.app')"),
        ("gateway.app", "from tests.support.gateway import chat"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert offences(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gateway.config.fleet", "from backends.engine.setups import SETUPS"),
        ("gateway.router", "from routing import decide\nfrom prefix_index.memory import MemoryIndex"),
        ("routing.facts", "from vocabulary import Trust\nfrom routing.prefill import DEFAULT_P"),
        ("backends.engine.core", "from backends.engine.cache import Cache\nfrom vocabulary.errors import ConfigError"),
        ("backends.engine.core", "from . import cache"),
        ("prefix_index.encoding.worker", "from .. import keys\nimport backends_of_someone_else"),
    ],
)
def test_an_allowed_import_is_no_offence(module: str, source: str) -> None:
    assert not offences(source, module)
