"""What a known caller's JSON body may hold, and the body that its backend gets instead.

Everything passes byte for byte but for the top-level member `cache_salt`. Members are found as a parser finds them:
under any spelling of their name, the last of several, in any encoding that JSON may come in. Invariant: a body that an
engine could read as an object is looked at whole, or refused.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from vocabulary.errors import FieldNotAllowed, InvalidJson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.access.caller import Caller

    Members = Mapping[str, msgspec.Raw | bytes]

_SALT: Final = "cache_salt"
_INTERNAL: Final = frozenset(
    (
        "kv_transfer_params",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "disagg_prefill_dp_rank",
        "routed_dp_rank",
        "data_parallel_rank",
    )
)
"""vLLM's and SGLang's own: they make an engine connect elsewhere, read foreign KV, or choose where it computes."""
_INTERNAL_WITHIN: Final = {
    "vllm_xargs": frozenset(("kv_transfer_params",)),
    "nvext": frozenset(("backend_instance_id", "decode_worker_id", "prefill_worker_id", "dp_rank")),
}
_OTHER_MODEL: Final = "lora_path"
"""SGLang's: an adapter besides the model that is named."""
_OBJECT: Final = re.compile(rb"[ \t\r\n]*\{")
_OPENING: Final = re.compile(rb"[ \t\r\n]*\{(?=[ \t\r\n]*(\}?))")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LENIENT: Final = json.JSONDecoder(parse_int=str, parse_float=str)
"""Of numbers only the end matters, and Python refuses very long ones."""


class Rewrite(NamedTuple):
    """How the body of one request is changed for its backend."""

    salt: bytes
    has_own: bool
    """The client has sent a salt."""
    spliced: bool
    """The salt can be put in front of what is there."""

    def apply(self, body: bytes, *, takes_salt: bool) -> bytes:
        """`takes_salt`: the backend knows the field; others may refuse it, and get none."""
        if not takes_salt:
            return _joined(body, None) if self.has_own else body
        if not self.spliced:
            return _joined(body, self.salt)
        match = _OPENING.match(body)
        assert match is not None
        comma = b"" if match[1] else b","
        return b"".join((b'{"cache_salt":"', self.salt, b'"', comma, memoryview(body)[match.end() :]))


def guard(body: bytes, caller: Caller) -> Rewrite | None:
    """None: the body passes as it is. Raises FieldNotAllowed, or InvalidJson for an object that cannot be read."""
    members = _members(body)
    if members is None:
        return None
    _check(members, caller)
    if caller.salt is None:
        return None
    has_own = _SALT in members
    return Rewrite(caller.salt, has_own, not has_own and json.detect_encoding(body) == "utf-8")


def _check(members: Members, caller: Caller) -> None:
    found = next((name for name in members if name in _INTERNAL), None)
    if found is None and caller.models is not None and _OTHER_MODEL in members:
        found = _OTHER_MODEL
    for outer, names in _INTERNAL_WITHIN.items():
        if outer in members:
            inner = _members(bytes(members[outer])) or ()
            found = found or next((f"{outer}.{name}" for name in inner if name in names), None)
    if found is not None:
        raise FieldNotAllowed(f"{found} speaks to the inside of the fleet and may not be sent", param=found)


def _members(body: bytes) -> Members | None:
    """The members of a JSON object, each value as its own text. None: no object."""
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        if not _OBJECT.match(body):
            return None
        try:
            return _MEMBERS.decode(body)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            pass
    try:
        text = body.decode(encoding, "surrogatepass")
    except UnicodeDecodeError:
        return None
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return None
    try:
        return _scan(text, at + 1)
    except (ValueError, RecursionError):
        raise InvalidJson("the request body is not valid JSON") from None


def _scan(text: str, at: int) -> dict[str, bytes]:
    """What the fast decoder refuses but engines may take: lone surrogates, NaN, other encodings. Raises ValueError."""
    members: dict[str, bytes] = {}
    at = _skip(text, at)
    while text[at : at + 1] != "}":
        if members:
            at = _skip(text, _past(text, at, ","))
        _past(text, at, '"')
        name, at = _LENIENT.raw_decode(text, at)
        start = _skip(text, _past(text, _skip(text, at), ":"))
        _, at = _LENIENT.raw_decode(text, start)
        members[name] = text[start:at].encode("utf-8", "surrogatepass")
        at = _skip(text, at)
    if _skip(text, at + 1) != len(text):
        raise ValueError("something follows the object")
    return members


def _past(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        raise ValueError(f"{mark} is missing")
    return at + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _joined(body: bytes, salt: bytes | None) -> bytes:
    """The object anew, with this salt or none."""
    return _anew(_members(body) or {}, _SALT, None if salt is None else b'"%b"' % salt)


def with_member(body: bytes, name: str, value: bytes) -> bytes | None:
    """The object anew, with this value (JSON text) in the place of another. None where it cannot be read."""
    try:
        members = _members(body)
    except InvalidJson:
        return None
    return None if members is None else _anew(members, name, value)


def _anew(members: Members, name: str, value: bytes | None) -> bytes:
    """From the very texts of the members; `name` has this value, or is left out."""
    parts = [] if value is None else [b'"%b":%b' % (name.encode(), value)]
    for other, text in members.items():
        if other != name:
            parts.append(b"%b:%b" % (json.dumps(other).encode(), bytes(text)))
    return b"{%b}" % b",".join(parts)
