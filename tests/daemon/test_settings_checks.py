"""Problems of settings that can be loaded."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from postd.auth.user_file import Account, make_account
from postd.daemon.schemes import make_schemes
from postd.daemon.settings_checks import exposure_problem, find_problems
from postd.settings.loading import LoadedSettings
from postd.settings.schema import Settings
from postd.settings.values import decode_value
from tests.cases import each

IDP = '[[bearer]]\nissuer = "https://idp.example"\naudience = "https://posts.example"\n'
SIGN_IN = '[[sign_in]]\nid = "a"\nname = "A"\nissuer = "https://sign-in.example"\nclient_id = "postd"\n'
ALICE = {"alice": make_account("alice", "secret", "postd")}
OTHERS_WRITE = '[api]\nwrite = ["bearer"]\n'


def settings(toml: str) -> Settings:
    made: Settings = msgspec.convert(tomllib.loads(toml), Settings, dec_hook=decode_value)
    return made


def exposed(toml: str) -> str | None:
    made = settings(toml)
    return exposure_problem(made, make_schemes(LoadedSettings(made, {}, {})))


@each(
    "toml, what",
    [
        (IDP, "tokens"),
        ('users = "users"\n', "passwords"),
        ('users = "users"\n' + IDP, "passwords and tokens"),
        ('[[page]]\npath = "/a"\nschemes = ["token"]\n', "tokens"),
    ],
)
def test_plaintext_credentials_on_a_public_listener_are_a_problem(toml: str, what: str) -> None:
    line = exposed(f"{toml}{OTHERS_WRITE}")
    assert line is not None
    assert line.startswith(f"{what} would be sent in clear text; listen on loopback, unix: or ssl:, ")
    for known in ('insecure = ["plaintext-passwords"]', 'trusted_proxies = ["10.0.0.1"]'):
        assert exposed(f"{known}\n{toml}{OTHERS_WRITE}") is None


def problems(toml: str, accounts: Mapping[str, Account] | None = None) -> list[str]:
    made = settings(toml)
    return find_problems(made, make_schemes(LoadedSettings(made, {}, {})), accounts)


def test_user_file_that_cannot_be_written_is_a_problem_if_passwords_may_be_changed(tmp_path: Path) -> None:
    change = "[accounts]\nchange_password = true"
    assert problems(change) == ["[accounts] change_password: users is not set: there are no passwords to change"]
    missing = f'users = "{tmp_path}/none/users"\n'
    assert problems(missing, ALICE) == []
    assert problems(missing + change, ALICE) == [
        (
            f"[accounts] change_password: {tmp_path}/none/users: cannot be written: No such file or directory; "
            "no password can be changed"
        )
    ]
    assert problems(f'users = "{tmp_path}/users"\n{change}', ALICE) == []


def test_bearer_scheme_without_issuer_is_a_problem() -> None:
    assert problems('[api]\nread = ["bearer"]\nwrite = ["bearer"]') == [
        "no [[bearer]] is set: no token is accepted for read, write"
    ]


def test_issuer_without_bearer_scheme_is_a_problem() -> None:
    assert problems(IDP) == []  # tokens give an open request its identity
    assert problems(f'[api]\nread = ["basic"]\nwrite = ["basic"]\n{IDP}')[:1] == [
        '[[bearer]] is set, but no rule has "bearer" or "open" among its schemes: tokens are accepted nowhere'
    ]


def test_user_file_is_required_only_for_password_schemes() -> None:
    assert problems(f"{OTHERS_WRITE}{IDP}") == []
    assert problems(f'[api]\nwrite = ["bearer", "basic"]\n{IDP}') == [
        "users is not set: no password is accepted for write"
    ]


def test_token_scheme_needs_accounts_alone() -> None:
    token = '[api]\nwrite = ["token"]\n'
    assert problems(f'users = "users"\n{token}', ALICE) == []
    assert problems(token) == ["users is not set: no password and no token is accepted for write"]
    assert problems(token + SIGN_IN) == []


@each(
    "rule, warns",
    [('["session"]', True), ('["session", "basic"]', True), ('["session", "token"]', False), ('["open"]', False)],
)
def test_tokens_that_no_rule_accepts_are_a_problem(rule: str, *, warns: bool) -> None:
    toml = f'users = "users"\npage = []\napi = {{read = {rule}, write = ["session"]}}\naccounts = {{tokens = true}}'
    problem = 'users may make tokens ([accounts]), but no access rule has "token"'
    assert (problem in problems(toml)) == warns


def test_scope_that_no_personal_token_has_is_a_problem() -> None:
    page = 'users = "users"\n[[page]]\npath = "/a"\nschemes = ["token"]\nread_scope = "{}"\n'
    assert problems(page.format("read write"), ALICE) == []
    assert problems(page.format("post:read"), ALICE) == [
        'page /a: its scope "post:read": no personal access token has it, only "read" and "write"'
    ]


@each(
    "schemes, user, why",
    [
        ('"bearer", "basic"', "alice", ""),
        ('"bearer"', "https://idp.example#bob", ""),
        ('"bearer"', "https://other#eve", "neither [[bearer]] nor [[sign_in]] has such an issuer"),
        ('"bearer"', "https://idp.example", "the owner of a token is written ISSUER#NAME"),
        ('"bearer"', "https://idp.example#", "the owner of a token is written ISSUER#NAME"),
        ('"bearer"', "alice", "it is a name of the user file, and all schemes of the page identify users by issuer"),
        ('"basic"', "https://idp.example#bob", '"bearer" is not among the schemes'),
        ('"token"', "https://sign-in.example#bob", ""),
        ('"token"', "https://idp.example#bob", '"bearer" is not among the schemes'),
        ('"basic"', "https://sign-in.example#bob", '"session" or "token" is not among the schemes'),
    ],
)
def test_page_user_that_can_never_enter_is_named(schemes: str, user: str, why: str) -> None:
    page = f'[[page]]\npath = "/a"\nschemes = [{schemes}]\nusers = ["{user}"]\n'
    account = make_account("alice", "secret", "postd")
    found = problems(f'users = "users"\n{OTHERS_WRITE}{page}{IDP}{SIGN_IN}', {"alice": account})
    assert found == ([f"page /a: {user} of its users can never have access: {why}"] if why else [])


def test_client_id_without_introspection_endpoint_is_a_problem() -> None:
    issuer = f'{OTHERS_WRITE}{IDP}client_id = "postd"\n'
    assert problems(issuer) == ["client_id of https://idp.example has no effect without introspection_endpoint"]
    assert problems(f'{issuer}introspection_endpoint = "https://idp.example/introspect"') == []


@each(
    "toml, warns",
    [
        ("", False),
        ('listen = ["tcp:8080"]', True),
        ('listen = ["tcp:8080:interface=127.0.0.1", "unix:/run/postd.sock"]', True),
        ('listen = ["tcp:8080"]\npublic_url = "https://posts.example"', False),
        ('listen = ["tcp:8080"]\nhosts = ["posts.example"]', False),
        ('hosts = ["*"]', True),
        ('hosts = ["*"]\npublic_url = "https://posts.example"', False),
        ('trusted_proxies = ["127.0.0.1"]', True),
    ],
)
def test_proofs_are_a_problem_where_clients_name_any_host(toml: str, *, warns: bool) -> None:
    why = "proofs are checked against the Host of the request, which may be any host: set public_url or hosts"
    line = f"dpop of https://idp.example: {why}"
    for rule, expected in (("refuse", []), ("accept", [line] * warns), ("require", [line] * warns)):
        assert problems(f'{toml}\n{OTHERS_WRITE}{IDP}dpop = "{rule}"\n') == expected


def test_own_posts_with_open_writes_are_a_problem() -> None:
    why = 'write has "open": posts that are added without credentials can be changed only by moderators'
    assert problems('users = "users"\n[api]\nown = true', ALICE) == [f"[api] own: {why}"]
    assert problems(f"{OTHERS_WRITE}own = true\n{IDP}") == []


def test_proxy_header_inside_tls_is_a_problem() -> None:
    endpoint = "haproxy:ssl:8443:interface=127.0.0.1:privateKey=/k:certKey=/c"
    why = "expects the PROXY header inside TLS, where no known proxy sends it; use haproxy:tcp:"
    for table in ("", "[admin]\n"):
        assert problems(f'{table}listen = ["{endpoint}"]\n{OTHERS_WRITE}{IDP}') == [f"{endpoint}: {why}"]


def test_moderators_without_own_posts_are_a_problem() -> None:
    assert problems(f'{OTHERS_WRITE}moderators = ["https://idp.example#bob"]\n{IDP}') == [
        "[api] moderators: without own = true, all who may write may change all posts"
    ]


def test_moderator_who_has_no_account_is_a_problem() -> None:
    toml = (
        'users = "users"\n[api]\nwrite = ["basic"]\nown = true\nmoderators = ["alice", "bob", "https://idp.example#x"]'
    )
    assert problems(toml, ALICE) == ["users: has no bob, named by [api] moderators"]


@each(
    "toml, why",
    [
        ("", ""),
        ('listen = ["tcp:80:interface=127.0.0.1", "tcp6:80:interface=\\\\:\\\\:1"]', ""),
        ('public_url = "https://posts.example"\nlisten = ["tcp:80"]', ""),
        ('public_url = "http://localhost:8080"', ""),
        ('listen = ["tcp:80"]', "without public_url"),
        ('trusted_proxies = ["127.0.0.1"]', "without public_url"),
        ('public_url = "https://192.0.2.1"', "at public_url https://192.0.2.1:"),
        ('public_url = "http://posts.example"', "at public_url http://posts.example:"),
        ('public_url = "http://127.0.0.1:8080"', "at public_url http://127.0.0.1:8080:"),
    ],
)
def test_address_without_passkeys_is_a_problem(toml: str, why: str) -> None:
    found = [one for one in problems(f"{toml}\n[accounts]\npasskeys = true\n") if "passkeys" in one]
    assert len(found) == bool(why)
    assert all(one.startswith("[accounts] passkeys: ") and why in one for one in found)
    assert not [one for one in problems(toml) if "passkeys" in one]
