"""URLs of Redis stores (reference: Settings)."""

import re
from collections.abc import Mapping
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import replace

from postd.linux import check_socket_path

# The invalid part is not shown: it may be a piece of a password that has such a character.
_QUOTED = " (in a password, / is written %2F, ? is %3F, @ is %40, % is %25)"

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_DB = re.compile(r"[0-9]{1,5}")
_PORT_MAX = 65535

_PORTS = {"redis": 6379, "rediss": 6379, "redis+sentinel": 26379}
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "redis": frozenset({"password_file"}),
    "rediss": frozenset({"password_file", "ca_file"}),
    "redis+unix": frozenset({"password_file", "db"}),
    "redis+sentinel": frozenset({"password_file"}),
}


class Host(Struct, frozen=True):
    """A host's name or address, and a port."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class RedisAddress(Struct, frozen=True):
    """A Redis server, or the sentinels that name the current primary.

    Args:
        hosts: one server, or the sentinels if `primary` is given; empty with `path`.
        path: of a UNIX socket.
        primary: the name of the primary among the sentinels.
        tls: whether to use TLS.
        ca_file: the file of the only trusted CAs; empty for the CAs of the system.
        user: empty for the default user.
        password: sent to the server.
        password_file: has the password in its first line.
        db: the number of the database.
    """

    hosts: tuple[Host, ...] = ()
    path: str = ""
    primary: str = ""
    tls: bool = False
    ca_file: str = ""
    user: str = ""
    password: str = ""
    password_file: str = ""
    db: int = 0

    @property
    def description(self) -> str:
        """The URL without secrets."""
        hosts = ",".join(map(str, self.hosts))
        if self.path:
            kind, place = "redis+unix", self.path + (f"?db={self.db}" if self.db else "")
        elif self.primary:
            kind, place = "redis+sentinel", f"{hosts}/{self.primary}/{self.db}"
        else:
            kind, place = "rediss" if self.tls else "redis", f"{hosts}/{self.db}"
        credentials = self.user + (":***" if self.password or self.password_file else "")
        return f"{kind}://{credentials}{'@' if credentials else ''}{place}"


def decode_redis_url(url: str) -> RedisAddress:
    """Decode the URL of a Redis store.

    Raises:
        ValueError: the URL is invalid. The message shows no password.
    """
    kind, separator, rest = url.partition("://")
    if kind not in _PARAMETERS or not separator:
        raise ValueError("is not the URL of a Redis store")
    place, _, query = rest.partition("?")
    authority, slash, path = place.partition("/")  # a path may have an @ in it, too
    credentials, _, host = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    parameters = _decode_parameters(kind, query)
    if password and "password_file" in parameters:
        raise ValueError("has a password and a password_file")
    address = RedisAddress(
        tls=kind == "rediss",
        ca_file=parameters.get("ca_file", ""),
        user=unquote(user),
        password=unquote(password),
        password_file=parameters.get("password_file", ""),
    )
    return _with_place(address, kind, host + slash + path, parameters)


def _with_place(address: RedisAddress, kind: str, place: str, parameters: Mapping[str, str]) -> RedisAddress:
    if kind == "redis+unix":
        path = unquote(place)
        if not path or "\0" in path:
            raise ValueError("has no socket path")
        try:
            check_socket_path(path)
        except ValueError as error:
            raise ValueError(f"has {error}") from None
        return replace(address, path=path, db=_decode_db(parameters.get("db", "0")))
    hosts_text, _, path = place.partition("/")
    hosts = tuple(_decode_host(host, _PORTS[kind]) for host in hosts_text.split(","))
    if kind == "redis+sentinel":
        primary, _, path = path.partition("/")
        if not primary:
            raise ValueError("has no name of the primary after the sentinels: …/NAME")
        address = replace(address, primary=unquote(primary))
    elif len(hosts) > 1:
        raise ValueError("has more than one host; several are for redis+sentinel")
    return replace(address, hosts=hosts, db=_decode_db(path or "0"))


def _decode_parameters(kind: str, query: str) -> dict[str, str]:
    allowed = _PARAMETERS[kind]
    parameters: dict[str, str] = {}
    for parameter in query.split("&") if query else ():
        name, _, value = parameter.partition("=")
        if name not in allowed or name in parameters or not value:
            raise ValueError(f"allows after the question mark, once each: {', '.join(sorted(allowed))}{_QUOTED}")
        parameters[name] = unquote(value)
    return parameters


def _decode_host(text: str, port: int) -> Host:
    match = _HOST.fullmatch(text)
    if match is None or int(match[3] or port) not in range(1, _PORT_MAX + 1):
        raise ValueError(f"has an invalid HOST or HOST:PORT{_QUOTED}")
    return Host(match[1] or match[2], int(match[3] or port))


def _decode_db(text: str) -> int:
    if not _DB.fullmatch(text):
        raise ValueError(f"has an invalid database number{_QUOTED}")
    return int(text)
