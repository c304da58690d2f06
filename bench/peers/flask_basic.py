"""The post API, its list behind Basic, as a Flask user writes it: Flask-HTTPAuth, and argon2-cffi in its callback."""

from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from flask import Flask, Response
from flask.json.provider import DefaultJSONProvider
from flask_httpauth import HTTPBasicAuth  # type: ignore[import-untyped]

from bench.peers.flask_posts import add_post, list_posts

app = Flask(__name__)
assert isinstance(app.json, DefaultJSONProvider)
app.json.compact = False
auth = HTTPBasicAuth()
_hasher = PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)
_hashes = dict(line.split(":")[:2] for line in Path("users").read_text().splitlines())


@auth.verify_password  # type: ignore[untyped-decorator]
def verify(username: str, password: str) -> str | None:
    try:
        _hasher.verify(_hashes[username], password)
    except (KeyError, VerifyMismatchError):
        return None
    return username


@app.get("/post")
@auth.login_required  # type: ignore[untyped-decorator]
def list_posts_to_users() -> Response:
    return list_posts()


app.post("/post")(add_post)
