"""A postd server whose users sign in at a real provider, npm's oidc-provider."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.integration.daemon import Daemon
from tests.issuer import Key
from tests.redis_server import free_port
from tests.system.provider import SECRET, Provider

BUTTON = "Sign in with Example"
USER = "alice of the provider"
CONFIRM = "Yes, sign me out"


class Site(NamedTuple):
    """A provider at 127.0.0.1, and a daemon with two workers at localhost: for browsers these are two sites."""

    provider: Provider
    url: str
    daemon: Daemon


@contextmanager
def serve_site(folder: Path) -> Iterator[Site]:
    port = free_port()
    url = f"http://localhost:{port}"
    (folder / "secret").write_text(SECRET)
    with Provider(Key.make("RS256"), scopes=["openid", "profile"], clients=[_client(url)]) as provider:
        (folder / "postd.toml").write_text(f"""
            workers = 2
            api = {{read = ["session"], write = ["session"]}}
            [[sign_in]]
            id = "example"
            name = "Example"
            issuer = "{provider.issuer}"
            client_id = "posts"
            client_secret_file = "secret"
            logout = "provider"
        """)
        with Daemon(folder, "-c", "postd.toml", listen=f"tcp:{port}:interface=127.0.0.1") as daemon:
            yield Site(provider, url, daemon)


def _client(url: str) -> dict[str, object]:
    """Return the registration of a postd server."""
    return {
        "client_id": "posts",
        "client_secret": SECRET,
        "grant_types": ["authorization_code"],
        "response_types": ["code"],
        "redirect_uris": [f"{url}/login/example/callback"],
        "post_logout_redirect_uris": [f"{url}/"],
        "backchannel_logout_uri": f"{url}/login/example/back-channel-logout",
        "backchannel_logout_session_required": True,
    }
