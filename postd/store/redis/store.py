"""The Redis store: all that a service must remember, for any number of nodes."""

from postd.store.redis.importing import RedisImports
from postd.store.redis.logins import RedisLogins
from postd.store.redis.posts import RedisPosts


class RedisStore(RedisPosts, RedisLogins, RedisImports):
    """A store in a Redis database (`postd.store.interface.Store`); what it is made from is told by `RedisEngine`."""
