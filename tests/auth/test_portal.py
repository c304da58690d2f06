"""Our checkers in a stock portal, and stock checkers and realms in ours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.cred.checkers import (
    AllowAnonymousAccess,
    FilePasswordDB,
    ICredentialsChecker,
    InMemoryUsernamePasswordDatabaseDontUse,
)
from twisted.cred.credentials import Anonymous, ICredentials, IUsernamePassword, UsernamePassword
from twisted.cred.error import LoginDenied, LoginFailed, Unauthorized, UnauthorizedLogin, UnhandledCredentials
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from zope.interface import implementer
from zope.interface.verify import verifyObject

from postd.auth import bearer
from postd.auth.bearer import BearerChecker, Issuer
from postd.auth.credentials import (
    BearerCredentials,
    DigestCredentials,
    InvalidTokenError,
    PasswordCredentials,
    Refused,
    SessionCredentials,
    StaleNonceError,
)
from postd.auth.digest import DigestChecker, NonceRegistry
from postd.auth.identity import Identity
from postd.auth.password import PasswordChecker, PasswordVerifier
from postd.auth.portal import CoroutinePortal
from postd.auth.session import SessionChecker, Sessions
from postd.auth.throttle import Throttle
from postd.auth.users import UserDirectory
from postd.errors import StoreUnavailableError, TooManyFailuresError
from postd.protocol.digest import DigestChallenge, answer_challenge, h_a1
from postd.protocol.jwt import TokenPolicy
from postd.protocol.session import hash_session_id
from postd.reactor import IReactor
from tests.auth.helpers import Logins
from tests.auth.test_jwks import Network
from tests.helpers import result_of
from tests.issuer import Key, Mint
from tests.web.wire import user_line

HERE = "192.0.2.1"
ISSUER = "https://idp.example"
AUDIENCE = "https://api.example"
KEY = Key.make("ES256")
SCHEMES = ("password", "digest", "session", "bearer")


@implementer(IRealm)
class PendingRealm:
    """A realm whose Deferred fires when a test says so."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.avatar: Deferred[Any] = Deferred()

    def requestAvatar(self, avatarId: bytes | tuple[()], mind: object, *interfaces: Any) -> Deferred[Any]:
        self.asked.append((avatarId, mind, *interfaces))
        return self.avatar


class AllSchemes(Logins):
    """A checker and credentials of each scheme, for one user."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, user_line("alice", "secret", realm="postd"))
        store, now = self.api.store, self.clock.seconds
        users = UserDirectory(str(self.user_file))
        users.load()
        self.throttle = Throttle(
            store, failures=3, address_failures=50, account_failures=100, window_s=300, clock=self.clock
        )
        self.nonces = NonceRegistry(store, lifetime_s=300, now=now)
        self.sessions = Sessions(store, users, idle_s=1800, lifetime_s=7200, now=now)
        network = Network()
        monkeypatch.setattr(bearer, "Fetcher", lambda *_, **__: network)
        policy = TokenPolicy(ISSUER, frozenset({AUDIENCE}))
        issuer = Issuer(policy, reactor=cast(IReactor, self.clock), jwks_uri=f"{ISSUER}/keys", now=now)
        issuer.start()
        self.mint = Mint(ISSUER, AUDIENCE, KEY, now=now)
        network.next(f"{ISSUER}/keys").answer(self.mint.key_set())
        self.checkers = {
            "password": PasswordChecker(users, PasswordVerifier(self.threads, now=now), self.throttle, store=store),
            "digest": DigestChecker(users, self.nonces, self.throttle, realm="postd"),
            "session": SessionChecker(self.sessions),
            "bearer": BearerChecker([issuer], now=now),
        }

    def credentials(self, scheme: str, *, right: bool = True) -> ICredentials:
        """Return credentials of a scheme."""
        password = "secret" if right else "wrong"
        if scheme == "password":
            return PasswordCredentials("basic", "alice", password, HERE)
        if scheme == "digest":
            return self.digest(password, self.finish(self.nonces.issue()))
        if scheme == "session":
            id_hash = hash_session_id(self.finish(self.sessions.begin("alice", in_place_of=())))
            assert id_hash is not None
            return SessionCredentials((id_hash if right else bytes(32),))
        return BearerCredentials(self.mint.token() if right else "made-up", writes=False, address=HERE)

    def digest(self, password: str, nonce: str) -> DigestCredentials:
        challenge = DigestChallenge("postd", nonce, "MD5")
        ha1 = h_a1("MD5", "alice", "postd", password)
        response = answer_challenge(challenge, "alice", ha1, method="GET", uri="/", count=1, cnonce="c")
        return DigestCredentials(response, "GET", HERE, lambda _: None)

    def start(self, call: Any) -> Deferred[Any]:
        """Start a coroutine or a Deferred; run whatever it waits for in the store and the threads."""
        started = call if isinstance(call, Deferred) else Deferred.fromCoroutine(call)
        self.clock.advance(0)
        self.threads.run_waiting()
        self.clock.advance(0)
        return started

    def finish(self, call: Any) -> Any:
        return result_of(self.start(call))


@pytest.fixture
def schemes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AllSchemes]:
    schemes = AllSchemes(tmp_path, monkeypatch)
    yield schemes
    schemes.close()


@pytest.fixture
def realm() -> PendingRealm:
    return PendingRealm()


class StockPortalTests:
    """Each of our checkers in `twisted.cred.portal.Portal`."""

    @pytest.fixture(params=SCHEMES)
    def scheme(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def portal(self, schemes: AllSchemes, realm: PendingRealm) -> Portal:
        assert verifyObject(IRealm, realm)
        return Portal(realm, schemes.checkers.values())

    def test_login_returns_the_avatar_that_the_realm_gives_later(
        self, schemes: AllSchemes, realm: PendingRealm, portal: Portal, scheme: str
    ) -> None:
        mind, given = object(), (IResource, Resource(), lambda: None)
        login = schemes.start(portal.login(schemes.credentials(scheme), mind, IResource))
        name = f"{ISSUER}#alice".encode() if scheme == "bearer" else b"alice"
        assert realm.asked == [(name, mind, IResource)]
        assert not login.called or login.paused
        realm.avatar.callback(given)
        assert result_of(login) is given

    def test_refused_login_is_unauthorized(
        self, schemes: AllSchemes, realm: PendingRealm, portal: Portal, scheme: str
    ) -> None:
        with pytest.raises(UnauthorizedLogin):
            schemes.finish(portal.login(schemes.credentials(scheme, right=False), None, IResource))
        assert realm.asked == []

    @pytest.mark.parametrize("error", [LoginDenied, ArithmeticError])
    def test_failure_of_the_realm_fails_the_login(
        self, schemes: AllSchemes, realm: PendingRealm, portal: Portal, scheme: str, error: type[Exception]
    ) -> None:
        login = schemes.start(portal.login(schemes.credentials(scheme), None, IResource))
        realm.avatar.errback(error())
        with pytest.raises(error):
            result_of(login)

    @pytest.mark.parametrize("scheme", ["password", "digest"])
    def test_limit_of_failures_fails_the_login(self, schemes: AllSchemes, portal: Portal, scheme: str) -> None:
        for _ in range(3):
            with pytest.raises(UnauthorizedLogin):
                schemes.finish(portal.login(schemes.credentials(scheme, right=False), None, IResource))
        with capturedLogs() as events:
            for _ in range(20):
                with pytest.raises(TooManyFailuresError):
                    schemes.finish(portal.login(schemes.credentials(scheme), None, IResource))
        name = "basic" if scheme == "password" else scheme
        line = f"login refused: {name} 'alice' from {HERE}: too many failures (failures = 3)"
        assert [formatEvent(event) for event in events] == [line]

    @pytest.mark.parametrize("scheme", ["password", "digest", "session"])
    def test_stopped_store_fails_the_login(self, schemes: AllSchemes, portal: Portal, scheme: str) -> None:
        credentials = schemes.credentials(scheme)
        result_of(schemes.api.store.stop())
        with pytest.raises(StoreUnavailableError):
            schemes.finish(portal.login(credentials, None, IResource))

    def test_failed_login_has_its_reason(self, schemes: AllSchemes, realm: PendingRealm, portal: Portal) -> None:
        used = schemes.digest("secret", schemes.finish(schemes.nonces.issue()))
        schemes.start(portal.login(used, None, IResource))
        expired = BearerCredentials(schemes.mint.token(exp=1), writes=False, address=HERE)
        for credentials, error in ((used, StaleNonceError), (expired, InvalidTokenError)):
            with pytest.raises(error):
                schemes.finish(portal.login(credentials, None, IResource))
        assert len(realm.asked) == 1

    @pytest.mark.parametrize("scheme", ["password"])
    def test_cancelled_login_counts_its_failure(self, schemes: AllSchemes, portal: Portal, scheme: str) -> None:
        for _ in range(3):
            login = portal.login(schemes.credentials(scheme, right=False), None, IResource)
            login.addErrback(lambda _: None)
            login.cancel()
            schemes.start(login)
        with pytest.raises(TooManyFailuresError):
            schemes.finish(portal.login(schemes.credentials(scheme), None, IResource))


def file_db(folder: Path, hashed: Callable[..., bytes] | None = None) -> FilePasswordDB:
    """Make a stock checker of a file that has `alice` with the password `secret`."""
    (folder / "passwords").write_bytes(b"alice:" + (hashed(None, b"secret", None) if hashed else b"secret") + b"\n")
    return FilePasswordDB(str(folder / "passwords"), hash=hashed)


async def sign_in(portal: CoroutinePortal, credentials: ICredentials) -> tuple[Identity, Any]:
    """Return the identity and the avatar, as the guard asks for them."""
    identity = await portal.authenticate(credentials)
    return identity, await portal.find_avatar(identity, None, IResource)


@implementer(ICredentialsChecker)
class Answering:
    """A checker of `IUsernamePassword` with a given answer, or an error that it raises."""

    credentialInterfaces = (IUsernamePassword,)

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def requestAvatarId(self, _: object) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class CoroutinePortalTests:
    """Stock checkers and realms in `CoroutinePortal`."""

    ALICE = UsernamePassword(b"alice", b"secret")
    WRONG = UsernamePassword(b"alice", b"wrong")

    def sign_in(self, portal: CoroutinePortal, credentials: ICredentials) -> Any:
        return result_of(sign_in(portal, credentials))

    @pytest.mark.parametrize("kind", ["memory", "file", "hashed file"])
    def test_stock_checkers_are_asked(self, tmp_path: Path, realm: PendingRealm, kind: str) -> None:
        hashed = (lambda _, password, __: bytes(reversed(password))) if kind == "hashed file" else None
        in_memory = InMemoryUsernamePasswordDatabaseDontUse(alice=b"secret")
        portal = CoroutinePortal(realm, [in_memory if kind == "memory" else file_db(tmp_path, hashed)])
        realm.avatar.callback((IResource, "the avatar", lambda: None))
        identity, avatar = self.sign_in(portal, self.ALICE)
        assert (identity.name, identity.scheme, avatar) == ("alice", "", "the avatar")
        assert realm.asked == [(b"alice", None, IResource)]
        for wrong in (self.WRONG, UsernamePassword(b"bob", b"secret")):
            with pytest.raises(Refused):
                self.sign_in(portal, wrong)

    @pytest.mark.parametrize("answer", [b"j\xc3\xbcrgen", "jürgen", succeed(b"j\xc3\xbcrgen")])
    def test_avatar_id_may_be_bytes_or_text(self, realm: PendingRealm, answer: Any) -> None:
        identity = result_of(CoroutinePortal(realm, [Answering(answer)]).authenticate(self.ALICE))
        assert (identity.name, result_of(identity.revalidate())) == ("jürgen", True)

    @pytest.mark.parametrize("error", [UnauthorizedLogin, LoginFailed, LoginDenied, Unauthorized, UnhandledCredentials])
    @pytest.mark.parametrize("raised", [True, False])
    def test_failed_login_of_a_checker_is_refused(
        self, realm: PendingRealm, error: type[Exception], *, raised: bool
    ) -> None:
        answer = error() if raised else fail(error())
        with pytest.raises(Refused):
            self.sign_in(CoroutinePortal(realm, [Answering(answer)]), self.ALICE)

    def test_other_error_of_a_checker_is_raised(self, realm: PendingRealm) -> None:
        for answer in (ArithmeticError(), fail(ArithmeticError())):
            with pytest.raises(ArithmeticError):
                self.sign_in(CoroutinePortal(realm, [Answering(answer)]), self.ALICE)

    def test_anonymous_login_is_refused(self, realm: PendingRealm) -> None:
        with pytest.raises(Refused):
            self.sign_in(CoroutinePortal(realm, [AllowAnonymousAccess()]), Anonymous())
        assert realm.asked == []

    @pytest.mark.parametrize("answer", [None, 5, ["alice"], b"\xff"])
    def test_avatar_id_of_another_kind_is_an_error(self, realm: PendingRealm, answer: Any) -> None:
        with pytest.raises((TypeError, UnicodeDecodeError)):
            self.sign_in(CoroutinePortal(realm, [Answering(answer)]), self.ALICE)

    def test_avatar_of_a_realm_may_come_later(self, realm: PendingRealm) -> None:
        portal = CoroutinePortal(realm, [Answering(b"alice")])
        signing_in = Deferred.fromCoroutine(sign_in(portal, self.ALICE))
        assert not signing_in.called
        realm.avatar.callback((IResource, "the avatar", lambda: None))
        assert result_of(signing_in)[1] == "the avatar"

    @pytest.mark.parametrize("error", [LoginDenied, UnauthorizedLogin, Unauthorized])
    def test_account_that_the_realm_refuses_is_refused(self, realm: PendingRealm, error: type[Exception]) -> None:
        realm.avatar.errback(error())
        with pytest.raises(Refused) as caught:
            self.sign_in(CoroutinePortal(realm, [Answering(b"alice")]), self.ALICE)
        assert caught.value.user == "'alice'"

    @pytest.mark.parametrize("later", [True, False])
    def test_other_error_of_a_realm_is_raised(self, realm: PendingRealm, *, later: bool) -> None:
        portal = CoroutinePortal(realm, [Answering(b"alice")])
        signing_in = Deferred.fromCoroutine(sign_in(portal, self.ALICE)) if later else None
        # Raised by the realms of Twisted's documentation for an interface that they do not provide.
        realm.avatar.errback(Failure(NotImplementedError()))
        with pytest.raises(NotImplementedError):
            result_of(signing_in or sign_in(portal, self.ALICE))

    def test_checker_can_be_replaced(self, realm: PendingRealm) -> None:
        portal = CoroutinePortal(realm, [Answering(b"alice")])
        assert result_of(portal.authenticate(self.ALICE)).name == "alice"
        portal.registerChecker(Answering(b"bob"))
        assert result_of(portal.authenticate(self.ALICE)).name == "bob"
        portal.registerChecker(Answering(b"carol"), IUsernamePassword)
        assert result_of(portal.authenticate(self.ALICE)).name == "carol"

    def test_credentials_without_a_checker_are_unhandled(self, realm: PendingRealm) -> None:
        with pytest.raises(UnhandledCredentials):
            self.sign_in(CoroutinePortal(realm), self.ALICE)
