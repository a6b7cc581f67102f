"""Hosts, networks, paths and URLs."""

import ipaddress
import re
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from backends.addresses import AddressFault, base_url, unsafe
from gateway.config.fields import fault, text

_HOST: Final = r"[0-9A-Za-z_.:\-\[\]]{1,253}"
_ZMQ_HOST: Final = r"[0-9A-Za-z_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]"
_PATH: Final = "/[!-~]*"
_PASSED_PATH: Final = r"/v1/[A-Za-z0-9_./-]*\*?"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host(value: str) -> str:
    if not re.fullmatch(_HOST, value):
        raise fault("must be a host name or an IP address, without port", "the port has a key of its own")
    return value


def _called_host(value: str) -> str:
    return _host(value).strip("[]").lower()


def _path(value: str) -> str:
    if not re.fullmatch(_PATH, value):
        raise fault("must be a path that starts with /")
    return value


def _passed_path(value: str) -> str:
    if not re.fullmatch(_PASSED_PATH, value) or ".." in value or "//" in value or value == "/v1/*":
        raise fault("must be a path below /v1/, with at most one * at its end", "like /v1/pooling or /v1/images/*")
    return value


def _cidr(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        raise fault("must be a network, like 10.0.0.0/8 or 10.0.0.7") from None


def _host_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") or ":" not in host
    if not host or not bracketed or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65_535:
        raise fault("must be HOST:PORT", "like 127.0.0.1:9100 or [::1]:9100")
    return f"{_host(host)}:{int(port)}"


def _port_or_name(value: Any) -> int | str:
    if isinstance(value, str) and re.fullmatch("[a-z0-9-]{1,63}", value) and not value.isdecimal():
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65_535:
        return value
    raise fault("must be a number from 1 to 65535, or the name of a port", "a number without quotes")


def _backend_url(value: str) -> str:
    """Scheme and authority only, in lower case: `http://10.0.0.1:8000`."""
    try:
        return base_url(value)
    except AddressFault as error:
        raise fault(error.message, error.hint) from None


def _jwks_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        host = parts.hostname or ""
        port = parts.port
    except ValueError:
        raise fault("not a readable URL") from None
    if not re.fullmatch(r"[!-~]+", value) or "\\" in value or "@" in value or parts.fragment or not host or port == 0:
        raise fault("not a readable URL, or one with credentials or a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise fault("must be https: who can change the answer can let anybody in")
    if (reason := unsafe(host)) is not None:
        raise fault(f"not an address of a signer: {reason}")
    return value


def _endpoint(value: str, *, any_host: bool) -> str:
    scheme, _, rest = value.partition("://")
    host, _, port = rest.rpartition(":")
    listens = any_host and host == "*"
    if scheme != "tcp" or not (listens or re.fullmatch(_ZMQ_HOST, host)) or not re.fullmatch("[0-9]{1,5}", port):
        raise fault("must be tcp://HOST:PORT", "like tcp://10.0.0.1:5557")
    if not 1 <= int(port) <= 65_535:
        raise fault("the port must be from 1 to 65535")
    if not listens and (reason := unsafe(host)) is not None:
        hint = "write * for all addresses" if any_host else ""
        raise fault(f"not an address of an engine: {reason}", hint)
    return f"tcp://{host}:{int(port)}"


def _event_endpoint(value: str) -> str:
    return _endpoint(value, any_host=True)


def _connected_endpoint(value: str) -> str:
    return _endpoint(value, any_host=False)


Port = Annotated[int, Field(ge=0, le=65_535)]
PortOrName = Annotated[
    int | str,
    BeforeValidator(_port_or_name),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "maximum": 65_535, "pattern": "^[a-z0-9-]{1,63}$"}),
]
Host = Annotated[str, AfterValidator(_host), text(_HOST)]
CalledHost = Annotated[str, AfterValidator(_called_host), text(_HOST)]
"""As a Host header is compared: in lower case, without brackets."""
HostPort = Annotated[str, AfterValidator(_host_port), text(".+:[0-9]{1,5}")]
Cidr = Annotated[str, AfterValidator(_cidr), text("[0-9a-fA-F.:]+(/[0-9]{1,3})?")]
UrlPath = Annotated[str, AfterValidator(_path), text(_PATH)]
PassedPath = Annotated[str, AfterValidator(_passed_path), text(_PASSED_PATH)]
BackendUrl = Annotated[str, AfterValidator(_backend_url), text("[Hh][Tt][Tt][Pp][Ss]?://[!-~]+")]
JwksUrl = Annotated[str, AfterValidator(_jwks_url), text("https?://[!-~]+")]
EventEndpoint = Annotated[str, AfterValidator(_event_endpoint), text("tcp://.+:[0-9]{1,5}")]
"""Of ZMQ; `*` as host means to listen on all addresses."""
ConnectedEndpoint = Annotated[str, AfterValidator(_connected_endpoint), text("tcp://.+:[0-9]{1,5}")]
