"""The Redis store: all that a service must remember, for any number of nodes."""

from postd.reactor import IReactor
from postd.store.assembled import AssembledStore
from postd.store.redis.database import RedisDatabase
from postd.store.redis.logins import RedisLogins
from postd.store.redis.posts import RedisPosts
from postd.store.redis.url import RedisAddress


class RedisStore(AssembledStore[RedisDatabase]):
    """A store in a Redis database (`postd.store.interface.Store`); the arguments are those of `RedisDatabase`."""

    def __init__(self, address: RedisAddress, *, reactor: IReactor) -> None:
        database = RedisDatabase(address, reactor=reactor)
        super().__init__(database, RedisPosts(database, reactor=reactor), RedisLogins(database))
