"""Count the modules of postd that a request enters, and the moves between them: `python bench/moves.py`.

A server in this process answers each request several times, over a connection, with an SQLite file. A move is a call,
or a resumption of a coroutine, in another module of postd than the one before; a return is a move to a module that the
request has been in. The last column has all calls, those of Twisted and C functions included. The thread that commits
is not counted. `--walk "Digest GET"` prints the calls in postd of that request.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPResponse
from itertools import count, groupby
from pathlib import Path
from typing import Any

from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.internet.threads import blockingCallFromThread, deferToThread

import postd
from postd.protocol.challenge import decode_challenges
from postd.protocol.digest import answer_challenge, choose_challenge, encode_digest_response, h_a1
from postd.testing import PostServer, basic, write_users

PACKAGE = str(Path(postd.__file__).parent) + "/"
PAGES = [{"path": f"/{scheme}", "schemes": [scheme]} for scheme in ("basic", "digest")]
TRIALS = 20
"""How often each request is made; the one with the fewest calls counts: timers run in others."""

Ask = Callable[..., HTTPResponse]


class Trace(Struct):
    """The calls of a request: the number of all, and for those in postd the module and the function."""

    calls: int = 0
    places: list[tuple[str, str]] = []

    def note(self, frame: Any, event: str, _argument: object) -> None:
        if event in {"call", "c_call"}:
            self.calls += 1
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE) and "/testing/" not in file:
            self.places.append((file.removeprefix(PACKAGE), frame.f_code.co_name))


def make_requests(ask: Ask) -> Iterator[tuple[str, Callable[[], HTTPResponse]]]:
    """Yield each request with its name."""
    yield "GET /post", lambda: ask("GET", "/post")
    fields = {str(name): str(value) for name, value in basic("alice", "secret").items()}
    yield "Basic GET", lambda: ask("GET", "/basic", None, fields)
    lines = ask("GET", "/digest").headers.get_all("WWW-Authenticate", [])
    challenge = choose_challenge(decode_challenges(line.encode() for line in lines))
    assert challenge is not None
    ha1, counts = h_a1(challenge.algorithm, "alice", challenge.realm, "secret"), count(1)

    def send_digest() -> HTTPResponse:
        response = answer_challenge(
            challenge, "alice", ha1, method="GET", uri="/digest", count=next(counts), cnonce="abc"
        )
        return ask("GET", "/digest", None, {"Authorization": encode_digest_response(response, None).decode()})

    yield "Digest GET", send_digest
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    cookie = ask("POST", "/login", "username=alice&password=secret", form).headers["Set-Cookie"].partition(";")[0]
    yield "session GET /home", lambda: ask("GET", "/home", None, {"Cookie": cookie})
    yield "POST /post", lambda: ask("POST", "/post", '{"post": "Hello"}', {"Content-Type": "application/json"})


def measure(reactor: Any, port: int, walk: str) -> None:
    connection = HTTPConnection("127.0.0.1", port)

    def ask(method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None) -> HTTPResponse:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        response.read()
        return response

    print(f"{'':18}{'modules':>8}{'calls':>8}{'moves':>8}{'returns':>8}{'all calls':>11}")
    for name, send in make_requests(ask):
        traces = []
        for _ in range(TRIALS):
            traces.append(Trace(0, []))
            blockingCallFromThread(reactor, sys.setprofile, traces[-1].note)
            status = send().status
            blockingCallFromThread(reactor, sys.setprofile, None)
            assert status // 100 == 2, (name, status)
        trace = min(traces, key=lambda trace: trace.calls)
        entered = [module for module, _ in groupby(module for module, _ in trace.places)]
        modules, moves = len(set(entered)), len(entered) - 1
        print(f"{name:18}{modules:8}{len(trace.places):8}{moves:8}{moves - modules + 1:8}{trace.calls:11}")
        if name == walk:
            print(*(f"    {module}: {function}" for module, function in trace.places), sep="\n")


async def main(reactor: Any) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--walk", default="", metavar="NAME", help="print the calls in postd of this request")
    walk = parser.parse_args().walk
    with tempfile.TemporaryDirectory() as folder:
        users = write_users(Path(folder) / "users", {"alice": "secret"})
        settings: dict[str, Any] = {"users": users, "store": f"sqlite:{folder}/posts.sqlite", "page": PAGES}
        async with PostServer(reactor, on_port=True, **settings) as server:
            await deferToThread(measure, reactor, int(server.url.rpartition(":")[2]), walk)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
