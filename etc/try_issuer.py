"""An issuer of access tokens, to try postd with where no provider is at hand. It does not authenticate users.

    python etc/try_issuer.py [--audience URL] [--bind=THUMBPRINT] [SCOPE ...]

It makes a key and a token that lasts an hour, writes the token to the file `token`, and shows its public key on
http://127.0.0.1:9000 until it is interrupted. docs/how-to/tokens.md has the settings for it. With `--bind` the file
`bound` has another token, which is bound to the key with this thumbprint (RFC 9449): docs/how-to/key-bound-tokens.md.
"""

import argparse
import json
import secrets
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import RSAKey

ISSUER = "http://127.0.0.1:9000"
AUDIENCE = "https://posts.example"
LIFETIME_S = 3600

KEY_ID = secrets.token_hex(4)  # a key of its own at each start, and a name of its own for it
KEY = RSAKey.generate_key(2048, {"kid": KEY_ID, "use": "sig"})
DOCUMENTS = {
    "/.well-known/openid-configuration": {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/jwks"},
    "/jwks": {"keys": [KEY.as_dict(private=False)]},
}


class Handler(BaseHTTPRequestHandler):
    """Shows the documents."""

    def do_GET(self) -> None:
        document = DOCUMENTS.get(self.path)
        body = json.dumps(document or {"error": "not found"}).encode()
        self.send_response(200 if document else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def make_token(options: argparse.Namespace, **claims: Any) -> str:
    now, scope = int(time.time()), " ".join(options.scope)
    claims |= {"iss": ISSUER, "aud": options.audience, "sub": "alice", "iat": now, "exp": now + LIFETIME_S}
    return jwt.encode({"alg": "RS256", "kid": KEY_ID, "typ": "at+jwt"}, {**claims, "scope": scope}, KEY)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=f"Run an issuer at {ISSUER} to try postd with; write an access token to the file token."
    )
    parser.add_argument("--audience", metavar="URL", default=AUDIENCE, help="aud of the token (default: %(default)s)")
    parser.add_argument(
        "--bind",
        metavar="THUMBPRINT",
        help="write another token to the file bound, bound to the key with this thumbprint",
    )
    parser.add_argument(
        "scope", metavar="SCOPE", nargs="*", default=["post:read", "post:write"], help="default: post:read post:write"
    )
    options = parser.parse_args()
    with HTTPServer(("127.0.0.1", 9000), Handler) as server:
        Path("token").write_text(make_token(options))
        if options.bind:
            Path("bound").write_text(make_token(options, cnf={"jkt": options.bind}))
        server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"{error.filename or '127.0.0.1:9000'}: {error.strerror}")
    except KeyboardInterrupt:
        pass
