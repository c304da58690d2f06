"""Checking passwords in threads, with a cache and single flight."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import bcrypt
import pytest
from msgspec.structs import replace
from pytest_twisted import ensureDeferred
from twisted.cred.checkers import ICredentialsChecker
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock, deferLater
from zope.interface.verify import verifyObject

from postd.auth.credentials import PasswordCredentials, Refused
from postd.auth.password import (
    CACHE_MAX,
    CACHE_TTL_S,
    QUEUE_MAX,
    THREADS,
    HashThreads,
    PasswordChecker,
    PasswordVerifier,
)
from postd.auth.throttle import Throttle, login_keys
from postd.auth.users import UserDirectory
from postd.errors import LoginsBusyError, StoreUnavailableError, TooManyFailuresError
from postd.reactor import IReactor
from postd.store.interface import LoginStore
from postd.store.sqlite.store import MemoryStore
from tests.auth.helpers import Logins, SlowThreads, all_in, refusing_writes
from tests.helpers import PATIENCE_S, InMemoryApi, result_of
from tests.web.wire import FORM, Exchange, ask, begin, user_line

T = TypeVar("T")

HERE = "192.0.2.1"


def bcrypt_of(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


SECRET = bcrypt_of("secret")
VERIFY = "postd.auth.password.verify_password"


def credentials(username: str = "alice", password: str = "secret", address: str = HERE) -> PasswordCredentials:
    return PasswordCredentials("basic", username, password, address)


@pytest.fixture
def threads() -> Iterator[SlowThreads]:
    threads = SlowThreads()
    yield threads
    threads.run_waiting()


def raising(error: type[Exception]) -> Callable[..., bool]:
    """Return a replacement for `verify_password` that raises an error."""

    def verify(*_: object) -> bool:
        raise error

    return verify


def make_throttle(store: LoginStore, clock: Any) -> Throttle:
    return Throttle(store, failures=10, address_failures=50, account_failures=100, window_s=300, clock=clock)


class VerifierTests:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def verifier(self, threads: SlowThreads, clock: Clock) -> PasswordVerifier:
        return PasswordVerifier(threads, now=clock.seconds)

    def begin(
        self,
        verifier: PasswordVerifier,
        login: PasswordCredentials | None = None,
        stored: str = SECRET,
        until: float = math.inf,
    ) -> Deferred[bool]:
        return Deferred.fromCoroutine(verifier.verify(login or credentials(), stored, deadline=until))

    def verify(self, verifier: PasswordVerifier, threads: SlowThreads, *arguments: Any) -> bool:
        verifying = self.begin(verifier, *arguments)
        threads.run_waiting()
        return bool(result_of(verifying))

    def test_right_password_is_cached_for_a_minute(
        self, verifier: PasswordVerifier, threads: SlowThreads, clock: Clock
    ) -> None:
        for _ in range(5):
            assert self.verify(verifier, threads)
        assert threads.asked == 1
        clock.advance(CACHE_TTL_S - 0.1)
        assert self.verify(verifier, threads)
        assert threads.asked == 1  # and being used does not make it last
        clock.advance(0.1)
        assert self.verify(verifier, threads)
        assert threads.asked == 2

    def test_wrong_password_is_never_cached(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        for n in range(1, 4):
            assert not self.verify(verifier, threads, credentials(password="wrong"))
            assert threads.asked == n
        assert self.verify(verifier, threads)
        assert not self.verify(verifier, threads, credentials(password="wrong"))

    def test_other_hash_is_not_cached(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        assert self.verify(verifier, threads)
        assert not self.verify(verifier, threads, None, bcrypt_of("other"))
        assert self.verify(verifier, threads, None, bcrypt_of("secret"))
        assert threads.asked == 3

    def test_other_user_or_password_is_not_cached(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        """The boundary between them is part of the cache key."""
        stored = bcrypt_of("b")
        assert self.verify(verifier, threads, credentials("a", "b"), stored)
        assert not self.verify(verifier, threads, credentials("ab", ""), stored)
        assert not self.verify(verifier, threads, credentials("", "ab"), stored)
        assert self.verify(verifier, threads, credentials("c", "b"), stored)
        assert threads.asked == 4

    def test_cache_does_not_depend_on_the_address(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        assert self.verify(verifier, threads)
        assert self.verify(verifier, threads, credentials(address="198.51.100.1"))
        assert threads.asked == 1

    def test_cleared_cache_is_empty(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        self.verify(verifier, threads)
        verifier.clear_cache()
        assert self.verify(verifier, threads)
        assert threads.asked == 2

    @pytest.mark.slow
    def test_cache_is_bounded(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        stored = bcrypt_of("x")
        for n in range(CACHE_MAX + 10):
            assert self.verify(verifier, threads, credentials(f"user{n}", "x"), stored)
        users = (credentials(f"user{n}", "x") for n in range(CACHE_MAX + 10))
        assert sum(verifier.check_cached(user, stored) is not None for user in users) == CACHE_MAX
        asked = threads.asked
        assert self.verify(verifier, threads, credentials(f"user{CACHE_MAX + 9}", "x"), stored)
        assert threads.asked == asked
        assert self.verify(verifier, threads, credentials("user0", "x"), stored)
        assert threads.asked == asked + 1

    def test_passwords_are_not_kept_in_memory(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        self.verify(verifier, threads)
        assert not any("secret" in repr(thing) for thing in all_in(verifier))
        assert "secret" not in repr(credentials())
        other = PasswordVerifier(threads, now=lambda: 0.0)
        self.verify(other, threads)
        # Each process has a key of its own.
        one, another = ({thing for thing in all_in(each) if isinstance(thing, bytes)} for each in (verifier, other))
        assert one
        assert one.isdisjoint(another)

    def test_concurrent_equal_passwords_are_verified_once(
        self, verifier: PasswordVerifier, threads: SlowThreads
    ) -> None:
        for password, right in (("secret", True), ("wrong", False)):
            before = threads.asked
            waiting = [self.begin(verifier, credentials(password=password)) for _ in range(500)]
            threads.run_waiting()
            assert [result_of(one) for one in waiting] == [right] * 500
            assert threads.asked == before + 1

    def test_concurrent_verifications_are_limited_to_the_threads(
        self, verifier: PasswordVerifier, threads: SlowThreads
    ) -> None:
        for n in range(THREADS + 5):
            self.begin(verifier, credentials(f"user{n}"))
        assert len(threads.waiting) == THREADS
        threads.waiting.pop(0)()
        assert len(threads.waiting) == THREADS
        threads.run_waiting()
        assert threads.asked == THREADS + 5

    def test_full_queue_refuses(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        waiting = [self.begin(verifier, credentials(f"user{n}")) for n in range(THREADS + QUEUE_MAX)]
        for _ in range(3):
            with pytest.raises(LoginsBusyError):
                result_of(self.begin(verifier, credentials("one too many")))
        joined = self.begin(verifier, credentials("user0"))  # costs nothing more
        threads.run_waiting()
        assert all(result_of(one) for one in [*waiting, joined])
        assert self.verify(verifier, threads, credentials("one too many"))

    def test_cached_password_passes_a_full_queue(self, verifier: PasswordVerifier, threads: SlowThreads) -> None:
        self.verify(verifier, threads)
        for n in range(THREADS + QUEUE_MAX):
            self.begin(verifier, credentials(f"user{n}"))
        assert result_of(self.begin(verifier))

    def test_password_verified_after_the_deadline_is_refused(
        self, verifier: PasswordVerifier, threads: SlowThreads, clock: Clock
    ) -> None:
        asking = [self.begin(verifier, credentials(f"user{n}"), SECRET, 60) for n in range(THREADS + 2)]
        clock.advance(60)
        threads.run_waiting()
        for one in asking:
            with pytest.raises(LoginsBusyError):
                result_of(one)
        assert threads.asked == THREADS
        assert self.verify(verifier, threads, credentials("later"))  # no slot was lost

    def test_error_releases_its_slot(
        self, verifier: PasswordVerifier, threads: SlowThreads, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(VERIFY, raising(ArithmeticError))
            for n in range(THREADS * 3):
                with pytest.raises(ArithmeticError):
                    self.verify(verifier, threads, credentials(f"user{n % 2}"))
        assert self.verify(verifier, threads)

    def test_too_little_memory_is_busy(
        self, verifier: PasswordVerifier, threads: SlowThreads, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(VERIFY, raising(MemoryError))
            with pytest.raises(LoginsBusyError):
                self.verify(verifier, threads)
        assert self.verify(verifier, threads)


class CheckerLogins(Logins):
    """Logins by a `PasswordChecker`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, user_line("alice", "secret") + user_line("jürgen", "pässwörd"))
        self.users = UserDirectory(str(self.user_file))
        self.users.load()
        verifier = PasswordVerifier(self.threads, now=self.clock.seconds)
        throttle = make_throttle(self.api.store, self.clock)
        self.checker = PasswordChecker(self.users, verifier, throttle, store=self.api.store)

    def check(self, *login: str, scheme: str = "basic") -> Any:
        checking = self.checker.requestAvatarId(replace(credentials(*login), scheme=scheme))
        self.clock.advance(0)
        self.threads.run_waiting()
        self.clock.advance(0)
        return result_of(checking)

    def check_busy(self, *login: str) -> None:
        """Check that credentials are refused because the queue is full."""
        checking = self.checker.requestAvatarId(credentials(*login))
        for _ in range(3):
            self.clock.advance(0)
        with pytest.raises(LoginsBusyError):
            result_of(checking)

    @contextmanager
    def full_queue(self) -> Iterator[None]:
        """Fill the queue with wrong passwords, and verify them at the end."""
        for n in range(THREADS + QUEUE_MAX):
            checking = self.checker.requestAvatarId(credentials(f"user{n}", "x", f"192.0.2.{n}"))
            checking.addErrback(lambda failure: failure.trap(Refused))
        self.clock.advance(0)
        yield
        while self.threads.waiting:
            self.threads.run_waiting()
            self.clock.advance(0)

    def failures(self, name: str = "alice") -> int:
        """Return the number of failures of a name from the address of `credentials`."""
        keys = login_keys(name, HERE)
        counted = result_of(self.api.store.count_failures(keys, now=self.clock.seconds()))
        return counted[keys[0]].count if keys[0] in counted else 0


class CheckerTests:
    @pytest.fixture
    def logins(self, tmp_path: Path) -> Iterator[CheckerLogins]:
        logins = CheckerLogins(tmp_path)
        yield logins
        logins.close()

    def test_password_checker_provides_twisted_interface(self, logins: CheckerLogins) -> None:
        verifyObject(ICredentialsChecker, logins.checker)

    def test_right_password_returns_the_name(self, logins: CheckerLogins) -> None:
        assert logins.check("alice", "secret") == b"alice"
        decomposed = logins.check("ju\u0308rgen", "pa\u0308sswo\u0308rd")
        assert decomposed == "jürgen".encode()

    def test_unknown_user_costs_as_much_as_a_wrong_password(self, logins: CheckerLogins) -> None:
        for name in ("alice", "unknown"):
            for n in range(1, 4):
                before = logins.threads.asked
                with pytest.raises(Refused):
                    logins.check(name, "wrong")
                assert logins.threads.asked == before + 1
                assert logins.failures(name) == n

    def test_unknown_user_with_the_password_of_the_dummy_hash_is_refused_alike(self, logins: CheckerLogins) -> None:
        """The dummy hash is of another account: neither response nor time may reveal that the password matches."""
        for name in (f"unknown{n}" for n in range(8)):
            for password in ("secret", "pässwörd"):
                for _ in range(2):
                    before = logins.threads.asked
                    with pytest.raises(Refused):
                        logins.check(name, password)
                    assert logins.threads.asked == before + 1

    @pytest.mark.parametrize(("name", "password"), [("x" * 100_000, "x"), ("alice", "x" * 100_000), ("é" * 50_000, "")])
    def test_too_long_credentials_are_refused_at_once(self, logins: CheckerLogins, name: str, password: str) -> None:
        with pytest.raises(Refused):
            logins.check(name, password)

    @pytest.mark.parametrize("text", ["\0", "", "\n", "\udcff"])
    def test_any_text_is_checked_without_error(self, logins: CheckerLogins, text: str) -> None:
        for login in ((text, "secret"), ("alice", text), (text, text)):
            with pytest.raises(Refused):
                logins.check(*login)

    @pytest.mark.parametrize(
        "content", [user_line("alice", "other"), "", user_line("bob", "secret")], ids=["other", "none", "gone"]
    )
    def test_password_changed_during_verification_is_refused(self, logins: CheckerLogins, content: str) -> None:
        checking = logins.checker.requestAvatarId(credentials())
        logins.clock.advance(0)
        assert len(logins.threads.waiting) == 1
        logins.user_file.write_text(content)
        logins.users.refresh()
        logins.users.refresh()  # an empty file is loaded at the second check
        logins.threads.run_waiting()
        logins.clock.advance(0)
        with pytest.raises(Refused):
            result_of(checking)
        assert logins.failures() == 0

    def test_password_changed_by_another_process_is_judged_at_once(self, logins: CheckerLogins) -> None:
        assert logins.check("alice", "secret") == b"alice"  # and is cached
        logins.user_file.write_text(user_line("alice", "other"))
        with pytest.raises(Refused):
            logins.check("alice", "secret", scheme="form")
        assert logins.check("alice", "other") == b"alice"
        logins.user_file.write_text(user_line("carol", "new"))
        assert logins.check("carol", "new") == b"carol"

    def test_success_resets_failures_of_the_address(self, logins: CheckerLogins) -> None:
        for _ in range(5):
            with pytest.raises(Refused):
                logins.check("alice", "wrong")
        assert logins.failures() == 5
        assert logins.check("alice", "secret") == b"alice"
        assert logins.failures() == 0

    def test_cached_password_writes_nothing(self, logins: CheckerLogins) -> None:
        logins.check()
        with refusing_writes(logins.api.store) as refused:
            for _ in range(3):
                logins.check()
        assert refused == []

    def test_too_many_failures_are_refused_without_verifying(self, logins: CheckerLogins) -> None:
        assert logins.check() == b"alice"
        for _ in range(10):
            with pytest.raises(Refused):
                logins.check("alice", "wrong")
        before = logins.threads.asked
        for password in ("wrong", "secret"):  # the cached password is refused as well
            with pytest.raises(TooManyFailuresError):
                logins.check("alice", password)
        assert logins.threads.asked == before

    def test_too_little_memory_counts_no_failure(self, logins: CheckerLogins, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(VERIFY, raising(MemoryError))
        for name in ("alice", "unknown"):
            with pytest.raises(LoginsBusyError):
                logins.check(name, "x")
            assert logins.failures(name) == 0

    def test_guess_unlike_the_cached_password_counts_when_the_queue_is_full(self, logins: CheckerLogins) -> None:
        assert logins.check() == b"alice"
        with logins.full_queue():
            for _ in range(10):
                logins.check_busy("alice", "wrong")
            assert logins.failures() == 10
            right = logins.checker.requestAvatarId(credentials())
            logins.clock.advance(0)
            with pytest.raises(TooManyFailuresError):
                result_of(right)

    def test_attempt_without_a_cached_password_does_not_count_when_the_queue_is_full(
        self, logins: CheckerLogins
    ) -> None:
        with logins.full_queue():
            for _ in range(12):
                logins.check_busy()
            assert logins.failures() == 0

    def test_guess_unlike_the_cached_password_counts_when_its_reservation_fails(self, logins: CheckerLogins) -> None:
        assert logins.check() == b"alice"
        with refusing_writes(logins.api.store):
            for _ in range(20):
                with pytest.raises(StoreUnavailableError):
                    logins.check("alice", "wrong")
            with pytest.raises(StoreUnavailableError):  # the correct password is refused as well
                logins.check()
        assert logins.check() == b"alice"

    def test_stopped_store_verifies_nothing(self, logins: CheckerLogins) -> None:
        result_of(logins.api.store.stop())
        with pytest.raises(StoreUnavailableError):
            logins.check()
        assert logins.threads.asked == 0


class OverHttpTests:
    """Responses to clients, with Basic and the form."""

    @pytest.fixture
    def api(self, tmp_path: Path, threads: SlowThreads, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryApi]:
        (tmp_path / "users").write_text(user_line("alice", "secret"))
        monkeypatch.setattr("tests.helpers.InlineHashThreads", lambda _: threads)
        api = InMemoryApi(tmp_path)
        yield api
        api.close()

    def begin(self, api: InMemoryApi, scheme: str, password: str) -> Exchange:
        if scheme == "form":
            body = f"username=alice&password={password}".encode()
            asked = begin(api, "POST", "/login", body, {"Content-Type": FORM})
        else:
            token = {"secret": "YWxpY2U6c2VjcmV0", "wrong": "YWxpY2U6d3Jvbmc="}[password]
            asked = begin(api, "GET", "/basic", None, {"Authorization": f"Basic {token}"})
        api.clock.advance(0)
        return asked

    def failures(self, api: InMemoryApi) -> int:
        api.clock.advance(0)
        keys = login_keys("alice", "127.0.0.1")
        counted = result_of(api.store.count_failures(keys, now=api.clock.seconds()))
        assert len({found.count for found in counted.values()}) <= 1
        return counted[keys[0]].count if counted else 0

    @pytest.mark.parametrize("scheme", ["basic", "form"])
    def test_failure_of_a_disconnected_client_counts(self, api: InMemoryApi, threads: SlowThreads, scheme: str) -> None:
        asked = self.begin(api, scheme, "wrong")
        assert not asked.has_begun
        asked.disconnect()
        threads.run_waiting()
        assert self.failures(api) == 1
        for _ in range(20):
            self.begin(api, scheme, "wrong").disconnect()
        threads.run_waiting()
        assert self.failures(api) == 10
        assert self.begin(api, scheme, "secret").response().status == 429

    @pytest.mark.parametrize("scheme", ["basic", "form"])
    def test_shared_verification_survives_a_disconnect(
        self, api: InMemoryApi, threads: SlowThreads, scheme: str
    ) -> None:
        """Even if the disconnected client had started it."""
        first, second = self.begin(api, scheme, "secret"), self.begin(api, scheme, "secret")
        first.disconnect()
        threads.run_waiting()
        assert second.response().status == (302 if scheme == "form" else 200)
        assert threads.asked == 1

    @pytest.mark.parametrize("scheme", ["basic", "form"])
    def test_full_queue_answers_503(self, api: InMemoryApi, threads: SlowThreads, scheme: str) -> None:
        waiting = [
            begin(
                api,
                "POST",
                "/login",
                f"username=user{n}&password=x".encode(),
                {"Content-Type": FORM},
                peer=f"10.0.{n}.1",
            )
            for n in range(THREADS + QUEUE_MAX)
        ]
        api.clock.advance(0)  # the key of unknown users is made
        answer = self.begin(api, scheme, "secret").response()
        assert (answer.status, answer.body) == (503, b"Service Unavailable\n")
        assert answer.header("Retry-After")
        assert answer.header("WWW-Authenticate") is None
        threads.run_waiting()
        assert {one.response().status for one in waiting} == {401}
        asked = self.begin(api, scheme, "secret")
        threads.run_waiting()
        assert asked.response().status in {200, 302}

    @pytest.mark.parametrize("scheme", ["basic", "form"])
    def test_too_little_memory_answers_503(
        self, api: InMemoryApi, threads: SlowThreads, scheme: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(VERIFY, raising(MemoryError))
        asked = self.begin(api, scheme, "secret")
        threads.run_waiting()
        answer = asked.response()
        assert (answer.status, answer.header("WWW-Authenticate")) == (503, None)
        assert answer.header("Retry-After")
        assert self.failures(api) == 0

    def test_changed_user_file_clears_the_cache(self, api: InMemoryApi, threads: SlowThreads, tmp_path: Path) -> None:
        for asked, content in ((1, ""), (1, "# comment\n"), (2, "")):
            one = self.begin(api, "basic", "secret")
            threads.run_waiting()
            assert (one.response().status, threads.asked) == (200, asked)
            (tmp_path / "users").write_text(content + user_line("alice", "secret"))
            if content:
                api.clock.advance(1)

    def test_other_requests_are_answered_during_verification(self, api: InMemoryApi) -> None:
        self.begin(api, "form", "secret")
        assert ask(api, "GET", "/").status == 200
        assert ask(api, "GET", "/post").status == 200


class HashThreadsTests:
    """With the global reactor."""

    @pytest.fixture
    def threads(self) -> Iterator[HashThreads]:
        threads = HashThreads(cast(IReactor, global_reactor))
        threads.start()
        yield threads
        threads.stop()

    @ensureDeferred
    async def test_verification_runs_in_other_threads(self, threads: HashThreads) -> None:
        reactors = threading.get_ident()
        idents = await gatherResults([threads.run(threading.get_ident) for _ in range(10)])
        assert reactors not in idents
        assert len(set(idents)) <= THREADS
        answered: list[int] = []
        await threads.run(int).addCallback(lambda _: answered.append(threading.get_ident()))
        assert answered == [reactors]

    @ensureDeferred
    async def test_reactor_runs_during_verification(self, threads: HashThreads) -> None:
        enough = threading.Event()
        verifying = gatherResults([threads.run(enough.wait, PATIENCE_S) for _ in range(THREADS)])
        for _ in range(10):
            await deferLater(cast(IReactor, global_reactor), 0.005)
        assert not verifying.called
        enough.set()
        await verifying

    @ensureDeferred
    async def test_errors_are_returned(self, threads: HashThreads) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            await threads.run(int, "x")

    @ensureDeferred
    async def test_login_uses_the_threads(self, threads: HashThreads, tmp_path: Path) -> None:
        reactor = cast(IReactor, global_reactor)
        (tmp_path / "users").write_text(user_line("alice", "secret"))
        users = UserDirectory(str(tmp_path / "users"))
        users.load()
        store = MemoryStore(reactor=reactor)
        store.prepare()
        await store.start()
        throttle = make_throttle(store, reactor)
        checker = PasswordChecker(users, PasswordVerifier(threads, now=time.time), throttle, store=store)
        assert await checker.requestAvatarId(credentials()) == b"alice"
        outcomes: list[Any] = []
        await gatherResults(
            [checker.requestAvatarId(credentials(password=f"wrong{n}")).addBoth(outcomes.append) for n in range(40)]
        )
        kinds = [type(outcome.value) for outcome in outcomes]
        assert (kinds.count(Refused), kinds.count(TooManyFailuresError)) == (10, 30)
        await store.stop()
