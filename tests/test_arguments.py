"""Wrong arguments of the public packages: each is a `ValueError` of one line, or accepted, and never another error."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.web.resource import Resource

from postd.client import (
    AuthClient,
    Basic,
    BearerFile,
    ClientCredentials,
    ConfigError,
    Digest,
    DPoP,
    DPoPKey,
    FormLogin,
    PostClient,
    load_dpop_key,
)
from postd.protect import Protection, issuer
from postd.testing import Issuer, PostServer, Server, write_users
from tests.cases import each

ODD: list[Any] = [
    *(None, 5, -1, 1.5, True, math.nan, 10**30, b"x", "x", "", "\ud800", "a\nb", [], ["a"], ("a", "b"), [1], [None]),
    *(object(), {}, {"a": 1}, Path("x"), Resource()),
]
KEY = DPoPKey.generate()


def calls(folder: Path) -> Iterator[tuple[str, Callable[..., object], dict[str, Any]]]:
    """Yield what can be called, with arguments that are right."""
    users = write_users(folder / "users", {"alice": "secret"})
    (folder / "token").write_text("token")
    (folder / "key.pem").write_bytes(KEY.encode_pem())
    token = str(folder / "token")
    for kind in (Basic, Digest, FormLogin):
        yield kind.__name__, kind, {"user": "alice", "password": "secret"}
    yield "BearerFile", BearerFile, {"path": token}
    secret = {"issuer": "https://i.example", "client_id": "c", "client_secret_file": token}
    yield "ClientCredentials", ClientCredentials, {**secret, "scope": "", "resource": ""}
    yield "DPoP", DPoP, {"token_source": BearerFile(token), "key": KEY}
    yield "load_dpop_key", load_dpop_key, {"path": str(folder / "key.pem")}
    yield "DPoPKey.decode", DPoPKey.decode, {"content": KEY.encode_pem()}
    server = {"reactor": reactor, "url": "https://posts.example", "auth": None, "ca_file": "", "agent": None}
    yield "AuthClient", AuthClient, server
    yield "PostClient", PostClient, server
    times = dict.fromkeys(("nonce_lifetime_s", "window_s", "session_idle_s", "session_lifetime_s"), 3)
    limits = dict.fromkeys(("failures", "address_failures", "account_failures"), 3)
    texts = {"realm": "r", "store": "memory:", "sign_in": "/", "public_url": "", "secure": "auto", "users": users}
    lists = {"issuers": (), "digest_algorithms": ["MD5"], "trusted_proxies": (), "hosts": ()}
    flags = dict.fromkeys(("change_password", "tokens", "passkeys"), False)
    times |= {"token_lifetime_s": 3}
    yield "Protection", Protection, {"reactor": reactor, **texts, **times, **limits, **lists, **flags}
    claims: dict[str, Any] = {"required_claims": None}
    lists = {"algorithms": ["RS256"], "token_types": ["JWT"], "scope_claims": ["scope"]}
    texts = dict.fromkeys(
        ("jwks_uri", "read_scope", "write_scope", "ca_file", "introspection_endpoint", "client_id"), ""
    )
    more = {"user_claim": "sub", "leeway": 30, "dpop": "refuse", "mtls": "refuse", "client_secret_file": ""}
    yield "issuer", issuer, {"url": "https://i.example", "audience": "a", **texts, **more, **lists, **claims}
    protection = Protection(reactor, users=users)
    yield "pages", protection.pages, {"after": "/"}
    protect: Any = lambda scheme, **options: protection.protect(Resource(), scheme, **options)  # noqa: E731
    yield "protect", protect, {"scheme": "basic", "users": (), "read_scope": "", "write_scope": ""}
    yield "write_users", write_users, {"path": str(folder / "others"), "passwords": {"a": "b"}, "realm": "postd"}
    yield "Issuer", Issuer, {"reactor": reactor, "audience": "a"}
    yield "Server", Server, {"reactor": reactor, "resource": Resource()}
    yield "PostServer", PostServer, {"reactor": reactor, "toml": ""}


def test_wrong_argument_is_a_value_error_or_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    count = 0
    for name, call, arguments in calls(tmp_path):
        call(**arguments)
        for argument in arguments:
            for odd in ODD:
                count += 1
                try:
                    call(**{**arguments, argument: odd})
                except ValueError as error:
                    if not str(error) or "\n" in str(error):
                        found.append((name, argument, odd, str(error)))
                except Exception as error:  # noqa: BLE001 - what must not occur
                    if (name, type(error)) != ("write_users", IsADirectoryError):  # as documented
                        found.append((name, argument, odd, repr(error)))
    assert found == []
    assert count > 1400


@each(
    "arguments, why",
    [
        ((BearerFile("token"), "key.pem"), "key: expected a key of load_dpop_key or DPoPKey.generate, got str"),
        (
            (BearerFile("token"), KEY.encode_pem()),
            "key: expected a key of load_dpop_key or DPoPKey.generate, got bytes",
        ),
        (("token", KEY), "token_source: expected BearerFile or ClientCredentials, got str"),
        ((Basic("a", "b"), KEY), "token_source: expected BearerFile or ClientCredentials, got Basic"),
    ],
)
def test_dpop_of_other_kinds_names_the_argument(arguments: tuple[Any, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DPoP(*arguments)
    assert str(caught.value) == why


@ensureDeferred
async def test_wrong_argument_of_a_request_is_a_value_error_and_sends_nothing() -> None:
    posts: Any = PostClient(reactor, "http://127.0.0.1:9")  # nothing listens there

    async def read(**options: Any) -> None:
        async for _ in posts.list(**options):
            break

    wrong = [5, 1.5, True, b"x", ["a"], object()]
    for odd in wrong:
        for call in (
            *(posts.add(odd), posts.add("x", key=odd), posts.update(1, odd), posts.update(1, "x", if_match=odd)),
            posts.delete(1, if_match=odd),
            *((posts.get(odd), posts.delete(odd), read(after=odd), read(page=odd)) if odd != 5 else ()),
        ):
            with pytest.raises(ValueError, match=": expected "):
                await call
        if odd != 5:
            with pytest.raises(ValueError, match="after: expected "):
                posts.watch(after=odd)
    await posts.close()
