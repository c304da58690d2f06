"""A process that writes to a store: `python -m tests.store.sqlite.writing PATH NAME MANY PAUSE`.

It prints `open`, writes from the first line of its standard input until the second one, and prints the results in JSON.
`MANY` writes run at any time, each `PAUSE` seconds after the one before; `NAME` is in their texts. With `hold` in the
place of `MANY` it prints `holds` in the middle of a write, and stays there.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater, react
from twisted.internet.threads import deferToThread

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
    is_enough: Callable[[], bool], store: SqliteStore, name: str, many: int, pause: Callable[[], Deferred[None]]
) -> dict[str, Any]:
    """Write; return the texts that were acknowledged, when they were asked for, the longest wait, and the errors."""
    acknowledged: list[tuple[str, float]] = []
    waits_s = [0.0]
    errors: list[str] = []
    numbers = itertools.count()

    async def keep_writing() -> None:
        while not is_enough():
            text, asked, began = f"{name} {next(numbers)}", time.time(), time.monotonic()
            try:
                await store.add_post(text)
            except StoreUnavailableError as error:
                errors.append(error.why)
            else:
                waits_s.append(time.monotonic() - began)
                acknowledged.append((text, asked))
            await pause()

    await gatherResults([Deferred.fromCoroutine(keep_writing()) for _ in range(many)])
    return {"acknowledged": acknowledged, "longest_s": max(waits_s), "errors": sorted(set(errors))}


async def main(reactor: IReactor, path: str, name: str, many: str, pause_s: str) -> None:
    store = SqliteStore(path, reactor=reactor)
    with suppress(StoreUnavailableError):  # locked by another process that opens it; `start` tries again
        store.prepare()
    await store.start()
    say("open")
    if many == "hold":
        await hold(store)
    await deferToThread(sys.stdin.readline)
    enough = deferToThread(sys.stdin.readline)
    pause = partial(deferLater, reactor, float(pause_s))
    result = await write_until(lambda: enough.called, store, name, int(many), pause)
    await store.stop()
    say(json.dumps(result))


if __name__ == "__main__":
    react(lambda reactor, *words: Deferred.fromCoroutine(main(cast(IReactor, reactor), *words)), sys.argv[1:])
