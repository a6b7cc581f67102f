"""Who may come in: from a credential to a tenant.

Invariants: `generation` changes with every change of the answer that a credential gets, so whoever remembers one knows
when to ask again; a tenant that stays configured keeps its `Caller`.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.access.caller import Caller, everyone
from gateway.access.credential import Refusal, credential
from gateway.access.jwks import read_key_set
from gateway.access.jwks_fetcher import JwksFetcher
from gateway.access.quota import Quota
from gateway.access.tokens import TokenVerifier
from gateway.session_id import lineage_owner
from vocabulary import TenantId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from gateway.access.metrics import AccessMetrics
    from gateway.access.settings import AccessSettings, TenantSettings
    from gateway.config.access import Jwt

FIRST_FETCH_TIMEOUT_S: Final = 5.0
_SALT_BYTES: Final = 16
_SALT_PURPOSE: Final = b"cache_salt"


class Identity(NamedTuple):
    """What a credential is worth: a caller, or the reason why not."""

    caller: Caller | None
    until_s: float = math.inf
    """By `Access.wall_clock`. A refusal is not to be remembered."""
    refusal: Refusal | None = None


class Access:
    """Lives on one event loop. `start` and `stop` bracket its task, which is there only with `auth.jwt.jwks_url`.

    `secret`: 1 to 64 bytes. `keys_failed` is told of every key set that could not be fetched or used.
    """

    def __init__(
        self,
        settings: AccessSettings,
        secret: bytes,
        metrics: AccessMetrics,
        keys_failed: Callable[[Exception], None],
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.open = True
        """Nobody is asked who they are."""
        self.generation = 0
        self.everyone = everyone(secret)
        self.wall_clock = wall_clock
        self._secret = secret
        self._metrics = metrics
        self._on_keys_failed = keys_failed
        self._clock = clock
        self._jitter = jitter
        self._tenants: dict[str, Caller] = {}
        self._verifier: TokenVerifier | None = None
        self._fetcher: JwksFetcher | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._started = False
        self.apply(settings)

    # Settings.

    def apply(self, settings: AccessSettings) -> None:
        """Take these from now on; counts, running requests and fetched keys stay."""
        self._tenants = {entry.name: self._tenant(entry) for entry in settings.tenants}
        self._metrics.set_tenants(self._tenants.values())
        self._keys = settings.keys
        self._proxies = settings.proxies
        self.forward_credentials = settings.forward_credentials
        if (self._verifier.settings if self._verifier is not None else None) != settings.jwt:
            self._replace_verifier(settings.jwt)
        if self._verifier is not None and settings.key_set is not None:
            self._verifier.set_keys(settings.key_set)
        self.open = not settings.keys and settings.jwt is None
        self.generation += 1

    def _tenant(self, entry: TenantSettings) -> Caller:
        caller = self._tenants.get(entry.name)
        if caller is None:
            tenant = TenantId(entry.name)
            caller = Caller(tenant, lineage_owner(tenant, self._secret), Quota())
        assert caller.quota is not None
        caller.quota.set_limits(entry.max_concurrent_requests, entry.requests_per_min)
        caller.models = entry.models
        caller.salt = cache_salt(entry.name, self._secret) if entry.owns_salt else None
        caller.sees_decisions = entry.sees_decisions
        return caller

    def _replace_verifier(self, jwt: Jwt | None) -> None:
        self._stop_fetching()
        self._verifier = None
        if jwt is None:
            return
        self._verifier = TokenVerifier(jwt, self.wall_clock, self._unknown_key)
        if jwt.jwks_url is not None:
            self._fetcher = JwksFetcher(
                jwt.jwks_url, jwt.jwks_refresh_s, self._take, self._keys_failed, self._clock, self._jitter
            )
            if self._started:
                self._begin_fetching(self._fetcher)

    def _begin_fetching(self, fetcher: JwksFetcher) -> None:
        self._fetching = asyncio.get_running_loop().create_task(fetcher.run())

    def _stop_fetching(self) -> None:
        task, self._fetching, self._fetcher = self._fetching, None, None
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _take(self, text: bytes) -> None:
        """Raises ValueError where the set cannot be used."""
        verifier = self._verifier
        if verifier is not None:
            verifier.set_keys(read_key_set(text, verifier.settings.algorithms))
            self.generation += 1

    def _keys_failed(self, error: Exception) -> None:
        self._metrics.key_set_failed()
        self._on_keys_failed(error)

    def _unknown_key(self) -> None:
        if self._fetcher is not None:
            self._fetcher.fetch_soon()

    # Life.

    async def start(self, timeout_s: float = FIRST_FETCH_TIMEOUT_S) -> None:
        """Returns when the keys of a jwks_url are there, or after the timeout: API keys work without them."""
        self._started = True
        fetcher = self._fetcher
        if fetcher is not None:
            self._begin_fetching(fetcher)
            await fetcher.first(timeout_s)

    async def stop(self) -> None:
        self._started = False
        self._stop_fetching()
        if self._ending:
            await asyncio.wait(set(self._ending))

    # Questions.

    def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> Identity:
        """Who sent a request with these headers (names in lower case)."""
        if self.open:
            return Identity(self.everyone)
        given = credential(headers)
        return Identity(None, 0.0, given) if isinstance(given, Refusal) else self.caller(given)

    def caller(self, given: bytes) -> Identity:
        """Whose credential this is, where any is asked for."""
        owner = self._keys.owner(given)
        until_s = math.inf
        if owner is None:
            if self._verifier is None or not self._verifier.fits(given):
                return Identity(None, 0.0, Refusal.UNKNOWN)
            verified = self._verifier.verify(given)
            if isinstance(verified, Refusal):
                return Identity(None, 0.0, verified)
            owner, until_s = verified
        caller = self._tenants.get(owner)
        return Identity(None, 0.0, Refusal.UNKNOWN) if caller is None else Identity(caller, until_s)

    def tenant(self, name: str) -> Caller | None:
        return self._tenants.get(name)

    @property
    def tenants(self) -> Collection[Caller]:
        return self._tenants.values()

    def trusts(self, peer: str | None) -> bool:
        """The peer of a connection is a proxy that is believed about who stands behind it."""
        return self._proxies.trusts(peer)


def cache_salt(tenant: str, secret: bytes) -> bytes:
    """A tenant's own salt, 32 hex digits: nobody finds it without the secret (1 to 64 bytes)."""
    digest = blake2b(tenant.encode(), digest_size=_SALT_BYTES, key=secret, person=_SALT_PURPOSE)
    return digest.hexdigest().encode()
