"""nginx with `auth_request` to postd, beside nginx with a password file, and nginx without authentication."""

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.contenders import AUDIENCE, ISSUER, POSTD, REALM, nginx
from bench.logins import PASSWORD, USER, Fields, Login, basic_fields, measure_logged_in, write_issuer
from bench.servers import Server, running
from bench.workloads import Duration
from postd.auth.user_file import make_account, set_account

_GATE = replace(
    POSTD,
    name="gate",
    settings=f"""
users = "users"
realm = "{REALM}"
trusted_proxies = ["127.0.0.1"]
[[page]]
path = "/gate"
schemes = ["digest", "bearer", "basic", "session"]
forward = true
""",
)

_APPLICATION = """
    upstream application { server unix:application.sock; keepalive 64; }
    server { listen unix:application.sock; access_log off; location = /post { alias ./list.json; } }
    proxy_http_version 1.1;
    proxy_set_header Connection "";
"""

_ASKING = """
    upstream gate { server 127.0.0.1:GATE; keepalive 64; }
"""

_LOCATIONS = """
        location = /login { proxy_pass http://gate; }
        location = /gate {
            internal;
            proxy_pass http://gate;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
            proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Original-Method $request_method;
            proxy_set_header X-Original-URI $request_uri;
        }
"""


def proxy(name: str, guard: str = "", http: str = "", locations: str = "") -> Server:
    """Return nginx as a proxy of another server in the same nginx, which sends the list from a file."""
    server = nginx()
    settings = server.settings.replace("alias ./list.json;", f"{guard} proxy_pass http://application;")
    settings = settings.replace("    server {\n", f"{_APPLICATION}{http}    server {{\n", 1)
    place = settings.rindex("        location = /post")
    return replace(server, name=name, settings=settings[:place] + locations + settings[place:])


PLAIN = proxy("plain")
AUTH_BASIC = proxy("auth_basic", f'auth_basic "{REALM}"; auth_basic_user_file password;')
ASKING = proxy("asking", "auth_request /gate;", _ASKING, _LOCATIONS)


def measure_auth_basic(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure nginx's own check, with SHA-1, its cheapest hash."""
    hashed = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode("ascii")
    (folder / "password").write_text(f"{USER}:{{SHA}}{hashed}\n")
    return measure_logged_in(basic_fields, server, folder, duration)


def measure_asking(login: Login, server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure requests that nginx checks with a subrequest to postd each."""
    with _asking(server, folder, "") as asking:
        return measure_logged_in(login, asking, folder, duration)


def measure_asking_bearer(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure as `measure_asking`, with an access token."""
    documents = folder / "issuer"
    documents.mkdir()
    with running(ISSUER, documents) as address:
        issuer = f"http://127.0.0.1:{address.port}"
        fields = Fields([f"Authorization: Bearer {write_issuer(documents, issuer, {})}"])
        with _asking(server, folder, f'[[bearer]]\nissuer = "{issuer}"\naudience = "{AUDIENCE}"\n') as asking:
            return measure_logged_in(lambda _server, _port, _count: fields, asking, folder, duration)


@contextmanager
def _asking(server: Server, folder: Path, more: str) -> Iterator[Server]:
    """Start postd with further settings; yield the proxy that uses it, which is not started."""
    own = folder / "gate"
    own.mkdir()
    (own / "users").write_bytes(set_account(b"", make_account(USER, PASSWORD, REALM)))
    with running(replace(_GATE, settings=_GATE.settings + more), own) as address:
        yield replace(server, settings=server.settings.replace("GATE", str(address.port)))
