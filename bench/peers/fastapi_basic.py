"""The post API, its list behind Basic, as a FastAPI user writes it: `HTTPBasic`, and argon2-cffi in a dependency.

The dependency is `def`: FastAPI calls it in its threads, where the hash does not hold up the other requests.
"""

from pathlib import Path
from typing import Annotated

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPBasic, HTTPBasicCredentials

from bench.peers.fastapi_posts import add_post, list_posts

app = FastAPI()
_hasher = PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)
_hashes = dict(line.split(":")[:2] for line in Path("users").read_text().splitlines())


def verify(credentials: Annotated[HTTPBasicCredentials, Depends(HTTPBasic())]) -> str:
    try:
        _hasher.verify(_hashes[credentials.username], credentials.password)
    except (KeyError, VerifyMismatchError):
        raise HTTPException(401, headers={"WWW-Authenticate": "Basic"}) from None
    return credentials.username


app.get("/post", dependencies=[Depends(verify)])(list_posts)
app.post("/post", status_code=201)(add_post)
