"""Sessions of the form login (spec: Form login with cookie session)."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from postd.auth.checker import Checker
from postd.auth.credentials import ISessionCredentials, Refused, SessionCredentials, UnprovenError
from postd.auth.identity import Identity, SignedIn
from postd.defaults import SESSIONS_PER_ACCOUNT
from postd.errors import StoreUnavailableError
from postd.protocol.session import Session, hash_session_id, make_session, make_session_id, renewal
from postd.store.interface import LoginStore

if TYPE_CHECKING:
    from postd.auth.bound_session import SessionBinding

_CANDIDATES_MAX = 32
"""How many session identifiers a request may have: a browser sends one, unless a neighboring site has set more."""


class Fingerprints(Protocol):
    """The accounts that may have sessions, such as the accounts of `postd.auth.users.UserDirectory`."""

    def fingerprint(self, name: str) -> bytes | None:
        """Return the fingerprint of an account, None if there is no such account. A session stores it, and ends when
        it changes.
        """

    def recheck(self) -> None:
        """Load changes of the accounts now, which another process may have made."""

    def entry(self, name: str) -> bytes | None:
        """Return the identity of an account's entry, None if there is no such account. It stays when the password
        changes; tokens and passkeys belong to it.
        """


class Sessions:
    """Begins, checks and ends sessions.

    Args:
        users: the fingerprints of the accounts.
        providers: the fingerprints of the OpenID providers' accounts, by their ids in the settings.
        idle_s: how long a session lasts without being used, in seconds.
        lifetime_s: how long it lasts at most, in seconds.
        max_per_account: how many sessions an account may have; the oldest ends.
        now: the clock, in seconds since the epoch.
        binding: asks for proofs of bound sessions; None to ask for none.
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
        providers: Mapping[str, bytes] = MappingProxyType({}),
        binding: "SessionBinding | None" = None,
    ) -> None:
        self._store = store
        self._binding = binding
        self._users = users
        self._providers = providers
        self._idle_s = idle_s
        self._lifetime_s = lifetime_s
        self._now = now
        self._max_per_account = max_per_account

    async def begin(  # noqa: PLR0913 - all but one by name
        self,
        username: str,
        *,
        in_place_of: Collection[bytes],
        signed_in: SignedIn | None = None,
        address: str = "",
        browser: str = "",
        scheme: str = "",
    ) -> str:
        """Begin a session and return its identifier; the sessions `in_place_of` and the oldest above the limit end.

        Args:
            username: the account.
            in_place_of: the hashes of sessions that it replaces.
            signed_in: the sign-in at an OpenID provider; None for an account of this server, whose user has just
                proved who they are.
            address: the client's address.
            browser: its browser, in words.
            scheme: the scheme by which the user has signed in, as in `Identity`.

        Raises:
            Refused: the account was removed since its credentials were verified, or the provider.
            StoreUnavailableError: it could not be stored.
        """
        if signed_in is None:
            fingerprint = self._users.fingerprint(username)
        else:
            fingerprint = self._providers.get(signed_in.provider)
        if fingerprint is None:
            raise Refused("no such user any more", username, known=True)
        now = self._now()
        session_id = make_session_id()
        id_hash = hash_session_id(session_id)
        assert id_hash is not None
        session = make_session(username, fingerprint, now=now, idle_s=self._idle_s, lifetime_s=self._lifetime_s)
        session, id_token = replace(session, authenticated=now, address=address, browser=browser, scheme=scheme), ""
        if signed_in is not None:
            id_token = signed_in.id_token
            session = replace(
                session,
                authenticated=min(signed_in.authenticated, now),
                shown_name=signed_in.shown_name,
                provider=signed_in.provider,
                subject=signed_in.subject,
                sid=signed_in.sid,
            )
        await self._store.add_session(
            id_hash, session, in_place_of=in_place_of, max_of_user=self._max_per_account, id_token=id_token
        )
        return session_id

    async def use(self, id_hash: bytes, cookies: bytes = b"") -> Session | None:
        """Return a live session, None if there is none, and renew it now and then.

        Raises:
            UnprovenError: it is bound to a device, and none of the cookies is a live proof of that.
        """
        session = self._if_live(await self._store.get_session(id_hash))
        if session is None:
            return None
        binding = self._binding
        if session.device_key and binding is not None and not await binding.is_proven(id_hash, session, cookies):
            raise UnprovenError("no live proof of the device that it is bound to", session.username, known=True)
        now = self._now()
        expires = renewal(session, now=now, idle_s=self._idle_s)
        if expires is not None:
            with suppress(StoreUnavailableError):  # this request may proceed; the store logs the error
                await self._store.renew_session(id_hash, seen=now, expires=expires)
        return session

    async def find_only(self, credentials: SessionCredentials) -> tuple[bytes, Session] | None:
        """Return the live session of some credentials, with its hash, without renewing it.

        None unless exactly one is live; a bound one needs its proof.
        """
        binding, cookies = self._binding, credentials.cookies
        live = [
            (id_hash, session)
            for id_hash, session in await self.find_all(credentials.id_hashes)
            if not session.device_key or binding is None or await binding.is_proven(id_hash, session, cookies)
        ]
        return live[0] if len(live) == 1 else None

    async def list_of(self, username: str) -> dict[bytes, Session]:
        """Return the live sessions of an account by the hashes of their identifiers, oldest first.

        Raises:
            StoreUnavailableError: they cannot be read.
        """
        found, now = await self._store.list_sessions_of(username), self._now()
        return {
            id_hash: session
            for id_hash, session in found.items()
            if session.expires > now and self._fingerprint(session) == session.fingerprint
        }

    async def find_all(self, id_hashes: Collection[bytes]) -> list[tuple[bytes, Session]]:
        """Return the live sessions among some, with their hashes, whether or not there is a proof of them."""
        # Looking up only some could miss a second live session.
        found = [(one, await self.find(one)) for one in id_hashes] if len(id_hashes) <= _CANDIDATES_MAX else []
        return [(id_hash, session) for id_hash, session in found if session is not None]

    async def may_stream(self, id_hashes: Collection[bytes], cookies: bytes) -> bool:
        """Return whether an event stream that a request with these sessions and cookies has opened may go on.

        Raises:
            StoreUnavailableError: the sessions cannot be looked up.
        """
        # A cached session that is not valid may be outdated: renewed since, or with the new password's fingerprint now.
        for look_up in (self._store.get_cached_session, self._store.get_session):
            for id_hash in id_hashes:  # one was live when the request was accepted
                session = self._if_live(await look_up(id_hash))
                if session is not None and (
                    not session.device_key
                    or self._binding is None
                    or await self._binding.may_stream(id_hash, session, cookies)
                ):
                    return True
        return False

    def find_proof(self, cookies: bytes) -> bytes:
        """Return the part of some cookies with the proof of a session; empty without one."""
        return b"" if self._binding is None else self._binding.find_proof(cookies)

    async def binds(self, username: str) -> bool:
        """Return whether any session of an account was bound to a device, at any time; False where none is asked to.

        Raises:
            StoreUnavailableError: that cannot be read.
        """
        return self._binding is not None and await self._store.was_bound(username)

    async def find(self, id_hash: bytes) -> Session | None:
        """Return a live session, without renewing it; None if there is none."""
        return self._if_live(await self._store.get_session(id_hash))

    def _if_live(self, session: Session | None) -> Session | None:
        """Return a session of the store if it is live by the clock and its account, else None."""
        if session is None or session.expires <= self._now():
            return None
        if session.provider:
            return session if self._providers.get(session.provider) == session.fingerprint else None
        if self._users.fingerprint(session.username) != session.fingerprint:
            # Another worker may have changed the password, and kept the session in which its user asked for that.
            self._users.recheck()
            if self._users.fingerprint(session.username) != session.fingerprint:
                return None
        return session

    def _fingerprint(self, session: Session) -> bytes | None:
        """Return the present fingerprint of a session's account."""
        if session.provider:
            return self._providers.get(session.provider)
        return self._users.fingerprint(session.username)

    async def confirm(self, id_hash: bytes, fingerprint: bytes | None = None) -> None:
        """Note that the user of a session has just proved who they are; without effect if it has ended.

        Args:
            id_hash: the hash of its identifier.
            fingerprint: that of the account if it has changed with the password, None if not.

        Raises:
            StoreUnavailableError: it could not be stored.
        """
        await self._store.prove_session(id_hash, authenticated=self._now(), fingerprint=fingerprint)

    async def id_token_of(self, id_hash: bytes) -> str:
        """Return the ID token of a session, to sign its user out at the provider; empty for none.

        Raises:
            StoreUnavailableError: it cannot be read.
        """
        return await self._store.get_id_token(id_hash)

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
            UnprovenError: the only one is bound to a device, and there is no live proof of that.
            Refused: none of them is live, or more than one is, or there are too many: another site of the domain has
                set some of them.
            StoreUnavailableError: they cannot be looked up.
        """
        # Looking up only some could miss a second live session.
        if len(credentials.id_hashes) > _CANDIDATES_MAX:
            raise Refused("too many session cookies")
        live, unproven = [], None
        for id_hash in credentials.id_hashes:
            try:
                session = await self._sessions.use(id_hash, credentials.cookies)
            except UnprovenError as error:
                unproven = error
                continue
            if session is not None:
                live.append(session)
        if unproven is not None and not live:
            raise unproven
        if len(live) != 1:
            raise Refused("more than one live session" if live else "no live session")
        session = live[0]
        proof = self._sessions.find_proof(credentials.cookies) if session.device_key else b""  # kept with a stream
        revalidate = partial(self._is_live, credentials.id_hashes, proof)
        if not session.provider:
            return Identity(session.username, "session", revalidate=revalidate)
        issuer = session.username.partition("#")[0]
        return Identity(session.username, "session", issuer, revalidate=revalidate, shown_name=session.shown_name)

    async def _is_live(self, id_hashes: Collection[bytes], cookies: bytes) -> bool:
        try:
            return await self._sessions.may_stream(id_hashes, cookies)
        except StoreUnavailableError:
            return True  # unknown; without the store there is no response to send anyway
