"""The first example of FastAPI's documentation, for the least start time and memory of an application."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/post/1")
async def hello() -> dict[str, str]:
    return {"message": "Hello World"}
