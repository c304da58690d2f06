"""The credential factories of the schemes for the stock `twisted.web.guard.HTTPAuthSessionWrapper`."""

from collections.abc import Mapping

from twisted.cred.credentials import ICredentials
from twisted.web.iweb import ICredentialFactory
from zope.interface import implementer

from postd.auth.credentials import Refused
from postd.errors import StoreUnavailableError
from postd.http.errors import Problem
from postd.http.peer import PeerResolver
from postd.http.stock_request import adapt
from postd.protect.guard import CredentialFactory
from postd.protocol.challenge import decode_challenges


@implementer(ICredentialFactory)
class StockCredentialFactory:
    """A `CredentialFactory` with the interface of Twisted's factories.

    The wrapper quotes each parameter of a challenge, has one challenge per scheme and no `stale`, and answers 401 where
    the guard answers 400; docs/how-to/protect.md lists all differences.
    """

    def __init__(self, factory: CredentialFactory, clients: PeerResolver) -> None:
        self._factory = factory
        self._clients = clients
        self.scheme = factory.scheme

    def getChallenge(self, request: object) -> Mapping[str, str]:
        """Return the parameters of the scheme's first challenge.

        Raises:
            StoreUnavailableError: Digest's key has not been read from the store so far.
        """
        challenging = self._factory.challenges(None, adapt(request))
        try:
            challenging.send(None)
        except StopIteration as stop:
            return decode_challenges(stop.value)[0].parameters
        challenging.close()
        raise StoreUnavailableError("the key of nonces has not been read from the store yet")

    def decode(self, response: bytes, request: object) -> ICredentials:
        """Return the credentials in a field `Authorization`.

        Raises:
            Refused: they are malformed, for another request, or a browser has sent them with a cross-site write.
        """
        adapted = adapt(request)
        try:
            if self._factory.ambient:
                self._clients.refuse_cross_site_write(adapted)
            return self._factory.decode(response, adapted)
        except Problem as problem:
            raise Refused(problem.detail) from None
