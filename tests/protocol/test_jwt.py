"""Decoding JWTs, and checking their claims against a policy.

Signatures are verified in `test_jwk`; here they are only text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from postd.protocol.jwt import (
    AccessToken,
    EncryptedError,
    ExpiredTokenError,
    Jwt,
    NotJwtError,
    TokenError,
    TokenPolicy,
    decode_jwt,
)
from tests.cases import each
from tests.issuer import ABSENT, EMPTY, Key, Mint, b64, make_token

NOW = 1_800_000_000
ISSUER, AUDIENCE = "https://idp.example/realms/main", "https://posts.example"
KEY = Key.make("EdDSA", "one")
MINT = Mint(ISSUER, AUDIENCE, KEY, now=lambda: NOW)
POLICY = TokenPolicy(ISSUER, frozenset({AUDIENCE}))
WITHOUT_AUDIENCE = TokenPolicy(ISSUER, frozenset(), required_claims={"client_id": ("mine",)})
SECRET = "s3cr3t:"

ILL_TYPED: Mapping[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "a number": 5,
    "zero": 0,
    "a float": 0.5,
    "a list": ["x"],
    "an empty list": [],
    "an object": {"x": "x"},
    "an empty object": {},
}
"""Values that are not strings."""


def shown(value: object) -> str:
    """Return a test case's id from its value."""
    return ascii(sorted(value) if isinstance(value, set | frozenset) else value)


def make(header: Mapping[str, Any] | None = None, /, **claims: Any) -> str:
    """Return a valid token with changes to its header and its claims."""
    return MINT.token(None, header, **claims)


def accept(token: str, policy: TokenPolicy = POLICY, now: float = NOW) -> AccessToken:
    """Accept a token as an issuer does, without verifying its signature."""
    jwt = decode_jwt(token)
    policy.check_header(jwt)
    return policy.check_claims(jwt, now)


def refusal(token: str, policy: TokenPolicy = POLICY, now: float = NOW) -> str:
    """Return why a token is refused, which is a JWT and has not merely expired."""
    with pytest.raises(TokenError) as caught:
        accept(token, policy, now)
    assert type(caught.value) is TokenError
    return str(caught.value)


def expired(token: str, policy: TokenPolicy = POLICY, now: float = NOW) -> bool:
    try:
        accept(token, policy, now)
    except ExpiredTokenError:
        return True
    return False


def loose(value: Any, *, over: int) -> bytes:
    """Write JSON with white space behind it, so that it has a byte or two over a multiple of three: its Base64 has
    bits to spare, and room for padding.
    """
    text = json.dumps(value).encode()
    return text + b" " * ((over - len(text)) % 3)


def with_bits_to_spare(part: str) -> str:
    """Set the last bit, which is unused."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    assert len(part) % 4
    return part[:-1] + alphabet[alphabet.index(part[-1]) | 1]


def padded(part: str) -> str:
    assert len(part) % 4
    return part + "=" * (-len(part) % 4)


def in_the_other_alphabet(part: str) -> str:
    other = part.translate(str.maketrans("-_", "+/"))
    assert other != part
    return other


SPELLINGS: Mapping[str, Any] = {
    "padded": padded,
    "padded halfway": lambda part: part + "=",
    "padded too much": lambda part: padded(part) + "====",
    "with bits to spare": with_bits_to_spare,
    "in the other alphabet": in_the_other_alphabet,
    "with a line feed behind it": lambda part: part + "\n",
    "with a line feed before it": lambda part: "\n" + part,
    "with a line feed in it": lambda part: part[:4] + "\n" + part[4:],
    "with a space in it": lambda part: part[:4] + " " + part[4:],
    "with a tilde in it": lambda part: part[:4] + "~" + part[4:],
    "with four tildes in it": lambda part: part[:4] + "~~~~" + part[4:],
    "with a NUL behind it": lambda part: part + "\0",
    "with a letter too many": lambda part: part + "A" * ((1 - len(part)) % 4),
}
"""Spellings that a lenient decoder would accept for the same bytes."""


class DecodeTests:
    def test_token_is_decoded(self) -> None:
        header, claims = MINT.header(x={"y": [1, None]}), MINT.claims(more="Jürgen 世界")
        token = make_token(header, claims, KEY)
        jwt = decode_jwt(token)
        assert (jwt.header, jwt.claims) == (header, claims)
        assert jwt.signed == token.rpartition(".")[0].encode()
        KEY.private.public_key().verify(jwt.signature, jwt.signed)
        assert (jwt.algorithm, jwt.key_id, jwt.issuer) == ("EdDSA", "one", ISSUER)

    def test_absent_members_stay_absent(self) -> None:
        jwt = decode_jwt(make_token({"alg": "none"}, {"iss": "x"}, KEY))
        assert (jwt.algorithm, jwt.key_id, jwt.issuer) == ("none", None, "x")

    def test_white_space_and_escapes_are_accepted(self) -> None:
        header, claims = MINT.header(), MINT.claims()
        written = json.dumps(header, indent=4).replace('"alg"', '"\\u0061lg"').encode()
        jwt = decode_jwt(make_token(written, b"\r\n\t " + json.dumps(claims, indent=1).encode() + b"\n", KEY))
        assert (jwt.header, jwt.claims) == (header, claims)

    def test_empty_signature_is_decoded(self) -> None:
        assert decode_jwt(make().rpartition(".")[0] + ".").signature == b""

    @each(
        "token",
        [
            *("", "x", ".", "..", "...", ".....", "a.b", "a.b.c.d", "a.b.c.d.e.f"),
            "mF_9.B5f-4.1JqM",
            "2YotnFZFEjr1zCsicMWpAA",
            "ya29.a0AfH6SMBx-not-a-jwt",
            "e30.e30",
            f"{b64(b'[]')}.{b64(b'{}')}.x",
        ],
    )
    def test_other_text_is_not_a_jwt(self, token: str) -> None:
        with pytest.raises(NotJwtError, match=r"^it is not a JWT$"):
            decode_jwt(token)

    def test_wrong_number_of_parts_is_not_a_jwt(self) -> None:
        for token in (make().rpartition(".")[0], make() + ".", "." + make(), make() + ".e30"):
            with pytest.raises(NotJwtError):
                decode_jwt(token)

    def test_encrypted_token_is_refused(self) -> None:
        """It is not opaque either, so no issuer is asked."""
        header = b64(json.dumps({"alg": "RSA-OAEP", "enc": "A256GCM"}).encode())
        for token in (f"{header}.x.x.x.x", f"{header}....", f"{make()}.x.x"):
            with pytest.raises(EncryptedError, match=re.escape("it is encrypted (JWE)")):
                decode_jwt(token)

    def test_nested_token_is_refused(self) -> None:
        nested = make_token(MINT.header(cty="JWT"), make().encode(), KEY)
        assert "malformed" in refusal(nested)

    def test_json_serialization_is_not_a_jwt(self) -> None:
        """RFC 7515 §7.2."""
        header, claims, signature = make().split(".")
        one = {"protected": header, "signature": signature}
        for document in ({"payload": claims, **one}, {"payload": claims, "signatures": [one]}):
            with pytest.raises(NotJwtError):
                decode_jwt(json.dumps(document))

    @each("text", ["tök.en.x", "e30.e30.\u0130", "\ud800", "\uff45\uff13\uff10.e30.", "e30.e30.e30\u200b"])
    def test_text_that_http_cannot_carry_is_refused(self, text: str) -> None:
        with pytest.raises(TokenError):
            decode_jwt(text)


class SpellingTests:
    """Each token has one spelling only, so that it is identified by its text."""

    @each("over", [1, 2])
    @each("spelling", SPELLINGS.values(), ids=SPELLINGS)
    def test_non_canonical_part_is_refused(self, spelling: Any, over: int) -> None:
        header = b64(loose(MINT.header(x="?????"), over=over))
        claims = b64(loose(MINT.claims(x="?????"), over=over))
        signature = b64(b"\xff" * (60 + over))
        assert accept(f"{header}.{claims}.{signature}")
        with pytest.raises(TokenError):
            decode_jwt(f"{spelling(header)}.{claims}.{signature}")
        assert "canonical Base64" in refusal(f"{header}.{spelling(claims)}.{signature}")
        assert "canonical Base64" in refusal(f"{header}.{claims}.{spelling(signature)}")

    @given(data=st.binary(), noise=st.text("+/=~ \n-_A", max_size=3), at=st.integers(0, 100))
    def test_signature_has_one_spelling(self, data: bytes, noise: str, at: int) -> None:
        signed, text = make().rpartition(".")[0], b64(data)
        other = text[:at] + noise + text[at:]
        assert decode_jwt(f"{signed}.{text}").signature == data
        try:
            decoded = decode_jwt(f"{signed}.{other}").signature
        except TokenError:
            return
        assert b64(decoded) == other


def broken(whole: bytes) -> dict[str, bytes]:
    """Return malformed and ambiguous JSON objects, by the kind of error."""
    inner = whole[1:-1]
    return {
        "empty": b"",
        "white space": b"  ",
        "an array": b"[" + whole + b"]",
        "a string": json.dumps(whole.decode()).encode(),
        "a number": b"1",
        "null": b"null",
        "true": b"true",
        "with a byte order mark": b"\xef\xbb\xbf" + whole,
        "with something behind it": whole + b"x",
        "with a NUL behind it": whole + b"\0",
        "with a no-break space behind it": whole + b"\xc2\xa0",
        "twice": whole + whole,
        "with a comma too many": b"{" + inner + b",}",
        "with a comment": b"/**/" + whole,
        "with single quotes": whole.replace(b'"', b"'"),
        "cut": whole[:-1],
        "with a line feed in a string": b"{" + inner + b', "x": "\n"}',
        "with a wrong escape": b"{" + inner + b', "x": "\\x41"}',
        "in UTF-16": whole.decode().encode("utf-16"),
        "in UTF-16 without a mark": whole.decode().encode("utf-16-le"),
        "in UTF-32": whole.decode().encode("utf-32-be"),
        "in Latin-1": b"{" + inner + b', "x": "\xe9"}',
        "in overlong UTF-8": b"{" + inner + b', "x": "\xc0\xaf"}',
        "with half a surrogate pair in UTF-8": b"{" + inner + b', "x": "\xed\xa0\x80"}',
        "with NaN": b"{" + inner + b', "x": NaN}',
        "with Infinity": b"{" + inner + b', "x": [Infinity]}',
        "with -Infinity": b"{" + inner + b', "x": {"y": -Infinity}}',
        "with a hexadecimal number": b"{" + inner + b', "x": 0x10}',
        "with a leading zero": b"{" + inner + b', "x": 01}',
        "with a plus": b"{" + inner + b', "x": +1}',
        "with a number of 5000 digits": b"{" + inner + b', "x": ' + b"9" * 5000 + b"}",
        "with a name twice": b"{" + inner + b', "x": 1, "x": 1}',
        "with a name twice, once escaped": b"{" + inner + b', "x": 1, "\\u0078": 1}',
        "with a name twice below": b"{" + inner + b', "x": {"y": 1, "y": 1}}',
        "with a name twice deep below": b"{" + inner + b', "x": [[{"y": [{"z": 1, "z": 2}]}]]}',
        "with an empty name twice": b"{" + inner + b', "": 1, "": 2}',
        "deeply nested arrays": b"{" + inner + b', "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        "deeply nested objects": b"{" + inner + b', "x": ' + b'{"x":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
        "deeply nested, not closed": b'{"x":[' * 20_000,
    }


class JsonTests:
    @each("what", broken(b"{}"))
    def test_malformed_header_is_refused(self, what: str) -> None:
        """A token that does not begin like a header may be opaque."""
        text = broken(json.dumps(MINT.header()).encode())[what]
        token = make_token(text, MINT.claims(), KEY)
        if text.lstrip().startswith(b"{"):
            assert "malformed" in refusal(token)
        else:
            with pytest.raises(NotJwtError):
                decode_jwt(token)

    @each("what", broken(b"{}"))
    def test_malformed_claims_are_refused(self, what: str) -> None:
        text = broken(json.dumps(MINT.claims()).encode())[what]
        assert "malformed" in refusal(make_token(MINT.header(), text, KEY))

    @each("name", ["alg", "typ", "kid", "crit", "x"])
    def test_duplicate_name_in_the_header_is_refused(self, name: str) -> None:
        """Verification and policy might use different ones."""
        header = json.dumps(MINT.header(**{name: ABSENT}))[1:]
        for values in ('"none"', '"EdDSA"'), ('"EdDSA"', '"none"'), ('"EdDSA"', '"EdDSA"'):
            text = f'{{"{name}": {values[0]}, "{name}": {values[1]}, {header}'
            assert "malformed" in refusal(make_token(text.encode(), MINT.claims(), KEY))

    @each("name", ["iss", "aud", "exp", "sub", "scope"])
    def test_duplicate_name_in_the_claims_is_refused(self, name: str) -> None:
        good = json.dumps(MINT.claims(scope="x")[name])
        claims = json.dumps(MINT.claims(**{name: ABSENT}))[1:]
        for values in ("1", good), (good, "1"), (good, good):
            text = f'{{"{name}": {values[0]}, "{name}": {values[1]}, {claims}'
            assert "malformed" in refusal(make_token(MINT.header(), text.encode(), KEY))

    def test_moderate_nesting_is_accepted(self) -> None:
        deep: Any = 1
        for _ in range(100):
            deep = {"x": [deep]}
        assert accept(make({"x": deep}, x=deep))

    def test_any_number_in_an_unused_claim_is_accepted(self) -> None:
        assert accept(make(huge=10**400, small=1e-300, negative=-0.0))
        written = json.dumps(MINT.claims()).encode()[:-1] + b', "x": 1e400}'
        assert accept(make_token(MINT.header(), written, KEY))


class HeaderTests:
    @each(
        "members",
        [
            {"crit": []},
            {"crit": ["x"], "x": 1},
            {"crit": ["exp"], "exp": NOW + 600},
            {"crit": ["alg"]},
            {"crit": ["b64"], "b64": True},
            {"crit": ["b64"], "b64": False},
            {"crit": "exp"},
            {"crit": {}},
            {"crit": False},
            {"b64": False},
            {"b64": True},
        ],
    )
    def test_critical_extension_is_refused(self, members: dict[str, Any]) -> None:
        assert refusal(make(members)) in {"its header has crit", "its header has b64"}

    @each("name", ["alg", "kid", "typ"])
    @each("value", ILL_TYPED.values(), ids=ILL_TYPED)
    def test_header_member_that_is_not_a_string_is_refused(self, name: str, value: object) -> None:
        if value or value in (False, 0):
            assert refusal(make({name: value})) == f"{name} in its header is not a string"

    def test_missing_algorithm_is_refused(self) -> None:
        for value in (ABSENT, *EMPTY):
            assert refusal(make({"alg": value})) == "alg is missing"

    @each("alg", ["RS256", "PS256", "ES256", "EdDSA", "Ed25519"])
    def test_default_algorithms_are_accepted(self, alg: str) -> None:
        assert accept(make({"alg": alg}))

    @each(
        "alg",
        [
            *("none", "None", "NONE", "nOnE", "none ", "HS256", "HS384", "HS512", "RS384", "RS512", "PS384"),
            *("PS512", "ES384", "ES512", "ES256K", "Ed448", "RSA-OAEP", "dir", "RS1", "rs256", "RS256 "),
            *(" RS256", "RS256\0", "RS256\n", "EDDSA", "eddsa", "\uff32S256"),
        ],
    )
    def test_other_algorithm_is_refused(self, alg: str) -> None:
        assert refusal(make({"alg": alg})).partition(":")[0] == "alg is not accepted here"

    def test_policy_limits_the_algorithms(self) -> None:
        policy = replace(POLICY, algorithms=frozenset({"ES384"}))
        assert accept(make({"alg": "ES384"}), policy)
        for alg in ("RS256", "EdDSA", "Ed25519", "none", "HS384"):
            assert "alg" in refusal(make({"alg": alg}), policy)

    @each("named", [{"EdDSA"}, {"Ed25519"}, {"EdDSA", "Ed25519"}])
    def test_either_name_of_ed25519_accepts_both(self, named: Any) -> None:
        """RFC 9864 §2.2."""
        for alg in ("EdDSA", "Ed25519"):
            # `replace` of the oldest msgspec does not call `__post_init__`.
            assert accept(make({"alg": alg}), TokenPolicy(**(asdict(POLICY) | {"algorithms": frozenset(named)})))

    @each("name, known", [("alg", "RS512"), ("alg", "none"), ("alg", "ML-DSA-65"), ("typ", "application/logout+jwt")])
    def test_refused_name_is_in_the_reason(self, name: str, known: str) -> None:
        assert refusal(make({name: known})) == f"{name} is not accepted here: {known}"

    @each("name", ["alg", "typ"])
    @each("text", ["x" * 33, "a b", "a\nb", "\x1b[2J", "a:b", "é", "<b>", '"x"', "\u202ex", "a.b/c?d"])
    def test_name_that_is_long_or_odd_is_not_in_the_reason(self, name: str, text: str) -> None:
        assert refusal(make({name: text})) == f"{name} is not accepted here"

    @each(
        "typ",
        [
            *("at+jwt", "AT+JWT", "At+Jwt", "JWT", "jwt", "Jwt", ABSENT),
            *("application/at+jwt", "Application/AT+JWT", "APPLICATION/jwt", "application/JWT"),
        ],
    )
    def test_type_is_compared_without_case_and_prefix(self, typ: Any) -> None:
        """RFC 7515 §4.1.9."""
        assert accept(make({"typ": typ}))

    @each(
        "typ",
        [
            *(" ", "application/", "application", "text/at+jwt", "at+jwt ", " at+jwt", "at+jwt;charset=utf-8"),
            *("application/application/at+jwt", "/at+jwt", "at jwt", "at-jwt", "atjwt", "JWT\0", "JOSE", "JOSE+JSON"),
            *("dpop+jwt", "logout+jwt", "secevent+jwt", "token-introspection+jwt", "oauth-authz-req+jwt", "id+jwt"),
            *("JWE", "appl\u0131cation/jwt", "\uff2aWT"),
        ],
    )
    def test_other_type_is_refused(self, typ: str) -> None:
        """RFC 8725 §3.11."""
        assert refusal(make({"typ": typ})).partition(":")[0] == "typ is not accepted here"

    @each("accepted", ["at+jwt", "application/at+jwt", "AT+JWT"])
    def test_policy_without_jwt_requires_a_type(self, accepted: str) -> None:
        """Without `JWT` among the types, a token without `typ` is refused."""
        policy = replace(POLICY, token_types=frozenset({accepted}))
        for typ in ("at+jwt", "application/at+jwt", "AT+JWT"):
            assert accept(make({"typ": typ}), policy)
        for typ in ("JWT", "application/jwt", ABSENT):
            assert "typ" in refusal(make({"typ": typ}), policy)

    def test_keys_in_the_header_are_ignored(self) -> None:
        """They are neither used nor a reason to refuse the token."""
        url = "https://keys.forged.example/jwks"
        brought = {"jwk": KEY.jwk(), "jku": url, "x5u": url, "x5c": ["x"], "x5t": "x"}
        assert accept(make(brought)) == accept(make())


class IssuerTests:
    @each("value", [ABSENT, *ILL_TYPED.values(), [ISSUER], {ISSUER: 1}])
    def test_issuer_that_is_not_a_string_is_refused(self, value: Any) -> None:
        assert refusal(make(iss=value)) == "iss is missing, or not a string"

    @each(
        "iss",
        [
            *("x", ISSUER + "/", ISSUER.upper(), ISSUER.replace("https", "HTTPS"), ISSUER.replace("https", "http")),
            *(ISSUER + " ", " " + ISSUER, ISSUER + "\n", ISSUER + "\0", ISSUER[:-1], ISSUER + "#", ISSUER + "?"),
            *(ISSUER.replace("example", "example:443"), ISSUER.replace("main", "m%61in")),
            *(ISSUER.replace("i", "\u0456"), ISSUER.replace("//", "//x@")),
        ],
    )
    def test_issuer_must_match_to_the_byte(self, iss: str) -> None:
        assert refusal(make(iss=iss)) == "iss is another issuer"

    def test_trailing_slash_is_significant(self) -> None:
        """Issuers of Auth0 and of Entra ID's v1.0 have one."""
        policy = replace(POLICY, issuer=ISSUER + "/")
        assert accept(make(iss=ISSUER + "/"), policy)
        assert refusal(make(), policy) == "iss is another issuer"

    def test_issuer_in_another_normal_form_is_refused(self) -> None:
        policy = replace(POLICY, issuer="https://b\u00fccher.example")
        assert refusal(make(iss="https://bu\u0308cher.example"), policy)


class AudienceTests:
    @each(
        "aud",
        [AUDIENCE, [AUDIENCE], ["account", AUDIENCE], [AUDIENCE, f"{ISSUER}/userinfo"], [AUDIENCE, AUDIENCE]],
    )
    def test_accepted_audience(self, aud: Any) -> None:
        assert accept(make(aud=aud))

    @each(
        "aud",
        [
            *("account", AUDIENCE + "/", AUDIENCE + "/more", "x" + AUDIENCE, AUDIENCE[:-1], AUDIENCE.upper()),
            *(AUDIENCE + " ", AUDIENCE + "\0", f"{AUDIENCE} posts:read", f"{AUDIENCE},x", json.dumps([AUDIENCE])),
            *(["account"], [""], [AUDIENCE + "/"], list(AUDIENCE)),
        ],
    )
    def test_other_audience_is_refused(self, aud: Any) -> None:
        reason = f'aud is another audience (expected "{AUDIENCE}")'
        hint = f' (it differs from "{AUDIENCE}" by case or a slash at the end only)'
        is_near = aud in {AUDIENCE + "/", AUDIENCE.upper()} if isinstance(aud, str) else AUDIENCE + "/" in aud
        assert refusal(make(aud=aud)) == reason + (hint if is_near else "")

    @given(st.sampled_from(["https://posts.example", "https://posts.example/a/", "api://posts", "POSTS"]), st.data())
    def test_audience_that_differs_by_case_or_slash_is_hinted_at(self, expected: str, data: st.DataObject) -> None:
        letters = data.draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
        spelled = "".join(c.upper() if is_upper else c.lower() for c, is_upper in zip(expected, letters, strict=True))
        spelled = spelled.rstrip("/") + "/" * data.draw(st.integers(0, 2))
        assume(spelled != expected)
        policy = replace(POLICY, audiences=frozenset({expected, "other"}))
        assert refusal(make(aud=["account", spelled]), policy).endswith(
            f'(it differs from "{expected}" by case or a slash at the end only)'
        )
        assert "differs" not in refusal(make(aud=["account", spelled + "x"]), policy)

    @each(
        "aud",
        [
            ABSENT,
            *ILL_TYPED.values(),
            {AUDIENCE: True},
            {"aud": AUDIENCE},
            [[AUDIENCE]],
            [AUDIENCE, 5],
            [AUDIENCE, None],
            [AUDIENCE, [AUDIENCE]],
            [{"aud": AUDIENCE}],
        ],
    )
    def test_malformed_audience_is_refused(self, aud: Any) -> None:
        reason = "aud is another audience" if aud == ["x"] else "aud is missing, or neither a string nor a list"
        assert refusal(make(aud=aud)).startswith(reason)

    def test_any_audience_of_the_policy_suffices(self) -> None:
        """Entra ID's v1.0 names the API by its id or by its URI."""
        policy = replace(POLICY, audiences=frozenset({"api://posts", "2d4f"}))
        for aud in ("api://posts", "2d4f", ["2d4f"], ["x", "api://posts"], ["2d4f", "api://posts"]):
            assert accept(make(aud=aud), policy)
        assert refusal(make(), policy) == 'aud is another audience (expected "2d4f" or "api://posts")'

    def test_audience_is_ignored_without_audiences_in_the_policy(self) -> None:
        """For Cognito, which sends none: `required_claims` identify the audience."""
        audiences: list[Any] = [ABSENT, "x", 5, None, [[]]]
        for aud in audiences:
            assert accept(make(aud=aud, client_id="mine"), WITHOUT_AUDIENCE)
            assert refusal(make(aud=aud, client_id="x"), WITHOUT_AUDIENCE)
            assert refusal(make(aud=aud), WITHOUT_AUDIENCE)


class TimeTests:
    """The leeway is 30 s."""

    def test_token_expires_at_the_end_of_the_leeway(self) -> None:
        for exp in (NOW + 600, NOW, NOW - 29, NOW - 29.999, 4e9, 2**53):
            assert accept(make(exp=exp)).expires_at == exp
        for exp in (NOW - 30, NOW - 30.5, NOW - 31, 1, 0, 0.0, -0.0):
            assert expired(make(exp=exp))

    def test_token_expires_as_time_passes(self) -> None:
        token = make(exp=NOW)
        assert accept(token, now=NOW + 29.999)
        assert expired(token, now=NOW + 30)

    @each("name", ["nbf", "iat"])
    def test_future_date_is_accepted_within_the_leeway(self, name: str) -> None:
        for value in (0, 1, NOW - 86_400, NOW, NOW + 29.5, NOW + 30, ABSENT):
            assert accept(make(**{name: value}))
        for value in (NOW + 31, NOW + 30.001, NOW + 3600, 2**53):
            assert refusal(make(**{name: value})) == f"{name} is in the future"

    def test_leeway_is_a_setting(self) -> None:
        strict, lenient = replace(POLICY, leeway_s=0.0), replace(POLICY, leeway_s=120.0)
        for policy, leeway in ((strict, 0), (lenient, 120)):
            assert accept(make(exp=NOW - leeway + 1, nbf=NOW + leeway, iat=NOW + leeway), policy)
            assert expired(make(exp=NOW - leeway), policy)
            for name in ("nbf", "iat"):
                assert refusal(make(**{name: NOW + leeway + 1}), policy)

    @each("value", [ABSENT, None, "", [], {}])
    def test_token_without_expiry_is_refused(self, value: Any) -> None:
        assert refusal(make(exp=value)) == "exp is missing"

    @each("name", ["exp", "nbf", "iat"])
    @each(
        "value",
        [
            *(True, False, str(NOW), "2100-01-01", [NOW], {"x": 1}),
            *(-1, -0.5, -(10**40), 2**53 + 2, 10**40, 1e40, 10**307),
        ],
    )
    def test_malformed_date_is_refused(self, name: str, value: Any) -> None:
        assert refusal(make(**{name: value})) == f"{name} is not a date"

    @each("name", ["exp", "nbf", "iat"])
    @each("text", ["1e400", "-1e400", "9" * 309, "-" + "9" * 400, "9" * 4300])
    def test_date_beyond_float_range_is_refused(self, name: str, text: str) -> None:
        claims = json.dumps(MINT.claims(**{name: ABSENT}))[:-1] + f', "{name}": {text}}}'
        assert name in refusal(make_token(MINT.header(), claims.encode(), KEY))

    def test_expiry_in_the_header_is_ignored(self) -> None:
        assert refusal(make({"exp": NOW + 600}, exp=ABSENT)) == "exp is missing"

    def test_expired_is_reported_only_of_otherwise_valid_tokens(self) -> None:
        """Other refusals take precedence."""
        changes: list[dict[str, Any]] = [{"iss": "x"}, {"aud": "x"}, {"cnf": {"jkt": "x"}}, {"sub": ABSENT}]
        for claims in changes:
            assert refusal(make(**{"exp": 1, **claims}))


class UserTests:
    @each(
        "name",
        [
            *("alice", "x", "a" * 255, "Jürgen 世界 🙂", "a#b", "a b", "a:b", "aBcD1234@clients", "../../etc/passwd"),
            *("x' OR 1=1 --", "<script>", "e\u0301", "0"),
        ],
    )
    def test_valid_user_name_is_accepted(self, name: str) -> None:
        assert accept(make(sub=name)).user == name

    @each("value", [ABSENT, None, "", [], {}])
    def test_missing_sub_is_refused(self, value: Any) -> None:
        assert refusal(make(sub=value)) == "sub is missing"

    @each("claim", ["sub", "email"])
    @each(
        "value",
        [
            *(True, False, 5, 0, 0.5, ["alice"], {"x": "alice"}, "a" * 256),
            *("a\nb", "a\r\nSet-Cookie: x", "a\0", "\x1b[2J", "a\x7f", "a\x9b", "a\tb", "\ud800"),
            *("a\u202eb", "a\u2028b", "a\u2029", "a\u200bb", "\ufeffa", "a\u00adb", "\ue000", "\u0378", "a\u00a0b"),
        ],
    )
    def test_invalid_user_name_is_refused(self, claim: str, value: Any) -> None:
        policy = replace(POLICY, user_claim=claim)
        assert refusal(make(**{"email": "a@posts.example", claim: value}), policy) == f"{claim} is not a valid name"

    def test_user_claim_is_a_setting(self) -> None:
        policy = replace(POLICY, user_claim="preferred_username")
        assert accept(make(preferred_username="jürgen"), policy).user == "jürgen"
        assert refusal(make(), policy).startswith("preferred_username is missing")

    def test_sub_is_checked_beside_another_user_claim(self) -> None:
        policy = replace(POLICY, user_claim="email")
        for typ in ("at+jwt", "JWT"):
            for sub in (5, "a\nb"):
                assert (
                    refusal(make({"typ": typ}, sub=sub, email="a@posts.example"), policy) == "sub is not a valid name"
                )

    @each("typ", ["JWT", "jwt", ABSENT])
    @each("sub", [ABSENT, None, ""])
    def test_sub_is_required_of_access_tokens_by_their_type_alone(self, typ: Any, sub: Any) -> None:
        """RFC 9068 §2.2 is the profile of `at+jwt`; a machine's token of another type may have a `client_id` alone."""
        policy = replace(POLICY, user_claim="client_id")
        assert accept(make({"typ": typ}, sub=sub, client_id="machine"), policy).user == "machine"
        assert refusal(make({"typ": "at+jwt"}, sub=sub, client_id="machine"), policy) == "sub is missing"
        assert refusal(make({"typ": typ}, sub=sub), policy) == "client_id is missing"
        assert refusal(make({"typ": typ}, sub=sub, client_id="machine")) == "sub is missing"

    def test_client_id_does_not_replace_sub_of_a_jwt(self) -> None:
        assert refusal(make(sub=ABSENT, client_id="mine")) == "sub is missing"


class BoundTests:
    @each("cnf", [{"jkt": "x" * 43}, {"x5t#S256": "x"}, {"jkt": 5}, {"jwk": {"kty": "EC"}}, ["x"], False, "x"])
    def test_token_bound_to_a_key_is_refused(self, cnf: Any) -> None:
        assert "cnf" in refusal(make(cnf=cnf))


class RequiredClaimsTests:
    def require(self, *values: Any) -> TokenPolicy:
        return replace(POLICY, required_claims={"azp": values})

    def test_required_value_is_accepted(self) -> None:
        assert accept(make(azp="mine"), self.require("mine"))
        assert accept(make(azp="mine"), self.require("another", "mine"))
        for azp in (ABSENT, None, "", "Mine", "mine ", "another", "min", 5, {"mine": 1}, {}, [], [["mine"]]):
            assert refusal(make(azp=azp), self.require("mine")) == "azp is not accepted here"

    def test_one_element_of_a_list_suffices(self) -> None:
        """As in Entra ID's `roles`."""
        for good in (["mine"], ["x", "mine"], ["mine", 5, None, {}]):
            assert accept(make(azp=good), self.require("mine"))
        for bad in (["x"], ["x", 5], [None], [{"mine": 1}]):
            assert refusal(make(azp=bad), self.require("mine"))

    @each(
        "value, others",
        [
            (True, [1, 1.0, "true", "True", False, None]),
            (False, [0, 0.0, "", "false", None, ABSENT, [], {}]),
            (1, [True, "1", 2, 0]),
            (0, [False, "0", "", None, ABSENT]),
            ("1", [1, True]),
            ("", [0, False, None, ABSENT, [], {}]),
            ("None", [None, ABSENT]),
        ],
    )
    def test_values_are_compared_with_their_types(self, value: Any, others: list[Any]) -> None:
        """True == 1 in Python, but not in JSON."""
        for good in (value, [value], ["x", value]):
            assert accept(make(azp=good), self.require(value))
        for other in others:
            assert refusal(make(azp=other), self.require(value))
            assert refusal(make(azp=["x", other] if other is not ABSENT else []), self.require(value))

    def test_all_required_claims_are_checked(self) -> None:
        policy = replace(POLICY, required_claims={"azp": ("mine",), "token_use": ("access",)})
        assert accept(make(azp="mine", token_use="access"), policy)
        for claims in ({"azp": "mine"}, {"token_use": "access"}, {"azp": "mine", "token_use": "id"}):
            assert refusal(make(**claims), policy)

    def test_claims_of_cognito(self) -> None:
        policy = TokenPolicy(ISSUER, frozenset(), required_claims={"client_id": ("3n4b",), "token_use": ("access",)})
        claims = {"aud": ABSENT, "client_id": "3n4b", "scope": "posts/read"}
        assert accept(make({"typ": ABSENT}, token_use="access", **claims), policy)
        assert refusal(make({"typ": ABSENT}, token_use="id", **claims), policy)


class ScopeTests:
    @each(
        "claims, scopes",
        [
            ({}, set()),
            ({"scope": ""}, set()),
            ({"scope": " "}, set()),
            ({"scope": []}, set()),
            ({"scope": "posts:read"}, {"posts:read"}),
            ({"scope": "posts:read posts:write"}, {"posts:read", "posts:write"}),
            ({"scope": " posts:read  posts:write "}, {"posts:read", "posts:write"}),
            ({"scope": "x\ty,z"}, {"x\ty,z"}),
            ({"scope": ["posts:read", "posts:write"]}, {"posts:read", "posts:write"}),
            ({"scope": ["posts:read", "posts:read", ""]}, {"posts:read"}),
            ({"scope": ["posts:read posts:write"]}, {"posts:read posts:write"}),
            ({"scp": "posts:read posts:write"}, {"posts:read", "posts:write"}),
            ({"scp": ["posts:read", "posts:write"]}, {"posts:read", "posts:write"}),
            ({"scope": "posts:read", "scp": ["posts:write"]}, {"posts:read", "posts:write"}),
            ({"roles": ["posts:read"], "Scope": "posts:read", "scopes": "posts:read"}, set()),
        ],
    )
    def test_scopes_in_a_string_or_in_a_list(self, claims: dict[str, Any], scopes: set[str]) -> None:
        assert accept(make(**claims)).scopes == scopes

    @each("name", ["scope", "scp"])
    @each("value", [5, 0, True, False, {"posts:read": 1}, ["x", 5], [["x"]], [None]])
    def test_malformed_scope_claim_is_refused(self, name: str, value: Any) -> None:
        reason = f"{name} is neither a string nor a list of strings"
        assert refusal(make(**{"scope": "x", name: value})) == reason

    def test_scope_claims_are_a_setting(self) -> None:
        """As Entra ID's tokens of applications, which have `roles` and no `scp`."""
        policy = replace(POLICY, scope_claims=("roles", "scp"))
        assert accept(make(roles=["a"], scp="b c", scope="d"), policy).scopes == {"a", "b", "c"}
        assert accept(make(roles=["a"], scope=5), policy).scopes == {"a"}
        assert accept(make(scope="a"), replace(POLICY, scope_claims=())).scopes == set()


class PolicyTests:
    def test_policy_without_audience_and_required_claims_is_refused(self) -> None:
        with pytest.raises(ValueError, match="required_claims must identify the recipient of a token"):
            TokenPolicy(ISSUER, frozenset())
        assert TokenPolicy(ISSUER, frozenset(), required_claims={"client_id": ("mine",)})


class IdTokenTests:
    """An ID token is for the client that signed the user in, not for an API."""

    LOOKS: Mapping[str, Any] = {
        "nonce": "n-0S6_WzA2Mj",
        "at_hash": "MTIzNDU2Nzg5MDEyMzQ1Ng",
        "c_hash": "x",
        "s_hash": "x",
    }
    EVENTS: Mapping[str, Any] = {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}
    ACCEPTING = replace(POLICY, id_tokens="accept")

    @each("typ", ["JWT", "jwt", "application/jwt", ABSENT])
    @each("name", LOOKS)
    def test_token_without_scope_that_looks_like_an_id_token_is_refused(self, name: str, typ: Any) -> None:
        for value in (self.LOOKS[name], 5):
            assert "ID token" in refusal(make({"typ": typ}, **{name: value}))
            assert accept(make({"typ": typ}, **{name: value}), self.ACCEPTING)
        assert "ID token" in refusal(make({"typ": typ}, **self.LOOKS))

    @each("typ", ["JWT", ABSENT])
    @each("name", [*LOOKS, "auth_time"])
    @each("scope", ["openid", "openid posts:read", ["openid", "posts:read"], "posts:read", ["posts:read"]])
    @each(
        "claims",
        [
            *({"aud": "a-client"}, {"aud": ["a-client"]}, {"aud": "a-client", "azp": "a-client"}),
            *(
                {"aud": ["a-client"], "client_id": "a-client"},
                {"aud": "https://app.example/", "azp": "https://app.example/"},
            ),
            *({"aud": ["https://posts.example", "a-client"], "azp": "a-client"},),
        ],
    )
    def test_id_token_with_a_scope_is_refused(self, claims: dict[str, Any], scope: Any, name: str, typ: Any) -> None:
        """As that of idpyoidc: its audience is the client."""
        audiences = frozenset({"a-client", "https://app.example/", AUDIENCE})
        token = make({"typ": typ}, **{"scope": scope, name: 5, **claims})
        assert "ID token" in refusal(token, replace(POLICY, audiences=audiences))
        assert accept(token, replace(self.ACCEPTING, audiences=audiences))

    def test_id_token_with_the_scope_openid_is_refused_whatever_its_audience(self) -> None:
        assert "the scope openid" in refusal(make({"typ": "JWT"}, scope="openid posts:read", nonce="x", azp="a-client"))

    @each(
        "claims",
        [
            {"typ": "Bearer", "azp": "a-client", "auth_time": NOW, "scope": "openid profile email"},
            {"typ": "Bearer", "azp": "a-client", "auth_time": NOW, "nonce": "x", "aud": [AUDIENCE, "a-client"]},
            {"token_use": "access", "client_id": "a-client", "auth_time": NOW, "scope": "openid posts/read"},
            {"azp": "a-client", "nonce": "x", "scope": "profile posts:read"},
            {"azp": "a-client", "auth_time": NOW},
        ],
    )
    def test_access_token_of_a_user_is_accepted(self, claims: dict[str, Any]) -> None:
        """Those of Keycloak and Cognito have `auth_time`, and a claim for their kind; older Keycloak's have `nonce`."""
        assert accept(make({"typ": "JWT"}, **claims))
        assert accept(make({"typ": ABSENT}, **claims))

    @each("typ", ["JWT", ABSENT])
    def test_security_event_is_refused(self, typ: Any) -> None:
        for claims in ({}, {"scope": "posts:read"}, {"typ": "Bearer"}):
            assert refusal(make({"typ": typ}, **self.EVENTS, **claims), self.ACCEPTING) == "it is a security event"

    @each("typ", ["at+jwt", "application/at+jwt", "AT+JWT"])
    def test_access_token_by_its_type_is_accepted(self, typ: str) -> None:
        assert accept(make({"typ": typ}, **self.LOOKS, auth_time=NOW, scope="openid"))

    def test_token_with_a_scope_is_accepted(self) -> None:
        """Those of older Keycloak have `nonce`."""
        excuses: list[dict[str, Any]] = [{"scope": "x"}, {"scp": ["x"]}]
        for claims in excuses:
            assert accept(make({"typ": "JWT"}, **self.LOOKS, **claims))
        none: list[dict[str, Any]] = [{"scope": ""}, {"scope": []}, {"scp": " "}, {"roles": ["x"]}]
        for claims in none:
            assert refusal(make({"typ": "JWT"}, **self.LOOKS, **claims))

    def test_access_tokens_of_dex_need_the_setting(self) -> None:
        """They have `at_hash` and no scope: required claims alone do not tell them apart from ID tokens."""
        policy = replace(POLICY, required_claims={"azp": ("mine",)})
        assert refusal(make({"typ": ABSENT}, azp="mine", **self.LOOKS), policy)
        policy = replace(policy, id_tokens="accept")
        assert accept(make({"typ": ABSENT}, azp="mine", **self.LOOKS), policy)
        assert refusal(make({"typ": ABSENT}, azp="x", **self.LOOKS), policy)

    @each("name", ["azp", "client_id"])
    def test_id_token_for_its_client_has_another_audience(self, name: str) -> None:
        assert refusal(make({"typ": "JWT"}, aud="a-client", scope="x", **{name: "a-client"}))
        assert accept(make({"typ": "JWT"}, aud=AUDIENCE, **{name: AUDIENCE}))

    def test_claims_common_to_access_tokens_are_accepted(self) -> None:
        claims = {"auth_time": NOW, "acr": "1", "amr": ["pwd"], "azp": "x", "email": "a@x", "sid": "x", "jti": "x"}
        assert accept(make({"typ": "JWT"}, **claims))


def introspect(policy: TokenPolicy = POLICY, now: float = NOW, /, **answer: Any) -> AccessToken:
    """Check an issuer's answer about an opaque token; without changes, it is accepted."""
    whole = {"active": True, "aud": AUDIENCE, "sub": "alice", **answer}
    return policy.check_introspection({name: value for name, value in whole.items() if value is not ABSENT}, now)


def denial(policy: TokenPolicy = POLICY, /, **answer: Any) -> str:
    with pytest.raises(TokenError) as caught:
        introspect(policy, **answer)
    assert type(caught.value) is TokenError
    return str(caught.value)


class IntrospectionTests:
    """RFC 7662 §2.2."""

    def test_active_token_is_accepted(self) -> None:
        claims = {"iss": ISSUER, "exp": NOW + 60, "nbf": NOW, "iat": NOW, "scope": "posts:read x", "client_id": "c"}
        accepted = introspect(**claims)
        assert (accepted.user, accepted.scopes, accepted.expires_at) == (
            "alice",
            frozenset({"posts:read", "x"}),
            NOW + 60,
        )
        assert json.loads(accepted.claims_json).items() >= claims.items()

    @each("active", [ABSENT, None, False, 1, 1.0, "true", "True", [True], {"active": True}])
    def test_inactive_token_is_refused(self, active: Any) -> None:
        assert denial(active=active) == "the issuer says that it is not active"

    @each(
        "token_type, good",
        [
            ("Bearer", True),
            ("bearer", True),
            ("access_token", True),
            ("DPoP", False),
            ("refresh_token", False),
            (5, False),
        ],
    )
    def test_token_type_must_be_that_of_a_bearer_token(self, token_type: Any, *, good: bool) -> None:
        if good:
            assert introspect(token_type=token_type).user == "alice"
        else:
            assert denial(token_type=token_type).startswith("token_type is ")

    def test_optional_members_may_be_missing(self) -> None:
        accepted = introspect()
        assert (accepted.user, accepted.scopes, accepted.expires_at) == ("alice", frozenset(), None)

    def test_null_member_counts_as_missing(self) -> None:
        for name in ("iss", "aud", "exp", "nbf", "iat", "scope", "scp", "cnf", "client_id", "username", "token_type"):
            for value in EMPTY:
                accepted = introspect(**{name: value})
                assert replace(accepted, claims_json=b"") == replace(introspect(), claims_json=b"")
        for value in EMPTY:
            assert introspect(sub=value, client_id="app").user == "app"
            assert denial(active=value) == "the issuer says that it is not active"

    @each(
        "members",
        [
            *({"iss": ISSUER + "/"}, {"iss": [ISSUER]}, {"iss": 5}, {"iss": False}),
            *({"aud": "x"}, {"aud": [[AUDIENCE]]}, {"aud": {AUDIENCE: 1}}, {"aud": 5}),
            *({"exp": str(NOW + 60)}, {"exp": True}, {"exp": -1}, {"exp": 1e40}, {"exp": float("inf")}),
            *({"nbf": NOW + 31}, {"iat": NOW + 31}, {"nbf": "x"}, {"iat": float("nan")}),
            *({"cnf": {"jkt": "x"}}, {"cnf": 0}),
            *({"sub": 5}, {"sub": "a\nb"}, {"sub": ["alice"]}, {"sub": "a" * 256}),
            *({"scope": 5}, {"scope": {"x": 1}}, {"scp": ["x", 5]}),
        ],
    )
    def test_present_members_are_checked_as_in_a_jwt(self, members: dict[str, Any]) -> None:
        ((name, _),) = members.items()
        assert name in denial(**members)

    def test_clock_skew_is_allowed(self) -> None:
        assert introspect(exp=NOW - 29, nbf=NOW + 30, iat=NOW + 30)
        with pytest.raises(ExpiredTokenError):
            introspect(exp=NOW - 30)
        with pytest.raises(ExpiredTokenError):
            introspect(POLICY, NOW + 30, exp=NOW)

    def test_audience_is_ignored_in_answers_without_audiences_in_the_policy(self) -> None:
        for aud in (ABSENT, "x", 5):
            assert introspect(WITHOUT_AUDIENCE, aud=aud, client_id="mine")
            assert denial(WITHOUT_AUDIENCE, aud=aud, client_id="x")
            assert denial(WITHOUT_AUDIENCE, aud=aud)

    @each("sub", [ABSENT, *EMPTY])
    def test_username_or_client_id_is_the_user_without_sub(self, sub: Any) -> None:
        """`sub` is optional in RFC 7662 §2.2; django-oauth-toolkit and oidc-provider omit it."""
        assert introspect(sub=sub, username="jürgen", client_id="app").user == "jürgen"
        assert introspect(sub=sub, client_id="app").user == "app"
        for username in (ABSENT, *EMPTY):
            assert introspect(sub=sub, username=username, client_id="app").user == "app"
            assert denial(sub=sub, username=username) == "sub, username and client_id are missing"
        assert introspect(sub="alice", username="jürgen", client_id="app").user == "alice"
        for bad in (5, "a\nb", ["app"]):
            assert denial(sub=sub, client_id=bad) == "client_id is not a valid name"
            assert denial(sub=sub, username=bad, client_id="app") == "username is not a valid name"

    def test_float_expiry_is_accepted(self) -> None:
        """As Canaille sends it."""
        assert introspect(exp=NOW + 60.5).expires_at == NOW + 60.5

    def test_client_id_does_not_replace_another_user_claim(self) -> None:
        policy = replace(POLICY, user_claim="username")
        assert introspect(policy, username="jürgen").user == "jürgen"
        assert introspect(policy, username="jürgen", sub=ABSENT).user == "jürgen"
        for sub in ("alice", ABSENT):
            assert denial(policy, sub=sub, client_id="app") == "username is missing"
        assert denial(policy, sub=5, username="jürgen") == "sub is not a valid name"

    def test_required_claims_of_an_answer_are_checked(self) -> None:
        policy = replace(POLICY, required_claims={"client_id": ("mine", "ours")})
        assert introspect(policy, client_id="ours")
        assert denial(policy, client_id="x").startswith("client_id is not accepted")
        assert denial(policy).startswith("client_id is not accepted")


def anything() -> st.SearchStrategy[Any]:
    """Any JSON, with NaN and infinities, which Python's json accepts."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner), max_leaves=6
    )


def objects(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects with any values; these members are often present, and often valid."""
    accepted = st.fixed_dictionaries({}, optional={name: good | anything() for name, good in members.items()})
    return st.builds(
        lambda more, accepted: {**more, **accepted}, st.dictionaries(st.text(max_size=8), anything()), accepted
    )


HEADERS = objects(
    alg=st.sampled_from(["EdDSA", "RS256", "none", "HS256"]),
    typ=st.sampled_from(["at+jwt", "JWT"]),
    kid=st.just("one"),
    crit=st.just([]),
)
DATES = st.integers(NOW - 40, NOW + 40) | st.floats(NOW - 40, NOW + 40) | st.just(10**400)
CLAIMS = objects(
    iss=st.just(ISSUER),
    aud=st.sampled_from([AUDIENCE, [AUDIENCE], ["x", AUDIENCE], AUDIENCE + "/"]),
    exp=DATES,
    nbf=DATES,
    iat=DATES,
    sub=st.text(min_size=1),
    scope=st.text("ab ") | st.lists(st.text("ab ")),
    scp=st.text("ab ") | st.lists(st.text("ab ")),
    nonce=st.just("x"),
)
GOOD_HEADERS = st.fixed_dictionaries(
    {"alg": st.sampled_from(["EdDSA", "RS256"])}, optional={"typ": st.sampled_from(["at+jwt", "JWT"])}
)


def is_good(header: Mapping[str, Any], claims: Mapping[str, Any]) -> bool:
    """Return whether a token may be accepted: an independent check of its claims."""
    header, claims = ({name: value for name, value in part.items() if value not in EMPTY} for part in (header, claims))
    aud: Any = claims.get("aud")
    exp: Any = claims.get("exp")
    dates = [claims[name] for name in ("nbf", "iat") if name in claims]
    return (
        header.get("alg") in {"EdDSA", "RS256", "PS256", "ES256"}
        and str(header.get("typ", "JWT")).lower() in {"at+jwt", "jwt", "application/at+jwt", "application/jwt"}
        and not {"crit", "b64"} & header.keys()
        and claims.get("iss") == ISSUER
        and "cnf" not in claims
        and (aud == AUDIENCE or (type(aud) is list and AUDIENCE in aud and {type(one) for one in aud} == {str}))
        and type(exp) in {int, float}
        and NOW - 30 < exp <= 2**53
        and all(type(date) in {int, float} and 0 <= date <= NOW + 30 for date in dates)
        and type(claims.get("sub")) is str
        and claims["sub"].isprintable()
    )


class AnythingTests:
    @given(st.text() | st.text("eyJ.-_=A{}") | st.lists(st.binary().map(b64)).map(".".join))
    def test_any_text_is_decoded_or_refused(self, text: str) -> None:
        try:
            jwt = decode_jwt(text)
        except TokenError:
            return
        assert type(jwt) is Jwt
        assert f"{jwt.signed.decode()}.{b64(jwt.signature)}" == text

    @given(at=st.integers(0, 500), what=st.binary(max_size=3), length=st.integers(0, 3))
    def test_changed_token_is_decoded_or_refused(self, at: int, what: bytes, length: int) -> None:
        token = make()
        for changed in (token[:at] + what.decode("latin-1") + token[at + length :], _change_bytes(at, what, length)):
            try:
                accept(changed)
            except TokenError:
                continue

    @given(header=HEADERS | GOOD_HEADERS, claims=CLAIMS)
    @example(header={"alg": "EdDSA"}, claims=MINT.claims(exp=10**400))
    @example(header={"alg": "EdDSA"}, claims=MINT.claims(nbf=-(10**400)))
    @example(header={"alg": "EdDSA"}, claims=MINT.claims())
    def test_any_header_and_claims_are_accepted_only_if_valid(
        self, header: dict[str, Any], claims: dict[str, Any]
    ) -> None:
        try:
            accepted = accept(make_token(header, claims, KEY))
        except TokenError:
            return
        assert type(accepted) is AccessToken
        assert is_good(header, claims)
        assert (accepted.user, accepted.expires_at) == (claims["sub"], claims["exp"])
        words = [claims.get(name, "") for name in ("scope", "scp")]
        assert accepted.scopes == {word for one in words for word in (one.split() if type(one) is str else one) if word}

    @given(answer=objects(active=st.just(value=True), aud=st.just(AUDIENCE), exp=DATES, sub=st.just("alice")))
    def test_any_answer_of_an_issuer_is_accepted_only_if_valid(self, answer: dict[str, Any]) -> None:
        try:
            accepted = POLICY.check_introspection(answer, NOW)
        except TokenError:
            return
        assert answer["active"] is True
        assert not answer.get("aud") or AUDIENCE in answer["aud"]
        assert accepted.user in {answer.get("sub"), answer.get("username"), answer.get("client_id")}


def _change_bytes(at: int, what: bytes, length: int) -> str:
    """Return a token whose claims are changed before they are encoded."""
    text = json.dumps(MINT.claims()).encode()
    at %= len(text)
    return f"{b64(json.dumps(MINT.header()).encode())}.{b64(text[:at] + what + text[at + length :])}."


SECRETS = st.sampled_from([SECRET, [SECRET], {SECRET: SECRET}, [[SECRET]], f"{SECRET}\n{SECRET}", f'"{SECRET}"'])
HEADER_NAMES = ["alg", "typ", "kid", "crit", "b64", "jwk", SECRET]
CLAIM_NAMES = ["iss", "aud", "exp", "nbf", "iat", "sub", "scope", "scp", "cnf", "nonce", "azp", SECRET]


class ReasonTests:
    """A reason goes to the log, and may be shown to the client."""

    POLICIES = (
        POLICY,
        replace(POLICY, user_claim="email"),
        replace(POLICY, required_claims={"azp": ("mine",)}),
    )

    def check(self, error: TokenError) -> None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        assert "\n" not in str(error)
        assert str(error).isascii()

    @given(
        header=st.dictionaries(st.sampled_from(HEADER_NAMES), SECRETS, max_size=2),
        claims=st.dictionaries(st.sampled_from(CLAIM_NAMES), SECRETS, max_size=2),
        policy=st.sampled_from(POLICIES),
    )
    def test_reason_contains_nothing_of_the_token(
        self, header: dict[str, Any], claims: dict[str, Any], policy: TokenPolicy
    ) -> None:
        try:
            accept(make(header, **claims), policy)
        except TokenError as error:
            self.check(error)
        try:
            introspect(policy, **claims)
        except TokenError as error:
            self.check(error)

    @given(st.sampled_from(list(broken(b"{}"))), st.booleans())
    def test_reason_contains_nothing_of_malformed_json(self, what: str, in_header: bool) -> None:  # noqa: FBT001 - hypothesis gives it
        text = broken(json.dumps({SECRET: SECRET}).encode())[what]
        token = make_token(text, MINT.claims(), KEY) if in_header else make_token(MINT.header(), text, KEY)
        for sent in (token, f"{SECRET}.{token}", f"{token}.{SECRET}", f"{token}{SECRET}", SECRET, f"{SECRET}é"):
            with pytest.raises(TokenError) as caught:
                accept(sent)
            self.check(caught.value)

    def test_malformed_base64_is_not_quoted(self) -> None:
        header, claims, signature = make().split(".")
        for token in (
            f"{SECRET}~.{claims}.{signature}",
            f"{header}.{SECRET}~.{signature}",
            f"{header}.{claims}.~{SECRET}",
        ):
            with pytest.raises(TokenError) as caught:
                accept(token)
            self.check(caught.value)

    def test_repr_of_an_accepted_token_has_only_its_claims(self) -> None:
        accepted = accept(make(email=SECRET, phone=SECRET))
        assert SECRET not in repr(accepted)
