"""Settings: decoding, defaults, and the one-line errors."""

import json
import math
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postd.errors import ConfigError
from postd.net.endpoint_strings import absolute_endpoint
from postd.settings.loading import (
    LoadedSettings,
    check_page_folders,
    count_workers,
    keep_unreloadable,
    load_settings,
    settings_from,
)
from postd.settings.schema import (
    AccountSettings,
    Admin,
    Api,
    BearerSettings,
    Board,
    DigestSettings,
    Limits,
    Log,
    Page,
    SessionSettings,
    Settings,
    SignInSettings,
    ThrottleSettings,
    Tls,
)
from postd.settings.values import (
    ByteCount,
    CorsOrigin,
    HostName,
    IssuerUrl,
    Leeway,
    Lifetime,
    MaxAge,
    OptionalUrl,
    Origin,
    PagePath,
    Permission,
    ProviderId,
    ProviderName,
    Realm,
    SchemeName,
    ScopeText,
    Seconds,
    TrustedProxy,
)
from tests.cases import each

ENDPOINTS = 'a list of endpoints, such as ["tcp:8080:interface=127.0.0.1"]'
KEYS = (
    *("listen", "store", "users", "realm", "workers", "insecure", "trusted_proxies", "public_url", "hosts", "hsts"),
    "shutdown_grace",
    *("api", "board", "page", "session", "accounts", "digest", "bearer", "sign_in", "throttle", "limits", "tls"),
    *("admin", "log"),
)
ALL_KEYS = ", ".join(KEYS)
SCHEMES = '"digest", "bearer", "basic", "session", "token"'
ORIGINS = 'a list of origins, such as ["https://app.example"], or ["*"] alone'
FORWARD = '[[page]]\npath = "/a"\nforward = true\n'
IDP = '[[bearer]]\nissuer = "https://idp.example"\naudience = "a"\n'
SAMPLE = Path(__file__).parents[2] / "etc" / "postd.toml"


def rule(*names: str) -> tuple[Permission, ...]:
    return tuple(map(Permission, names))


def schemes(*names: str) -> tuple[SchemeName, ...]:
    return tuple(map(SchemeName, names))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def load(folder: Path, toml: str | bytes, **options: Any) -> Settings:
    (folder / "postd.toml").write_bytes(toml if isinstance(toml, bytes) else toml.encode())
    return load_settings("postd.toml", options, folder).settings


def refusal(folder: Path, toml: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, toml)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("postd.toml: ")
    return line


def test_defaults(folder: Path) -> None:
    """All of them, so that a changed default fails a test."""
    assert load_settings(None, {}, folder).settings == Settings(
        listen=("tcp:8080:interface=127.0.0.1",),
        store=f"sqlite:{folder}/postd.db",
        users="",
        realm=Realm("postd"),
        workers=1,
        insecure=frozenset(),
        trusted_proxies=(),
        public_url=Origin(""),
        hosts=(),
        hsts_s=MaxAge(""),
        shutdown_grace_s=Seconds(10),
        api=Api(
            read=rule("open"),
            write=rule("open"),
            own=False,
            moderators=(),
            show_authors="all",
            cors_origins=(),
        ),
        board=Board(enabled=True),
        pages=(
            Page(PagePath("/basic"), schemes("basic"), "", ()),
            Page(PagePath("/digest"), schemes("digest"), "", ()),
        ),
        session=SessionSettings(
            idle_s=Seconds(1800), lifetime_s=Seconds(43200), secure="auto", max_per_account=100, bind="no"
        ),
        accounts=AccountSettings(
            change_password=False, tokens=False, token_lifetime_s=Lifetime(90 * 86400), passkeys=False
        ),
        digest=DigestSettings(algorithms=("MD5",), nonce_lifetime_s=Seconds(300)),
        bearer=(),
        throttle=ThrottleSettings(failures=10, address_failures=50, account_failures=100, window_s=Seconds(300)),
        limits=Limits(max_body_bytes=ByteCount(16384), idle_s=Seconds(60)),
        tls=Tls(client_certificates="no"),
        admin=Admin(listen=()),
        log=Log(file="", format="text", access=True),
    )


def test_byte_order_mark_is_skipped(folder: Path) -> None:
    """TOML files of Windows editors begin with one."""
    assert load(folder, '\ufeffrealm = "staff"\r\n').realm == "staff"


def test_empty_file_has_the_defaults(folder: Path) -> None:
    assert load(folder, "") == load_settings(None, {}, folder).settings


def test_every_key_is_decoded(folder: Path) -> None:
    settings = load(
        folder,
        """
        listen = ["unix:run/p.sock", "tcp:0"]
        store = "memory:"
        users = "users"
        realm = "My posts: all of them"
        workers = 4
        insecure = ["open-writes", "plaintext-passwords"]
        trusted_proxies = ["10.0.0.0/8", "::1", "unix"]
        public_url = "https://Posts.example:443/"
        hosts = ["Posts.Example.", "[2001:DB8::0:1]", "192.0.2.1"]
        hsts = "365d"
        shutdown_grace = "1m"
        [api]
        read = ["open"]
        write = ["basic", "digest", "session", "bearer"]
        own = true
        moderators = ["jürgen", "https://idp.example/#bob"]
        show_authors = "signed-in"
        cors_origins = ["https://App.example:443/", "http://localhost:3000", "http://[::1]"]
        [[page]]
        path = "/reports/2026"
        schemes = ["session", "basic"]
        files = "reports"
        users = ["alice", "jürgen", "https://idp.example/#bob"]
        [session]
        idle = "5m"
        lifetime = "1h"
        secure = "always"
        [accounts]
        change_password = true
        tokens = true
        token_lifetime = ""
        passkeys = true
        [digest]
        algorithms = ["SHA-256", "MD5"]
        nonce_lifetime = "1m"
        [[bearer]]
        issuer = "https://idp.example/"
        audience = ["https://posts.example", "posts"]
        jwks_uri = "https://keys.example/jwks?v=2"
        algorithms = ["ES512", "Ed25519"]
        token_types = ["application/at+jwt"]
        scope_claims = ["roles"]
        read_scope = "post:read"
        write_scope = "post:read post:write"
        user_claim = "username"
        required_claims = {azp = "app", level = [1, 2], mfa = true}
        leeway = "0s"
        ca_file = "ca.pem"
        introspection_endpoint = "http://localhost:9000/introspect"
        client_id = "postd"
        client_secret_file = "secret"
        [[bearer]]
        issuer = "http://127.0.0.1:8000"
        audience = ""
        required_claims = {token_use = "access"}
        [throttle]
        failures = 3
        address_failures = 4
        account_failures = 5
        window = "1h"
        [limits]
        body = "1.5MiB"
        idle_time = "500ms"
        [tls]
        client_certificates = "ask"
        [admin]
        listen = ["unix:run/admin.sock", "tcp:9180"]
        [log]
        file = "var/posts.log"
        format = "json"
        access = false
        """,
    )
    assert settings == Settings(
        listen=(f"unix:address={folder}/run/p.sock", "tcp:0"),
        store="memory:",
        users=f"{folder}/users",
        realm=Realm("My posts: all of them"),
        workers=4,
        insecure=frozenset({"open-writes", "plaintext-passwords"}),
        trusted_proxies=(TrustedProxy("10.0.0.0/8"), TrustedProxy("::1/128"), TrustedProxy("unix")),
        public_url=Origin("https://posts.example"),
        hosts=(HostName("posts.example"), HostName("2001:db8::1"), HostName("192.0.2.1")),
        hsts_s=MaxAge("31536000"),
        shutdown_grace_s=Seconds(60),
        api=Api(
            read=rule("open"),
            write=rule("basic", "digest", "session", "bearer"),
            own=True,
            moderators=("jürgen", "https://idp.example/#bob"),
            show_authors="signed-in",
            cors_origins=(
                CorsOrigin("https://app.example"),
                CorsOrigin("http://localhost:3000"),
                CorsOrigin("http://[::1]"),
            ),
        ),
        pages=(
            Page(
                PagePath("/reports/2026"),
                schemes("session", "basic"),
                f"{folder}/reports",
                ("alice", "jürgen", "https://idp.example/#bob"),
            ),
        ),
        session=SessionSettings(idle_s=Seconds(300), lifetime_s=Seconds(3600), secure="always"),
        accounts=AccountSettings(change_password=True, tokens=True, token_lifetime_s=Lifetime(math.inf), passkeys=True),
        digest=DigestSettings(algorithms=("SHA-256", "MD5"), nonce_lifetime_s=Seconds(60)),
        bearer=(
            BearerSettings(
                issuer=IssuerUrl("https://idp.example/"),
                audience=("https://posts.example", "posts"),
                jwks_uri=OptionalUrl("https://keys.example/jwks?v=2"),
                algorithms=("ES512", "Ed25519"),
                token_types=("application/at+jwt",),
                scope_claims=("roles",),
                read_scope=ScopeText("post:read"),
                write_scope=ScopeText("post:read post:write"),
                user_claim="username",
                required_claims={"azp": "app", "level": (1, 2), "mfa": True},
                leeway_s=Leeway(0),
                ca_file=f"{folder}/ca.pem",
                introspection_endpoint=OptionalUrl("http://localhost:9000/introspect"),
                client_id="postd",
                client_secret_file=f"{folder}/secret",
            ),
            BearerSettings(IssuerUrl("http://127.0.0.1:8000"), "", required_claims={"token_use": "access"}),
        ),
        throttle=ThrottleSettings(failures=3, address_failures=4, account_failures=5, window_s=Seconds(3600)),
        limits=Limits(max_body_bytes=ByteCount(3 * 512 * 1024), idle_s=Seconds(0.5)),
        tls=Tls(client_certificates="ask"),
        admin=Admin(listen=(f"unix:address={folder}/run/admin.sock", "tcp:9180")),
        log=Log(file=f"{folder}/var/posts.log", format="json", access=False),
    )


def test_option_overrides_the_file(folder: Path) -> None:
    settings = load(folder, 'listen = ["tcp:1", "tcp:2"]\nstore = "sqlite:a.db"', listen=["tcp:3"], store="sqlite:b.db")
    assert (settings.listen, settings.store) == (("tcp:3",), f"sqlite:{folder}/b.db")


@each("written", ["two", "-1", "1025", "1.5", "", "٣", "1 "])
def test_invalid_number_of_workers_is_refused(folder: Path, written: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"workers": written}, folder)
    assert str(caught.value) == f"--workers: {written!r} is not a whole number from 0 to 1024; 0 is one a core"


def test_number_of_workers_is_the_option_or_that_of_the_cores(folder: Path) -> None:
    (folder / "postd.toml").write_text("workers = 3")
    assert count_workers(load_settings("postd.toml", {}, folder)) == 3
    assert count_workers(load_settings("postd.toml", {"workers": "2"}, folder)) == 2
    assert count_workers(load_settings("postd.toml", {"workers": "0"}, folder)) == len(os.sched_getaffinity(0))


def test_memory_store_is_refused_with_several_workers(folder: Path) -> None:
    (folder / "postd.toml").write_text('workers = 2\nstore = "memory:"')
    with pytest.raises(ConfigError, match=r"^postd\.toml: workers: 2 workers cannot share the store memory:"):
        count_workers(load_settings("postd.toml", {}, folder))
    with pytest.raises(ConfigError, match=r"^--workers: 5 workers cannot share the store memory:"):
        count_workers(load_settings("postd.toml", {"workers": "5"}, folder))
    assert count_workers(load_settings("postd.toml", {"workers": "1"}, folder)) == 1


def test_settings_survive_json(folder: Path) -> None:
    for text in (
        SAMPLE.read_text(),
        '[[bearer]]\nissuer = "https://i.example"\naudience = ""\nrequired_claims = {a = inf}',
    ):
        (folder / "postd.toml").write_text(text)
        loaded = load_settings("postd.toml", {"store": os.fsdecode(b"sqlite:a\xffb.db"), "workers": "3"}, folder)
        there = settings_from(*(json.loads(json.dumps(part)) for part in (loaded.values, loaded.where, loaded.options)))
        assert there == loaded


def test_paths_are_relative_to_the_file_or_the_current_folder(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "postd.toml").write_text('store = "sqlite:../var/posts.db"\nusers = "users"')
    loaded = load_settings("etc/postd.toml", {"listen": ["unix:p.sock"]}, folder)
    assert loaded.settings.store == f"sqlite:{folder}/etc/../var/posts.db"
    assert loaded.settings.users == f"{folder}/etc/users"
    assert loaded.settings.listen == (f"unix:address={folder}/p.sock",)
    given = {"store": "etc/postd.toml: store", "users": "etc/postd.toml: users", "listen": "--listen"}
    assert loaded.where == {key: f"{key} (default)" for key in KEYS} | given
    assert load_settings("etc/postd.toml", {"users": "others"}, folder).settings.users == f"{folder}/others"


def test_default_store_is_beside_the_file_or_in_the_current_folder(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "postd.toml").write_text("")
    assert load_settings(None, {}, folder).settings.store == f"sqlite:{folder}/postd.db"
    assert load_settings("etc/postd.toml", {}, folder).settings.store == f"sqlite:{folder}/etc/postd.db"
    given = load_settings("etc/postd.toml", {"store": "sqlite:postd.db"}, folder)
    assert given.settings.store == f"sqlite:{folder}/postd.db"


def test_options_are_kept_as_given(folder: Path) -> None:
    (folder / "postd.toml").write_text("")
    for path, options, kept in (
        (None, {}, []),
        ("postd.toml", {"workers": "2"}, ["-c", "postd.toml"]),
        ("postd.toml", {"users": "a b"}, ["-c", "postd.toml", "-u", "a b"]),
    ):
        assert load_settings(path, options, folder).options == kept


@each("written, seconds", [("250ms", 0.25), ("1s", 1), ("1.5s", 1.5), ("5m", 300), ("12h", 43200), ("365d", 31536000)])
def test_duration_is_decoded_to_seconds(folder: Path, written: str, seconds: float) -> None:
    assert load(folder, f'[limits]\nidle_time = "{written}"').limits.idle_s == seconds


@each("written", ['"0s"', '"-1s"', '"1"', '"s"', '"1 s"', '"1S"', '"1w"', '"9999d"', '"1e3s"', '"0.01ms"', "60"])
def test_invalid_duration_is_refused(folder: Path, written: str) -> None:
    line = refusal(folder, f"[limits]\nidle_time = {written}")
    assert line.startswith("postd.toml: limits.idle_time: ")
    assert 'such as "500ms"' in line


@each("written", ['"0KiB"', '"16"', '"16kb"', '"16KB"', '"1GiB"', '"2000MiB"', '"-1KiB"', '"0.0001KiB"', "16384"])
def test_invalid_size_is_refused(folder: Path, written: str) -> None:
    line = refusal(folder, f"[limits]\nbody = {written}")
    assert line.startswith("postd.toml: limits.body: ")
    assert 'such as "16KiB"' in line


@each(
    "toml, line",
    [
        ("nothing = 1", f"postd.toml: nothing: unknown key; allowed at the top level: {ALL_KEYS}"),
        (
            'stor = "memory:"',
            f"postd.toml: stor: unknown key (did you mean 'store'?); allowed at the top level: {ALL_KEYS}",
        ),
        (
            "[limits]\nboddy = 1",
            (
                "postd.toml: limits.boddy: unknown key (did you mean 'body'?); allowed in [limits]: body, "
                "header_time, body_time, idle_time, connections, response_memory"
            ),
        ),
        (
            "workers = -1",
            (
                "postd.toml: workers: expected a whole number >= 0; "
                "allowed: a whole number from 0 to 1024; 0 is one a core"
            ),
        ),
        (
            "workers = '2'",
            (
                "postd.toml: workers: expected a whole number, got a string; "
                "allowed: a whole number from 0 to 1024; 0 is one a core"
            ),
        ),
        (
            "store = 1",
            (
                "postd.toml: store: expected a string, got a whole number; "
                "allowed: the URL of a store, such as sqlite:PATH or redis://HOST"
            ),
        ),
        ('listen = "tcp:1"', f"postd.toml: listen: expected a list, got a string; allowed: {ENDPOINTS}"),
        ("listen = [1]", f"postd.toml: listen[0]: expected a string, got a whole number; allowed: {ENDPOINTS}"),
        (
            "tls.client_certificates = 'require'",
            'postd.toml: tls.client_certificates: Invalid enum value \'require\'; allowed: "no" or "ask"',
        ),
        (
            '[[bearer]]\nissuer = "https://a.example"\naudience = "x"\ndpop = "required"',
            'postd.toml: bearer[0].dpop: Invalid enum value \'required\'; allowed: "refuse", "accept" or "require"',
        ),
        (
            '[[bearer]]\nissuer = "https://a.example"\naudience = "x"\nmtls = true',
            'postd.toml: bearer[0].mtls: expected a string, got a boolean; allowed: "refuse", "accept" or "require"',
        ),
        ("log = 1", "postd.toml: log: expected a table, got a whole number; allowed: a table, [log]"),
        (
            "log.file = 1",
            (
                "postd.toml: log.file: expected a string, got a whole number; "
                'allowed: the path of a file, or "": where twistd logs'
            ),
        ),
        ("log.format = 'xml'", 'postd.toml: log.format: Invalid enum value \'xml\'; allowed: "text" or "json"'),
        (
            "log.access_file = 1",
            "postd.toml: log.access_file: expected a string, got a whole number; "  # noqa: ISC004
            'allowed: the path of a file, or "": the log itself',
        ),
        ("log.access = 'no'", "postd.toml: log.access: expected a boolean, got a string; allowed: true or false"),
        (
            "log.acess = true",
            "postd.toml: log.acess: unknown key (did you mean 'access'?); "  # noqa: ISC004
            "allowed in [log]: file, format, access, access_file",
        ),
        ("limits = 1", "postd.toml: limits: expected a table, got a whole number; allowed: a table, [limits]"),
        (
            'insecure = ["all"]',
            "postd.toml: insecure[0]: Invalid enum value 'all'; "  # noqa: ISC004
            'allowed: a list that may have "open-writes" and "plaintext-passwords" in it',
        ),
        (
            "realm = 'a\"b'",
            "postd.toml: realm: 'a\"b' is not a realm: printable ASCII characters without \" and \\, at least one",
        ),
        (
            'trusted_proxies = ["proxy"]',
            "postd.toml: trusted_proxies[0]: 'proxy' is neither an address or a network, such as 10.0.0.0/8, nor unix; "  # noqa: ISC004
            'allowed: a list of addresses and networks, and "unix"',
        ),
        (
            'hosts = ["posts.example", "posts.example:443"]',
            "postd.toml: hosts[1]: 'posts.example:443' has a port; hosts are compared without ports; "  # noqa: ISC004
            'allowed: a list of host names and IP addresses, such as ["posts.example"], or ["*"] alone',
        ),
        (
            'hosts = ["*.example"]',
            "postd.toml: hosts[0]: '*.example' is neither a host name, such as posts.example, nor an IP address; "  # noqa: ISC004
            'allowed: a list of host names and IP addresses, such as ["posts.example"], or ["*"] alone',
        ),
        (
            'hosts = ["posts.example", "*"]',
            'postd.toml: hosts: "*" must be the only value; allowed: a list of host names and IP addresses, '  # noqa: ISC004
            'such as ["posts.example"], or ["*"] alone',
        ),
        (
            'hosts = "posts.example"',
            "postd.toml: hosts: expected a list, got a string; allowed: a list of host names and IP addresses, "  # noqa: ISC004
            'such as ["posts.example"], or ["*"] alone',
        ),
        (
            'public_url = "posts.example"',
            "postd.toml: public_url: 'posts.example' is not an origin, such as https://posts.example",
        ),
        (
            'api = {read = ["oauth"]}',
            "postd.toml: api.read[0]: 'oauth' is not the name of a scheme; "  # noqa: ISC004
            f'allowed: a list of one or more of "open", {SCHEMES}',
        ),
        (
            '[[page]]\npath = "/a"\nschemes = []',
            "postd.toml: page[0].schemes: expected a list of length >= 1; "  # noqa: ISC004
            f"allowed: a list of one or more of {SCHEMES}",
        ),
        (
            '[[page]]\nschemes = ["basic"]',
            "postd.toml: page[0]: path is missing; "  # noqa: ISC004
            "allowed: tables, each under [[page]], with path and schemes",
        ),
        (
            '[[page]]\npath = "/a"\nschemes = ["basic"]\nforward = true',
            "postd.toml: page[0].forward: needs trusted_proxies: "  # noqa: ISC004
            'addresses or networks of the proxies that may ask, or "unix"',
        ),
        (
            'trusted_proxies = ["unix"]\n[[page]]\npath = "/a"\nschemes = ["basic"]\nfiles = "."\nforward = true',
            "postd.toml: page[0].files: a page with forward = true serves no files; leave out one of the two",
        ),
        *(
            (
                f'trusted_proxies = ["unix"]\n{hosts}{FORWARD}schemes = ["basic", "bearer"]\n{IDP}dpop = "{rule}"',
                "postd.toml: page[0].forward: before an issuer that accepts DPoP, a page needs the hosts that "  # noqa: ISC004
                "proofs may be for: name them in hosts, or set public_url",
            )
            for hosts in ("", 'hosts = ["*"]\n')
            for rule in ("accept", "require")
        ),
        (
            'trusted_proxies = ["unix"]\n[[page]]\npath = "/a"\nschemes = ["open"]\nforward = true',
            "postd.toml: page[0].schemes[0]: 'open' is not the name of a scheme; "  # noqa: ISC004
            'allowed: a list of one or more of "digest", "bearer", "basic", "session", "token"',
        ),
        (
            '[[page]]\npath = "/a"\nschemes = ["basic"]\nforward = "yes"',
            "postd.toml: page[0].forward: expected a boolean, got a string; allowed: true or false",
        ),
        (
            '[[page]]\npath = "/a"\nschemes = ["basic"]\nuser = ["alice"]',
            "postd.toml: page[0].user: unknown key (did you mean 'users'?); "  # noqa: ISC004
            "allowed in [page]: path, schemes, files, users, read_scope, write_scope, forward",
        ),
        (
            '[[page]]\npath = "/a"\nschemes = ["basic"]\n[[page]]\npath = "/a"\nschemes = ["digest"]',
            "postd.toml: page[1].path: /a is the path of another page already",
        ),
        (
            "[throttle]\nfailures = 0",
            "postd.toml: throttle.failures: expected a whole number >= 1; allowed: a whole number from 1 to 1000000",
        ),
        (
            '[digest]\nalgorithms = ["SHA-512-256"]',
            "postd.toml: digest.algorithms[0]: Invalid enum value 'SHA-512-256'; "  # noqa: ISC004
            'allowed: a list of "MD5" and "SHA-256", in the order of the challenges',
        ),
        ("a = " + "[" * 5000, "postd.toml: is nested too deeply"),
        (
            '"a\\u001b[31mb" = 1',
            f"postd.toml: a\\x1b[31mb: unknown key; allowed at the top level: {ALL_KEYS}",
        ),
        ("store = ", "postd.toml: is not TOML: Invalid value (at end of document)"),
        ("a = 1\nb = ?", "postd.toml: is not TOML: Invalid value (at line 2, column 5)"),
        (b'store = "\xff"', "postd.toml: is not UTF-8 text"),
    ],
)
def test_error_names_file_and_key_and_what_is_allowed(folder: Path, toml: str | bytes, line: str) -> None:
    assert refusal(folder, toml) == line


@each(
    "path",
    [
        *("a", "/", "//a", "/a/", "/a//b", "/a/../b", "/./a", "/a b", "/ä", "/a?b", "/a%62", ""),
        *(
            "/post",
            "/post/x",
            "/login",
            "/home",
            "/logout",
            "/account/x",
            "/board",
            "/feed.atom",
            "/docs",
            "/openapi.json",
            "/.well-known/x",
        ),
    ],
)
def test_invalid_or_reserved_page_path_is_refused(folder: Path, path: str) -> None:
    line = refusal(folder, f'[[page]]\npath = "{path}"\nschemes = ["basic"]')
    assert line.startswith(f"postd.toml: page[0].path: {path!r} is ")


ISSUER = '[[bearer]]\nissuer = "https://idp.example"\n'


@each(
    "toml, line",
    [
        (ISSUER, "bearer[0]: audience is missing; allowed: tables, each under [[bearer]], "),
        (ISSUER + 'audience = ""', 'bearer[0].audience: may be "" only with required_claims: else tokens for any'),
        (
            ISSUER + "audience = []",
            "bearer[0].audience: expected a list of length >= 1; allowed: a string, a list of ",
        ),
        (
            ISSUER + 'audience = ["a", ""]',
            "bearer[0].audience[1]: expected a string of length >= 1; allowed: a string, ",
        ),
        (ISSUER + 'audience = "a"\nalgorithms = ["HS256"]', "bearer[0].algorithms[0]: Invalid enum value 'HS256'; "),
        (ISSUER + 'audience = "a"\nalgorithms = ["none"]', "bearer[0].algorithms[0]: Invalid enum value 'none'; "),
        (
            ISSUER + 'audience = "a"\njwks_uri = "http://idp.example"',
            "bearer[0].jwks_uri: 'http://idp.example' is not ",
        ),
        (ISSUER + "audience = 'a'\nread_scope = 'a\"b'", "bearer[0].read_scope: 'a\"b' is not a scope: words of "),
        (ISSUER + "audience = 'a'\nrequired_claims = {a = []}", "bearer[0].required_claims[...]: expected a list of "),
        (
            ISSUER + "audience = 'a'\nrequired_claims = {a = 2026-01-01}",
            "bearer[0].required_claims[...]: expected a boolean or a whole number or a number or ",
        ),
        (ISSUER + "audience = 'a'\nclient_secret_file = 's'", "bearer[0].client_secret_file: needs a client_id"),
        (ISSUER + "audience = 'a'\naudiences = 'b'", "bearer[0].audiences: unknown key (did you mean 'audience'?); "),
        (
            ISSUER + "audience = 'a'\n" + ISSUER + "audiance = 'b'",
            "bearer[1].audiance: unknown key (did you mean 'audience'?); allowed in [bearer]: ",
        ),
        (2 * (ISSUER + 'audience = "a"\n'), "bearer[1].issuer: https://idp.example has a table already; audience may "),
        (
            '[[bearer]]\naudience = "a"\nissuer = "http://idp.example"',
            "bearer[0].issuer: 'http://idp.example' is not an",
        ),
        (
            '[[bearer]]\naudience = "a"\nissuer = "https://a/?b"',
            "bearer[0].issuer: 'https://a/?b' is not an issuer: it has a",
        ),
        (
            '[[bearer]]\naudience = "a"\nissuer = ""',
            "bearer[0].issuer: '' is not an https URL (http is allowed for loopback only)",
        ),
    ],
)
def test_invalid_issuer_is_refused(folder: Path, toml: str, line: str) -> None:
    assert refusal(folder, toml).startswith(f"postd.toml: {line}")


def test_users_of_a_page_are_normalized_unless_they_are_an_issuers() -> None:
    """Names of the user file are normalized (RFC 8265); what an issuer says of a user stays as it is."""
    decomposed = "ju\u0308rgen"
    page = Page(PagePath("/a"), schemes("basic"), users=(decomposed, f"https://idp.example#{decomposed}"))
    assert page.allowed == {"j\u00fcrgen", f"https://idp.example#{decomposed}"}


def test_missing_page_folder_is_refused(folder: Path) -> None:
    (folder / "postd.toml").write_text('[[page]]\npath = "/a"\nschemes = ["basic"]\nfiles = "www"')
    with pytest.raises(ConfigError, match=rf"^postd\.toml: page\[0\]\.files: {folder}/www: the folder does not exist$"):
        check_page_folders(load_settings("postd.toml", {}, folder))
    (folder / "www").mkdir()
    check_page_folders(load_settings("postd.toml", {}, folder))


@pytest.mark.parametrize("written", ['"1w"', '"-1d"', "365", '"9999d"'])
def test_invalid_hsts_is_refused(folder: Path, written: str) -> None:
    line = refusal(folder, f"hsts = {written}")
    assert line.endswith('is not "", or a duration of at most 3650d, such as "365d"')
    assert load(folder, 'hsts = "0s"').hsts_s == "0"  # ends HSTS in browsers (RFC 6797 §6.1.1)


def test_settings_that_need_a_restart_are_kept_on_reload(folder: Path) -> None:
    def loaded(toml: str) -> LoadedSettings:
        (folder / "postd.toml").write_text(toml)
        return load_settings("postd.toml", {"workers": "2"}, folder)

    before = loaded('listen = ["tcp:1"]\nrealm = "a"\n[log]\nfile = "a.log"')
    new = loaded(
        'store = "memory:"\nrealm = "b"\n[admin]\nlisten = ["tcp:2"]\n'
        '[log]\nformat = "json"\naccess = false\naccess_file = "b"'
    )
    kept, left = keep_unreloadable(new, before)
    assert left == ["listen", "store", "admin.listen", "log.file", "log.format", "log.access_file"]
    assert kept.settings.realm == "b"
    assert kept.settings.listen == ("tcp:1",)
    assert kept.settings.store == f"sqlite:{folder}/postd.db"
    assert kept.settings.admin == Admin()
    assert kept.settings.log == Log(file=f"{folder}/a.log", format="text", access=False)
    assert kept.where["listen"] == "postd.toml: listen"
    assert settings_from(kept.values, kept.where).settings == kept.settings
    assert keep_unreloadable(before, before) == (before, [])


def test_wildcard_origin_is_accepted_alone(folder: Path) -> None:
    assert load(folder, '[api]\ncors_origins = ["*"]').api.cors_origins == ("*",)


@each(
    "origin",
    [
        *(
            "capacitor://localhost",
            "ionic://localhost",
            "tauri://localhost",
            "app://obsidian.md",
            "app://-",
            "app://a:1",
        ),
        *("chrome-extension://aaaabbbbccccdddd", "moz-extension://0f1e", "safari-web-extension://0F1E-2D3C"),
        *("capacitor-electron://-", "vscode-webview://1abc", "ftp://app.example", "http://my_app.local:3000"),
    ],
)
def test_origin_of_any_scheme_is_kept_as_it_is(folder: Path, origin: str) -> None:
    assert load(folder, f"[api]\ncors_origins = ['{origin}']").api.cors_origins == (origin,)


@each(
    "origin",
    [
        *("", "null", "app.example", "//app.example", "**", "file://", "app://", "https:a", "https://", "HTTP://a b"),
        *("capacitor://localhost/", "chrome-extension://*", "app:localhost", "1app://a", "tauri://a b", "app://me@a"),
        *("https://a/b", "https://a?b", "https://a b", "https://*.example", "https://me@app.example"),
        "https://bücher.example",
    ],
)
def test_invalid_cors_origin_is_refused(folder: Path, origin: str) -> None:
    why = f"postd.toml: api.cors_origins[1]: {origin!r} is not an origin, such as https://"
    refused = refusal(folder, f"[api]\ncors_origins = ['https://app.example', '{origin}']")
    assert refused.startswith(why)
    assert refused.endswith(f"; allowed: {ORIGINS}")


@pytest.mark.parametrize("origins", [["*", "https://app.example"], ["https://app.example", "*"], ["*", "*"]])
def test_wildcard_origin_with_others_is_refused(folder: Path, origins: list[str]) -> None:
    refused = refusal(folder, f"[api]\ncors_origins = {origins}")
    assert refused == f'postd.toml: api.cors_origins: "*" must be the only value; allowed: {ORIGINS}'


def test_unreadable_file_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^missing\.toml: cannot be read: No such file or directory$"):
        load_settings("missing.toml", {}, folder)
    with pytest.raises(ConfigError, match=r"^/dev/zero: is larger than 1 MiB"):
        load_settings("/dev/zero", {}, folder)
    with pytest.raises(ConfigError, match="--config: is empty"):
        load_settings("", {}, folder)
    with pytest.raises(ConfigError, match=r"^\.: cannot be read: Is a directory$"):
        load_settings(".", {}, folder)


@each(
    "description, absolute",
    [
        ("tcp:80", "tcp:80"),
        ("TCP:80:interface=\\:\\:1", "tcp:80:interface=\\:\\:1"),
        ("unix:a.sock:mode=600", "unix:address=/etc/p/a.sock:mode=600"),
        ("unix:address=a.sock", "unix:address=/etc/p/a.sock"),
        ("unix:/run/a.sock", "unix:address=/run/a.sock"),
        ("unix:a\\:b\\=c", "unix:address=/etc/p/a\\:b\\=c"),
        ("ssl:443:privateKey=k.pem:certKey=c.pem", "ssl:443:privateKey=/etc/p/k.pem:certKey=/etc/p/c.pem"),
        (
            "ssl:443:k.pem:c.pem:backlog=9:chain",
            "ssl:443:privateKey=/etc/p/k.pem:certKey=/etc/p/c.pem:backlog=9:sslmethod=chain",
        ),
        ("unix:a.sock:600:9:0", "unix:address=/etc/p/a.sock:mode=600:backlog=9:lockfile=0"),
        ("tcp:80:127.0.0.1", "tcp:80:interface=127.0.0.1"),
        ("tcp6:80:9:\\:\\:1", "tcp6:80:backlog=9:interface=\\:\\:1"),
        ("tcp:80:127.0.0.1:9:more", "tcp:80:interface=127.0.0.1:backlog=9:more"),
        ("systemd:INET:0", "systemd:INET:index=0"),
        ("haproxy:unix:a.sock", "haproxy:unix:address=/etc/p/a.sock"),
        ("haproxy", "haproxy"),
        ("", ""),
    ],
)
def test_paths_in_endpoints_become_absolute(description: str, absolute: str) -> None:
    assert absolute_endpoint(description, Path("/etc/p")) == absolute


def test_sample_has_every_key_with_its_default(folder: Path) -> None:
    text = SAMPLE.read_text()
    assert load(folder, text) == load_settings(None, {}, folder).settings
    shown = "\n".join(
        line.removeprefix("#") if "= " in line and line[1:2].isalpha() else line for line in text.splitlines()
    ).replace("#[[", "[[")
    # The sample has an issuer and a provider as examples; there is none by default.
    issuer = BearerSettings(IssuerUrl("https://idp.example/realms/main"), "https://posts.example")
    defaults = load_settings(None, {}, folder).settings
    provider = SignInSettings(ProviderId("example"), ProviderName("Example"), issuer.issuer, "posts")
    assert load(folder, shown) == msgspec.structs.replace(defaults, bearer=(issuer,), sign_in=(provider,))
    table = tomllib.loads(shown)
    assert set(table) == set(KEYS)
    assert set(table["bearer"][0]) == set(BearerSettings.__struct_encode_fields__)
    assert set(table["sign_in"][0]) == set(SignInSettings.__struct_encode_fields__)
    for key in ("api", "board", "session", "accounts", "digest", "throttle", "limits", "tls", "log"):
        struct = type(getattr(Settings(), key))
        assert set(table[key]) == set(struct.__struct_encode_fields__)


@each(
    "hosts, schemes, rule",
    [
        ('hosts = ["app.example"]', '"bearer"', "accept"),
        ('public_url = "https://app.example"', '"bearer"', "require"),
        ('hosts = ["*"]\npublic_url = "https://app.example"', '"bearer"', "accept"),
        ("", '"bearer"', "refuse"),
        ("", '"basic"', "accept"),
    ],
)
def test_gateway_page_before_an_issuer_is_allowed(folder: Path, hosts: str, schemes: str, rule: str) -> None:
    toml = f'trusted_proxies = ["unix"]\n{hosts}\n{FORWARD}schemes = [{schemes}]\n{IDP}dpop = "{rule}"'
    assert load(folder, toml).pages[0].forward
