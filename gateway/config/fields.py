"""Kinds of values that knobs take: ranges, names, addresses, files and secrets, each with its own message.

A value that fails is never repeated in the message: it may be a secret in the wrong place.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo
from pydantic_core import PydanticCustomError

FAULT: Final = "warmroute"
"""Type of our own validation errors; they carry `message` and `hint`."""
_ENVIRONMENT_NAME: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SCHEMES: Final = ("http", "https")
_MAX_SECRET_BYTES: Final = 65_536


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


def fault(message: str, hint: str = "") -> PydanticCustomError:
    # the arguments are ours and never a format string
    return PydanticCustomError(FAULT, "{message}", {"message": message, "hint": hint})


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9_.-]{1,64}", value):
        raise fault("must be 1 to 64 of a-z 0-9 _ . -")
    return value


def _model_name(value: str) -> str:
    if not re.fullmatch(r"[!-~]{1,256}", value):
        raise fault("must be 1 to 256 printable ASCII characters without spaces")
    return value


def _host(value: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z_.:\-\[\]]{1,253}", value):
        raise fault("must be a host name or an IP address, without port", "the port has a key of its own")
    return value


def _path(value: str) -> str:
    if not re.fullmatch(r"/[!-~]*", value):
        raise fault("must be a path that starts with /")
    return value


def _backend_url(value: str) -> str:
    """Scheme and authority only, in lower case: `http://10.0.0.1:8000`."""
    try:
        parts = urlsplit(value)
        port = parts.port
        host = parts.hostname
    except ValueError:
        raise fault("not a readable URL", "like http://10.0.0.1:8000") from None
    # urlsplit quietly drops tabs and newlines
    if not re.fullmatch(r"[!-~]+", value) or "\\" in value:
        raise fault("not a readable URL", "like http://10.0.0.1:8000")
    if "@" in value:
        raise fault("a URL holds no credentials", "use api_key: ${NAME} or api_key_file")
    if parts.scheme.lower() not in _SCHEMES or not host:
        raise fault("must start with http:// or https:// and name a host", "like http://10.0.0.1:8000")
    if port == 0:
        raise fault("port 0 is not an address")
    authority = f"[{host}]" if ":" in host else host
    base = f"{parts.scheme.lower()}://{authority}" + (f":{port}" if port is not None else "")
    if parts.path not in ("", "/") or parts.query or parts.fragment or value.endswith(("?", "#")):
        raise fault("only scheme, host and port: the gateway adds the paths itself", f"write {base}")
    return base


def _existing_file(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise fault("must be the path of a file")
    surroundings: Surroundings | None = info.context
    path = Path(value) if surroundings is None else surroundings.base / value
    if path.is_dir():
        raise fault("is a folder, not a file")
    try:
        with path.open("rb"):
            return path
    except FileNotFoundError:
        where = "" if surroundings is None or Path(value).is_absolute() else f", looked for in {surroundings.base}"
        raise fault(f"no such file{where}") from None
    except (OSError, ValueError) as error:
        raise fault(f"cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}") from None


def _header_safe(secret: str) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", secret):
        raise fault("must be printable ASCII without spaces or line breaks")
    return SecretStr(secret)


def _from_environment(value: Any, info: ValidationInfo) -> SecretStr | None:
    if value is None or isinstance(value, SecretStr):
        return value
    surroundings: Surroundings | None = info.context
    if not isinstance(value, str):
        raise fault("must be ${NAME}, the name of an environment variable")
    if surroundings is None or surroundings.literal_secrets:
        return _header_safe(value)
    match = _ENVIRONMENT_NAME.fullmatch(value)
    if match is None:
        raise fault("secrets do not stand in the config", "write ${NAME} and set the environment variable NAME")
    secret = surroundings.environ.get(match[1])
    if not secret:
        raise fault(f"environment variable {match[1]} is {'not set' if secret is None else 'empty'}")
    return _header_safe(secret)


def _from_file(value: Any, info: ValidationInfo) -> SecretStr | None:
    if value is None or isinstance(value, SecretStr):
        return value
    path = _existing_file(value, info)
    with path.open("rb") as stream:
        raw = stream.read(_MAX_SECRET_BYTES + 1)
    try:
        text = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        raise fault("the file does not hold one line of printable ASCII") from None
    if len(raw) > _MAX_SECRET_BYTES or not text:
        raise fault("the file is empty" if not text else "the file is too large for a secret")
    return _header_safe(text)


Seconds = Annotated[float, Field(gt=0, le=86_400)]
SecondsOrZero = Annotated[float, Field(ge=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Name = Annotated[str, AfterValidator(_name)]
ModelName = Annotated[str, AfterValidator(_model_name)]
Host = Annotated[str, AfterValidator(_host)]
UrlPath = Annotated[str, AfterValidator(_path)]
BackendUrl = Annotated[str, AfterValidator(_backend_url)]
ExistingFile = Annotated[Path, BeforeValidator(_existing_file)]
Secret = Annotated[SecretStr | None, BeforeValidator(_from_environment)]
"""`${NAME}`: read from the environment when the config is loaded."""
SecretFile = Annotated[SecretStr | None, BeforeValidator(_from_file)]
"""A file whose only line is the secret: read when the config is loaded."""
