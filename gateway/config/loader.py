"""Text -> Config, or every problem at once: YAML, fields and rules all run on whatever could be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from gateway.config.document import Document, parse
from gateway.config.fields import Surroundings
from gateway.config.messages import explain
from gateway.config.problems import ConfigErrors, Finding, Problem, by_place
from gateway.config.root import Config
from gateway.config.rules import RULES, chat_templates, no_interpolation, shared_keys, some_backend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.config.rules import Rule


def load(path: Path, environ: Mapping[str, str]) -> Config:
    """The config in a file; relative files are taken from its folder. Raises ConfigErrors with all problems."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigErrors([Problem(str(path), 1, 1, "", f"cannot be read: {reason}")]) from None
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        place = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise ConfigErrors([Problem(str(path), *place, "", "not UTF-8")]) from None
    config = _build(parse(text, str(path)), Surroundings(path.parent, environ), (*RULES, some_backend))
    config._source = path
    return config


def loads(
    text: str, name: str = "<text>", *, environ: Mapping[str, str] | None = None, base: Path | None = None
) -> Config:
    """The config in a text. Relative files are taken from `base`, else from the working directory."""
    surroundings = Surroundings(base or Path(), environ or {})
    return _build(parse(text, name), surroundings, (*RULES, some_backend))


def default_config(**overrides: object) -> Config:
    """A config built in code: sections as mappings or models, secrets as they are, backends optional."""
    document = Document("<code>", data=_tree(overrides))
    return _build(document, Surroundings(Path(), {}, literal_secrets=True), RULES)


def _build(document: Document, surroundings: Surroundings, rules: tuple[Rule, ...]) -> Config:
    problems = list(document.problems)
    tree = _without_empty(document.data)
    config: Config | None = None
    if document.data is None and problems:
        raise ConfigErrors(problems)  # no YAML: nothing to judge
    if not isinstance(tree, dict):
        problems.append(document.problem(Finding((), "must be a mapping of sections", "like listen: and backends:")))
        raise ConfigErrors(problems)
    findings = list(no_interpolation(tree))
    explained = {finding.location for finding in findings}
    try:
        config = Config.model_validate(tree, context=surroundings)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # a list whose only item is wrong counts as empty too
        explained |= {detail["loc"] for detail in details if detail["type"] == "too_short"} & {
            detail["loc"][:-1] for detail in details
        }
        problems += [document.problem(explain(detail, Config)) for detail in details if detail["loc"] not in explained]
    findings += [finding for rule in rules for finding in rule(tree)]
    findings += shared_keys(tree, surroundings)
    findings += chat_templates(tree, surroundings)
    problems += [document.problem(finding) for finding in findings if not finding.warning]
    if config is None or problems:
        raise ConfigErrors(problems, surroundings.files)
    config._named_files = tuple(surroundings.files)
    config._warnings = by_place(document.problem(finding) for finding in findings)
    return config


def _without_empty(data: Any) -> Any:
    """A section with nothing in it, as when all its keys are commented out, is a section with its defaults."""
    if data is None:
        return {}
    if not isinstance(data, dict):
        return data
    return {key: value for key, value in data.items() if value is not None or key not in Config.model_fields}


def _tree(value: Any) -> Any:
    """Plain data in the shape that parsing gives: dicts, tuples, scalars."""
    if isinstance(value, BaseModel):
        return {key: _tree(getattr(value, key)) for key in value.model_fields_set}
    if isinstance(value, dict):
        return {key: _tree(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_tree(inner) for inner in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value
