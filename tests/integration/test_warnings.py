"""No client causes a warning: a daemon with Python's warnings as errors, and all corpora of the suite sent to it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from bench.hostile import FIELDS, patterns
from bench.soaking.server import PASSWORD as WRITER_PASSWORD
from bench.soaking.server import USERS as WRITERS
from tests.forgeries import SECRETS, make_forgeries, make_good_tokens, make_keys
from tests.front.test_smuggling import SENT
from tests.integration.daemon import Daemon
from tests.integration.logins import DigestUser
from tests.integration.test_bearer import AUDIENCE, bearer_table, check_log
from tests.integration.test_logins import PASSWORD, write_users
from tests.integration.wire import Wire, bearer, talk
from tests.issuer import INTROSPECTION, Issuer, Key
from tests.test_providers import TOKENS

# What Twisted itself causes when it is imported: twisted.web.static, as in pyproject.toml, and, up to Python 3.12,
# conch, imported as twistd lists plugins.
WARNINGS = ",".join(
    ("error", *(f"ignore::DeprecationWarning:{name}" for name in ("twisted.web.static", "twisted.conch.checkers")))
)

PATTERN_CHARS = 64
CLIENTS = 8
"""Concurrent connections; some requests only end at a timeout."""

SETTINGS = """
users = "users"
store = "memory:"
hosts = ["*"]
trusted_proxies = ["127.0.0.1"]
api = {read = ["open"], write = ["open"]}
page = [
    {path = "/any", schemes = ["digest", "bearer", "basic", "session"]},
    {path = "/bearer", schemes = ["bearer"]},
    {path = "/digest", schemes = ["digest"]},
]
limits = {header_time = "2s", body_time = "2s"}
throttle = {failures = 100000, address_failures = 100000, account_failures = 100000}
"""

NONCES = (
    *("", "=", "+", "/", "-_+/", "+" * 44, "/" * 44, "-" * 44, "A" * 44, "A" * 43 + "+", "A" * 43 + "=", "A" * 45),
    *("!" * 44, "A" * 43 + "\xe9", "A" * 4000),
)


class Served(Struct):
    """A server, and the main one of its issuers."""

    daemon: Daemon
    issuer: Issuer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("warnings")
    write_users(folder, alice=PASSWORD, **{WRITERS[0]: WRITER_PASSWORD})
    with ExitStack() as stack:
        issuer = stack.enter_context(Issuer(AUDIENCE, *make_keys(), path="/realms/main"))
        asked = stack.enter_context(Issuer(AUDIENCE, Key.make("ES256")))
        tables = bearer_table(issuer) + bearer_table(asked, introspection_endpoint=asked.origin + INTROSPECTION)
        (folder / "postd.toml").write_text(SETTINGS + tables)
        environment = ("env", f"PYTHONWARNINGS={WARNINGS}")
        daemon = stack.enter_context(Daemon(folder, "-c", "postd.toml", through=environment))
        yield Served(daemon, issuer)
        daemon.stop()
        # What all of these tests have sent: the log is whole when the process has ended.
        check_log(daemon.log, *SECRETS, PASSWORD, WRITER_PASSWORD)


def test_warnings_are_errors(served: Served) -> None:
    """The other tests here rely on it."""
    assert f"PYTHONWARNINGS={WARNINGS}" in Path(f"/proc/{served.daemon.process.pid}/environ").read_text().split("\0")


def test_tokens_cause_no_warning(served: Served) -> None:
    issuer = served.issuer
    tokens: list[str | bytes] = [forgery.token for forgery in make_forgeries(issuer).values()]
    tokens += make_good_tokens(issuer).values()
    for token in TOKENS.values():
        for claims in filter(None, (token.access, token.identity)):
            tokens.append(issuer.token(None, {"typ": token.typ}, **claims))
    # What stands for another character in the standard alphabet, in each part.
    header, claims_part, signature = issuer.token(sub="?????>>>>>").split(".")
    for odd in "+/=~":
        tokens += [f"{header}{odd}.{claims_part}.{signature}", f"{header}.{odd}{claims_part}.{signature}"]
        tokens += [f"{header}.{claims_part}.{signature[:-1]}{odd}", f"{odd}{header}.x.y", odd * 40]
    assert len(tokens) > 400
    with Wire(served.daemon) as wire:
        statuses = {wire.ask("GET", path, bearer(token)).status for token in tokens for path in ("/bearer", "/any")}
    assert statuses == {200, 401, 431}
    check_log(served.daemon.log)


def test_digest_nonces_cause_no_warning(served: Served) -> None:
    alice = DigestUser("alice", PASSWORD, path="/digest")
    with Wire(served.daemon) as wire:
        for nonce in NONCES:
            assert wire.ask("GET", "/digest", alice.credentials(nonce, 1)).status == 401
    check_log(served.daemon.log)


def test_http_corpus_causes_no_warning(served: Served) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda sent: talk(served.daemon, sent, half_closes=True), [sent for sent, _ in SENT]))
    assert sum(answer.startswith(b"HTTP/1.1 ") for answer in answers) > 1000
    check_log(served.daemon.log)


def test_hostile_fields_cause_no_warning(served: Served) -> None:
    texts = [text for name, text in patterns(PATTERN_CHARS) if "before" not in name and "in turn" not in name]
    requests = [make(text) for make in FIELDS.values() for text in texts]
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda sent: talk(served.daemon, sent, half_closes=True), requests))
    assert len(requests) > 1000
    assert all(answer.startswith(b"HTTP/1.1 ") for answer in answers)
    check_log(served.daemon.log)


def test_bodies_cause_no_warning(served: Served) -> None:
    bodies = [b"[" * 16000, b'{"post":"x","y":' + b"[" * 8000 + b"]" * 7000, b'"' + b'\\"' * 8000]
    values: tuple[Any, ...] = ({"post": "\ud800"}, {"post": "x" * 141}, {"post": 1e300}, [])
    bodies += [json.dumps(value).encode() for value in values]
    with Wire(served.daemon) as wire:
        for body in bodies:
            answer = wire.ask("POST", "/post", body=body, headers=(("Content-Type", "application/json"),))
            assert answer.status in {400, 422}
    check_log(served.daemon.log)
