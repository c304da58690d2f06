"""Checking access tokens of several issuers, with scopes, and opaque ones.

The issuers are real HTTP servers; malformed tokens are tested in `tests/protocol`.
"""

import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from pytest_twisted import async_yield_fixture, ensureDeferred
from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials
from twisted.cred.error import UnauthorizedLogin
from twisted.cred.portal import Portal
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent
from twisted.web.resource import IResource, Resource
from zope.interface.verify import verifyClass, verifyObject

from postd.auth import bearer, introspection
from postd.auth.bearer import BearerChecker
from postd.auth.bearer import Issuer as Trusted
from postd.auth.credentials import (
    BearerCredentials,
    IBearerCredentials,
    InsufficientScopeError,
    InvalidTokenError,
)
from postd.auth.portal import CoroutinePortal
from postd.auth.throttle import Throttle, address_keys
from postd.errors import IssuerUnavailableError, TooManyFailuresError
from postd.protect.guard import Protected, Realm
from postd.protocol.jwt import LEEWAY_S, TokenPolicy
from postd.reactor import IReactor
from postd.store.sqlite.store import MemoryStore
from tests.auth.test_jwks import Network
from tests.helpers import result_of
from tests.issuer import INTROSPECTION, JWKS, Issuer, Key, Mint, Reply

AUDIENCE = "https://api.example"
HERE = "192.0.2.1"
KEY = Key.make("ES256", "the-key")
OPAQUE = "an-opaque-token"
START_S = 1_800_000_000.0


class Issuers:
    """Running issuers, and the `Issuer` objects that trust them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.trusted: list[Trusted] = []

    def add(self, **settings: Any) -> Issuer:
        """Start another issuer; all have the same key."""
        issuer = self._stack.enter_context(Issuer(AUDIENCE, KEY))
        self.trust(issuer, **settings)
        return issuer

    def add_absent(self, **settings: Any) -> Issuer:
        """Trust an issuer that does not run."""
        issuer = self._stack.enter_context(Issuer(AUDIENCE, KEY))
        issuer.stop()
        self.trust(issuer, **settings)
        return issuer

    def add_asked(self, **settings: Any) -> Issuer:
        """Start an issuer with token introspection."""
        issuer = self._stack.enter_context(Issuer(AUDIENCE, KEY))
        self.trust(issuer, introspection_endpoint=issuer.origin + INTROSPECTION, **settings)
        return issuer

    def add_asked_in_vain(self) -> Issuer:
        """Start an issuer that has keys, but whose introspection fails."""
        issuer = self.add_asked()
        issuer.replies[INTROSPECTION] = Reply(b"", 500)
        return issuer

    def trust(self, issuer: Issuer, **settings: Any) -> None:
        policy = TokenPolicy(issuer.issuer, frozenset({AUDIENCE}))
        trusted = Trusted(policy, reactor=cast(IReactor, global_reactor), **settings)
        self.trusted.append(trusted)
        trusted.start()

    def checker(self) -> BearerChecker:
        return BearerChecker(self.trusted)

    def check(self, token: str, *, writes: bool = False) -> Deferred[str]:
        """Check a token; the result is its user."""
        return check(self.checker(), token, writes=writes)


def check(checker: BearerChecker, token: str, *, writes: bool = False) -> Deferred[str]:
    checking = checker.requestAvatarId(BearerCredentials(token, writes, HERE))
    return checking.addCallback(lambda owner: bytes(owner).decode())


@async_yield_fixture
async def issuers() -> AsyncIterator[Issuers]:
    with ExitStack() as stack:
        issuers = Issuers(stack)
        yield issuers
        for trusted in issuers.trusted:
            trusted.stop()
        await deferToThread(stack.close)  # connections may have to be ended here before they end there


async def refusal_of(checking: Deferred[str]) -> InvalidTokenError:
    with pytest.raises(InvalidTokenError) as caught:
        await checking
    return caught.value


class CheckerTests:
    def test_interfaces(self) -> None:
        verifyObject(ICredentialsChecker, BearerChecker([]))
        credentials = BearerCredentials("a", writes=False, address=HERE)
        verifyObject(IBearerCredentials, credentials)
        verifyClass(ICredentials, BearerCredentials)
        assert BearerChecker.credentialInterfaces == (IBearerCredentials,)

    def test_repr_of_credentials_has_no_token(self) -> None:
        assert OPAQUE not in repr(BearerCredentials(OPAQUE, writes=False, address=HERE))

    def test_token_without_trusted_issuers_is_refused(self) -> None:
        mint = Mint("https://idp.example", AUDIENCE, KEY)
        for token in (mint.token(), OPAQUE):
            with pytest.raises(InvalidTokenError):
                result_of(check(BearerChecker([]), token))

    @ensureDeferred
    async def test_portal_returns_the_user(self, issuers: Issuers) -> None:
        issuer = issuers.add()
        shown = Resource()
        portal = Portal(Realm(), [issuers.checker()])
        mind = Protected(shown, frozenset({f"{issuer.issuer}#alice"}))
        login = portal.login(BearerCredentials(issuer.token(), writes=False, address=HERE), mind, IResource)
        _, avatar, _ = await login
        assert avatar is shown
        with pytest.raises(UnauthorizedLogin):
            await portal.login(BearerCredentials("made-up", writes=False, address=HERE), mind, IResource)

    @ensureDeferred
    async def test_portal_returns_identity_with_issuer_and_scopes(self, issuers: Issuers) -> None:
        issuer = issuers.add()
        portal = CoroutinePortal(Realm(), [issuers.checker()])
        credentials = BearerCredentials(issuer.token(scope="a b"), writes=False, address=HERE)
        identity = await portal.authenticate(credentials)
        assert (identity.name, identity.scheme, identity.issuer) == ("alice", "bearer", issuer.issuer)
        assert identity.scopes == {"a", "b"}


class IssuerTests:
    """A token is checked by its own issuer only."""

    @ensureDeferred
    async def test_issuer_is_chosen_by_iss(self, issuers: Issuers) -> None:
        first, second = issuers.add(), issuers.add()
        for issuer in (second, first):
            assert await issuers.check(issuer.token(sub="Zoë")) == f"{issuer.issuer}#Zoë"

    @ensureDeferred
    async def test_issuer_cannot_sign_for_another(self, issuers: Issuers) -> None:
        first, second = issuers.add(), issuers.add()
        second.keys = [Key.make("ES256", "another")]
        forged = first.token(second.keys[0])
        assert "no key" in (await refusal_of(issuers.check(forged))).why
        named = first.token(Key.make("ES256", KEY.kid))
        assert (await refusal_of(issuers.check(named))).why.endswith("its signature is wrong")

    @ensureDeferred
    async def test_untrusted_issuer_is_refused(self, issuers: Issuers) -> None:
        known = issuers.add()
        with Issuer(AUDIENCE, KEY) as other:
            hint = f' (it differs from "{known.issuer}" by case or a slash at the end only)'
            for iss, more in ((other.issuer, ""), (known.issuer + "/", hint), (known.issuer.upper(), hint)):
                refused = await refusal_of(issuers.check(known.token(iss=iss)))
                assert refused.why == f"iss is not a trusted issuer{more}"
            assert other.asked == []

    @ensureDeferred
    async def test_unavailable_issuer_does_not_affect_others(self, issuers: Issuers) -> None:
        away, there = issuers.add_absent(), issuers.add()
        assert await issuers.check(there.token()) == f"{there.issuer}#alice"
        with pytest.raises(IssuerUnavailableError) as caught:
            await issuers.check(away.token())
        assert caught.value.issuer == away.issuer

    @ensureDeferred
    async def test_unacceptable_header_is_refused_without_keys(self, issuers: Issuers) -> None:
        """It is refused while the issuer is unavailable, because retrying would not help."""
        away = issuers.add_absent()
        for header in ({"alg": "none"}, {"alg": "HS256"}, {"typ": "secevent+jwt"}, {"crit": ["exp"]}):
            await refusal_of(issuers.check(away.token(header=header)))

    @ensureDeferred
    async def test_expired_is_reported_only_of_verified_tokens(self, issuers: Issuers) -> None:
        """Other refusals take precedence."""
        issuer = issuers.add()
        past = int(time.time() - LEEWAY_S - 1)
        assert (await refusal_of(issuers.check(issuer.token(exp=past)))).expired
        for token in (
            issuer.token(Key.make("ES256", KEY.kid), exp=past),
            issuer.token(exp=past, aud="https://elsewhere.example"),
            issuer.token(exp="never"),
        ):
            assert not (await refusal_of(issuers.check(token))).expired


class ScopeTests:
    def test_malformed_scope_setting_is_refused(self, issuers: Issuers) -> None:
        with pytest.raises(ValueError, match="is not a scope"):
            issuers.add_absent(read_scope='a"b')

    @ensureDeferred
    @pytest.mark.parametrize(
        ("scope", "reads", "writes"),
        [
            ("posts:read posts:write", True, True),
            ("posts:read", True, False),
            ("posts:write", False, True),
            ("posts:rea posts:READ posts posts:read-all", False, False),
            ("", False, False),
        ],
    )
    async def test_scopes_for_reading_and_for_writing(
        self, issuers: Issuers, scope: str, *, reads: bool, writes: bool
    ) -> None:
        issuer = issuers.add(read_scope="posts:read", write_scope="posts:write")
        checker = issuers.checker()
        for writing, good, word in ((False, reads, "posts:read"), (True, writes, "posts:write")):
            checking = check(checker, issuer.token(scope=scope), writes=writing)
            if good:
                assert await checking == f"{issuer.issuer}#alice"
                continue
            with pytest.raises(InsufficientScopeError) as caught:
                await checking
            assert (caught.value.scope, caught.value.username) == (word, f"{issuer.issuer}#alice")

    @ensureDeferred
    async def test_all_words_of_a_scope_are_required(self, issuers: Issuers) -> None:
        issuer = issuers.add(read_scope="a b")
        assert await issuers.check(issuer.token(scope=["b", "c", "a"]))
        with pytest.raises(InsufficientScopeError) as caught:
            await issuers.check(issuer.token(scope="a c"))
        assert caught.value.scope == "a b"

    @ensureDeferred
    async def test_no_scope_is_required_by_default(self, issuers: Issuers) -> None:
        issuer = issuers.add()
        for writes in (False, True):
            assert await issuers.check(issuer.token(), writes=writes)

    @ensureDeferred
    async def test_scopes_are_set_per_issuer(self, issuers: Issuers) -> None:
        first, second = issuers.add(read_scope="a"), issuers.add(read_scope="b")
        assert await issuers.check(second.token(scope="b"))
        with pytest.raises(InsufficientScopeError):
            await issuers.check(first.token(scope="b"))

    @ensureDeferred
    async def test_scopes_of_opaque_tokens(self, issuers: Issuers) -> None:
        issuer = issuers.add_asked(write_scope="a")
        issuer.active[OPAQUE] = issuer.claims(scope="b")
        assert await issuers.check(OPAQUE) == f"{issuer.issuer}#alice"
        with pytest.raises(InsufficientScopeError):
            await issuers.check(OPAQUE, writes=True)


class OpaqueTokenTests:
    @ensureDeferred
    async def test_opaque_token_is_refused_without_introspection(self, issuers: Issuers) -> None:
        issuer = issuers.add()
        issuer.active[OPAQUE] = issuer.claims()
        assert "opaque" in (await refusal_of(issuers.check(OPAQUE))).why
        assert issuer.count(INTROSPECTION) == 0

    @ensureDeferred
    async def test_first_issuer_accepts(self, issuers: Issuers) -> None:
        first, second = issuers.add_asked(), issuers.add_asked()
        first.active[OPAQUE] = first.claims()
        assert await issuers.check(OPAQUE) == f"{first.issuer}#alice"
        assert second.count(INTROSPECTION) == 0

    @ensureDeferred
    async def test_second_issuer_accepts_after_a_refusal(self, issuers: Issuers) -> None:
        first, second = issuers.add_asked(), issuers.add_asked()
        second.active[OPAQUE] = second.claims(sub="bob")
        assert await issuers.check(OPAQUE) == f"{second.issuer}#bob"
        assert first.count(INTROSPECTION) == 1

    @ensureDeferred
    async def test_second_issuer_accepts_if_the_first_is_unavailable(self, issuers: Issuers) -> None:
        issuers.add_asked_in_vain()
        second = issuers.add_asked()
        second.active[OPAQUE] = second.claims()
        assert await issuers.check(OPAQUE) == f"{second.issuer}#alice"

    @ensureDeferred
    @pytest.mark.parametrize("away_first", [True, False])
    async def test_refusal_beside_an_unavailable_issuer_is_unavailable(
        self, issuers: Issuers, *, away_first: bool
    ) -> None:
        """The token may be from the unavailable issuer."""
        away = issuers.add_asked_in_vain() if away_first else None
        issuers.add_asked()
        away = away or issuers.add_asked_in_vain()
        with pytest.raises(IssuerUnavailableError) as caught:
            await issuers.check(OPAQUE)
        assert caught.value.issuer == away.issuer

    @ensureDeferred
    async def test_token_refused_by_all_issuers_is_refused(self, issuers: Issuers) -> None:
        issuers.add_asked()
        issuers.add_asked()
        refusal = await refusal_of(issuers.check(OPAQUE))
        assert (refusal.why.endswith("not active"), refusal.expired) == (True, False)

    @ensureDeferred
    async def test_reason_is_that_of_the_issuer_with_introspection(self, issuers: Issuers) -> None:
        """Its position among the issuers does not matter."""
        issuers.add_asked()
        issuers.add()
        assert (await refusal_of(issuers.check(OPAQUE))).why.endswith("not active")

    @ensureDeferred
    async def test_expired_token_is_reported_as_expired(self, issuers: Issuers) -> None:
        """Even if other issuers do not know the token."""
        first = issuers.add_asked()
        issuers.add_asked()
        first.active[OPAQUE] = first.claims(exp=int(time.time() - LEEWAY_S - 1))
        assert (await refusal_of(issuers.check(OPAQUE))).expired

    @ensureDeferred
    async def test_jwt_is_never_introspected(self, issuers: Issuers) -> None:
        """Valid or not, no other issuer may receive it."""
        first, second = issuers.add_asked(), issuers.add_asked()
        await issuers.check(first.token())
        good = first.token()
        for token in (
            first.token(iss="https://elsewhere.example"),
            first.token(exp=1),
            first.token(header={"alg": "none"}),
            first.token(Key.make("ES256", KEY.kid)),
            good + "AAAA",
            good.rpartition(".")[0] + ".",
        ):
            await refusal_of(issuers.check(token))
        assert (first.count(INTROSPECTION), second.count(INTROSPECTION)) == (0, 0)

    @ensureDeferred
    async def test_jwt_is_introspected_if_all_tokens_are(self, issuers: Issuers) -> None:
        """Its scope may be known to the issuer alone, as that of Canaille's; no key of the issuer is needed."""
        issuer, other = issuers.add_asked(introspect="all", read_scope="read"), issuers.add_asked()
        issuer.replies[JWKS] = Reply(b"", 500)
        unknown = Key.make("RS256")
        good = issuer.token(unknown)
        issuer.active[good] = {"scope": "read"}
        assert await issuers.check(good) == f"{issuer.issuer}#alice"
        assert await issuers.check(good) == f"{issuer.issuer}#alice"
        assert (issuer.count(INTROSPECTION), other.count(INTROSPECTION), issuer.count(JWKS)) == (1, 0, 0)

    @ensureDeferred
    @pytest.mark.parametrize(
        ("header", "claims", "why"),
        [
            ({}, {"aud": "https://elsewhere.example"}, "aud"),
            ({}, {"exp": 1}, "expired"),
            ({}, {"cnf": {"jkt": "x"}}, "cnf"),
            ({"typ": "logout+jwt"}, {}, "typ"),
            ({"typ": "JWT"}, {"nonce": "x", "scope": "openid"}, "ID token"),
        ],
    )
    async def test_claims_of_an_introspected_jwt_are_checked(
        self, issuers: Issuers, header: dict[str, Any], claims: dict[str, Any], why: str
    ) -> None:
        """The answer says that they are true, and need not repeat them."""
        issuer = issuers.add_asked(introspect="all")
        token = issuer.token(header=header, **claims)
        issuer.active[token] = {}
        assert why in (await refusal_of(issuers.check(token))).why
        named = issuer.token(header={"typ": "JWT"}, nonce="x", scope="openid")
        issuer.active[named] = {"token_type": "Bearer"}  # says that it is an access token
        assert await issuers.check(named) == f"{issuer.issuer}#alice"
        inactive = issuer.token(jti="x")
        assert "not active" in (await refusal_of(issuers.check(inactive))).why

    @ensureDeferred
    async def test_encrypted_token_is_introspected_if_all_tokens_are(self, issuers: Issuers) -> None:
        issuer, other = issuers.add_asked(introspect="all"), issuers.add_asked()
        encrypted = "eyJhbGciOiJkaXIifQ..a.b.c"
        issuer.active[encrypted] = issuer.claims()
        assert await issuers.check(encrypted) == f"{issuer.issuer}#alice"
        assert other.count(INTROSPECTION) == 0

    @ensureDeferred
    async def test_encrypted_token_is_not_introspected(self, issuers: Issuers) -> None:
        """It is a kind of JWT."""
        issuer = issuers.add_asked()
        encrypted = "eyJhbGciOiJkaXIifQ..a.b.c"
        issuer.active[encrypted] = issuer.claims()
        assert "encrypted" in (await refusal_of(issuers.check(encrypted))).why
        assert issuer.count(INTROSPECTION) == 0

    @pytest.mark.parametrize("revoked", [False, True])
    @ensureDeferred
    async def test_recheck_of_an_accepted_token_bypasses_the_throttle(
        self, issuers: Issuers, monkeypatch: pytest.MonkeyPatch, *, revoked: bool
    ) -> None:
        if revoked:
            monkeypatch.setattr(introspection, "ACCEPTED_TTL_S", 0)
        issuer = issuers.add_asked()
        issuer.active[OPAQUE] = {"sub": "alice", "aud": AUDIENCE}
        store = MemoryStore(reactor=cast(IReactor, global_reactor))
        store.prepare()
        await store.start()
        throttle = Throttle(
            store, failures=10, address_failures=3, account_failures=100, window_s=300, clock=cast(Any, global_reactor)
        )
        checker = BearerChecker(issuers.trusted, throttle=throttle)
        credentials = BearerCredentials(OPAQUE, writes=False, address=HERE)
        revalidate = (await checker.check(credentials)).revalidate
        for n in range(3):
            await refusal_of(check(checker, f"bad{n}"))
        with capturedLogs() as events, pytest.raises(TooManyFailuresError):
            await check(checker, OPAQUE)
        line = f"login refused: bearer - from {HERE}: too many failures (address_failures = 3)"
        assert [formatEvent(event) for event in events] == [line]
        if revoked:
            del issuer.active[OPAQUE]
        for _ in range(5):
            assert await revalidate() is not revoked
        counted = await store.count_failures(address_keys(HERE), now=cast(Any, global_reactor).seconds())
        assert [found.count for found in counted.values()] == [3]
        await store.stop()


class CacheTests:
    """A verified token is cached, with the same results."""

    def test_cached_token_expires(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock, network = Clock(), Network()
        clock.rightNow = START_S
        monkeypatch.setattr(bearer, "Fetcher", lambda *_, **__: network)
        policy = TokenPolicy("https://idp.example", frozenset({AUDIENCE}))
        mint = Mint(policy.issuer, AUDIENCE, KEY, now=clock.seconds)
        keys = "https://idp.example/keys"
        trusted = Trusted(policy, reactor=cast(IReactor, clock), jwks_uri=keys, now=clock.seconds)
        trusted.start()
        network.next("https://idp.example/keys").answer(mint.key_set())
        checker = BearerChecker([trusted], now=clock.seconds)
        token = mint.token(exp=START_S + 5)
        assert result_of(check(checker, token)) == "https://idp.example#alice"
        clock.advance(5 + LEEWAY_S - 0.001)
        assert result_of(check(checker, token)) == "https://idp.example#alice"
        clock.advance(0.001)
        with pytest.raises(InvalidTokenError) as caught:
            result_of(check(checker, token))
        assert caught.value.expired

    @pytest.mark.slow
    @ensureDeferred
    async def test_recheck_succeeds_until_the_token_expires(self, issuers: Issuers) -> None:
        issuer, asked = issuers.add(), issuers.add_asked()
        checker = issuers.checker()
        credentials = BearerCredentials(issuer.token(), writes=False, address=HERE)
        revalidate = (await checker.check(credentials)).revalidate
        assert await revalidate()
        asked.stop()  # without an answer the token stays valid
        assert await revalidate()
        issuer.keys = [Key.make("ES256", "new")]
        assert await check(checker, issuer.token(issuer.keys[0]))  # has the keys fetched
        assert not await revalidate()

    @ensureDeferred
    async def test_cached_token_is_refused_when_its_key_is_removed(self, issuers: Issuers) -> None:
        issuer = issuers.add()
        checker = issuers.checker()
        token = issuer.token()
        assert await check(checker, token)
        new = Key.make("ES256", "new")
        issuer.keys = [new]
        assert await check(checker, issuer.token(new))  # has the keys fetched
        await refusal_of(check(checker, token))

    @ensureDeferred
    async def test_changed_token_is_not_taken_from_the_cache(self, issuers: Issuers) -> None:
        issuer = issuers.add()
        checker = issuers.checker()
        signed, _, signature = issuer.token().rpartition(".")
        _, _, other = issuer.token(sub="bob").rpartition(".")
        assert await check(checker, f"{signed}.{signature}")
        for forged in (f"{signed}.{other}", f"{signed}.", f"{signed}.{signature}A"):
            await refusal_of(check(checker, forged))

    @ensureDeferred
    async def test_scope_of_a_cached_token_is_checked_each_time(self, issuers: Issuers) -> None:
        issuer = issuers.add(write_scope="a")
        checker = issuers.checker()
        token = issuer.token()
        for _ in range(2):
            assert await check(checker, token)
            with pytest.raises(InsufficientScopeError):
                await check(checker, token, writes=True)

    @ensureDeferred
    async def test_opaque_token_is_cached_by_the_introspector_only(
        self, issuers: Issuers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        issuer = issuers.add_asked()
        issuer.active[OPAQUE] = issuer.claims()
        checker = issuers.checker()
        assert await check(checker, OPAQUE)
        monkeypatch.setattr(issuers.trusted[0], "introspector", None)
        await refusal_of(check(checker, OPAQUE))

    @ensureDeferred
    async def test_cache_is_bounded(self, issuers: Issuers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bearer, "CACHE_MAX", 2)
        issuer = issuers.add()
        checker = issuers.checker()
        tokens = [issuer.token(sub=f"user-{number}") for number in range(5)]
        for token, number in zip(tokens * 2, [*range(5)] * 2, strict=True):
            assert await check(checker, token) == f"{issuer.issuer}#user-{number}"


class LogTests:
    @ensureDeferred
    async def test_refusal_is_logged_without_the_token(self, issuers: Issuers) -> None:
        """One line each, with the address and the reason."""
        issuer = issuers.add_asked()
        await issuers.check(issuer.token())
        other = Key.make("ES256", "named-by-a-token")
        tokens = [
            OPAQUE,
            issuer.token(sub="somebody", exp=1),
            issuer.token(sub="somebody", aud="https://somewhere.example"),
            issuer.token(sub="somebody", iss="https://somewhere.example"),
            issuer.token(sub="somebody", header={"typ": "named-by-a-token of somebody"}),
            issuer.token(other, sub="somebody"),
        ]
        with capturedLogs() as events:
            for token in tokens:
                await refusal_of(issuers.check(token))
        lines = [formatEvent(event) for event in events]
        beginning = f"login refused: bearer - from {HERE}: "
        assert [line for line in lines if not line.startswith(beginning)] == []
        assert len(lines) == len(tokens)
        shown = repr(events)
        secrets = [
            OPAQUE,
            "somebody",
            "somewhere",
            "named-by-a-token",
            *(part for one in tokens for part in one.split(".")),
        ]
        assert [secret for secret in secrets if secret in shown] == []

    @ensureDeferred
    async def test_missing_scope_is_logged_with_the_user(self, issuers: Issuers) -> None:
        issuer = issuers.add(read_scope="a")
        with capturedLogs() as events:
            for _ in range(2):
                with pytest.raises(InsufficientScopeError):
                    await issuers.check(issuer.token())
        lines = [line for line in map(formatEvent, events) if line.startswith("login refused")]
        owner = f"{issuer.issuer}#alice"
        assert lines == [f"login refused: bearer {owner!r} from {HERE}: the token's scope is not enough"] * 2

    @ensureDeferred
    async def test_accepted_token_is_not_logged(self, issuers: Issuers) -> None:
        issuer = issuers.add()
        await issuers.check(issuer.token())
        with capturedLogs() as events:
            await issuers.check(issuer.token())
        assert events == []
