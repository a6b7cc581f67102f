"""Snapshots of what operators' scripts rely on: keys and types, not values.

After a change that is meant: WARMROUTE_UPDATE_SNAPSHOTS=1 pytest, and look at the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "snapshots"


def shape(value: Any) -> Any:
    """The same tree with type names for values."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return "null" if value is None else type(value).__name__


def assert_snapshot(name: str, value: Any) -> None:
    """Order of keys included: people read this too."""
    path = FOLDER / f"{name}.json"
    text = json.dumps(shape(value), indent=2) + "\n"
    if os.environ.get("WARMROUTE_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8"), f"{path.name} differs: a change that operators will notice"
