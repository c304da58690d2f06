"""The post API, its list for users only, as a BlackSheep user writes it: authentication handlers, and `@auth()`.

Bearer and sessions are BlackSheep's own: `JWTBearerAuthentication`, which verifies with PyJWT and caches the key set,
and `use_sessions`, with a signed cookie. Its Basic supports plain-text passwords only, so the handler here verifies
with argon2-cffi, in a thread. It has no Digest, which is in `rfc7616`.
"""

import asyncio
import base64
import binascii
from pathlib import Path

from blacksheep import Application, Request, Response, auth
from blacksheep.server.authentication.jwt import JWTBearerAuthentication
from blacksheep.server.responses import redirect, unauthorized
from guardpost import AuthenticationHandler, Identity

from bench.peers.blacksheep_posts import list_posts, make_app
from bench.peers.rfc7616 import DigestCheck
from bench.peers.users import SESSION_SECRET, is_password

AUDIENCE = "https://posts.example"


class ArgonBasic(AuthenticationHandler):
    async def authenticate(self, context: Request) -> Identity | None:  # type: ignore[override]  # it may be either
        scheme, _, encoded = (context.get_first_header(b"Authorization") or b"").partition(b" ")
        try:
            user, _, password = base64.b64decode(encoded).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if scheme.lower() != b"basic" or not await asyncio.to_thread(is_password, user, password):
            return None
        return Identity({"sub": user}, "Basic")


def make_guarded_app(handler: AuthenticationHandler) -> Application:
    made = make_app(auth()(list_posts))
    made.use_authentication().add(handler)
    made.use_authorization()
    return made


def make_basic() -> Application:
    return make_guarded_app(ArgonBasic())


def make_bearer() -> Application:
    issuer = Path("issuer").read_text()
    return make_guarded_app(JWTBearerAuthentication(authority=issuer, valid_audiences=[AUDIENCE]))


def make_digest() -> Application:
    digest = DigestCheck()

    async def list_for_users(request: Request) -> Response:
        # Here and not in a handler, since only an endpoint can respond with a new nonce.
        authorization = (request.get_first_header(b"Authorization") or b"").decode("latin-1")
        if digest.find_user(request.method, request.url.value.decode("latin-1"), authorization) is None:
            refused = unauthorized()
            refused.add_header(b"WWW-Authenticate", digest.challenge().encode())
            return refused
        return await list_posts()

    return make_app(list_for_users)


def make_session() -> Application:
    async def list_for_users(request: Request) -> Response:
        return await list_posts() if "username" in request.session else unauthorized()

    return _with_login(make_app(list_for_users))


def make_signin() -> Application:
    """The login form, with a public list."""
    return _with_login(make_app())


def _with_login(made: Application) -> Application:
    made.use_sessions(SESSION_SECRET)
    made.router.add_post("/login", log_in)
    return made


async def log_in(request: Request) -> Response:
    form = await request.form() or {}
    user, password = form.get("username"), form.get("password")
    if not isinstance(user, str) or not isinstance(password, str):
        return unauthorized()
    if not await asyncio.to_thread(is_password, user, password):
        return unauthorized()
    request.session["username"] = user
    return redirect("/home")
