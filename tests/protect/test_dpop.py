"""Tokens that are bound to a key (DPoP, RFC 9449) over HTTP."""

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from postd.auth.bearer import BearerChecker, Issuer
from postd.auth.portal import CoroutinePortal
from postd.http.peer import PeerResolver
from postd.http.views import ViewResource
from postd.protect.bearer import METADATA_PATH, AcceptedTokens
from postd.protect.guard import Guard, ProtectedResource, Realm
from postd.protect.mounted import MountedResources
from postd.protocol.jwk import decode_key_set
from postd.protocol.jwt import Binding, TokenPolicy
from postd.reactor import IReactor
from postd.store.memory.logins import MemoryLogins
from tests.cases import each
from tests.helpers import Response, make_site, result_of
from tests.issuer import ABSENT, Key, Mint, Prover
from tests.protect.test_bearer import FixedKeySource, ShownAccount
from tests.web.wire import Worker, ask, begin

ISSUER, AUDIENCE = "https://idp.example", "https://posts.example"
START_S = 1_700_000_000.0
PROVER = Prover(Key.make("ES256"), now=lambda: START_S)
OTHER = Prover(Key.make("ES256", "other"), now=lambda: START_S)
MINT = Mint(ISSUER, AUDIENCE, Key.make("ES256", "the-key"), now=lambda: START_S)
URL = "http://localhost/"

ALGS = 'algs="ES256 EdDSA PS256 RS256"'
BEARER, DPOP = 'Bearer realm="postd"', f'DPoP realm="postd", {ALGS}'
INVALID = 'error="invalid_token", error_description="The access token is invalid"'
BAD_PROOF = 'error="invalid_dpop_proof", error_description="The DPoP proof is invalid"'


def make_server(
    *rules: Binding,
    store: MemoryLogins | None = None,
    mtls: Binding = "refuse",
    read: str = "",
    proxies: Sequence[str] = (),
    public_url: str = "",
) -> Worker:
    """Make a server with an issuer for each rule; the keys of all are those of `MINT`."""
    clock = Clock()
    clock.rightNow = START_S
    issuers = []
    for number, rule in enumerate(rules or ("accept",)):
        policy = TokenPolicy(f"{ISSUER}/{number}" if number else ISSUER, frozenset({AUDIENCE}), dpop=rule, mtls=mtls)
        issuer = Issuer(policy, reactor=cast(IReactor, clock), read_scope=read, now=clock.seconds)
        issuer.keys = FixedKeySource(decode_key_set(json.dumps(MINT.key_set()).encode()))
        issuers.append(issuer)
    if store is None:
        store = MemoryLogins(reactor=clock)
        result_of(store.start())
    clients = PeerResolver(proxies, public_url)
    tokens = AcceptedTokens("postd", issuers, MountedResources())
    portal = CoroutinePortal(Realm(), [BearerChecker(issuers, store=store, now=clock.seconds)])
    guard = Guard(portal, tokens.make_factories(ProtectedResource(clients)), ShownAccount(), clients=clients)
    return Worker(make_site(guard, clock=clock), clock)


def bound_token(prover: Prover = PROVER, **claims: Any) -> str:
    return MINT.token(**{"cnf": prover.confirmation, **claims})


def dpop(token: str, *, prover: Prover = PROVER, method: str = "GET", url: str = URL, **claims: Any) -> dict[str, Any]:
    return {"Authorization": f"DPoP {token}", "DPoP": prover.prove(method, url, token, **claims)}


def check_refused(answer: Response, *lines: str) -> None:
    assert (answer.status, answer.headers["www-authenticate"]) == (401, list(lines))
    assert answer.header("Cache-Control") == "no-store"


class RuleTests:
    @each("method", ["GET", "HEAD", "POST", "DELETE", "FOO"])
    def test_bound_token_with_its_proof_is_accepted(self, method: str) -> None:
        answer = ask(make_server(), method, "/", headers=dpop(bound_token(), method=method))
        assert (answer.status, answer.headers.get("www-authenticate")) == (200, None)
        assert answer.body == (b"" if method == "HEAD" else f"{ISSUER}#alice".encode())

    def test_scheme_is_compared_without_case(self) -> None:
        fields = dpop(bound_token())
        fields["Authorization"] = fields["Authorization"].replace("DPoP", "dpop")
        assert ask(make_server(), "GET", "/", headers=fields).status == 200

    def test_challenges_of_each_rule(self) -> None:
        for rules, lines in (
            (("refuse",), [BEARER]),
            (("accept",), [BEARER, DPOP]),
            (("require",), [DPOP]),
            (("refuse", "require"), [BEARER, DPOP]),
            (("accept", "require"), [BEARER, DPOP]),
            (("require", "require"), [DPOP]),
        ):
            server = make_server(*cast(tuple[Binding, ...], rules))
            check_refused(ask(server, "GET", "/"), *lines)

    def test_bound_token_is_no_bearer_token(self) -> None:
        token = bound_token()
        for rule, lines in (
            ("refuse", [f"{BEARER}, {INVALID}"]),
            ("accept", [f"{BEARER}, {INVALID}", DPOP]),
            ("require", [DPOP]),
        ):
            server = make_server(cast(Binding, rule))
            for fields in ({}, {"DPoP": PROVER.prove("GET", URL, token)}):
                check_refused(ask(server, "GET", "/", headers={"Authorization": f"Bearer {token}", **fields}), *lines)

    def test_remembered_token_is_no_bearer_token(self) -> None:
        server, token = make_server(), bound_token()
        assert ask(server, "GET", "/", headers=dpop(token)).status == 200
        assert ask(server, "GET", "/", headers={"Authorization": f"Bearer {token}"}).status == 401
        check_refused(
            ask(server, "GET", "/", headers={"Authorization": f"DPoP {token}"}), BEARER, f"{DPOP}, {BAD_PROOF}"
        )
        check_refused(ask(server, "GET", "/", headers=dpop(token, prover=OTHER)), BEARER, f"{DPOP}, {BAD_PROOF}")

    def test_unbound_token_needs_no_proof_and_may_have_none(self) -> None:
        token = MINT.token()
        accepting, requiring = make_server(), make_server("require")
        assert ask(accepting, "GET", "/", headers={"Authorization": f"Bearer {token}"}).status == 200
        check_refused(ask(accepting, "GET", "/", headers=dpop(token)), BEARER, f"{DPOP}, {INVALID}")
        check_refused(ask(requiring, "GET", "/", headers=dpop(token)), f"{DPOP}, {INVALID}")
        check_refused(ask(requiring, "GET", "/", headers={"Authorization": f"Bearer {token}"}), DPOP)

    def test_rule_is_that_of_the_issuer_of_the_token(self) -> None:
        server = make_server("refuse", "require")
        other = f"{ISSUER}/1"
        assert ask(server, "GET", "/", headers={"Authorization": f"Bearer {MINT.token()}"}).status == 200
        assert ask(server, "GET", "/", headers=dpop(bound_token(iss=other))).status == 200
        assert ask(server, "GET", "/", headers={"Authorization": f"Bearer {MINT.token(iss=other)}"}).status == 401
        assert ask(server, "GET", "/", headers=dpop(bound_token())).status == 401

    @each(
        "confirmation",
        [5, "x", {"jkt": 5}, {"jkt": ["x"]}, {"jwk": {"kty": "EC"}}, {"x5t#S256": "x"}, ["jkt"]],
    )
    def test_other_bindings_are_refused(self, confirmation: Any) -> None:
        token = bound_token(cnf=confirmation)
        server = make_server()
        check_refused(ask(server, "GET", "/", headers=dpop(token)), BEARER, f"{DPOP}, {INVALID}")
        assert ask(server, "GET", "/", headers={"Authorization": f"Bearer {token}"}).status == 401

    @each("confirmation", [None, {}, {"jkt": ""}, {"jkt": None}, {"jkt": None, "x5t#S256": None}])
    def test_empty_binding_is_none(self, confirmation: Any) -> None:
        token = bound_token(cnf=confirmation)
        accepting, requiring = make_server(), make_server("require")
        check_refused(ask(accepting, "GET", "/", headers=dpop(token)), BEARER, f"{DPOP}, {INVALID}")
        assert ask(accepting, "GET", "/", headers={"Authorization": f"Bearer {token}"}).status == 200
        check_refused(ask(requiring, "GET", "/", headers=dpop(token)), f"{DPOP}, {INVALID}")

    def test_missing_scope_is_403_on_the_line_of_the_scheme(self) -> None:
        answer = ask(make_server(read="posts:read"), "GET", "/", headers=dpop(bound_token()))
        lacking = f'{DPOP}, error="insufficient_scope", scope="posts:read"'
        assert (answer.status, answer.headers["www-authenticate"]) == (403, [lacking])
        answer = ask(make_server(read="posts:read"), "GET", "/")
        check_refused(answer, f'{BEARER}, scope="posts:read"', f'{DPOP}, scope="posts:read"')


class ProofTests:
    """What has a fault of its own is in tests/protocol/test_dpop.py."""

    def test_request_has_one_proof(self) -> None:
        server, token = make_server(), bound_token()
        proof = PROVER.prove("GET", URL, token)
        for proofs in (ABSENT, [proof, proof], [proof, "x"], "", f"{proof}, {proof}", "x" * 8193, b"\xff"):
            fields = {"Authorization": f"DPoP {token}", **({} if proofs is ABSENT else {"DPoP": proofs})}
            check_refused(ask(server, "GET", "/", headers=fields), BEARER, f"{DPOP}, {BAD_PROOF}")
        assert ask(server, "GET", "/", headers={"Authorization": f"DPoP {token}", "DPoP": proof}).status == 200

    def test_proof_is_for_one_method_and_one_url(self) -> None:
        server, token = make_server(), bound_token()
        for method, path, claims in (
            ("POST", "/", {}),
            ("GET", "/x", {}),
            ("GET", "/", {"url": "http://another.example/"}),
            ("GET", "/", {"url": "https://localhost/"}),
            ("GET", "/", {"ath": ABSENT}),
            ("GET", "/", {"iat": START_S - 91}),
        ):
            answer = ask(server, method, path, headers=dpop(token, **claims))
            check_refused(answer, BEARER, f"{DPOP}, {BAD_PROOF}")
        assert ask(server, "GET", "/x/y?q=1", headers=dpop(token, url=f"{URL}x/y")).status == 200

    def test_url_is_the_one_that_clients_see(self) -> None:
        token = bound_token()
        server = make_server(public_url="https://posts.example")
        assert ask(server, "GET", "/a", headers=dpop(token, url="https://posts.example/a")).status == 200
        assert ask(server, "GET", "/a", headers=dpop(token, url="http://localhost/a")).status == 401
        server = make_server(proxies=["127.0.0.1"])
        forwarded = {"X-Forwarded-Proto": "https", "Host": "app.example"}
        for peer, status in (("127.0.0.1", 200), ("192.0.2.1", 401)):
            fields = {**dpop(token, url="https://app.example/a"), **forwarded}
            assert ask(server, "GET", "/a", headers=fields, peer=peer).status == status

    def test_proof_is_accepted_once(self) -> None:
        server, fields = make_server(), dpop(bound_token())
        assert ask(server, "GET", "/", headers=fields).status == 200
        for _ in range(2):
            check_refused(ask(server, "GET", "/", headers=fields), BEARER, f"{DPOP}, {BAD_PROOF}")
        same_jti = [dpop(bound_token(), jti="a"), dpop(bound_token(), jti="a", iat=START_S - 1)]
        assert [ask(server, "GET", "/", headers=one).status for one in same_jti] == [200, 401]
        other = dpop(bound_token(OTHER), prover=OTHER, jti="a")
        assert ask(server, "GET", "/", headers=other).status == 200

    def test_proof_is_accepted_once_by_all_that_share_a_store(self) -> None:
        store = MemoryLogins(reactor=Clock())
        result_of(store.start())
        servers = [make_server(store=store) for _ in range(2)]
        fields = dpop(bound_token())
        assert [ask(server, "GET", "/", headers=fields).status for server in servers] == [200, 401]

    def test_refused_proof_is_not_used_up(self) -> None:
        """Else one who has seen a proof could use it up before its owner, at another URL."""
        server, fields = make_server(), dpop(bound_token())
        assert ask(server, "GET", "/x", headers=fields).status == 401
        assert ask(server, "GET", "/", headers=fields).status == 200

    def test_used_proofs_are_purged_when_they_are_too_old(self) -> None:
        store = MemoryLogins(reactor=Clock())
        result_of(store.start())
        server = make_server(store=store)
        fields = dpop(bound_token(exp=START_S + 3600))
        assert ask(server, "GET", "/", headers=fields).status == 200
        for after, status in ((89, 401), (91, 401), (1000, 401)):
            server.clock.rightNow = START_S + after
            result_of(store.purge_expired(now=server.clock.seconds(), wall=server.clock.seconds()))
            assert ask(server, "GET", "/", headers=fields).status == status
        assert not store._proofs  # noqa: SLF001 - nothing else tells that they are gone

    def test_guard_below_another_one_does_not_use_the_proof_again(self) -> None:
        clock = Clock()
        clock.rightNow = START_S
        policy = TokenPolicy(ISSUER, frozenset({AUDIENCE}), dpop="accept")
        issuer = Issuer(policy, reactor=cast(IReactor, clock), now=clock.seconds)
        issuer.keys = FixedKeySource(decode_key_set(json.dumps(MINT.key_set()).encode()))
        store = MemoryLogins(reactor=clock)
        result_of(store.start())
        tokens = AcceptedTokens("postd", [issuer], MountedResources())
        portal = CoroutinePortal(Realm(), [BearerChecker([issuer], store=store, now=clock.seconds)])
        inner = ProtectedResource(PeerResolver(), read_scope="inner")
        guard: Any = Guard(portal, tokens.make_factories(inner), ShownAccount())
        guard = Guard(portal, tokens.make_factories(ProtectedResource(PeerResolver())), guard)
        server = Worker(make_site(guard, clock=clock), clock)
        assert ask(server, "GET", "/", headers=dpop(bound_token())).status == 403
        fields = dpop(bound_token(scope="inner"))
        assert ask(server, "GET", "/", headers=fields).status == 200
        assert ask(server, "GET", "/", headers=fields).status == 401

    def test_store_that_is_away_is_503(self) -> None:
        store = MemoryLogins(reactor=Clock())
        server = make_server(store=store)
        answer = ask(server, "GET", "/", headers=dpop(bound_token()))
        assert (answer.status, answer.headers.get("www-authenticate")) == (503, None)

    def test_store_is_needed(self) -> None:
        policy = TokenPolicy(ISSUER, frozenset({AUDIENCE}), dpop="accept")
        issuer = Issuer(policy, reactor=cast(IReactor, Clock()))
        with pytest.raises(ValueError, match="store"):
            BearerChecker([issuer])

    def test_log_has_the_reason_and_nothing_of_token_and_proof(self) -> None:
        server, token = make_server(), bound_token()
        fields = dpop(token, url="https://secret.example/")
        with capturedLogs() as events:
            ask(server, "GET", "/", headers=fields)
        text = "\n".join(formatEvent(event) for event in events)
        assert "login refused: dpop - from 127.0.0.1: the proof: htu is another URL" in text
        assert not any(part in text for part in (*token.split("."), *fields["DPoP"].split("."), "secret.example"))

    def test_disconnected_client_leaves_no_error(self) -> None:
        server = make_server()
        with capturedLogs() as events:
            begin(server, "GET", "/", headers=dpop(bound_token())).disconnect()
        assert not [event for event in events if "log_failure" in event]


class MetadataTests:
    """RFC 9728 §2."""

    @pytest.mark.parametrize(
        ("rules", "members"),
        [
            (("refuse",), {}),
            (
                ("accept",),
                {
                    "dpop_signing_alg_values_supported": ["ES256", "Ed25519", "EdDSA", "PS256", "RS256"],
                    "dpop_bound_access_tokens_required": False,
                },
            ),
            (
                ("require",),
                {
                    "dpop_signing_alg_values_supported": ["ES256", "Ed25519", "EdDSA", "PS256", "RS256"],
                    "dpop_bound_access_tokens_required": True,
                },
            ),
            (
                ("refuse", "require"),
                {
                    "dpop_signing_alg_values_supported": ["ES256", "Ed25519", "EdDSA", "PS256", "RS256"],
                    "dpop_bound_access_tokens_required": False,
                },
            ),
        ],
    )
    def test_metadata_has_what_is_accepted(self, rules: Any, members: dict[str, Any]) -> None:
        policies = [TokenPolicy(f"{ISSUER}/{at}", frozenset({AUDIENCE}), dpop=rule) for at, rule in enumerate(rules)]
        issuers = [Issuer(policy, reactor=cast(IReactor, Clock())) for policy in policies]
        tokens = AcceptedTokens("postd", issuers, MountedResources())
        described = ProtectedResource(PeerResolver())

        async def show(request: Any) -> Any:
            return tokens.describe(described, request)

        server = Worker(make_site(ViewResource(show), clock=Clock()), Clock())
        shown = json.loads(ask(server, "GET", METADATA_PATH).body)
        for name in ("resource", "authorization_servers", "bearer_methods_supported"):
            del shown[name]
        assert shown == members
