"""Names with passwords: verified off the reactor's thread, and not twice when that can be helped.

Verifying costs some 15 ms by intent. A right password is therefore remembered for a minute, and those who ask the same
at the same time wait for one answer.
"""

import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from postd.auth.checker import Checker
from postd.auth.credentials import IPasswordCredentials, PasswordCredentials, Refused, log_refusal
from postd.auth.identity import Identity
from postd.auth.throttle import Attempt, Throttle, login_keys
from postd.auth.user_file import NAME_MAX_BYTES
from postd.auth.users import UserDirectory
from postd.caching import SingleFlight, TTLCache
from postd.errors import LoginsBusyError, StoreUnavailableError, TooManyFailuresError
from postd.protocol.password import PASSWORD_MAX_CHARS, normalize, verify_password
from postd.reactor import IReactor
from postd.store.interface import LoginStore

UNKNOWN_USERS_KEY = "unknown-users"
"""The name of the key that chooses what a password of an unknown user is verified against."""

QUEUE_MAX = 64
"""Passwords that may wait to be verified; one more is refused."""

REMEMBERED_MAX = 1024
REMEMBERED_S = 60
"""How many right passwords are remembered, and for how long."""

THREADS = len(os.sched_getaffinity(0))
_THREAD_NICENESS = 5

T = TypeVar("T")


class HashThreads:
    """The threads that verify passwords. They run only when the reactor's has nothing to do."""

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(0, THREADS, "postd-passwords")
        self._nice = threading.local()

    def start(self) -> None:
        self._pool.start()

    def run(self, function: Callable[..., T], *args: object) -> Deferred[T]:
        if self._pool.joined:
            raise LoginsBusyError  # we are stopping; the pool would drop it without a word
        return deferToThreadPool(self._reactor, self._pool, self._run, function, *args)

    def stop(self) -> None:
        self._pool.stop()

    def _run(self, function: Callable[..., T], *args: object) -> T:
        if not hasattr(self._nice, "done"):
            with suppress(OSError):  # not allowed: it goes as well without
                os.nice(_THREAD_NICENESS)  # on Linux: of this thread
            self._nice.done = True
        return function(*args)


class PasswordVerifier:
    """Verifies passwords, a few at a time.

    Args:
        threads: where.
        now: the clock, in seconds.
    """

    def __init__(self, threads: HashThreads, *, now: Callable[[], float]) -> None:
        self._threads = threads
        self._now = now
        self._slots = DeferredSemaphore(THREADS)
        self._key = secrets.token_bytes(32)
        self._right = TTLCache[tuple[str, str], bytes](REMEMBERED_MAX)
        self._under_way = SingleFlight[bytes, bool]()

    def recall(self, credentials: PasswordCredentials, stored: str) -> bool | None:
        """Tell whether a password is the one that was found a moment ago to be stored as `stored`; None if none was."""
        right = self._right.get((credentials.username, stored), self._now())
        return None if right is None else hmac.compare_digest(right, self._digest(credentials, stored))

    async def verify(
        self,
        credentials: PasswordCredentials,
        stored: str,
        *,
        until: float,
        remember: bool = True,
    ) -> bool:
        """Tell whether a password is the one that was stored as `stored`.

        Args:
            credentials: with the password, normalized.
            stored: the hash. It is part of what is remembered: another hash, another question.
            until: when it must have been verified, by the clock.
            remember: False if it is verified again each time, even if it is right.

        Raises:
            LoginsBusyError: `QUEUE_MAX` passwords are waiting, or it came too late.
        """
        if self.recall(credentials, stored):
            return True
        key = self._digest(credentials, stored)
        if key not in self._under_way and len(self._slots.waiting) >= QUEUE_MAX:
            raise LoginsBusyError
        right = await self._under_way.run(key, lambda: self._ask(credentials.password, stored, until))
        if right and remember:
            now = self._now()
            self._right.put((credentials.username, stored), key, since=now, until=now + REMEMBERED_S)
        return right

    async def _ask(self, password: str, stored: str, until: float) -> bool:
        await self._slots.acquire()
        try:
            if self._now() >= until:
                raise LoginsBusyError
            right = await self._threads.run(verify_password, stored, password)
        except MemoryError:
            raise LoginsBusyError from None
        finally:
            self._slots.release()
        if self._now() >= until:  # this process stood still, and the attempt no longer counts
            raise LoginsBusyError
        return right

    def _digest(self, credentials: PasswordCredentials, stored: str) -> bytes:
        """Return what stands for a password in memory: with the key of this process, and without it nothing."""
        username = credentials.username.encode(errors="surrogatepass")
        password = credentials.password.encode(errors="surrogatepass")
        message = b"%d:%b%d:%b%b" % (len(username), username, len(password), password, stored.encode())
        return hashlib.blake2b(message, key=self._key, digest_size=32).digest()  # a MAC when it has a key (RFC 7693)

    def forget_all(self) -> None:
        """Forget all right passwords."""
        self._right.clear()


class PasswordChecker(Checker):
    """Names with passwords (Basic: RFC 7617; spec: Form login)."""

    credentialInterfaces = (IPasswordCredentials,)

    def __init__(
        self, users: UserDirectory, verifier: PasswordVerifier, throttle: Throttle, *, store: LoginStore
    ) -> None:
        self._users = users
        self._store = store
        self._verifier = verifier
        self._throttle = throttle

    async def check(self, credentials: PasswordCredentials) -> Identity:
        """Return whose name and password these are.

        Raises:
            Refused: there is no such user, or the password is not right: both take the same time.
            TooManyFailuresError: the throttle does not let it pass.
            LoginsBusyError: too many wait.
            StoreUnavailableError: the throttle's counts cannot be had.
        """
        if len(credentials.username) > NAME_MAX_BYTES or len(credentials.password) > PASSWORD_MAX_CHARS:
            raise _refused(credentials, "longer than any name or password")  # to normalize it may take a second
        name, password = normalize(credentials.username), normalize(credentials.password)
        account = self._users.get(name)
        if account:
            stored = account.password_hash
        else:
            stored = self._users.hash_in_place_of(name, await self._store.key(UNKNOWN_USERS_KEY))
        shown = PasswordCredentials(credentials.scheme, name, password, credentials.address)
        attempt = await self._throttle.admit(login_keys(name, credentials.address))
        right = self._verifier.recall(shown, stored)
        done = right and not self._throttle.needs_release(attempt)
        if not done and not await self._is_right(shown, stored, attempt, right=right, known=account is not None):
            why = "wrong password" if account else "no such user"
            raise _refused(shown, why, known=account is not None)
        # Last: nothing waits between this and the session that it begins.
        now = self._users.get(name)
        if now is None or now.password_hash != stored:
            raise _refused(shown, "the password was changed meanwhile", known=True)
        return Identity(name, credentials.scheme, revalidate=self._users.revalidate(name))

    async def _is_right(
        self, shown: PasswordCredentials, stored: str, attempt: Attempt, *, right: bool | None, known: bool
    ) -> bool:
        """Tell whether a password is right, of a user who is known; count it if it is not.

        Args:
            shown: name and password, normalized.
            stored: the hash.
            attempt: admitted.
            right: what `PasswordVerifier.recall` says of the password.
            known: whether there is such a user.

        Raises:
            TooManyFailuresError, LoginsBusyError, StoreUnavailableError: as `check`.
        """
        if not right:
            try:
                attempt = reserved = await self._throttle.reserve(attempt)
                assert reserved.reservation is not None
                # Not remembered of an unknown user: a quick answer would tell that it is right for somebody.
                right = await self._verifier.verify(shown, stored, until=reserved.reservation.expires, remember=known)
            except (LoginsBusyError, StoreUnavailableError, TooManyFailuresError):
                # Another password than the remembered one was compared, and found wrong: that counts, whatever else
                # can be done now.
                await (self._throttle.release(attempt) if right is None else self._throttle.record_failure(attempt))
                raise
        if known and right:
            await self._throttle.release(attempt, reset_failures=True)
            return True
        await self._throttle.record_failure(attempt)
        return False


def _refused(credentials: PasswordCredentials, why: str, *, known: bool = False) -> Refused:
    return log_refusal(credentials.scheme, Refused(why, credentials.username, known=known), credentials.address)
