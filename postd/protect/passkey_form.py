"""The button "Sign in with a passkey", and whether passkeys work at the address of a request."""

from html import escape
from string import Template

from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.pages.template import read_file
from postd.http.peer import PeerResolver
from postd.protocol.webauthn import RelyingParty, find_rp_id, is_localhost
from postd.store.interface import LoginStore

SCRIPT = read_file(__package__, "passkey.js")
"""The script of pages with forms for passkeys."""

_FORM = Template(read_file(__package__, "passkey.html"))
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class PasskeyForm:
    """Renders the button, a form of its own.

    Args:
        clients: resolves the origin of requests.
        realm: the name of the site, which authenticators show.
        action: the path that the form is sent to.
        store: keeps passkeys.
    """

    def __init__(self, clients: PeerResolver, realm: str, action: str, store: LoginStore) -> None:
        self._clients = clients
        self._realm = realm
        self._action = action
        self._store = store

    def find_party(self, request: Request) -> RelyingParty | None:
        """Return the relying party; None if passkeys do not work at the address of the request.

        Without a `public_url` they work at localhost, on the port of the connection alone: `Host` is what the client
        says, and a page on another port has the same RP ID.
        """
        origin = self._clients.origin(request)
        rp_id = None if origin is None else find_rp_id(origin)
        if origin is None or rp_id is None:
            return None
        if not self._clients.public_url:
            scheme, _, authority = origin.partition("://")
            port = authority.partition(":")[2] or _DEFAULT_PORTS[scheme]
            if not is_localhost(rp_id) or port != str(getattr(request.getHost(), "port", "")):
                return None
        return RelyingParty(origin, rp_id, self._realm)

    def require_party(self, request: Request) -> RelyingParty:
        """Return the relying party.

        Raises:
            Problem: 400, passkeys do not work at the address of the request.
        """
        party = self.find_party(request)
        if party is None:
            raise Problem(400, "Passkeys do not work at this address: they need https and a host name, or localhost.")
        return party

    def make(self, request: Request, hidden: str) -> str:
        """Return the button as HTML, with hidden fields for the form; empty where passkeys do not work."""
        party = self.find_party(request)
        if party is None:
            return ""
        return _FORM.substitute(action=escape(self._action), origin=escape(party.origin), hidden=hidden)

    async def make_for(self, account: str, request: Request, hidden: str) -> str:
        """Return the button for an account, as `make`; empty if the account has no passkey."""
        return self.make(request, hidden) if await self._store.list_passkeys(account) else ""
