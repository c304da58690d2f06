"""Bearer tokens of a real OpenID provider, fetched as its clients fetch them, at a real `twistd postd`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.helpers import PATIENCE_S, wait_until
from tests.integration.daemon import Daemon
from tests.integration.forking import run
from tests.integration.logins import POSTD, decode_parameters
from tests.issuer import Key, b64, unb64
from tests.system.provider import (
    AUDIENCE,
    BOTH,
    ELSEWHERE,
    OPAQUE,
    RESOURCE_SERVER,
    SECRET,
    Provider,
)

ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA"]
RESOURCE = f"{AUDIENCE}/post"
METADATA = f"{AUDIENCE}/.well-known/oauth-protected-resource/post"
INVALID = (
    'Bearer realm="postd", error="invalid_token", error_description="The access token is invalid", '
    f'scope="post:read", resource_metadata="{METADATA}"'
)
EXPIRED = INVALID.replace("The access token is invalid", "The access token expired")
POST = {"post": "by token"}
NOTICED_MAX_S = PATIENCE_S
"""The timeout of every wait."""

RULES = f"""
public_url = "{AUDIENCE}"
api = {{read = ["bearer"], write = ["bearer"]}}
"""


def describe(provider: Provider, **changed: Any) -> str:
    """Return the table of an issuer, without leeway: both use the same clock."""
    settings = {
        "issuer": provider.issuer,
        "audience": [AUDIENCE, RESOURCE, OPAQUE],
        "read_scope": "post:read",
        "write_scope": "post:write",
        "leeway": "1ms",
        **changed,
    }
    return "\n".join(["[[bearer]]", *(f"{name} = {json.dumps(value)}" for name, value in settings.items()), ""])


def introspecting(provider: Provider) -> str:
    """Return the table of an issuer with introspection."""
    endpoint = f"{provider.issuer}/token/introspection"
    return describe(
        provider, introspection_endpoint=endpoint, client_id=RESOURCE_SERVER, client_secret_file="client-secret"
    )


def page(*users: str) -> str:
    """Return the table of a page for these users, or for all authenticated ones."""
    return f'[[page]]\npath = "/mine"\nschemes = ["bearer"]\nusers = {list(users)}\n'


def write_settings(folder: Path, *tables: str) -> None:
    (folder / "postd.toml").write_text(RULES + "\n".join(tables))
    (folder / "client-secret").write_text(f"{SECRET}\n")


def serve(folder: Path, *tables: str) -> Daemon:
    write_settings(folder, *tables)
    return Daemon(folder, "-c", "postd.toml")


def decode_part(token: str, part: int) -> Any:
    """Return the header (0) or the claims (1) of a JWT."""
    return json.loads(unb64(token.split(".")[part]))


def with_token(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def read(daemon: Daemon, token: str, path: str = "/post") -> httpx.Response:
    return httpx.get(daemon.url + path, headers=with_token(token))


def write(daemon: Daemon, token: str) -> httpx.Response:
    return httpx.post(f"{daemon.url}/post", headers=with_token(token), json=POST)


def statuses(daemon: Daemon, token: str) -> tuple[int, int]:
    """Return the statuses of a read and of a write."""
    return read(daemon, token).status_code, write(daemon, token).status_code


def check_refused(daemon: Daemon, token: str, challenge: str = INVALID) -> None:
    for answer, scope in ((read(daemon, token), "post:read"), (write(daemon, token), "post:write")):
        expected = [challenge.replace("post:read", scope)]
        assert (answer.status_code, answer.headers.get_list("WWW-Authenticate")) == (401, expected)
        assert answer.headers["Content-Type"] == "application/problem+json"


def check_lacks(answer: httpx.Response, scope: str) -> None:
    """Check for 403 `insufficient_scope` (RFC 6750 §3.1)."""
    metadata = METADATA.removesuffix("/post") + answer.request.url.path
    challenge = f'Bearer realm="postd", error="insufficient_scope", scope="{scope}", resource_metadata="{metadata}"'
    assert (answer.status_code, answer.headers.get_list("WWW-Authenticate")) == (403, [challenge])


def check_unavailable(answer: httpx.Response) -> None:
    """Check for 503 without a challenge: the token could not be verified."""
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert "WWW-Authenticate" not in answer.headers


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """A provider with keys of each kind, shared by the tests of the module."""
    with Provider(*map(Key.make, ALGORITHMS)) as provider:
        yield provider


@pytest.fixture(scope="module")
def daemon(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with serve(tmp_path_factory.mktemp("daemon"), page(), introspecting(provider)) as daemon:
        yield daemon


# Tokens in the form of a JWT


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_client_credentials_token_reads_and_writes(daemon: Daemon, provider: Provider, algorithm: str) -> None:
    token = provider.client_credentials(BOTH, algorithm=algorithm)
    assert decode_part(token, 0)["alg"] == algorithm
    assert statuses(daemon, token) == (200, 201)
    assert read(daemon, token, "/mine").text == f"Success: machine-{algorithm}\n"


def test_authorization_code_token_reads_and_writes(daemon: Daemon, provider: Provider) -> None:
    token = provider.authorization_code("alice", BOTH).access
    assert statuses(daemon, token) == (200, 201)
    assert read(daemon, token, "/mine").text == "Success: alice\n"
    daemon.wait_for(f"{provider.issuer}#alice [")


def test_scope_allows_its_methods_only(daemon: Daemon, provider: Provider) -> None:
    reader = provider.client_credentials("post:read")
    assert read(daemon, reader).status_code == 200
    check_lacks(write(daemon, reader), "post:write")
    writer = provider.authorization_code("alice", "post:write").access
    assert write(daemon, writer).status_code == 201
    check_lacks(read(daemon, writer), "post:read")
    check_lacks(read(daemon, writer, "/mine"), "post:read")


def test_token_of_another_audience_is_refused(daemon: Daemon, provider: Provider) -> None:
    check_refused(daemon, provider.client_credentials(BOTH, ELSEWHERE))
    check_refused(daemon, provider.authorization_code("alice", BOTH, ELSEWHERE).access)


def test_expired_token_is_refused_as_expired(daemon: Daemon, provider: Provider) -> None:
    token = provider.client_credentials(BOTH, client="hasty")
    wait_until(lambda: read(daemon, token).status_code != 200, within_s=NOTICED_MAX_S)
    check_refused(daemon, token, EXPIRED)


def test_id_token_is_refused(daemon: Daemon, provider: Provider, tmp_path: Path) -> None:
    """Also where the application itself is the audience and no scope is required."""
    given = provider.authorization_code("alice", BOTH)
    check_refused(daemon, given.identity)
    audience = [AUDIENCE, decode_part(given.identity, 1)["aud"]]
    with serve(tmp_path, describe(provider, audience=audience, read_scope="", write_scope="")) as careless:
        assert statuses(careless, given.access) == (200, 201)
        check_refused(careless, given.identity, INVALID.replace('scope="post:read", ', ""))


def test_algorithm_that_is_not_set_is_refused(provider: Provider, tmp_path: Path) -> None:
    with serve(tmp_path, describe(provider, algorithms=["ES256"])) as daemon:
        assert statuses(daemon, provider.client_credentials(BOTH, algorithm="ES256")) == (200, 201)
        check_refused(daemon, provider.client_credentials(BOTH, algorithm="RS256"))


def test_same_name_at_another_issuer_is_forbidden(provider: Provider, tmp_path: Path) -> None:
    """The same name at two issuers means different users."""
    with Provider(Key.make("ES256")) as other:
        here, there = (issuer.authorization_code("alice", BOTH).access for issuer in (provider, other))
        with serve(tmp_path, page(f"{provider.issuer}#alice"), describe(provider), describe(other)) as daemon:
            assert statuses(daemon, here) == statuses(daemon, there) == (200, 201)
            assert read(daemon, here, "/mine").text == "Success: alice\n"
            assert read(daemon, there, "/mine").status_code == 403


def test_token_of_unknown_issuer_is_refused(daemon: Daemon) -> None:
    with Provider(Key.make("RS256")) as other:
        check_refused(daemon, other.client_credentials(BOTH))


# Opaque tokens


def test_opaque_token_is_introspected(daemon: Daemon, provider: Provider) -> None:
    """Of a client, whose introspection response has no `sub`, and of a user."""
    machine = provider.client_credentials(BOTH, OPAQUE)
    alice = provider.authorization_code("alice", BOTH, OPAQUE).access
    for token, name in ((machine, "machine-RS256"), (alice, "alice")):
        assert "." not in token
        assert statuses(daemon, token) == (200, 201)
        assert read(daemon, token, "/mine").text == f"Success: {name}\n"


def test_opaque_token_without_scope_is_forbidden(daemon: Daemon, provider: Provider) -> None:
    token = provider.client_credentials("post:read", OPAQUE)
    assert read(daemon, token).status_code == 200
    check_lacks(write(daemon, token), "post:write")


def test_opaque_token_without_audience_is_accepted_by_scope(daemon: Daemon, provider: Provider) -> None:
    """For example one for the provider's own userinfo endpoint, which is active too: only the scope excludes it."""
    token = provider.client_credentials("post:read", None)
    assert read(daemon, token).status_code == 200
    check_lacks(write(daemon, token), "post:write")
    check_lacks(read(daemon, provider.authorization_code("alice", "post:write", None).access), "post:read")


def test_malformed_token_is_refused(daemon: Daemon, provider: Provider) -> None:
    """The provider's introspection answers 400 to texts in the form of a JWT or a JWE."""
    encrypted = ".".join([b64(b'{"alg":"dir","enc":"A128GCM"}'), "", "iv", "text", "tag"])
    _, claims, signature = provider.client_credentials(BOTH).split(".")
    twice = ".".join([b64(b'{"alg":"RS256","alg":"RS256","kid":"RS256"}'), claims, signature])
    for token in ("nonsense", "a.b.c", "a.b.c.d.e", "e30=.e30=.e30=", encrypted, twice):
        check_refused(daemon, token)


def test_revoked_opaque_token_is_refused(daemon: Daemon, provider: Provider) -> None:
    token = provider.client_credentials(BOTH, OPAQUE)
    provider.revoke(token)
    check_refused(daemon, token)
    alice = provider.authorization_code("alice", BOTH, OPAQUE).access
    provider.revoke(alice, client="app")
    check_refused(daemon, alice)


def test_token_revoked_after_use_is_refused_by_a_fresh_daemon(
    daemon: Daemon, provider: Provider, tmp_path: Path
) -> None:
    """A daemon may cache a response for a minute; another one asks again."""
    token = provider.client_credentials(BOTH, OPAQUE)
    assert statuses(daemon, token) == (200, 201)
    provider.revoke(token)
    with serve(tmp_path, introspecting(provider)) as other:
        check_refused(other, token)


def test_expired_opaque_token_is_refused(daemon: Daemon, provider: Provider) -> None:
    token = provider.client_credentials(BOTH, OPAQUE, client="hasty")
    wait_until(lambda: read(daemon, token).status_code != 200, within_s=NOTICED_MAX_S)
    assert statuses(daemon, token) == (401, 401)


def test_opaque_token_without_introspection_is_refused(provider: Provider, tmp_path: Path) -> None:
    with serve(tmp_path, describe(provider)) as daemon:
        check_refused(daemon, provider.client_credentials(BOTH, OPAQUE))


def test_wrong_client_secret_is_503(provider: Provider, tmp_path: Path) -> None:
    write_settings(tmp_path, introspecting(provider))
    (tmp_path / "client-secret").write_text("another one")
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        check_unavailable(read(daemon, provider.client_credentials(BOTH, OPAQUE)))
        assert "another one" not in daemon.log


# Keys that change, and a provider that is away


def test_new_key_is_fetched_for_its_first_token(tmp_path: Path) -> None:
    old, new = Key.make("RS256", "old"), Key.make("RS256", "new")
    with Provider(old) as provider, serve(tmp_path, describe(provider)) as daemon:
        by_old = provider.client_credentials(BOTH)
        assert statuses(daemon, by_old) == (200, 201)
        provider.restart(new, old)
        by_new = provider.client_credentials(BOTH)
        assert decode_part(by_new, 0)["kid"] == new.kid
        assert statuses(daemon, by_new) == (200, 201)
        assert statuses(daemon, by_old) == (200, 201)


def test_removed_key_is_accepted_until_the_next_fetch(tmp_path: Path) -> None:
    with Provider(Key.make("ES256", "old")) as provider, serve(tmp_path, describe(provider)) as daemon:
        by_old = provider.client_credentials(BOTH)
        assert statuses(daemon, by_old) == (200, 201)
        provider.restart(Key.make("ES256", "new"))
        assert statuses(daemon, by_old) == (200, 201)
        assert statuses(daemon, provider.client_credentials(BOTH)) == (200, 201)
        check_refused(daemon, by_old)


def test_tokens_stay_valid_while_the_provider_is_down(tmp_path: Path) -> None:
    """Opaque tokens, which need the provider, do not."""
    with Provider(Key.make("RS256")) as provider, serve(tmp_path, introspecting(provider)) as daemon:
        held, later, opaque = (provider.client_credentials(BOTH, resource) for resource in (AUDIENCE, AUDIENCE, OPAQUE))
        assert statuses(daemon, held) == (200, 201)
        provider.stop()
        for token in (held, later):
            assert statuses(daemon, token) == (200, 201)
        check_unavailable(read(daemon, opaque))
        check_unavailable(write(daemon, opaque))


def test_provider_that_starts_later_is_found(tmp_path: Path) -> None:
    with Provider(Key.make("RS256")) as provider:
        token = provider.client_credentials(BOTH)
        provider.stop()
        with serve(tmp_path, page(), describe(provider)) as daemon:
            for answer in (read(daemon, token), write(daemon, token), read(daemon, token, "/mine")):
                check_unavailable(answer)
            assert httpx.get(f"{daemon.url}/post").status_code == 401
            provider.start()
            wait_until(lambda: read(daemon, token).status_code != 503, within_s=NOTICED_MAX_S)
            assert statuses(daemon, token) == (200, 201)


# Metadata, checks and the log


def test_challenge_metadata_leads_to_the_provider(daemon: Daemon, provider: Provider) -> None:
    """RFC 9728: a client that knows only the URL of the API."""
    (challenge,) = httpx.get(f"{daemon.url}/post").headers.get_list("WWW-Authenticate")
    assert challenge == f'Bearer realm="postd", scope="post:read", resource_metadata="{METADATA}"'
    path = urlsplit(decode_parameters(challenge)["resource_metadata"]).path
    answer = httpx.get(daemon.url + path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.headers["Cache-Control"] == "max-age=3600"
    members = answer.json()
    assert members == {
        "resource": RESOURCE,
        "authorization_servers": [provider.issuer],
        "scopes_supported": ["post:read", "post:write"],
        "bearer_methods_supported": ["header"],
    }
    token = provider.client_credentials(" ".join(members["scopes_supported"]), members["resource"])
    assert statuses(daemon, token) == (200, 201)


def check(folder: Path, provider: Provider) -> tuple[int, list[str]]:
    """Run `postd check` in a folder that has settings; return its exit status, and what it says of the provider."""
    ended = run([POSTD, "check", "-c", "postd.toml"], folder)
    assert SECRET.encode() not in ended.stdout + ended.stderr
    said = re.findall(f"^bearer {re.escape(provider.issuer)}: (.*)$", ended.stdout.decode(), re.MULTILINE)
    return ended.returncode, said


def test_check_names_keys_and_tests_introspection(provider: Provider, tmp_path: Path) -> None:
    write_settings(tmp_path, introspecting(provider))
    status, (keys, introspection) = check(tmp_path, provider)
    assert status == 0
    assert keys.startswith("ok, ")
    assert [kid for kid in ALGORITHMS if f"{kid} for " not in keys] == []
    assert introspection.startswith("ok, ")
    (tmp_path / "client-secret").write_text("another one\n")
    status, (keys, introspection) = check(tmp_path, provider)
    assert status == 1
    assert keys.startswith("ok, ")
    assert "401" in introspection


def test_check_reports_issuer_errors(tmp_path: Path) -> None:
    with Provider(Key.make("RS256")) as provider:
        write_settings(tmp_path, describe(provider, algorithms=["ES256"]))
        status, (keys,) = check(tmp_path, provider)
        assert status == 1
        assert "no key for ES256" in keys
        provider.stop()
        status, (keys,) = check(tmp_path, provider)
    assert status == 1
    assert "refused" in keys


def test_log_contains_no_token(daemon: Daemon, provider: Provider) -> None:
    alice = provider.authorization_code("alice", BOTH)
    taken_back = provider.client_credentials(BOTH, OPAQUE)
    provider.revoke(taken_back)
    forged = alice.access[:-4] + "AAAA"
    good = [alice.access, provider.client_credentials(BOTH), provider.client_credentials(BOTH, OPAQUE)]
    refused = [alice.identity, taken_back, forged, provider.client_credentials(BOTH, ELSEWHERE)]
    assert [read(daemon, token).status_code for token in good] == [200] * len(good)
    assert [read(daemon, token).status_code for token in refused] == [401] * len(refused)
    by_query = httpx.get(f"{daemon.url}/post", params={"access_token": alice.access})
    assert by_query.status_code == 401
    assert "invalid_token" not in by_query.headers["WWW-Authenticate"]
    httpx.get(f"{daemon.url}/post?after=987654321")
    daemon.wait_for("?after=987654321 ")
    log = daemon.log
    assert f"{provider.issuer}#alice" in log
    assert [secret for secret in secrets_of([*good, *refused]) if secret in log] == []
    assert "Traceback" not in log
    assert '" 500 ' not in log


def secrets_of(tokens: list[str]) -> list[str]:
    """Return the secrets: whole tokens, their parts and hashes, and the client secret."""
    parts = [part for token in tokens for part in token.split(".")]
    claims = [decode_part(token, 1) for token in tokens if "." in token]
    return [*parts, *(members["jti"] for members in claims if "jti" in members), ELSEWHERE, SECRET]
