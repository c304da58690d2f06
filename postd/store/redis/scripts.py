"""The Lua scripts of the Redis store, in the folder `lua`, and the names of all its keys.

A script is one step: nothing comes between its commands, and a crash leaves all of it or nothing. Each write is one.
"""

import hashlib
from functools import cache
from importlib import resources

from msgspec import Struct

from postd.model import POST_ID_MAX
from postd.store.interface import CHANGES_KEPT

SCHEMA = 1
"""What the keys look like; a newer postd that changes them counts further."""

KEYS = {
    "SCHEMA": "postd:schema",
    # What Redis called the history of its data (master_replid) when we last looked.
    "HISTORY": "postd:history",
    # A sorted set of "ID:TEXT" by the id: in order, each once, and a page is one range.
    "POSTS": "postd:posts",
    "LAST_ID": "postd:last_id",
    # A hash of "revision" and "tag".
    "VERSION": "postd:version",
    # A stream; an entry's id is the revision, then "-0".
    "CHANGES": "postd:changes",
    # Followed by a name:
    "KEY": "postd:key:",
    # Counts that a nonce was used with, and all nonces by when they expire.
    "NONCE": "postd:nonce:",
    "NONCES": "postd:nonces",
    # Hashes by the id's hash, all ids by when they expire, and the ids of each user.
    "SESSION": "postd:session:",
    "SESSIONS": "postd:sessions",
    "SESSIONS_OF": "postd:sessions_of:",
    # For each key its failures by when they expire, under KEY:reserved its reservations, and all of these keys by when
    # the first one in them expires.
    "FAILURE": "postd:failure:",
    "FAILURES": "postd:failures",
    # Hashes of a request and the post it stored, by the key it came with, and all keys by when they expire.
    "ONCE": "postd:once:",
    "ONCES": "postd:onces",
    # Written so that replicas have something to confirm (redis_confirm).
    "CONFIRMED": "postd:confirmed",
    # Posts of an import that is not committed yet; as POSTS.
    "IMPORT": "postd:import:",
}
"""The names of keys, or what they begin with, by the names that the scripts have for them."""

_NAMES = "".join(
    [
        *(f"local {name} = '{key}'\n" for name, key in KEYS.items()),
        f"local CHANGES_KEPT = {CHANGES_KEPT}\n",
        f"local POST_ID_MAX = {POST_ID_MAX}\n",
    ]
)


class Script(Struct, frozen=True):
    """A script as it is sent, and what Redis knows it by once it has seen it.

    One that is `in_order` is always sent whole: sent again because Redis has not seen it yet, it would come behind what
    was sent meanwhile.
    """

    text: str
    sha1: str
    in_order: bool = False


def load_script(name: str, *, writes: bool = False, in_order: bool = False) -> Script:
    """Return the script in the file `name`, with what stands in front of each, and of each that `writes`."""
    text = "".join([_NAMES, *map(_read, ("common", "writing", name) if writes else ("common", name))])
    return Script(text, hashlib.sha1(text.encode()).hexdigest(), in_order)  # noqa: S324 - Redis' choice


@cache
def _read(name: str) -> str:
    return (resources.files("postd.store.redis") / "lua" / f"{name}.lua").read_text("utf-8")
