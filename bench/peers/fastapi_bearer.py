"""The post API, its list behind Bearer, as a FastAPI user writes it: `HTTPBearer`, and PyJWT in a dependency.

`PyJWKClient` keeps the key set for five minutes, as it does without being told. The dependency is `async def`, the
faster of the two ways that were tried: in FastAPI's threads each request pays for a hop, and here the others wait only
while the key set is fetched.
"""

from pathlib import Path
from typing import Annotated, Any

import jwt
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from bench.peers.fastapi_posts import add_post, list_posts

ISSUER = Path("issuer").read_text()
AUDIENCE = "https://posts.example"

app = FastAPI()
_keys = jwt.PyJWKClient(f"{ISSUER}/jwks")


async def verify(credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> dict[str, Any]:
    token = credentials.credentials
    try:
        key = _keys.get_signing_key_from_jwt(token)
        claims: dict[str, Any] = jwt.decode(token, key, algorithms=["RS256"], audience=AUDIENCE, issuer=ISSUER)
    except jwt.PyJWTError:
        raise HTTPException(401, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'}) from None
    return claims


app.get("/post", dependencies=[Depends(verify)])(list_posts)
app.post("/post", status_code=201)(add_post)
