"""Sessions of the form login (spec: Form login with cookie session)."""

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Protocol

from postd.auth.checker import Checker
from postd.auth.credentials import ISessionCredentials, Refused, SessionCredentials
from postd.auth.identity import Identity
from postd.defaults import SESSIONS_PER_ACCOUNT
from postd.errors import StoreUnavailableError
from postd.protocol.session import Session, hash_session_id, make_session, make_session_id, renewal
from postd.store.interface import LoginStore

_CANDIDATES_MAX = 32
"""How many session identifiers a request may have: a browser sends one, unless a neighboring site has set more."""


class Fingerprints(Protocol):
    """The accounts that may have sessions, such as the accounts of `postd.auth.users.UserDirectory`."""

    def fingerprint(self, name: str) -> bytes | None:
        """Return the fingerprint of an account, None if there is no such account. A session stores it, and ends when
        it changes.
        """


class Sessions:
    """Begins, checks and ends sessions.

    Args:
        users: the fingerprints of the accounts.
        idle_s: how long a session lasts without being used, in seconds.
        lifetime_s: how long it lasts at most, in seconds.
        max_per_account: how many sessions an account may have; the oldest ends.
        now: the clock, in seconds since the epoch.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        store: LoginStore,
        users: Fingerprints,
        *,
        idle_s: float,
        lifetime_s: float,
        now: Callable[[], float],
        max_per_account: int = SESSIONS_PER_ACCOUNT,
    ) -> None:
        self._store = store
        self._users = users
        self._idle_s = idle_s
        self._lifetime_s = lifetime_s
        self._now = now
        self._max_per_account = max_per_account

    async def begin(self, username: str, *, in_place_of: Collection[bytes]) -> str:
        """Begin a session and return its identifier; the sessions `in_place_of` and the oldest above the limit end.

        Raises:
            Refused: the user was removed since the password was verified.
            StoreUnavailableError: it could not be stored.
        """
        fingerprint = self._users.fingerprint(username)
        if fingerprint is None:
            raise Refused("no such user any more", username, known=True)
        times = {"now": self._now(), "idle_s": self._idle_s, "lifetime_s": self._lifetime_s}
        session_id = make_session_id()
        id_hash = hash_session_id(session_id)
        assert id_hash is not None
        session = make_session(username, fingerprint, **times)
        await self._store.add_session(id_hash, session, in_place_of=in_place_of, max_of_user=self._max_per_account)
        return session_id

    async def user_of(self, id_hash: bytes) -> str | None:
        """Return the user of a live session, None if there is none, and renew the session now and then."""
        session = await self.find(id_hash)
        if session is None:
            return None
        now = self._now()
        expires = renewal(session, now=now, idle_s=self._idle_s)
        if expires is not None:
            with suppress(StoreUnavailableError):  # this request may proceed; the store logs the error
                await self._store.renew_session(id_hash, seen=now, expires=expires)
        return session.username

    async def user_of_only(self, id_hashes: Collection[bytes]) -> str | None:
        """Return the user of the live session among some, without renewing it; None unless exactly one is live."""
        found = [await self.find(id_hash) for id_hash in id_hashes] if len(id_hashes) <= _CANDIDATES_MAX else []
        live = [session.username for session in found if session is not None]
        return live[0] if len(live) == 1 else None

    async def find(self, id_hash: bytes) -> Session | None:
        """Return a live session, without renewing it; None if there is none."""
        session = await self._store.get_session(id_hash)
        if session is None or session.expires <= self._now():
            return None
        return session if self._users.fingerprint(session.username) == session.fingerprint else None

    async def end(self, id_hashes: Collection[bytes]) -> None:
        """End sessions.

        Raises:
            StoreUnavailableError: they may not have ended.
        """
        await self._store.delete_sessions(id_hashes)


class SessionChecker(Checker):
    """Checks sessions by the hashes of their identifiers."""

    credentialInterfaces = (ISessionCredentials,)

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def check(self, credentials: SessionCredentials) -> Identity:
        """Return the identity of the live session.

        Raises:
            Refused: none of them is live, or more than one is, or there are too many: another site of the domain has
                set some of them.
            StoreUnavailableError: they cannot be looked up.
        """
        # Looking up only some could miss a second live session.
        if len(credentials.id_hashes) > _CANDIDATES_MAX:
            raise Refused("too many session cookies")
        live = []
        for id_hash in credentials.id_hashes:
            user = await self._sessions.user_of(id_hash)
            if user is not None:
                live.append(user)
        if len(live) != 1:
            raise Refused("more than one live session" if live else "no live session")
        return Identity(live[0], "session", revalidate=partial(self._is_live, credentials))

    async def _is_live(self, credentials: SessionCredentials) -> bool:
        try:
            # Exactly one was live when the request was accepted.
            return any([await self._sessions.find(id_hash) for id_hash in credentials.id_hashes])
        except StoreUnavailableError:
            return True  # unknown; without the store there is no response to send anyway
