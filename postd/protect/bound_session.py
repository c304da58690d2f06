"""The requests of browsers that bind a session to their device: `login/bind` and `login/bind/refresh`.

A browser answers by itself what these responses ask, and ends the binding at most errors: 401, 404 and 429 would sign a
user out. So they are 200, 403 (asks for a proof of a challenge) or 503 (later) only, and no other check stands before
them: what proves a request is its key (reference: Sessions).
"""

from collections.abc import Mapping
from http import HTTPStatus

from postd.auth.bound_session import SessionBinding
from postd.auth.credentials import Refused, log_refusal
from postd.auth.identity import AuthenticationResult
from postd.auth.session import Sessions
from postd.http.errors import Problem, make_problem_document
from postd.http.interface import Request
from postd.http.navigation import is_navigation
from postd.http.peer import PeerResolver
from postd.http.responses import JSON, Response, make_response
from postd.protect.cookie import below, decode_session_cookies
from postd.protect.pages import Page
from postd.protect.sending_back import addresses_of, forget_addresses, send_back
from postd.protocol.bound_session import (
    ATTRIBUTES,
    CHALLENGE,
    COOKIE,
    REGISTRATION,
    RESPONSE,
    SESSION_ID,
    decode_device_proof,
    decode_item,
    encode_challenge,
    encode_end,
    encode_instructions,
    encode_registration,
)
from postd.protocol.dpop import ProofError
from postd.protocol.session import Session, hash_session_id

SCHEME = "bind"
"""The scheme of these requests in log and metrics."""

_NO_STORE = {b"Cache-Control": b"no-store"}


class BindingViews:
    """The two requests, and what other responses tell browsers.

    Args:
        sessions: the sessions.
        binding: checks proofs.
        clients: resolves client and origin of requests.
        sign_in: the path of the sign-in form.
    """

    def __init__(self, sessions: Sessions, binding: SessionBinding, clients: PeerResolver, sign_in: str) -> None:
        self._sessions, self._binding, self._clients = sessions, binding, clients
        self._path = below(sign_in, "login/bind")
        self._refresh_path = f"{self._path}/refresh"

    def pages(self) -> Mapping[str, Page]:
        """Return the pages by their names below the path of the form."""
        return {
            "login/bind": Page({b"POST": self.register}, self._clients),
            "login/bind/refresh": Page({b"POST": self.refresh}, self._clients),
        }

    async def offer(self, request: Request, session_id: str) -> None:
        """Ask a browser to bind a new session, if it uses TLS."""
        if self._clients.is_secure(request):
            id_hash = hash_session_id(session_id)
            assert id_hash is not None
            challenge = await self._binding.make_challenge(id_hash)
            request.add_header(REGISTRATION, encode_registration(self._path, challenge))

    def send_back(self, request: Request, challenge: bytes) -> Response | None:
        """Return the page that sends a browser back to the same address; None if it was sent there already.

        The gateway redirects to the form, which sends it back: not all proxies pass the page on.
        """
        return None if request.is_described else send_back(request, challenge)

    def send_back_to_form(self, request: Request, challenge: bytes) -> Response | None:
        """Return the page that sends a browser back to the form, which a proof leads on from; None to show the form.

        A browser that was sent back to any address a moment ago has no proof.
        """
        return send_back(request, challenge) if is_navigation(request) and not addresses_of(request) else None

    def forget_proof(self, request: Request) -> None:
        """Make a browser forget its proof, if it has one, after a sign-out."""
        if any(COOKIE.encode("ascii") in line for line in request.fields.get(b"Cookie", ())):
            request.add_header(b"Set-Cookie", f"{COOKIE}=; {ATTRIBUTES}; Max-Age=0".encode("ascii"))

    async def register(self, request: Request) -> Response:
        """Store the key of the session in the cookie, until the session is used with a proof of it."""
        credentials = decode_session_cookies(request)
        found = [] if credentials is None else await self._sessions.find_all(credentials.id_hashes)
        if not found:
            return _end("")
        id_hash, session = max(found, key=lambda one: one[1].created)
        text = decode_item(request.fields.get(RESPONSE))
        if not text:
            return await self._ask(request, id_hash)
        try:
            proof = decode_device_proof(text, registers=True)
            for one, its_session in found:
                if await self._binding.is_for(one, proof.challenge):
                    id_hash, session = one, its_session
            await self._binding.register(id_hash, session, proof)
        except ProofError as error:
            return await self._ask(request, id_hash, session, error)
        return await self._accept(request, id_hash, session)

    async def refresh(self, request: Request) -> Response:
        """Renew the proof of a session, which is named by its identifier; its key is enough."""
        session_id = decode_item(request.fields.get(SESSION_ID))
        id_hash = await self._binding.find_id_hash(session_id)
        session = None if id_hash is None else await self._sessions.find(id_hash)
        if id_hash is None or session is None or not session.device_key:
            return _end(session_id.decode("ascii"))
        text = decode_item(request.fields.get(RESPONSE))
        named = session_id.decode("ascii")
        if not text:
            return await self._ask(request, id_hash, named=named)
        try:
            await self._binding.check(id_hash, session, decode_device_proof(text, registers=False))
        except ProofError as error:
            return await self._ask(request, id_hash, session, error, named=named)
        return await self._accept(request, id_hash, session)

    async def _accept(self, request: Request, id_hash: bytes, session: Session) -> Response:
        """Return the response with the next proof, the instructions, and the next challenge."""
        request.authentication = AuthenticationResult(SCHEME, "accepted", session.username)
        proof, session_id = await self._binding.make_proof_cookie(id_hash), await self._binding.session_id(id_hash)
        challenge = await self._binding.make_challenge(id_hash, in_advance=True)
        cookie = f"{COOKIE}={proof}; {ATTRIBUTES}; Max-Age={int(self._binding.times.proof_s)}"
        request.add_header(b"Set-Cookie", cookie.encode("ascii"))
        forget_addresses(request)
        body = encode_instructions(session_id, self._clients.origin(request), self._refresh_path)
        headers = {**_NO_STORE, CHALLENGE: encode_challenge(challenge, session_id)}
        return make_response(HTTPStatus.OK, JSON, body, headers)

    async def _ask(
        self,
        request: Request,
        id_hash: bytes,
        session: Session | None = None,
        error: ProofError | None = None,
        *,
        named: str = "",
    ) -> Response:
        """Return the response that asks for the proof of a new challenge; `error` is why a proof was not accepted."""
        request.authentication = AuthenticationResult(SCHEME, "stale" if error is None else "refused")
        if error is not None and session is not None:
            refusal = Refused(f"{error}; a new challenge is sent", session.username, known=True)
            log_refusal(SCHEME, refusal, self._clients.address(request))
        challenge = encode_challenge(await self._binding.make_challenge(id_hash), named)
        problem = Problem(403, "A proof of the new challenge is needed.", headers={**_NO_STORE, CHALLENGE: challenge})
        return make_problem_document(problem)


def _end(session_id: str) -> Response:
    """Return the response that ends the binding of a session, which has ended or never was."""
    return make_response(HTTPStatus.OK, JSON, encode_end(session_id), _NO_STORE)
