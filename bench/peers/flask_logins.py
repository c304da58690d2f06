"""The post API, its list for users only, as a Flask user writes it: Flask-HTTPAuth, and argon2-cffi in its callback.

Flask-HTTPAuth's Digest keeps the nonce in Flask's session, a signed cookie that the client must send back, and does
not check the nonce count: a recorded request can be replayed until the cookie expires.
"""

from pathlib import Path

from flask import Flask
from flask_httpauth import HTTPBasicAuth, HTTPDigestAuth  # type: ignore[import-untyped]

from bench.peers.flask_posts import list_posts, make_app
from bench.peers.users import SESSION_SECRET, is_password

REALM = "postd"


def make_basic() -> Flask:
    auth = HTTPBasicAuth()

    @auth.verify_password  # type: ignore[untyped-decorator]
    def verify(username: str, password: str) -> str | None:
        return username if is_password(username, password) else None

    made = make_app()
    made.get("/post")(auth.login_required(list_posts))
    return made


def make_digest() -> Flask:
    auth = HTTPDigestAuth(realm=REALM, use_ha1_pw=True)
    ha1 = dict(line.split(f":{REALM}:") for line in Path("users.digest").read_text().splitlines())
    auth.get_password(ha1.get)
    made = make_app()
    made.secret_key = SESSION_SECRET
    made.get("/post")(auth.login_required(list_posts))
    return made
