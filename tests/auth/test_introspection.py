"""Opaque tokens: what the issuer says of them, and for how long that is remembered."""

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
from tests.auth.test_jwks import Network, Question
from tests.helpers import result_of

ISSUER = "https://idp.example"
ENDPOINT = "https://idp.example/introspect"
AUDIENCE = "https://api.example"
SECRET = "s3cret: ä+%"
START_S = 1_800_000_000.0

GOOD: Mapping[str, Any] = {"active": True, "sub": "alice", "aud": AUDIENCE, "scope": "read write"}
BAD: Mapping[str, Any] = {"active": False}
ALICE = AccessToken("alice", frozenset({"read", "write"}))


ADDRESS = "192.0.2.1"


class World:
    """An introspector, and all that it knows of: a clock, and a network."""

    def __init__(self, **who: str) -> None:
        self.clock = Clock()
        self.clock.rightNow = START_S
        self.network = Network()
        policy = TokenPolicy(ISSUER, frozenset({AUDIENCE}))
        fetcher = cast(Fetcher, self.network)
        reactor = cast(IReactor, self.clock)
        self.introspector = Introspector(ENDPOINT, policy, fetcher, reactor=reactor, **who)

    def begin(self, token: str, address: str = ADDRESS) -> Deferred[AccessToken]:
        return Deferred.fromCoroutine(self.introspector.introspect(token, address))

    def question(self) -> Question:
        """Return the one that waits for its answer."""
        return self.network.next(ENDPOINT)

    def ask(self, token: str, answer: Any = GOOD) -> AccessToken:
        """Show a token of which the issuer says this; fail, if it is not asked."""
        asking = self.begin(token)
        self.question().answer(answer)
        said: AccessToken = result_of(asking)
        return said

    def known(self, token: str) -> AccessToken:
        """Show a token; fail, if the issuer is asked."""
        said: AccessToken = result_of(self.begin(token))
        return said

    def fail(self, token: str, error: FetchError) -> None:
        """Show a token while the issuer does not answer."""
        asking = self.begin(token)
        self.question().fail(error)
        with pytest.raises(IssuerUnavailableError) as caught:
            result_of(asking)
        assert caught.value.issuer == ISSUER


@pytest.fixture
def world() -> World:
    return World()


class AskingTests:
    def test_what_is_asked(self) -> None:
        world = World(client_id="us: ä", client_secret=SECRET)
        world.ask("opaque")
        (question,) = world.network.asked
        assert question.url == ENDPOINT
        assert question.form == {"token": "opaque", "token_type_hint": "access_token"}
        assert question.auth == ("us%3A+%C3%A4", "s3cret%3A+%C3%A4%2B%25")  # RFC 6749 §2.3.1

    def test_a_client_without_a_secret_has_its_name_in_the_form(self) -> None:
        world = World(client_id="us")
        world.ask("opaque")
        (question,) = world.network.asked
        assert question.auth is None
        assert question.form == {"client_id": "us", "token": "opaque", "token_type_hint": "access_token"}

    def test_nobody_in_particular_asks(self, world: World) -> None:
        world.ask("opaque")
        assert world.network.asked[0].auth is None
        assert "client_id" not in world.network.asked[0].form

    def test_what_it_says(self, world: World) -> None:
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
        ],
    )
    def test_what_is_refused(self, world: World, answer: Mapping[str, Any]) -> None:
        with pytest.raises(TokenError):
            world.ask("opaque", answer)

    def test_by_our_clock_it_has_expired(self, world: World) -> None:
        """Whoever is told so once is told so again."""
        with pytest.raises(ExpiredTokenError):
            world.ask("opaque", {**GOOD, "exp": START_S - LEEWAY_S})
        with pytest.raises(ExpiredTokenError):
            world.known("opaque")


class RememberingTests:
    def test_what_was_accepted(self, world: World) -> None:
        world.ask("opaque")
        world.clock.advance(ACCEPTED_TTL_S - 0.001)
        assert world.known("opaque") == ALICE
        world.clock.advance(0.001)
        with pytest.raises(TokenError):
            world.ask("opaque", BAD)

    def test_to_use_it_makes_it_last_no_longer(self, world: World) -> None:
        world.ask("opaque")
        for _ in range(60):
            world.known("opaque")
            world.clock.advance(ACCEPTED_TTL_S / 60)
        world.ask("opaque")

    def test_what_was_accepted_until_its_end(self, world: World) -> None:
        expires_in_s = 10
        world.ask("opaque", {**GOOD, "exp": START_S + expires_in_s})
        world.clock.advance(expires_in_s + LEEWAY_S - 0.001)
        assert world.known("opaque").user == "alice"
        world.clock.advance(0.001)
        with pytest.raises(ExpiredTokenError):
            world.ask("opaque", {**GOOD, "exp": START_S + expires_in_s})

    def test_what_was_refused(self, world: World) -> None:
        with pytest.raises(TokenError):
            world.ask("opaque", BAD)
        world.clock.advance(REFUSED_TTL_S - 0.001)
        with pytest.raises(TokenError):
            world.known("opaque")
        world.clock.advance(0.001)
        assert world.ask("opaque") == ALICE

    def test_of_another_token_nothing_is_known(self, world: World) -> None:
        world.ask("opaque")
        for other in ("Opaque", "opaque=", "opaqu"):
            with pytest.raises(TokenError):
                world.ask(other, BAD)

    def test_tokens_are_not_kept(self) -> None:
        world = World(client_id="us", client_secret=SECRET)
        world.ask("good-token")
        with pytest.raises(TokenError):
            world.ask("bad-token", BAD)
        world.fail("lost-token", FetchError("nobody is there"))
        world.network.asked.clear()
        kept = repr([one for one in all_in(world.introspector) if isinstance(one, str | bytes)])
        assert [token for token in ("good-token", "bad-token", "lost-token") if token in kept] == []

    def test_good_ones_are_not_forgotten_because_of_made_up_ones(self, world: World) -> None:
        world.ask("good")
        for number in range(CACHE_MAX * 2):
            with pytest.raises(TokenError):
                world.ask(f"made-up-{number}", BAD)
        assert world.known("good") == ALICE
        self.check_bounded(world)

    def test_not_all_good_ones_are_remembered(self, world: World) -> None:
        for number in range(CACHE_MAX * 2):
            world.ask(f"good-{number}")
        assert world.known(f"good-{CACHE_MAX * 2 - 1}") == ALICE
        self.check_bounded(world)
        world.ask("good-0")

    def check_bounded(self, world: World) -> None:
        world.network.asked.clear()
        assert sum(1 for _ in all_in(world.introspector)) < 10 * CACHE_MAX


class AtTheSameTimeTests:
    def test_one_question_for_all_who_ask(self, world: World) -> None:
        asking = [world.begin("opaque") for _ in range(20)]
        world.question().answer(GOOD)
        assert [result_of(one) for one in asking] == [ALICE] * 20
        assert len(world.network.asked) == 1

    @pytest.mark.parametrize("answer", [BAD, None])
    def test_all_are_refused(self, world: World, answer: Mapping[str, Any] | None) -> None:
        asking = [world.begin("opaque") for _ in range(20)]
        if answer is None:
            world.question().fail(FetchError("nobody is there"))
        else:
            world.question().answer(answer)
        for one in asking:
            with pytest.raises(IssuerUnavailableError if answer is None else TokenError):
                result_of(one)

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_who_stops_to_wait_breaks_nothing(self, world: World, which: int) -> None:
        asking = [world.begin("opaque") for _ in range(3)]
        gone = asking.pop(which)
        gone.addErrback(lambda _: None)
        gone.cancel()
        world.question().answer(GOOD)
        assert [result_of(one) for one in asking] == [ALICE] * 2

    @pytest.mark.parametrize("answer", [GOOD, BAD, None])
    def test_nobody_waits_any_more(self, world: World, answer: Mapping[str, Any] | None) -> None:
        """What is said is remembered all the same."""
        asking = world.begin("opaque")
        asking.addErrback(lambda _: None)
        asking.cancel()
        if answer is None:
            world.question().fail(FetchError("nobody is there"))
            world.ask("opaque")
            return
        world.question().answer(answer)
        if answer is GOOD:
            assert world.known("opaque") == ALICE
        else:
            with pytest.raises(TokenError):
                world.known("opaque")

    def test_an_issuer_is_not_asked_too_much(self, world: World) -> None:
        """Those who come later wait for their turn."""
        world.ask("known")
        asking = [world.begin(f"opaque-{number}") for number in range(REQUESTS_MAX + 1)]
        assert len(world.network.open) == REQUESTS_MAX
        assert world.known("known") == ALICE
        world.network.open[0].answer(GOOD)
        assert [one.called for one in (asking[0], asking[-1])] == [True, False]
        for question in world.network.open:
            question.answer(GOOD)
        assert [result_of(one) for one in asking] == [ALICE] * (REQUESTS_MAX + 1)

    def test_nobody_waits_for_long(self, world: World) -> None:
        asking = [world.begin(f"opaque-{number}") for number in range(REQUESTS_MAX + 1)]
        with capturedLogs() as events:
            world.clock.advance(WAIT_MAX_S)
            with pytest.raises(LoginsBusyError):
                result_of(asking[-1])
        assert [formatEvent(event) for event in events] == [f"bearer {ISSUER}: too many tokens wait for introspection"]
        for question in world.network.open:
            question.answer(GOOD)
        assert [result_of(one) for one in asking[:-1]] == [ALICE] * REQUESTS_MAX
        assert world.ask(f"opaque-{REQUESTS_MAX}") == ALICE

    def test_not_many_wait(self, world: World) -> None:
        """Of one address half as many: it leaves room for others. An IPv6 one is a /64."""
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
    def test_an_issuer_may_answer_400_to_what_is_no_token(self, world: World, error: str) -> None:
        """oidc-provider does, where RFC 7662 §2.2 asks for `"active": false`."""
        asking = world.begin("opaque")
        world.question().answer({"error": error}, status=400)
        with pytest.raises(TokenError):
            result_of(asking)

    @pytest.mark.parametrize("content", [b'{"error": "invalid_client"}', b"{}", b"Bad Request", b'{"error": ["x"]}'])
    def test_any_other_400_is_about_us(self, world: World, content: bytes) -> None:
        """A wrong secret, say: nobody's token is bad because of it."""
        asking = world.begin("opaque")
        world.question().answer(content, status=400)
        with pytest.raises(IssuerUnavailableError):
            result_of(asking)

    def test_nothing_is_remembered_of_it(self, world: World) -> None:
        world.fail("opaque", FetchError("nobody is there"))
        assert world.ask("opaque") == ALICE

    def test_what_is_known_goes_on(self, world: World) -> None:
        world.ask("opaque")
        world.fail("other", FetchError("nobody is there"))
        assert world.known("opaque") == ALICE

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"true", b'"active"', b"\xff", b"[" * 100_000])
    def test_an_answer_that_is_none(self, world: World, content: bytes) -> None:
        asking = world.begin("opaque")
        world.question().answer(content)
        with pytest.raises(IssuerUnavailableError):
            result_of(asking)
        assert world.ask("opaque") == ALICE

    def test_it_is_told_once(self) -> None:
        """Until it has been well in between; and nothing of tokens is told, or of our secret."""
        world = World(client_id="us", client_secret=SECRET)
        with capturedLogs() as events:
            for number in range(3):
                world.fail(f"opaque-{number}", FetchError("nobody is there"))
            for number in range(3):
                world.fail(f"opaque-{number}", UnusableError("it answers 401"))
            world.ask("opaque")
            world.fail("opaque-0", UnusableError("it answers 401"))
        told = [f"bearer {ISSUER}: {ENDPOINT}: {why}" for why in ("nobody is there", *["it answers 401"] * 2)]
        assert [formatEvent(event) for event in events] == told
        assert {event["log_level"] for event in events} == {LogLevel.warn}
        shown = repr(events)
        assert [secret for secret in ("opaque", SECRET, json.dumps(SECRET)) if secret in shown] == []

    def test_a_refused_token_is_not_a_failure(self, world: World) -> None:
        with capturedLogs() as events, pytest.raises(TokenError):
            world.ask("opaque", BAD)
        assert events == []
