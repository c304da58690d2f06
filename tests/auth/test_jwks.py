"""Fetching, refreshing and caching the keys of an issuer."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from postd.auth.jwks import (
    DISCOVERY_TTL_S,
    RETRY_FIRST_MAX_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    STALE_S,
    UNKNOWN_KEY_INTERVAL_S,
    WAIT_MAX_S,
    KeySource,
)
from postd.errors import IssuerUnavailableError
from postd.net.fetching import Fetched, Fetcher, FetchError, NoDocumentError, UnusableError
from postd.protocol.discovery import FRESH_DEFAULT_S, FRESH_MAX_S, FRESH_MIN_S
from postd.protocol.jwt import decode_jwt
from postd.reactor import IReactor
from tests.cases import each
from tests.helpers import result_of
from tests.issuer import ABSENT, Key, Mint

ISSUER = "https://idp.example/realms/main"
OPENID = "https://idp.example/realms/main/.well-known/openid-configuration"
OAUTH = "https://idp.example/.well-known/oauth-authorization-server/realms/main"
JWKS = "https://idp.example/keys"
MOVED = "https://idp.example/moved"

ONE, TWO, THREE = (Key.make("ES256", kid) for kid in ("one", "two", "three"))
MINT = Mint(ISSUER, "https://api.example", ONE, TWO, THREE)

JITTER = (0.8, 1.2)
AHEAD = (0.8, 0.95)

UNREACHABLE = FetchError("connection refused")
UNUSABLE = UnusableError("unexpected HTTP status 404")


class PendingRequest:
    """A request that waits for a test to answer it."""

    def __init__(self, url: str, form: Mapping[str, str], auth: tuple[str, str] | None) -> None:
        self.url = url
        self.form = dict(form)
        self.auth = auth
        self.given_up = False
        self.waiting: Deferred[Fetched] = Deferred(self._give_up)

    def _give_up(self, _: Deferred[Fetched]) -> None:
        self.given_up = True

    @property
    def open(self) -> bool:
        return not self.waiting.called

    def answer(self, document: Any, *cache_control: str, age: str = "0", status: int = 200) -> None:
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.waiting.callback(Fetched(content, cache_control, age, status))

    def fail(self, error: FetchError = UNREACHABLE) -> None:
        self.waiting.errback(error)


class Network:
    """A `Fetcher` without a network."""

    def __init__(self) -> None:
        self.asked: list[PendingRequest] = []

    def get(self, url: str, *, accept: str) -> Deferred[Fetched]:
        assert accept == (
            "application/json" if "/.well-known/" in url else "application/jwk-set+json, application/json"
        )
        return self._ask(PendingRequest(url, {}, None))

    def post(self, url: str, form: Mapping[str, str], *, auth: tuple[str, str] | None) -> Deferred[Fetched]:
        return self._ask(PendingRequest(url, form, auth))

    def _ask(self, request: PendingRequest) -> Deferred[Fetched]:
        self.asked.append(request)
        return request.waiting

    @property
    def open(self) -> list[PendingRequest]:
        return [request for request in self.asked if request.open]

    def next(self, url: str) -> PendingRequest:
        """Return the one pending request, which is for this URL."""
        (request,) = self.open
        assert request.url == url
        return request


def key_set(*keys: Key) -> dict[str, Any]:
    return {"keys": [key.jwk() for key in keys]}


def metadata(jwks_uri: str = JWKS, **changes: Any) -> dict[str, Any]:
    return {"issuer": ISSUER, "jwks_uri": jwks_uri, **changes}


class World:
    """A key source with its clock and its network."""

    START_S = 1_800_000_000.0

    def __init__(self, jwks_uri: str = JWKS, *, optional: bool = False) -> None:
        self.clock = Clock()
        self.clock.rightNow = self.START_S
        self.network = Network()
        fetcher = cast(Fetcher, self.network)
        reactor = cast(IReactor, self.clock)
        self.source = KeySource(ISSUER, fetcher, reactor=reactor, jwks_uri=jwks_uri, optional=optional)

    def start(self, *keys: Key, cache_control: Sequence[str] = ()) -> None:
        """Start it, and serve these keys."""
        self.source.start()
        self.serve(*keys, cache_control=cache_control)

    def serve(self, *keys: Key, cache_control: Sequence[str] = ()) -> None:
        self.network.next(JWKS).answer(key_set(*keys), *cache_control)

    def fail(self, error: FetchError = UNREACHABLE) -> None:
        self.network.next(JWKS).fail(error)

    def find(self, key: Key, **header: Any) -> Deferred[list[str | None]]:
        """Look up the keys of a token; the result is their `kid`s."""
        finding = Deferred.fromCoroutine(self.source.find(decode_jwt(MINT.token(key, header=header))))
        return finding.addCallback(lambda found: [one.key_id for one in found])

    def found(self, key: Key, **header: Any) -> Any:
        """Return the result of `find`, which must be there at once."""
        return result_of(self.find(key, **header))

    @property
    def fetches(self) -> int:
        return sum(request.url in {JWKS, MOVED} for request in self.network.asked)

    def next_call_s(self) -> float:
        """Return the seconds until the next scheduled fetch."""
        return min(call.getTime() for call in self.clock.getDelayedCalls()) - self.clock.seconds()

    def until_next(self) -> float:
        """Advance the clock to the next scheduled fetch; return the seconds."""
        passed = self.next_call_s()
        self.clock.advance(passed)
        return passed


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def discovering() -> World:
    """A key source without a `jwks_uri`."""
    return World("")


def texts(events: Sequence[Any]) -> list[str]:
    """Return the logged events without their prefix, which names the issuer."""
    lines = [formatEvent(event) for event in events]
    beginning = f"bearer {ISSUER}: "
    assert [line for line in lines if not line.startswith(beginning)] == []
    return [line.removeprefix(beginning) for line in lines]


class KeysTests:
    def test_nothing_is_fetched_before_the_start(self, world: World) -> None:
        assert (world.network.asked, world.clock.getDelayedCalls()) == ([], [])

    def test_keys_are_fetched_at_the_start(self, world: World) -> None:
        world.start(ONE, TWO)
        assert world.found(ONE) == ["one"]
        assert world.found(TWO) == ["two"]
        assert world.fetches == 1

    def test_first_token_waits_for_the_keys(self, world: World) -> None:
        world.source.start()
        finding = world.find(ONE)
        assert not finding.called
        world.serve(ONE)
        assert result_of(finding) == ["one"]
        assert world.fetches == 1

    def test_token_without_kid_fits_the_only_key(self, world: World) -> None:
        world.start(ONE)
        assert world.found(ONE, kid=ABSENT) == ["one"]

    def test_removed_key_is_removed_by_the_next_fetch(self, world: World) -> None:
        world.start(ONE, TWO)
        world.until_next()
        assert world.found(ONE) == ["one"]  # until then
        world.serve(TWO)
        assert world.found(TWO) == ["two"]
        gone = world.find(ONE)
        world.serve(TWO)
        assert result_of(gone) == []

    def test_empty_key_set_is_a_failure(self, world: World) -> None:
        """An issuer replaces the keys that it revokes; an empty set is a fault."""
        world.start(ONE)
        for entries in ([], [{"kty": "oct", "k": "c2VjcmV0"}]):
            world.until_next()
            world.network.next(JWKS).answer({"keys": entries})
            assert world.found(ONE) == ["one"]
            world.until_next()
            world.serve(ONE)

    def test_source_without_keys_has_no_current_ones(self, world: World) -> None:
        world.start()
        with pytest.raises(IssuerUnavailableError):
            world.found(ONE)

    def test_key_set_without_usable_keys_is_a_failure(self, world: World) -> None:
        with capturedLogs() as events:
            world.source.start()
            world.network.next(JWKS).answer({"keys": [{"kty": "oct", "k": "c2VjcmV0"}, {}]})
        (line,) = texts(events)
        assert line.startswith(f"no keys: {JWKS}: it has no usable key: ")
        with pytest.raises(IssuerUnavailableError):
            world.found(ONE)


class RefreshTests:
    """Keys are refreshed before they are stale."""

    @each(
        "cache_control, age, fresh_s",
        [
            ((), "0", FRESH_DEFAULT_S),
            (("no-store",), "0", FRESH_DEFAULT_S),
            (("max-age=1000",), "0", 1000.0),
            (("public", "max-age=1000"), "400", 600.0),
            (("max-age=0",), "0", FRESH_MIN_S),
            (("max-age=99999999",), "0", FRESH_MAX_S),
        ],
    )
    def test_refresh_is_scheduled_before_keys_are_stale(
        self, cache_control: tuple[str, ...], age: str, fresh_s: float
    ) -> None:
        """With jitter, so that processes do not fetch at the same time."""
        delays = set()
        for _ in range(50):
            world = World()
            world.source.start()
            world.network.next(JWKS).answer(key_set(ONE), *cache_control, age=age)
            delays.add(world.next_call_s())
        assert AHEAD[0] * fresh_s <= min(delays)
        assert max(delays) <= AHEAD[1] * fresh_s
        assert len(delays) > 1

    def test_refresh_is_repeated(self, world: World) -> None:
        world.start(ONE)
        for _ in range(3):
            assert world.until_next() >= AHEAD[0] * FRESH_DEFAULT_S
            assert world.fetches > 1
            world.serve(ONE, TWO)
            assert len(world.clock.getDelayedCalls()) == 1

    def test_tokens_do_not_wait_for_a_refresh(self, world: World) -> None:
        world.start(ONE)
        world.until_next()
        assert world.found(ONE) == ["one"]
        world.clock.advance(1)
        assert world.found(ONE) == ["one"]
        assert world.fetches == 2

    def test_known_keys_trigger_no_refresh(self, world: World) -> None:
        world.start(ONE)
        for _ in range(100):
            assert world.found(ONE) == ["one"]
        assert world.fetches == 1

    def test_triggered_fetch_reschedules_the_refresh(self, world: World) -> None:
        world.start(ONE)
        world.clock.advance(200)
        finding = world.find(TWO)
        world.serve(ONE, TWO)
        assert result_of(finding) == ["two"]
        assert len(world.clock.getDelayedCalls()) == 1
        assert world.next_call_s() >= AHEAD[0] * FRESH_DEFAULT_S


class UnknownKeyTests:
    """Tokens with an unknown `kid`."""

    def test_unknown_key_is_fetched_within_the_call(self, world: World) -> None:
        world.start(ONE)
        finding = world.find(TWO)
        assert not finding.called
        world.serve(ONE, TWO)
        assert result_of(finding) == ["two"]
        assert world.fetches == 2

    def test_concurrent_tokens_share_one_fetch(self, world: World) -> None:
        world.start(ONE)
        finding = [world.find(TWO) for _ in range(10)] + [world.find(THREE)]
        world.serve(ONE, TWO)
        assert [result_of(one) for one in finding] == [["two"]] * 10 + [[]]
        assert world.fetches == 2

    def test_random_kids_trigger_one_fetch(self, world: World) -> None:
        world.start(ONE)
        first = world.find(ONE, kid="made-up")
        world.serve(ONE)
        assert result_of(first) == []
        for number in range(500):
            world.clock.advance((UNKNOWN_KEY_INTERVAL_S - 1) / 500)
            assert world.found(ONE, kid=f"made-up-{number}") == []
        assert world.found(ONE) == ["one"]
        assert world.fetches == 2

    def test_another_fetch_is_triggered_after_the_interval(self, world: World) -> None:
        world.start(ONE)
        first = world.find(TWO)
        world.serve(ONE)
        world.clock.advance(UNKNOWN_KEY_INTERVAL_S - 0.001)
        assert (result_of(first), world.found(TWO)) == ([], [])
        world.clock.advance(0.001)
        second = world.find(TWO)
        world.serve(ONE, TWO)
        assert result_of(second) == ["two"]
        assert world.fetches == 3

    def test_scheduled_refresh_does_not_use_up_the_interval(self, world: World) -> None:
        world.start(ONE)
        world.until_next()
        world.serve(ONE)
        finding = world.find(TWO)
        world.serve(ONE, TWO)
        assert result_of(finding) == ["two"]
        assert world.fetches == 3

    def test_failed_fetch_uses_up_the_interval(self, world: World) -> None:
        """An unavailable issuer gets no more requests than an available one."""
        world.start(ONE)
        first = world.find(TWO)
        world.fail()
        assert result_of(first) == []
        assert world.found(TWO) == []
        assert world.fetches == 2

    def test_token_joins_a_running_fetch(self, world: World) -> None:
        world.start(ONE)
        world.until_next()
        finding = [world.find(TWO), world.find(TWO)]
        world.serve(ONE, TWO)
        assert [result_of(one) for one in finding] == [["two"], ["two"]]
        assert world.fetches == 2

    def test_joined_fetch_without_the_key_is_followed_by_another(self, world: World) -> None:
        """It may have started before the issuer published the key."""
        world.start(ONE)
        world.until_next()
        finding = [world.find(TWO), world.find(TWO)]
        world.serve(ONE)
        assert not any(one.called for one in finding)
        world.serve(ONE, TWO)
        assert [result_of(one) for one in finding] == [["two"], ["two"]]
        assert world.fetches == 3

    def test_there_is_no_third_fetch(self, world: World) -> None:
        world.start(ONE)
        world.until_next()
        finding = world.find(TWO)
        world.serve(ONE)
        world.serve(ONE)
        assert result_of(finding) == []
        assert world.fetches == 3

    def test_first_fetch_without_the_key_is_followed_by_another(self, world: World) -> None:
        world.source.start()
        finding = world.find(TWO)
        world.serve(ONE)
        world.serve(ONE, TWO)
        assert result_of(finding) == ["two"]

    def test_kid_of_another_key_type_is_unknown(self, world: World) -> None:
        world.start(ONE)
        finding = world.find(Key.make("RS256", "one"))
        world.serve(ONE)
        assert result_of(finding) == []

    def test_token_without_kid_among_several_keys_triggers_one_fetch(self, world: World) -> None:
        """The interval applies to it, too."""
        world.start(ONE, TWO)
        finding = world.find(ONE, kid=ABSENT)
        world.serve(ONE, TWO)
        assert (result_of(finding), world.found(ONE, kid=ABSENT)) == ([], [])
        assert world.fetches == 2


class BusyTests:
    """An issuer that asks to wait gets no request before."""

    def test_first_keys_are_not_fetched_before(self) -> None:
        world = World()
        world.source.start()
        world.fail(FetchError("busy", 40.0))
        assert 40.0 <= world.next_call_s() <= 44.0
        for left_s in (40.0, 20.0):
            with pytest.raises(IssuerUnavailableError) as caught:
                world.found(ONE)
            assert caught.value.retry_after_s == pytest.approx(left_s)
            world.clock.advance(20.0)
        assert world.fetches == 1
        finding = world.find(ONE)
        world.serve(ONE)
        assert result_of(finding) == ["one"]

    def test_keys_are_used_on(self, world: World) -> None:
        world.start(ONE)
        world.until_next()
        world.fail(FetchError("busy", 100.0))
        assert world.found(ONE) == ["one"]
        assert world.until_next() >= 100.0

    def test_second_document_of_a_busy_issuer_is_not_fetched(self, discovering: World) -> None:
        discovering.source.start()
        discovering.network.next(OPENID).fail(FetchError("busy", 100.0))
        assert len(discovering.network.asked) == 1


class NoKeysTests:
    """An issuer whose tokens can be introspected may have no keys."""

    NOT_THERE = NoDocumentError("unexpected HTTP status 404")
    LACKING: tuple[Any, ...] = ("{}", b"<html>", {"issuer": ISSUER}, {"issuer": ISSUER, "jwks_uri": None}, NOT_THERE)

    def lack(self, discovering: World, openid: Any, oauth: Any) -> None:
        for url, answer in ((OPENID, openid), (OAUTH, oauth)):
            request = discovering.network.next(url)
            if isinstance(answer, FetchError):
                request.fail(answer)
            else:
                request.answer(answer)

    @each("openid", LACKING)
    @each("oauth", LACKING)
    def test_issuer_without_metadata_or_keys_is_ready(self, openid: Any, oauth: Any) -> None:
        world = World("", optional=True)
        assert not world.source.is_ready
        with capturedLogs() as events:
            world.source.start()
            self.lack(world, openid, oauth)
        assert world.source.is_ready
        assert texts(events) == ["it publishes no keys: its tokens are only introspected"]
        assert world.next_call_s() >= 0.8 * DISCOVERY_TTL_S
        finding = world.find(ONE)
        self.lack(world, openid, oauth)
        assert result_of(finding) == []
        assert world.found(ONE) == []  # at most one discovery in UNKNOWN_KEY_INTERVAL_S
        assert len(world.network.asked) == 4

    def test_keys_that_appear_are_used(self) -> None:
        world = World("", optional=True)
        world.source.start()
        self.lack(world, self.NOT_THERE, self.NOT_THERE)
        finding = world.find(ONE)
        world.network.next(OPENID).answer(metadata())
        world.serve(ONE)
        assert result_of(finding) == ["one"]
        assert not world.source.none_published

    @each(
        "openid, oauth",
        [
            (UNREACHABLE, None),
            (UNUSABLE, NOT_THERE),
            (NOT_THERE, UNUSABLE),
            (metadata(issuer="https://other.example"), NOT_THERE),
            (metadata("http://elsewhere.example/keys"), NOT_THERE),
        ],
    )
    def test_other_failures_are_retried(self, openid: Any, oauth: Any) -> None:
        world = World("", optional=True)
        world.source.start()
        if oauth is None:
            world.network.next(OPENID).fail(openid)
        else:
            self.lack(world, openid, oauth)
        assert not world.source.is_ready
        assert world.next_call_s() <= RETRY_MIN_S * JITTER[1]
        with pytest.raises(IssuerUnavailableError):
            world.found(ONE)

    def test_issuer_that_needs_keys_is_not_ready_without(self, discovering: World) -> None:
        discovering.source.start()
        self.lack(discovering, self.NOT_THERE, self.NOT_THERE)
        assert not discovering.source.is_ready

    def test_reloaded_source_stays_ready(self) -> None:
        world, other = World("", optional=True), World("", optional=True)
        world.source.start()
        self.lack(world, self.NOT_THERE, self.NOT_THERE)
        other.source.copy_keys(world.source)
        assert other.source.is_ready


class WaitingTests:
    """The time a token waits for keys is limited."""

    def test_wait_for_an_unknown_key_is_limited(self, world: World) -> None:
        world.start(ONE)
        finding = world.find(TWO)
        world.clock.advance(WAIT_MAX_S - 0.001)
        assert not finding.called
        world.clock.advance(0.001)
        assert result_of(finding) == []

    def test_wait_for_the_first_keys_is_limited(self, world: World) -> None:
        world.source.start()
        finding = world.find(ONE)
        world.clock.advance(WAIT_MAX_S - 0.001)
        assert not finding.called
        world.clock.advance(0.001)
        with pytest.raises(IssuerUnavailableError):
            result_of(finding)

    def test_wait_for_two_fetches_is_limited(self, world: World) -> None:
        """For a joined fetch and the one after it, as long as for one."""
        world.start(ONE)
        world.until_next()
        finding = world.find(TWO)
        world.clock.advance(WAIT_MAX_S - 1)
        world.serve(ONE)
        world.clock.advance(0.999)
        assert not finding.called
        world.clock.advance(0.001)
        assert result_of(finding) == []

    def test_fetch_continues_after_the_wait(self, world: World) -> None:
        world.start(ONE)
        finding = world.find(TWO)
        for _ in range(2):
            world.clock.advance(WAIT_MAX_S)
        assert result_of(finding) == []
        world.serve(ONE, TWO)
        assert world.found(TWO) == ["two"]

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_cancelled_token_does_not_affect_others(self, world: World, which: int) -> None:
        """Even the one that triggered the fetch."""
        world.start(ONE)
        finding = [world.find(TWO) for _ in range(3)]
        gone = finding.pop(which)
        gone.addErrback(lambda _: None)
        gone.cancel()
        world.serve(ONE, TWO)
        assert [result_of(one) for one in finding] == [["two"]] * 2
        assert len(world.clock.getDelayedCalls()) == 1

    def test_fetch_continues_without_waiting_tokens(self, world: World) -> None:
        world.source.start()
        finding = world.find(ONE)
        finding.addErrback(lambda _: None)
        finding.cancel()
        with capturedLogs() as events:
            world.serve(ONE)
        assert texts(events) == ["1 key"]
        assert world.found(ONE) == ["one"]


class FailureTests:
    """An issuer that is unavailable."""

    @pytest.mark.parametrize("error", [UNREACHABLE, UNUSABLE])
    def test_keys_are_used_while_the_issuer_is_unavailable(self, world: World, error: FetchError) -> None:
        world.start(ONE)
        for _ in range(20):
            world.until_next()
            world.fail(error)
            assert world.found(ONE) == ["one"]
        finding = world.find(TWO)  # is refused, not put off: there are keys
        world.fail(error)
        assert result_of(finding) == []

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b'{"keys": {}}', b"[" * 100_000])
    def test_malformed_key_set_keeps_the_old_keys(self, world: World, content: bytes) -> None:
        world.start(ONE)
        world.until_next()
        world.network.next(JWKS).answer(content)
        assert world.found(ONE) == ["one"]
        assert world.next_call_s() <= JITTER[1] * RETRY_MIN_S

    @pytest.mark.parametrize("keys", [(), (ONE,)])
    def test_unexpected_error_is_logged_and_retried(self, world: World, keys: tuple[Key, ...]) -> None:
        """The log has the traceback, and the fetch is retried."""
        world.source.start()
        for key in keys:
            world.serve(key)
            world.until_next()
        with capturedLogs() as events:
            world.network.next(JWKS).waiting.errback(RuntimeError("ours"))
        assert [event["log_failure"].value.args for event in events if "log_failure" in event] == [("ours",)]
        world.until_next()
        world.serve(TWO)
        assert world.found(TWO) == ["two"]

    def test_token_without_any_keys_is_unavailable(self, world: World) -> None:
        world.source.start()
        finding = [world.find(ONE), world.find(TWO)]
        world.fail()
        for one in finding:
            with pytest.raises(IssuerUnavailableError) as caught:
                result_of(one)
            assert caught.value.issuer == ISSUER

    def check_back_off(self, world: World, longest_s: float) -> None:
        """Check that the time to the next fetch doubles with each failure, up to a limit."""
        for number in range(12):
            world.fail()
            nominal = min(RETRY_MIN_S * 2**number, longest_s)
            assert JITTER[0] * nominal <= world.until_next() <= JITTER[1] * nominal

    def test_retries_back_off(self, world: World) -> None:
        world.start(ONE)
        world.until_next()
        self.check_back_off(world, RETRY_MAX_S)
        world.serve(ONE)
        assert world.until_next() >= AHEAD[0] * FRESH_DEFAULT_S
        world.fail()
        assert world.next_call_s() <= JITTER[1] * RETRY_MIN_S  # it begins anew

    def test_first_keys_are_retried_more_often(self, world: World) -> None:
        world.source.start()
        self.check_back_off(world, RETRY_FIRST_MAX_S)
        world.serve(ONE)
        assert world.found(ONE) == ["one"]

    def test_retries_have_jitter(self) -> None:
        delays = set()
        for _ in range(50):
            world = World()
            world.source.start()
            world.fail()
            delays.add(world.next_call_s())
        assert len(delays) > 1

    def test_tokens_trigger_at_most_one_first_fetch_a_second(self, world: World) -> None:
        """Without any keys, a token after a second does not wait for the scheduled retry."""
        world.source.start()
        for _ in range(4):
            world.fail()
            world.until_next()
        world.fail()
        fetches = world.fetches
        for _ in range(100):
            world.clock.advance((RETRY_MIN_S - 0.01) / 100)
            with pytest.raises(IssuerUnavailableError):
                world.found(ONE)
        assert world.fetches == fetches
        world.clock.advance(0.01)
        finding = [world.find(ONE) for _ in range(100)]
        assert world.fetches == fetches + 1
        world.fail()
        for one in finding:
            with pytest.raises(IssuerUnavailableError):
                result_of(one)
        assert world.fetches == fetches + 1

    def test_token_triggers_the_fetch_of_the_first_keys(self, world: World) -> None:
        world.source.start()
        for _ in range(4):
            world.fail()
            world.until_next()
        world.fail()
        world.clock.advance(RETRY_MIN_S)
        finding = world.find(ONE)
        world.serve(ONE)
        assert result_of(finding) == ["one"]


class DiscoveryTests:
    """Discovery of the `jwks_uri`."""

    def test_metadata_is_fetched_before_the_keys(self, discovering: World) -> None:
        self.find_out(discovering)
        assert discovering.found(ONE) == ["one"]

    def test_configured_jwks_uri_needs_no_discovery(self, world: World) -> None:
        world.start(ONE)
        for _ in range(20):
            world.until_next()
            world.serve(ONE)
        assert {request.url for request in world.network.asked} == {JWKS}

    def test_discovered_uri_is_cached_for_an_hour(self, discovering: World) -> None:
        self.find_out(discovering)
        began = discovering.clock.seconds()
        while discovering.clock.seconds() + discovering.next_call_s() < began + DISCOVERY_TTL_S:
            discovering.until_next()
            discovering.serve(ONE)
        discovering.until_next()
        self.check_moved(discovering)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda request: request.fail(UNREACHABLE),
            lambda request: request.fail(UNUSABLE),
            lambda request: request.answer(b"<html>"),  # the old URL may answer with a page and status 200
        ],
        ids=["unreachable", "unusable", "a page"],
    )
    def test_failed_fetch_triggers_discovery(self, discovering: World, spoil: Callable[[PendingRequest], None]) -> None:
        self.find_out(discovering)
        discovering.until_next()
        spoil(discovering.network.next(JWKS))
        discovering.until_next()
        self.check_moved(discovering)

    def find_out(self, discovering: World) -> None:
        discovering.source.start()
        discovering.network.next(OPENID).answer(metadata())
        discovering.serve(ONE)

    def check_moved(self, discovering: World) -> None:
        """Answer a discovery with another `jwks_uri`, and check that keys are fetched from there."""
        discovering.network.next(OPENID).answer(metadata(MOVED))
        discovering.network.next(MOVED).answer(key_set(TWO))
        assert discovering.found(TWO) == ["two"]

    def test_cached_uri_is_used_while_discovery_fails(self, discovering: World) -> None:
        """Only the metadata is faulty, not the keys."""
        for spoil in (UNREACHABLE, UNUSABLE):
            world = World("")
            self.find_out(world)
            world.until_next()
            world.fail()
            world.until_next()
            world.network.next(OPENID).fail(spoil)
            if spoil is UNUSABLE:
                world.network.next(OAUTH).fail(spoil)
            world.serve(TWO)
            assert world.found(TWO) == ["two"]

    @pytest.mark.parametrize(
        "document",
        [
            UNUSABLE,
            b"<html>",
            {},
            {"issuer": ISSUER},
            metadata(issuer=ISSUER + "/"),
            metadata(issuer="https://elsewhere.example"),
            metadata("http://idp.example/keys"),
            metadata("/keys"),
        ],
        ids=[
            *("missing", "a page", "empty", "no jwks_uri", "issuer with a slash", "another issuer"),
            *("jwks_uri without TLS", "jwks_uri without a host"),
        ],
    )
    def test_missing_or_unusable_document_falls_back_to_rfc_8414(self, discovering: World, document: Any) -> None:
        """The second document may be usable."""
        discovering.source.start()
        request = discovering.network.next(OPENID)
        if isinstance(document, FetchError):
            request.fail(document)
        else:
            request.answer(document)
        discovering.network.next(OAUTH).answer(metadata())
        discovering.serve(ONE)
        assert discovering.found(ONE) == ["one"]

    def test_unreachable_issuer_is_asked_once(self, discovering: World) -> None:
        """A request for the second document would only take longer."""
        with capturedLogs() as events:
            discovering.source.start()
            discovering.network.next(OPENID).fail(UNREACHABLE)
        assert discovering.network.open == []
        assert texts(events) == [f"no keys: {OPENID}: {UNREACHABLE}"]

    def test_both_reasons_are_reported_the_first_one_first(self, discovering: World) -> None:
        """RFC 8414 is the exception."""
        with capturedLogs() as events:
            discovering.source.start()
            discovering.network.next(OPENID).answer(metadata(issuer="https://elsewhere.example"))
            discovering.network.next(OAUTH).fail(UNUSABLE)
        (line,) = texts(events)
        assert line.startswith(f"no keys: {OPENID}: ")
        assert f'its issuer is "https://elsewhere.example", not "{ISSUER}"; {OAUTH}: ' in line

    def test_issuer_that_becomes_unreachable_between_the_documents(self, discovering: World) -> None:
        with capturedLogs() as events:
            discovering.source.start()
            discovering.network.next(OPENID).fail(UNUSABLE)
            discovering.network.next(OAUTH).fail(UNREACHABLE)
        assert len(texts(events)) == 1
        with pytest.raises(IssuerUnavailableError):
            discovering.found(ONE)


class LogTests:
    def test_first_keys_are_logged(self, world: World) -> None:
        with capturedLogs() as events:
            world.start(ONE, TWO)
            world.until_next()
            world.serve(ONE, TWO)
        assert texts(events) == ["2 keys"]

    def test_left_out_keys_are_logged(self, world: World) -> None:
        with capturedLogs() as events:
            world.source.start()
            world.network.next(JWKS).answer({"keys": [ONE.jwk(), {}, ONE.jwk(use="enc")]})
        assert texts(events) == ["1 key, 2 left out"]

    def test_failure_and_recovery_are_logged_once(self, world: World) -> None:
        with capturedLogs() as events:
            world.source.start()
            for _ in range(5):
                world.fail()
                world.until_next()
            world.serve(ONE)
            for _ in range(5):
                world.until_next()
                world.fail()
            world.until_next()
            world.fail(UNUSABLE)
            world.until_next()
            world.serve(ONE)
        assert texts(events) == [
            f"no keys: {JWKS}: {UNREACHABLE}",
            "1 key",
            f"keys not refreshed: {JWKS}: {UNREACHABLE}",
            f"keys not refreshed: {JWKS}: {UNUSABLE}",
            "1 key",
        ]
        assert [event["log_level"] for event in events] == [
            LogLevel.warn,
            LogLevel.info,
            LogLevel.warn,
            LogLevel.warn,
            LogLevel.info,
        ]

    def test_stale_keys_are_logged_as_an_error_and_used(self, world: World) -> None:
        world.start(ONE)
        with capturedLogs() as events:
            while world.clock.seconds() < world.START_S + STALE_S + 10 * RETRY_MAX_S:
                world.until_next()
                world.fail()
        assert [event["log_level"] for event in events] == [LogLevel.warn, LogLevel.error]
        assert "more than 24 h old" in texts(events)[1]
        assert world.found(ONE) == ["one"]

    def test_log_contains_no_tokens_and_keys(self, world: World) -> None:
        token = MINT.token(TWO, sub="somebody", header={"kid": "named-by-a-token"})
        with capturedLogs() as events:
            world.start(ONE)
            finding = Deferred.fromCoroutine(world.source.find(decode_jwt(token)))
            world.serve(ONE)
            result_of(finding)
            world.until_next()
            world.network.next(JWKS).answer({"keys": "named-by-an-issuer"})
            world.until_next()
            world.network.next(JWKS).answer({"keys": [{**ONE.jwk(), "kty": "named-by-an-issuer"}]})
        shown = repr([(formatEvent(event), event) for event in events])
        secrets = ["named-by", "somebody", *token.split("."), *(str(ONE.jwk()[name]) for name in ("x", "y"))]
        assert [secret for secret in secrets if secret in shown] == []


class StopTests:
    """A stopped source runs and schedules nothing."""

    def check_stopped(self, world: World) -> None:
        """Stop it, and check that it does and logs nothing more."""
        asked = len(world.network.asked)
        with capturedLogs() as events:
            world.source.stop()
            assert world.clock.getDelayedCalls() == []
            assert world.network.open == []
            assert len(world.network.asked) == asked
            world.clock.advance(STALE_S)
        assert texts(events) == []
        assert len(world.network.asked) == asked

    def test_stop_before_the_start(self, world: World) -> None:
        self.check_stopped(world)

    def test_stop_between_two_fetches(self, world: World) -> None:
        world.start(ONE)
        self.check_stopped(world)

    def test_stop_after_a_failure(self, world: World) -> None:
        world.source.start()
        world.fail()
        self.check_stopped(world)

    def test_stop_during_the_first_fetch(self, world: World) -> None:
        world.source.start()
        self.check_stopped(world)
        assert world.network.asked[0].given_up

    def test_stop_during_another_fetch(self, world: World) -> None:
        world.start(ONE)
        world.until_next()
        self.check_stopped(world)

    def test_stop_during_discovery(self, discovering: World) -> None:
        discovering.source.start()
        self.check_stopped(discovering)
        again = World("")
        again.source.start()
        again.network.next(OPENID).fail(UNUSABLE)
        self.check_stopped(again)

    def test_stop_during_another_discovery(self, discovering: World) -> None:
        discovering.source.start()
        discovering.network.next(OPENID).answer(metadata())
        discovering.serve(ONE)
        discovering.until_next()
        discovering.fail()
        discovering.until_next()
        assert [request.url for request in discovering.network.open] == [OPENID]
        self.check_stopped(discovering)

    def test_stop_answers_waiting_tokens(self, world: World) -> None:
        world.source.start()
        waiting = world.find(ONE)
        self.check_stopped(world)
        with pytest.raises(IssuerUnavailableError):
            result_of(waiting)

    def test_stop_answers_tokens_that_wait_for_an_unknown_key(self, world: World) -> None:
        world.start(ONE)
        waiting = world.find(TWO)
        self.check_stopped(world)
        assert result_of(waiting) == []

    def test_running_fetch_of_a_replaced_source_answers_waiting_tokens(self, world: World) -> None:
        world.start(ONE)
        waiting = world.find(TWO)
        world.source.stop_refreshing()
        world.serve(ONE, TWO)
        assert result_of(waiting) == ["two"]
        assert world.clock.getDelayedCalls() == []
        other = World().source
        other.copy_keys(world.source)
        assert other.current is world.source.current

    def test_stopped_source_fetches_nothing(self, world: World) -> None:
        world.start(ONE)
        world.source.stop()
        assert world.found(ONE) == ["one"]
        assert world.found(TWO) == []
        assert (world.network.open, world.clock.getDelayedCalls()) == ([], [])

    def test_source_can_be_stopped_twice_and_restarted(self, world: World) -> None:
        world.start(ONE)
        world.source.stop()
        world.source.stop()
        world.start(TWO)
        assert world.found(TWO) == ["two"]
        assert len(world.clock.getDelayedCalls()) == 1
