"""The Lua scripts of the Redis store, in the folder `lua`, and the names of all its keys.

A script is atomic: no other command runs between its commands, and a crash leaves all of it or nothing. Each write is
one script.
"""

import hashlib
from functools import cache
from importlib import resources

from msgspec import Struct

from postd.model import POST_ID_MAX
from postd.store.interface import CHANGES_KEPT

SCHEMA = 1
"""The number of this layout of the keys; a change of the layout increments it."""

KEYS = {
    "SCHEMA": "postd:schema",
    # The replication id of the server (master_replid in INFO) at the last connect.
    "HISTORY": "postd:history",
    # A sorted set of "ID:TEXT", scored by the id: a page is one range.
    "POSTS": "postd:posts",
    # A sorted set of "ID:CREATED:UPDATED:AUTHOR", scored by the id: posts with known details. Versions without it leave
    # the details of posts that they delete.
    "DETAILS": "postd:details",
    # A hash of "id" and "began".
    "COLLECTION": "postd:collection",
    "LAST_ID": "postd:last_id",
    # A hash of "revision", "tag", and "logins", which counts the ends and changes of sessions and tokens.
    "VERSION": "postd:version",
    # The log, without texts: a stream of "kind", "id", "tag", and perhaps "added", the revision that added the post.
    # The number of an entry is the revision, then "-0".
    "CHANGES": "postd:log",
    # The ids in the log, scored by the revision of the last change of each post.
    "CHANGED": "postd:changed",
    # Prefix, before a revision, of the text that this change made: for a second after another change replaced it. Under
    # REVISION:details the details.
    "REPLACED": "postd:replaced:",
    # The log of older versions, which had texts.
    "OLD_CHANGES": "postd:changes",
    # Prefix, before the name of a service key.
    "KEY": "postd:key:",
    # Prefix of the set of counts of a nonce; all nonces, scored by their expiry.
    "NONCE": "postd:nonce:",
    "NONCES": "postd:nonces",
    # All DPoP proofs that were used, scored by their expiry; each is a nonce with one count.
    "PROOFS": "postd:proofs",
    # A hash: the clock of every process has "reached" this date; counts of nonces that expired until "nonces" may be
    # removed; "proofs" is the last expiry of the proofs that are removed.
    "CLOCK": "postd:clock",
    # Prefix of a session, with its ID token; all sessions, scored by their expiry; prefix of the set of sessions of a
    # user; prefix of the sets of sessions at a provider, under FINGERPRINT:subject:SUBJECT and FINGERPRINT:sid:SID.
    "SESSION": "postd:session:",
    "SESSIONS": "postd:sessions",
    "SESSIONS_OF": "postd:sessions_of:",
    "SESSIONS_AT": "postd:sessions_at:",
    # Prefix of a personal access token, by its hash; all tokens, scored by their expiry; prefix of the hash of a token
    # by its id; prefix of the set of tokens of an account.
    "TOKEN": "postd:token:",
    "TOKENS": "postd:tokens",
    "TOKEN_OF_ID": "postd:token_of_id:",
    "TOKENS_OF": "postd:tokens_of:",
    # The same of passkeys, by their credential id; they never expire.
    "PASSKEY": "postd:passkey:",
    "PASSKEYS": "postd:passkeys",
    "PASSKEY_OF_ID": "postd:passkey_of_id:",
    "PASSKEYS_OF": "postd:passkeys_of:",
    # Prefix of a reset of a password, by the hash of its secret; all resets, scored by their expiry; prefix of the hash
    # by the account.
    "RESET": "postd:reset:",
    "RESETS": "postd:resets",
    "RESET_OF": "postd:reset_of:",
    # By user, when the last session was bound to a device.
    "BOUND_ACCOUNTS": "postd:bound_accounts",
    # Prefix of the failures of a key, and of its reservations under KEY:reserved, scored by their expiry; all of them
    # sets, scored by their first expiry.
    "FAILURE": "postd:failure:",
    "FAILURES": "postd:failures",
    # Prefix of the request and the post of an idempotency key; all keys, scored by their expiry.
    "IDEMPOTENCY_KEY": "postd:once:",
    "IDEMPOTENCY_KEYS": "postd:onces",
    # Written as a mark for WAIT (`replication`).
    "CONFIRMED": "postd:confirmed",
    # Prefix of the staged posts of an import, as POSTS, and under NAME:details of their details, as DETAILS.
    "IMPORT": "postd:import:",
}
"""The keys, or their prefixes, by their names in the scripts."""

_CONSTANTS = {**KEYS, "CHANGES_KEPT": CHANGES_KEPT, "POST_ID_MAX": POST_ID_MAX}
_NAMES = "".join(f"local {name} = {value!r}\n" for name, value in _CONSTANTS.items())


class Script(Struct, frozen=True):
    """A script and its digest, by which Redis runs a cached script.

    If it is `in_order`, it is always sent whole: sent again after NOSCRIPT, it would run after later commands.
    """

    text: str
    sha1: str
    in_order: bool = False


def load_script(*names: str, writes: bool = False, in_order: bool = False) -> Script:
    """Return the script in the file with the last of some names.

    It follows the prelude of all scripts, if it writes that of writing scripts, and those with the other names.
    """
    text = "".join([_NAMES, *map(_read, ("common", *(["writing"] if writes else []), *names))])
    return Script(text, hashlib.sha1(text.encode()).hexdigest(), in_order)  # noqa: S324 - Redis' choice


@cache
def _read(name: str) -> str:
    return (resources.files("postd.store.redis") / "lua" / f"{name}.lua").read_text("utf-8")
