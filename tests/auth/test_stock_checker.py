"""Stock checkers of `twisted.cred` behind the throttle."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.cred.checkers import (
    ANONYMOUS,
    AllowAnonymousAccess,
    FilePasswordDB,
    ICredentialsChecker,
    InMemoryUsernamePasswordDatabaseDontUse,
)
from twisted.cred.credentials import ICredentials, IUsernameHashedPassword, IUsernamePassword
from twisted.cred.error import LoginDenied, LoginFailed, Unauthorized, UnauthorizedLogin
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from zope.interface import implementer
from zope.interface.verify import verifyObject

from postd.auth.credentials import PasswordCredentials, Refused
from postd.auth.identity import Identity
from postd.auth.session import Sessions
from postd.auth.stock_checker import AnyAccount, StockChecker
from postd.auth.throttle import RESERVATION_TTL_S, WAIT_MAX_S, Throttle, login_keys
from postd.errors import LoginsBusyError, StoreUnavailableError, TooManyFailuresError
from postd.protocol.session import hash_session_id
from postd.store.interface import Failures
from tests.auth.helpers import refusing_writes
from tests.helpers import InMemoryApi, result_of

HERE = "192.0.2.1"


def credentials(username: str = "alice", password: str = "secret", address: str = HERE) -> PasswordCredentials:
    return PasswordCredentials("basic", username, password, address)


@implementer(ICredentialsChecker)
class PendingChecker:
    """A checker whose Deferreds fire when a test says so, as those of PAM do."""

    credentialInterfaces = (IUsernamePassword,)

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: list[Deferred[Any]] = []

    def requestAvatarId(self, credentials: Any) -> Deferred[Any]:
        assert verifyObject(IUsernamePassword, credentials)
        self.asked.append((credentials.username, credentials.password))
        self.answers.append(Deferred())
        return self.answers[-1]


@implementer(ICredentialsChecker)
class RaisingChecker:
    """A checker that returns nothing, but raises an error."""

    credentialInterfaces = (IUsernamePassword,)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def requestAvatarId(self, _: object) -> Any:
        raise self.error


class StockLogins:
    """Logins by a stock checker, whose throttle allows three failures."""

    def __init__(self) -> None:
        self.api = InMemoryApi()
        self.clock = self.api.clock
        self.throttle = Throttle(
            self.api.store, failures=3, address_failures=50, account_failures=100, window_s=300, clock=self.clock
        )
        self.pending = PendingChecker()

    def checker(self, users: ICredentialsChecker | None = None) -> StockChecker:
        return StockChecker(users or self.pending, self.throttle, clock=self.clock)

    def begin(self, users: ICredentialsChecker | None = None, *login: str) -> Deferred[Identity]:
        """Begin a check; the result is that of `check`."""
        checking = Deferred.fromCoroutine(self.checker(users).check(credentials(*login)))
        self.clock.advance(0)
        self.clock.advance(0)
        return checking

    def check(self, users: ICredentialsChecker, *login: str) -> Identity:
        checking = self.begin(users, *login)
        identity: Identity = result_of(checking)
        return identity

    def answer(self, answer: object) -> None:
        """Give the checker's answer to the attempt that was asked last."""
        self.pending.answers[-1].callback(answer)
        self.clock.advance(0)

    def counts(self, name: str = "alice") -> tuple[int, int]:
        """Return the numbers of failures and of reservations of a name from the address of `credentials`."""
        keys = login_keys(name, HERE)
        counted = result_of(self.api.store.count_failures(keys, now=self.clock.seconds()))
        found = counted.get(keys[0], Failures(0, 0.0))
        return found.count, found.reserved


@pytest.fixture
def logins() -> Iterator[StockLogins]:
    logins = StockLogins()
    yield logins
    logins.api.close()


def in_memory() -> InMemoryUsernamePasswordDatabaseDontUse:
    checker = InMemoryUsernamePasswordDatabaseDontUse(alice=b"secret")
    checker.addUser("jürgen".encode(), "pässwörd".encode())
    return checker


def in_file(folder: Path, **options: Any) -> FilePasswordDB:
    hashed: Callable[..., bytes] = options.get("hash") or (lambda _, password, __: password)
    lines = [("alice", "secret"), ("jürgen", "pässwörd")]
    content = b"".join(b"%b:%b\n" % (name.encode(), hashed(None, text.encode(), None)) for name, text in lines)
    (folder / "passwords").write_bytes(content)
    return FilePasswordDB(str(folder / "passwords"), **options)


def hashed_hex(_name: object, password: bytes, _stored: object) -> bytes:
    return hashlib.sha256(password).hexdigest().encode()


class StockCheckersTests:
    """Twisted's own checkers."""

    @pytest.fixture(params=["memory", "file", "cached file", "hashed file"])
    def users(self, tmp_path: Path, request: pytest.FixtureRequest) -> ICredentialsChecker:
        options: dict[str, Any] = {"cached file": {"cache": True}, "hashed file": {"hash": hashed_hex}}
        return in_memory() if request.param == "memory" else in_file(tmp_path, **options.get(request.param, {}))

    def test_right_password_returns_the_name(self, logins: StockLogins, users: ICredentialsChecker) -> None:
        for name, password in (("alice", "secret"), ("jürgen", "pässwörd")):
            for _ in range(5):
                identity = logins.check(users, name, password)
                assert (identity.account, identity.scheme, identity.issuer) == (name, "basic", "")
                assert logins.counts(name) == (0, 0)
        assert result_of(identity.revalidate())

    @pytest.mark.parametrize("name", ["alice", "unknown"])
    def test_wrong_passwords_are_limited(self, logins: StockLogins, users: ICredentialsChecker, name: str) -> None:
        for n in range(1, 4):
            with pytest.raises(Refused):
                logins.check(users, name, "wrong")
            assert logins.counts(name) == (n, 0)
        for password in ("wrong", "secret"):
            with pytest.raises(TooManyFailuresError):
                logins.check(users, name, password)
        assert logins.check(users, "jürgen", "pässwörd")

    def test_file_that_ignores_case_gives_the_name_of_the_file(self, logins: StockLogins, tmp_path: Path) -> None:
        assert logins.check(in_file(tmp_path, caseSensitive=False), "ALICE", "secret").name == "alice"

    def test_missing_file_is_refused(self, logins: StockLogins, tmp_path: Path) -> None:
        """`FilePasswordDB` raises `UnauthorizedLogin` then, and does not return a Deferred."""
        with pytest.raises(Refused):
            logins.check(FilePasswordDB(str(tmp_path / "missing")))


class StockCheckerTests:
    def test_provides_twisted_interface(self, logins: StockLogins) -> None:
        assert verifyObject(ICredentialsChecker, logins.checker())

    @pytest.mark.parametrize("answer", [b"j\xc3\xbcrgen", "jürgen"])
    def test_avatar_id_is_the_name(self, logins: StockLogins, answer: object) -> None:
        checking = logins.checker().requestAvatarId(credentials("any name"))
        logins.clock.advance(0)
        logins.answer(answer)
        assert result_of(checking) == "jürgen".encode()

    @pytest.mark.parametrize("scheme", ["basic", "form"])
    def test_scheme_is_that_of_the_credentials(self, logins: StockLogins, scheme: str) -> None:
        login = PasswordCredentials(scheme, "alice", "secret", HERE)
        checking = Deferred.fromCoroutine(logins.checker().check(login))
        logins.clock.advance(0)
        logins.answer(b"alice")
        assert result_of(checking).scheme == scheme

    def test_checker_gets_names_and_passwords_as_they_were_sent(self, logins: StockLogins) -> None:
        for name, password in (("ju\u0308rgen", "pa\u0308ss"), ("", ""), ("a\0b", "\n")):
            logins.begin(None, name, password)
            assert logins.pending.asked[-1] == (name.encode(), password.encode())

    def test_failures_count_for_the_normalized_name(self, logins: StockLogins) -> None:
        for name in ("jürgen", "ju\u0308rgen"):
            checking = logins.begin(None, name)
            logins.answer(Failure(UnauthorizedLogin()))
            with pytest.raises(Refused):
                result_of(checking)
        assert logins.counts("jürgen") == (2, 0)

    @pytest.mark.parametrize(
        ("name", "password"),
        [("x" * 256, "x"), ("alice", "x" * 1001), ("\udcff", "x"), ("alice", "\ud800"), ("\ud800" * 255, "\udcff")],
    )
    def test_text_that_cannot_be_asked_about_is_refused_at_once(
        self, logins: StockLogins, name: str, password: str
    ) -> None:
        with capturedLogs() as events, pytest.raises(Refused):
            logins.check(logins.pending, name, password)
        assert (logins.pending.asked, len(events)) == ([], 1)

    @pytest.mark.parametrize("error", [UnauthorizedLogin, LoginFailed, LoginDenied, Unauthorized])
    @pytest.mark.parametrize("raised", [True, False])
    def test_failed_login_is_refused_logged_and_counted(
        self, logins: StockLogins, error: type[Exception], *, raised: bool
    ) -> None:
        checker = RaisingChecker(error("a secret")) if raised else None
        with capturedLogs() as events:
            checking = logins.begin(checker)
            if not raised:
                logins.answer(Failure(error("a secret")))
            with pytest.raises(Refused):
                result_of(checking)
        words = "login refused: basic an unknown user of 5 bytes from 192.0.2.1: the checker refuses them"
        assert [formatEvent(event) for event in events] == [words]
        assert logins.counts() == (1, 0)

    def test_anonymous_login_is_refused(self, logins: StockLogins) -> None:
        checking = logins.begin()
        logins.answer(ANONYMOUS)
        with pytest.raises(Refused):
            result_of(checking)
        assert logins.counts() == (1, 0)

    @pytest.mark.parametrize("raised", [True, False])
    @pytest.mark.parametrize("error", [ArithmeticError, LoginsBusyError, CancelledError, DeferredTimeoutError])
    def test_other_error_is_raised_and_counts_nothing(
        self, logins: StockLogins, error: type[Exception], *, raised: bool
    ) -> None:
        for _ in range(5):
            checking = logins.begin(RaisingChecker(error()) if raised else None)
            if not raised:
                logins.answer(Failure(error()))
            with pytest.raises(error):
                result_of(checking)
            assert logins.counts() == (0, 0)

    @pytest.mark.parametrize("answer", [None, 7, b"\xff", ["alice"]])
    def test_avatar_id_of_another_kind_is_raised_and_counts_nothing(self, logins: StockLogins, answer: object) -> None:
        checking = logins.begin()
        logins.answer(answer)
        with pytest.raises((TypeError, UnicodeDecodeError)):
            result_of(checking)
        assert logins.counts() == (0, 0)

    def test_success_resets_failures_of_the_address(self, logins: StockLogins) -> None:
        for _ in range(2):
            with pytest.raises(Refused):
                logins.check(in_memory(), "alice", "wrong")
        assert logins.counts() == (2, 0)
        assert logins.check(in_memory())
        assert logins.counts() == (0, 0)

    def test_attempt_is_reserved_while_the_checker_is_asked(self, logins: StockLogins) -> None:
        checking = logins.begin()
        assert (logins.counts(), len(logins.pending.asked)) == ((0, 1), 1)
        logins.answer(b"alice")
        assert (result_of(checking).name, logins.counts()) == ("alice", (0, 0))

    def test_concurrent_attempts_ask_no_more_often_than_failures_are_allowed(self, logins: StockLogins) -> None:
        checking = [logins.begin() for _ in range(10)]
        assert len(logins.pending.asked) == 3
        for answer in logins.pending.answers:
            answer.errback(UnauthorizedLogin())
        logins.clock.advance(WAIT_MAX_S)
        outcomes: list[Any] = []
        for one in checking:
            one.addErrback(lambda failure: outcomes.append(failure.type))
        assert outcomes == [Refused] * 3 + [TooManyFailuresError] * 7
        assert (len(logins.pending.asked), logins.counts()) == (3, (3, 0))

    def test_failure_is_recorded_before_it_is_answered(self, logins: StockLogins) -> None:
        checking = logins.begin().addErrback(lambda failure: (failure.type, logins.counts()))
        logins.answer(Failure(UnauthorizedLogin()))
        assert result_of(checking) == (Refused, (1, 0))

    def test_failure_that_cannot_be_recorded_is_unavailable_and_counts(self, logins: StockLogins) -> None:
        checking = [logins.begin() for _ in range(3)]
        with refusing_writes(logins.api.store):
            for answer, one in zip(logins.pending.answers, checking, strict=True):
                answer.errback(UnauthorizedLogin())
                with pytest.raises(StoreUnavailableError):
                    result_of(one)
        with capturedLogs() as events, pytest.raises(TooManyFailuresError):
            logins.check(in_memory())
        words = "login refused: basic an unknown user of 5 bytes from 192.0.2.1: too many failures (failures = 3)"
        assert [formatEvent(event) for event in events] == [words]

    def test_store_without_writes_asks_nothing(self, logins: StockLogins) -> None:
        with refusing_writes(logins.api.store), pytest.raises(StoreUnavailableError):
            logins.check(logins.pending)
        result_of(logins.api.store.stop())
        with pytest.raises(StoreUnavailableError):
            logins.check(logins.pending)
        assert logins.pending.asked == []

    def test_failure_of_a_disconnected_client_counts(self, logins: StockLogins) -> None:
        """PAM delays the answer to a wrong password: a client could take the delay for the answer."""
        for n in range(1, 4):
            checking = logins.checker().requestAvatarId(credentials(password="wrong"))
            logins.clock.advance(0)
            checking.addErrback(lambda failure: failure.trap(CancelledError))
            checking.cancel()
            logins.clock.advance(2)
            logins.answer(Failure(UnauthorizedLogin()))
            assert logins.counts() == (n, 0)
        with pytest.raises(TooManyFailuresError):
            logins.check(in_memory())


class ReservationTests:
    """Checks that outlast their reservations."""

    def test_check_ends_with_its_reservation(self, logins: StockLogins) -> None:
        checking = logins.begin()
        logins.clock.advance(RESERVATION_TTL_S - 0.001)
        assert not checking.called
        logins.clock.advance(0.001)
        with pytest.raises(LoginsBusyError):
            result_of(checking)
        assert logins.counts() == (0, 0)
        assert logins.pending.answers[0].called  # it was cancelled

    @pytest.mark.parametrize("answer", [b"alice", Failure(UnauthorizedLogin()), Failure(ArithmeticError())])
    def test_answer_after_the_reservation_is_busy(self, logins: StockLogins, answer: object) -> None:
        """As when the process was suspended: the timer has not fired."""
        checking = logins.begin()
        logins.clock.rightNow += RESERVATION_TTL_S
        logins.answer(answer)
        with pytest.raises(LoginsBusyError):
            result_of(checking)

    def test_checker_that_blocks_for_longer_is_busy(self, logins: StockLogins, monkeypatch: pytest.MonkeyPatch) -> None:
        later = logins.clock.callLater

        def call_later(delay: float, *call: Any) -> Any:
            assert delay >= 0  # as a reactor, other than a `Clock`, has it
            return later(delay, *call)

        monkeypatch.setattr(logins.clock, "callLater", call_later)

        class Blocking(PendingChecker):
            def requestAvatarId(self, credentials: Any) -> Deferred[Any]:
                logins.clock.rightNow += RESERVATION_TTL_S + 1
                return fail(UnauthorizedLogin())

        with pytest.raises(LoginsBusyError):
            logins.check(Blocking())

    def test_answered_check_leaves_no_timer(self, logins: StockLogins) -> None:
        timers = len(logins.clock.getDelayedCalls())
        logins.check(in_memory())
        logins.begin()
        logins.answer(b"alice")
        assert len(logins.clock.getDelayedCalls()) == timers


class ArgumentTests:
    @pytest.mark.parametrize(
        ("users", "kind"),
        [
            (None, "NoneType"),
            ("/etc/postd/users", "str"),
            (InMemoryUsernamePasswordDatabaseDontUse, "InMemoryUsernamePasswordDatabaseDontUse"),
            (AllowAnonymousAccess(), "AllowAnonymousAccess"),
        ],
    )
    def test_what_is_no_checker_of_passwords_is_refused(self, logins: StockLogins, users: Any, kind: str) -> None:
        with pytest.raises(ValueError, match=f"^users: expected .* twisted.cred checker of .*, got {kind}$"):
            StockChecker(users, logins.throttle, clock=logins.clock)

    def test_checker_of_other_credentials_is_refused(self, logins: StockLogins) -> None:
        checker = PendingChecker()
        for unfit in ((IUsernameHashedPassword,), ()):
            cast(Any, checker).credentialInterfaces = unfit
            with pytest.raises(ValueError, match="got PendingChecker"):
                logins.checker(checker)
        for fit in ([IUsernameHashedPassword, IUsernamePassword], [ICredentials]):
            cast(Any, checker).credentialInterfaces = fit
            assert logins.checker(checker)


class SessionTests:
    """Sessions of the accounts of a stock checker."""

    def test_any_account_has_a_session_until_it_expires(self, logins: StockLogins) -> None:
        now = logins.clock.seconds
        sessions = Sessions(logins.api.store, AnyAccount(), idle_s=1800, lifetime_s=7200, now=now)
        beginning = Deferred.fromCoroutine(sessions.begin("anybody", in_place_of=()))
        logins.clock.advance(0)
        id_hash = hash_session_id(result_of(beginning))
        assert id_hash is not None
        # Another process has the same fingerprint.
        others = Sessions(logins.api.store, AnyAccount(), idle_s=1800, lifetime_s=7200, now=now)
        assert result_of(others.use(id_hash)).username == "anybody"
        logins.clock.rightNow += 1800
        assert result_of(others.use(id_hash)) is None
