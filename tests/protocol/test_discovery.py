"""An issuer's metadata, its URLs, and the freshness of its keys."""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.discovery import (
    FRESH_DEFAULT_S,
    FRESH_MAX_S,
    FRESH_MIN_S,
    MetadataError,
    check_issuer,
    check_url,
    decode_document,
    endpoint_of,
    freshness_s,
    metadata_urls,
)
from tests.cases import each

ISSUER = "https://idp.example/realms/main"
JWKS_URI = "https://keys.idp.example/jwks?v=1"

TRUSTED = [
    "https://idp.example",
    "https://idp.example/",
    "https://idp.example/realms/main",
    "https://idp.example:8443/a//b/./c;d=e/%7Ef",
    "https://IDP.example",
    "HTTPS://idp.example",
    "https://192.0.2.1",
    "https://localhost",
    "https://xn--bcher-kva.example",
    "http://127.0.0.1",
    "http://127.0.0.1:8080/realms/main",
    "http://127.0.0.2",
    "http://127.255.255.254:1",
    "http://localhost",
    "http://localhost:8080/x",
    "http://LocalHost",
    "HTTP://127.0.0.1",
]
NOT_TRUSTED = [
    "",
    " ",
    "/",
    "x",
    "None",
    "idp.example",
    "//idp.example",
    "/realms/main",
    "https:",
    "https://",
    "https:///",
    "https:///realms",
    "https:idp.example",
    "https:/idp.example",
    "https://:443",
    "https://?x",
    "ftp://idp.example",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "data:,x",
    "unix:/run/x",
    "ws://127.0.0.1",
    "httpss://idp.example",
    # plain text, to somewhere else
    "http://idp.example",
    "http://192.0.2.1",
    "http://10.0.0.1",
    "http://169.254.169.254/latest/meta-data",
    "http://0.0.0.0",
    "http://[::]",
    "http://[2001:db8::1]",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://localhost@evil.example",
    "http://127.0.0.1:80@evil.example",
    "http://127.0.0.1#@evil.example",
    "http://evil.example/127.0.0.1",
    "http://evil.example?localhost",
    "http://notlocalhost",
    "http://localhost.",
    "http://ip6-localhost",
    # spellings of 127.0.0.1 of which not all know that they are
    "http://2130706433",
    "http://0x7f.0.0.1",
    "http://0177.0.0.1",
    "http://127.1",
    "http://127.0.0.01",
    "http://\u0661\u0662\u0667.0.0.1",
    "http://127\uff0e0\uff0e0\uff0e1",
    # with userinfo
    "https://user@idp.example",
    "https://user:password@idp.example",
    "https://@idp.example",
    "https://:@idp.example",
    # a part that is not sent
    "https://idp.example#",
    "https://idp.example/#x",
    # what others may read otherwise
    "https://idp.example ",
    " https://idp.example",
    "https://idp.example/a b",
    "https://idp.example\n",
    "https://idp.example/\r\nHost: x",
    "https://idp.ex\tample",
    "ht\ntps://idp.example",
    "https://idp.example\0",
    "https://idp.example/\x7f",
    'https://idp.example/"',
    "https://idp.example\\@evil.example",
    "https:\\\\idp.example",
    "https://b\u00fccher.example",
    "https://idp.example/\u00e4",
    "https://idp.example\u2100.evil.example",
    "https://\ud800",
    # no ports, no addresses
    "https://idp.example:x",
    "https://idp.example:-1",
    "https://idp.example:65536",
    "https://idp.example:99999999999999999999",
    "https://[::1",
    "https://::1]",
    "https://[x]",
    "https://[127.0.0.1]",
    "https://[::1]x",
    "http://[::1].evil.example",
]


class UrlTests:
    @each("url", TRUSTED)
    def test_safe_url_is_returned_unchanged(self, url: str) -> None:
        assert check_url(url) == url
        assert check_issuer(url) == url

    @each("url", NOT_TRUSTED)
    def test_unsafe_url_is_refused(self, url: str) -> None:
        for check in (check_url, check_issuer):
            with pytest.raises(ValueError, match=r"is not an https URL \(http is allowed for loopback only\)"):
                check(url)

    @each("url", ["http://[::1]", "http://[::1]:8080/x", "https://[2001:db8::1]:8443/x"])
    def test_ipv6_address_is_refused(self, url: str) -> None:
        """The client, treq, does not support them; the start reports it rather than each fetch."""
        for check in (check_url, check_issuer):
            with pytest.raises(ValueError, match="has an IPv6 address, which treq does not support: use a host name"):
                check(url)

    @each("url", ["https://idp.example?", "https://idp.example/?x=1", "http://127.0.0.1/a?b"])
    def test_query_is_allowed_in_a_url_but_not_in_an_issuer(self, url: str) -> None:
        """RFC 8414 §2."""
        assert check_url(url) == url
        with pytest.raises(ValueError, match="it has a query"):
            check_issuer(url)

    def test_reason_is_one_line(self) -> None:
        with pytest.raises(ValueError, match="https") as caught:
            check_url("http://x\n\x1b[2J")
        assert str(caught.value).isprintable()

    @given(st.text() | st.text("htps:/[]@#?.127%\\ \n\t").map("https://".__add__) | st.text().map("http://".__add__))
    def test_any_text_is_accepted_or_refused(self, text: str) -> None:
        try:
            check_url(text)
        except ValueError as error:
            assert "is not an https URL" in str(error)
            return
        parts = urlsplit(text)
        assert parts.scheme == "https" or parts.hostname == "localhost" or str(parts.hostname).startswith("127.")
        assert parts.hostname
        assert parts.geturl().lower() == text.lower() or text.endswith("?")
        assert not set(text) & set('#"\\ \n\t')


class MetadataUrlTests:
    @each(
        "issuer, openid, oauth",
        [
            # OpenID Connect Discovery §4.1, RFC 8414 §3.1
            (
                "https://example.com",
                "https://example.com/.well-known/openid-configuration",
                "https://example.com/.well-known/oauth-authorization-server",
            ),
            (
                "https://example.com/issuer1",
                "https://example.com/issuer1/.well-known/openid-configuration",
                "https://example.com/.well-known/oauth-authorization-server/issuer1",
            ),
            # as Auth0 and Authentik have it
            (
                "https://example.com/",
                "https://example.com/.well-known/openid-configuration",
                "https://example.com/.well-known/oauth-authorization-server",
            ),
            (
                "https://example.com/application/o/posts/",
                "https://example.com/application/o/posts/.well-known/openid-configuration",
                "https://example.com/.well-known/oauth-authorization-server/application/o/posts",
            ),
            # as Keycloak and Entra have it
            (
                "https://example.com:8443/realms/main",
                "https://example.com:8443/realms/main/.well-known/openid-configuration",
                "https://example.com:8443/.well-known/oauth-authorization-server/realms/main",
            ),
            (
                "https://example.com/2f3a/v2.0",
                "https://example.com/2f3a/v2.0/.well-known/openid-configuration",
                "https://example.com/.well-known/oauth-authorization-server/2f3a/v2.0",
            ),
            (
                "http://localhost:8080/a",
                "http://localhost:8080/a/.well-known/openid-configuration",
                "http://localhost:8080/.well-known/oauth-authorization-server/a",
            ),
            (
                "https://example.com/a%2Fb;c=d",
                "https://example.com/a%2Fb;c=d/.well-known/openid-configuration",
                "https://example.com/.well-known/oauth-authorization-server/a%2Fb;c=d",
            ),
        ],
    )
    def test_metadata_urls_of_an_issuer(self, issuer: str, openid: str, oauth: str) -> None:
        assert metadata_urls(issuer) == (openid, oauth)

    @each("issuer", TRUSTED)
    def test_metadata_urls_are_at_the_issuers_host(self, issuer: str) -> None:
        for url in metadata_urls(issuer):
            assert check_url(url)
            assert urlsplit(url)[:2] == urlsplit(issuer)[:2]


def decode(document: Any, issuer: str = ISSUER) -> str:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return endpoint_of(decode_document(content, issuer), "jwks_uri")


class MetadataTests:
    def test_jwks_uri_is_returned(self) -> None:
        document = {"issuer": ISSUER, "jwks_uri": JWKS_URI, "authorization_endpoint": 5, "scopes_supported": None}
        assert decode(document) == JWKS_URI

    def test_jwks_uri_may_be_at_another_host(self) -> None:
        """As those of Google and Entra ID."""
        assert decode({"issuer": ISSUER, "jwks_uri": "https://keys.example/x"}) == "https://keys.example/x"

    def test_loopback_jwks_uri_needs_a_loopback_issuer(self) -> None:
        """A remote issuer must not direct requests to this machine."""
        document, local = {"jwks_uri": "http://127.0.0.1:8080/jwks"}, "http://localhost:9000"
        assert decode({"issuer": local, **document}, local) == document["jwks_uri"]
        with pytest.raises(MetadataError, match="has no jwks_uri with an https URL"):
            decode({"issuer": ISSUER, **document})

    @each(
        "issuer",
        [
            *(None, 5, True, [], [ISSUER], {}, {ISSUER: 1}, "", "https://evil.example", ISSUER + "/", ISSUER[:-1]),
            *(ISSUER.upper(), "HTTPS" + ISSUER[5:], ISSUER + " ", ISSUER + "#", "http" + ISSUER[5:], ISSUER + "\0"),
            *(ISSUER.replace("example", "example:443"), ISSUER.replace("main", "m%61in")),
        ],
    )
    def test_issuer_must_match_to_the_byte(self, issuer: Any) -> None:
        """OpenID Connect Discovery §4.3, RFC 8414 §3.3."""
        with pytest.raises(MetadataError, match="not this issuer's"):
            decode({"issuer": issuer, "jwks_uri": JWKS_URI})

    def test_trailing_slash_is_significant(self) -> None:
        assert decode({"issuer": ISSUER + "/", "jwks_uri": JWKS_URI}, ISSUER + "/") == JWKS_URI
        with pytest.raises(MetadataError) as caught:
            decode({"issuer": ISSUER, "jwks_uri": JWKS_URI}, ISSUER + "/")
        assert str(caught.value) == f'the document is not this issuer\'s: its issuer is "{ISSUER}", not "{ISSUER}/"'

    @each(
        "found",
        [None, [ISSUER], "s3cr3t", "https://", 'https://a"', "https://a\x1b[2J", "https://ä", f"https://{'a' * 201}"],
    )
    def test_only_an_issuer_that_looks_like_a_url_is_shown(self, found: object) -> None:
        with pytest.raises(MetadataError) as caught:
            decode({"issuer": found, "jwks_uri": JWKS_URI})
        assert str(caught.value) == f'the document is not this issuer\'s: its issuer is not "{ISSUER}"'

    @each("document", [{}, {"error": "x"}])
    def test_document_without_an_issuer_is_refused(self, document: Any) -> None:
        with pytest.raises(MetadataError, match="not this issuer's"):
            decode(document)

    @each(
        "content",
        [
            *(b"", b" ", b"\xff", b"<html>", b"{", b"[" * 100_000, b'{"a":' * 50_000, '{"issuer": 1}'.encode("utf-16")),
            *(
                b"{} {}",
                b"null",
                b"5",
                b'"x"',
                b"[]",
                b'[{"issuer": "x"}]',
                b'{"issuer": NaN}',
                b'{"issuer": "\xff"}',
                b'{"issuer": "\\ud800"}',
            ),
        ],
    )
    def test_invalid_json_is_refused(self, content: bytes) -> None:
        with pytest.raises(MetadataError, match="not a JSON object"):
            decode(content)

    def test_byte_order_mark_is_accepted(self) -> None:
        content = json.dumps({"issuer": ISSUER, "jwks_uri": JWKS_URI}).encode()
        assert decode(b"\xef\xbb\xbf" + content) == JWKS_URI

    @each(
        "uri",
        [
            *(None, True, 5, 1.5, [], [JWKS_URI], {}, {JWKS_URI: 1}, {"https": JWKS_URI}, [[JWKS_URI]]),
            *(url for url in NOT_TRUSTED if "\ud800" not in url),
        ],
    )
    def test_unsafe_jwks_uri_is_refused(self, uri: Any) -> None:
        with pytest.raises(MetadataError, match="no jwks_uri with an https URL"):
            decode({"issuer": ISSUER, "jwks_uri": uri})

    def test_missing_jwks_uri_is_refused(self) -> None:
        with pytest.raises(MetadataError, match="no jwks_uri"):
            decode({"issuer": ISSUER, "jwks_url": JWKS_URI})

    def test_reason_does_not_quote_the_document(self) -> None:
        for document in ({"issuer": "s3cr3t"}, {"issuer": ISSUER, "jwks_uri": "s3cr3t"}, b"s3cr3t", ["s3cr3t"]):
            with pytest.raises(MetadataError) as caught:
                decode(document)
            assert "s3cr3t" not in str(caught.value)

    @given(
        st.binary()
        | st.dictionaries(
            st.sampled_from(["issuer", "jwks_uri", "x"]),
            st.none() | st.integers() | st.text() | st.just(ISSUER) | st.lists(st.text(), max_size=2),
        ).map(lambda document: json.dumps(document).encode())
    )
    def test_any_document_is_decoded_or_refused(self, content: bytes) -> None:
        try:
            uri = decode(content)
        except MetadataError:
            return
        assert json.loads(content)["issuer"] == ISSUER
        assert check_url(uri) == json.loads(content)["jwks_uri"]


class FreshnessTests:
    """Five minutes by default, a minute at least, a day at most."""

    @each(
        "fields",
        [
            (),
            ("",),
            ("no-store",),
            ("no-cache",),
            ("public, must-revalidate",),
            ("max-age",),
            ("max-age=",),
            ('max-age=""',),
            ("max-age=x",),
            ("max-age=-1",),
            ("max-age=+600",),
            ("max-age=600.5",),
            ("max-age=6e3",),
            ("max-age=0x258",),
            ("max-age=\u0666\u0660\u0660",),
            ("max-age=600s",),
            ("s-maxage=600",),
            ("x-max-age=600",),
            ("max-ages=600",),
            ("maxage=600",),
            ("max-age:600",),
            ("stale-while-revalidate=600, stale-if-error=600",),
            (",,, ,",),
            ("=600",),
            ('x="max-age=600"',),
        ],
    )
    def test_default_without_max_age(self, fields: tuple[str, ...]) -> None:
        assert freshness_s(fields) == FRESH_DEFAULT_S == 300

    @each(
        "fields",
        [
            ("max-age=600",),
            ("Max-Age=600",),
            ("MAX-AGE=600",),
            ('max-age="600"',),
            ("max-age=0600",),
            ("public, max-age=600, must-revalidate",),
            ("public,max-age=600,immutable",),
            ("public", "max-age=600"),
            ("max-age=600", "public"),
            ('private="set-cookie", max-age=600',),
            ("s-maxage=60, max-age=600",),
            ("max-age=x, max-age=600",),
            ("no-transform,\tmax-age=600",),
            ("max-age=600, max-age=600",),
        ],
    )
    def test_max_age_is_found_among_other_directives(self, fields: tuple[str, ...]) -> None:
        assert freshness_s(fields) == 600

    @each("field", ['community="UCI, max-age=86400"', 'no-cache="x, max-age=86400, y"'])
    def test_max_age_in_a_quoted_string_is_ignored(self, field: str) -> None:
        """RFC 9111 §5.2: a quoted string may have commas in it."""
        assert freshness_s((field,)) == FRESH_DEFAULT_S
        assert freshness_s((f"{field}, max-age=600",)) == 600

    @each(
        "max_age, fresh",
        [
            *((0, 60), (1, 60), (59, 60), (60, 60), (61, 61), (86_399, 86_399), (86_400, 86_400), (86_401, 86_400)),
            *((31_536_000, 86_400), (2**31, 86_400), (2**63, 86_400), (10**40, 86_400)),
        ],
    )
    def test_freshness_is_limited(self, max_age: int, fresh: float) -> None:
        assert freshness_s((f"max-age={max_age}",)) == fresh

    def test_overlong_max_age_is_limited(self) -> None:
        assert freshness_s((f"max-age={'9' * 10_000}",)) == FRESH_MAX_S

    @each(
        "age, fresh",
        [
            *(("0", 600), ("1", 599), ("540", 60), ("541", 60), ("600", 60), ("99999", 60), (str(2**70), 60)),
            *(("", 600), ("x", 600), ("-1", 600), ("1.5", 600), ("1, 2", 600), ("\u0661", 600), ("\u00b2", 600)),
        ],
    )
    def test_age_is_subtracted(self, age: str, fresh: float) -> None:
        """RFC 9111 §4.2.3."""
        assert freshness_s(("max-age=600",), age) == fresh

    def test_overlong_age_gives_the_minimum(self) -> None:
        """A field may have 16 KiB; Python's int() accepts at most 4300 digits."""
        assert freshness_s(("max-age=600",), "9" * 10_000) == FRESH_MIN_S

    def test_age_without_max_age_is_ignored(self) -> None:
        assert freshness_s((), "100000") == freshness_s(("no-store",), "100000") == FRESH_DEFAULT_S

    @given(st.lists(st.text() | st.text('max-age=0123456789", ')), st.text() | st.text("0123456789"))
    def test_any_fields_give_a_time_within_the_limits(self, fields: list[str], age: str) -> None:
        assert FRESH_MIN_S <= freshness_s(fields, age) <= FRESH_MAX_S
