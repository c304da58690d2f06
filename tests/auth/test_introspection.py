"""Introspection of opaque tokens, and the cache of its answers."""

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from postd.auth.introspection import (
    ACCEPTED_TTL_S,
    CACHE_MAX,
    PENDING_MAX,
    REFUSED_TTL_S,
    REQUESTS_MAX,
    WAIT_MAX_S,
    Introspector,
)
from postd.errors import IssuerUnavailableError, LoginsBusyError
from postd.net.fetching import Fetcher, FetchError, UnusableError
from postd.protocol.jwt import LEEWAY_S, AccessToken, ExpiredTokenError, TokenError, TokenPolicy
from postd.reactor import IReactor
from tests.auth.helpers import all_in
from tests.auth.test_jwks import Network, PendingRequest
from tests.helpers import result_of

ISSUER = "https://idp.example"
ENDPOINT = "https://idp.example/introspect"
AUDIENCE = "https://api.example"
SECRET = "s3cret: ä+%"
START_S = 1_800_000_000.0

GOOD: Mapping[str, Any] = {"active": True, "sub": "alice", "aud": AUDIENCE, "scope": "read write"}
BAD: Mapping[str, Any] = {"active": False}
ALICE = AccessToken("alice", frozenset({"read", "write"}), claims_json=json.dumps(GOOD).encode())


ADDRESS = "192.0.2.1"


class World:
    """An introspector with its clock and its network."""

    def __init__(self, **who: Any) -> None:
        self.clock = Clock()
        self.clock.rightNow = START_S
        self.network = Network()
        policy = TokenPolicy(ISSUER, frozenset({AUDIENCE}))
        fetcher = cast(Fetcher, self.network)
        reactor = cast(IReactor, self.clock)
        self.introspector = Introspector(ENDPOINT, policy, fetcher, reactor=reactor, now=self.clock.seconds, **who)

    def begin(self, token: str, address: str = ADDRESS) -> Deferred[AccessToken]:
        return Deferred.fromCoroutine(self.introspector.introspect(token, address))

    def request(self) -> PendingRequest:
        """Return the one request that waits for its answer."""
        return self.network.next(ENDPOINT)

    def ask(self, token: str, answer: Any = GOOD) -> AccessToken:
        """Introspect a token with this answer; fail if there is no request."""
        asking = self.begin(token)
        self.request().answer(answer)
        said: AccessToken = result_of(asking)
        return said

    def known(self, token: str) -> AccessToken:
        """Introspect a token; fail if there is a request."""
        said: AccessToken = result_of(self.begin(token))
        return said

    def fail(self, token: str, error: FetchError) -> None:
        """Introspect a token while the issuer does not answer."""
        asking = self.begin(token)
        self.request().fail(error)
        with pytest.raises(IssuerUnavailableError) as caught:
            result_of(asking)
        assert caught.value.issuer == ISSUER


@pytest.fixture
def world() -> World:
    return World()


class RequestTests:
    def test_request_has_the_token_and_the_client(self) -> None:
        world = World(client_id="us: ä", client_secret=SECRET)
        world.ask("opaque")
        (request,) = world.network.asked
        assert request.url == ENDPOINT
        assert request.form == {"token": "opaque", "token_type_hint": "access_token"}
        assert request.auth == ("us%3A+%C3%A4", "s3cret%3A+%C3%A4%2B%25")  # RFC 6749 §2.3.1

    def test_client_id_without_secret_is_in_the_form(self) -> None:
        world = World(client_id="us")
        world.ask("opaque")
        (request,) = world.network.asked
        assert request.auth is None
        assert request.form == {"client_id": "us", "token": "opaque", "token_type_hint": "access_token"}

    def test_request_without_client(self, world: World) -> None:
        world.ask("opaque")
        assert world.network.asked[0].auth is None
        assert "client_id" not in world.network.asked[0].form

    def test_answer_is_decoded(self, world: World) -> None:
        assert world.ask("opaque") == ALICE

    @pytest.mark.parametrize(
        "answer",
        [
            BAD,
            {},
            {**GOOD, "active": "true"},
            {**GOOD, "active": 1},
            {**GOOD, "aud": "https://elsewhere.example"},
            {**GOOD, "iss": "https://elsewhere.example"},
            {**GOOD, "nbf": START_S + 1000},
            {**GOOD, "sub": 7},
            {"active": True, "aud": AUDIENCE},
            {"active": None, "sub": "alice", "aud": AUDIENCE},
        ],
    )
    def test_unacceptable_answer_is_refused(self, world: World, answer: Mapping[str, Any]) -> None:
        with pytest.raises(TokenError):
            world.ask("opaque", answer)

    def test_expired_token_is_refused_from_the_cache_too(self, world: World) -> None:
        """The cached refusal is the same error."""
        with pytest.raises(ExpiredTokenError):
            world.ask("opaque", {**GOOD, "exp": START_S - LEEWAY_S})
        with pytest.raises(ExpiredTokenError):
            world.known("opaque")


class CacheTests:
    def test_accepted_token_is_cached(self, world: World) -> None:
        world.ask("opaque")
        world.clock.advance(ACCEPTED_TTL_S - 0.001)
        assert world.known("opaque") == ALICE
        world.clock.advance(0.001)
        with pytest.raises(TokenError):
            world.ask("opaque", BAD)

    def test_use_does_not_extend_the_cache(self, world: World) -> None:
        world.ask("opaque")
        for _ in range(60):
            world.known("opaque")
            world.clock.advance(ACCEPTED_TTL_S / 60)
        world.ask("opaque")

    def test_accepted_token_is_cached_until_its_expiry_at_most(self, world: World) -> None:
        expires_in_s = 10
        world.ask("opaque", {**GOOD, "exp": START_S + expires_in_s})
        world.clock.advance(expires_in_s + LEEWAY_S - 0.001)
        assert world.known("opaque").user == "alice"
        world.clock.advance(0.001)
        with pytest.raises(ExpiredTokenError):
            world.ask("opaque", {**GOOD, "exp": START_S + expires_in_s})

    def test_refused_token_is_cached(self, world: World) -> None:
        with pytest.raises(TokenError):
            world.ask("opaque", BAD)
        world.clock.advance(REFUSED_TTL_S - 0.001)
        with pytest.raises(TokenError):
            world.known("opaque")
        world.clock.advance(0.001)
        assert world.ask("opaque") == ALICE

    def test_other_token_is_not_cached(self, world: World) -> None:
        world.ask("opaque")
        for other in ("Opaque", "opaque=", "opaqu"):
            with pytest.raises(TokenError):
                world.ask(other, BAD)

    def test_tokens_are_not_kept_in_memory(self) -> None:
        world = World(client_id="us", client_secret=SECRET)
        world.ask("good-token")
        with pytest.raises(TokenError):
            world.ask("bad-token", BAD)
        world.fail("lost-token", FetchError("connection refused"))
        world.network.asked.clear()
        kept = repr([one for one in all_in(world.introspector) if isinstance(one, str | bytes)])
        assert [token for token in ("good-token", "bad-token", "lost-token") if token in kept] == []

    def test_refused_tokens_do_not_evict_accepted_ones(self, world: World) -> None:
        world.ask("good")
        for number in range(CACHE_MAX * 2):
            with pytest.raises(TokenError):
                world.ask(f"made-up-{number}", BAD)
        assert world.known("good") == ALICE
        self.check_bounded(world)

    def test_cache_of_accepted_tokens_is_bounded(self, world: World) -> None:
        for number in range(CACHE_MAX * 2):
            world.ask(f"good-{number}")
        assert world.known(f"good-{CACHE_MAX * 2 - 1}") == ALICE
        self.check_bounded(world)
        world.ask("good-0")

    def check_bounded(self, world: World) -> None:
        world.network.asked.clear()
        assert sum(1 for _ in all_in(world.introspector)) < 10 * CACHE_MAX


class ConcurrencyTests:
    def test_concurrent_checks_share_one_request(self, world: World) -> None:
        asking = [world.begin("opaque") for _ in range(20)]
        world.request().answer(GOOD)
        assert [result_of(one) for one in asking] == [ALICE] * 20
        assert len(world.network.asked) == 1

    @pytest.mark.parametrize("answer", [BAD, None])
    def test_failure_reaches_all_concurrent_checks(self, world: World, answer: Mapping[str, Any] | None) -> None:
        asking = [world.begin("opaque") for _ in range(20)]
        if answer is None:
            world.request().fail(FetchError("connection refused"))
        else:
            world.request().answer(answer)
        for one in asking:
            with pytest.raises(IssuerUnavailableError if answer is None else TokenError):
                result_of(one)

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_cancelled_check_does_not_affect_others(self, world: World, which: int) -> None:
        asking = [world.begin("opaque") for _ in range(3)]
        gone = asking.pop(which)
        gone.addErrback(lambda _: None)
        gone.cancel()
        world.request().answer(GOOD)
        assert [result_of(one) for one in asking] == [ALICE] * 2

    @pytest.mark.parametrize("answer", [GOOD, BAD, None])
    def test_answer_without_waiting_checks_is_cached(self, world: World, answer: Mapping[str, Any] | None) -> None:
        """The answer is cached nevertheless."""
        asking = world.begin("opaque")
        asking.addErrback(lambda _: None)
        asking.cancel()
        if answer is None:
            world.request().fail(FetchError("connection refused"))
            world.ask("opaque")
            return
        world.request().answer(answer)
        if answer is GOOD:
            assert world.known("opaque") == ALICE
        else:
            with pytest.raises(TokenError):
                world.known("opaque")

    def test_concurrent_requests_are_limited(self, world: World) -> None:
        """Further tokens wait."""
        world.ask("known")
        asking = [world.begin(f"opaque-{number}") for number in range(REQUESTS_MAX + 1)]
        assert len(world.network.open) == REQUESTS_MAX
        assert world.known("known") == ALICE
        world.network.open[0].answer(GOOD)
        assert [one.called for one in (asking[0], asking[-1])] == [True, False]
        for request in world.network.open:
            request.answer(GOOD)
        assert [result_of(one) for one in asking] == [ALICE] * (REQUESTS_MAX + 1)

    def test_waiting_token_is_refused_after_its_maximum(self, world: World) -> None:
        asking = [world.begin(f"opaque-{number}") for number in range(REQUESTS_MAX + 1)]
        with capturedLogs() as events:
            world.clock.advance(WAIT_MAX_S)
            with pytest.raises(LoginsBusyError):
                result_of(asking[-1])
        assert [formatEvent(event) for event in events] == [f"bearer {ISSUER}: too many tokens wait for introspection"]
        for request in world.network.open:
            request.answer(GOOD)
        assert [result_of(one) for one in asking[:-1]] == [ALICE] * REQUESTS_MAX
        assert world.ask(f"opaque-{REQUESTS_MAX}") == ALICE

    def test_pending_tokens_are_limited_in_total_and_by_network(self, world: World) -> None:
        """One address may have half of them; an IPv6 address counts by its /64."""
        half = PENDING_MAX // 2
        asking = [world.begin(f"made-up-{number}", f"2001:db8::{number:x}") for number in range(half)]
        joined = world.begin("made-up-0")
        with capturedLogs() as events:
            for number in range(3):
                with pytest.raises(LoginsBusyError):
                    result_of(world.begin(f"too-many-{number}", "2001:db8::ffff:1"))
        assert len(events) == 1
        asking += [world.begin(f"opaque-{number}", str(number)) for number in range(half)]
        with pytest.raises(LoginsBusyError):
            result_of(world.begin("one-too-many", "192.0.2.2"))
        while world.network.open:
            world.network.open[0].answer(GOOD)
        assert [result_of(one) for one in [*asking, joined]] == [ALICE] * (PENDING_MAX + 1)
        assert world.ask("one-too-many") == ALICE


class FailureTests:
    @pytest.mark.parametrize("error", ["unsupported_token_type", "invalid_token"])
    def test_answer_400_about_the_token_is_a_refusal(self, world: World, error: str) -> None:
        """As of oidc-provider, where RFC 7662 §2.2 has `"active": false`."""
        asking = world.begin("opaque")
        world.request().answer({"error": error}, status=400)
        with pytest.raises(TokenError):
            result_of(asking)

    @pytest.mark.parametrize("content", [b'{"error": "invalid_client"}', b"{}", b"Bad Request", b'{"error": ["x"]}'])
    def test_other_answer_400_is_unavailable(self, world: World, content: bytes) -> None:
        """As for a wrong client secret, which makes no token invalid."""
        asking = world.begin("opaque")
        world.request().answer(content, status=400)
        with pytest.raises(IssuerUnavailableError):
            result_of(asking)

    def test_wait_that_an_issuer_asks_for_is_in_the_error(self, world: World) -> None:
        world.ask("known")
        asking = world.begin("opaque")
        world.request().fail(FetchError("busy", 30.0))
        with pytest.raises(IssuerUnavailableError) as caught:
            result_of(asking)
        assert caught.value.retry_after_s == 30.0
        assert world.known("known") == ALICE

    def test_failure_is_not_cached(self, world: World) -> None:
        world.fail("opaque", FetchError("connection refused"))
        assert world.ask("opaque") == ALICE

    def test_cached_token_is_accepted_during_a_failure(self, world: World) -> None:
        world.ask("opaque")
        world.fail("other", FetchError("connection refused"))
        assert world.known("opaque") == ALICE

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"true", b'"active"', b"\xff", b"[" * 100_000])
    def test_malformed_answer_is_unavailable(self, world: World, content: bytes) -> None:
        asking = world.begin("opaque")
        world.request().answer(content)
        with pytest.raises(IssuerUnavailableError):
            result_of(asking)
        assert world.ask("opaque") == ALICE

    def test_failure_is_logged_once(self) -> None:
        """Until a request succeeds in between; the log has neither tokens nor the client secret."""
        world = World(client_id="us", client_secret=SECRET)
        with capturedLogs() as events:
            for number in range(3):
                world.fail(f"opaque-{number}", FetchError("connection refused"))
            for number in range(3):
                world.fail(f"opaque-{number}", UnusableError("unexpected HTTP status 401"))
            world.ask("opaque")
            world.fail("opaque-0", UnusableError("unexpected HTTP status 401"))
        expected = [
            f"bearer {ISSUER}: {ENDPOINT}: {why}" for why in ("connection refused", *["unexpected HTTP status 401"] * 2)
        ]
        assert [formatEvent(event) for event in events] == expected
        assert {event["log_level"] for event in events} == {LogLevel.warn}
        shown = repr(events)
        assert [secret for secret in ("opaque", SECRET, json.dumps(SECRET)) if secret in shown] == []

    def test_refused_token_is_not_logged_as_a_failure(self, world: World) -> None:
        with capturedLogs() as events, pytest.raises(TokenError):
            world.ask("opaque", BAD)
        assert events == []
