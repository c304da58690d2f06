"""Requests for what a `Protection` protects, before it is started and after it was stopped."""

from pathlib import Path

import treq
from pytest_twisted import ensureDeferred
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent
from twisted.web.http_headers import Headers
from twisted.web.server import Site

from postd.protect import Protection, issuer
from tests.client.server import REACTOR
from tests.issuer import Issuer, Key
from tests.protect.test_comparison import Open
from tests.web.clients import PASSWORD, account


@ensureDeferred
async def test_tokens_are_503_and_have_no_keys_fetched(tmp_path: Path) -> None:
    """Although they need no store."""
    (tmp_path / "users").write_text(account("alice"))
    with Issuer("us", Key.make("ES256")) as idp:
        trusted = issuer(idp.issuer, audience="us")
        protection = Protection(REACTOR, users=tmp_path / "users", issuers=[trusted])
        port = REACTOR.listenTCP(0, Site(protection.protect(Open(), "bearer", "basic")), interface="127.0.0.1")
        url = f"http://127.0.0.1:{port.getHost().port}/"

        async def ask() -> tuple[int, list[str] | None]:
            headers = Headers({"Authorization": [f"Bearer {idp.token()}"]})
            answer = await treq.get(url, headers=headers, persistent=False)
            await answer.content()
            return answer.code, answer.headers.getRawHeaders("Retry-After")

        with capturedLogs() as events:
            assert await ask() == (503, ["1"])
        assert "start() has not been called: requests with credentials get 503" in map(formatEvent, events)
        assert idp.asked == []
        async with protection:
            assert await ask() == (200, None)
        assert await ask() == (503, ["1"])
        assert (await treq.get(url, persistent=False)).code == 401
        await port.stopListening()
        await deferToThread(idp.stop)


@ensureDeferred
async def test_form_is_503_before_the_start_which_is_logged(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(account("alice"))
    protection = Protection(REACTOR, users=tmp_path / "users")
    port = REACTOR.listenTCP(0, Site(protection.pages()), interface="127.0.0.1")
    url = f"http://127.0.0.1:{port.getHost().port}/login"
    with capturedLogs() as events:
        answer = await treq.post(url, data={"username": "alice", "password": PASSWORD}, persistent=False)
    assert answer.code == 503
    assert "start() has not been called: requests with credentials get 503" in map(formatEvent, events)
    await answer.content()
    await port.stopListening()
