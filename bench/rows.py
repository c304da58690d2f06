"""The rows of the table: the servers of each workload, and the ratios of their figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.contenders import (
    BASELINE,
    GRANIAN_TLS,
    GROUP,
    GROUP_PAGED,
    NCHAN,
    NODE_LIVE,
    ON_REDIS,
    ON_SQLITE,
    ONE_WORKER,
    POSTD,
    POSTD_BEARER,
    POSTD_BOTH,
    POSTD_COMMANDS,
    POSTD_DPOP,
    POSTD_NO_LOG,
    POSTD_PROTECTED,
    POSTD_PROTECTED_NO_LOG,
    POSTD_TLS,
    POSTD_TOKEN,
    POSTD_WITH_USERS,
    TWO_WORKERS,
    UVICORN_TLS,
    blacksheep,
    falcon,
    fastapi,
    fastify,
    flask,
    nginx,
    stock_site,
    with_tls,
    with_workers,
)
from bench.cpu import measure_cpu, measure_cpu_on_redis
from bench.footprint import measure_idle, measure_start
from bench.forwarding import ASKING, AUTH_BASIC, PLAIN, measure_asking, measure_asking_bearer, measure_auth_basic
from bench.lists import PAGED, fill_lists, measure_lists, measure_page, measure_pages_mixed
from bench.live import IDLE_S, POSTD_LIVE, POSTD_LIVE_IDLE, measure_live, measure_live_idle
from bench.logins import (
    basic_fields,
    digest_fields,
    measure_bearer,
    measure_dpop,
    measure_hash,
    measure_known,
    measure_personal_token,
    measure_signin,
    measure_stock,
    measure_without_signins,
    session_fields,
)
from bench.servers import ROOT, Server
from bench.tls import measure_connections, measure_handshakes, measure_reads_beside
from bench.workloads import (
    LONG_LIST,
    SHORT_LIST,
    Duration,
    Measure,
    fill,
    measure_both,
    measure_get20,
    measure_get_one,
    measure_list100k,
    measure_mixed,
    measure_not_modified,
    measure_on_redis,
    measure_p99,
    measure_post,
    measure_tail,
)

THREADS_FOR_HASHES, THREADS_BESIDE_HASHES = 4, 40
"""Threads of Falcon, which verifies passwords in the same threads as it reads. In the row where one client reads while
32 sign in it has as many as FastAPI, so that a read does not wait for all the hashes. Otherwise few are faster."""

START_AND_STOP_S = 1.2
"""The time to start and stop a server, with the checks before and after, in seconds."""


@dataclass(frozen=True)
class Contender:
    """A server and its measurement."""

    name: str
    measure: Measure
    server: Server


class Prepare(Protocol):
    """Fills a folder with stores; those of postd are created by the checkout `tree`."""

    def __call__(self, folder: Path, *, tree: Path = ROOT) -> None: ...


@dataclass(frozen=True)
class Row:
    """A workload, with the servers to measure."""

    contenders: Sequence[Contender]
    ratios: Sequence[tuple[str, str]] = ()
    """Pairs of contenders: the figures of the first are divided by those of the second. If there are none, postd, the
    first contender, is divided by each of the others, its peers."""
    prepare: Prepare | None = None
    """Fills a folder, of which each contender gets a copy; None for an empty folder."""
    measurements: int = 1
    """The number of measurements of `--seconds` for a contender."""
    other_s: float = START_AND_STOP_S
    """The further time of a contender, without the measurements and the warm-up, in seconds."""

    def estimate_s(self, duration: Duration) -> float:
        """Estimate the length of a round, in seconds."""
        of_each = self.other_s + duration.warm_up_s + self.measurements * duration.measured_s
        return len(self.contenders) * of_each


def side_by_side(
    measure: Measure,
    *servers: Server,
    ratios: Sequence[tuple[str, str]] = (),
    prepare: Prepare | None = None,
    measurements: int = 1,
    other_s: float = START_AND_STOP_S,
) -> Row:
    """Return a row in which all servers have the same measurement."""
    contenders = [Contender(server.name, measure, server) for server in servers]
    return Row(contenders, ratios, prepare, measurements, other_s)


def beside_itself(row: Row, before: Path) -> Row:
    """Return a row with the postd servers of another row, each beside the same server of the checkout `before`."""
    contenders, ratios = [], []
    for now in row.contenders:
        if now.server.command in POSTD_COMMANDS and now.measure is not measure_hash:
            then = replace(now, name=f"{now.name} before", server=replace(now.server, tree=before))
            contenders += [now, then]
            ratios.append((now.name, then.name))
    # The older version creates the store: the newer one can upgrade it, but not the reverse.
    prepare = partial(row.prepare, tree=before) if row.prepare else None
    return replace(row, contenders=contenders, ratios=ratios, prepare=prepare)


_PAGED = (
    falcon("posts:paged_app"),
    blacksheep("posts:paged_app"),
    fastapi("posts:paged_app"),
    flask("posts:paged_app"),
    fastify("log", "pages"),
)
"""The peers with lists in pages."""
_HELLO = (
    falcon(),
    blacksheep(),
    fastapi("hello:app"),
    flask(),
    fastify("log"),
)
"""The peers for start time and idle memory; for FastAPI, the first example of its documentation."""
_TLS = (
    POSTD_TLS,
    with_tls(falcon(), *GRANIAN_TLS),
    with_tls(blacksheep(), *GRANIAN_TLS),
    with_tls(fastapi(), *UVICORN_TLS),
    with_tls(fastify("log"), "tls"),
    with_tls(nginx()),
)
"""postd and its peers with TLS."""
_NO_LOG = (
    falcon(access_log=False),
    blacksheep(access_log=False),
    fastapi("posts:app", "--no-access-log"),
    flask(access_log=False),
    fastify(),
)
"""The peers without an access log."""

ROWS = {
    "get20": side_by_side(measure_get20, POSTD, falcon(), blacksheep(), fastapi(), flask(), fastify("log"), nginx()),
    "get20-nolog": side_by_side(
        measure_get20,
        POSTD_NO_LOG,
        *_NO_LOG,
        nginx(access_log=False),
    ),
    "not-modified": side_by_side(
        measure_not_modified,
        POSTD,
        falcon("posts:conditional_app"),
        blacksheep("posts:conditional_app"),
        fastapi("posts:conditional_app"),
        flask("posts:conditional_app"),
        fastify("log", "etag"),
        nginx(),
    ),
    "get-one": side_by_side(
        measure_get_one, POSTD, falcon(), blacksheep(), fastapi(), flask(), fastify("log"), nginx()
    ),
    "post": side_by_side(measure_post, POSTD, falcon(), blacksheep(), fastapi(), flask(), fastify("log"), GROUP),
    "post-nolog": side_by_side(
        measure_post,
        POSTD_NO_LOG,
        *_NO_LOG,
        replace(blacksheep("group:app", access_log=False), name=GROUP.name),
    ),
    "mixed": side_by_side(measure_mixed, POSTD, falcon(), blacksheep(), fastapi(), flask(), fastify("log"), GROUP),
    "tls": side_by_side(measure_get20, *_TLS),
    "tls-connections": side_by_side(measure_connections, *_TLS),
    "tls-handshakes": side_by_side(measure_handshakes, *_TLS, measurements=2),
    "list100k": side_by_side(
        measure_list100k,
        POSTD,
        falcon(),
        blacksheep(),
        fastapi(),
        flask(),
        fastify("log"),
        BASELINE,
        prepare=partial(fill, LONG_LIST),
    ),
    "page": side_by_side(
        measure_page,
        POSTD,
        *_PAGED,
        prepare=partial(fill, PAGED),
    ),
    "pages-mixed": side_by_side(
        measure_pages_mixed,
        POSTD,
        *_PAGED,
        GROUP_PAGED,
        prepare=partial(fill, PAGED),
    ),
    "lists": side_by_side(
        measure_lists,
        POSTD,
        falcon(),
        blacksheep(),
        fastify("log"),
        prepare=fill_lists,
        measurements=12,
        other_s=8,
    ),
    "p99": side_by_side(measure_p99, POSTD, falcon(), blacksheep(), fastapi(), fastify("log"), measurements=2),
    "tail": side_by_side(measure_tail, POSTD, falcon(), blacksheep(), fastify("log"), GROUP, measurements=2),
    "live": side_by_side(
        measure_live,
        POSTD_LIVE,
        fastapi("live:app", "--no-access-log"),
        NODE_LIVE,
        NCHAN,
        other_s=6,
    ),
    "live-idle": side_by_side(measure_live_idle, POSTD_LIVE_IDLE, measurements=0, other_s=IDLE_S + 10),
    "start": side_by_side(
        measure_start,
        POSTD,
        *_HELLO,
        prepare=partial(fill, SHORT_LIST),
        other_s=0,
    ),
    "idle": side_by_side(
        measure_idle,
        POSTD,
        *_HELLO,
        prepare=partial(fill, SHORT_LIST),
        measurements=0,
        other_s=2.5,
    ),
    "basic": side_by_side(
        partial(measure_known, basic_fields),
        POSTD_PROTECTED,
        falcon("logins:make_basic", threads=THREADS_FOR_HASHES),
        blacksheep("logins:make_basic"),
        fastapi("logins:basic_app"),
        flask("logins:make_basic()"),
    ),
    "digest": side_by_side(
        partial(measure_known, digest_fields),
        POSTD_PROTECTED,
        falcon("logins:make_digest"),
        blacksheep("logins:make_digest"),
        flask("logins:make_digest()"),
    ),
    "digest-nolog": side_by_side(
        partial(measure_known, digest_fields),
        POSTD_PROTECTED_NO_LOG,
        falcon("logins:make_digest", access_log=False),
        blacksheep("logins:make_digest", access_log=False),
        flask("logins:make_digest()", access_log=False),
    ),
    "digest-clients": side_by_side(
        partial(measure_known, partial(digest_fields, nonces=32)),
        POSTD_PROTECTED_NO_LOG,
        falcon("logins:make_digest", access_log=False),
        blacksheep("logins:make_digest", access_log=False),
    ),
    "session": side_by_side(
        partial(measure_known, session_fields),
        POSTD_PROTECTED,
        falcon("logins:make_session"),
        blacksheep("logins:make_session"),
        fastapi("logins:session_app"),
    ),
    "bearer": side_by_side(
        measure_bearer,
        POSTD_BEARER,
        falcon("logins:make_bearer"),
        blacksheep("logins:make_bearer"),
        fastapi("logins:bearer_app"),
    ),
    "signin": side_by_side(
        measure_signin,
        POSTD_WITH_USERS,
        falcon("logins:make_signin", threads=THREADS_BESIDE_HASHES),
        blacksheep("logins:make_signin"),
        fastapi("logins:signin_app"),
    ),
    "logins": Row(
        [
            Contender("open", measure_get20, POSTD),
            Contender("basic", partial(measure_known, basic_fields), POSTD_PROTECTED),
            Contender("digest", partial(measure_known, digest_fields), POSTD_PROTECTED),
            Contender("session", partial(measure_known, session_fields), POSTD_PROTECTED),
            Contender("token", measure_personal_token, POSTD_TOKEN),
            Contender("bearer", measure_bearer, POSTD_BEARER),
        ],
        [("basic", "open"), ("digest", "open"), ("session", "open"), ("token", "open"), ("bearer", "open")],
    ),
    "tls-plain": Row(
        [Contender("tls", measure_get20, POSTD_TLS), Contender("plain", measure_get20, POSTD)], [("tls", "plain")]
    ),
    "beside-handshakes": Row(
        [
            Contender("300 a second", partial(measure_reads_beside, 300), POSTD_BOTH),
            Contender("none", partial(measure_reads_beside, 0), POSTD_BOTH),
        ],
        [("300 a second", "none")],
    ),
    "dpop": Row(
        [Contender("dpop", measure_dpop, POSTD_DPOP), Contender("bearer", measure_bearer, POSTD_BEARER)],
        [("dpop", "bearer")],
    ),
    "forward": Row(
        [
            Contender("plain", measure_get20, PLAIN),
            Contender("auth_basic", measure_auth_basic, AUTH_BASIC),
            Contender("basic", partial(measure_asking, basic_fields), ASKING),
            Contender("digest", partial(measure_asking, digest_fields), ASKING),
            Contender("session", partial(measure_asking, session_fields), ASKING),
            Contender("bearer", measure_asking_bearer, ASKING),
        ],
        [
            *((scheme, "plain") for scheme in ("auth_basic", "basic", "digest", "session", "bearer")),
            *((scheme, "auth_basic") for scheme in ("basic", "digest", "session", "bearer")),
        ],
    ),
    "signin-bounds": Row(
        [
            Contender("signin", measure_signin, POSTD_WITH_USERS),
            Contender("argon2", measure_hash, POSTD_WITH_USERS),  # its hash alone is measured: it is not started
            Contender("no logins", measure_without_signins, POSTD),
        ],
        [("signin", "argon2"), ("signin", "no logins")],
    ),
    "stock": side_by_side(
        measure_stock,
        stock_site("protect"),
        stock_site("file"),
        stock_site("wrapper"),
        ratios=[("protect", "wrapper"), ("file", "wrapper")],
    ),
    "workers": side_by_side(measure_both, TWO_WORKERS, ONE_WORKER, ratios=[("two", "one")]),
    "cpu": Row(
        [
            Contender("sqlite 1", measure_cpu, ON_SQLITE),
            Contender("sqlite 2", measure_cpu, with_workers(ON_SQLITE, 2)),
            Contender("redis 1", measure_cpu_on_redis, ON_REDIS),
            Contender("redis 2", measure_cpu_on_redis, with_workers(ON_REDIS, 2)),
        ],
        [("sqlite 2", "sqlite 1"), ("redis 2", "redis 1")],
        measurements=3,
    ),
    "store": Row(
        [
            Contender("sqlite", measure_both, ON_SQLITE),
            Contender("redis", measure_on_redis, ON_REDIS),
        ],
        [("redis", "sqlite")],
    ),
}
