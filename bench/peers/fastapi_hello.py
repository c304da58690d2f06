"""FastAPI's first example, for what an application costs at the least: its start, and its memory."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/post/1")
async def hello() -> dict[str, str]:
    return {"message": "Hello World"}
