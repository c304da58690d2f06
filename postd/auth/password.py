"""Checks user names with passwords, in threads and with a cache.

Verifying a password takes about 15 ms by design. Right passwords are therefore cached for a minute, and concurrent
checks of the same password by one client share one verification. Clients take turns; the password of a client that
disconnects before its turn is not verified.
"""

import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from postd.auth.checker import Checker
from postd.auth.credentials import IPasswordCredentials, PasswordCredentials, Refused, log_refusal, log_throttled
from postd.auth.identity import Identity
from postd.auth.throttle import Attempt, Throttle, login_keys
from postd.auth.user_file import NAME_MAX_BYTES
from postd.auth.users import UserDirectory
from postd.caching import SingleFlight, TTLCache
from postd.errors import LoginsBusyError, ServerBusyError, StoreUnavailableError, TooManyFailuresError
from postd.fair_queue import FairSemaphore
from postd.protocol.host import client_network
from postd.protocol.password import PASSWORD_MAX_CHARS, normalize, verify_password
from postd.reactor import IReactor
from postd.store.interface import LoginStore

DUMMY_HASH_KEY = "unknown-users"
"""The name of the stored key that selects the dummy hash of an unknown user."""

QUEUE_MAX = 256
"""How many passwords may wait to be verified; further ones are refused."""

CACHE_MAX, CACHE_TTL_S = 1024, 60
"""How many right passwords are cached, and for how long."""

THREADS = len(os.sched_getaffinity(0))
_THREAD_NICENESS = 5

T = TypeVar("T")


class HashThreads:
    """A thread pool for verifying passwords, of lower priority than the reactor's thread."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(0, THREADS, "postd-passwords")
        self._nice = threading.local()

    def start(self) -> None:
        self._pool.start()

    def run(self, function: Callable[..., T], *args: object) -> Deferred[T]:
        if not self._pool.started:
            raise LoginsBusyError  # the pool would keep the call until it is started, or drop it if it was stopped
        return deferToThreadPool(self._reactor, self._pool, self._run, function, *args)

    def stop(self) -> None:
        self._pool.stop()

    def _run(self, function: Callable[..., T], *args: object) -> T:
        if not hasattr(self._nice, "done"):
            with suppress(OSError):  # not permitted; the priority is optional
                os.nice(_THREAD_NICENESS)  # on Linux this affects the current thread only
            self._nice.done = True
        return function(*args)


class PasswordVerifier:
    """Verifies passwords in a bounded number of threads, and caches the right ones.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, threads: HashThreads, *, now: Callable[[], float]) -> None:
        self._threads = threads
        self._now = now
        self._slots = FairSemaphore(THREADS, max_waiting=QUEUE_MAX)
        self._key = secrets.token_bytes(32)
        self._cache = TTLCache[tuple[str, str], bytes](CACHE_MAX)
        self._verifying = SingleFlight[tuple[str, bytes], bool]()
        self._waiting: dict[tuple[str, bytes], list[Callable[[], bool]]] = {}

    def check_cached(self, credentials: PasswordCredentials, stored: str) -> bool | None:
        """Return whether a password is the right one according to the cache, None if none is cached for this hash."""
        cached = self._cache.get((credentials.username, stored), self._now())
        return None if cached is None else hmac.compare_digest(cached, self._digest(credentials, stored))

    async def verify(
        self, credentials: PasswordCredentials, stored: str, *, deadline: float, cache: bool = True
    ) -> bool:
        """Return whether a password matches a hash.

        Args:
            credentials: with the normalized password.
            stored: the hash. It is part of the cache key, so a changed password is never taken from the cache.
            deadline: when the verification must have ended, by the clock.
            cache: whether to cache the password if it is right.

        Raises:
            LoginsBusyError: too many passwords wait, the client is gone, or the deadline has passed.
        """
        if self.check_cached(credentials, stored):
            return True
        client, digest = client_network(credentials.address), self._digest(credentials, stored)
        key = client, digest
        waiting = self._waiting.setdefault(key, [])
        waiting.append(credentials.is_wanted)
        right = await self._verifying.run(key, lambda: self._verify(key, credentials.password, stored, deadline))
        if right and cache:
            now = self._now()
            self._cache.put((credentials.username, stored), digest, until=now + CACHE_TTL_S)
        return right

    async def run(self, address: str, function: Callable[[], T]) -> T:
        """Run a function in the threads, in the turn of a client.

        Raises:
            LoginsBusyError: too many passwords wait.
        """
        try:
            async with self._slots.slot(client_network(address), is_wanted=lambda: True):
                return await self._threads.run(function)
        except (MemoryError, ServerBusyError):
            raise LoginsBusyError from None

    async def _verify(self, key: tuple[str, bytes], password: str, stored: str, deadline: float) -> bool:
        waiting = self._waiting[key]
        try:
            async with self._slots.slot(key[0], is_wanted=lambda: any(is_wanted() for is_wanted in waiting)):
                if self._now() >= deadline:
                    raise LoginsBusyError
                right = await self._threads.run(verify_password, stored, password)
        except (MemoryError, ServerBusyError):
            raise LoginsBusyError from None
        finally:
            del self._waiting[key]
        if self._now() >= deadline:  # this process was suspended, and its reservation has expired
            raise LoginsBusyError
        return right

    def _digest(self, credentials: PasswordCredentials, stored: str) -> bytes:
        """Return a keyed hash, which is cached in place of the password; the key never leaves this process."""
        username = credentials.username.encode(errors="surrogatepass")
        password = credentials.password.encode(errors="surrogatepass")
        message = b"%d:%b%d:%b%b" % (len(username), username, len(password), password, stored.encode())
        return hashlib.blake2b(message, key=self._key, digest_size=32).digest()  # a MAC when it has a key (RFC 7693)

    def clear_cache(self) -> None:
        self._cache.clear()


class PasswordChecker(Checker):
    """Checks user names with passwords (Basic: RFC 7617; spec: Form login)."""

    credentialInterfaces = (IPasswordCredentials,)

    def __init__(
        self, users: UserDirectory, verifier: PasswordVerifier, throttle: Throttle, *, store: LoginStore
    ) -> None:
        self._users = users
        self._store = store
        self._verifier = verifier
        self._throttle = throttle

    async def check(self, credentials: PasswordCredentials) -> Identity:
        """Return the identity with this name and password.

        Raises:
            Refused: there is no such user, or the password is wrong; both take the same time.
            TooManyFailuresError: the throttle does not admit the attempt.
            LoginsBusyError: too many passwords wait to be verified.
            StoreUnavailableError: the throttle's counts cannot be read.
        """
        check_lengths(credentials)
        name, password = normalize(credentials.username), normalize(credentials.password)
        normalized = replace(credentials, username=name, password=password)
        account = self._users.get(name)
        cached = self._verifier.check_cached(normalized, account.password_hash) if account else None
        if not cached or credentials.scheme == "form":
            self._users.recheck()  # another worker may have changed the password since
            account, cached = self._users.get(name), None
        if account:
            stored = account.password_hash
        else:
            stored = self._users.dummy_hash(name, await self._store.key(DUMMY_HASH_KEY))
        try:
            attempt = await self._throttle.admit(login_keys(name, credentials.address))
            cached = cached or self._verifier.check_cached(normalized, stored)
            done = cached and not attempt.needs_release
            right = done or await self._verify(normalized, stored, attempt, cached=cached, known=account is not None)
        except TooManyFailuresError as error:
            is_known = account is not None
            raise log_throttled(credentials.scheme, error, credentials.address, name, known=is_known) from None
        if not right:
            why = "wrong password" if account else "no such user"
            raise refused(normalized, why, known=account is not None)
        # Last, without an `await` between this check and the session that the caller begins.
        account = self._users.get(name)
        if account is None or account.password_hash != stored:
            raise refused(normalized, "the password was changed during the check", known=True)
        return Identity(name, credentials.scheme, revalidate=self._users.revalidate(name))

    async def _verify(
        self, normalized: PasswordCredentials, stored: str, attempt: Attempt, *, cached: bool | None, known: bool
    ) -> bool:
        """Return whether the user is known and the password is right; record a failure if not. Raises as `check`.

        `stored` is a dummy hash if the user is not known, `cached` the result of `PasswordVerifier.check_cached`.
        """
        right = cached
        if not right:
            try:
                attempt = reserved = await self._throttle.reserve(attempt)
                assert reserved.reservation is not None
                # Not cached for an unknown user: a quick answer would show that it matches another account's hash.
                right = await self._verifier.verify(
                    normalized, stored, deadline=reserved.reservation.expires, cache=known
                )
            except (LoginsBusyError, StoreUnavailableError, TooManyFailuresError):
                # A password that differs from the cached one is known to be wrong without verifying it.
                await (self._throttle.release(attempt) if cached is None else self._throttle.record_failure(attempt))
                raise
        if known and right:
            await self._throttle.release(attempt, reset_failures=True)
            return True
        await self._throttle.record_failure(attempt)
        return False


def check_lengths(credentials: PasswordCredentials) -> None:
    """Check that a name and a password are short enough to be normalized, which could take a second.

    Raises:
        Refused: the name or the password is longer than any valid one.
    """
    if len(credentials.username) > NAME_MAX_BYTES or len(credentials.password) > PASSWORD_MAX_CHARS:
        raise refused(credentials, "longer than any name or password")


def refused(credentials: PasswordCredentials, why: str, *, known: bool = False) -> Refused:
    """Log why a name and a password are refused; return the refusal, to be raised."""
    return log_refusal(credentials.scheme, Refused(why, credentials.username, known=known), credentials.address)
