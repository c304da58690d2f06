"""Keys of issuers, on the real process: rotation, floods, and issuers that are down, slow or broken.

One server has all the issuers, each with manners of its own, so that what one does is seen to cost the others nothing.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.test_bearer import AUDIENCE, bearer_table, check_log
from tests.integration.test_logins import PASSWORD, serve, write_users
from tests.issuer import ABSENT, DISCOVERY, INTROSPECTION, JWKS, Issuer, Key, Reply, b64

POLL_MAX_S = PATIENCE_S

WAIT_MAX_S = 3.0
"""How long a request waits for keys (reference: Bearer)."""

RULES = """
users = "users"
api = {read = ["open"], write = ["bearer"]}
page = [{path = "/token", schemes = ["bearer", "basic"]}]
"""

Preparing = Callable[[Issuer], None]


def key_set(issuer: Issuer) -> bytes:
    return json.dumps(issuer.key_set()).encode()


def well_behaved(issuer: Issuer) -> None:
    """Leave an issuer as it is."""


def at(path: str, make: Callable[[Issuer], Reply]) -> Preparing:
    """Replace the response of an issuer at a path."""

    def prepare(issuer: Issuer) -> None:
        issuer.replies[path] = make(issuer)

    return prepare


def saying(**members: Any) -> Preparing:
    """Change members of both metadata documents of an issuer."""

    def prepare(issuer: Issuer) -> None:
        del issuer.replies[issuer.rfc_8414_path]
        for name, value in members.items():
            issuer.documents[name] = value(issuer) if callable(value) else value

    return prepare


def without_openid(issuer: Issuer) -> None:
    issuer.replies[issuer.discovery_path] = Reply(b"", 404)
    del issuer.replies[issuer.rfc_8414_path]


def without_metadata(issuer: Issuer) -> None:
    issuer.replies[issuer.discovery_path] = Reply(b"", 404)


def moved(issuer: Issuer) -> None:
    issuer.replies[JWKS] = Reply.redirect("/keys")
    issuer.replies["/keys"] = Reply(key_set(issuer))


def with_broken_keys(issuer: Issuer) -> None:
    (good,) = issuer.keys
    keys = [*broken_keys(good.kid), good.jwk(), *broken_keys(good.kid)]
    issuer.replies[JWKS] = Reply(json.dumps({"x": None, "keys": keys}).encode())


def broken_keys(kid: str) -> list[Any]:
    """Return unusable or malformed keys with the id of a valid one."""
    rsa, ec, ed = Key.make("RS256", kid), Key.make("ES256", kid), Key.make("EdDSA", kid)
    return [
        None,
        7,
        "key",
        [],
        {},
        {"kid": kid},
        {"kty": "RSA"},
        {"kty": None, "kid": kid},
        {"kty": ["EC"], "kid": kid},
        {"kty": "unheard-of", "kid": kid},
        {"kty": "oct", "kid": kid, "k": b64(b"secret")},
        rsa.jwk(n="!!"),
        rsa.jwk(n="ä" * 40),
        rsa.jwk(n=""),
        rsa.jwk(n=12345),
        rsa.jwk(n=None),
        rsa.jwk(n=b64(bytes(256))),
        rsa.jwk(e=ABSENT),
        rsa.jwk(e="AA"),
        rsa.jwk(use=["sig"]),
        rsa.jwk(key_ops="verify"),
        rsa.jwk(kid=[kid]),
        Key.make("RS256", kid, bits=1024).jwk(),
        ec.jwk(crv="P-257"),
        ec.jwk(crv=["P-256"]),
        ec.jwk(x=b64(b"\1" * 32)),
        ec.jwk(y=b64(bytes(31))),
        ec.jwk(y=ABSENT),
        ed.jwk(x=b64(bytes(31))),
        ed.jwk(crv="X25519", alg="ECDH-ES"),
        {"kty": "EC", "kid": kid, "x5c": ["MIIB"], "x5u": "https://elsewhere.example"},
    ]


def within(issuer: Issuer) -> Reply:
    return Reply(key_set(issuer), within=threading.Event())


def before(_issuer: Issuer) -> Reply:
    return Reply(before=threading.Event())


SLOW = ("slow", "slow at the second attempt", "slow at the third attempt")

USABLE: Mapping[str, Preparing] = {
    "well-behaved": well_behaved,
    "rotating": well_behaved,
    "flooded": well_behaved,
    **dict.fromkeys(SLOW, well_behaved),
    "stuck": well_behaved,
    "leaving": well_behaved,
    "trusted": well_behaved,
    "moved on the same host": moved,
    "without OpenID Connect": without_openid,
    "explicit": without_metadata,
    "with broken keys": with_broken_keys,
    "as another media type": at(JWKS, lambda issuer: Reply(headers={"Content-Type": "text/html"})),
}
"""Issuers whose tokens are accepted, by test case; those of RFC 8414 and TLS are set up below."""

UNUSABLE: Mapping[str, Preparing] = {
    "untrusted": well_behaved,
    "without metadata": without_metadata,
    "another issuer's metadata": saying(issuer="https://elsewhere.example"),
    "metadata with a slash": saying(issuer=lambda issuer: f"{issuer.issuer}/"),
    "metadata without issuer": saying(issuer=None),
    "metadata with a list": saying(issuer=lambda issuer: [issuer.issuer]),
    "metadata without keys": saying(jwks_uri=None),
    "keys in plain text": saying(jwks_uri="http://elsewhere.example/jwks"),
    "keys in a file": saying(jwks_uri="file:///etc/hostname"),
    "metadata not JSON": at(DISCOVERY, lambda _: Reply(b"<html>")),
    "metadata redirected": at(DISCOVERY, lambda _: Reply.redirect("https://elsewhere.example/")),
    "redirected to plain http": at(JWKS, lambda _: Reply.redirect("http://elsewhere.example/jwks")),
    "redirected to itself": at(JWKS, lambda _: Reply.redirect(JWKS)),
    "redirected nowhere": at(JWKS, lambda _: Reply(b"", 302)),
    "not JSON": at(JWKS, lambda issuer: Reply(key_set(issuer)[:-1])),
    "an array": at(JWKS, lambda issuer: Reply(b"[" + key_set(issuer) + b"]")),
    "without keys": at(JWKS, lambda _: Reply(b'{"keys": {}}')),
    "no key of use": at(JWKS, lambda _: Reply(json.dumps({"keys": broken_keys("ES256")}).encode())),
    "deeply nested": at(JWKS, lambda _: Reply(b"[" * 200_000)),
    "status 500": at(JWKS, lambda _: Reply(status=500)),
    "status 404": at(JWKS, lambda _: Reply(status=404)),
    "status 204": at(JWKS, lambda _: Reply(b"", 204)),
    "megabytes": at(JWKS, lambda issuer: Reply(key_set(issuer) + b" " * 3_000_000)),
    "a little too long": at(JWKS, lambda issuer: Reply(key_set(issuer) + b" " * 256 * 1024)),
    "a bomb": at(JWKS, lambda issuer: Reply.bomb(key_set(issuer))),
    "dropped": at(JWKS, lambda _: Reply(drop=True)),
    "cut": at(JWKS, lambda _: Reply(drop=True, half=True)),
    "hanging": at(JWKS, before),
    "hanging in the middle": at(JWKS, within),
}
"""Issuers whose keys cannot be fetched, by reason."""


class Served(Struct):
    """A server, and its issuers by name. `absent` is not up when the server starts."""

    daemon: Daemon
    issuers: Mapping[str, Issuer]
    absent: Issuer
    elsewhere: Issuer

    def try_token(self, token: str) -> httpx.Response:
        return httpx.get(f"{self.daemon.url}/token", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S)

    def add_post(self, token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(f"{self.daemon.url}/post", json={"post": "x"}, headers=headers, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("keys")
    write_users(folder, alice=PASSWORD)
    with ExitStack() as stack:
        issuers: dict[str, Issuer] = {}
        for name, prepare in {**USABLE, **UNUSABLE}.items():
            tls = certificate if name in {"trusted", "untrusted"} else None
            issuers[name] = Issuer(AUDIENCE, Key.make("ES256"), path=_path_of(name), certificate=tls)
            prepare(stack.enter_context(issuers[name]))
        elsewhere = stack.enter_context(Issuer(AUDIENCE, Key.make("ES256")))
        redirected = stack.enter_context(Issuer(AUDIENCE, *elsewhere.keys))
        redirected.replies[JWKS] = Reply.redirect(f"{elsewhere.origin}{JWKS}")
        issuers["redirected to another host"] = redirected
        misnamed = Issuer(AUDIENCE, Key.make("ES256"), certificate=certificate, host="127.0.0.2")
        issuers["of another name"] = stack.enter_context(misnamed)
        absent = stack.enter_context(Issuer(AUDIENCE, Key.make("ES256")))
        absent.stop()
        settings: dict[str, dict[str, Any]] = {
            "explicit": {"jwks_uri": f"{issuers['explicit'].origin}{JWKS}"},
            "trusted": {"ca_file": str(certificate[1])},
            "of another name": {"ca_file": str(certificate[1])},
        }
        tables = [bearer_table(issuer, **settings.get(name, {})) for name, issuer in issuers.items()]
        with serve(folder, RULES + "".join(tables) + bearer_table(absent)) as daemon:
            yield Served(daemon, issuers, absent, elsewhere)
        check_log(daemon.log, PASSWORD)


def _path_of(name: str) -> str:
    """RFC 8414 puts its well-known path before that of the issuer, OpenID Connect behind it."""
    return "/realms/main" if name in {"well-behaved", "without OpenID Connect"} else ""


def check_unavailable(answer: httpx.Response) -> None:
    """Check a 503 without a challenge, on which a client would drop a valid token (reference: Bearer)."""
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert "WWW-Authenticate" not in answer.headers


def check_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]


def told_of(served: Served, issuer: Issuer) -> list[str]:
    """Return the lines of the log about the keys of an issuer."""
    return [line for line in served.daemon.log.splitlines() if f"bearer {issuer.issuer}: " in line]


def wait_until_told_of(served: Served, issuer: Issuer) -> list[str]:
    deadline = time.monotonic() + POLL_MAX_S
    while not (lines := told_of(served, issuer)):
        assert time.monotonic() < deadline, issuer.issuer
        time.sleep(0.05)
    return lines


@pytest.mark.parametrize("name", USABLE)
def test_keys_are_fetched(served: Served, name: str) -> None:
    issuer = served.issuers[name]
    answer = served.try_token(issuer.token())
    assert (answer.status_code, answer.text) == (200, "Success: alice\n")
    forged = issuer.token(Key.make("ES256"))
    check_refused(served.try_token(forged))


def test_explicit_jwks_uri_skips_discovery(served: Served) -> None:
    assert served.issuers["explicit"].count(DISCOVERY) == 0


def test_broken_keys_are_skipped(served: Served) -> None:
    (line,) = told_of(served, served.issuers["with broken keys"])
    assert "left out" in line


@pytest.mark.slow
def test_issuer_with_unusable_keys_is_503_and_logged_once(served: Served) -> None:
    """Other issuers are not affected."""
    names = [*UNUSABLE, "redirected to another host", "of another name"]
    with ThreadPoolExecutor(len(names)) as pool:
        asked = {name: pool.submit(served.try_token, served.issuers[name].token()) for name in names}
        assert served.try_token(served.issuers["well-behaved"].token()).status_code == 200
        answers = {name: future.result() for name, future in asked.items()}
    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(names, 503)
    for answer in answers.values():
        check_unavailable(answer)
    lines = {name: wait_until_told_of(served, served.issuers[name]) for name in names}
    assert {name: logged for name, logged in lines.items() if len(logged) != 1} == {}
    assert served.elsewhere.asked == []


def test_unknown_key_id_fetches_keys_within_the_request(served: Served) -> None:
    """Rotation: the first token signed with the new key is accepted, the next made-up key id is rate-limited."""
    issuer = served.issuers["rotating"]
    old = issuer.keys[0]
    assert served.try_token(issuer.token()).status_code == 200
    fetches = issuer.count(JWKS)
    issuer.keys = [Key.make("ES256", "new"), old]
    assert served.try_token(issuer.token()).status_code == 200
    assert issuer.count(JWKS) == fetches + 1
    assert served.try_token(issuer.token(old)).status_code == 200
    for _ in range(3):
        check_refused(served.try_token(issuer.token(header={"kid": "made-up"})))
    assert issuer.count(JWKS) == fetches + 1


def test_flood_of_unknown_key_ids_is_rate_limited(served: Served) -> None:
    issuer = served.issuers["flooded"]
    good = issuer.token()
    assert served.try_token(good).status_code == 200
    fetches = issuer.count(JWKS)
    made_up = [issuer.token(header={"kid": f"made-up-{number}"}) for number in range(500)]

    def send(tokens: list[str]) -> list[int]:
        with httpx.Client(base_url=served.daemon.url, timeout=PATIENCE_S) as client:
            return [client.get("/token", headers={"Authorization": f"Bearer {one}"}).status_code for one in tokens]

    with ThreadPoolExecutor(10) as pool:
        sending = [pool.submit(send, made_up[start::10]) for start in range(10)]
        meanwhile = [served.try_token(good).status_code for _ in range(10)]
        statuses = [status for future in sending for status in future.result()]
    assert statuses == [401] * 500
    assert meanwhile == [200] * 10
    assert issuer.count(JWKS) - fetches <= 3


def test_hanging_issuer_delays_no_other_request(served: Served) -> None:
    """Neither with tokens whose keys are held; waiting requests share one fetch.

    On a busy machine the requests may have waited for 3 s before the others are answered. Another issuer is used then,
    because unknown keys of one are fetched once in 30 s.
    """
    assert any(answers_while_hanging(served, served.issuers[name]) for name in SLOW)


def answers_while_hanging(served: Served, issuer: Issuer) -> bool:
    """Check what is answered while the keys of an issuer are fetched; return False if that took too long to tell."""
    held = issuer.token()
    assert served.try_token(held).status_code == 200
    posts = httpx.get(f"{served.daemon.url}/post").json()
    new, release = Key.make("ES256", "new"), threading.Event()
    issuer.keys.append(new)
    issuer.replies[JWKS] = Reply(before=release)
    fetches = issuer.count(JWKS)
    with ThreadPoolExecutor(2) as pool:
        started = time.monotonic()
        reading = pool.submit(served.try_token, issuer.token(new))
        writing = pool.submit(served.add_post, issuer.token(new))
        issuer.wait_for_request(JWKS, after=fetches)
        go_away(served.daemon, issuer.token(new))
        assert httpx.get(f"{served.daemon.url}/post").json() == posts
        assert served.try_token(held).status_code == 200
        assert served.try_token(served.issuers["well-behaved"].token()).status_code == 200
        assert httpx.get(f"{served.daemon.url}/token", auth=("alice", PASSWORD)).status_code == 200
        waiting = not reading.done() and not writing.done()
        release.set()
        statuses = (reading.result().status_code, writing.result().status_code)
        if time.monotonic() - started >= WAIT_MAX_S:
            return False
    assert waiting
    assert statuses == (200, 201)
    assert issuer.count(JWKS) == fetches + 1
    assert [post["post"] for post in httpx.get(f"{served.daemon.url}/post").json()] == [
        *(post["post"] for post in posts),
        "x",
    ]
    return True


def go_away(daemon: Daemon, token: str) -> None:
    """Send a request without waiting for the response."""
    with daemon.connect() as client:
        client.sendall(f"GET /token HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())


@pytest.mark.slow
def test_request_waits_3_s_for_keys_at_most(served: Served) -> None:
    """Then its token is refused (reference: Bearer); the fetch itself times out after 5 s, and is logged."""
    issuer = served.issuers["stuck"]
    assert served.try_token(issuer.token()).status_code == 200
    issuer.replies[JWKS] = Reply(before=threading.Event())
    check_refused(served.try_token(issuer.token(header={"kid": "made-up"})))
    assert [line for line in told_of(served, issuer) if "not fetched" in line] == []
    assert served.try_token(issuer.token()).status_code == 200


def test_busy_issuer_gets_no_request_and_its_wait_is_the_servers(tmp_path: Path) -> None:
    """Known tokens and held keys stay in use, and so do other issuers; unknown tokens get the rest of the wait."""
    with Issuer(AUDIENCE, Key.make("ES256")) as busy, Issuer(AUDIENCE, Key.make("ES256")) as other:
        table = bearer_table(busy, introspection_endpoint=f"{busy.origin}{INTROSPECTION}")
        with serve(tmp_path, f'api = {{read = ["bearer"]}}\n{table}{bearer_table(other)}') as daemon:

            def read(token: str) -> httpx.Response:
                return httpx.get(f"{daemon.url}/post", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S)

            busy.active["known"] = {"sub": "alice", "aud": AUDIENCE}
            assert read("known").status_code == 200
            busy.replies[INTROSPECTION] = Reply(b"", 429, headers={"Retry-After": "300"})
            for number in range(5):
                answer = read(f"unknown-{number}")
                check_unavailable(answer)
                assert 200 < int(answer.headers["Retry-After"]) <= 300
            assert busy.count(INTROSPECTION) == 2
            assert [read(token).status_code for token in ("known", busy.token(), other.token())] == [200] * 3


def test_held_keys_are_used_while_the_issuer_is_down(served: Served) -> None:
    issuer = served.issuers["leaving"]
    assert served.try_token(issuer.token()).status_code == 200
    issuer.stop()
    check_refused(served.try_token(issuer.token(header={"kid": "made-up"})))
    for _ in range(3):
        assert served.try_token(issuer.token()).status_code == 200


def test_issuer_down_at_the_start_is_retried(served: Served) -> None:
    """Meanwhile the other schemes of the rule work."""
    check_unavailable(served.try_token(served.absent.token()))
    posts = httpx.get(f"{served.daemon.url}/post").json()
    unavailable = served.add_post(served.absent.token())
    check_unavailable(unavailable)
    assert unavailable.headers["Content-Type"] == "application/problem+json"
    assert httpx.get(f"{served.daemon.url}/post").json() == posts
    assert httpx.get(f"{served.daemon.url}/token", auth=("alice", PASSWORD)).text == "Success: alice\n"
    assert httpx.get(f"{served.daemon.url}/token").status_code == 401
    check_unavailable(served.try_token(served.absent.token(Key.make("ES256"))))
    served.absent.start()
    deadline = time.monotonic() + POLL_MAX_S
    while (answer := served.try_token(served.absent.token())).status_code != 200:
        check_unavailable(answer)
        assert time.monotonic() < deadline
        time.sleep(0.2)
