"""Redaction: no secret is logged, in any encoding and from any part of a request; no line is over 4 KiB."""

import base64
import html
import json
import quopri
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.interfaces import IReactorTime
from twisted.logger import LogEvent

from postd.daemon.log import ACCESS_LOG, FORMATS, LINE_MAX_BYTES
from postd.front.access_log import AccessLog
from postd.front.interface import AnsweredRequest
from tests.helpers import IS_THOROUGH, InMemoryApi
from tests.web.clients import PASSWORD, Proof, ask_raw, basic, make_api, recorded_log

SETTINGS = """\
[api]
read = ["open"]
write = ["basic", "digest", "session", "bearer"]
[[page]]
path = "/all"
schemes = ["digest", "bearer", "basic", "session"]
[[bearer]]
issuer = "https://idp.example"
audience = "https://posts.example"
"""

SECRETS: Mapping[str, str] = {
    "password": "hunter2-Geheimnis",
    "real password": PASSWORD,
    "basic": basic()["Authorization"].removeprefix("Basic "),
    "session": "q3Zr-0oTq_7Xw2Lk9Vb4Nn8Mm1Cc5Xx6Zz3Ss7Dd0Ff",
    "jwt": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLW9mLWl0",
    "opaque": "opaque-token-0123456789abcdefGHIJ",
    "digest": "6629fae49393a05397450978507c4ef1",
}


def percent(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


ENCODINGS: Mapping[str, Callable[[str], str]] = {
    "raw": lambda text: text,
    "percent": lambda text: quote(text, safe=""),
    "all percent": percent,
    "all percent, upper": lambda text: percent(text).upper(),
    "twice percent": lambda text: percent(text).replace("%", "%25"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64url": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "upper hex": lambda text: text.encode().hex().upper(),
    "HTML": lambda text: "".join(f"&#{ord(char)};" for char in text),
    "HTML hex": lambda text: "".join(f"&#x{ord(char):x};" for char in text),
    "named HTML": html.escape,
    "JSON": lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
    "quoted-printable": lambda text: quopri.encodestring(text.encode(), quotetabs=True).decode().replace("=\n", ""),
    "C": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "spaced": " ".join,
}

FIELDS = (
    *("Accept", "Accept-Encoding", "Accept-Language", "Content-Type", "Cookie", "If-Match", "If-None-Match", "Origin"),
    *("Idempotency-Key", "Last-Event-ID", "Referer", "Sec-Fetch-Site", "User-Agent", "X-Forwarded-For", "X-Anything"),
)


def digest(**parameters: str) -> dict[str, Any]:
    sent = {name: json.dumps(value, ensure_ascii=False) for name, value in parameters.items()}
    return Proof(nonce="x", uri="/all").headers(**sent)


def requests_with(secret: str) -> Iterator[tuple[str, str, Mapping[str, Any], bytes]]:
    """Yield requests that have a secret in one place each: method, target, fields, body."""
    target = quote(secret, safe="!$&'()*+,;:@/?%=~")
    for path in ("/all/{}", "/post?{}=1", "/post?limit={}", "/post?a=1&token={}&limit=1"):
        yield "GET", path.format(target), {}, b""
    yield "GET", f"/?next=/login?password={target}", {}, b""
    yield "GET", f"http://localhost/post?{target}", {}, b""
    if secret.isascii() and secret.isalnum():
        yield secret[:32], "/post", {}, b""
    yield "GET", "/post", {"Host": secret}, b""
    for field in FIELDS:
        yield "POST", "/post", {field: secret}, json.dumps({"post": secret}).encode()
    referers = ("http://a.example/{}", "https://a.example/?t={}", "http://alice:{}@a.example/", "http://a.example/#{}")
    for referer in referers:
        yield "GET", "/post", {"Referer": referer.format(secret)}, b""
    for agent in ("agent/{}", "curl/8 ({}) x", "{}/1.0 "):
        yield "GET", "/post", {"User-Agent": agent.format(f"{secret}!")}, b""
    for cookie in ("token={}", "session={}", "a=b; x={}"):
        yield "GET", "/home", {"Cookie": cookie.format(secret)}, b""
    for scheme in ("Basic", "Bearer", "Digest", "Negotiate"):
        yield "GET", "/all", {"Authorization": f"{scheme} {secret}"}, b""
    yield "GET", "/all", basic(secret.replace(":", ""), "x"), b""
    yield "GET", "/all", basic("alice", secret), b""
    for name in ("username", "realm", "nonce", "uri", "cnonce", "response", "nc"):
        yield "GET", "/all", digest(**{name: secret}), b""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for names in ({"username": secret, "password": "x"}, {"username": "alice", "password": secret}, {secret: "x"}):
        yield "POST", "/login", form, urlencode(names).encode()


def missing_paths_with(secret: str) -> Iterator[tuple[str, str, Mapping[str, Any], bytes]]:
    """Yield requests for paths that do not exist, as `requests_with`."""
    target = quote(secret, safe="!$&'()*+,;:@/?%=~")
    for path in ("/{}", "/post/{}", "/login/{}", "/x%23{}", "/x%2F{}/y", "http://localhost/{}"):
        yield "GET", path.format(target), {}, b""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryApi]:
    # More failures than the tests cause, so that no request is answered with 429.
    throttle = "[throttle]\nfailures = 1000000\naddress_failures = 1000000\naccount_failures = 1000000\n"
    api = make_api(tmp_path_factory.mktemp("served"), SETTINGS + throttle)
    yield api
    api.close()


def encode(method: str, target: str, fields: Mapping[str, Any], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1".encode()]
    for name, value in {"Host": "localhost", "Connection": "close", **fields}.items():
        sent = value if isinstance(value, bytes) else value.encode()
        lines.append(b"%b: %b" % (name.encode(), sent.replace(b"\r", b"").replace(b"\n", b"")))
    lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


def ask(api: InMemoryApi, request: bytes) -> Sequence[LogEvent]:
    """Send a request; return the events of the log."""
    with recorded_log(api) as events:
        assert ask_raw(api.site, api.clock, request).status != 500
    assert any("lines" in event for event in events)
    return events


def lines_of(events: Sequence[LogEvent]) -> str:
    """Return the lines of the events in both formats."""
    return "".join(form(event) or "" for form in FORMATS.values() for event in events)


class LogInBothFormats(AccessLog):
    """Writes each line as text and as JSON, so that a request need not be sent twice."""

    def __init__(self, reactor: IReactorTime) -> None:
        super().__init__("text", address_of=_address, log=ACCESS_LOG, reactor=reactor)
        self._json = AccessLog("json", address_of=_address, log=ACCESS_LOG, reactor=reactor)

    def add(self, request: AnsweredRequest, took_s: float, now: float) -> None:
        super().add(request, took_s, now)
        self._json.add(request, took_s, now)

    def close(self) -> None:
        super().close()
        self._json.close()


def _address(_request: object) -> str:
    return "192.0.2.7"


def set_log_format(api: InMemoryApi, *, as_json: bool) -> None:
    """Set the format of the access log."""
    form: Literal["text", "json"] = "json" if as_json else "text"
    set_log(api, AccessLog(form, address_of=_address, log=ACCESS_LOG, reactor=api.site.reactor))


def set_log(api: InMemoryApi, log: AccessLog) -> None:
    site = api.site
    site.reconfigure(
        site.resource,
        limits=site.limits,
        hosts=None,
        access_log=log,
        secure_fields=None,
        client_of=lambda _: "",
        group_of=lambda _: None,
        site_name="",
    )


@pytest.fixture(params=[False, True], ids=["text", "json"])
def logging_api(api: InMemoryApi, request: pytest.FixtureRequest) -> InMemoryApi:
    set_log_format(api, as_json=request.param)
    return api


@pytest.mark.parametrize(("number", "kind"), [*enumerate(SECRETS)], ids=SECRETS)
def test_no_encoding_of_a_secret_is_in_the_log(api: InMemoryApi, number: int, kind: str) -> None:
    secret = SECRETS[kind]
    set_log(api, LogInBothFormats(api.site.reactor))
    # The path of a 404 is withheld by its form: a password may look like any word.
    requests = [requests_with] if "password" in kind else [requests_with, missing_paths_with]
    # By default each secret is sent in a sixth of the encodings, each encoding with a sixth of the secrets.
    step = 1 if IS_THOROUGH else 6
    for name, encoding in list(ENCODINGS.items())[number % step :: step]:
        encoded = encoding(secret)
        for request_ in chain.from_iterable(make(encoded) for make in requests):
            events = ask(api, encode(*request_))
            assert sum("lines" in event for event in events) == len(FORMATS)
            log = lines_of(events)
            found = {text for text in (secret, encoded, quote(encoded), encoded[8:], encoded.lower()) if text in log}
            assert not found, (name, request_, log)
            assert "Traceback" not in log


@pytest.mark.parametrize("name", ["session", "jwt", "basic"])
def test_request_id_like_a_secret_is_replaced(logging_api: InMemoryApi, name: str) -> None:
    for given_id in (SECRETS[name], *(f"trace:{SECRETS[name]}", f"a/{SECRETS[name]}.b")[: 0 if name == "basic" else 2]):
        log = lines_of(ask(logging_api, encode("GET", "/post", {"X-Request-Id": given_id}, b"")))
        assert SECRETS[name] not in log


@pytest.mark.parametrize(
    "given_id",
    ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "3b241101-e2bb-4255-8caf-4136c566a962", "0af76519" * 4],
    ids=["traceparent", "UUID", "nginx"],
)  # fmt: skip
def test_request_id_of_a_proxy_is_kept(logging_api: InMemoryApi, given_id: str) -> None:
    log = lines_of(ask(logging_api, encode("GET", "/post", {"X-Request-Id": given_id}, b"")))
    assert given_id in log


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=8)


@given(unit=_TEXT, size=st.sampled_from([10, 1000, 4000, 8000]), index=st.integers(0, 60))
def test_log_line_length_is_limited(api: InMemoryApi, unit: str, size: int, index: int) -> None:
    requests = list(requests_with((unit * size)[:size]))
    for as_json in (False, True):
        set_log_format(api, as_json=as_json)
        events = ask(api, encode(*requests[index % len(requests)]))
        assert all(len(line.encode()) < LINE_MAX_BYTES for line in lines_of(events).split("\n"))
