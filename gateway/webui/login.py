"""Who has logged in: signed cookies that every gateway can check, and tries that all gateways count together.

A cookie is ``expires.nonce.signature``. The key is made from the password (slowly, so that a cookie is no quick test of
guesses) and the deployment's secret where the operator set one: gateways that share these share their logins without
asking the store, and another password ends all of them. Only what was logged out is kept in Redis. While that is away
a cookie that was logged out at another gateway may still pass.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker.api import Broker
from broker.errors import RuncastError
from broker.settings import Settings

__all__ = ["TRIES", "WINDOW", "Claim", "Login", "who_tries"]

TRIES, WINDOW = 5, 60
"""So many tries in so many seconds from one address; a right password forgets them."""
_STORE_PATIENCE = 0.5
_REMEMBERED = 5.0
"""Seconds for which “not logged out” is believed without asking again."""
_MEMORY = 10_000


class Claim(NamedTuple):
    """What a cookie says, its signature being right. ``expires``: seconds since the epoch."""

    expires: int
    nonce: str


class Login:
    """One password. ``ttl``: seconds that a login lasts; ``get_broker`` raises ``StoreUnavailable`` without one."""

    def __init__(self, password: str, ttl: float, settings: Settings, get_broker: Callable[[], Broker]) -> None:
        salt = f"runcast login {settings.namespace}".encode()
        slow = hashlib.scrypt(_bytes(password), salt=salt, n=2**14, r=8, p=1)
        secret = settings.secret.get_secret_value() if settings.secret is not None else ""
        self._key = hmac.digest(slow, _bytes(secret), "sha256")
        self._password = self._sign(password)
        self._get_broker = get_broker
        self._out = _Memory()
        self._tries = _Memory()
        self.ttl = int(ttl)
        self.cookie = f"{settings.namespace}_session"
        """The cookie's name. Browsers tell cookies apart by host and name, not by port."""

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, _bytes(text), "sha256").hexdigest()

    def is_password(self, given: str) -> bool:
        """Tells nothing by the time that it takes."""
        return hmac.compare_digest(self._sign(given), self._password)

    def issue(self) -> str:
        """A new cookie's value, good for ``ttl`` seconds."""
        said = f"{int(time.time()) + self.ttl}.{secrets.token_hex(16)}"
        return f"{said}.{self._sign('cookie ' + said)}"

    def read(self, values: Sequence[str]) -> Claim | None:
        """The first of a request's cookies that was issued here and has not expired."""
        for value in values:
            said, _, signature = value.rpartition(".")
            if hmac.compare_digest(_bytes(self._sign("cookie " + said)), _bytes(signature)):
                expires, _, nonce = said.partition(".")
                if int(expires) > time.time():
                    return Claim(int(expires), nonce)
        return None

    async def is_in(self, values: Sequence[str]) -> bool:
        """Whether one of the cookies is a login that nobody ended. Waits for the store for half a second at most."""
        claim = self.read(values)
        return claim is not None and not await self._is_out(claim)

    async def _is_out(self, claim: Claim) -> bool:
        known = self._out.get(claim.nonce)
        if known is not None:
            return bool(known)
        gone = await self._asked(lambda broker: [(b"EXISTS", broker.keys.logged_out(claim.nonce))])
        out = bool(gone and gone[0])
        self._out.put(claim.nonce, int(out), claim.expires - time.time() if out else _REMEMBERED)
        return out

    async def end(self, claim: Claim) -> None:
        """Log out: at once here, within seconds at every other gateway. Raises ``StoreUnavailable`` where only the
        first half was possible."""
        left = max(int(claim.expires - time.time()), 1)
        self._out.put(claim.nonce, 1, left)
        broker = self._get_broker()
        await broker.store.call(b"SET", broker.keys.logged_out(claim.nonce), b"1", b"EX", left)

    async def may_try(self, who: str) -> bool:
        """Counts a try from this address; whether it is one of those that are allowed."""
        here = (self._tries.get(who) or 0) + 1
        self._tries.put(who, here, WINDOW, keep=True)
        counted = await self._asked(
            lambda broker: [
                (b"INCR", key := broker.keys.login_tries(who)),
                (b"EXPIRE", key, WINDOW, b"NX"),
            ]
        )
        return max(here, counted[0] if counted else 0) <= TRIES

    async def forget_tries(self, who: str) -> None:
        """The password was right."""
        self._tries.drop(who)
        await self._asked(lambda broker: [(b"DEL", broker.keys.login_tries(who))])

    async def _asked(self, commands: Callable[[Broker], Sequence[Sequence[Any]]]) -> list[Any] | None:
        """The store's answers; ``None`` where it is away, which is no reason to lock anybody out."""
        try:
            broker = self._get_broker()
            async with asyncio.timeout(_STORE_PATIENCE):
                return await broker.store.pipeline(commands(broker))
        except (RuncastError, TimeoutError):
            return None


def who_tries(host: str | None) -> str:
    """Whose tries are counted together: an address, of IPv6 the network that one household has to itself."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class _Memory:
    """Numbers that are forgotten: after their time, or, the oldest first, when there are too many."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def get(self, name: str) -> int | None:
        value, until = self._held.get(name, (0, 0.0))
        return value if time.monotonic() < until else None

    def put(self, name: str, value: int, seconds: float, *, keep: bool = False) -> None:
        """``keep``: one that is there keeps its time."""
        now = time.monotonic()
        _, until = self._held.get(name, (0, 0.0))
        self._held[name] = (value, until if keep and until > now else now + seconds)
        if len(self._held) > _MEMORY:
            self._held.popitem(last=False)

    def drop(self, name: str) -> None:
        self._held.pop(name, None)
