"""A process that writes to a store: `python -m tests.store.sqlite.writing PATH NAME MANY PAUSE`.

It prints `open`, reads the begin and the end of the writes (seconds since the epoch), and prints the results in JSON.
`MANY` writes run at any time, each `PAUSE` seconds after the one before; `NAME` is in their texts. With `hold` in the
place of `MANY` it prints `holds` in the middle of a write, and stays there.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater, react

from postd.errors import StoreUnavailableError
from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


async def hold(store: SqliteStore) -> None:
    def write(_: object) -> None:
        say("holds")
        time.sleep(600)

    await store.database.write(write)


async def write_until(
    store: SqliteStore, name: str, many: int, end: float, pause: Callable[[], Deferred[None]]
) -> dict[str, Any]:
    """Write until `end`; return which texts were acknowledged and when, the longest wait, and how often that failed."""
    acknowledged: list[tuple[str, float]] = []
    waits_s = [0.0]
    errors: list[str] = []
    numbers = itertools.count()

    async def keep_writing() -> None:
        while time.time() < end:
            text, asked = f"{name} {next(numbers)}", time.monotonic()
            try:
                await store.add_post(text)
            except StoreUnavailableError as error:
                errors.append(error.why)
            else:
                waits_s.append(time.monotonic() - asked)
                acknowledged.append((text, time.time()))
            await pause()

    await gatherResults([Deferred.fromCoroutine(keep_writing()) for _ in range(many)])
    return {"acknowledged": acknowledged, "longest_s": max(waits_s), "errors": sorted(set(errors))}


async def main(reactor: IReactor, path: str, name: str, many: str, pause_s: str) -> None:
    store = SqliteStore(path, reactor=reactor)
    store.prepare()
    await store.start()
    say("open")
    if many == "hold":
        await hold(store)
    begin, end = map(float, sys.stdin.readline().split())
    await deferLater(reactor, max(0, begin - time.time()))
    result = await write_until(store, name, int(many), end, partial(deferLater, reactor, float(pause_s)))
    await store.stop()
    say(json.dumps(result))


if __name__ == "__main__":
    react(lambda reactor, *words: Deferred.fromCoroutine(main(cast(IReactor, reactor), *words)), sys.argv[1:])
