"""The private names of Twisted behave as `postd.twisted_private` relies on, and no other module uses any."""

import ast
import errno
import importlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.bindings import _rust
from OpenSSL import SSL
from OpenSSL.crypto import X509StoreContext, X509StoreContextError
from twisted.cred.portal import Portal
from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Factory
from twisted.internet.ssl import Certificate, CertificateOptions, platformTrust, trustRootFromCertificates
from twisted.internet.tcp import Port
from twisted.internet.testing import MemoryReactor
from twisted.internet.unix import Port as UnixPort
from twisted.logger import LogLevel
from twisted.python.components import Componentized
from twisted.python.failure import Failure
from twisted.web.http_headers import Headers
from twisted.web.resource import IResource
from twisted.web.server import Request
from twisted.web.static import Data
from twisted.web.test.requesthelper import DummyRequest
from zope.interface import Interface

from postd.front.request import HttpRequest
from postd.protect.guard import Realm
from postd.protocol.http1.head import Head
from postd.twisted_private import (
    PROXY_V2_SIGNATURE,
    AdapterCacheOnDemand,
    AuthSessionWrapper,
    DecodedHeaders,
    NoPushProducer,
    buffer_only_write,
    buffer_pieces,
    buffered_bytes,
    canonical_header_name,
    close_without_shutdown,
    join_trust_roots,
    largest_viewed,
    log_file_descriptor,
    log_file_of,
    make_port,
    make_twistd_log_observer,
    openssl_behind,
    parse_proxy,
    read_one_record,
    release_request,
    send_only_write,
    send_pieces,
    systemd_sockets,
    take_adopted_socket,
    use_socket,
)
from tests.cases import each
from tests.helpers import make_certificate

GONE = Failure(ConnectionDone())
PACKAGE = Path(__file__).parent.parent / "postd"


class TcpPort(Port):
    """A class of ours."""


class UnixSocketPort(UnixPort):
    """A class of ours."""


@pytest.fixture
def servers(socket_folder: Path) -> Iterator[dict[int, socket.socket]]:
    """A listening socket of each family."""
    tcp, unix = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    with tcp, unix:
        unix.bind(str(socket_folder / "a.sock"))
        unix.listen()
        yield {socket.AF_INET: tcp, socket.AF_UNIX: unix}


@pytest.mark.parametrize(("kind", "family"), [(TcpPort, socket.AF_INET), (UnixSocketPort, socket.AF_UNIX)])
def test_port_is_made_of_its_class_on_a_copy_of_the_descriptor(
    servers: dict[int, socket.socket], kind: type[Port], family: int
) -> None:
    server = servers[family]
    port = make_port(kind, MemoryReactor(), server.fileno(), family, Factory())
    assert type(port) is kind
    adopted = take_adopted_socket(port)
    with adopted:
        assert adopted.getsockname() == server.getsockname()
        assert adopted.fileno() != server.fileno()
        with pytest.raises(AssertionError):
            take_adopted_socket(port)


@each("spared", [True, False])
def test_shared_socket_listens_on_only_if_the_port_does_not_shut_it_down(*, spared: bool) -> None:
    port = Port(0, Factory(), interface="127.0.0.1", reactor=MemoryReactor())
    port.startListening()
    if spared:
        close_without_shutdown(port)
    with port.socket.dup() as shared:
        port.connectionLost(GONE)
        assert bool(shared.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is spared


def test_systemd_sockets_are_those_of_the_environment_that_twisted_has_deleted() -> None:
    assert systemd_sockets().inheritedDescriptors() == []
    code = """
        import os
        os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "http:admin"}
        from postd.twisted_private import systemd_sockets
        print(systemd_sockets().inheritedNamedDescriptors(), "LISTEN_FDS" in os.environ)
    """
    answer = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True)
    assert answer.stdout == "{'http': 3, 'admin': 4} False\n"


def test_endpoints_without_openssl_are_completed_in_place() -> None:
    code = """
        import sys
        sys.modules["OpenSSL"] = None
        from twisted.internet import endpoints, reactor
        from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
        del sys.modules["OpenSSL"]
        from postd.twisted_private import complete_endpoints, systemd_sockets
        sockets = systemd_sockets()
        complete_endpoints()
        from twisted.internet.ssl import optionsForClientTLS
        wrapClientTLS(optionsForClientTLS("posts.example"), HostnameEndpoint(reactor, "posts.example", 443))
        print(sys.modules["twisted.internet.endpoints"] is endpoints, systemd_sockets() is sockets)
    """
    answer = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True)
    assert answer.stdout == "True True\n"


def test_proxy_header_of_version_1_gives_both_addresses() -> None:
    ends = IPv4Address("TCP", "192.0.2.7", 5000), IPv4Address("TCP", "192.0.2.1", 80)
    assert parse_proxy(b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 80") == ends
    ends6 = IPv6Address("TCP", "2001:db8::7", 5000), IPv6Address("TCP", "2001:db8::1", 80)
    assert parse_proxy(b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 80") == ends6


def test_proxy_header_of_version_2_gives_both_addresses_or_none() -> None:
    assert PROXY_V2_SIGNATURE == b"\r\n\r\n\0\r\nQUIT\n"
    packed = bytes([192, 0, 2, 7, 192, 0, 2, 1]) + b"\x13\x88\0\x50"
    ends = IPv4Address("TCP", "192.0.2.7", 5000), IPv4Address("TCP", "192.0.2.1", 80)
    assert parse_proxy(PROXY_V2_SIGNATURE + b"\x21\x11\0\x0c" + packed) == ends
    assert parse_proxy(PROXY_V2_SIGNATURE + b"\x20\0\0\0") == (None, None)


@each("line", [b"PROXY", b"PROXY TCP5 a b 1 2", b"PROXY TCP4 192.0.2.7", b"PROXY TCP4 a b x y"])
def test_malformed_proxy_header_of_version_1_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_proxy(line)


@each("rest", [b"\x2f\x11\0\x0c" + b"\0" * 12, b"\x21\xf1\0\x0c" + b"\0" * 12, b"\x21\x11\0\x0c"])
def test_malformed_proxy_header_of_version_2_is_a_value_error(rest: bytes) -> None:
    with pytest.raises(ValueError):
        parse_proxy(PROXY_V2_SIGNATURE + rest)


@pytest.mark.parametrize("own_first", [True, False])
def test_trust_roots_are_trusted_together(tmp_path: Path, certificate: tuple[Path, Path], *, own_first: bool) -> None:
    own, unknown = (Certificate.loadPEM(file.read_bytes()) for file in (certificate[1], make_certificate(tmp_path)[1]))
    roots = [platformTrust(), trustRootFromCertificates([own])]
    context = CertificateOptions(trustRoot=join_trust_roots(*roots[:: -1 if own_first else 1])).getContext()
    store = context.get_cert_store()
    assert store is not None
    X509StoreContext(store, own.original).verify_certificate()
    with pytest.raises(X509StoreContextError):
        X509StoreContext(store, unknown.original).verify_certificate()


def test_openssl_of_a_context_is_found() -> None:
    file, address = openssl_behind(SSL.Context(SSL.TLS_METHOD))
    assert file.is_file()
    assert address


def test_read_of_a_connection_does_not_go_on_without_data() -> None:
    connection = SSL.Connection(SSL.Context(SSL.TLS_METHOD), None)
    read_one_record(connection)
    library = _rust._openssl.lib  # noqa: SLF001 - pyOpenSSL returns no mode
    assert not library.SSL_set_mode(connection._ssl, 0) & library.SSL_MODE_AUTO_RETRY  # noqa: SLF001 - as above


def test_connection_in_memory_gets_a_socket() -> None:
    connection = SSL.Connection(SSL.Context(SSL.TLS_METHOD), None)
    connection.set_connect_state()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        use_socket(connection, ours.fileno())
        ours.settimeout(0)
        with pytest.raises(SSL.WantReadError):
            connection.do_handshake()
        assert theirs.recv(1) == b"\x16"  # a handshake record: ClientHello


class TwistdLogTests:
    @pytest.fixture(autouse=True)
    def signal_handler(self) -> Iterator[None]:
        before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        yield
        signal.signal(signal.SIGUSR1, before)

    def test_observer_writes_to_the_file_of_the_option(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        observer = make_twistd_log_observer({"logfile": str(path), "nodaemon": False})
        observer.formatEvent = lambda event: f"{event['text']}\n"
        observer({"text": "one", "log_level": LogLevel.info})
        file = log_file_of(observer)
        assert file is not None
        assert file.path == str(path)
        os.write(log_file_descriptor(file), b"two\n")
        observer({"text": "three", "log_level": LogLevel.info})
        file.close()
        assert path.read_text() == "one\ntwo\nthree\n"
        assert callable(signal.getsignal(signal.SIGUSR1))

    def test_observer_without_a_daemon_writes_to_standard_output(self) -> None:
        for options in ({"logfile": "-", "nodaemon": True}, {"logfile": None, "nodaemon": True}):
            assert log_file_of(make_twistd_log_observer(options)) is None

    def test_standard_output_of_a_daemon_ends_the_process(self) -> None:
        with pytest.raises(SystemExit, match="Daemons cannot log to stdout"):
            make_twistd_log_observer({"logfile": "-", "nodaemon": False})


def test_output_is_buffered_until_the_kernel_has_taken_all_of_it() -> None:
    class HalfWriter(FileDescriptor):
        connected = True

        def writeSomeData(self, data: bytes) -> int:
            return (len(data) + 1) // 2

    transport = HalfWriter(MemoryReactor())
    assert not buffered_bytes(transport)
    transport.write(b"text")
    for buffered in (True, True, False):
        transport.doWrite()
        assert (buffered_bytes(transport) > 0) is buffered


@each("accepted", [0, 1, 3, 5, 11])
@each("pieces", [[b"one", b"more", b"last"], [b"one", b"", b"morelast"]])
def test_pieces_are_sent_without_joining_them(pieces: list[bytes], accepted: int) -> None:
    """`accepted` is how many bytes the kernel accepts at a time; 0: all, but none at first."""
    sent, calls = list[bytes](), list[str]()

    def sendmsg(parts: Sequence[bytes | memoryview]) -> int:
        calls.append("sendmsg")
        if accepted == 0 and len(calls) == 1:
            raise BlockingIOError
        sent.append(b"".join(parts)[: accepted or None])
        return len(sent[-1])

    class Transport(FileDescriptor):
        connected = True
        socket = SimpleNamespace(sendmsg=sendmsg)

        def writeSomeData(self, data: bytes) -> int:
            calls.append("write")
            sent.append(bytes(data)[: accepted or None])
            return len(sent[-1])

    transport = Transport(MemoryReactor())
    buffer_pieces(transport, [memoryview(pieces[0]), *pieces[1:]])
    assert send_pieces(transport) is (accepted == 11)
    assert transport.dataBuffer == b""  # they are not copied
    assert buffered_bytes(transport) == 11 - accepted
    transport.write(b"end")
    for _ in range(20):
        if send_pieces(transport):
            transport.doWrite()
    assert b"".join(sent) == b"onemorelastend"
    assert not buffered_bytes(transport)


def test_largest_object_behind_buffered_views_is_found() -> None:
    class Transport(FileDescriptor):
        connected = True

    transport = Transport(MemoryReactor())
    buffer_pieces(transport, [b"a longer piece without a view"])
    assert largest_viewed(transport) is None
    bodies = [bytes(10), bytes(20)]
    buffer_pieces(transport, [memoryview(bodies[1])[15:], memoryview(bodies[0])])
    assert largest_viewed(transport) is bodies[1]


def test_pieces_are_not_buffered_for_a_lost_connection() -> None:
    transport = FileDescriptor(MemoryReactor())
    buffer_pieces(transport, [b"one", b"more"])
    assert not buffered_bytes(transport)


def test_pieces_that_the_kernel_refuses_are_left_to_the_stock_way() -> None:
    def sendmsg(_: object) -> int:
        raise OSError(errno.EMSGSIZE, "")

    class Transport(FileDescriptor):
        connected = True
        socket = SimpleNamespace(sendmsg=sendmsg)

    transport = Transport(MemoryReactor())
    transport.writeSequence([b"one", b"more"])
    assert send_pieces(transport)
    assert buffered_bytes(transport)


class SocketTransport(FileDescriptor):
    """A transport with a socket that accepts `accepts` bytes at a time, and refuses the next send if they are less."""

    connected = True

    def __init__(self, accepts: int) -> None:
        super().__init__(MemoryReactor())
        self.sent = b""
        self.stock_sends = 0
        self.is_full = False
        self.accepts = accepts
        self.socket = SimpleNamespace(send=self.send)

    def send(self, data: bytes) -> int:
        if self.is_full:
            raise BlockingIOError
        accepted = data[: self.accepts]
        self.is_full = len(accepted) < len(data)
        self.sent += accepted
        return len(accepted)

    def writeSomeData(self, data: bytes) -> int:
        self.stock_sends += 1
        try:
            return self.send(data)
        except BlockingIOError:
            return 0


@each("accepts", [20, 3, 0])
def test_only_write_is_sent_without_the_stock_way(accepts: int) -> None:
    transport = SocketTransport(accepts)
    buffer_only_write(transport, b"response")
    assert buffered_bytes(transport) == 8
    assert send_only_write(transport) is (accepts == 20)
    assert buffered_bytes(transport) == 8 - len(transport.sent)
    if transport.is_full:
        assert not send_only_write(transport)
        transport.is_full = False
        transport.accepts = 20
        transport.write(b" more")
        transport.doWrite()
    assert transport.sent == b"response" + (b"" if accepts == 20 else b" more")
    assert not buffered_bytes(transport)


def prepare_second_write(transport: Any) -> None:
    transport.write(b" more")


def prepare_end(transport: Any) -> None:
    transport.loseConnection()


def prepare_end_of_output(transport: Any) -> None:
    transport.loseWriteConnection()


def prepare_pull_producer(transport: Any) -> None:
    transport.registerProducer(SimpleNamespace(resumeProducing=lambda: None), False)  # noqa: FBT003 - Twisted's signature


@each(
    "prepare", [prepare_second_write, prepare_end, prepare_end_of_output, prepare_pull_producer, FileDescriptor.doWrite]
)
def test_output_that_the_stock_way_has_more_to_do_for_is_left_to_it(prepare: Callable[[Any], object]) -> None:
    transport = SocketTransport(3)
    buffer_only_write(transport, b"response")
    prepare(transport)
    transport.is_full = False
    transport.accepts = 20
    assert not send_only_write(transport)
    transport.doWrite()
    assert transport.sent == b"response" + (b" more" if prepare is prepare_second_write else b"")


def test_write_after_the_end_of_output_is_dropped() -> None:
    transport = SocketTransport(20)
    transport.loseWriteConnection()
    transport.doWrite()
    buffer_only_write(transport, b"response")
    assert not buffered_bytes(transport)


def test_no_push_producer_stands_in_for_a_transport_that_cannot_pause() -> None:
    producer: Any = IPushProducer(object(), NoPushProducer())
    producer.registerProducer(None, True)  # noqa: FBT003 - Twisted's signature
    producer.pauseProducing()
    producer.resumeProducing()


@each("name", [b"host", b"x-request-ID", b"ETAG", b"www-authenticate", b"content-md5", b"te"])
def test_canonical_header_name_is_the_key_of_headers(name: bytes) -> None:
    assert [canonical_header_name(name)] == [key for key, _ in Headers({name: [b"x"]}).getAllRawHeaders()]


@each("name", [b"a b", b"a\0", b"", b"a:", b"\xe4"])
def test_canonical_header_name_of_no_token_is_a_value_error(name: bytes) -> None:
    with pytest.raises(ValueError):
        canonical_header_name(name)


def test_decoded_headers_are_a_view_of_the_fields() -> None:
    fields = {b"Host": [b"x"], b"ETag": [b"1", b"2"]}
    headers = DecodedHeaders(fields)
    assert list(headers.getAllRawHeaders()) == list(fields.items())
    assert headers.getRawHeaders(b"etag") == [b"1", b"2"]
    headers.removeHeader(b"etag")
    headers.setRawHeaders(b"range", [b"bytes=0-1"])
    assert fields == {b"Host": [b"x"], b"Range": [b"bytes=0-1"]}
    assert not headers.hasHeader(b"ETag")
    assert headers == headers.copy()


class StubChannel:
    """A request's connection, as far as Twisted's `Request` uses it."""

    site = transport = None
    addresses = (None, None)

    def __init__(self) -> None:
        self.done: list[Request] = []

    def requestDone(self, request: Request) -> None:
        self.done.append(request)

    def getPeer(self) -> None:
        """Called by Twisted's constructor."""

    def getHost(self) -> None:
        """Called by Twisted's constructor."""


def make_stock_request(channel: StubChannel) -> Any:
    request = Request(channel, parsePOSTFormSubmission=False)
    request.content = BytesIO()
    return request


def test_released_request_is_done_and_closed() -> None:
    channel = StubChannel()
    request = make_stock_request(channel)
    content = request.content
    ended: list[object] = []
    request.notifyFinish().addBoth(ended.append)
    release_request(request)
    assert channel.done == [request]
    assert ended == [None]
    assert content.closed
    assert request.notifications == []


def test_request_of_a_lost_connection_has_no_channel() -> None:
    request = make_stock_request(StubChannel())
    request.connectionLost(GONE)
    assert request.channel is None


def test_request_has_all_attributes_that_the_constructors_of_twisted_set() -> None:
    channel: Any = StubChannel()
    request = HttpRequest(channel, Head(b"GET", b"/", b"/", 1, {b"X-Request-Id": [b"1"]}), b"", 0.0)
    unneeded = {"_parsePOSTFormSubmission"}  # for `requestReceived`, which is not called
    assert {name for name in vars(make_stock_request(channel)) if not hasattr(request, name)} == unneeded


def test_adapter_cache_is_made_for_each_object_when_it_is_used() -> None:
    class Unconstructed(AdapterCacheOnDemand, Componentized):  # type: ignore[override]
        def __init__(self) -> None:
            """Leave Twisted's constructor out, as `HttpRequest` does."""

    class INote(Interface):
        """A component."""

    one, other = Unconstructed(), Unconstructed()
    assert not vars(one)
    one.setComponent(INote, "noted")
    assert (one.getComponent(INote), other.getComponent(INote)) == ("noted", None)


def test_stock_wrapper_passes_requests_on_to_the_resource_of_the_hook() -> None:
    class Wrapper(AuthSessionWrapper):
        def resource_for(self, request: Any) -> IResource:
            return shown

    shown = Data(b"shown", "text/plain")
    wrapper, request = Wrapper(Portal(Realm()), []), DummyRequest([b"below"])
    assert wrapper.render(request) == b"shown"
    request.prepath = [request.postpath.pop(0)]
    assert wrapper.getChildWithDefault(b"below", request) is shown
    assert request.postpath == [b"below"]


# No other module uses a private name


MODULES = sorted(file for file in PACKAGE.rglob("*.py") if file.name != "twisted_private.py")
DOCUMENTED = {"os._exit"}
"""Names of the standard library that begin so and are public."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_names_in(tree: ast.AST) -> set[str]:
    """Return the private names that code gives to objects and classes of its own: definitions, and `self._name`."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                names.add(name)
            case _:
                pass
    return {name for name in names if is_private(name)}


def foreign_private_names(file: Path) -> list[str]:
    """Return the private names that a module imports or reads and does not define."""
    tree = ast.parse(file.read_text())
    own, found = private_names_in(tree), list[str]()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                parts = [*module.split("."), *(alias.name for alias in names)]
                found += [f"{module}: {part}" for part in parts if is_private(part)]
            case ast.Import(names=names):
                found += [alias.name for alias in names if any(map(is_private, alias.name.split(".")))]
            case ast.Attribute(value=of, attr=name) if is_private(name) and name not in own:
                found.append(f"{ast.unparse(of)}.{name}")
            case _:
                pass
    return found


def test_modules_use_no_private_name_of_another_package() -> None:
    found = [(str(file), name) for file in MODULES for name in foreign_private_names(file)]
    assert [(file, name) for file, name in found if name not in DOCUMENTED] == []


def foreign_classes(cls: type) -> list[type]:
    """Return the classes of other packages, but for the standard library, that a class derives from."""
    own = ("postd", "builtins", *sys.stdlib_module_names)
    return [base for base in cls.__mro__ if base.__module__.split(".")[0] not in own]


@cache
def classes_in(file: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes of a module by their qualified names."""
    found: dict[str, ast.ClassDef] = {}

    def visit(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = node
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If | ast.Try):
                visit([*node.body, *node.orelse], prefix)

    visit(ast.parse(Path(file).read_text()).body, "")
    return found


@cache
def private_names_at(file: str, name: str) -> set[str]:
    node = classes_in(file).get(name)
    return private_names_in(node) if node else set()


def private_names_of(cls: type) -> set[str]:
    file = getattr(sys.modules[cls.__module__], "__file__", None) or ""
    return private_names_at(file, cls.__qualname__) if file.endswith(".py") else set()


def test_classes_have_no_private_name_of_their_foreign_bases() -> None:
    shared = []
    for file in MODULES:
        parts = [part for part in file.relative_to(PACKAGE.parent).with_suffix("").parts if part != "__init__"]
        module = importlib.import_module(".".join(parts))
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                own = private_names_of(cls)
                shared += [(cls, base, both) for base in foreign_classes(cls) if (both := own & private_names_of(base))]
    assert shared == []
