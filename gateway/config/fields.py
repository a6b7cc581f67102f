"""What all values have in common, and the plain ones: ranges and names, each with its own message.

A value that fails is never repeated in the message: it may be a secret in the wrong place.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

FAULT: Final = "warmroute"
"""Type of our own validation errors; they carry `message` and `hint`."""
COMMENTED: Final[dict[str, JsonValue]] = {"commented": True}
"""In full.yaml only as a comment: live, it would contradict the rest, or need something to be there."""
SHOWN: Final[dict[str, JsonValue]] = {"shown": True}
"""In full.yaml with its example instead of its default: the example entry needs it."""


class Section(BaseModel):
    """A mapping of the config: immutable, no unknown keys, no silent conversions ("8000" is not a port)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What values may refer to: passed to validation as `context`."""

    base: Path
    """Folder that relative files are taken from: that of the config file."""
    environ: Mapping[str, str]
    literal_secrets: bool = False
    """A config built in code may hold its secrets itself."""
    files: dict[Path, None] = field(default_factory=dict)
    """Filled by validation: the files that the config names, those that cannot be read too, in the order met."""


def fault(message: str, hint: str = "") -> PydanticCustomError:
    # the arguments are ours and never a format string
    return PydanticCustomError(FAULT, "{message}", {"message": message, "hint": hint})


def text(pattern: str) -> WithJsonSchema:
    """What the JSON Schema says of a text; the message of the validator says more."""
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


_NAME: Final = "[a-z0-9_.-]{1,64}"
_MODEL_NAME: Final = "[!-~]{1,256}"
_WORDS: Final = "[ -~]*[!-~][ -~]*"


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):
        raise fault("must be 1 to 64 of a-z 0-9 _ . -")
    return value


def _model_name(value: str) -> str:
    if not re.fullmatch(_MODEL_NAME, value):
        raise fault("must be 1 to 256 printable ASCII characters without spaces")
    return value


def _words(value: str) -> str:
    if not re.fullmatch(_WORDS, value):
        raise fault("must be printable ASCII, and not empty")
    return value


Seconds = Annotated[float, Field(gt=0, le=86_400)]
SecondsOrZero = Annotated[float, Field(ge=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Name = Annotated[str, AfterValidator(_name), text(_NAME)]
ModelName = Annotated[str, AfterValidator(_model_name), text(_MODEL_NAME)]
Words = Annotated[str, AfterValidator(_words), text(_WORDS)]
