"""Interfaces of the stores: posts, the state of authentication, and opening and closing.

Every method but `prepare` and `stop` may raise `StoreUnavailableError` or a subclass of it. Then a read has no
result, and a write may or may not have happened, except that a write refused with `StoreBusyError` has not. A write is
durable when its call returns. `now` and all times are seconds since the epoch, by `postd.reactor.ServiceClock` unless
said otherwise.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from postd.defaults import PASSKEYS_PER_ACCOUNT, SESSIONS_PER_ACCOUNT, TOKENS_PER_ACCOUNT
from postd.model import POST_ID_MAX, Change, Post, PostCollection, PostDetails, Version
from postd.protocol.passkey import Passkey
from postd.protocol.password_reset import PasswordReset
from postd.protocol.personal_token import PersonalToken
from postd.protocol.session import Session

CHANGES_KEPT = 10_000
"""How many of the latest changes a store keeps at least."""

PAGE_CHANGES_MAX = 1000
"""Limit on the changes that a page has; decoding them takes a few milliseconds."""


RowT = TypeVar("RowT", tuple[int, str], PostDetails)
"""A post on a page: its id and text, or with its details."""


class Page(Struct, Generic[RowT], frozen=True):
    """Posts in ascending order of their ids, as of one moment.

    Args:
        version: the version of the posts at that moment.
        posts: the posts.
        more: whether further posts follow in the direction of the page; not determined if the limit was 0.
        changes: the posts that have changed since the version that was asked about, by their ids, as they are in this
            version, None for a deleted post. None if that is unknown, or there were more than `PAGE_CHANGES_MAX`
            changes.
    """

    version: Version
    posts: list[RowT]
    more: bool
    changes: Mapping[int, RowT | None] | None = None


KEY_BYTES = 32
"""The length of a service key."""

NONCE_COUNTS_KEPT_S = 60
"""How long the counts of a nonce are kept after it expires: a node with a slow clock still accepts it."""

TOKENS_KEPT_S = 30 * 24 * 3600
"""How long a personal access token is kept after it expires: until then the log says that it has expired."""

CLOCK_KEPT_S = 30
"""How far the clock in a store may be behind, when `purge_expired` is called, while anything in the store expires."""


FailureKeys = tuple[bytes, ...]
"""The keys, all different, for which a failed login attempt is counted."""


class Failures(Struct, frozen=True):
    """The failed login attempts of a key at a moment.

    Args:
        count: failed attempts.
        next_expiry: when the first of them expires, in seconds since the epoch; 0 if there are none.
        reserved: running attempts, which may fail.
    """

    count: int
    next_expiry: float
    reserved: int = 0


class Reservation(Struct, frozen=True):
    """A running login attempt: it counts like a failure until it ends, or expires because its process died.

    Args:
        id: unique text.
        keys: as for a failure.
        expires: in seconds since the epoch.
    """

    id: str
    keys: FailureKeys
    expires: float


class IdempotencyKey(Struct, frozen=True):
    """The idempotency key of a request: repetitions of the request store one post.

    Args:
        key: identifies the client and the key that it sent.
        request: a hash of the request: another one with the same key is an error.
        now: when the request arrived, in seconds since the epoch.
        expires: how long the key is kept if the request stores a post.
    """

    key: bytes
    request: bytes
    now: float
    expires: float


class PostStore(Protocol):
    """Posts and the log of their changes. Ids only grow and are never used twice.

    The log has no texts: a text that was replaced or deleted is gone when the write returns. The times of a post never
    go back, whatever `now` is.
    """

    async def version(self) -> Version:
        """Return the current version of the posts."""

    async def list_posts(self, *, after: int = 0, limit: int, since: Version | None = None) -> Page[tuple[int, str]]:
        """Return at most `limit` posts with ids larger than `after`, and the changes since a version, if it is given.

        Changes are returned only if the log proves that the version belongs to the same history. After a restored
        backup it may not, even if its revision is lower.
        """

    async def get_post(self, post_id: int) -> Post:
        """Return the post.

        Raises:
            NoSuchPostError: there is no post with that id.
        """

    async def list_details(self, *, after: int = 0, limit: int, since: Version | None = None) -> Page[PostDetails]:
        """Return posts with their details; as `list_posts`."""

    async def list_latest(self, *, before: int = POST_ID_MAX + 1, limit: int) -> Page[PostDetails]:
        """Return the last posts, at most `limit`, with ids smaller than `before`; `more` is whether there are earlier
        ones.
        """

    async def get_details(self, post_id: int) -> PostDetails:
        """Return the post with its details; as `get_post`."""

    async def add_post(
        self,
        text: str,
        *,
        author: str | None = None,
        now: float | None = None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        """Store a new post and return its id.

        If a post was stored with the same `idempotency_key`, nothing is stored, and the id of that post is returned.

        Args:
            text: the text.
            author: the account that adds it, None without one; not empty.
            now: the time of the post; without it, its times are unknown.
            idempotency_key: that of the request.

        Raises:
            KeyReusedError: the key was used with another request.
        """

    async def replace_post(
        self,
        post_id: int,
        text: str,
        *,
        now: float | None = None,
        expected: str | None = None,
        expected_author: str | None = None,
    ) -> None:
        """Replace the text of a post; the same text is no change.

        Args:
            post_id: the id.
            text: the new text.
            now: the time of the change.
            expected: the text that the post must have, None for any.
            expected_author: the author that it must have, None for any or none; no post has the author `""`.

        Raises:
            NoSuchPostError: there is no post with that id.
            NotAuthorError: its author is not the expected one.
            PostChangedError: its text is not the expected text.
        """

    async def delete_post(
        self, post_id: int, *, expected: str | None = None, expected_author: str | None = None
    ) -> None:
        """Remove a post; as `replace_post`."""

    async def list_changes(self, *, after: int, limit: int, since: int | None = None) -> list[Change | None]:
        """Return at most `limit` changes after revision `after`, oldest first, without gaps.

        With `since`, the revision from which a client resumes, only the last change of each post is returned, and None
        in place of earlier changes; a post that was added after that revision is `added`, even if it was updated since.
        Without `since`, for listeners, all changes are returned as they were made. Only a change whose text is not
        known any more is None: stores remember replaced texts for a moment.

        Raises:
            ChangesGoneError: the log no longer has the next change, or does not reach that revision.
        """

    def watch_changes(self, changed: Callable[[], None] | None) -> None:
        """Call a function when there may be changes; None ends that.

        It is called once a change of this process is acknowledged, soon after one of another process, a second after it
        at the latest, and not while nothing happens. It may be called without a change.
        """

    def read_posts(self, *, batch_size: int) -> AsyncIterator[Sequence[PostDetails]]:
        """Yield all posts in ascending order of their ids, in batches of at most `batch_size`.

        They are as of one moment if the store supports that, else each batch is.
        """

    def read_ids_of(self, author: str, *, batch_size: int) -> AsyncIterator[Sequence[int]]:
        """Yield the ids of all posts of an author; as `read_posts`, but a batch may be empty."""

    async def last_id(self) -> int:
        """Return the largest id that was ever assigned, 0 if none was."""

    async def collection(self) -> PostCollection:
        """Return what identifies the collection of posts; it never changes, except by an import."""

    async def begin_import(self) -> "Import":
        """Begin an import of posts that have ids already."""


class Import(Protocol):
    """Posts with ids that are staged for a store; none of them is in it before `commit`."""

    async def add(self, posts: Sequence[PostDetails]) -> None:
        """Stage posts, in any order; call it with a few hundred to a thousand at a time.

        Raises:
            PostExistsError: a post with the same id is staged. The import cannot be used any more.
        """

    async def commit(
        self,
        *,
        skip_existing: bool = False,
        into_empty: bool = False,
        last_id: int = 0,
        revision: int = 0,
        collection: PostCollection | None = None,
    ) -> int:
        """Store all staged posts in one step, each as a change of its own, and return their number.

        Args:
            skip_existing: leave out posts whose ids exist, instead of refusing all.
            into_empty: refuse all if there is any post.
            last_id: later ids are larger than this, too.
            revision: the revisions of the added posts, and of later changes, are larger than this, too.
            collection: the collection that the posts are a copy of; the store is the same collection then.

        Raises:
            PostExistsError: a post with an id of the list exists; nothing was stored.
            StoreNotEmptyError: `into_empty`, and there is a post; nothing was stored.
        """

    async def discard(self) -> None:
        """Remove the staged posts; without effect after `commit`."""


class CredentialStore(Protocol):
    """Personal access tokens, passkeys and resets of passwords, shared by all workers and nodes.

    A token that was deleted by another worker or node is not returned any more when that call has returned.
    """

    async def add_token(
        self, token_hash: bytes, token: PersonalToken, *, max_of_account: int = TOKENS_PER_ACCOUNT
    ) -> bool:
        """Store a token under its hash, in one step for all workers and nodes.

        Args:
            token_hash: the hash.
            token: the token.
            max_of_account: the number of tokens that its account may have, this one included. Expired ones, and those
                of another entry, do not count.

        Returns:
            False if the account has as many already; nothing is stored then.
        """

    async def get_token(self, token_hash: bytes) -> PersonalToken | None:
        """Return a token, None if there is none; an expired one may or may not be returned."""

    async def get_cached_token(self, token_hash: bytes) -> PersonalToken | None:
        """Return a token that may be cached, as `LoginStore.get_cached_session`; `used` may be outdated."""

    async def list_tokens(self, account: str | None = None) -> list[PersonalToken]:
        """Return all tokens, or those of an account, oldest first; some may have expired."""

    async def use_token(self, token_hash: bytes, *, used: float) -> None:
        """Note a use of a token; without effect if it is deleted, or was used later. A power failure may undo it."""

    async def delete_tokens(self, ids: Collection[str], *, account: str | None = None) -> int:
        """Delete tokens by their ids, all or only those of an account; return how many there were."""

    async def add_passkey(self, passkey: Passkey, *, max_of_account: int = PASSKEYS_PER_ACCOUNT) -> bool:
        """Store a passkey, in one step for all workers and nodes.

        Args:
            passkey: the passkey.
            max_of_account: the number of passkeys that its account may have, this one included. Those of another entry
                do not count.

        Returns:
            False if the account has as many already, or there is a passkey with the same `credential_id`, of whatever
            account; nothing is stored then.
        """

    async def get_passkey(self, credential_id: bytes) -> Passkey | None:
        """Return a passkey, None if there is none."""

    async def list_passkeys(self, account: str | None = None) -> list[Passkey]:
        """Return all passkeys, or those of an account, oldest first."""

    async def use_passkey(self, credential_id: bytes, *, used: float, sign_count: int, backed_up: bool) -> bool:
        """Note a use of a passkey, in one step for all workers and nodes.

        Returns:
            False, without effect, if it is deleted, or `sign_count` is not greater than the stored one and not both are
            0 (WebAuthn Level 3 §7.2, step 22): the authenticator may be a copy.
        """

    async def rename_passkey(self, id_: str, label: str, *, account: str) -> bool:
        """Give a passkey of an account another label; return whether there is one with that id."""

    async def delete_passkeys(self, ids: Collection[str], *, account: str | None = None) -> int:
        """Delete passkeys by their ids, all or only those of an account; return how many there were."""

    async def add_password_reset(self, secret_hash: bytes, reset: PasswordReset) -> None:
        """Store a reset under the hash of its secret, in place of an earlier one of its account."""

    async def get_password_reset(self, secret_hash: bytes) -> PasswordReset | None:
        """Return a reset, None if there is none; an expired one may or may not be returned."""

    async def use_password_reset(self, secret_hash: bytes) -> bool:
        """Delete a reset; return True to the one caller, of all workers and nodes, whose call did."""

    async def delete_credentials_of(self, entries: Mapping[str, bytes | None]) -> int:
        """Delete tokens and passkeys of accounts, except those with the entry given for the account, and all resets.

        Returns:
            how many of all kinds there were.
        """


class LoginStore(CredentialStore, Protocol):
    """Sessions, nonce counts, failed logins and service keys, shared by all workers and nodes; credentials, too."""

    async def key(self, name: str) -> bytes:
        """Return `KEY_BYTES` random bytes, always the same ones for the same name."""

    async def use_nonce(self, nonce: bytes, count: int, *, expires: float) -> bool:
        """Note a use of a nonce; return False if it was used with the same count before, or may have been.

        It may have been if counts of nonces that expired as late as this one are removed.

        Args:
            nonce: identifies the nonce.
            count: which use of it this is.
            expires: when the nonce expires; its counts are removed `NONCE_COUNTS_KEPT_S` later.
        """

    async def use_proof(self, proof: bytes, *, expires: float) -> bool:
        """Note the use of a DPoP proof; return False if it was used before, or may have been.

        It may have been if proofs that expired as late as this one are removed.

        Args:
            proof: identifies the proof.
            expires: when it expires, by the wall clock; it is removed `NONCE_COUNTS_KEPT_S` later. It may differ from
                that of an earlier use.
        """

    async def add_session(
        self,
        id_hash: bytes,
        session: Session,
        *,
        in_place_of: Collection[bytes] = (),
        max_of_user: int = SESSIONS_PER_ACCOUNT,
        id_token: str = "",
    ) -> None:
        """Store a session under a hash of its identifier, in one step for all workers and nodes.

        Args:
            id_hash: the hash.
            session: the session.
            in_place_of: the hashes of sessions that it replaces; they end. With `id_hash` itself, a session changes.
            max_of_user: the number of sessions that its user may have, this one included. The oldest other sessions
                end, expired ones first.
            id_token: the ID token of the session's provider, kept as long as the session, for `get_id_token` alone. One
                of a session that it replaces is not kept.
        """

    async def get_session(self, id_hash: bytes) -> Session | None:
        """Return a session, None if there is none; an expired one may or may not be returned."""

    async def get_cached_session(self, id_hash: bytes) -> Session | None:
        """Return a session that may be cached, for listeners: no call of a server is made for each of them.

        It is no older than the last call of `list_changes`: a session that ended before a change, on whatever worker
        or node, is not returned once that change was listed. But `seen` and `expires` may be outdated.
        """

    def clear_cached_logins(self) -> None:
        """Clear the cache of `get_cached_session` and `get_cached_token`, if there is one."""

    async def get_id_token(self, id_hash: bytes) -> str:
        """Return the ID token of a session, empty if it has none or there is no such session."""

    async def list_sessions(self) -> list[Session]:
        """Return all sessions, oldest first; some may have expired."""

    async def list_sessions_of(self, username: str) -> dict[bytes, Session]:
        """Return the sessions of a user by the hashes of their identifiers, oldest first; some may have expired."""

    async def renew_session(self, id_hash: bytes, *, seen: float, expires: float) -> None:
        """Note that a session is in use; without effect if it has ended."""

    async def prove_session(self, id_hash: bytes, *, authenticated: float, fingerprint: bytes | None = None) -> None:
        """Note that the user of a session has proved who they are; without effect if it has ended.

        Args:
            id_hash: the hash of its identifier.
            authenticated: when that was.
            fingerprint: the new one of an account of this server whose password was changed; None for no change.
        """

    async def register_device(self, id_hash: bytes, key: str) -> bool:
        """Store the public key that a session is to be bound to, in one step for all workers and nodes.

        Returns:
            False if it has another key, or has ended.
        """

    async def bind_session(self, id_hash: bytes, *, bound: float) -> bool:
        """Note the first request with a proof of a session's key, and that its user has had a bound session.

        Return False, without effect, if the session has no key, was bound earlier, or has ended.
        """

    async def was_bound(self, username: str) -> bool:
        """Return whether any session of a user was bound, even one that has ended."""

    async def delete_sessions(self, id_hashes: Collection[bytes]) -> int:
        """End sessions; return how many there were."""

    async def delete_sessions_of(self, fingerprints: Mapping[str, bytes | None]) -> int:
        """End the sessions of users, except sessions with the fingerprint given for the user; return how many ended."""

    async def end_sessions_at(self, fingerprint: bytes, *, subject: str = "", sid: str = "") -> int:
        """End the sessions with a fingerprint and with a subject or a `sid`, or with both if both are given.

        They end in one step for all workers and nodes, whether or not they have expired. A session that is added
        afterwards stays.

        Args:
            fingerprint: that of the provider's sessions.
            subject: the claim `sub`; empty: any.
            sid: the claim `sid`; empty: any. If both are empty, no session ends.

        Returns:
            how many ended.
        """

    async def delete_all_sessions(self) -> int:
        """End all sessions; return how many there were."""

    async def count_failures(self, keys: FailureKeys, *, now: float) -> Mapping[bytes, Failures]:
        """Return the failures that have not expired, for each key that has any."""

    async def reserve_attempt(
        self, reservation: Reservation, *, allowed: Sequence[int], now: float
    ) -> Mapping[bytes, Failures] | None:
        """Make a reservation if no key has reached its limit, in one step for all workers and nodes.

        Args:
            reservation: to be made.
            allowed: the limit of failures and reservations together, for each key in their order.
            now: the time of the attempt.

        Returns:
            None if the reservation was made, else the same as `count_failures`.
        """

    async def release_attempt(self, reservation: Reservation) -> None:
        """Remove a reservation, once; an expired one may have been removed already."""

    async def add_failure(
        self, keys: FailureKeys, *, now: float, expires: float, reservation: Reservation | None = None
    ) -> Mapping[bytes, Failures]:
        """Add one failure for each key, until `expires`, in place of the reservation if the attempt has one.

        Returns:
            The same as `count_failures`, after that and in the same step.
        """

    async def forget_failures(self, key: bytes) -> None:
        """Remove the failures of a key."""

    async def purge_expired(self, *, now: float, wall: float) -> float:
        """Remove what has expired: sessions, failures, nonce counts, proofs, idempotency keys, tokens and resets.

        Args:
            now: the time.
            wall: the time by the wall clock, which proofs expire by; one that is ahead of `now` removes none.

        Returns:
            the clock in the store: the latest time of any process that removed something, or had something to keep,
            at most `CLOCK_KEPT_S` ago. Times before it are past for all processes.
        """


class OperationObserver(Protocol):
    """Callback for each operation of a store, for metrics."""

    def __call__(self, operation: Literal["read", "write"], duration_s: float, /, *, failed: bool) -> None:
        """Note an operation, how long it took, waits included, and whether it raised `StoreUnavailableError`."""


def ignore_operation(_operation: str, _duration_s: float, /, *, failed: bool) -> None:
    """Note nothing."""


class Lifecycle(Protocol):
    """Opening and closing a store.

    Attributes:
        observer: is called with each read and write.
    """

    observer: OperationObserver

    @property
    def description(self) -> str:
        """The kind and place of the store, without secrets, for the log and for messages."""

    def prepare(self, *, create: bool = True) -> bool:
        """Check that the store can be used; create one that does not exist, or refuse it without `create`.

        Returns whether it was created.

        Blocks, and leaves nothing open; to be called once, before the reactor runs and before the process forks.

        Raises:
            StoreRefusedError: the store cannot be used until it or the settings are changed.
            StoreUnavailableError: it is unreachable or locked now.
        """

    async def start(self) -> None:
        """Open the store; wait for it if it is unavailable.

        Raises:
            StoreRefusedError: it was unavailable in `prepare`, and now turns out to be unusable.
        """

    async def stop(self) -> None:
        """Refuse new writes, finish pending ones, close."""


class LoginStoreWithLifecycle(LoginStore, Lifecycle, Protocol):
    """The state of authentication, to be opened and closed by its user."""


class Store(PostStore, LoginStoreWithLifecycle, Protocol):
    """All persistent state of the service."""
