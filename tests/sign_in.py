"""A browser that signs in at a `postd.testing.Provider`."""

import re
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from postd.client import AuthClient
from postd.testing import Provider

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def parameters(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


class Browser:
    """A client with cookies by path, which follows no redirects."""

    def __init__(self, origin: str, client: AuthClient, begin: str) -> None:
        self.origin = origin
        self._client = client
        self._begin = begin
        self.cookies: dict[tuple[str, str], str] = {}

    async def get(self, target: str, method: str = "GET", **keywords: Any) -> Any:
        """Request a path of the server, or a URL that a redirect has given; return the response with its text."""
        url = target if "://" in target else self.origin + target
        path = urlsplit(url).path
        sent = "; ".join(
            f"{name}={value}"
            for (name, at), value in self.cookies.items()
            if (path + "/").startswith(at.rstrip("/") + "/")
        )
        headers = {**HTML, **({"Cookie": sent} if sent else {}), **keywords.pop("headers", {})}
        response: Any = await self._client.request(method, url, headers=headers, allow_redirects=False, **keywords)
        response.text = (await response.content()).decode()
        for line in response.headers.getRawHeaders("Set-Cookie", []):
            name, value = line.partition(";")[0].split("=", 1)
            key = name, re.findall("; Path=([^;]*)", line)[0]
            self.cookies.pop(key, None)
            if value:
                self.cookies[key] = value
        response.location = response.headers.getRawHeaders("Location", [""])[0]
        return response

    async def begin(self, query: str = "") -> str:
        """Begin a sign-in; return the URL of the provider."""
        response = await self.get(f"{self._begin}{query}")
        assert response.code == 302, response.text
        return cast(str, response.location)

    async def sign_in(self, idp: Provider, query: str = "") -> Any:
        """Sign in at the provider; return the response of the callback."""
        return await self.get(idp.authorize(await self.begin(query)))
