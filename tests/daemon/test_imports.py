"""What a server imports: only what its settings ask for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ISSUER = '[[bearer]]\nissuer = "https://idp.example"\naudience = "https://posts.example"\n'
_PROGRAM = """
import json, os, socket, sys
from pathlib import Path
from postd.daemon.startup import startup_imports
from postd.settings.loading import load_settings

passed = socket.create_server(("127.0.0.1", 0))  # as systemd passes it
os.dup2(passed.fileno(), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
loaded = load_settings(sys.argv[1], {"listen": sys.argv[2:]}, Path())
with startup_imports(loaded.settings):
    from twisted.internet import reactor
    from postd.daemon.service import make_service

make_service(loaded, reactor=reactor)
print(json.dumps(sorted(sys.modules)))
"""

_PROVIDERS = {"postd.auth.sign_in", "postd.protect.sign_in", "postd.protocol.sealing", "postd.protocol.dpop_proof"}
_BINDING = {"postd.auth.bound_session", "postd.protect.bound_session", "postd.protect.sending_back"}
_ISSUERS = {"treq", "joserfc", "twisted.web.client", "postd.net.fetching", "postd.auth.jwks"}
_REDIS = {"txredisapi", "hiredis", "postd.store.redis"}
_TLS = {"OpenSSL", "cryptography", "service_identity", "twisted.internet.ssl", "twisted.protocols.tls", "postd.net.tls"}
_PASSKEYS = {"webauthn", "cbor2", "postd.auth.passkey", "postd.protect.passkey"}
_ADMIN = {"prometheus_client", "postd.web.admin"}
_ON_DEMAND = {"postd.web.openapi.docs", "postd.web.openapi.document", "postd.web.folder"}
_NEVER = {"h2", "hpack", "twisted.web._http2", "click", "httpx", "hypothesis", "postd.cli", "postd.client"}
_UNUSED = _ISSUERS | _PROVIDERS | _BINDING | _TLS | _REDIS | _PASSKEYS | _ADMIN | _ON_DEMAND | _NEVER


@pytest.fixture(scope="module", autouse=True)
def _listed_plugins(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have Twisted list its plugins: the first time in an environment, it imports all of them."""
    imported(tmp_path_factory.mktemp("plugins"), "", "tcp6:0:interface=\\:\\:1")


def imported(folder: Path, settings: str, *listen: str) -> set[str]:
    """Return the modules that are loaded once a service is made."""
    (folder / "postd.toml").write_text(settings)
    listening = listen or ("tcp:0:interface=127.0.0.1",)
    arguments = [sys.executable, "-c", _PROGRAM, "postd.toml", *listening]
    result = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


@pytest.mark.parametrize("settings", ["", 'users = "users"\napi = {write = ["basic", "digest", "session"]}\n'])
def test_server_imports_nothing_that_its_settings_do_not_need(tmp_path: Path, settings: str) -> None:
    assert not imported(tmp_path, settings) & _UNUSED


def test_listeners_without_tls_import_no_openssl(tmp_path: Path) -> None:
    kinds = ("tcp6:0:interface=\\:\\:1", "unix:http.sock", "haproxy:tcp:0:interface=127.0.0.1")
    assert not imported(tmp_path, "", *kinds, "systemd:domain=INET:index=0") & _TLS


def test_server_with_redis_imports_no_sqlite(tmp_path: Path) -> None:
    modules = imported(tmp_path, 'store = "redis://127.0.0.1:1/"\n')
    assert modules >= {"txredisapi", "postd.store.redis"}
    assert not modules & {"sqlite3", "_sqlite3", "postd.store.sqlite"}


def test_server_with_an_issuer_imports_what_it_needs(tmp_path: Path) -> None:
    assert imported(tmp_path, _ISSUER) >= {"treq", "joserfc"}


def test_server_with_passkeys_imports_what_it_needs(tmp_path: Path) -> None:
    assert imported(tmp_path, "accounts = {passkeys = true}\n") >= _PASSKEYS


def test_server_that_binds_sessions_imports_what_it_needs(tmp_path: Path) -> None:
    assert imported(tmp_path, 'session = {bind = "offer"}\n') >= _BINDING


def test_server_with_admin_listeners_imports_what_it_needs(tmp_path: Path) -> None:
    assert imported(tmp_path, 'admin = {listen = ["tcp:0:interface=127.0.0.1"]}\n') >= _ADMIN


_AFTERWARDS = """
import gc, sys
import pytest
from postd.daemon.startup import startup_imports
from postd.settings.schema import Settings

with startup_imports(Settings()):
    from twisted.internet import reactor
    import postd.daemon.service
    with pytest.raises(ImportError):
        import OpenSSL
assert gc.isenabled()
assert gc.get_freeze_count() > 0
from twisted.internet import endpoints
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
early = HostnameEndpoint(reactor, "posts.example", 443)
import postd.net.fetching
from twisted.internet.ssl import optionsForClientTLS

assert sys.modules["twisted.internet.endpoints"] is endpoints
for endpoint in (early, HostnameEndpoint(reactor, "posts.example", 443)):
    wrapClientTLS(optionsForClientTLS("posts.example"), endpoint)
"""


def test_tls_that_the_start_leaves_out_can_be_imported_afterwards() -> None:
    subprocess.run([sys.executable, "-c", _AFTERWARDS], check=True)
