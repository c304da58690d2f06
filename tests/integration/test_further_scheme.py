"""The example of CONTRIBUTING, "Add an authentication scheme", in a real server."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.daemon import Daemon

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
MODULE = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING.read_text(), re.DOTALL | re.MULTILINE)[0]

REGISTERED = """
import sys
sys.path.insert(0, {folder!r})
from postd.scheme_names import SCHEMES
SCHEMES["apikey"] = "apikey"
from twisted.scripts.twistd import run
sys.argv[:1] = []
sys.exit(run())
"""
"""Runs twistd with the module of the example; in the repository the line in `SCHEMES` registers it."""

SETTINGS = """
[api]
write = ["apikey"]

[[page]]
path = "/reports"
schemes = ["apikey", "basic"]

[[page]]
path = "/alone"
schemes = ["apikey"]
users = ["somebody else"]

[apikey]
account = "robot"
key_file = "key"

[throttle]
failures = 3
address_failures = 3
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "apikey.py").write_text(MODULE)
    (tmp_path / "key").write_text("s3cret\n")
    (tmp_path / "postd.toml").write_text(SETTINGS)
    through = (sys.executable, "-c", REGISTERED.format(folder=str(tmp_path)))
    with Daemon(tmp_path, "-c", "postd.toml", through=through) as daemon:
        yield daemon


def test_further_scheme_protects_pages_and_the_api(daemon: Daemon) -> None:
    right, wrong = {"X-Api-Key": "s3cret"}, {"X-Api-Key": "guess"}
    with httpx.Client(base_url=daemon.url, trust_env=False) as client:
        assert client.get("/reports", headers=right).text == "Success: robot\n"
        refused = client.get("/reports", headers=wrong)
        assert refused.status_code == 401
        assert refused.headers.get_list("WWW-Authenticate") == ['Basic realm="postd"']
        unasked = client.get("/alone")
        assert (unasked.status_code, unasked.headers["WWW-Authenticate"]) == (401, 'ApiKey realm="postd"')
        assert client.get("/alone", headers=right).status_code == 403
        assert client.post("/post", json={"post": "x"}, headers=wrong).status_code == 401
        assert client.post("/post", json={"post": "x"}, headers=right).status_code == 201
        document = client.get("/openapi.json").json()
        assert document["paths"]["/post"]["post"]["security"] == [{"apikey": []}]
        assert document["components"]["securitySchemes"]["apikey"]["name"] == "X-Api-Key"
        assert ">API key<" in client.get("/docs").text
        assert client.get("/alone", headers=wrong).status_code == 401
        assert client.get("/alone", headers=wrong).status_code == 429
        assert client.get("/alone", headers=right).status_code == 429
    assert "write apikey" in daemon.log
    daemon.wait_for(" - robot ")
    assert "scheme=apikey" in daemon.log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('account = "robot"', "", "postd.toml: apikey: account is missing"),
        ('account = "robot"', "account = 7", "postd.toml: apikey: account: expected a string, got a whole number"),
        ('["apikey", "basic"]', '["apikeys"]', "'apikeys' is not the name of a scheme"),
        ("[apikey]", "[basic]\nfoo = 1\n[apikey]", "postd.toml: basic: unknown key; this scheme has no table"),
        ("[api]", "basic = 5\n[api]", "postd.toml: basic: unknown key; this scheme has no table"),
        ('= "key"', '= "absent"', "absent: No such file or directory"),
        ('= "key"', '= "/dev/null"', "postd.toml: apikey: key_file: /dev/null is empty"),
        ('= "key"', "= 7", "postd.toml: apikey: key_file: expected a string, got a whole number"),
    ],
)
def test_settings_of_a_further_scheme_are_checked(tmp_path: Path, before: str, after: str, why: str) -> None:
    (tmp_path / "apikey.py").write_text(MODULE)
    (tmp_path / "key").write_text("s3cret\n")
    (tmp_path / "postd.toml").write_text(SETTINGS.replace(before, after))
    through = (sys.executable, "-c", REGISTERED.format(folder=str(tmp_path)))
    with Daemon(tmp_path, "-c", "postd.toml", wait=False, through=through) as daemon:
        assert daemon.process.wait(60) == 1
        assert why in daemon.log
