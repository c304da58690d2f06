"""Tokens that are bound to a client certificate (RFC 8705 §3) over HTTP.

The certificate comes in `Client-Cert` of a proxy; that of a TLS connection is in tests/http/test_client_certificate.py.
"""

import base64
import hashlib
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import make_certificate
from tests.issuer import b64
from tests.protect.test_dpop import INVALID, MINT, PROVER, check_refused, dpop, make_server
from tests.web.wire import ask

PROXY = "127.0.0.1"


class Certificate:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        _, file = make_certificate(folder)
        der = ssl.PEM_cert_to_DER_cert(file.read_text())
        self.confirmation = {"x5t#S256": b64(hashlib.sha256(der).digest())}
        self.field = {"Client-Cert": f":{base64.b64encode(der).decode()}:"}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("shown") / "x")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("other") / "x")


def status(rule: Any, token: str, fields: Mapping[str, Any], *, proxies: tuple[str, ...] = (PROXY,)) -> int:
    server = make_server(mtls=rule, proxies=proxies)
    headers = {"Authorization": f"Bearer {token}", **fields}
    return ask(server, "GET", "/", headers=headers, peer=PROXY).status


@pytest.mark.parametrize("rule", ["accept", "require"])
def test_bound_token_needs_its_certificate(rule: str, shown: Certificate, other: Certificate) -> None:
    token = MINT.token(cnf=shown.confirmation)
    assert status(rule, token, shown.field) == 200
    for fields in ({}, other.field, {"Client-Cert": [shown.field["Client-Cert"]] * 2}, {"Client-Cert": "x"}):
        assert status(rule, token, fields) == 401
    assert status(rule, token, shown.field, proxies=("192.0.2.1",)) == 401


def test_rules(shown: Certificate) -> None:
    bound, unbound = MINT.token(cnf=shown.confirmation), MINT.token()
    for rule, statuses in (("refuse", (401, 200)), ("accept", (200, 200)), ("require", (200, 401))):
        assert (status(rule, bound, shown.field), status(rule, unbound, shown.field)) == statuses


def test_remembered_token_needs_its_certificate(shown: Certificate) -> None:
    server = make_server(mtls="accept", proxies=[PROXY])
    headers = {"Authorization": f"Bearer {MINT.token(cnf=shown.confirmation)}"}
    assert ask(server, "GET", "/", headers={**headers, **shown.field}, peer=PROXY).status == 200
    refused = ask(server, "GET", "/", headers=headers, peer=PROXY)
    check_refused(refused, f'Bearer realm="postd", {INVALID}', 'DPoP realm="postd", algs="ES256 EdDSA PS256 RS256"')


def test_token_may_be_bound_to_both(shown: Certificate) -> None:
    token = MINT.token(cnf={**shown.confirmation, **PROVER.confirmation})
    server = make_server(mtls="accept", proxies=[PROXY])
    assert ask(server, "GET", "/", headers={**dpop(token), **shown.field}, peer=PROXY).status == 200
    for fields in (dpop(token), {"Authorization": f"Bearer {token}", **shown.field}):
        assert ask(server, "GET", "/", headers=fields, peer=PROXY).status == 401
