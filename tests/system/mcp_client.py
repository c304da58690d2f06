"""An MCP client (PyPI mcp), in a process of its own: it runs anyio.

Its argument is the URL of an MCP server, its first line of input the registration of a client at the issuer, as
JSON. It writes the URL at which a person has to sign in, reads the parameters of the redirection back, as JSON, and
writes what the tools of the server return.
"""

import asyncio
import json
import sys
from typing import Any

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken


class Storage:
    """Has a client that is registered, and no token until one is granted."""

    def __init__(self, client: OAuthClientInformationFull) -> None:
        self._client = client
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def read() -> Any:
    return json.loads(sys.stdin.readline())


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def show(url: str) -> None:
    write(url)


async def read_code() -> AuthorizationCodeResult:
    return AuthorizationCodeResult(**read())


async def main(url: str) -> None:
    client = OAuthClientInformationFull(**read())
    metadata = OAuthClientMetadata(redirect_uris=client.redirect_uris)
    auth = OAuthClientProvider(url, metadata, Storage(client), show, read_code)
    async with (
        httpx2.AsyncClient(auth=auth) as http,
        streamable_http_client(url, http_client=http) as (receiving, sending),
        ClientSession(receiving, sending) as session,
    ):
        await session.initialize()
        for tool in (await session.list_tools()).tools:
            result = await session.call_tool(tool.name, {})
            write(f"{tool.name}: {result.content[0].model_dump()['text']}")


asyncio.run(main(sys.argv[1]))
