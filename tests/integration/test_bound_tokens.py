"""A stolen token that is bound to a key is refused: by real workers and nodes, after restarts and kill -9."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers import PATIENCE_S, run_sql, wait_until
from tests.integration.daemon import FREE_PORT, Daemon
from tests.integration.test_bearer import bearer_table
from tests.integration.test_logins import kill, serve, stop
from tests.integration.test_redis import wait_for_service
from tests.integration.test_workers import clients_of_each
from tests.issuer import ABSENT, Issuer, Key, Prover, make_token
from tests.redis_server import RedisServer

ORIGIN = "https://posts.example"
OWNER, THIEF = (Prover(Key.make("ES256", name)) for name in ("owner", "thief"))
KILLED_AFTER = 300

Headers = dict[str, str]


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer(ORIGIN, Key.make("ES256")) as issuer:
        yield issuer


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of a store, a file of the server's folder or a Redis server that tests share."""
    return "sqlite:postd.db" if request.param == "sqlite" else request.getfixturevalue("redis").url


def start(folder: Path, issuer: Issuer, store: str, *, workers: int = 1, more: str = "") -> Daemon:
    """Return a server whose issuer may bind tokens; `more` are further settings of the issuer, and tables."""
    folder.mkdir(exist_ok=True)
    return serve(
        folder,
        f'store = "{store}"\nworkers = {workers}\npublic_url = "{ORIGIN}"\n'
        'api = {read = ["bearer"], write = ["bearer"]}\n' + bearer_table(issuer, dpop="accept") + more,
    )


def make_bound_token(issuer: Issuer) -> str:
    return issuer.token(cnf=OWNER.confirmation)


def make_fields(token: str, prover: Prover = OWNER, method: str = "GET", path: str = "/post") -> Headers:
    """Return the fields of a request with a fresh proof."""
    return {"Authorization": f"DPoP {token}", "DPoP": prover.prove(method, ORIGIN + path, token)}


def get_post(client: httpx.Client, fields: Headers) -> int:
    return client.get("/post", headers=fields).status_code


def thefts(issuer: Issuer, seen: Headers) -> Iterator[tuple[str, str, Any]]:
    """Give the requests of a thief who has seen a request of the owner: method, path and fields."""
    authorization, proof = seen["Authorization"], seen["DPoP"]
    token = authorization.removeprefix("DPoP ")
    forged = make_token(OWNER.header(), OWNER.claims("GET", f"{ORIGIN}/post", token), THIEF.key)
    unsigned = make_token(OWNER.header(alg="none"), OWNER.claims("GET", f"{ORIGIN}/post", token), THIEF.key)
    unnamed = make_token(THIEF.header(jwk=ABSENT), THIEF.claims("GET", f"{ORIGIN}/post", token), THIEF.key)
    yield "GET", "/post", {"Authorization": f"Bearer {token}"}
    yield "GET", "/post", {"Authorization": f"Bearer {token}", "DPoP": proof}
    yield "GET", "/post", {"Authorization": authorization}
    for made in (forged, unsigned, unnamed, THIEF.prove("GET", f"{ORIGIN}/post", token)):
        yield "GET", "/post", {"Authorization": authorization, "DPoP": made}
    for method, path in (("GET", "/post"), ("GET", "/post?a=b"), ("HEAD", "/post"), ("GET", "/post/1")):
        yield method, path, seen
    yield "DELETE", "/post/1", seen
    yield "GET", "/post", [*seen.items(), ("DPoP", proof)]
    another = {**seen, "Authorization": f"DPoP {make_bound_token(issuer)}"}
    yield "GET", "/post", another
    yield "GET", "/post", {**seen, "DPoP": f"{proof}, {proof}"}


def check_thief_is_refused(clients: Sequence[httpx.Client], issuer: Issuer, seen: Headers) -> None:
    for client in clients:
        for method, path, fields in thefts(issuer, seen):
            answer = client.request(method, path, headers=fields)
            assert answer.status_code == 401, (method, path, fields)


def check_accepted_once(clients: Sequence[httpx.Client], token: str) -> None:
    """Send each of many proofs by all of the clients at the same time."""
    proofs = [make_fields(token) for _ in range(50)]
    with ThreadPoolExecutor(8) as threads:
        sent = [[threads.submit(get_post, client, fields) for client in clients] for fields in proofs]
    statuses = [sorted(one.result() for one in answers) for answers in sent]
    assert statuses == [[200] + [401] * (len(clients) - 1)] * len(proofs)


def check_log(daemon: Daemon, *secrets: str) -> None:
    parts = {part for secret in secrets for part in secret.split(".") if len(part) > 16}
    assert not [part for part in parts if part in daemon.log]
    assert "Traceback" not in daemon.log
    assert '" 500 ' not in daemon.log


def test_stolen_token_is_refused_by_all_workers(tmp_path: Path, issuer: Issuer, store: str) -> None:
    token = make_bound_token(issuer)
    with start(tmp_path, issuer, store, workers=2) as daemon, clients_of_each(daemon) as (first, second):
        seen = make_fields(token)
        assert get_post(first, seen) == 200
        check_thief_is_refused([first, second], issuer, seen)
        check_accepted_once([first, second, first, second], token)
        assert [get_post(client, make_fields(token)) for client in (first, second)] == [200, 200]
    assert f"{issuer.issuer}#alice" in daemon.log
    check_log(daemon, token, seen["DPoP"])


def test_stolen_token_is_refused_by_all_nodes(tmp_path: Path, issuer: Issuer, redis: RedisServer) -> None:
    token = make_bound_token(issuer)
    with ExitStack() as stack:
        nodes = [stack.enter_context(start(tmp_path / name, issuer, redis.url)) for name in ("a", "b")]
        clients = [stack.enter_context(httpx.Client(base_url=node.url)) for node in nodes]
        seen = make_fields(token)
        assert get_post(clients[0], seen) == 200
        check_thief_is_refused(clients, issuer, seen)
        check_accepted_once(clients * 2, token)


def test_scheme_is_dpop_in_the_log_and_in_metrics(tmp_path: Path, issuer: Issuer) -> None:
    token, scoped = make_bound_token(issuer), issuer.token(cnf=OWNER.confirmation, scope="read")
    more = f'read_scope = "read"\n[admin]\nlisten = ["{FREE_PORT}"]\n[log]\nformat = "json"\n'
    with start(tmp_path, issuer, "sqlite:postd.db", more=more) as daemon, httpx.Client(base_url=daemon.url) as client:
        sent: list[Headers] = [
            make_fields(scoped),
            make_fields(token),  # lacks the scope
            make_fields(token, THIEF),
            {"Authorization": f"DPoP {token}"},
            {"Authorization": f"Bearer {token}"},
        ]
        assert [get_post(client, fields) for fields in sent] == [200, 403, 401, 401, 401]
        (admin,) = re.findall(r"admin (http://[\d.:]+)", daemon.log)
        daemon.wait_for('"scheme":"bearer"')  # requests are counted when they are logged
        metrics = httpx.get(f"{admin}/metrics").text
    logged = [json.loads(line) for line in daemon.log.splitlines() if line.startswith('{"')]
    asked = [(line["status"], line["scheme"]) for line in logged if line.get("route") == "/post"]
    assert asked == [(200, "dpop"), (403, "dpop"), (401, "dpop"), (401, "dpop"), (401, "bearer")]
    samples = [one for family in text_string_to_metric_families(metrics) for one in family.samples]
    own = [one for one in samples if one.labels.get("scheme") == "dpop"]
    requests = {one.labels["status"]: one.value for one in own if one.name == "postd_http_requests_total"}
    outcomes = {one.labels["outcome"]: one.value for one in own if one.name == "postd_auth_total"}
    assert requests == {"200": 1, "403": 1, "401": 2}
    assert outcomes == {"accepted": 1, "forbidden": 1, "refused": 2}


@pytest.mark.parametrize("end", [stop, kill])
def test_used_proof_outlives_a_restart(
    tmp_path: Path, issuer: Issuer, store: str, end: Callable[[Daemon], None]
) -> None:
    token = make_bound_token(issuer)
    seen, unused = make_fields(token), make_fields(token)
    with start(tmp_path, issuer, store) as daemon, httpx.Client(base_url=daemon.url) as client:
        assert get_post(client, seen) == 200
        end(daemon)
    # With a leeway that changes how long a proof may be used.
    with start(tmp_path, issuer, store, more='leeway = "45s"\n') as daemon, httpx.Client(base_url=daemon.url) as client:
        check_thief_is_refused([client], issuer, seen)
        assert [get_post(client, unused) for _ in range(2)] == [200, 401]
        assert get_post(client, make_fields(token)) == 200


class Prolific(threading.Thread):
    """The owner of a token, who sends proof after proof until the connection fails."""

    def __init__(self, url: str, token: str, enough: threading.Event, accepted: list[Headers]) -> None:
        super().__init__()
        self._url = url
        self._token = token
        self._enough = enough
        self._accepted = accepted

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=PATIENCE_S) as client:
            while True:
                fields = make_fields(self._token)
                try:
                    assert get_post(client, fields) == 200
                except httpx.TransportError:
                    return
                self._accepted.append(fields)
                if len(self._accepted) >= KILLED_AFTER:
                    self._enough.set()


@pytest.mark.slow
def test_used_proofs_outlive_kill_9_under_load(tmp_path: Path, issuer: Issuer, store: str) -> None:
    token = make_bound_token(issuer)
    accepted: list[Headers] = []
    with start(tmp_path, issuer, store) as daemon:
        enough = threading.Event()
        owners = [Prolific(daemon.url, token, enough, accepted) for _ in range(4)]
        for owner in owners:
            owner.start()
        assert enough.wait(PATIENCE_S)
        daemon.kill()
        for owner in owners:
            owner.join()
    with start(tmp_path, issuer, store) as daemon, httpx.Client(base_url=daemon.url) as client:
        assert {get_post(client, fields) for fields in accepted} == {401}
        assert daemon.log.count("the proof: its jti was used before") == len(accepted)


def test_unavailable_redis_is_503_and_forgets_no_proof(tmp_path: Path, issuer: Issuer) -> None:
    token = make_bound_token(issuer)
    seen, unused = make_fields(token), make_fields(token)
    with (
        RedisServer(tmp_path / "redis") as redis,
        start(tmp_path / "node", issuer, redis.url) as node,
        httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client,
    ):
        assert get_post(client, seen) == 200
        redis.kill()
        for fields in (seen, unused):
            answer = client.get("/post", headers=fields)
            assert (answer.status_code, "WWW-Authenticate" in answer.headers) == (503, False)
            assert int(answer.headers["Retry-After"]) > 0
        # What is refused without the store is still refused.
        assert get_post(client, {**seen, "DPoP": "x"}) == 401
        redis.start()
        wait_for_service(node, lambda: client.get("/post", headers=make_fields(token)))
        assert [get_post(client, fields) for fields in (seen, unused, unused)] == [401, 200, 401]


def age_in_file(folder: Path, redis: RedisServer) -> None:
    run_sql(folder / "postd.db", "UPDATE used_proof SET expires = expires - 3600")


def count_in_file(folder: Path, redis: RedisServer) -> int:
    ((count,),) = run_sql(folder / "postd.db", "SELECT count(*) FROM used_proof")
    return int(count)


def age_in_redis(folder: Path, redis: RedisServer) -> None:
    for nonce in redis.ask("ZRANGE", "postd:proofs", 0, -1):
        redis.ask("ZINCRBY", "postd:proofs", -3600, nonce)


def count_in_redis(folder: Path, redis: RedisServer) -> int:
    return len(redis.ask("KEYS", "postd:nonce:*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "age", "count"), [("sqlite", age_in_file, count_in_file), ("redis", age_in_redis, count_in_redis)]
)
def test_used_proofs_are_purged(
    tmp_path: Path, issuer: Issuer, kind: str, age: Callable[..., None], count: Callable[..., int]
) -> None:
    """Expired proofs are deleted (they last for minutes: the test dates them back by an hour)."""
    token = make_bound_token(issuer)
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(tmp_path / "redis"))
        store = redis.url if kind == "redis" else "sqlite:postd.db"
        daemon = stack.enter_context(start(tmp_path, issuer, store))
        client = stack.enter_context(httpx.Client(base_url=daemon.url))
        assert [get_post(client, make_fields(token)) for _ in range(3)] == [200] * 3
        assert count(tmp_path, redis) == 3
        age(tmp_path, redis)
        assert get_post(client, make_fields(token)) == 200
        wait_until(lambda: count(tmp_path, redis) == 1, lambda: daemon.log)
