"""Guessing passwords and tokens gets slow; whoever is in, or knows them, hardly notices."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from webui.security import rate_limit as module
from webui.security.rate_limit import (
    BURST,
    FREE_GUESSES,
    LONGEST_WAIT_S,
    LoginRateLimit,
    RateLimiter,
    group_of,
)
from webui.security.token_auth import TokenAuth
from webui.server import _login

TOKEN = "t" * 43


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> RateLimiter:
    return RateLimiter(clock)


def _guess(
    limiter: RateLimiter, clock: Clock, count: int, address: str = "10.0.0.9"
) -> list[float]:
    """Guess wrongly as soon as allowed; return how long each guess had to wait."""
    waits = []
    for _ in range(count):
        waits.append(limiter.wait_s(address))
        clock.now += waits[-1]
        limiter.fail(address)
    return waits


def test_a_few_typing_errors_cost_nothing_and_then_waits_double_up_to_a_minute(
    limiter: RateLimiter, clock: Clock
) -> None:
    waits = _guess(limiter, clock, FREE_GUESSES + 9)

    assert waits[:FREE_GUESSES] == [0.0] * FREE_GUESSES
    assert waits[FREE_GUESSES + 1 :] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_day_of_guessing_from_one_address_is_a_few_thousand_guesses(
    limiter: RateLimiter, clock: Clock
) -> None:
    began, count = clock.now, 0
    while clock.now < began + 86400:
        _guess(limiter, clock, 1)
        count += 1

    assert count < 1500


def test_nobody_waits_longer_than_a_minute_and_others_do_not_wait_at_all(
    limiter: RateLimiter, clock: Clock
) -> None:
    _guess(limiter, clock, 40)

    assert 0 < limiter.wait_s("10.0.0.9") <= LONGEST_WAIT_S
    assert limiter.wait_s("10.0.0.10") == 0
    clock.now += LONGEST_WAIT_S
    assert limiter.wait_s("10.0.0.9") == 0


def test_what_is_right_or_long_ago_is_forgotten(limiter: RateLimiter, clock: Clock) -> None:
    _guess(limiter, clock, 12)
    limiter.succeed("10.0.0.9")
    assert _guess(limiter, clock, FREE_GUESSES) == [0.0] * FREE_GUESSES

    _guess(limiter, clock, 12, "10.0.0.7")
    clock.now += module.FORGOTTEN_AFTER_S + 1
    assert _guess(limiter, clock, FREE_GUESSES, "10.0.0.7") == [0.0] * FREE_GUESSES


def test_many_addresses_share_a_budget_that_who_was_in_before_does_not_feel(
    limiter: RateLimiter, clock: Clock
) -> None:
    limiter.succeed("10.9.9.9")
    for number in range(BURST + 200):
        if not limiter.wait_s(f"10.1.{number // 250}.{number % 250}"):
            limiter.fail(f"10.1.{number // 250}.{number % 250}")

    assert 0 < limiter.wait_s("10.2.0.1") <= 20
    assert limiter.wait_s("10.9.9.9") == 0
    clock.now += 20
    assert limiter.wait_s("10.2.0.1") == 0


def test_memory_is_bounded(limiter: RateLimiter) -> None:
    for number in range(module.MOST_ADDRESSES + 500):
        limiter.fail(f"host-{number}")
        limiter.succeed(f"friend-{number}")

    assert len(limiter._records) == len(limiter._known) == module.MOST_ADDRESSES


def test_a_network_of_ipv6_is_one_address() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:2") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:10.0.0.9") == group_of("10.0.0.9")
    assert group_of("testclient") == "testclient"


def _ask(app: Any, deed: Callable[[httpx.AsyncClient], Any], address: str = "10.0.0.9") -> Any:
    async def ask() -> Any:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await deed(client)

    return asyncio.run(ask())


def _page() -> Starlette:
    async def page(request: Request) -> Response:
        return PlainTextResponse("in")

    return Starlette(routes=[Route("/", page)])


def test_guesses_at_the_token_are_answered_with_when_to_come_again(
    limiter: RateLimiter, clock: Clock
) -> None:
    gate = TokenAuth(_page(), TOKEN, limiter)

    async def guess(client: httpx.AsyncClient) -> list[int]:
        words = [{"params": {"token": "x"}}, {"headers": {"Authorization": "Bearer x"}}] * 4
        return [(await client.get("/", **each)).status_code for each in words]

    async def come_in(client: httpx.AsyncClient, **words: Any) -> httpx.Response:
        return await client.get("/", **words)

    right = {"params": {"token": TOKEN}}
    cookie = {"headers": {"Cookie": f"{gate.cookie}={TOKEN}"}}

    assert _ask(gate, guess) == [401] * 6 + [429] * 2
    refused = _ask(gate, lambda client: come_in(client, **right))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    # Who is in, or comes without a guess, or from elsewhere, is not held up.
    assert _ask(gate, lambda client: come_in(client, **cookie)).status_code == 200
    assert _ask(gate, come_in).status_code == 401
    assert _ask(gate, lambda client: come_in(client, **right), "10.0.0.4").status_code == 303
    clock.now += 1
    assert _ask(gate, lambda client: come_in(client, **right)).status_code == 303


def test_guesses_at_the_password_are_braked_also_when_they_come_all_at_once(
    limiter: RateLimiter, clock: Clock
) -> None:
    is_right = _login("ada:sesam")
    looked_at: list[str] = []

    async def login(request: Request) -> Response:
        password = (await request.body()).decode()
        looked_at.append(password)
        await asyncio.sleep(0)
        return PlainTextResponse("", 200 if is_right("ada", password) else 400)

    app = Starlette(
        routes=[Route("/login", login, methods=["POST"])],
        middleware=[Middleware(LoginRateLimit, limiter=limiter)],
    )

    async def guess_at_once(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post("/login", content=str(n)) for n in range(40)))

    answers = _ask(app, guess_at_once)

    assert len(looked_at) == FREE_GUESSES + 1
    assert {answer.status_code for answer in answers} == {400, 429}
    assert all("retry-after" in a.headers for a in answers if a.status_code == 429)
    clock.now += 1
    right = _ask(app, lambda client: client.post("/login", content="sesam"))
    assert right.status_code == 200
    assert limiter.wait_s("10.0.0.9") == 0


@pytest.mark.parametrize(
    ("name", "password", "expected"),
    [
        ("ada", "se:sam", True),
        ("ada", "se", False),
        ("Ada", "se:sam", False),
        ("ada", "\udcff", False),
        ("", "", False),
    ],
)
def test_a_login_is_compared_whole(name: str, password: str, expected: bool) -> None:
    assert _login("ada:se:sam")(name, password) is expected
