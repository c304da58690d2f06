"""Failed logins are counted, by account and address, whatever the scheme."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
from twisted.internet.defer import Deferred

from postd.auth.password import THREADS, HashThreads
from postd.auth.throttle import (
    LOOK_EVERY_S,
    RESERVED_S,
    WAIT_MAX_S,
    Attempt,
    Throttle,
    attempt_from,
    attempt_of,
)
from postd.daemon.authentication import Authentication
from postd.daemon.server import make_tree
from postd.errors import StoreUnavailableError, TooManyFailuresError
from postd.reactor import IReactor
from postd.settings.schema import Settings, ThrottleSettings
from tests.helpers import InMemoryApi, Response, make_site, result_of
from tests.web.wire import FORM, Exchange, Worker, ask, begin, digest_value, user_line

T = TypeVar("T")

HERE, THERE = "192.0.2.1", "192.0.2.2"
WINDOW_S = 300


def started(call: Any) -> Deferred[Any]:
    return Deferred.fromCoroutine(call)


class AttemptTests:
    def test_it_has_three_different_keys(self) -> None:
        assert len(set(attempt_of("alice", HERE))) == 3
        assert not set(attempt_of("alice", HERE)) & set(attempt_of(HERE, "alice"))

    def test_what_is_the_same_has_the_same_key(self) -> None:
        pair, address, account = attempt_of("alice", HERE)
        assert attempt_of("alice", HERE) == (pair, address, account)
        other_user, elsewhere = attempt_of("bob", HERE), attempt_of("alice", THERE)
        assert (other_user[0] != pair, other_user[1] == address, other_user[2] != account) == (True, True, True)
        assert (elsewhere[0] != pair, elsewhere[1] != address, elsewhere[2] == account) == (True, True, True)

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ("2001:db8::1", "2001:db8::2", True),
            ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
            ("2001:db8::1", "2001:db8:0:1::1", False),
            ("2001:db8::1", "2001:DB8:0:0:0:0:0:99", True),
            ("fe80::1%eth0", "fe80::2", True),
            ("::ffff:192.0.2.1", "192.0.2.1", True),
            ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
            ("::ffff:c000:201", "192.0.2.1", True),
            ("192.0.2.1", "192.0.2.2", False),
            ("::1", "127.0.0.1", False),
            ("unix", "unix", True),
            ("unix", "127.0.0.1", False),
        ],
    )
    def test_an_ipv6_address_counts_by_its_64(self, one: str, other: str, *, same: bool) -> None:
        assert (attempt_of("alice", one)[1] == attempt_of("alice", other)[1]) == same
        assert (attempt_of("alice", one)[0] == attempt_of("alice", other)[0]) == same
        assert attempt_of("alice", one)[2] == attempt_of("alice", other)[2]

    def test_any_name_can_be_counted(self) -> None:
        names = ["", "\0", "a\0b", "a", "b", "\udcff", "ü", "x" * 10_000, "192.0.2.1"]
        assert len({key for name in names for key in attempt_of(name, HERE)}) == 2 * len(names) + 1


class ThrottleTests:
    @pytest.fixture
    def api(self) -> Iterator[InMemoryApi]:
        api = InMemoryApi()
        yield api
        api.close()

    def make(self, api: InMemoryApi, failures: int = 10, address: int = 50, account: int = 100) -> Throttle:
        return Throttle(
            api.store,
            failures=failures,
            address_failures=address,
            account_failures=account,
            window_s=WINDOW_S,
            clock=api.clock,
        )

    def run(self, api: InMemoryApi, call: Any) -> Any:
        running = started(call)
        api.clock.advance(0)
        return result_of(running)

    def admit(self, api: InMemoryApi, throttle: Throttle, name: str = "alice", address: str = HERE) -> Attempt:
        attempt: Attempt = self.run(api, throttle.admit(attempt_of(name, address)))
        return attempt

    def fail(self, api: InMemoryApi, throttle: Throttle, name: str, address: str, times: int = 1) -> None:
        for _ in range(times):
            self.run(api, throttle.fail(self.admit(api, throttle, name, address)))

    def succeed(self, api: InMemoryApi, throttle: Throttle, name: str, address: str) -> None:
        self.run(api, throttle.release(self.admit(api, throttle, name, address), forget=True))

    def wait_s(self, api: InMemoryApi, throttle: Throttle, name: str, address: str) -> int:
        """Return how long an attempt has to wait; 0 if it is admitted."""
        try:
            self.admit(api, throttle, name, address)
        except TooManyFailuresError as error:
            assert error.retry_after_s >= 1
            return error.retry_after_s
        return 0

    def test_an_account_from_an_address_has_so_many(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        self.fail(api, throttle, "alice", HERE, 10)
        assert self.wait_s(api, throttle, "alice", HERE) == WINDOW_S
        assert self.wait_s(api, throttle, "alice", THERE) == 0
        assert self.wait_s(api, throttle, "bob", HERE) == 0

    def test_an_address_has_so_many_for_all_accounts(self, api: InMemoryApi) -> None:
        throttle = self.make(api, address=6)
        for n in range(6):
            self.fail(api, throttle, f"user{n}", f"2001:db8::{n}")
        assert self.wait_s(api, throttle, "somebody", "2001:db8::99") == WINDOW_S
        assert self.wait_s(api, throttle, "user0", "2001:db8:0:1::") == 0
        self.fail(api, throttle, "alice", "::ffff:192.0.2.1", 3)
        self.fail(api, throttle, "bob", HERE, 3)
        assert self.wait_s(api, throttle, "carol", HERE) == WINDOW_S

    def test_an_account_has_so_many_from_everywhere(self, api: InMemoryApi) -> None:
        throttle = self.make(api, account=6)
        for n in range(6):
            assert self.wait_s(api, throttle, "alice", "198.51.100.1") == 0
            self.fail(api, throttle, "alice", f"192.0.2.{n}")
        assert self.wait_s(api, throttle, "alice", "198.51.100.1") == WINDOW_S
        assert self.wait_s(api, throttle, "bob", "198.51.100.1") == 0

    def test_a_failure_is_forgotten_when_its_window_ends(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=3)
        for _ in range(3):
            self.fail(api, throttle, "alice", HERE)
            api.clock.advance(10)
        assert self.wait_s(api, throttle, "alice", HERE) == WINDOW_S - 30
        api.clock.advance(WINDOW_S - 30 - 0.5)
        assert self.wait_s(api, throttle, "alice", HERE) == 1
        api.clock.advance(0.5)
        assert self.wait_s(api, throttle, "alice", HERE) == 0  # the first is gone, two are left
        self.fail(api, throttle, "alice", HERE)
        assert self.wait_s(api, throttle, "alice", HERE) == 10
        api.clock.advance(WINDOW_S)
        self.fail(api, throttle, "alice", HERE, 3)

    def test_who_waits_as_long_as_told_is_let_pass(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=4, address=6, account=5)
        for n in range(4):
            self.fail(api, throttle, "alice", HERE)
            api.clock.advance(7 * n)
        self.fail(api, throttle, "bob", HERE, 2)
        self.fail(api, throttle, "alice", THERE)
        for name in ("alice", "bob"):
            for _ in range(3):  # of several limits, each may be the one that holds longest
                api.clock.advance(self.wait_s(api, throttle, name, HERE))
            assert self.wait_s(api, throttle, name, HERE) == 0

    def test_being_refused_does_not_lengthen_the_wait(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=2)
        self.fail(api, throttle, "alice", HERE, 2)
        for _ in range(WINDOW_S - 1):
            api.clock.advance(1)
            assert self.wait_s(api, throttle, "alice", HERE) > 0
        api.clock.advance(1)
        assert self.wait_s(api, throttle, "alice", HERE) == 0

    def test_success_forgets_the_pair_and_nothing_else(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=3, address=5, account=5)
        self.fail(api, throttle, "alice", HERE, 2)
        self.succeed(api, throttle, "alice", HERE)
        self.fail(api, throttle, "alice", HERE, 2)
        admitted = self.admit(api, throttle)
        self.fail(api, throttle, "alice", HERE)  # the fifth of the address, and of the account
        self.run(api, throttle.release(admitted, forget=True))
        counted = result_of(api.store.count_failures(admitted.keys, now=api.clock.seconds()))
        assert {key: found.count for key, found in counted.items()} == dict.fromkeys(admitted.keys[1:], 5)
        assert self.wait_s(api, throttle, "bob", HERE) == WINDOW_S
        assert self.wait_s(api, throttle, "alice", THERE) == WINDOW_S

    def test_attempt_knows_of_failures_to_forget(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        assert not self.admit(api, throttle).had_failures
        self.fail(api, throttle, "alice", HERE)
        assert self.admit(api, throttle).had_failures
        assert not self.admit(api, throttle, address=THERE).had_failures
        assert not self.admit(api, throttle, "bob").had_failures

    def test_of_many_at_once_no_more_fail_than_allowed(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        failed, refused = self.fail_together(api, [throttle], 100)
        assert (failed, refused) == (10, 90)

    def fail_together(self, api: InMemoryApi, throttles: Sequence[Throttle], count: int) -> tuple[int, int]:
        """Make wrong attempts at the same moment; return how many were compared, and how many were refused."""
        outcomes: list[Any] = []

        async def compare(throttle: Throttle) -> str:
            await throttle.fail(await throttle.admit(attempt_of("alice", HERE)))
            return "compared"

        for n in range(count):
            started(compare(throttles[n % len(throttles)])).addBoth(outcomes.append)
        for _ in range(20):
            api.clock.advance(0)
        api.clock.advance(LOOK_EVERY_S)  # what other workers have come to
        for _ in range(20):
            api.clock.advance(0)
        refused = [outcome for outcome in outcomes if outcome != "compared"]
        assert all(outcome.check(TooManyFailuresError) for outcome in refused)
        return len(outcomes) - len(refused), len(refused)

    def test_failure_that_is_being_noted_makes_others_reserve(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=2)
        noting = started(throttle.fail(result_of(throttle.admit(attempt_of("alice", HERE)))))
        assert not noting.called
        second, third = (started(throttle.admit(attempt_of("alice", HERE))) for _ in range(2))
        unrelated = result_of(throttle.admit(attempt_of("bob", THERE)))
        assert unrelated.reservation is None
        api.clock.advance(0)
        assert result_of(noting) is None
        assert result_of(second).reservation is not None
        assert not third.called  # it waits for the second

    def test_reserved_attempt_counts_until_it_ends(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        behind = started(throttle.admit(attempt_of("alice", HERE)))
        api.clock.advance(0)
        assert not behind.called
        releasing = started(throttle.release(attempt))
        for _ in range(3):
            api.clock.advance(0)
        assert result_of(releasing) is None
        assert result_of(behind).keys == attempt_of("alice", HERE)

    def test_attempt_behind_a_failure_is_refused_at_once(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        behind = [started(throttle.admit(attempt_of("alice", HERE))) for _ in range(200)]
        api.clock.advance(0)
        failing = started(throttle.fail(attempt))
        for _ in range(9):
            api.clock.advance(0)
        assert result_of(failing) is None
        for one in behind:
            with pytest.raises(TooManyFailuresError) as caught:
                result_of(one)
            assert caught.value.retry_after_s == WINDOW_S

    def test_attempt_does_not_wait_for_ever(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        self.run(api, throttle.reserve(self.admit(api, throttle)))
        behind = started(throttle.admit(attempt_of("alice", HERE)))
        for _ in range(20):
            assert not behind.called
            api.clock.advance(WAIT_MAX_S / 20)
        with pytest.raises(TooManyFailuresError) as caught:
            result_of(behind)
        assert caught.value.retry_after_s == 1

    def test_reservation_of_another_worker_that_ends_is_noticed(self, api: InMemoryApi) -> None:
        one, other = self.make(api, failures=1), self.make(api, failures=1)
        attempt = self.run(api, one.reserve(self.admit(api, one)))
        behind = started(other.admit(attempt_of("alice", HERE)))
        api.clock.advance(0)
        self.run(api, one.release(attempt))
        assert not behind.called
        api.clock.advance(LOOK_EVERY_S)
        assert result_of(behind).reservation is None

    def test_reservation_of_a_worker_that_died_expires(self, api: InMemoryApi) -> None:
        died, throttle = self.make(api, failures=1), self.make(api, failures=1)
        self.run(api, died.reserve(self.admit(api, died)))
        api.clock.advance(RESERVED_S)
        assert self.wait_s(api, throttle, "alice", HERE) == 0

    def test_thousand_waiting_attempts_of_the_owner_all_succeed(self, api: InMemoryApi) -> None:
        """One after the other, without a recursion as deep as they are many."""
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))

        async def log_in() -> str:
            await throttle.release(await throttle.admit(attempt_of("alice", HERE)))
            return "logged in"

        behind = [started(log_in()) for _ in range(1000)]
        api.clock.advance(0)
        started(throttle.release(attempt))
        for _ in range(2000):
            api.clock.advance(0)
        assert [result_of(one) for one in behind] == ["logged in"] * 1000

    def test_failure_that_could_not_be_noted_counts_here_until_its_window_ends(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.admit(api, throttle)
        writes = api.store._writes  # noqa: SLF001 - as when the disk is full
        writes._closed = True  # noqa: SLF001
        with pytest.raises(StoreUnavailableError):
            result_of(throttle.fail(attempt))
        writes._closed = False  # noqa: SLF001
        assert self.wait_s(api, throttle, "alice", HERE) == 300
        api.clock.advance(300)
        assert self.wait_s(api, throttle, "alice", HERE) == 0
        assert not throttle._unnoted_of  # noqa: SLF001

    @pytest.mark.parametrize("workers", [2, 4])
    def test_each_further_worker_is_ahead_by_one_failure_at_the_most(self, api: InMemoryApi, workers: int) -> None:
        throttles = [self.make(api, failures=4) for _ in range(workers)]
        failed, refused = self.fail_together(api, throttles, 100)
        assert 4 <= failed <= 4 + workers - 1
        assert failed + refused == 100
        assert all(self.wait_s(api, throttle, "alice", HERE) == WINDOW_S for throttle in throttles)

    def test_token_counts_for_its_address_alone(self, api: InMemoryApi) -> None:
        throttle = self.make(api, address=3)
        for _ in range(3):
            self.run(api, throttle.fail(self.run(api, throttle.admit(attempt_from(HERE)))))
        with pytest.raises(TooManyFailuresError):
            self.run(api, throttle.admit(attempt_from(HERE)))
        self.run(api, throttle.admit(attempt_from(THERE)))
        assert self.wait_s(api, throttle, "alice", HERE) == WINDOW_S
        assert self.wait_s(api, throttle, "alice", THERE) == 0

    def test_admission_without_failures_writes_nothing(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        writer = api.store._writer  # noqa: SLF001
        assert writer is not None
        before = writer.total_changes
        for _ in range(5):
            self.run(api, throttle.release(self.admit(api, throttle), forget=True))
        assert writer.total_changes == before

    def test_nothing_is_kept_of_attempts_that_have_ended(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        self.fail_together(api, [throttle], 100)
        assert not throttle._being_written  # noqa: SLF001
        assert not throttle._waiting  # noqa: SLF001

    def test_reservation_of_unknown_outcome_is_taken_back(self, api: InMemoryApi) -> None:
        """Such as that of a Redis which has made it, and whose replica has not confirmed it."""
        throttle = self.make(api, failures=1)
        made = api.store.reserve_attempt

        async def make_and_fail(*arguments: Any, **keywords: Any) -> None:
            assert await made(*arguments, **keywords) is None
            raise StoreUnavailableError("no replica has confirmed it")

        api.store.reserve_attempt = make_and_fail  # type: ignore[method-assign]
        attempt = self.admit(api, throttle)
        with pytest.raises(StoreUnavailableError):
            self.run(api, throttle.reserve(attempt))
        api.store.reserve_attempt = made  # type: ignore[method-assign]
        again = started(throttle.admit(attempt.keys))
        for _ in range(4):
            api.clock.advance(LOOK_EVERY_S)
        assert result_of(again).keys == attempt.keys

    def test_release_that_the_store_refuses_is_made_up_for(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        writes = api.store._writes  # noqa: SLF001 - as when the disk is full
        writes._closed = True  # noqa: SLF001
        result_of(throttle.release(attempt))
        writes._closed = False  # noqa: SLF001
        again = started(throttle.admit(attempt.keys))
        for _ in range(4):
            api.clock.advance(LOOK_EVERY_S)
        assert result_of(again).keys == attempt.keys

    def test_nothing_is_compared_without_a_reservation_while_the_store_refuses_writes(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        attempt = self.admit(api, throttle)
        writes = api.store._writes  # noqa: SLF001 - as when the disk is full
        writes._closed = True  # noqa: SLF001
        with pytest.raises(StoreUnavailableError):
            result_of(throttle.fail(attempt))
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                result_of(throttle.admit(attempt_of("bob", THERE)))
        writes._closed = False  # noqa: SLF001
        assert self.admit(api, throttle, "bob", THERE).reservation is not None
        assert self.admit(api, throttle, "bob", THERE).reservation is None

    def test_reservation_that_comes_too_late_is_not_used(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        reserving = started(throttle.reserve(self.admit(api, throttle)))
        api.clock.advance(RESERVED_S)
        with pytest.raises(StoreUnavailableError):
            result_of(reserving)

    def test_without_the_store_nothing_is_admitted(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        result_of(api.store.stop())
        for call in (throttle.admit(attempt.keys), throttle.fail(attempt)):
            with pytest.raises(StoreUnavailableError):
                result_of(call)
        result_of(throttle.release(attempt, forget=True))  # that it cannot keeps nobody out


class SlowThreads(HashThreads):
    """Threads in which nothing is done before a test says so; they count what is."""

    def __init__(self, reactor: IReactor) -> None:
        super().__init__(reactor)
        self.waiting: list[Callable[[], None]] = []
        self.done = 0

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def run(self, function: Callable[..., T], *args: object) -> Deferred[T]:
        result: Deferred[T] = Deferred()

        def verify() -> None:
            self.done += 1
            result.callback(function(*args))

        self.waiting.append(verify)
        return result

    def go_on(self) -> None:
        """Verify what waits now, and what comes up behind it."""
        while self.waiting:
            self.waiting.pop(0)()


class Site:
    """A server with slow threads, on the store of an `InMemoryApi`."""

    def __init__(self, folder: Path, throttle: ThrottleSettings | None = None) -> None:
        (folder / "users").write_text(
            user_line("alice", "secret", realm="postd") + user_line("bob", "p:w", realm="postd")
        )
        self.api = InMemoryApi()
        self.clock = self.api.clock
        reactor = cast(IReactor, self.clock)
        self.threads = SlowThreads(reactor)
        settings = Settings(users=str(folder / "users"), throttle=throttle or ThrottleSettings())
        settings = msgspec.structs.replace(
            settings,
            trusted_proxies=cast(Any, ("10.0.0.1",)),
            api=msgspec.structs.replace(settings.api, write=("basic",)),
        )
        logins = Authentication(settings, self.api.store, reactor=reactor, threads=self.threads)
        tree = make_tree(settings, self.api.store, self.api.events, logins)
        self.worker = Worker(make_site(tree, clock=self.clock), self.clock)

    def begin(self, *arguments: Any, **keywords: Any) -> Exchange:
        asked = begin(self.worker, *arguments, **keywords)
        self.clock.advance(0)
        return asked

    def ask(self, *arguments: Any, **keywords: Any) -> Response:
        asked = self.begin(*arguments, **keywords)
        self.threads.go_on()
        return asked.response()

    def basic(self, name: str = "alice", password: str = "wrong", path: str = "/basic", **keywords: Any) -> Response:
        return self.ask("GET", path, None, basic(name, password), **keywords)

    def form(self, name: str = "alice", password: str = "wrong", **keywords: Any) -> Response:
        return self.ask(
            "POST", "/login", f"username={name}&password={password}".encode(), {"Content-Type": FORM}, **keywords
        )

    def digest(self, name: str = "alice", password: str = "wrong", **keywords: Any) -> Response:
        challenge = ask(self.worker, "GET", "/digest").header("WWW-Authenticate") or ""
        return self.ask("GET", "/digest", None, {"Authorization": digest_value(challenge, name, password)}, **keywords)


def basic(name: str, password: str) -> dict[str, Any]:
    return {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}


class SchemesTests:
    """What the schemes make of it."""

    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[Site]:
        site = Site(tmp_path)
        yield site
        site.api.close()

    def check_429(self, answer: Response, retry_after: int = WINDOW_S) -> None:
        assert (answer.status, answer.header("Retry-After")) == (429, str(retry_after))
        assert answer.header("WWW-Authenticate") is None
        assert answer.header("Set-Cookie") is None
        assert answer.header("Cache-Control") == "no-store"

    def check_all_refused(self, site: Site, name: str, **keywords: Any) -> None:
        done = site.threads.done
        for password in ("wrong", "secret"):
            for try_it in (site.basic, site.digest, site.form):
                answer = try_it(name, password, **keywords)
                self.check_429(answer)
                assert answer.body == b"Too Many Requests\n"
                assert answer.header("Content-Type") == "text/plain; charset=utf-8"
        assert site.threads.done == done  # nothing was verified, and so nothing can be learned

    @pytest.mark.parametrize("name", ["alice", "nobody"])
    def test_they_count_together(self, site: Site, name: str) -> None:
        for try_it, times in ((site.basic, 4), (site.digest, 3), (site.form, 3)):
            for _ in range(times):
                assert try_it(name).status == 401
        self.check_all_refused(site, name)
        assert site.basic("bob", "p:w").status == 200
        assert site.basic("alice", "secret", peer=THERE).status == 200

    @pytest.mark.parametrize("scheme", ["basic", "digest", "form"])
    def test_each_alone_counts_for_all(self, site: Site, scheme: str) -> None:
        for _ in range(10):
            assert getattr(site, scheme)().status == 401
        self.check_all_refused(site, "alice")
        site.clock.advance(WINDOW_S)
        for try_it, status in ((site.basic, 200), (site.digest, 200), (site.form, 302)):
            assert try_it("alice", "secret").status == status

    def test_a_name_counts_once_however_it_is_written(self, site: Site) -> None:
        for n in range(10):
            assert site.form("j\u00fcrgen" if n % 2 else "ju\u0308rgen").status == 401
        self.check_429(site.form("j%C3%BCrgen"))

    def test_success_forgets_what_went_before(self, site: Site) -> None:
        for try_it, status in ((site.basic, 200), (site.digest, 200), (site.form, 302)):
            for _ in range(9):
                assert try_it().status == 401
            assert try_it("alice", "secret").status == status

    def test_with_the_api_it_is_a_problem(self, site: Site) -> None:
        for _ in range(10):
            assert site.basic().status == 401
        answer = site.ask(
            "POST", "/post", b'{"post":"x"}', {"Content-Type": "application/json"} | basic("alice", "secret")
        )
        self.check_429(answer)
        assert answer.header("Content-Type") == "application/problem+json"

    @pytest.mark.parametrize(
        "value",
        [
            *("Basic", "Basic !!!", "Basic YWxpY2U", "Basic YWxpY2U=", "Basic YWxpCmNlOng=", "Basic gA==", "Foo x", ""),
            *("Digest", "Digest x", 'Digest username="alice"', 'Digest username="alice", realm="postd", nonce="x"'),
        ],
    )
    def test_what_is_malformed_does_not_count(self, site: Site, value: str) -> None:
        for path in ("/basic", "/digest"):
            for _ in range(11):
                assert site.ask("GET", path, None, {"Authorization": value}).status == 401
        assert site.basic("alice", "secret").status == 200

    def test_a_stale_nonce_does_not_count(self, site: Site) -> None:
        challenge = ask(site.worker, "GET", "/digest").header("WWW-Authenticate") or ""
        right = {"Authorization": digest_value(challenge, "alice", "secret")}
        assert site.ask("GET", "/digest", None, right).status == 200
        for _ in range(11):
            answer = site.ask("GET", "/digest", None, right)
            assert answer.status == 401
            assert "stale=true" in (answer.header("WWW-Authenticate") or "")
        site.clock.advance(400)
        for _ in range(11):
            assert site.ask("GET", "/digest", None, right).status == 401
        assert site.digest("alice", "secret").status == 200

    def test_the_address_is_the_clients_not_the_proxys(self, site: Site) -> None:
        def via(hops: str, password: str = "wrong", peer: str = "10.0.0.1") -> Response:
            headers = basic("alice", password) | {"X-Forwarded-For": hops}
            return site.ask("GET", "/basic", None, headers, peer=peer)

        for _ in range(10):
            assert via("6.6.6.6, 192.0.2.1").status == 401
        self.check_429(via("7.7.7.7, 192.0.2.1"))  # what a client says of itself does not help it
        assert via("192.0.2.2", "secret").status == 200
        for n in range(10):
            assert via(f"6.6.6.{n}", peer="198.51.100.9").status == 401
        self.check_429(via("6.6.6.99", "secret", peer="198.51.100.9"))

    def test_a_hundred_wrong_ones_at_once(self, site: Site) -> None:
        asked = [site.begin("GET", "/basic", None, basic("alice", f"wrong{n}")) for n in range(60)]
        site.threads.go_on()
        statuses = [one.response().status for one in asked]
        assert (statuses.count(401), statuses.count(429)) == (10, 50)
        assert site.threads.done <= 10 + THREADS  # those in hand when the last that may fail has failed
        asked = [site.begin("GET", "/basic", None, basic("alice", f"wrong{n}")) for n in range(40)]
        assert [one.response().status for one in asked] == [429] * 40

    def test_a_right_one_among_them_is_not_told(self, site: Site) -> None:
        passwords = [f"wrong{n}" for n in range(20)] + ["secret"] + [f"wrong{n}" for n in range(20, 40)]
        asked = [site.begin("GET", "/basic", None, basic("alice", password)) for password in passwords]
        site.threads.go_on()
        statuses = [one.response().status for one in asked]
        assert statuses[20] == 429
        assert statuses.count(401) == 10

    def test_a_hundred_equal_ones_at_once(self, site: Site) -> None:
        asked = [site.begin("GET", "/basic", None, basic("alice", "wrong")) for _ in range(100)]
        assert len(site.threads.waiting) == 1
        site.threads.go_on()
        statuses = [one.response().status for one in asked]
        assert (statuses.count(401), statuses.count(429)) == (10, 90)

    def test_one_stranger_does_not_shut_the_owner_out(self, site: Site) -> None:
        """Not even with many at once: the account has room for the strangers of ten addresses."""
        asked = [site.begin("GET", "/basic", None, basic("alice", "wrong"), peer=HERE) for _ in range(150)]
        site.threads.go_on()
        assert {one.response().status for one in asked} == {401, 429}
        assert site.basic("alice", "secret", peer=THERE).status == 200
        assert site.form("alice", "secret", peer=THERE).status == 302

    def test_nor_others_at_the_same_address(self, site: Site) -> None:
        """A household, an office: one who types a wrong password often has 10 of their 50."""
        asked = [site.begin("GET", "/basic", None, basic("alice", "wrong"), peer=HERE) for _ in range(60)]
        site.threads.go_on()
        assert {one.response().status for one in asked} == {401, 429}
        assert site.basic("bob", "p:w", peer=HERE).status == 200

    def test_digest_too_has_no_more_at_once(self, site: Site) -> None:
        challenge = ask(site.worker, "GET", "/digest").header("WWW-Authenticate") or ""
        headers = {"Authorization": digest_value(challenge, "alice", "wrong")}
        asked = [begin(site.worker, "GET", "/digest", None, headers) for _ in range(100)]
        statuses = [one.response().status for one in asked]
        assert (statuses.count(401), statuses.count(429)) == (10, 90)

    def test_with_the_store_away_nothing_is_verified(self, site: Site) -> None:
        challenge = ask(site.worker, "GET", "/digest").header("WWW-Authenticate") or ""
        result_of(site.api.store.stop())
        headers = {"Authorization": digest_value(challenge, "alice", "secret")}
        for answer in (
            site.basic("alice", "secret"),
            site.form("alice", "secret"),
            site.ask("GET", "/digest", None, headers),
        ):
            assert answer.status == 503
            assert answer.header("Retry-After")
            assert answer.header("WWW-Authenticate") is None
        assert site.threads.done == 0

    def test_the_limits_can_be_set(self, tmp_path: Path) -> None:
        settings = ThrottleSettings(failures=2, address_failures=3, account_failures=4, window_s=cast(Any, 7.0))
        site = Site(tmp_path, settings)
        assert [site.form().status for _ in range(3)] == [401, 401, 429]
        assert [site.form("bob").status for _ in range(2)] == [401, 429]
        assert [site.form(peer=THERE).status for _ in range(3)] == [401, 401, 429]
        self.check_429(site.form(peer="198.51.100.1"), 7)
        site.clock.advance(7)
        assert site.form("alice", "secret").status == 302
        site.api.close()
