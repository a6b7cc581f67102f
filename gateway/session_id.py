"""Where a session's id comes from, and the key that stands for it inside.

The client's own id stays at the door: inside there is only a digest of tenant and id under the deployment secret.

Order, the most explicit first:

1. `x-session-id`: the caller speaks to this gateway.
2. Agent headers: `x-claude-code-session-id`, `thread-id` with `session-id` (Codex), `x-session-affinity` (OpenCode),
   `x-dynamo-session-id`. A sub-agent has a prompt of its own, hence a session of its own: Claude Code's agent id and
   Codex's thread id refine the session's. Parent ids (`x-claude-code-parent-agent-id`, `x-codex-parent-thread-id`,
   `x-parent-session-id`) name another session than the request's and are no ids.
3. Body fields: `session_id`, the session in `metadata.user_id` (Claude Code), `conversation`, `prompt_cache_key`.
   The key comes last, since some applications give one to many conversations.

No ids: `user`, `safety_identifier` and a `metadata.user_id` without a session (a person has many sessions), and
`previous_response_id` (new with every turn). Invalid ids (empty, over 1,024 bytes, control characters) count as
absent. Without any id the session is found by lineage, see `gateway.sessions`.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from vocabulary import KEY_BYTES, SessionKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vocabulary import BlockKeys, TenantId

MAX_ID_BYTES: Final = 1024
DIGEST_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 64
"""What BLAKE2b takes as its key."""

_HEADERS: Final = frozenset(
    {
        b"x-session-id",
        b"x-claude-code-session-id",
        b"x-claude-code-agent-id",
        b"session-id",
        b"thread-id",
        b"x-session-affinity",
        b"x-dynamo-session-id",
    }
)
_VALID: Final = re.compile(rb"[^\x00-\x1f\x7f]{1,%d}" % MAX_ID_BYTES)
_USER_ID_SESSION: Final = "_session_"
_PART: Final = b"\x00"
"""Joins the parts of an id, and marks lineage: no valid id holds it."""


def from_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The raw session id in a request's headers (names in lower case), or None."""
    found: dict[bytes, bytes] | None = None
    for name, content in headers:
        if name in _HEADERS and (raw := _valid(content)) is not None:
            if found is None:
                found = {}
            found.setdefault(name, raw)
    return None if found is None else _by_precedence(found)


def _by_precedence(found: dict[bytes, bytes]) -> bytes | None:
    if (explicit := found.get(b"x-session-id")) is not None:
        return explicit
    if (session := found.get(b"x-claude-code-session-id")) is not None:
        return _joined(session, found.get(b"x-claude-code-agent-id"))
    session, thread = found.get(b"session-id"), found.get(b"thread-id")
    if session is not None:
        return _joined(session, thread)
    return thread or found.get(b"x-session-affinity") or found.get(b"x-dynamo-session-id")


def from_body(
    session_id: object = None,
    metadata: object = None,
    conversation: object = None,
    prompt_cache_key: object = None,
) -> bytes | None:
    """The raw session id in a request's body, or None. The arguments are decoded JSON values of any shape."""
    return (
        _text(session_id)
        or (_from_metadata(metadata) if metadata is not None else None)
        or _text(conversation.get("id") if isinstance(conversation, dict) else conversation)
        or _text(prompt_cache_key)
    )


def derive(tenant: TenantId, raw_id: bytes, secret: bytes) -> SessionKey:
    """The key of a tenant's session: 16 bytes, keyed BLAKE2b.

    `secret` has 1 to 64 bytes (ValueError beyond, or from an empty one). Two tenants never share a key.
    """
    if not secret:
        raise ValueError("the secret is empty")
    owner = tenant.encode("utf-8", "surrogatepass")
    framed = b"%d:%b%b" % (len(owner), owner, raw_id)
    return SessionKey(blake2b(framed, digest_size=DIGEST_BYTES, key=secret).digest())


def lineage_owner(tenant: TenantId, secret: bytes) -> bytes:
    """What `lineage_key` takes for a tenant; computed once."""
    return derive(tenant, _PART + b"lineage", secret)


def lineage_key(owner: bytes, keys: BlockKeys, prompt_id: int = 0) -> SessionKey:
    """The key of a new session that has no id: named by its first prompt, so that gateways agree on it without talking.

    Both the owner and the prompt's name are already keyed by the secret. `keys` is not empty; `prompt_id` as in
    `SessionStore.find_by_lineage`.
    """
    return SessionKey(owner[:KEY_BYTES] + (prompt_id.to_bytes(8, "little") if prompt_id else keys[-KEY_BYTES:]))


def _valid(raw: bytes) -> bytes | None:
    raw = raw.strip(b" \t")
    return raw if _VALID.fullmatch(raw) else None


def _text(given: object) -> bytes | None:
    return _valid(given.encode("utf-8", "surrogatepass")) if isinstance(given, str) else None


def _joined(session: bytes, part: bytes | None) -> bytes:
    return session if part is None or part == session else session + _PART + part


def _from_metadata(metadata: object) -> bytes | None:
    """Claude Code packs it into `user_id`: `user_…_account_…_session_ID`, or a JSON object with `session_id`."""
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user_id, str):
        return None
    if user_id.startswith("{"):
        try:
            parts = json.loads(user_id)
        except (ValueError, RecursionError):
            return None
        return _text(parts.get("session_id")) if isinstance(parts, dict) else None
    _, found, session = user_id.rpartition(_USER_ID_SESSION)
    return _text(session) if found else None
