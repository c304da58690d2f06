"""Event streams as one writes them with FastAPI: a queue for each listener. Posts are kept in memory."""

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel

app = FastAPI()
listeners: set[asyncio.Queue[str]] = set()
posts: list[str] = []


class Post(BaseModel):
    """The body of a request."""

    post: str


async def stream() -> AsyncIterator[str]:
    queue: asyncio.Queue[str] = asyncio.Queue()
    listeners.add(queue)
    try:
        yield "retry: 1000\n\n"
        while True:
            yield await queue.get()
    finally:
        listeners.discard(queue)


@app.get("/post/events")
async def listen() -> StreamingResponse:
    return StreamingResponse(stream(), media_type="text/event-stream")


@app.post("/post")
async def add(post: Post) -> PlainTextResponse:
    posts.append(post.post)
    number = len(posts)
    event = f"event: added\nid: {number}\ndata: {json.dumps({'id': number, 'post': post.post})}\n\n"
    for queue in listeners:
        queue.put_nowait(event)
    return PlainTextResponse("Success a Post!\n", status_code=201)
