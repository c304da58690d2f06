"""The Redis store: the whole state of a service, for any number of nodes."""

from postd.reactor import IReactor
from postd.store.redis.credentials import RedisCredentials
from postd.store.redis.database import RedisDatabase
from postd.store.redis.logins import RedisLogins
from postd.store.redis.posts import RedisPosts
from postd.store.redis.url import RedisAddress


class RedisStore(RedisPosts, RedisLogins, RedisCredentials):
    """A store in a Redis database (`postd.store.interface.Store`); the arguments are passed to `RedisDatabase`."""

    def __init__(self, address: RedisAddress, *, reactor: IReactor) -> None:
        super().__init__(RedisDatabase(address, reactor=reactor))
