"""`postd check` with token issuers, over real connections."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import PATIENCE_S
from tests.integration.forking import run
from tests.integration.logins import POSTD
from tests.issuer import DISCOVERY, RFC_8414, Issuer, Key, Reply

AUDIENCE = "https://posts.example"


def check(folder: Path, *issuers: str) -> tuple[int, list[str], str]:
    """Run it with a `[[bearer]]` table for each text; return its status, its lines about issuers, and its error."""
    tables = "".join(f'[[bearer]]\naudience = "{AUDIENCE}"\n{issuer}\n' for issuer in issuers)
    (folder / "postd.toml").write_text(f'[api]\nread = ["bearer"]\n{tables}')
    ended = run([POSTD, "check", "-c", "postd.toml"], folder)
    lines = ended.stdout.decode().splitlines()
    return ended.returncode, [line for line in lines if line.startswith("bearer")], ended.stderr.decode()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer(AUDIENCE, Key.make("RS256", "a"), Key.make("ES256", "b")) as made:
        yield made


def test_working_issuer_is_ok(tmp_path: Path, issuer: Issuer) -> None:
    keys = [*issuer.key_set()["keys"], Key.make("RS256", "c").jwk(use="enc")]
    issuer.replies["/jwks"] = Reply(json.dumps({"keys": keys}).encode())
    usable = "a for RS256, b for ES256; left out: key 3 of 3: it is not for signatures (use)"
    found = f"{issuer.issuer}/.well-known/openid-configuration leads to {issuer.origin}/jwks"
    line = f"bearer {issuer.issuer}: ok, {found}, which has {usable}"
    assert check(tmp_path, f'issuer = "{issuer.issuer}"') == (0, [line], "")


PROOFS, CERTIFICATES = "dpop_signing_alg_values_supported", "tls_client_certificate_bound_access_tokens"


@pytest.mark.parametrize(
    ("rules", "document", "missing"),
    [
        ({}, {}, []),
        ({"dpop": "accept", "mtls": "accept"}, {}, [PROOFS, CERTIFICATES]),
        ({"dpop": "require"}, {PROOFS: ["ES512"]}, [PROOFS]),
        ({"dpop": "require"}, {PROOFS: "ES256"}, [PROOFS]),
        ({"dpop": "require"}, {PROOFS: ["ES512", "ES256"]}, []),
        ({"dpop": "accept"}, {PROOFS: ["Ed25519"]}, []),
        ({"mtls": "require"}, {CERTIFICATES: True}, []),
    ],
)
def test_issuer_whose_metadata_binds_no_tokens_is_reported(
    tmp_path: Path, issuer: Issuer, rules: dict[str, str], document: dict[str, object], missing: list[str]
) -> None:
    """It is no failure: an issuer may bind tokens, and not say so."""
    issuer.documents = document
    table = "".join(f'{name} = "{value}"\n' for name, value in {"issuer": issuer.issuer, **rules}.items())
    code, (line,), _ = check(tmp_path, f'{table}[tls]\nclient_certificates = "ask"')
    assert (code, [name for name in (PROOFS, CERTIFICATES) if name in line]) == (0, missing)


def test_issuer_without_usable_key_is_a_problem(tmp_path: Path, issuer: Issuer) -> None:
    code, lines, _ = check(
        tmp_path, f'issuer = "{issuer.issuer}"\njwks_uri = "{issuer.origin}/jwks"\nalgorithms = ["PS512"]'
    )
    assert (code, lines) == (1, [f"bearer {issuer.issuer}: {issuer.origin}/jwks, which has no key for PS512"])


def test_each_failing_issuer_is_reported(tmp_path: Path, issuer: Issuer) -> None:
    """One that is down, one whose document is another issuer's, and one with files that are not there."""
    with Issuer(AUDIENCE, path="/tenant") as down:
        pass
    code, lines, error = check(
        tmp_path,
        f'issuer = "{down.issuer}"',
        f'issuer = "{issuer.issuer}/"',
        f'issuer = "{issuer.issuer}"\nca_file = "ca.pem"',
    )
    assert code == 1
    assert lines[0].startswith(f"bearer {down.issuer}: {down.issuer}/.well-known/openid-configuration: ")
    foreign = f'the document is not this issuer\'s: its issuer is "{issuer.issuer}", not "{issuer.issuer}/"'
    both = (
        f"{issuer.issuer}/.well-known/openid-configuration: {foreign}; "
        f"{issuer.issuer}/.well-known/oauth-authorization-server: unexpected HTTP status 404"
    )
    missing = f"{tmp_path}/ca.pem: cannot be read: No such file or directory"
    assert lines[1] == f"bearer {issuer.issuer}/: {both}"
    assert lines[2] == f"bearer {issuer.issuer}: postd.toml: bearer[2].ca_file: {missing}"
    assert error == "postd: found 3 problems\n"


def without_metadata(issuer: Issuer) -> str:
    """Serve no metadata and no keys; return the issuer's table with its introspection endpoint."""
    for path in (DISCOVERY, RFC_8414, "/jwks"):
        issuer.replies[path] = Reply(b"<html>", 404)
    return f'issuer = "{issuer.issuer}"\nintrospection_endpoint = "{issuer.origin}/introspect"'


@pytest.mark.parametrize("introspect", ["opaque", "all"])
def test_issuer_with_introspection_alone_is_ok(tmp_path: Path, issuer: Issuer, introspect: str) -> None:
    code, lines, _ = check(tmp_path, f'{without_metadata(issuer)}\nintrospect = "{introspect}"')
    none = [f"bearer {issuer.issuer}: ok, it publishes no keys: its tokens are only introspected"]
    answers = f"bearer {issuer.issuer}: ok, {issuer.origin}/introspect answers"
    assert (code, lines) == (0, [*(none if introspect == "opaque" else []), answers])


@pytest.mark.parametrize("path", ["/o", "/api/auth"])
def test_forgotten_path_of_an_issuer_is_found(tmp_path: Path, issuer: Issuer, path: str) -> None:
    without_metadata(issuer)
    found = f"{issuer.issuer}{path}"
    issuer.replies[f"{path}{DISCOVERY}"] = Reply(json.dumps({"issuer": found}).encode())
    code, (line,), _ = check(tmp_path, f'issuer = "{issuer.issuer}"')
    assert code == 1
    assert line.endswith(f'unexpected HTTP status 404; there is an issuer "{found}": is that the one?')


def test_fault_of_a_key_is_named(tmp_path: Path, issuer: Issuer) -> None:
    faulty = {**issuer.keys[0].jwk(), "n": "a b"}
    issuer.replies["/jwks"] = Reply(json.dumps({"keys": [faulty]}).encode())
    _, (line,), _ = check(tmp_path, f'issuer = "{issuer.issuer}"')
    assert line.endswith("it has no usable key: key 1 of 1: its n is not Base64url")


def test_check_ends_on_ctrl_c(tmp_path: Path, issuer: Issuer) -> None:
    """Ctrl-C while issuers hang: one line."""
    issuer.replies[DISCOVERY] = Reply(before=threading.Event())
    tables = "".join(f'[[bearer]]\nissuer = "{url}"\naudience = "x"\n' for url in (issuer.issuer, f"{issuer.issuer}/b"))
    issuer.replies[f"/b{DISCOVERY}"] = Reply(before=threading.Event())
    (tmp_path / "postd.toml").write_text(f'[api]\nread = ["bearer"]\n{tables}')
    command = [POSTD, "check", "-c", "postd.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for path in (DISCOVERY, f"/b{DISCOVERY}"):
            issuer.wait_for_request(path)
        process.send_signal(signal.SIGINT)
        shown, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (130, "postd: interrupted\n")
    assert shown.startswith("settings: ok\n")


@pytest.mark.parametrize(("status", "code"), [(200, 0), (401, 1)])
def test_introspection_endpoint_is_checked(tmp_path: Path, issuer: Issuer, status: int, code: int) -> None:
    """A wrong client secret is a problem, before it makes tokens fail."""
    (tmp_path / "secret").write_text("hush\n")
    endpoint = f"{issuer.origin}/introspect"
    issuer.replies["/introspect"] = Reply(status=status)
    issuer.replies["/jwks"] = Reply(status=status)  # whatever is wrong with the keys
    table = f'issuer = "{issuer.issuer}"\nintrospection_endpoint = "{endpoint}"\nclient_id = "postd"'
    exit_code, lines, _ = check(tmp_path, f'{table}\nclient_secret_file = "secret"')
    result = f"{endpoint}: unexpected HTTP status 401" if code else f"ok, {endpoint} answers"
    assert lines[0].endswith("/jwks: unexpected HTTP status 401") is bool(code)
    assert (exit_code, lines[1]) == (code, f"bearer {issuer.issuer}: {result}")
    (asked,) = [asked for asked in issuer.asked if asked.path == "/introspect"]
    assert asked.headers["authorization"] == "Basic cG9zdGQ6aHVzaA=="
    assert asked.form == {"token": "postd-check", "token_type_hint": "access_token"}
