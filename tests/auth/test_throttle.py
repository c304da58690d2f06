"""The limit on failed logins, by account and address, across all schemes."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from twisted.internet.defer import Deferred

from postd.auth.password import THREADS
from postd.auth.throttle import (
    CALM_S,
    NOTE_S,
    POLL_INTERVAL_S,
    RESERVATION_TTL_S,
    WAIT_MAX_S,
    Attempt,
    Throttle,
    address_keys,
    login_keys,
)
from postd.daemon.schemes import make_authentication
from postd.daemon.server import make_tree
from postd.errors import StoreUnavailableError, TooManyFailuresError
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import LoadedSettings
from postd.settings.schema import Settings, ThrottleSettings
from postd.store.interface import Failures
from tests.auth.helpers import Logins, refusing_writes
from tests.cases import each
from tests.helpers import InMemoryApi, Response, make_site, result_of
from tests.web.wire import FORM, Exchange, Worker, ask, begin, digest_value, user_line

HERE, THERE = "192.0.2.1", "192.0.2.2"
WINDOW_S = 300


def start(call: Any) -> Deferred[Any]:
    return Deferred.fromCoroutine(call)


class FailureKeysTests:
    def test_login_has_three_different_keys(self) -> None:
        assert len(set(login_keys("alice", HERE))) == 3
        assert not set(login_keys("alice", HERE)) & set(login_keys(HERE, "alice"))

    def test_equal_account_or_address_has_an_equal_key(self) -> None:
        pair, address, account = login_keys("alice", HERE)
        assert login_keys("alice", HERE) == (pair, address, account)
        other_user, elsewhere = login_keys("bob", HERE), login_keys("alice", THERE)
        assert (other_user[0] != pair, other_user[1] == address, other_user[2] != account) == (True, True, True)
        assert (elsewhere[0] != pair, elsewhere[1] != address, elsewhere[2] == account) == (True, True, True)

    @each(
        "one, other, same",
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
    def test_ipv6_address_counts_by_its_64(self, one: str, other: str, *, same: bool) -> None:
        assert (login_keys("alice", one)[1] == login_keys("alice", other)[1]) == same
        assert (login_keys("alice", one)[0] == login_keys("alice", other)[0]) == same
        assert login_keys("alice", one)[2] == login_keys("alice", other)[2]

    def test_any_name_has_keys_of_its_own(self) -> None:
        names = ["", "\0", "a\0b", "a", "b", "\udcff", "ü", "x" * 10_000, "192.0.2.1"]
        assert len({key for name in names for key in login_keys(name, HERE)}) == 2 * len(names) + 1


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
        running = start(call)
        api.clock.advance(0)
        return result_of(running)

    def admit(self, api: InMemoryApi, throttle: Throttle, name: str = "alice", address: str = HERE) -> Attempt:
        attempt: Attempt = self.run(api, throttle.admit(login_keys(name, address)))
        return attempt

    def fail(self, api: InMemoryApi, throttle: Throttle, name: str, address: str, times: int = 1) -> None:
        for _ in range(times):
            self.run(api, throttle.record_failure(self.admit(api, throttle, name, address)))

    def succeed(self, api: InMemoryApi, throttle: Throttle, name: str, address: str) -> None:
        self.run(api, throttle.release(self.admit(api, throttle, name, address), reset_failures=True))

    def wait_s(self, api: InMemoryApi, throttle: Throttle, name: str, address: str) -> int:
        """Return the Retry-After of an attempt; 0 if it is admitted."""
        try:
            self.admit(api, throttle, name, address)
        except TooManyFailuresError as error:
            assert error.retry_after_s >= 1
            return error.retry_after_s
        return 0

    def test_account_from_an_address_has_a_limit(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        self.fail(api, throttle, "alice", HERE, 10)
        assert self.wait_s(api, throttle, "alice", HERE) == WINDOW_S
        assert self.wait_s(api, throttle, "alice", THERE) == 0
        assert self.wait_s(api, throttle, "bob", HERE) == 0

    def test_right_credentials_are_refused_beyond_the_limit_only(self, api: InMemoryApi) -> None:
        """Also if another process reaches it, after a second: until then no failures are assumed."""
        keys, throttle, other = address_keys(HERE), self.make(api, address=3), self.make(api, address=3)
        for failures in range(3):
            self.run(api, throttle.check(keys))
            self.fail(api, other if failures < 2 else throttle, "bob", HERE)
        with pytest.raises(TooManyFailuresError):
            self.run(api, throttle.check(keys))
        self.run(api, throttle.check(address_keys(THERE)))
        self.fail(api, other, "bob", THERE, 3)
        self.run(api, throttle.check(address_keys(THERE)))
        api.clock.advance(CALM_S)
        with pytest.raises(TooManyFailuresError):
            self.run(api, throttle.check(address_keys(THERE)))

    def why(self, api: InMemoryApi, throttle: Throttle, name: str = "alice", address: str = HERE) -> str:
        with pytest.raises(TooManyFailuresError) as caught:
            self.admit(api, throttle, name, address)
        return caught.value.why

    def test_reason_names_the_limit_once_a_minute(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=2, address=4, account=6)
        self.fail(api, throttle, "alice", HERE, 2)
        reasons = [self.why(api, throttle) for _ in range(20)]
        assert reasons == ["too many failures (failures = 2)", *[""] * 19]
        self.fail(api, throttle, "bob", HERE, 2)
        reasons = [self.why(api, throttle, f"user {n}") for n in range(20)]
        assert reasons == ["too many failures (address_failures = 4)", *[""] * 19]
        for address in (THERE, "192.0.2.77"):
            self.fail(api, throttle, "alice", address, 2)
        reasons = [self.why(api, throttle, "alice", f"192.0.2.{n}") for n in range(100, 120)]
        assert reasons == ["too many failures (account_failures = 6)", *[""] * 19]
        api.clock.advance(NOTE_S)
        assert [bool(self.why(api, throttle, "bob")) for _ in range(3)] == [True, False, False]

    def test_address_has_a_limit_for_all_accounts(self, api: InMemoryApi) -> None:
        throttle = self.make(api, address=6)
        for n in range(6):
            self.fail(api, throttle, f"user{n}", f"2001:db8::{n}")
        assert self.wait_s(api, throttle, "dave", "2001:db8::99") == WINDOW_S
        assert self.wait_s(api, throttle, "user0", "2001:db8:0:1::") == 0
        self.fail(api, throttle, "alice", "::ffff:192.0.2.1", 3)
        self.fail(api, throttle, "bob", HERE, 3)
        assert self.wait_s(api, throttle, "carol", HERE) == WINDOW_S

    def test_account_has_a_limit_from_all_addresses(self, api: InMemoryApi) -> None:
        throttle = self.make(api, account=6)
        for n in range(6):
            assert self.wait_s(api, throttle, "alice", "198.51.100.1") == 0
            self.fail(api, throttle, "alice", f"192.0.2.{n}")
        assert self.wait_s(api, throttle, "alice", "198.51.100.1") == WINDOW_S
        assert self.wait_s(api, throttle, "bob", "198.51.100.1") == 0

    def test_failure_expires_when_its_window_ends(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=3)
        for _ in range(3):
            self.fail(api, throttle, "alice", HERE)
            api.clock.advance(10)
        assert self.wait_s(api, throttle, "alice", HERE) == WINDOW_S - 30
        api.clock.advance(WINDOW_S - 30 - 0.5)
        assert self.wait_s(api, throttle, "alice", HERE) == 1
        api.clock.advance(0.5)
        assert self.wait_s(api, throttle, "alice", HERE) == 0  # the first failure has expired, two remain
        self.fail(api, throttle, "alice", HERE)
        assert self.wait_s(api, throttle, "alice", HERE) == 10
        api.clock.advance(WINDOW_S)
        self.fail(api, throttle, "alice", HERE, 3)

    def test_attempt_after_retry_after_is_admitted(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=4, address=6, account=5)
        for n in range(4):
            self.fail(api, throttle, "alice", HERE)
            api.clock.advance(7 * n)
        self.fail(api, throttle, "bob", HERE, 2)
        self.fail(api, throttle, "alice", THERE)
        for name in ("alice", "bob"):
            for _ in range(3):  # any of the limits may be the last to end
                api.clock.advance(self.wait_s(api, throttle, name, HERE))
            assert self.wait_s(api, throttle, name, HERE) == 0

    def test_refused_attempt_does_not_extend_the_wait(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=2)
        self.fail(api, throttle, "alice", HERE, 2)
        for _ in range(WINDOW_S - 1):
            api.clock.advance(1)
            assert self.wait_s(api, throttle, "alice", HERE) > 0
        api.clock.advance(1)
        assert self.wait_s(api, throttle, "alice", HERE) == 0

    def test_success_resets_only_the_account_from_its_address(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=3, address=5, account=5)
        self.fail(api, throttle, "alice", HERE, 2)
        self.succeed(api, throttle, "alice", HERE)
        self.fail(api, throttle, "alice", HERE, 2)
        admitted = self.admit(api, throttle)
        self.fail(api, throttle, "alice", HERE)  # the fifth of the address, and of the account
        self.run(api, throttle.release(admitted, reset_failures=True))
        counted = result_of(api.store.count_failures(admitted.keys, now=api.clock.seconds()))
        assert {key: found.count for key, found in counted.items()} == dict.fromkeys(admitted.keys[1:], 5)
        assert self.wait_s(api, throttle, "bob", HERE) == WINDOW_S
        assert self.wait_s(api, throttle, "alice", THERE) == WINDOW_S

    def test_attempt_has_failures_of_its_account_from_its_address(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        assert not self.admit(api, throttle).had_failures
        self.fail(api, throttle, "alice", HERE)
        assert self.admit(api, throttle).had_failures
        assert not self.admit(api, throttle, address=THERE).had_failures
        assert not self.admit(api, throttle, "bob").had_failures

    def test_concurrent_failures_stay_within_the_limit(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        failed, refused = self.fail_together(api, [throttle], 100)
        assert (failed, refused) == (10, 90)

    def fail_together(self, api: InMemoryApi, throttles: Sequence[Throttle], count: int) -> tuple[int, int]:
        """Make concurrent wrong attempts; return how many were compared, and how many were refused."""
        outcomes: list[Any] = []

        async def compare(throttle: Throttle) -> str:
            await throttle.record_failure(await throttle.admit(login_keys("alice", HERE)))
            return "compared"

        for n in range(count):
            start(compare(throttles[n % len(throttles)])).addBoth(outcomes.append)
        for _ in range(20):
            api.clock.advance(0)
        api.clock.advance(POLL_INTERVAL_S)  # so that waiting attempts read what other workers wrote
        for _ in range(20):
            api.clock.advance(0)
        refused = [outcome for outcome in outcomes if outcome != "compared"]
        assert all(outcome.check(TooManyFailuresError) for outcome in refused)
        return len(outcomes) - len(refused), len(refused)

    def test_pending_failure_makes_other_attempts_reserve(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=2)
        adding = start(throttle.record_failure(result_of(throttle.admit(login_keys("alice", HERE)))))
        assert not adding.called
        second, third = (start(throttle.admit(login_keys("alice", HERE))) for _ in range(2))
        unrelated = result_of(throttle.admit(login_keys("bob", THERE)))
        assert unrelated.reservation is None
        api.clock.advance(0)
        assert result_of(adding) is None
        assert result_of(second).reservation is not None
        assert not third.called  # it waits for the second

    def test_reservation_counts_until_its_release(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        behind = start(throttle.admit(login_keys("alice", HERE)))
        api.clock.advance(0)
        assert not behind.called
        releasing = start(throttle.release(attempt))
        for _ in range(3):
            api.clock.advance(0)
        assert result_of(releasing) is None
        assert result_of(behind).keys == login_keys("alice", HERE)

    def test_attempt_admitted_before_waiting_ones_resumes_the_next_by_its_release(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        first, second = (start(throttle.admit(login_keys("alice", HERE))) for _ in range(2))
        api.clock.advance(0)
        releasing = [start(throttle.release(attempt))]
        for _ in range(3):
            api.clock.advance(0)
        admitted = result_of(first)
        assert admitted.reservation is None
        assert admitted.needs_release
        assert not second.called
        releasing.append(start(throttle.release(admitted)))
        api.clock.advance(0)
        assert [result_of(release) for release in releasing] == [None, None]
        assert not result_of(second).needs_release

    def test_attempt_waiting_for_a_failure_is_refused_at_once(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        behind = [start(throttle.admit(login_keys("alice", HERE))) for _ in range(200)]
        api.clock.advance(0)
        failing = start(throttle.record_failure(attempt))
        for _ in range(9):
            api.clock.advance(0)
        assert result_of(failing) is None
        for one in behind:
            with pytest.raises(TooManyFailuresError) as caught:
                result_of(one)
            assert caught.value.retry_after_s == WINDOW_S

    def test_waiting_attempt_is_refused_after_its_maximum(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        self.run(api, throttle.reserve(self.admit(api, throttle)))
        behind = start(throttle.admit(login_keys("alice", HERE)))
        for _ in range(20):
            assert not behind.called
            api.clock.advance(WAIT_MAX_S / 20)
        with pytest.raises(TooManyFailuresError) as caught:
            result_of(behind)
        assert (caught.value.retry_after_s, caught.value.why) == (1, "too many attempts in progress (failures = 1)")

    def test_reservation_released_by_another_worker_is_noticed(self, api: InMemoryApi) -> None:
        one, other = self.make(api, failures=1), self.make(api, failures=1)
        attempt = self.run(api, one.reserve(self.admit(api, one)))
        behind = start(other.admit(login_keys("alice", HERE)))
        api.clock.advance(0)
        self.run(api, one.release(attempt))
        assert not behind.called
        api.clock.advance(POLL_INTERVAL_S)
        assert result_of(behind).reservation is None

    def test_reservation_of_a_worker_that_died_expires(self, api: InMemoryApi) -> None:
        died, throttle = self.make(api, failures=1), self.make(api, failures=1)
        self.run(api, died.reserve(self.admit(api, died)))
        api.clock.advance(RESERVATION_TTL_S)
        assert self.wait_s(api, throttle, "alice", HERE) == 0

    def test_thousand_waiting_attempts_of_the_owner_all_succeed(self, api: InMemoryApi) -> None:
        """One after the other, without a recursion for each."""
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))

        async def log_in() -> str:
            await throttle.release(await throttle.admit(login_keys("alice", HERE)))
            return "logged in"

        behind = [start(log_in()) for _ in range(1000)]
        api.clock.advance(0)
        start(throttle.release(attempt))
        for _ in range(2000):
            api.clock.advance(0)
        assert [result_of(one) for one in behind] == ["logged in"] * 1000

    def test_unstored_failure_counts_in_this_process_until_it_expires(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.admit(api, throttle)
        with refusing_writes(api.store), pytest.raises(StoreUnavailableError):
            result_of(throttle.record_failure(attempt))
        assert self.wait_s(api, throttle, "alice", HERE) == 300
        api.clock.advance(300)
        assert self.wait_s(api, throttle, "alice", HERE) == 0
        assert not throttle._unstored_by_key  # noqa: SLF001

    @pytest.mark.parametrize("workers", [2, 4])
    def test_each_further_worker_adds_one_failure_at_most(self, api: InMemoryApi, workers: int) -> None:
        throttles = [self.make(api, failures=4) for _ in range(workers)]
        failed, refused = self.fail_together(api, throttles, 100)
        assert 4 <= failed <= 4 + workers - 1
        assert failed + refused == 100
        assert all(self.wait_s(api, throttle, "alice", HERE) == WINDOW_S for throttle in throttles)

    def test_opaque_token_counts_for_its_address_only(self, api: InMemoryApi) -> None:
        throttle = self.make(api, address=3)
        for _ in range(3):
            self.run(api, throttle.record_failure(self.run(api, throttle.admit(address_keys(HERE)))))
        with pytest.raises(TooManyFailuresError):
            self.run(api, throttle.admit(address_keys(HERE)))
        self.run(api, throttle.admit(address_keys(THERE)))
        assert self.wait_s(api, throttle, "alice", HERE) == WINDOW_S
        assert self.wait_s(api, throttle, "alice", THERE) == 0

    def test_admission_without_failures_writes_nothing(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        with refusing_writes(api.store) as refused:
            for _ in range(5):
                self.run(api, throttle.release(self.admit(api, throttle), reset_failures=True))
        assert refused == []

    def test_released_attempt_wakes_exactly_one_of_those_that_wait(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        behind = [start(throttle.admit(attempt.keys)) for _ in range(3)]
        api.clock.advance(0)
        count_failures = Mock(side_effect=api.store.count_failures)
        monkeypatch.setattr(api.store, "count_failures", count_failures)
        start(throttle.release(attempt))
        for _ in range(9):
            api.clock.advance(0)
        assert count_failures.call_count == 1
        assert [one.called for one in behind] == [True, False, False]

    def answer_reservations(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch, *answers: Mapping[bytes, Failures] | None
    ) -> None:
        """Make the store answer requests for reservations as if other workers were ahead."""
        monkeypatch.setattr(api.store, "reserve_attempt", AsyncMock(side_effect=answers))

    def start_reserving(self, api: InMemoryApi, throttle: Throttle, call: str) -> Deferred[Any]:
        """Make an attempt that needs a reservation; `call` is the method that requests it."""
        keys = login_keys("alice", HERE)
        attempt = Attempt(keys, api.clock.seconds(), had_failures=False, needs_release=False)
        return start(throttle.reserve(attempt) if call == "reserve" else throttle.admit(keys, compares_at_once=False))

    @pytest.mark.parametrize("call", ["admit", "reserve"])
    def test_reservation_refused_for_failures_refuses_the_attempt(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        throttle = self.make(api, failures=2)
        pair = login_keys("alice", HERE)[0]
        self.answer_reservations(api, monkeypatch, {pair: Failures(2, api.clock.seconds() + 7)})
        with pytest.raises(TooManyFailuresError) as caught:
            result_of(self.start_reserving(api, throttle, call))
        assert caught.value.retry_after_s == 7

    @pytest.mark.parametrize("call", ["admit", "reserve"])
    def test_attempt_refused_a_reservation_for_pending_ones_waits_and_asks_again(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        throttle = self.make(api, failures=2)
        pair = login_keys("alice", HERE)[0]
        self.answer_reservations(api, monkeypatch, {pair: Failures(1, api.clock.seconds() + 7, 1)}, None)
        reserving = self.start_reserving(api, throttle, call)
        api.clock.advance(POLL_INTERVAL_S / 2)
        assert not reserving.called
        api.clock.advance(POLL_INTERVAL_S / 2)
        assert result_of(reserving).reservation is not None

    def test_ended_attempts_leave_no_state(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        self.fail_together(api, [throttle], 100)
        api.clock.advance(WINDOW_S)
        attempt = self.admit(api, throttle)
        now = api.clock.seconds()
        assert attempt == Attempt(login_keys("alice", HERE), now, had_failures=False, needs_release=False)

    def test_reservation_of_unknown_outcome_is_released(
        self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when Redis has executed the write, and no replica has confirmed it."""
        throttle = self.make(api, failures=1)
        made = api.store.reserve_attempt

        async def make_and_fail(*arguments: Any, **keywords: Any) -> None:
            assert await made(*arguments, **keywords) is None
            raise StoreUnavailableError("no replica has confirmed it")

        monkeypatch.setattr(api.store, "reserve_attempt", make_and_fail)
        attempt = self.admit(api, throttle)
        with pytest.raises(StoreUnavailableError):
            self.run(api, throttle.reserve(attempt))
        monkeypatch.setattr(api.store, "reserve_attempt", made)
        again = start(throttle.admit(attempt.keys))
        for _ in range(4):
            api.clock.advance(POLL_INTERVAL_S)
        assert result_of(again).keys == attempt.keys

    def test_failed_release_is_retried(self, api: InMemoryApi) -> None:
        throttle = self.make(api, failures=1)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        with refusing_writes(api.store):
            result_of(throttle.release(attempt))
        again = start(throttle.admit(attempt.keys))
        for _ in range(4):
            api.clock.advance(POLL_INTERVAL_S)
        assert result_of(again).keys == attempt.keys

    def test_read_only_store_admits_no_attempt(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        attempt = self.admit(api, throttle)
        with refusing_writes(api.store):
            other_attempts = [throttle.admit(login_keys("bob", THERE)) for _ in range(3)]
            for call in (throttle.record_failure(attempt), *other_attempts):
                with pytest.raises(StoreUnavailableError):
                    result_of(call)
        assert self.admit(api, throttle, "bob", THERE).reservation is not None
        assert self.admit(api, throttle, "bob", THERE).reservation is None

    def test_reservation_expired_on_arrival_is_refused(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        reserving = start(throttle.reserve(self.admit(api, throttle)))
        api.clock.advance(RESERVATION_TTL_S)
        with pytest.raises(StoreUnavailableError):
            result_of(reserving)

    def test_stopped_store_admits_no_attempt(self, api: InMemoryApi) -> None:
        throttle = self.make(api)
        attempt = self.run(api, throttle.reserve(self.admit(api, throttle)))
        result_of(api.store.stop())
        for call in (throttle.admit(attempt.keys), throttle.record_failure(attempt)):
            with pytest.raises(StoreUnavailableError):
                result_of(call)
        result_of(throttle.release(attempt, reset_failures=True))  # raises nothing


class HttpLogins(Logins):
    """Logins over HTTP, by Basic, Digest and form."""

    def __init__(self, folder: Path, throttle: ThrottleSettings | None = None) -> None:
        super().__init__(folder, user_line("alice", "secret", realm="postd") + user_line("bob", "p:w", realm="postd"))
        reactor = cast(IReactor, self.clock)
        settings = Settings(users=str(self.user_file), throttle=throttle or ThrottleSettings())
        settings = msgspec.structs.replace(
            settings,
            trusted_proxies=cast(Any, ("10.0.0.1",)),
            api=msgspec.structs.replace(settings.api, write=("basic",)),
        )
        loaded = LoadedSettings(settings, {}, {})
        authentication = make_authentication(
            loaded, self.api.store, clock=ServiceClock(reactor), reactor=reactor, threads=self.threads
        )
        tree = make_tree(settings, self.api.store, self.api.events, authentication)
        self.worker = Worker(make_site(tree, clock=self.clock), self.clock)

    def begin(self, *arguments: Any, **keywords: Any) -> Exchange:
        asked = begin(self.worker, *arguments, **keywords)
        self.clock.advance(0)
        return asked

    def ask(self, *arguments: Any, **keywords: Any) -> Response:
        asked = self.begin(*arguments, **keywords)
        self.threads.run_waiting()
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
    """The throttle as seen by clients of each scheme."""

    @pytest.fixture
    def logins(self, tmp_path: Path) -> Iterator[HttpLogins]:
        logins = HttpLogins(tmp_path)
        yield logins
        logins.close()

    def check_429(self, answer: Response, retry_after: int = WINDOW_S) -> None:
        assert (answer.status, answer.header("Retry-After")) == (429, str(retry_after))
        assert answer.header("WWW-Authenticate") is None
        assert answer.header("Set-Cookie") is None
        assert answer.header("Cache-Control") == "no-store"

    def check_all_refused(self, logins: HttpLogins, name: str, **keywords: Any) -> None:
        done = logins.threads.done
        for password in ("wrong", "secret"):
            for attempt in (logins.basic, logins.digest, logins.form):
                answer = attempt(name, password, **keywords)
                self.check_429(answer)
                assert answer.body == b"Too Many Requests\n"
                assert answer.header("Content-Type") == "text/plain; charset=utf-8"
        assert logins.threads.done == done  # so the responses reveal nothing

    @pytest.mark.parametrize("name", ["alice", "unknown"])
    def test_schemes_share_one_limit(self, logins: HttpLogins, name: str) -> None:
        for attempt, times in ((logins.basic, 4), (logins.digest, 3), (logins.form, 3)):
            for _ in range(times):
                assert attempt(name).status == 401
        self.check_all_refused(logins, name)
        assert logins.basic("bob", "p:w").status == 200
        assert logins.basic("alice", "secret", peer=THERE).status == 200

    @pytest.mark.parametrize("scheme", ["basic", "digest", "form"])
    def test_failures_of_one_scheme_block_all(self, logins: HttpLogins, scheme: str) -> None:
        for _ in range(10):
            assert getattr(logins, scheme)().status == 401
        self.check_all_refused(logins, "alice")
        logins.clock.advance(WINDOW_S)
        for attempt, status in ((logins.basic, 200), (logins.digest, 200), (logins.form, 302)):
            assert attempt("alice", "secret").status == status

    def test_name_counts_in_its_normalized_form(self, logins: HttpLogins) -> None:
        for n in range(10):
            assert logins.form("j\u00fcrgen" if n % 2 else "ju\u0308rgen").status == 401
        self.check_429(logins.form("j%C3%BCrgen"))

    def test_success_resets_earlier_failures(self, logins: HttpLogins) -> None:
        for attempt, status in ((logins.basic, 200), (logins.digest, 200), (logins.form, 302)):
            for _ in range(9):
                assert attempt().status == 401
            assert attempt("alice", "secret").status == status

    def test_api_answers_429_with_a_problem(self, logins: HttpLogins) -> None:
        for _ in range(10):
            assert logins.basic().status == 401
        answer = logins.ask(
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
    def test_malformed_credentials_do_not_count(self, logins: HttpLogins, value: str) -> None:
        for path in ("/basic", "/digest"):
            for _ in range(11):
                assert logins.ask("GET", path, None, {"Authorization": value}).status == 401
        assert logins.basic("alice", "secret").status == 200

    def test_stale_nonce_does_not_count(self, logins: HttpLogins) -> None:
        challenge = ask(logins.worker, "GET", "/digest").header("WWW-Authenticate") or ""
        right = {"Authorization": digest_value(challenge, "alice", "secret")}
        assert logins.ask("GET", "/digest", None, right).status == 200
        for _ in range(11):
            answer = logins.ask("GET", "/digest", None, right)
            assert answer.status == 401
            assert "stale=true" in (answer.header("WWW-Authenticate") or "")
        logins.clock.advance(400)
        for _ in range(11):
            assert logins.ask("GET", "/digest", None, right).status == 401
        assert logins.digest("alice", "secret").status == 200

    def test_address_is_that_of_the_client_behind_the_proxy(self, logins: HttpLogins) -> None:
        def via(hops: str, password: str = "wrong", peer: str = "10.0.0.1") -> Response:
            headers = basic("alice", password) | {"X-Forwarded-For": hops}
            return logins.ask("GET", "/basic", None, headers, peer=peer)

        for _ in range(10):
            assert via("6.6.6.6, 192.0.2.1").status == 401
        self.check_429(via("7.7.7.7, 192.0.2.1"))  # the hops that a client claims are ignored
        assert via("192.0.2.2", "secret").status == 200
        for n in range(10):
            assert via(f"6.6.6.{n}", peer="198.51.100.9").status == 401
        self.check_429(via("6.6.6.99", "secret", peer="198.51.100.9"))

    def test_concurrent_wrong_passwords_stay_within_the_limit(self, logins: HttpLogins) -> None:
        asked = [logins.begin("GET", "/basic", None, basic("alice", f"wrong{n}")) for n in range(60)]
        logins.threads.run_waiting()
        statuses = [one.response().status for one in asked]
        assert (statuses.count(401), statuses.count(429)) == (10, 50)
        assert logins.threads.done <= 10 + THREADS  # those being verified when the limit was reached
        asked = [logins.begin("GET", "/basic", None, basic("alice", f"wrong{n}")) for n in range(40)]
        assert [one.response().status for one in asked] == [429] * 40

    def test_right_password_beyond_the_limit_is_refused(self, logins: HttpLogins) -> None:
        passwords = [f"wrong{n}" for n in range(20)] + ["secret"] + [f"wrong{n}" for n in range(20, 40)]
        asked = [logins.begin("GET", "/basic", None, basic("alice", password)) for password in passwords]
        logins.threads.run_waiting()
        statuses = [one.response().status for one in asked]
        assert statuses[20] == 429
        assert statuses.count(401) == 10

    def test_concurrent_equal_passwords_are_verified_once_and_counted_each(self, logins: HttpLogins) -> None:
        asked = [logins.begin("GET", "/basic", None, basic("alice", "wrong")) for _ in range(100)]
        assert len(logins.threads.waiting) == 1
        logins.threads.run_waiting()
        statuses = [one.response().status for one in asked]
        assert (statuses.count(401), statuses.count(429)) == (10, 90)

    def test_failures_of_another_address_do_not_lock_the_account(self, logins: HttpLogins) -> None:
        """The limit of the account has room for the failures of ten addresses."""
        asked = [logins.begin("GET", "/basic", None, basic("alice", "wrong"), peer=HERE) for _ in range(150)]
        logins.threads.run_waiting()
        assert {one.response().status for one in asked} == {401, 429}
        assert logins.basic("alice", "secret", peer=THERE).status == 200
        assert logins.form("alice", "secret", peer=THERE).status == 302

    def test_failures_of_another_account_do_not_lock_the_address(self, logins: HttpLogins) -> None:
        """An address may be shared: one account can use 10 of the 50 failures of the address."""
        asked = [logins.begin("GET", "/basic", None, basic("alice", "wrong"), peer=HERE) for _ in range(60)]
        logins.threads.run_waiting()
        assert {one.response().status for one in asked} == {401, 429}
        assert logins.basic("bob", "p:w", peer=HERE).status == 200

    def test_concurrent_digest_responses_stay_within_the_limit(self, logins: HttpLogins) -> None:
        challenge = ask(logins.worker, "GET", "/digest").header("WWW-Authenticate") or ""
        headers = {"Authorization": digest_value(challenge, "alice", "wrong")}
        asked = [begin(logins.worker, "GET", "/digest", None, headers) for _ in range(100)]
        statuses = [one.response().status for one in asked]
        assert (statuses.count(401), statuses.count(429)) == (10, 90)

    def test_stopped_store_answers_503_without_verifying(self, logins: HttpLogins) -> None:
        challenge = ask(logins.worker, "GET", "/digest").header("WWW-Authenticate") or ""
        result_of(logins.api.store.stop())
        headers = {"Authorization": digest_value(challenge, "alice", "secret")}
        for answer in (
            logins.basic("alice", "secret"),
            logins.form("alice", "secret"),
            logins.ask("GET", "/digest", None, headers),
        ):
            assert answer.status == 503
            assert answer.header("Retry-After")
            assert answer.header("WWW-Authenticate") is None
        assert logins.threads.done == 0

    def test_limits_are_settings(self, tmp_path: Path) -> None:
        settings = ThrottleSettings(failures=2, address_failures=3, account_failures=4, window_s=cast(Any, 7.0))
        logins = HttpLogins(tmp_path, settings)
        assert [logins.form().status for _ in range(3)] == [401, 401, 429]
        assert [logins.form("bob").status for _ in range(2)] == [401, 429]
        assert [logins.form(peer=THERE).status for _ in range(3)] == [401, 401, 429]
        self.check_429(logins.form(peer="198.51.100.1"), 7)
        logins.clock.advance(7)
        assert logins.form("alice", "secret").status == 302
        logins.close()
