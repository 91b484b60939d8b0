"""Limit the rate of password and token guesses.

The first few wrong guesses from an address are free; after that the delay doubles up to a
minute. All addresses also share a budget, so guessing from many addresses does not help. Users
who are logged in are never delayed: only requests that carry a guess are limited.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Chosen by hand: a person who mistypes a few times is not delayed, and at a minute per guess
# only the weakest passwords can be found.
FREE_GUESSES = 5
LONGEST_WAIT_S = 60.0
FORGOTTEN_AFTER_S = 900.0
MOST_ADDRESSES = 4096  # Bounds the memory that an attacker with many addresses can take.
BURST, REFILL_S = 60, 1.0
"""Budget of wrong guesses shared by all addresses, and seconds until one is refilled."""


@dataclass
class _Record:
    failures: int = 0
    last: float = 0.0
    until: float = field(default=0.0)


class RateLimiter:
    """Counts wrong guesses per address and in total; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._spent, self._counted_at = 0.0, clock()

    def wait_s(self, address: str) -> float:
        """Return for how many seconds guesses from an address are refused; 0 if not at all."""
        now, key = self._clock(), group_of(address)
        record = self._records.get(key)
        own = max(0.0, record.until - now) if record is not None else 0.0
        if own or key in self._known:
            return own
        # An address that logged in before does not pay for guesses from other addresses.
        over = self._spent_now(now) + 1 - BURST
        return max(0.0, over * REFILL_S)

    def fail(self, address: str) -> None:
        """Record a wrong guess from an address."""
        now, key = self._clock(), group_of(address)
        self._spent = min(self._spent_now(now) + 1, BURST + LONGEST_WAIT_S / REFILL_S / 4)
        self._counted_at = now
        record = self._records.pop(key, _Record())
        if now - record.last > FORGOTTEN_AFTER_S:
            record = _Record()
        record.failures, record.last = record.failures + 1, now
        over = record.failures - FREE_GUESSES
        record.until = now + min(LONGEST_WAIT_S, 2.0 ** min(over - 1, 10)) if over > 0 else 0.0
        self._records[key] = record
        while len(self._records) > MOST_ADDRESSES:
            self._records.popitem(last=False)

    def succeed(self, address: str) -> None:
        """Clear the wrong guesses of an address after a correct one."""
        key = group_of(address)
        self._records.pop(key, None)
        self._known.pop(key, None)
        self._known[key] = None
        while len(self._known) > MOST_ADDRESSES:
            self._known.popitem(last=False)

    def _spent_now(self, now: float) -> float:
        return max(0.0, self._spent - (now - self._counted_at) / REFILL_S)


def group_of(address: str) -> str:
    """Return the key that guesses are counted by: an IPv4 address, or an IPv6 /64 network.

    A single user is commonly given a whole /64 network.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((found, 64), strict=False))
    return str(found)


def address_of(scope: Scope) -> str:
    """Return the client address of a connection; forwarding headers are not read here."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def refusal(wait_s: float) -> Response:
    """Return the 429 response for a client that has to wait."""
    seconds = math.ceil(wait_s)
    text = f"Too many failed attempts. Try again in {seconds} s."
    return JSONResponse(
        {"error": text, "detail": text},
        429,
        {"retry-after": str(seconds), "cache-control": "no-store"},
    )


class LoginRateLimit:
    """ASGI middleware that limits the rate of password guesses at Gradio's login."""

    def __init__(self, app: ASGIApp, limiter: RateLimiter) -> None:
        self._app = app
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 429 to a guess that comes too early."""
        is_guess = scope["type"] == "http" and scope["path"].rstrip("/").endswith("/login")
        if not is_guess or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        address = address_of(scope)
        wait_s = self._limiter.wait_s(address)
        if wait_s:
            await refusal(wait_s)(scope, receive, send)
            return
        # Counted before the password is checked, so that parallel guesses are all counted.
        self._limiter.fail(address)

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self._limiter.succeed(address)
            await send(message)

        await self._app(scope, receive, watch)
