"""A client of the Model Context Protocol, PyPI's mcp, finds the issuer of the server in docs/tokens.md by itself."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests.helpers import PATIENCE_S
from tests.integration.test_tokens_page import Page, program
from tests.issuer import Key
from tests.system.provider import REDIRECT_URI, Provider

CLIENT = Path(__file__).with_name("mcp_client.py")


def test_client_that_knows_the_url_signs_in_and_calls_a_tool(tmp_path: Path) -> None:
    page = Page(tmp_path)
    origin = f"http://127.0.0.1:{page.port}"
    with Provider(Key.make("RS256"), scopes=["openid", "mcp"], resources={origin: "jwt"}) as provider:
        page.issuer = provider.issuer
        registration = {
            "client_id": "app-RS256",
            "redirect_uris": [REDIRECT_URI],
            "token_endpoint_auth_method": "none",
            "issuer": provider.issuer,
        }
        with (
            program(page),
            subprocess.Popen(
                [sys.executable, str(CLIENT), f"{origin}/mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as client,
        ):
            assert client.stdin
            assert client.stdout
            print(json.dumps(registration), file=client.stdin, flush=True)
            asked = dict(parse_qsl(urlsplit(client.stdout.readline().strip()).query))
            assert (asked["scope"], asked["resource"]) == ("mcp", origin)
            said, _ = client.communicate(json.dumps(provider.sign_in("alice", asked)), timeout=PATIENCE_S)
    assert (client.returncode, said) == (0, "whoami: alice\n")
