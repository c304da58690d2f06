"""BlackSheep with a group commit, which no framework has: one thread commits the writes of all waiting requests."""

import asyncio
import threading
from dataclasses import dataclass
from queue import SimpleQueue

from blacksheep import Request, Response
from blacksheep.exceptions import NotFound
from blacksheep.server.responses import text as answer_text

from bench.peers.blacksheep_posts import decode_post, list_page, make_app
from bench.peers.posts_file import ADD, ADDED, REPLACE, REPLACED, connection


@dataclass(frozen=True)
class Write:
    statement: str
    values: tuple[str | int, ...]
    written: asyncio.Future[int]
    """The number of rows added or changed."""


_waiting: SimpleQueue[Write] = SimpleQueue()


def _write_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        batch = [_waiting.get()]
        while not _waiting.empty():
            batch.append(_waiting.get())
        to = connection()
        to.execute("BEGIN IMMEDIATE")
        counts = [to.execute(write.statement, write.values).rowcount for write in batch]
        to.execute("COMMIT")
        loop.call_soon_threadsafe(_tell, batch, counts)


def _tell(batch: list[Write], counts: list[int]) -> None:
    for write, count in zip(batch, counts, strict=True):
        if not write.written.done():
            write.written.set_result(count)


async def _write(statement: str, *values: str | int) -> int:
    written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _waiting.put(Write(statement, values, written))
    return await written


async def add_post(request: Request) -> Response:
    await _write(ADD, await decode_post(request))
    return answer_text(ADDED, 201)


async def replace_post(request: Request, post_id: int) -> Response:
    if not await _write(REPLACE, await decode_post(request), post_id):
        raise NotFound
    return answer_text(REPLACED)


async def start_writer(_app: object) -> None:
    threading.Thread(target=_write_for_ever, args=[asyncio.get_running_loop()], daemon=True).start()


app = make_app(add_post=add_post, replace_post=replace_post)
paged_app = make_app(list_page, add_post, replace_post)
for _made in (app, paged_app):
    _made.on_start(start_writer)
