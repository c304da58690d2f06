"""The post API, its list for users only, as a Falcon user writes it: a hook before the responder.

Falcon has no authentication of its own. Basic verifies with argon2-cffi; Digest is `rfc7616`; a session is a row of a
table, found by the hash of the cookie; Bearer is PyJWT with its `PyJWKClient`, which caches the key set.
"""

import base64
import binascii
import secrets
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import falcon
import jwt

from bench.peers.falcon_posts import Posts, make_app
from bench.peers.posts_file import connection
from bench.peers.rfc7616 import DigestCheck
from bench.peers.users import is_password

AUDIENCE = "https://posts.example"
SESSION_LIFETIME_S = 3600

Application = falcon.App[falcon.Request, falcon.Response]
Check = Callable[[falcon.Request], None]
"""Raises `falcon.HTTPUnauthorized` if a request has no credentials, or wrong ones."""


def make_guarded_app(check: Check) -> Application:
    def verify(request: falcon.Request, *_rest: object) -> None:
        check(request)

    class GuardedPosts(Posts):
        @falcon.before(verify)
        def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
            super().on_get(request, response)

    return make_app(GuardedPosts())


def check_basic(request: falcon.Request) -> None:
    scheme, _, encoded = (request.auth or "").partition(" ")
    try:
        user, _, password = base64.b64decode(encoded).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user = password = ""
    if scheme.lower() != "basic" or not is_password(user, password):
        raise falcon.HTTPUnauthorized(challenges=['Basic realm="postd"'])


def check_session(request: falcon.Request) -> None:
    cookie = request.cookies.get("session", "")
    found = connection().execute("SELECT username, ends FROM session WHERE id = ?", (_session_key(cookie),)).fetchone()
    if found is None or found[1] < time.time():
        raise falcon.HTTPUnauthorized(challenges=['Cookie realm="postd", cookie-name="session"'])


def check_bearer(request: falcon.Request) -> None:
    issuer, keys = _issuer()
    scheme, _, token = (request.auth or "").partition(" ")
    try:
        if scheme.lower() != "bearer":
            raise jwt.InvalidTokenError
        key = keys.get_signing_key_from_jwt(token)
        jwt.decode(token, key, algorithms=["RS256"], audience=AUDIENCE, issuer=issuer)
    except jwt.PyJWTError:
        raise falcon.HTTPUnauthorized(challenges=['Bearer error="invalid_token"']) from None


@lru_cache(1)
def _issuer() -> tuple[str, jwt.PyJWKClient]:
    issuer = Path("issuer").read_text()
    return issuer, jwt.PyJWKClient(f"{issuer}/jwks")


class Login:
    """The login form; a new session is stored before the cookie is sent."""

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        form = request.get_media()
        user = form.get("username", "")
        if not is_password(user, form.get("password", "")):
            raise falcon.HTTPUnauthorized
        cookie = secrets.token_urlsafe(24)
        row = _session_key(cookie), user, time.time() + SESSION_LIFETIME_S
        connection().execute("INSERT INTO session (id, username, ends) VALUES (?, ?, ?)", row)
        response.set_cookie("session", cookie, path="/", secure=False)
        response.status, response.location = falcon.HTTP_302, "/home"


def _session_key(cookie: str) -> bytes:
    return sha256(cookie.encode()).digest()


def make_basic() -> Application:
    return make_guarded_app(check_basic)


def make_digest() -> Application:
    digest = DigestCheck()

    def check(request: falcon.Request) -> None:
        if digest.find_user(request.method, request.relative_uri, request.auth) is None:
            raise falcon.HTTPUnauthorized(challenges=[digest.challenge()])

    return make_guarded_app(check)


def make_session() -> Application:
    made = make_guarded_app(check_session)
    made.add_route("/login", Login())
    return made


def make_signin() -> Application:
    """The login form, with a public list."""
    made = make_app(Posts())
    made.add_route("/login", Login())
    return made


def make_bearer() -> Application:
    return make_guarded_app(check_bearer)
