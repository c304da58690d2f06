"""What settings ask for and cannot have, in sentences."""

import tomllib
from collections.abc import Mapping

import msgspec
import pytest

from postd.auth.user_file import Account, make_account
from postd.daemon.settings_checks import exposure_problem, find_problems
from postd.settings.schema import Settings
from postd.settings.values import decode_value

IDP = '[[bearer]]\nissuer = "https://idp.example"\naudience = "https://posts.example"\n'
OTHERS_WRITE = '[api]\nwrite = ["bearer"]\n'


def settings(toml: str) -> Settings:
    made: Settings = msgspec.convert(tomllib.loads(toml), Settings, dec_hook=decode_value)
    return made


@pytest.mark.parametrize(
    ("toml", "what"),
    [
        (IDP, "tokens"),
        ('users = "users"\n', "passwords"),
        ('users = "users"\n' + IDP, "passwords and tokens"),
    ],
)
def test_secrets_do_not_travel_in_plain_text(toml: str, what: str) -> None:
    line = exposure_problem(settings(f"{toml}{OTHERS_WRITE}"))
    assert line is not None
    assert line.startswith(f"{what} would travel in plain text; listen on loopback, unix: or ssl:, ")
    for known in ('insecure = ["plaintext-passwords"]', 'trusted_proxies = ["10.0.0.1"]'):
        assert exposure_problem(settings(f"{known}\n{toml}{OTHERS_WRITE}")) is None


def problems(toml: str, accounts: Mapping[str, Account] | None = None) -> list[str]:
    return find_problems(settings(toml), accounts)


def test_tokens_that_nobody_issues() -> None:
    assert problems('[api]\nread = ["bearer"]\nwrite = ["bearer"]') == [
        "no [[bearer]] is set: no token is accepted, which read, write would ask for"
    ]


def test_tokens_that_nobody_asks_for() -> None:
    assert problems(IDP) == ['no rule has "bearer" among its schemes: tokens are accepted nowhere']


def test_with_tokens_alone_no_users_are_missed() -> None:
    assert problems(f"{OTHERS_WRITE}{IDP}") == []
    assert problems(f'[api]\nwrite = ["bearer", "basic"]\n{IDP}') == [
        "users is not set: nobody can sign in with a password, which write would ask for"
    ]


@pytest.mark.parametrize(
    ("schemes", "user", "why"),
    [
        ('"bearer", "basic"', "alice", ""),
        ('"bearer"', "https://idp.example#bob", ""),
        ('"bearer"', "https://other#eve", "there is no such issuer under [[bearer]]"),
        ('"bearer"', "https://idp.example", "the owner of a token is written ISSUER#NAME"),
        ('"bearer"', "https://idp.example#", "the owner of a token is written ISSUER#NAME"),
        ('"bearer"', "alice", "a name of the user file, and only tokens are asked for there"),
        ('"basic"', "https://idp.example#bob", "no token is asked for there"),
    ],
)
def test_who_is_to_enter_a_page_and_cannot(schemes: str, user: str, why: str) -> None:
    page = f'[[page]]\npath = "/a"\nschemes = [{schemes}]\nusers = ["{user}"]\n'
    account = make_account("alice", "secret", "postd")
    found = problems(f'users = "users"\n{OTHERS_WRITE}{page}{IDP}', {"alice": account})
    assert found == ([f"{user}, who may enter /a, cannot: {why}"] if why else [])


def test_a_client_that_nobody_asks_with() -> None:
    issuer = f'{OTHERS_WRITE}{IDP}client_id = "postd"\n'
    assert problems(issuer) == ["client_id of https://idp.example is of use only with introspection_endpoint"]
    assert problems(f'{issuer}introspection_endpoint = "https://idp.example/introspect"') == []
