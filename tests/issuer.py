"""A provider of access tokens: it behaves as real ones do and, where a test sets it so, as none of them does.

`Key` and `Mint` make tokens, well-formed or not, without any network; `Issuer` is a `Mint` that serves what goes with
them. Signatures are cryptography's alone: joserfc is what postd reads tokens with, it is not to agree with itself.
"""

import base64
import gzip
import hashlib
import hmac
import json
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Self, cast
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct, field, structs

from tests.helpers import PATIENCE_S, wait_until
from tests.redis_server import hold_port

ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "absent"})()
"""A header member or a claim with this value is left out."""

EMPTY: tuple[Any, ...] = (None, "", [], {})
"""What serializers of whole objects write for a member that is absent."""

WAIT_MAX_S = PATIENCE_S

_CURVES: Mapping[str, Any] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}
_HASHES: Mapping[str, Any] = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
_CURVE_NAMES = {"secp256r1": "P-256", "secp384r1": "P-384"}


def b64(data: bytes) -> str:
    """Encode as a part of a token is (RFC 7515 §2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Key(Struct, frozen=True):
    """A key.

    Args:
        alg: how it signs.
        kid: its name.
        private: one of cryptography's, or the bytes of a shared secret.
        changes: members of the key set that differ from those of a usual key.
    """

    alg: str
    kid: str
    private: Any
    changes: Mapping[str, Any] = {}

    @classmethod
    def make(cls, alg: str, kid: str = "", *, bits: int = 2048, changes: Mapping[str, Any] | None = None) -> Self:
        """Make a key for an algorithm; its `kid` is the algorithm's name unless it is given."""
        kind = alg[:2]
        private: Any = secrets.token_bytes(32)
        if kind in {"RS", "PS"}:
            private = rsa.generate_private_key(65537, bits)
        elif kind == "ES":
            private = ec.generate_private_key(_CURVES[alg])
        elif kind == "Ed":
            private = ed25519.Ed25519PrivateKey.generate()
        return cls(alg, kid or alg, private, changes or {})

    def sign(self, data: bytes, alg: str | None = None) -> bytes:
        """Sign as an algorithm has it (RFC 7518 §3), the key's own unless another is given."""
        alg = alg or self.alg
        hashed: Any = _HASHES.get(alg[2:])
        if alg.startswith("HS"):
            return hmac.digest(self.private, data, hashed.name)
        signature: bytes
        match alg[:2]:
            case "RS":
                signature = self.private.sign(data, padding.PKCS1v15(), hashed)
            case "PS":
                signature = self.private.sign(data, padding.PSS(padding.MGF1(hashed), hashed.digest_size), hashed)
            case "ES":
                size = (self.private.key_size + 7) // 8
                pair = decode_dss_signature(self.sign_der(data, alg))
                signature = b"".join(number.to_bytes(size, "big") for number in pair)
            case _:
                signature = self.private.sign(data)
        return signature

    def sign_der(self, data: bytes, alg: str | None = None) -> bytes:
        """Sign with an elliptic curve in the form that certificates use, which is not that of tokens."""
        signature: bytes = self.private.sign(data, ec.ECDSA(_HASHES[(alg or self.alg)[2:]]))
        return signature

    def jwk(self, **changes: Any) -> dict[str, Any]:
        """Return what a key set says of it (RFC 7517 §4); of a shared secret, that is the secret."""
        return _without_absent({**self._names(), **self._numbers(), **self.changes, **changes})

    def _names(self) -> dict[str, str]:
        return {"kid": self.kid, "alg": self.alg, "use": "sig"}

    def _numbers(self) -> dict[str, str]:
        if isinstance(self.private, bytes):
            return {"kty": "oct", "k": b64(self.private)}
        public = self.private.public_key()
        if isinstance(public, rsa.RSAPublicKey):
            numbers = public.public_numbers()
            return {"kty": "RSA", "n": b64(_bytes_of(numbers.n)), "e": b64(_bytes_of(numbers.e))}
        if isinstance(public, ec.EllipticCurvePublicKey):
            size, point = (public.key_size + 7) // 8, public.public_numbers()
            x, y = (b64(number.to_bytes(size, "big")) for number in (point.x, point.y))
            return {"kty": "EC", "crv": _CURVE_NAMES[public.curve.name], "x": x, "y": y}
        return {"kty": "OKP", "crv": "Ed25519", "x": b64(public.public_bytes_raw())}

    def public(self, encoding: Encoding = Encoding.PEM) -> bytes:
        encoded: bytes = self.private.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
        return encoded


def _bytes_of(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _without_absent(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not ABSENT}


def make_token(header: Any, claims: Any, key: Key, *, alg: str | None = None) -> str:
    """Make a signed token. Bytes are taken as they are, anything else as what becomes JSON (NaN and the like, too).

    Args:
        header: the first part.
        claims: the second part.
        key: signs.
        alg: how it signs, whatever the header says; else by the key's own algorithm.
    """
    signed = ".".join(b64(part if isinstance(part, bytes) else json.dumps(part).encode()) for part in (header, claims))
    return f"{signed}.{b64(key.sign(signed.encode(), alg))}"


class Mint:
    """Makes tokens of an issuer.

    Args:
        issuer: its identifier.
        audience: whom its tokens are for.
        keys: the first one signs where no other is named.
        now: seconds since the epoch.
    """

    LIFETIME_S = 600

    def __init__(self, issuer: str, audience: str, *keys: Key, now: Callable[[], float] = time.time) -> None:
        self.issuer = issuer
        self.audience = audience
        self.keys = list(keys)
        self.now = now

    def key(self, kid: str) -> Key:
        (found,) = [key for key in self.keys if key.kid == kid]
        return found

    def header(self, key: Key | None = None, **changes: Any) -> dict[str, Any]:
        key = key or self.keys[0]
        return _without_absent({"typ": "at+jwt", "alg": key.alg, "kid": key.kid, **changes})

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return the claims of a good token, but for changes."""
        now = int(self.now())
        whole = {"iss": self.issuer, "aud": self.audience, "sub": "alice", "iat": now, "exp": now + self.LIFETIME_S}
        return _without_absent({**whole, **changes})

    def token(self, key: Key | None = None, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """Make a token that is good, but for changes of its header and its claims."""
        key = key or self.keys[0]
        return make_token(self.header(key, **(header or {})), self.claims(**claims), key)

    def key_set(self) -> dict[str, Any]:
        return {"keys": [key.jwk() for key in self.keys]}


class Prover:
    """A client with a key that its tokens are bound to (RFC 9449).

    Args:
        key: signs its proofs.
        now: seconds since the epoch.
    """

    def __init__(self, key: Key, *, now: Callable[[], float] = time.time) -> None:
        self.key = key
        self.now = now

    @property
    def public(self) -> dict[str, Any]:
        """The key's own members (RFC 7638 §3.2)."""
        return self.key.jwk(kid=ABSENT, alg=ABSENT, use=ABSENT)

    @property
    def confirmation(self) -> dict[str, str]:
        """The claim `cnf` of its tokens."""
        text = json.dumps(self.public, sort_keys=True, separators=(",", ":"))
        return {"jkt": b64(hashlib.sha256(text.encode()).digest())}

    def header(self, **changes: Any) -> dict[str, Any]:
        return _without_absent({"typ": "dpop+jwt", "alg": self.key.alg, "jwk": self.public, **changes})

    def claims(self, method: str, url: str, token: str, **changes: Any) -> dict[str, Any]:
        claims = {
            "jti": secrets.token_hex(),
            "htm": method,
            "htu": url,
            "iat": int(self.now()),
            "ath": b64(hashlib.sha256(token.encode()).digest()),
        }
        return _without_absent({**claims, **changes})

    def prove(self, method: str, url: str, token: str, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """Make a proof that is good, but for changes of its header and its claims."""
        return make_token(self.header(**(header or {})), self.claims(method, url, token, **claims), self.key)


class Asked(Struct, frozen=True):
    """A request that an issuer has had; the names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


class Reply(Struct):
    """What is answered at a path, instead of what belongs there.

    Args:
        body: its bytes; None for what belongs there.
        status: of HTTP.
        headers: further headers.
        before: nothing goes out until this is set, or the issuer stopped.
        within: half of the body goes out, the rest when this is set.
        drop: the connection ends before anything goes out, or where half of the body has.
        half: which of the two.
    """

    body: bytes | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    before: threading.Event | None = None
    within: threading.Event | None = None
    drop: bool = False
    half: bool = False

    @classmethod
    def redirect(cls, url: str) -> Self:
        return cls(b"", 302, {"Location": url})

    @classmethod
    def bomb(cls, unpacked: bytes) -> Self:
        """Answer with little that becomes much: the bytes and 16 MiB of white space behind them, as gzip."""
        return cls(gzip.compress(unpacked + b" " * (16 * 1024**2), 1), headers={"Content-Encoding": "gzip"})


DISCOVERY = "/.well-known/openid-configuration"
RFC_8414 = "/.well-known/oauth-authorization-server"
JWKS = "/jwks"
INTROSPECTION = "/introspect"


class Issuer(Mint):
    """A `Mint` with a server at a free port of this machine, up for the length of a `with` block.

    It serves its metadata by OpenID Connect Discovery, its key set at `JWKS`, and tells of tokens at `INTROSPECTION`.
    `replies` has what is answered otherwise, by path (`Reply`), `documents` what metadata say otherwise, and `active`
    what introspection says of a token that it knows. All may be changed at any time.

    Args:
        audience: whom its tokens are for.
        keys: those of its key set.
        path: that of its identifier.
        certificate: the files of a key and of a certificate, for TLS.
        host: one of this machine's addresses.
    """

    def __init__(
        self,
        audience: str,
        *keys: Key,
        path: str = "",
        certificate: tuple[Path, Path] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._certificate = certificate
        self._held = hold_port(host)  # also while the issuer is down
        self._address: tuple[str, int] = self._held.getsockname()
        self.origin = f"{'https' if certificate else 'http'}://{host}:{self._address[1]}"
        super().__init__(f"{self.origin}{path}", audience, *keys)
        self.discovery_path = path + DISCOVERY
        self.rfc_8414_path = RFC_8414 + path
        self.replies: dict[str, Reply] = {self.rfc_8414_path: Reply(b"", 404)}
        self.documents: dict[str, Any] = {}
        self.active: dict[str, dict[str, Any]] = {}
        self.asked: list[Asked] = []
        self.stopped = True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._held.close()

    def start(self) -> None:
        """Come up, or come up again, at the same port."""
        self._server = _Server(self._address, self)
        if self._certificate:
            key, certificate = self._certificate
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            # The handshake is left to the thread of the connection: another one may wait for it.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.stopped = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        """Go down, with all that is held or on its way; nothing happens if it is down already."""
        if not self.stopped:
            self.stopped = True
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def count(self, path: str) -> int:
        """Return how many requests there were for a path."""
        return sum(asked.path == path for asked in self.asked)

    def wait_for_request(self, path: str, *, after: int = 0) -> None:
        """Wait until there were more than so many requests for a path."""
        wait_until(lambda: self.count(path) > after, lambda: f"no request for {path}")

    def reply_to(self, asked: Asked) -> Reply:
        """Note a request; return what is answered."""
        self.asked.append(asked)
        own = self._document(asked)
        reply = self.replies.get(asked.path, own)
        return reply if reply.body is not None else Reply(**_but_body(reply, own))

    def _document(self, asked: Asked) -> Reply:
        """Return what belongs to a path."""
        if asked.path == INTROSPECTION:
            claims = self.active.get(asked.form.get("token", ""))
            return _json_reply({"active": False} if claims is None else {"active": True, **claims})
        if asked.path == JWKS:
            return _json_reply(self.key_set())
        if asked.path in {self.discovery_path, self.rfc_8414_path}:
            return _json_reply({"issuer": self.issuer, "jwks_uri": f"{self.origin}{JWKS}", **self.documents})
        return Reply(b"", 404)


def _json_reply(document: Any) -> Reply:
    return Reply(json.dumps(document).encode(), headers={"Content-Type": "application/json"})


def _but_body(reply: Reply, own: Reply) -> dict[str, Any]:
    """Return what is answered otherwise, where the body is the one that belongs there."""
    return {**structs.asdict(reply), "body": own.body, "headers": own.headers | reply.headers}


class _Server(ThreadingMixIn, HTTPServer):
    # All threads have ended when it is closed.
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], issuer: Issuer) -> None:
        self.issuer = issuer
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Called with an error in the thread of a connection; a client may go as soon as it has had enough."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    # HTTP/1.0, a connection each: an issuer that goes down leaves no connection that goes on being served.
    timeout = 10

    @property
    def _issuer(self) -> Issuer:
        return cast("_Server", self.server).issuer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self._issuer.reply_to(Asked(self.command, urlsplit(self.path).path, headers, body))
        self._wait(reply.before)
        if reply.drop and not reply.half:
            return
        content = reply.body or b""
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(content)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        half = len(content) // 2
        self.wfile.write(content[:half])
        self._wait(reply.within)
        if not reply.drop:
            self.wfile.write(content[half:])

    do_POST = do_GET

    def _wait(self, event: threading.Event | None) -> None:
        while event and not self._issuer.stopped and not event.wait(0.02):
            pass

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Write nothing: `Issuer.asked` has it all."""
