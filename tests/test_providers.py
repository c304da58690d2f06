"""The settings on the pages of `docs/how-to/providers` are valid, and fit the provider's tokens.

The tokens have the claims that the pages describe, by the providers' documentation and sources.
"""

import ast
import json
import re
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from twisted.internet.task import Clock

from postd.auth.bearer import Issuer
from postd.daemon.schemes import make_issuer
from postd.protocol.jwk import SigningKey, decode_key_set
from postd.protocol.jwt import Jwt, TokenError, decode_jwt
from postd.reactor import IReactor
from postd.settings.loading import load_settings
from postd.settings.schema import Settings
from tests.cases import each
from tests.helpers import result_of
from tests.issuer import ABSENT, Key, Mint

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs/how-to/providers").glob("*.md"))
PROVIDERS = {
    *("auth0", "authentik", "better-auth", "canaille", "cognito", "dex", "django-allauth", "django-oauth-toolkit"),
    *("entra-id", "glewlwyd", "keycloak", "lemonldap-ng", "oidc-provider", "okta", "zitadel"),
}
POSTS, APP = "https://posts.example", "an application"


class Form(NamedTuple):
    """A block of settings on a page."""

    page: Path
    number: int
    toml: str

    def __str__(self) -> str:
        return f"{self.page.stem} {self.number}"


BLOCKS = [
    Form(page, number, toml)
    for page in PAGES
    for number, toml in enumerate(
        re.findall(r"^```toml(?: postd\.toml)?\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL), 1
    )
]
SIGN_INS = [block for block in BLOCKS if "[[sign_in]]" in block.toml]
FORMS = [block for block in BLOCKS if block not in SIGN_INS]


class Tokens(NamedTuple):
    """The contents of a provider's tokens beside `iss`, `sub` and times.

    Args:
        typ: in the header of access tokens.
        access: claims of an access token with the scopes to read and write.
        identity: claims of the ID token for the same user; None where the page says that the two cannot be
            distinguished, or tokens are opaque.
        answer: the introspection response; None where tokens are verified with keys.
        user: the owner of the token.
    """

    typ: Any
    access: Mapping[str, Any]
    identity: Mapping[str, Any] | None
    answer: Mapping[str, Any] | None = None
    user: str = "alice"


SCOPE = "post:read post:write"
OPAQUE: Any = None
NONE: Mapping[str, Any] = {}
COGNITO = {"scope": f"{POSTS}/read {POSTS}/write", "token_use": "access"}
OIDC_PROVIDER = {"aud": POSTS, "client_id": APP, "scope": SCOPE}
ZITADEL = {"aud": [APP, "PROJECT_ID"], "client_id": APP}

TOKENS = {
    "auth0 1": Tokens(
        "JWT",
        {"aud": [POSTS, "https://tenant.eu.auth0.com/userinfo"], "azp": APP, "scope": f"openid {SCOPE}"},
        {"aud": APP, "nonce": "n"},
    ),
    "authentik 1": Tokens(
        "JWT",
        {"aud": "CLIENT_ID", "azp": "CLIENT_ID", "uid": "u", "nonce": "n", "scp": SCOPE.split()},
        {"aud": "CLIENT_ID", "nonce": "n", "at_hash": "h", "scp": SCOPE.split()},
    ),
    "better-auth 1": Tokens("at+jwt", {"aud": POSTS, "azp": APP, "client_id": APP, "scope": SCOPE}, {"aud": APP}),
    "canaille 1": Tokens(
        "JWT",
        {"aud": [APP, "posts-server"], "auth_time": 1},
        None,
        {
            "aud": [APP, "posts-server"],
            "client_id": APP,
            "exp": 2**40 + 0.154,
            "scope": f"openid {SCOPE}",
            "sub": "alice",
            "token_type": "access_token",
            "username": "Alice A",
        },
    ),
    "django-allauth 1": Tokens(
        "JWT",
        {"aud": ABSENT, "sub": ABSENT, "client_id": "posts-cli", "token_use": "access", "scope": SCOPE},
        {"aud": "posts-cli", "nonce": "n", "at_hash": "h", "sub": "5"},
        user="posts-cli",
    ),
    "django-allauth 2": Tokens(
        OPAQUE, NONE, None, {"client_id": "posts-cli", "scope": SCOPE, "token_type": "access_token"}, "posts-cli"
    ),
    "django-oauth-toolkit 1": Tokens(
        OPAQUE, NONE, None, {"client_id": "posts-cli", "scope": SCOPE, "username": "alice", "exp": 2**40}
    ),
    "cognito 1": Tokens(
        ABSENT,
        {"aud": ABSENT, "client_id": "APP_CLIENT_ID", "username": "alice", **COGNITO},
        {"aud": "APP_CLIENT_ID", "token_use": "id", "at_hash": "h"},
    ),
    "cognito 2": Tokens(
        ABSENT,
        {"aud": POSTS, "client_id": "APP_CLIENT_ID", "username": "alice", **COGNITO},
        {"aud": "APP_CLIENT_ID", "token_use": "id", "at_hash": "h"},
    ),
    "dex 1": Tokens(
        ABSENT,
        {
            "aud": ["posts", "posts-cli"],
            "azp": "posts-cli",
            "groups": ["posts-readers", "posts-writers"],
            "nonce": "n",
            "at_hash": "h",
        },
        None,
    ),
    "entra-id 1": Tokens(
        "JWT",
        {"aud": "API_CLIENT_ID", "azp": APP, "roles": ["Post.Read", "Post.Write"], "ver": "2.0", "uti": "u"},
        {"aud": APP, "ver": "2.0"},
    ),
    "entra-id 2": Tokens(
        "JWT",
        {"aud": "api://API_CLIENT_ID", "appid": APP, "scp": "Post.Read Post.Write", "ver": "1.0"},
        {"aud": APP, "ver": "1.0"},
    ),
    "glewlwyd 1": Tokens(
        "at+jwt",
        {"aud": POSTS, "client_id": "posts-cli", "sub": "posts-cli", "type": "access_token", "scope": SCOPE},
        {"aud": "posts-cli", "azp": "posts-cli", "nonce": "n", "at_hash": "h"},
        user="posts-cli",
    ),
    "lemonldap-ng 1": Tokens(
        "JWT",
        {"aud": ["posts-cli", POSTS], "client_id": "posts-cli", "sub": "posts-cli", "scope": SCOPE},
        {"aud": ["posts-cli", POSTS], "azp": "posts-cli", "at_hash": "h", "auth_time": 1},
        user="posts-cli",
    ),
    "lemonldap-ng 2": Tokens(
        OPAQUE, NONE, None, {"client_id": "posts-cli", "sub": "alice", "scope": SCOPE, "exp": 2**40}
    ),
    "keycloak 1": Tokens(
        "JWT",
        {"aud": [POSTS, "account"], "azp": APP, "typ": "Bearer", "nonce": "n", "scope": f"profile {SCOPE}"},
        {"aud": APP, "azp": APP, "typ": "ID", "nonce": "n", "at_hash": "h"},
    ),
    "oidc-provider 1": Tokens("at+jwt", OIDC_PROVIDER, {"aud": APP, "at_hash": "h"}),
    "oidc-provider 2": Tokens("at+jwt", OIDC_PROVIDER, {"aud": APP, "at_hash": "h"}),
    "okta 1": Tokens(
        ABSENT,
        {"aud": "api://default", "cid": APP, "uid": "u", "ver": 1, "scp": ["openid", "post.read", "post.write"]},
        {"aud": APP, "ver": 1, "at_hash": "h"},
    ),
    "zitadel 1": Tokens("JWT", ZITADEL, {**ZITADEL, "azp": APP, "at_hash": "h"}),
    "zitadel 2": Tokens("JWT", {**ZITADEL, "permissions": SCOPE.split()}, {**ZITADEL, "azp": APP, "at_hash": "h"}),
}

WITH_ID_TOKEN = [form for form in FORMS if str(form) in TOKENS and TOKENS[str(form)].identity is not None]

KEY = Key.make("RS256")
KEY_SET = decode_key_set(json.dumps({"keys": [KEY.jwk()]}).encode())


class StaticKeys:
    """A key source that has the keys."""

    async def find(self, jwt: Jwt) -> list[SigningKey]:
        return KEY_SET.find(jwt)


def load(form: Form, folder: Path) -> Settings:
    (folder / "postd.toml").write_text(form.toml)
    return load_settings("postd.toml", {}, folder).settings


@pytest.fixture
def issuer(form: Form, tmp_path: Path) -> Issuer:
    (settings,) = load(form, tmp_path).bearer
    if settings.client_secret_file:
        Path(settings.client_secret_file).write_text("secret")
    issuer = make_issuer(settings).make(cast("IReactor", Clock()))
    issuer.keys = cast("Any", StaticKeys())
    return issuer


def make_token(issuer: Issuer, typ: Any, claims: Mapping[str, Any]) -> Jwt:
    mint = Mint(issuer.url, POSTS, KEY, now=time.time)
    return decode_jwt(mint.token(header={"typ": typ}, **claims))


def test_each_provider_has_a_page_with_settings() -> None:
    assert {page.stem for page in PAGES} == PROVIDERS
    assert {form.page for form in FORMS} == set(PAGES)
    assert set(TOKENS) == set(map(str, FORMS))


@each("page", PAGES)
def test_page_on_tokens_links_to_the_page(page: Path) -> None:
    assert f"(providers/{page.name})" in (ROOT / "docs/how-to/tokens.md").read_text()


@each("page", PAGES)
def test_page_begins_with_its_status(page: Path) -> None:
    _, _, status, *_ = page.read_text().splitlines()
    assert re.fullmatch(
        r"Status: (?:tested with .*, on|not tested; written from the sources below, read on) 2\d{3}-\d\d-\d\d\.", status
    )


@each("page", PAGES)
def test_links_of_the_page_to_files_exist(page: Path) -> None:
    for link in re.findall(r"\]\((?!https://)([^)#]+)", page.read_text()):
        assert (page.parent / link).is_file(), link


@each("form", FORMS)
def test_settings_are_valid_and_name_an_issuer(form: Form, tmp_path: Path) -> None:
    (settings,) = load(form, tmp_path).bearer
    assert settings.issuer.startswith(("https://", "http://127.0.0.1:"))
    assert settings.audiences or settings.required_claims


@each("form", SIGN_INS)
def test_settings_for_sign_in_are_complete(form: Form, tmp_path: Path) -> None:
    """The redirect URI that the page registers is that of its settings."""
    settings = load(form, tmp_path)
    (table,) = settings.sign_in
    assert table.client_secret_file
    assert (settings.api.read, settings.api.write) == (("session",), ("session",))
    assert f"/login/{table.id}/callback" in form.page.read_text()
    assert f"providers/{form.page.name}#sign-in" in (ROOT / "docs/how-to/sign-in.md").read_text()


@each("form", [form for form in FORMS if form.number == 1])
def test_first_settings_of_a_page_are_complete(form: Form, tmp_path: Path) -> None:
    api = load(form, tmp_path).api
    assert (api.read, api.write) == (("bearer",), ("bearer",))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_access_token_is_accepted_for_reading_and_writing(form: Form, issuer: Issuer) -> None:
    tokens = TOKENS[str(form)]
    jwt = None if tokens.typ is OPAQUE else make_token(issuer, tokens.typ, tokens.access)
    if tokens.answer is not None:
        assert (issuer.introspector is not None, issuer.verifies) == (True, jwt is None)
        accepted = issuer.policy.check_introspection({"active": True, **tokens.answer}, time.time(), jwt)
    else:
        assert jwt is not None
        accepted = result_of(issuer.accept(jwt))
    assert accepted.user == tokens.user
    assert [issuer.missing_scope(accepted, writing=writing) for writing in (False, True)] == ["", ""]


@pytest.mark.parametrize("form", WITH_ID_TOKEN, ids=str)
def test_id_token_is_refused(form: Form, issuer: Issuer) -> None:
    """With `typ` JWT, and without `typ`."""
    for typ in ("JWT", ABSENT):
        with pytest.raises(TokenError):
            result_of(issuer.accept(make_token(issuer, typ, TOKENS[str(form)].identity or {})))


@cache
def reason_texts() -> list[str]:
    """Return the texts of the source that the reasons of refused tokens and documents consist of."""
    folders = {
        "protocol": ("jwt", "discovery", "id_token", "sign_in"),
        "auth": ("bearer", "sign_in"),
        "protect": ("sign_in",),
    }
    files = [ROOT / "postd" / folder / f"{name}.py" for folder, names in folders.items() for name in names]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text for text in texts if len(text) >= len(" is missing")]


@each("page", [*PAGES, ROOT / "docs/how-to/sign-in.md"])
def test_reasons_on_the_page_are_texts_of_the_log(page: Path) -> None:
    _, _, refused = page.read_text().partition("\n## Troubleshooting\n")
    for reason in re.findall(r"^\| `([a-z][^`]*)` \|", refused, re.MULTILINE):
        known = (text.startswith(reason) or reason.endswith(text) or reason.startswith(text) for text in reason_texts())
        assert any(known), reason


NAMING_AN_AUDIENCE = [form for form in FORMS if form.number == 1 and "aud is another" in form.page.read_text()]


@pytest.mark.parametrize("form", NAMING_AN_AUDIENCE, ids=str)
def test_reason_on_the_page_names_the_audience_of_its_settings(form: Form, issuer: Issuer) -> None:
    tokens = TOKENS[str(form)]
    jwt = make_token(issuer, tokens.typ, {**tokens.access, "aud": "another"})
    with pytest.raises(TokenError) as caught:
        issuer.policy.check_claims(jwt, time.time())
    assert f"`{caught.value}`" in form.page.read_text()
