"""Authentication with Debian's curl and wget, and a user file that Apache's htpasswd edits."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.logins import check_info, decode_parameters, run_postd_user, sign_in, taken_up

PASSWORD = "pä:ß wörd:€"
SUCCESS = "Success: alice\n"
JSON = "Content-Type: application/json"

SETTINGS = """
users = "users"
api = {read = ["basic", "digest"], write = ["basic", "digest"]}
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    users = tmp_path_factory.mktemp("users") / "users"
    run_postd_user(users, "add", "alice", PASSWORD)
    run_postd_user(users, "add", "jürgen", PASSWORD)
    return users


def serve(folder: Path, users: Path, settings: str = 'users = "users"') -> Daemon:
    (folder / "postd.toml").write_text(settings)
    return Daemon(folder, "-c", "postd.toml", "-u", str(users))


@pytest.fixture(scope="module", params=["MD5", "SHA-256", "SHA-256 MD5"])
def offering(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, users: Path
) -> Iterator[tuple[Daemon, list[str]]]:
    """A daemon whose rules use Digest with these algorithms, and their names."""
    algorithms = request.param.split()
    with serve(tmp_path_factory.mktemp("offering"), users, f"{SETTINGS}\ndigest.algorithms = {algorithms}") as daemon:
        yield daemon, algorithms


# curl


def curl(scheme: str, *options: str, user: str = "alice") -> tuple[list[str], str]:
    """Return curl's verbose output without its marks, and the body of the last response."""
    result = run("curl", "-sSv", scheme, "--user", f"{user}:{PASSWORD}", *options)
    assert result.returncode == 0, result.stderr
    return result.stderr.splitlines(), result.stdout


def statuses(said: list[str]) -> list[int]:
    return [int(line.split()[2]) for line in said if line.startswith("< HTTP/1.1 ")]


def field(said: list[str], name: str) -> str:
    """Return the last one of a header field, sent or received."""
    return [line.split(": ", 1)[1] for line in said if line[2:].lower().startswith(f"{name.lower()}: ")][-1]


def check_digest(said: list[str], algorithm: str) -> None:
    credentials = field(said, "Authorization")
    assert credentials.startswith("Digest ")
    assert decode_parameters(credentials).get("algorithm", "MD5") == algorithm
    check_info(field(said, "Authentication-Info"), credentials, PASSWORD)


def test_curl_reads_with_digest(offering: tuple[Daemon, list[str]]) -> None:
    daemon, algorithms = offering
    for path in ("/digest", "/digest?a=1&b=%20"):
        said, body = curl("--digest", daemon.url + path)
        assert (statuses(said), body) == ([401, 200], SUCCESS)
        check_digest(said, algorithms[0])
    said, body = curl("--digest", "--head", f"{daemon.url}/digest")
    assert statuses(said) == [401, 200]
    assert "Content-Length: 15" in body
    check_digest(said, algorithms[0])


def test_curl_writes_with_digest(offering: tuple[Daemon, list[str]]) -> None:
    """Debian's curl sends the first request without its body."""
    check_writes(offering[0], "--digest", [401])


def test_curl_writes_with_basic(offering: tuple[Daemon, list[str]]) -> None:
    check_writes(offering[0], "--basic", [])


def check_writes(daemon: Daemon, scheme: str, before: list[int]) -> None:
    body = json.dumps({"post": "Grüße " + "x" * 100})
    said, reply = curl(scheme, "-H", JSON, "-d", body, f"{daemon.url}/post")
    assert (statuses(said), reply) == ([*before, 201], "Success a Post!\n")
    url = daemon.url + field(said, "Location")
    said, _ = curl(scheme, url)
    etag = field(said, "ETag")
    change = ("-X", "PUT", "-H", JSON, "-d", '{"post": "changed"}', url)
    said, reply = curl(scheme, "-H", f"If-Match: {etag}", *change)
    assert (statuses(said), reply) == ([*before, 200], "Update a Post!\n")
    said, _ = curl(scheme, "-H", f"If-Match: {etag}", *change)
    assert statuses(said) == [*before, 412]
    said, reply = curl(scheme, "-X", "DELETE", url)
    assert (statuses(said), reply) == ([*before, 200], "Delete a Post!\n")


def test_curl_sends_a_large_body_after_100_continue_only(offering: tuple[Daemon, list[str]], tmp_path: Path) -> None:
    """Debian's curl sends `Expect: 100-continue`, and gets 413 instead."""
    daemon, _ = offering
    large = tmp_path / "large"
    large.write_text("x" * 2_000_000)
    said, _ = curl("--digest", "-H", JSON, "-T", str(large), f"{daemon.url}/post/1")
    assert statuses(said) == [401, 413]


def test_curl_anyauth_chooses_the_strongest_scheme(offering: tuple[Daemon, list[str]]) -> None:
    """Digest where it is offered, else Basic."""
    daemon, algorithms = offering
    said, body = curl("--anyauth", f"{daemon.url}/post")
    assert (statuses(said), body[:1]) == ([401, 200], "[")
    check_digest(said, algorithms[0])
    said, body = curl("--anyauth", f"{daemon.url}/basic")
    assert (statuses(said), body) == ([401, 200], SUCCESS)
    assert field(said, "Authorization").startswith("Basic ")


def test_curl_reads_with_basic(offering: tuple[Daemon, list[str]]) -> None:
    daemon, _ = offering
    for option in ("--get", "--head"):
        said, _ = curl("--basic", option, f"{daemon.url}/basic")
        assert statuses(said) == [200]


def test_curl_utf_8_name_is_accepted(offering: tuple[Daemon, list[str]]) -> None:
    daemon, _ = offering
    for scheme, path in (("--digest", "/digest"), ("--basic", "/basic")):
        _, body = curl(scheme, daemon.url + path, user="jürgen")
        assert body == "Success: jürgen\n"


def test_curl_signs_in_by_form(offering: tuple[Daemon, list[str]], tmp_path: Path) -> None:
    daemon, _ = offering
    jar = str(tmp_path / "cookies")
    cookies = ("-sS", "-L", "-b", jar, "-c", jar)
    fields = ("--data-urlencode", "username=alice", "--data-urlencode", f"password={PASSWORD}")
    assert run("curl", *cookies, *fields, f"{daemon.url}/login").stdout == SUCCESS
    assert run("curl", *cookies, f"{daemon.url}/home").stdout == SUCCESS
    assert "login_form" in run("curl", *cookies, "-d", "", f"{daemon.url}/logout").stdout
    assert "login_form" in run("curl", *cookies, f"{daemon.url}/home").stdout


# wget


def wget(*options: str) -> tuple[list[int], str]:
    """Return the status of each response, and the body of the last one."""
    result = run("wget", "-S", "-O", "-", "--user", "alice", "--password", PASSWORD, *options)
    return [int(status) for status in re.findall(r"^  HTTP/1\.1 ([0-9]+) ", result.stderr, re.MULTILINE)], result.stdout


def test_wget_reads_with_digest(offering: tuple[Daemon, list[str]]) -> None:
    """Debian's wget (1.21) supports MD5 only; its response to SHA-256 must not count as a failure of another user."""
    daemon, algorithms = offering
    if "MD5" not in algorithms:
        assert wget(f"{daemon.url}/digest")[0] == [401, 401]
        assert "an algorithm that was not offered" in daemon.log
        return
    assert wget(f"{daemon.url}/digest") == ([401, 200], SUCCESS)
    assert wget("--spider", f"{daemon.url}/digest")[0] == [401, 200]


def test_wget_writes_with_digest(tmp_path: Path, users: Path) -> None:
    with serve(tmp_path, users, 'api.write = ["digest"]') as daemon:
        body = ("--header", JSON, "--body-data", '{"post": "Grüße"}')
        assert wget("--method", "POST", *body, f"{daemon.url}/post") == ([401, 201], "Success a Post!\n")
        assert wget("--method", "PUT", *body, f"{daemon.url}/post/1") == ([401, 200], "Update a Post!\n")
        assert wget("--method", "DELETE", f"{daemon.url}/post/1") == ([401, 200], "Delete a Post!\n")


def test_wget_reads_with_basic(offering: tuple[Daemon, list[str]]) -> None:
    daemon, _ = offering
    assert wget(f"{daemon.url}/basic") == ([401, 200], SUCCESS)
    assert wget("--auth-no-challenge", f"{daemon.url}/basic") == ([200], SUCCESS)
    assert wget("--spider", f"{daemon.url}/basic")[0] == [401, 200]
    # Of several challenges it takes the last.
    assert wget(f"{daemon.url}/post")[0] == [401, 200]


# Apache's htpasswd


def htpasswd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("htpasswd", *arguments)


def check_lets_in(daemon: Daemon, name: str, password: str, *, digest: bool) -> None:
    said = f"Success: {name}\n"
    assert httpx.get(f"{daemon.url}/basic", auth=(name, password)).text == said
    session = sign_in(daemon, name, password).cookies["session"]
    assert httpx.get(f"{daemon.url}/home", headers={"Cookie": f"session={session}"}).text == said
    by_digest = httpx.get(f"{daemon.url}/digest", auth=httpx.DigestAuth(name, password))
    assert by_digest.status_code == (200 if digest else 401)


def test_file_of_htpasswd_is_accepted(tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert htpasswd("-B", "-b", "-c", str(users), "carol", PASSWORD).returncode == 0
    assert htpasswd("-B", "-C", "10", "-b", str(users), "dave", "another:one").returncode == 0
    with serve(tmp_path, users) as daemon:
        for name, password in (("carol", PASSWORD), ("dave", "another:one")):
            check_lets_in(daemon, name, password, digest=False)
            assert httpx.get(f"{daemon.url}/basic", auth=(name, "wrong")).status_code == 401
        (warning,) = [line for line in daemon.log.splitlines() if "#warn]" in line]
        for words in ("Digest", "carol, dave", "postd user passwd"):
            assert words in warning
        with taken_up(daemon, "2 users"):
            run_postd_user(users, "passwd", "carol", "a third")
        check_lets_in(daemon, "carol", "a third", digest=True)


def test_other_htpasswd_hashes_are_refused_by_line(tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert htpasswd("-B", "-b", "-c", str(users), "carol", PASSWORD).returncode == 0
    assert htpasswd("-m", "-b", str(users), "dave", PASSWORD).returncode == 0
    daemon = serve(tmp_path, users)
    with pytest.raises(AssertionError, match=rf"postd: {users}: line 2: .*Apache MD5"), daemon:
        pass
    assert daemon.process.wait(PATIENCE_S) == 1


def test_htpasswd_and_postd_edit_the_same_file(tmp_path: Path) -> None:
    """Each keeps the lines of the other; htpasswd cannot verify Argon2id, and its entries have no Digest."""
    users = tmp_path / "users"
    assert htpasswd("-B", "-b", "-c", str(users), "carol", PASSWORD).returncode == 0
    run_postd_user(users, "add", "alice", PASSWORD)
    carols, alices = users.read_text().splitlines()
    assert htpasswd("-vb", str(users), "carol", PASSWORD).returncode == 0
    assert htpasswd("-vb", str(users), "carol", "wrong").returncode == 3
    assert htpasswd("-vb", str(users), "alice", PASSWORD).returncode == 3
    with serve(tmp_path, users) as daemon:
        with taken_up(daemon, "3 users"):
            assert htpasswd("-B", "-b", str(users), "dave", PASSWORD).returncode == 0
        assert users.read_text().splitlines()[:2] == [carols, alices]
        check_lets_in(daemon, "alice", PASSWORD, digest=True)
        check_lets_in(daemon, "dave", PASSWORD, digest=False)
        with taken_up(daemon, "3 users"):
            run_postd_user(users, "passwd", "dave", "another")
        assert users.read_text().splitlines()[:2] == [carols, alices]
        assert htpasswd("-vb", str(users), "carol", PASSWORD).returncode == 0
        with taken_up(daemon, "3 users"):
            assert htpasswd("-B", "-b", str(users), "alice", "by Apache").returncode == 0
        assert users.read_text().splitlines()[0] == carols
        check_lets_in(daemon, "alice", "by Apache", digest=False)


def test_htpasswd_refuses_a_file_with_long_lines(tmp_path: Path) -> None:
    """Its lines have up to 255 characters: ours with Digest do so for names of up to 35 bytes, in the realm "postd"."""
    users = tmp_path / "users"
    run_postd_user(users, "add", "n" * 36, PASSWORD)
    before = users.read_bytes()
    result = htpasswd("-B", "-b", str(users), "dave", PASSWORD)
    assert "does not appear to be a valid htpasswd file" in result.stderr
    assert result.returncode == 7
    assert users.read_bytes() == before
