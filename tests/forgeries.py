"""Tokens that must be refused, and unusual ones that must be accepted.

Each is a trick that some server or library has fallen for, or a mistake of a provider; RFC 8725 has most of them. All
are made from a mint's keys at run time: `make_keys` has the key set that they need. They carry `SECRETS`, which no log
is to have.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from joserfc import jwe
from joserfc.jwk import RSAKey
from msgspec import Struct

from tests.issuer import ABSENT, EMPTY, Key, Mint, b64, make_token, unb64

FORGED_SUB = "mallory-7c1e5f"
FORGED_EMAIL = "mallory-2b9d40@forged.example"
SECRETS = (FORGED_SUB, FORGED_EMAIL)
"""Values of claims that are in every forgery that can have them."""

SCOPE = "posts:read posts:write"

AUTHORIZATION_MAX_BYTES = 8192

Made = Iterator[tuple[str, str | bytes]]


class Forgery(Struct, frozen=True):
    """A token and its response: 401 with `invalid_token`, unless another status is given.

    Args:
        token: as it follows `Bearer` and a space.
        status: of the answer.
        expired: whether it is only expired, which the response may say.
    """

    token: bytes
    status: int = 401
    expired: bool = False


def make_keys() -> list[Key]:
    """Return the keys of an issuer: one for each algorithm that is accepted, of EdDSA two, and some of no use."""
    return [
        Key.make("RS256", "rsa"),
        Key.make("PS256", "pss"),
        Key.make("ES256", "ec"),
        Key.make("EdDSA", "ed-1"),
        Key.make("EdDSA", "ed-2"),
        Key.make("ES384", "es384"),
        Key.make("RS256", "weak", bits=1024),
        Key.make("HS256", "oct"),
        Key.make("RS256", "enc", changes={"use": "enc", "alg": ABSENT}),
        Key.make("RS256", "encrypt-only", changes={"use": ABSENT, "alg": ABSENT, "key_ops": ["encrypt", "wrapKey"]}),
        Key.make("RS256", "oaep", changes={"use": ABSENT, "alg": "RSA-OAEP"}),
    ]


UNUSABLE = ("weak", "oct", "enc", "encrypt-only", "oaep")
"""Keys in a set that are not to be used, whatever is signed with them (RFC 7517 §4.2, §4.3; RFC 7518 §3.3)."""


def make_forgeries(mint: Mint) -> dict[str, Forgery]:
    """Return the tokens by names that say the trick; `mint` has the keys of `make_keys`."""
    forger = Forger(mint)
    groups = (
        forger.signatures(),
        forger.symmetric(),
        forger.algorithms(),
        forger.keys(),
        forger.unusable_keys(),
        forger.kids(),
        forger.headers(),
        forger.types(),
        forger.issuers(),
        forger.audiences(),
        forger.times(),
        forger.owners(),
        forger.other_claims(),
        forger.parts(),
        forger.spellings(),
        forger.json(),
    )
    made: dict[str, Forgery] = {}
    for group in groups:
        for name, token in group:
            assert name not in made, name
            made[name] = Forgery(token.encode() if isinstance(token, str) else token)
    made |= {name: Forgery(token.encode(), expired=True) for name, token in forger.expired()}
    made |= {name: Forgery(token.encode(), 431) for name, token in forger.oversized()}
    return made


class Forger:
    """Makes forgeries by groups; each gives names and tokens."""

    def __init__(self, mint: Mint) -> None:
        self._mint = mint
        self._rsa, self._pss, self._ec, self._ed = (mint.key(kid) for kid in ("rsa", "pss", "ec", "ed-1"))
        self._foreign = Key.make("RS256", "rsa")
        self._now = int(mint.now())

    def token(self, key: Key | None = None, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """Make what would be a good token, but for the changes."""
        usual = {"sub": FORGED_SUB, "email": FORGED_EMAIL, "scope": SCOPE}
        return self._mint.token(key, header, **{**usual, **claims})

    def _raw(self, header: Any = None, claims: Any = None, *, key: Key | None = None, alg: str | None = None) -> str:
        """Make a token of parts that may be anything, signed as it should be."""
        key = key or self._rsa
        whole = header if header is not None else self._mint.header(key)
        return make_token(whole, self._claims() if claims is None else claims, key, alg=alg)

    def _claims(self, **changes: Any) -> dict[str, Any]:
        return self._mint.claims(**{"sub": FORGED_SUB, "email": FORGED_EMAIL, "scope": SCOPE, **changes})

    def _json(self, **texts: str) -> bytes:
        """Return claims of which some are written in JSON by the caller."""
        whole = json.dumps(self._claims(**dict.fromkeys(texts, ABSENT)))[:-1]
        return (whole + "".join(f', "{name}": {text}' for name, text in texts.items()) + "}").encode()

    def signatures(self) -> Made:
        signed, _, signature = self.token().rpartition(".")
        header, _, claims = signed.partition(".")
        raw = unb64(signature)
        other = self.token(sub="somebody-else")
        yield "signature empty", f"{signed}."
        yield "signature of another token", f"{signed}.{other.rpartition('.')[2]}"
        yield "claims of another token", f"{header}.{other.split('.')[1]}.{signature}"
        yield "header changed", f"{b64(json.dumps(self._mint.header(jti='x')).encode())}.{claims}.{signature}"
        for name, changed in {
            "truncated": raw[:-1],
            "with a byte more": raw + b"\0",
            "with a zero byte before it": b"\0" + raw,
            "with its first bit flipped": bytes([raw[0] ^ 0x80]) + raw[1:],
            "with its last bit flipped": raw[:-1] + bytes([raw[-1] ^ 1]),
            "of zero bytes": bytes(len(raw)),
            "that is the number 1": bytes(len(raw) - 1) + b"\1",
            "very long": raw * 16,
            "of one byte": b"\0",
        }.items():
            yield f"RS256 signature {name}", f"{signed}.{b64(changed)}"
        yield from self._elliptic()
        signed, _, signature = self.token(self._ed).rpartition(".")
        yield "EdDSA signature of zero bytes", f"{signed}.{b64(bytes(64))}"
        yield "EdDSA signature of a point of small order", f"{signed}.{b64(bytes([1]) + bytes(63))}"
        yield "EdDSA signature truncated", f"{signed}.{b64(unb64(signature)[:-1])}"
        yield "EdDSA signature doubled", f"{signed}.{signature}{signature}"
        signed = self.token(self._pss).rpartition(".")[0]
        yield "PS256 signature of zero bytes", f"{signed}.{b64(bytes(256))}"
        yield "PS256 signature empty", f"{signed}."
        yield "signed by another key with our kid", self.token(self._foreign)

    def _elliptic(self) -> Made:
        signed, _, signature = self.token(self._ec).rpartition(".")
        raw, size = unb64(signature), 32
        order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551.to_bytes(size, "big")
        one = bytes(size - 1) + b"\1"
        for name, changed in {
            "of zeros (psychic: CVE-2022-21449)": bytes(2 * size),
            "with r zero": bytes(size) + raw[size:],
            "with s zero": raw[:size] + bytes(size),
            "of the order of the curve": order + order,
            "with r and s one": one + one,
            "with r and s swapped": raw[size:] + raw[:size],
            "in DER": self._ec.sign_der(signed.encode()),
            "with longer numbers": b"\0" + raw[:size] + b"\0" + raw[size:],
            "truncated": raw[:-1],
            "empty": b"",
        }.items():
            yield f"ES256 signature {name}", f"{signed}.{b64(changed)}"

    def symmetric(self) -> Made:
        """Algorithm confusion: what is public as if it were a shared secret (RFC 8725 §2.1)."""
        pem = self._rsa.public()
        for name, secret in {
            "PEM": pem,
            "PEM without its last line feed": pem.rstrip(b"\n"),
            "DER": self._rsa.public(Encoding.DER),
            "JWK": json.dumps(self._rsa.jwk()).encode(),
            "JWK, sorted and dense": json.dumps(self._rsa.jwk(), sort_keys=True, separators=(",", ":")).encode(),
            "modulus": unb64(self._rsa.jwk()["n"]),
        }.items():
            yield f"HS256 with the public key's {name}", self.token(Key("HS256", "rsa", secret))
        for alg in ("HS384", "HS512"):
            yield f"{alg} with the public key's PEM", self.token(Key(alg, "rsa", pem))
        yield "HS256 with the EC key's PEM", self.token(Key("HS256", "ec", self._ec.public()))
        yield "HS256 with an empty secret", self.token(Key("HS256", "rsa", b""))
        yield "HS256 with the kid as secret, kid absent", self.token(Key("HS256", "rsa", b"rsa"), {"kid": ABSENT})

    def algorithms(self) -> Made:
        for alg in ("none", "None", "NONE", "nOnE", "none ", ""):
            signed, _, signature = self.token(None, {"alg": alg}).rpartition(".")
            yield f"alg {alg!r}, no signature", f"{signed}."
            yield f"alg {alg!r}, a signature", f"{signed}.{signature}"
        yield "alg none, two parts", self.token(None, {"alg": "none"}).rpartition(".")[0]
        for name, alg in {
            "absent": ABSENT,
            "null": None,
            "a list": ["RS256"],
            "a number": 256,
            "an object": {"RS256": True},
            "in lower case": "rs256",
            "with a space": "RS256 ",
            "with a NUL": "RS256\0",
            "ES256K": "ES256K",
            "unknown": "XS256",
            "RSA-OAEP": "RSA-OAEP",
            "Ed25519, which the settings do not name": "Ed25519",
        }.items():
            yield f"alg {name}", self.token(None, {"alg": alg})
        for alg in ("RS384", "RS512"):
            yield f"{alg}, which is not accepted, rightly signed", self._confused(self._rsa, alg, alg)
        yield "ES384, which is not accepted, rightly signed", self.token(self._mint.key("es384"))
        yield "RS256 named, PS256 made", self._confused(self._rsa, "RS256", "PS256")
        yield "PS256 named, RS256 made", self._confused(self._rsa, "PS256", "RS256")
        yield "PS256 with a key for RS256", self._confused(self._rsa, "PS256", "PS256")
        yield "RS256 with a key for PS256", self._confused(self._pss, "RS256", "RS256")
        yield "RS256 named, kid of the EC key", self.token(None, {"kid": "ec"})
        yield "ES256 named, kid of the RSA key", self.token(self._ec, {"kid": "rsa"})
        yield "ES256 named, made with ES384", self.token(self._mint.key("es384"), {"alg": "ES256"})
        yield "EdDSA named, kid of the RSA key", self.token(self._ed, {"kid": "rsa"})

    def _confused(self, key: Key, named: str, made: str) -> str:
        return self._raw(self._mint.header(key, alg=named), key=key, alg=made)

    def keys(self) -> Made:
        """Keys that a token brings itself, or names (RFC 8725 §3.10). `example` is reserved (RFC 2606)."""
        brought = Key.make("RS256", "brought")
        embedded = self._foreign.jwk()
        chain = [base64.b64encode(make_x5c(self._foreign)).decode()]
        url = "https://keys.forged.example/jwks"
        brings: dict[str, dict[str, Any]] = {
            "jwk": {"jwk": embedded},
            "jwk, kid absent": {"jwk": embedded, "kid": ABSENT},
            "jwk that is symmetric": {"jwk": {"kty": "oct", "k": b64(b"secret")}},
            "jku": {"jku": url},
            "jku, kid absent": {"jku": url, "kid": ABSENT},
            "jku of our issuer with a redirect": {"jku": f"{self._mint.issuer}/redirect?to={url}"},
            "x5u": {"x5u": url},
            "x5c": {"x5c": chain},
            "x5c, kid absent": {"x5c": chain, "kid": ABSENT},
        }
        for name, members in brings.items():
            yield f"signed by another key, {name}", self.token(self._foreign, members)
        yield "signed by another key, jwk, kid of its own", self.token(brought, {"jwk": brought.jwk()})

    def unusable_keys(self) -> Made:
        for key in map(self._mint.key, UNUSABLE):
            yield f"signed with the key that is {key.kid}", self.token(key)
            yield f"signed with the key that is {key.kid}, kid absent", self.token(key, {"kid": ABSENT})

    def kids(self) -> Made:
        for name, kid in {
            "a list": ["rsa"],
            "an object": {"rsa": True},
            "a number": 0,
            "true": True,
            "a path": "../../../../dev/null",
            "an absolute path": "/dev/null",
            "SQL": "x' UNION SELECT 'key' -- ",
            "a command": "rsa|/bin/true",
            "a URL": "http://169.254.169.254/latest",
            "in upper case": "RSA",
            "with a space": "rsa ",
            "with a NUL": "rsa\0",
            "with line feeds": "rsa\n\r\nforged",
            "a lone surrogate": "\ud800",
            "a format": "%s%n{0.__class__}",
            "part of one": "rs",
            "huge": "k" * 4000,
            "unknown": "never-heard-of",
        }.items():
            yield f"kid {name}", self.token(None, {"kid": kid})
        yield "kid absent, two keys fit", self.token(self._ed, {"kid": ABSENT})
        yield "kid of the other key", self.token(self._ed, {"kid": "ed-2"})

    def headers(self) -> Made:
        extensions: dict[str, dict[str, Any]] = {
            "crit empty": {"crit": []},
            "crit unknown": {"crit": ["x"], "x": True},
            "crit exp": {"crit": ["exp"], "exp": self._now + 600},
            "crit alg": {"crit": ["alg"]},
            "crit a string": {"crit": "exp"},
            "crit an object": {"crit": {"exp": True}},
            "b64 false without crit": {"b64": False},
            "b64 false": {"crit": ["b64"], "b64": False},
            "b64 true": {"crit": ["b64"], "b64": True},
        }
        for name, members in extensions.items():
            yield name, self.token(None, members)
        whole = self._mint.header()
        rest = json.dumps(whole)[1:]
        yield "alg twice, none first", self._raw(f'{{"alg": "none", {rest}'.encode())
        yield "alg twice, none last", self._raw(f'{{{rest[:-1]}, "alg": "none"}}'.encode())
        yield "alg twice, the same", self._raw(f'{{"alg": "RS256", {rest}'.encode())
        yield "kid twice", self._raw(f'{{"kid": "ec", {rest}'.encode())
        yield "alg twice, once escaped", self._raw(f'{{"\\u0061lg": "none", {rest}'.encode())
        unencoded = f"{b64(json.dumps({**whole, 'crit': ['b64'], 'b64': False}).encode())}.{{}}"
        yield "b64 false, payload as it is", f"{unencoded}.{b64(self._rsa.sign(unencoded.encode()))}"

    def types(self) -> Made:
        for name, typ in {
            "of a proof of possession": "dpop+jwt",
            "of a logout token": "logout+jwt",
            "of a security event": "secevent+jwt",
            "of an introspection answer": "token-introspection+jwt",
            "JWE": "JWE",
            "JOSE+JSON": "JOSE+JSON",
            "a list": ["at+jwt"],
            "a number": 1,
            "application/ alone": "application/",
            "application/ twice": "application/application/at+jwt",
            "of another tree": "text/at+jwt",
            "with a parameter": "at+jwt; charset=utf-8",
            "with a space": "at+jwt ",
            "with a dotless i": "appl\u0131cation/at+jwt",
        }.items():
            yield f"typ {name}", self.token(None, {"typ": typ})

    def issuers(self) -> Made:
        issuer = self._mint.issuer
        for name, value in {
            "absent": ABSENT,
            "null": None,
            "empty": "",
            "another": "https://elsewhere.forged.example",
            "with a slash": f"{issuer}/",
            "in upper case": issuer.upper(),
            "with its scheme in upper case": issuer.replace("http", "HTTP"),
            "with a space": f"{issuer} ",
            "with a line feed": f"{issuer}\n",
            "with a NUL": f"{issuer}\0",
            "with a fragment": f"{issuer}#",
            "with a query": f"{issuer}?",
            "with a user": issuer.replace("//", "//forged@"),
            "cut": issuer[:-1],
            "a list": [issuer],
            "a list of two": ["https://elsewhere.forged.example", issuer],
            "an object": {issuer: True},
            "a number": 1,
            "true": True,
        }.items():
            yield f"iss {name}", self.token(iss=value)
        yield "iss twice", self._raw(claims=self._json(iss=f'"x", "iss": {json.dumps(issuer)}'))

    def audiences(self) -> Made:
        ours = self._mint.audience
        for name, value in {
            "absent": ABSENT,
            "null": None,
            "empty": "",
            "an empty list": [],
            "another": "https://elsewhere.forged.example",
            "a list of others": ["account", "https://elsewhere.forged.example"],
            "a nested list": [[ours]],
            "a list with a number": [ours, 5],
            "a list with null": [None, ours],
            "a list with an object": [{"aud": ours}],
            "an object": {ours: True},
            "a number": 5,
            "true": True,
            "longer than ours": f"{ours}/more",
            "longer before ours": f"x{ours}",
            "part of ours": ours[:-1],
            "ours with a slash": f"{ours}/",
            "ours in upper case": ours.upper(),
            "the scopes as a string, ours among them": f"{ours} posts:read",
            "ours and another after a comma": f"{ours},elsewhere",
            "JSON in a string": json.dumps([ours]),
        }.items():
            yield f"aud {name}", self.token(aud=value)
        client = {"aud": "my-client", "azp": "my-client", "client_id": "my-client"}
        yield "aud the client's own, an ID token", self.token(None, {"typ": "JWT"}, **client)
        yield "aud twice", self._raw(claims=self._json(aud=f'"elsewhere", "aud": {json.dumps(ours)}'))

    def times(self) -> Made:
        exp = self._now + 600
        for name, value in {
            "absent": ABSENT,
            "null": None,
            "a string": str(exp),
            "a date": "2100-01-01T00:00:00Z",
            "true": True,
            "a list": [exp],
            "an object": {"exp": exp},
            "10**40": 10**40,
            "10**400": 10**400,
            "above 2**53": 2**53 + 2,
            "negative": -1,
        }.items():
            yield f"exp {name}", self.token(exp=value)
        for text in ("NaN", "Infinity", "-Infinity", "1e400", "1E+9999", "9" * 5000, "0x7fffffff", "+9999999999", ".9"):
            yield f"exp {text[:12]}, {len(text)} characters", self._raw(claims=self._json(exp=text))
        yield "exp only in the header", self.token(None, {"exp": exp}, exp=ABSENT)
        yield "exp twice, the first one past", self._raw(claims=self._json(exp=f'1, "exp": {exp}'))
        yield "exp twice, the last one past", self._raw(claims=self._json(exp=f'{exp}, "exp": 1'))
        for name in ("nbf", "iat"):
            for what, value in {
                "in the future": self._now + 300,
                "later than the leeway, a float": self._now + 90.5,
                "a string": str(self._now),
                "true": True,
                "a list": [1],
                "10**400": 10**400,
            }.items():
                claim: dict[str, Any] = {name: value}
                yield f"{name} {what}", self.token(**claim)
            yield f"{name} NaN", self._raw(claims=self._json(**{name: "NaN"}))

    def expired(self) -> Iterator[tuple[str, str]]:
        """Make tokens that were good once, and not long after they were made."""
        yield "expired", self.token(exp=self._now - 120)
        yield "expired, a float", self.token(exp=self._now - 120.5)
        yield "expired in 1970", self.token(exp=0)
        yield "expired, with its aud in a list", self.token(exp=1, aud=[self._mint.audience])

    def owners(self) -> Made:
        for name, value in {
            "absent": ABSENT,
            "null": None,
            "empty": "",
            "a number": 7,
            "true": True,
            "a list": [FORGED_SUB],
            "an object": {"name": FORGED_SUB},
            "with a line feed": f"{FORGED_SUB}\nSet-Cookie: session=x",
            "with a carriage return": f"{FORGED_SUB}\r",
            "with a NUL": f"{FORGED_SUB}\0",
            "with an escape": f"\x1b[2J{FORGED_SUB}",
            "with a C1 control": f"{FORGED_SUB}\x9b",
            "with a mark that turns the direction": f"{FORGED_SUB}\u202e",
            "with a line separator": f"{FORGED_SUB}\u2028",
            "a lone surrogate": f"{FORGED_SUB}\ud800",
            "very long": FORGED_SUB * 200,
        }.items():
            yield f"sub {name}", self.token(sub=value)
        yield "sub twice", self._raw(claims=self._json(sub=f'"admin", "sub": "{FORGED_SUB}"'))

    def other_claims(self) -> Made:
        proofs: dict[str, Any] = {"jkt": {"jkt": "x" * 43}, "x5t": {"x5t#S256": "x" * 43}, "a list": ["x"]}
        for name, value in proofs.items():
            yield f"bound to a key of its owner, cnf {name}", self.token(cnf=value)
        for typ in ("JWT", ABSENT):
            shown = "absent" if typ is ABSENT else typ
            for name in ("nonce", "at_hash"):
                claim = {name: "n-0S6_WzA2Mj"}
                yield f"an ID token, {name}, typ {shown}", self.token(None, {"typ": typ}, scope=ABSENT, **claim)
        ill = {
            "a number": 17,
            "an object": {"posts:read": True},
            "true": True,
            "a list with a number": ["posts:read", 1],
        }
        for name, value in ill.items():
            yield f"scope {name}", self.token(scope=value)
            yield f"scp {name}", self.token(scope=ABSENT, scp=value)
        yield "scope twice", self._raw(claims=self._json(scope='"", "scope": "posts:read posts:write"'))
        yield "NaN in an unused claim", self._raw(claims=self._json(score="NaN"))

    def parts(self) -> Made:
        good = self.token()
        header, claims, signature = good.split(".")
        for token in ("", ".", "..", "...", "null", "undefined", "x", "a.b", "a.b.c", "=", "e30.e30.e30", "e30.e30."):
            yield f"just {token!r}", token
        yield "one part", header
        yield "two parts", f"{header}.{claims}"
        yield "four parts", f"{good}.{signature}"
        yield "five parts", f"{good}.{claims}.{signature}"
        yield "a dot after it", f"{good}."
        yield "a dot before it", f".{good}"
        yield "header empty", f".{claims}.{signature}"
        yield "payload empty, signature right", self._raw(claims=b"")
        yield "header empty, signature right", self._raw(b"")
        yield "a tilde after it (SD-JWT)", f"{good}~"
        yield "encrypted", self._encrypted(b"x")
        yield "a good token, encrypted", self._encrypted(good.encode())
        yield "nested", self._raw(self._mint.header(cty="JWT"), good.encode())
        members = {"payload": claims, "protected": header, "signature": signature}
        yield "flattened JSON", json.dumps(members)
        general = {"payload": claims, "signatures": [{"protected": header, "signature": signature}]}
        yield "general JSON", json.dumps(general, separators=(",", ":"))
        yield "JSON in Base64", b64(json.dumps(general).encode())
        yield "two tokens", f"{good} {good}"
        yield "two tokens, a comma", f"{good}, {good}"
        yield "two tokens, a comma without a space", f"{good},{good}"
        yield "two credentials, a comma", f"{good}, Bearer {good}"
        yield "Bearer twice", f"Bearer {good}"
        yield "a parameter after it", f"{good}, realm=x"
        yield "quoted", f'"{good}"'
        yield "as a parameter", f'token="{good}"'
        yield "percent-encoded", good.replace(".", "%2E")
        yield "a byte that is not ASCII in it", good.encode() + b"\xe9"
        yield "a wide dot", good.replace(".", "\uff0e", 1)

    def _encrypted(self, content: bytes) -> str:
        header = {"alg": "RSA-OAEP-256", "enc": "A128GCM", "kid": "rsa", "cty": "JWT"}
        key = RSAKey.import_key(self._rsa.public())
        return jwe.encrypt_compact(header, content, key, algorithms=["RSA-OAEP-256", "A128GCM"])

    def spellings(self) -> Made:
        """Base64 that is not canonical: other texts for the same token, which its text would not identify."""
        header, claims, signature = self.token().split(".")
        loose_header, loose_claims = (
            next(text for text in (b64(part + b" " * size) for size in range(3)) if len(text) % 4)
            for part in (json.dumps(self._mint.header()).encode(), json.dumps(self._claims()).encode())
        )
        yield "header padded", self._sign(loose_header + "=" * (-len(loose_header) % 4), claims)
        yield "payload padded", self._sign(header, loose_claims + "=" * (-len(loose_claims) % 4))
        yield "signature padded", f"{header}.{claims}.{signature}=="
        yield "header with bits behind its end", self._sign(_with_trailing_bits(loose_header), claims)
        yield "payload with bits behind its end", self._sign(header, _with_trailing_bits(loose_claims))
        yield "signature with bits behind its end", f"{header}.{claims}.{_with_trailing_bits(signature)}"
        yield "payload in the other alphabet", self._other_alphabet()
        yield "a plus in it", f"{header}.{claims}.+{signature}"
        yield "a tilde in it", f"{header}.{claims[:8]}~{claims[8:]}.{signature}"
        yield "in lower case", f"{header}.{claims}.{signature}".lower()

    def _sign(self, header: str, claims: str) -> str:
        signed = f"{header}.{claims}"
        return f"{signed}.{b64(self._rsa.sign(signed.encode()))}"

    def _other_alphabet(self) -> str:
        """Write a payload with + and / (RFC 4648 §4), signed as it is written."""
        claims = json.dumps({**self._claims(), "x": "?>?>?>~~~"}).encode()
        text = base64.b64encode(claims).rstrip(b"=").decode()
        assert {"+", "/"} & set(text)
        return self._sign(b64(json.dumps(self._mint.header()).encode()), text)

    def json(self) -> Made:
        """Make tokens whose signature is right, and whose JSON is not."""
        whole = json.dumps(self._claims())
        header = json.dumps(self._mint.header())
        for name, text in {
            "an array": f"[{whole}]",
            "a string": json.dumps(whole),
            "a number": "1",
            "null": "null",
            "true": "true",
            "with a byte order mark": f"\ufeff{whole}",
            "with something behind it": f"{whole}x",
            "twice": whole + whole,
            "with a comma too many": f"{whole[:-1]},}}",
            "with a comment": f"/* */{whole}",
            "with single quotes": whole.replace('"', "'"),
            "cut": whole[:-1],
            "with a line feed in a string": whole.replace(FORGED_SUB, f"{FORGED_SUB}\n"),
            "deeply nested": f'{whole[:-1]}, "x": {"[" * 2000}{"]" * 2000}}}',
            "a deep array": "[" * 2500 + "]" * 2500,
            "not closed, deeply nested": '{"a":' * 900,
        }.items():
            yield f"payload {name}", self._raw(claims=text.encode())
            if len(text) < 3000:
                yield (
                    f"header {name}",
                    self._raw(text.replace(whole, header).replace(f"[{whole}]", f"[{header}]").encode()),
                )
        yield "header deeply nested", self._raw(f'{header[:-1]}, "x": {"[" * 2000}{"]" * 2000}}}'.encode())
        yield "header with 5000 digits", self._raw(f'{header[:-1]}, "x": {"9" * 5000}}}'.encode())
        yield "payload with 5000 digits in an unused claim", self._raw(claims=self._json(x="9" * 5000))
        yield "payload in UTF-16", self._raw(claims=whole.encode("utf-16"))
        yield "payload in UTF-32", self._raw(claims=whole.encode("utf-32-le"))
        yield "payload not UTF-8", self._raw(claims=whole.replace(FORGED_SUB, "\xe9").encode("latin-1"))
        yield "payload in overlong UTF-8", self._raw(claims=whole.encode().replace(b'"sub"', b'"\xc1\xb3ub"'))
        yield "header not UTF-8", self._raw(header.encode().replace(b"}", b', "x": "\xff"}'))
        yield "payload of zero bytes", self._raw(claims=bytes(16))

    def oversized(self) -> Iterator[tuple[str, str]]:
        """Make tokens that are good but for their length, which is looked at before anything else."""
        yield "one byte too long", "x" * (AUTHORIZATION_MAX_BYTES + 1 - len("Bearer "))
        yield "9 KiB, good but for that", self.token(pad="x" * 6500)
        yield "15 KiB, good but for that", self.token(pad="x" * 11000)
        yield "15 KiB of dots", "." * 15_000
        yield "20 KiB, longer than a field may be", self.token(pad="x" * 15000)


def _with_trailing_bits(part: str) -> str:
    """Set a bit that belongs to no byte: a lenient decoder returns the same bytes."""
    assert len(part) % 4, part
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return part[:-1] + alphabet[alphabet.index(part[-1]) | 1]


def make_x5c(key: Key, *, size: int = 0) -> bytes:
    """Return a certificate for a key, in DER, with an extension of so many bytes."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "idp.forged.example")])
    now = datetime.now(tz=UTC)
    builder = x509.CertificateBuilder(name, name, key.private.public_key(), x509.random_serial_number())
    padding = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.55555.1"), bytes(size))
    dated = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    certificate = dated.add_extension(padding, critical=False).sign(key.private, hashes.SHA256())
    return certificate.public_bytes(Encoding.DER)


def make_good_tokens(mint: Mint) -> dict[str, str]:
    """Return tokens that must be accepted, by what is odd about them. They are good for a minute at most."""
    now = mint.now()

    def token(kid: str = "rsa", header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        return mint.token(mint.key(kid), header, **{"scope": SCOPE, **claims})

    foreign = Key.make("RS256")
    chain = [base64.b64encode(make_x5c(mint.key("rsa"), size=1000)).decode()]
    made = {f"signed with {kid}": token(kid) for kid in ("rsa", "pss", "ec", "ed-1", "ed-2")}
    made |= {f"typ {typ}": token(header={"typ": typ}) for typ in ("at+jwt", "JWT", "jwt", "AT+JWT")}
    made |= {f"kid absent, {kid}": token(kid, {"kid": ABSENT}) for kid in ("rsa", "pss", "ec")}
    for name in ("kid", "typ", "jwk", "x5c", "cty"):
        made |= {f"{name} {json.dumps(empty)}": token(header={name: empty}) for empty in EMPTY}
    for name in ("nbf", "iat", "cnf", "jti", "scp", "nonce", "azp", "events"):
        made |= {f"{name} {json.dumps(empty)}": token(header={"typ": "JWT"}, **{name: empty}) for empty in EMPTY}
    made |= {
        "crit null": token(header={"crit": None, "b64": None}),
        "typ absent": token(header={"typ": ABSENT}),
        "typ a whole media type in odd case": token(header={"typ": "Application/At+Jwt"}),
        "exp a float": token(exp=now + 60.25),
        "exp with an exponent": make_token(
            mint.header(),
            json.dumps(mint.claims(scope=SCOPE, exp=4e9)).replace("4000000000.0", "4e9").encode(),
            mint.keys[0],
        ),
        "expired within the leeway": token(exp=int(now) - 5),
        "nbf within the leeway": token(nbf=int(now) + 15),
        "iat within the leeway": token(iat=int(now) + 15),
        "iat absent": token(iat=ABSENT),
        "nbf a float in the past": token(nbf=now - 60.5),
        "aud a list": token(aud=["account", mint.audience]),
        "aud a list of one": token(aud=[mint.audience]),
        "scope a list": token(scope=SCOPE.split()),
        "scp a list": token(scope=ABSENT, scp=SCOPE.split()),
        "scp a string": token(scope=ABSENT, scp=SCOPE),
        "scopes in both": token(scope="posts:read", scp=["posts:write"]),
        "nonce, and a scope": token(header={"typ": "JWT"}, nonce="n-0S6_WzA2Mj"),
        "at_hash, and a scope": token(header={"typ": ABSENT}, at_hash="MTIzNDU2Nzg5MDEyMzQ1Ng"),
        "sub of all scripts": token(sub="Jürgen 世界 🙂"),
        "sub of a client": token(sub="aBcD1234@clients", azp="aBcD1234"),
        "header with unknown members": token(header={"x": {"y": [1, None]}, "x5t": "abc", "cty": "json"}),
        "header with jwk and jku of another key, signed by ours": token(
            header={"jwk": foreign.jwk(), "jku": "https://keys.forged.example/jwks"}
        ),
        "header with a certificate": token(header={"x5c": chain}),
        "header with escapes": make_token(
            json.dumps(mint.header()).replace('"alg"', '"\\u0061lg"').encode(), mint.claims(scope=SCOPE), mint.keys[0]
        ),
        "white space in its JSON": make_token(
            json.dumps(mint.header(), indent=4).encode(),
            json.dumps(mint.claims(scope=SCOPE), indent="\t").encode(),
            mint.keys[0],
        ),
        "unused claims": token(realm_access={"roles": ["x"] * 20}, huge=10**400, small=1e-300, none=None),
    }
    room = AUTHORIZATION_MAX_BYTES - len("Bearer ") - len(token(pad=""))
    made["as long as may be"] = token(pad="x" * (room * 3 // 4 - 3))
    return made
