"""Which instance keeps which answer of the Responses API: engines hold them in their own memory, and a request that
names one (`previous_response_id`, `/v1/responses/ID`) can be served nowhere else.

Invariants: at most `max_ids`, the least recently named go first; one tenant never finds what another one made; ids are
kept as keyed digests only.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from gateway.access.caller import EVERYONE
from gateway.endpoints import response_id
from vocabulary.errors import ResponseNotFound

if TYPE_CHECKING:
    from vocabulary import InstanceId, TenantId

_MAX_IDS: Final = 65_536
_DIGEST_BYTES: Final = 16
_FIELD: Final = b'"previous_response_id"'
_ESCAPE: Final = b"\\u00"


class _Names(msgspec.Struct):
    previous_response_id: str | None = None


_NAMES: Final = msgspec.json.Decoder(_Names)


class ResponseIds:
    def __init__(self, secret: bytes, max_ids: int = _MAX_IDS) -> None:
        """`secret` has 1 to 64 bytes."""
        self._secret = secret
        self._max_ids = max_ids
        self._holders: OrderedDict[bytes, InstanceId] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def learn(self, tenant: TenantId, answer_id: str, instance: InstanceId) -> None:
        """The instance has made this answer."""
        holders = self._holders
        digest = self._digest(tenant, answer_id)
        holders[digest] = instance
        holders.move_to_end(digest)
        if len(holders) > self._max_ids:
            holders.popitem(last=False)

    def find(self, tenant: TenantId, answer_id: str) -> InstanceId | None:
        digest = self._digest(tenant, answer_id)
        instance = self._holders.get(digest)
        if instance is not None:
            self._holders.move_to_end(digest)
        return instance

    def holder(self, tenant: TenantId, target: bytes, body: bytes) -> InstanceId | None:
        """Where a request must go; None where it names no answer, or one that may be anywhere.

        Raises ResponseNotFound where that is somebody else's, for all we know: engines do not ask whose it is.
        """
        named = response_id(target.partition(b"?")[0]) or _previous(body)
        if named is None:
            return None
        instance = self.find(tenant, named)
        if instance is None and tenant != EVERYONE:
            raise ResponseNotFound("there is no such response")
        return instance

    def _digest(self, tenant: TenantId, answer_id: str) -> bytes:
        owner = tenant.encode("utf-8", "surrogatepass")
        framed = b"%d:%b%b" % (len(owner), owner, answer_id.encode("utf-8", "surrogatepass"))
        return blake2b(framed, digest_size=_DIGEST_BYTES, key=self._secret).digest()


def _previous(body: bytes) -> str | None:
    if _FIELD not in body and _ESCAPE not in body and json.detect_encoding(body) == "utf-8":
        return None
    try:
        return _NAMES.decode(body).previous_response_id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _previous_leniently(body)


def _previous_leniently(body: bytes) -> str | None:
    """An engine may take what the strict decoder refuses, and another's answer must not hide in it."""
    try:
        found = json.loads(body).get("previous_response_id")
    except (AttributeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None
