"""The post API, its list for users only, as a FastAPI user writes it: a dependency that returns the user.

Basic is `HTTPBasic` and argon2-cffi in a `def`, which FastAPI calls in a thread, so that the hash does not block other
requests. Bearer is `HTTPBearer` and PyJWT with its `PyJWKClient`, which caches the key set, in an `async def`: in
threads each request takes longer, and here others wait only while the key set is fetched. A session is Starlette's
`SessionMiddleware`, with a signed cookie.
"""

from functools import lru_cache
from pathlib import Path
from typing import Annotated

import jwt
from fastapi import Depends, FastAPI, Form, HTTPException, Request
from fastapi.responses import RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer
from starlette.middleware.sessions import SessionMiddleware

from bench.peers.fastapi_posts import add_routes, list_posts
from bench.peers.users import SESSION_SECRET, is_password

AUDIENCE = "https://posts.example"


def verify_basic(credentials: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())]) -> None:
    if not is_password(credentials.username, credentials.password):
        raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})


async def verify_session(request: Request) -> None:
    if "username" not in request.session:
        raise HTTPException(401)


@lru_cache(1)
def _issuer() -> tuple[str, jwt.PyJWKClient]:
    issuer = Path("issuer").read_text()
    return issuer, jwt.PyJWKClient(f"{issuer}/jwks")


async def verify_bearer(credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> None:
    issuer, keys = _issuer()
    token = credentials.credentials
    try:
        key = keys.get_signing_key_from_jwt(token)
        jwt.decode(token, key, algorithms=["RS256"], audience=AUDIENCE, issuer=issuer)
    except jwt.PyJWTError:
        raise HTTPException(401, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'}) from None


def log_in(request: Request, username: Annotated[str, Form()], password: Annotated[str, Form()]) -> RedirectResponse:
    if not is_password(username, password):
        raise HTTPException(401)
    request.session["username"] = username
    return RedirectResponse("/home", 302)


basic_app = add_routes(FastAPI())
basic_app.get("/post", dependencies=[Depends(verify_basic)])(list_posts)

bearer_app = add_routes(FastAPI())
bearer_app.get("/post", dependencies=[Depends(verify_bearer)])(list_posts)

session_app = add_routes(FastAPI())
session_app.add_middleware(SessionMiddleware, secret_key=SESSION_SECRET)
session_app.get("/post", dependencies=[Depends(verify_session)])(list_posts)
session_app.post("/login")(log_in)

signin_app = add_routes(FastAPI())
signin_app.add_middleware(SessionMiddleware, secret_key=SESSION_SECRET)
signin_app.get("/post")(list_posts)
signin_app.post("/login")(log_in)
