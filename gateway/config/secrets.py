"""Secrets and keys: read from the environment or from files when the config is loaded, never from the config itself.

Invariant: a client's key is kept only as its SHA-256 digest; any other secret only as SecretStr.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, SecretStr, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.config.fields import Surroundings, fault
from gateway.config.files import existing_file

_ENVIRONMENT_NAME: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DIGEST: Final = re.compile("sha256:([0-9a-fA-F]{64})")
_MAX_SECRET_BYTES: Final = 65_536


class Secrecy(NamedTuple):
    """Marks a field whose value never leaves the config: not into its id, a diff or a message."""

    source: Literal["environment", "file"]


def _header_safe(secret: str) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", secret):
        raise fault("must be printable ASCII without spaces or line breaks")
    return SecretStr(secret)


def _from_environment(value: Any, info: ValidationInfo) -> SecretStr | None:
    if value is None or isinstance(value, SecretStr):
        return value
    return _header_safe(_environment_text(value, info.context, "must be ${NAME}, the name of an environment variable"))


def _environment_text(value: Any, surroundings: Surroundings | None, expected: str) -> str:
    if not isinstance(value, str):
        raise fault(expected)
    if surroundings is None or surroundings.literal_secrets:
        return value
    match = _ENVIRONMENT_NAME.fullmatch(value)
    if match is None:
        raise fault("secrets do not stand in the config", "write ${NAME} and set the environment variable NAME")
    secret = surroundings.environ.get(match[1])
    if not secret:
        raise fault(f"environment variable {match[1]} is {'not set' if secret is None else 'empty'}")
    return secret


def _from_file(value: Any, info: ValidationInfo) -> SecretStr | None:
    if value is None or isinstance(value, SecretStr):
        return value
    return _header_safe(_secret_text(existing_file(value, info.context)).strip())


def _secret_text(path: Path) -> str:
    with path.open("rb") as stream:
        raw = stream.read(_MAX_SECRET_BYTES + 1)
    if len(raw) > _MAX_SECRET_BYTES:
        raise fault("the file is too large for a secret")
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise fault("the file does not hold printable ASCII") from None
    if not text.strip():
        raise fault("the file is empty")
    return text


def _digest(text: str) -> bytes:
    """`sha256:` and 64 hex digits, or a key in clear of at least 16 characters."""
    if match := _DIGEST.fullmatch(text):
        return bytes.fromhex(match[1])
    if text.startswith("sha256:"):
        raise fault("sha256: takes 64 hex digits")
    if not re.fullmatch(r"[!-~]{16,512}", text):
        raise fault("a key must be 16 to 512 printable ASCII characters without spaces")
    return hashlib.sha256(text.encode()).digest()


def key_digest(value: Any, surroundings: Surroundings | None) -> bytes:
    """Of one item of `api_keys`. Raises a fault."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value.startswith("sha256:"):
        return _digest(value)
    return _digest(_environment_text(value, surroundings, "must be ${NAME}, or sha256: and 64 hex digits"))


def _key(value: Any, info: ValidationInfo) -> bytes:
    return key_digest(value, info.context)


def file_digests(value: Any, surroundings: Surroundings | None) -> tuple[bytes, ...]:
    """Of `api_keys_file`. Raises a fault."""
    if value is None or isinstance(value, tuple):
        return value or ()
    keys = tuple(_file_keys(_secret_text(existing_file(value, surroundings))))
    if not keys:
        raise fault("the file holds no key")
    return keys


def _keys_from_file(value: Any, info: ValidationInfo) -> tuple[bytes, ...]:
    return file_digests(value, info.context)


def _file_keys(text: str) -> Iterator[bytes]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                yield _digest(line.strip())
            except PydanticCustomError as error:
                raise fault(f"line {number} of the file: {error.message()}") from None


_INTERPOLATED: Final = WithJsonSchema({"type": ["string", "null"], "pattern": f"^{_ENVIRONMENT_NAME.pattern}$"})
_PATH: Final = WithJsonSchema({"type": ["string", "null"], "minLength": 1})

Secret = Annotated[SecretStr | None, BeforeValidator(_from_environment), Secrecy("environment"), _INTERPOLATED]
"""`${NAME}`: read from the environment when the config is loaded."""
SecretFile = Annotated[SecretStr | None, BeforeValidator(_from_file), Secrecy("file"), _PATH]
"""A file whose only line is the secret: read when the config is loaded."""
ApiKey = Annotated[
    bytes,
    BeforeValidator(_key),
    WithJsonSchema({"type": "string", "pattern": f"^({_ENVIRONMENT_NAME.pattern}|{_DIGEST.pattern})$"}),
]
ApiKeys = Annotated[tuple[ApiKey, ...], Secrecy("environment")]
"""SHA-256 digests of keys that stand in the environment, or digests themselves."""
ApiKeysFile = Annotated[tuple[bytes, ...], BeforeValidator(_keys_from_file), Secrecy("file"), _PATH]
"""SHA-256 digests of the keys in a file, which is read when the config is loaded."""
