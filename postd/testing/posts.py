"""A postd server for the tests of its clients (`PostServer`)."""

import tomllib

from postd.client import Auth, PostClient
from postd.client.arguments import check_reactor, check_text
from postd.daemon.server import ServerParts
from postd.errors import ConfigError, StoreRefusedError
from postd.reactor import AnyReactor, ServiceClock
from postd.settings.loading import refuse_unknown, settings_from
from postd.settings.schema import Settings
from postd.testing.serving import FactoryServer


class PostServer(FactoryServer):
    """A complete postd server in this process, with its posts in memory.

    All settings apply, except `listen`, `workers`, `admin`, `hosts` and the files of `[log]`.

    Example::

        async with PostServer(reactor, limits={"body": "4KiB"}) as server:
            print(await server.posts().add("Hello"))  # 1

    Args:
        reactor: the running reactor.
        toml: settings, as in a settings file; relative paths are relative to the working directory.
        on_port: as for `postd.testing.Server`.
        settings: further settings by name, such as `users="PATH"` or `api={"write": ["digest"]}`.

    Raises:
        ConfigError: a setting cannot be used; `start` raises it if the store cannot be used.
        tomllib.TOMLDecodeError: `toml` is not TOML.
    """

    def __init__(self, reactor: AnyReactor, toml: str = "", *, on_port: bool = False, **settings: object) -> None:
        reactor = check_reactor(reactor)
        check_text("toml", toml)
        values = {"store": "memory:", **tomllib.loads(toml), **settings}
        refuse_unknown(values, Settings, "settings")
        where = {key: f"settings: {key}" for key in Settings.__struct_encode_fields__}
        self._parts = ServerParts(settings_from(values, where), clock=ServiceClock(reactor), reactor=reactor)
        super().__init__(reactor, self._parts.site, on_port=on_port)

    async def start(self) -> None:
        try:
            self._parts.store.prepare()
            await self._parts.store.start()
        except StoreRefusedError as error:
            raise ConfigError("settings: store", error.why) from None
        self._parts.authentication.start()
        await super().start()

    async def stop(self) -> None:
        try:
            self._parts.events.close()
            await super().stop()
        finally:
            self._parts.authentication.stop()
            await self._parts.store.stop()
            self._parts.authentication.context.throttle.wake_all()

    def posts(self, auth: Auth | None = None) -> PostClient:
        """Return a client of the post API, with credentials; it is closed with the server."""
        return self._closed_with_server(PostClient(self._reactor, self.url, auth, agent=self._memory_agent))
