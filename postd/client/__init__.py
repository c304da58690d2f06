"""An HTTP client for Twisted programs, based on treq. It reads no settings file.

`PostClient` is the client of the post API. `AuthClient` is treq's client with credentials (`Basic`, `Digest`,
`FormLogin`, `BearerFile`, `ClientCredentials` or `DPoP`), for any server with these schemes. An argument that cannot be
used raises a `ValueError` (`ConfigError` or `InvalidTextError`), a request that fails a `ClientError`.
"""

from postd.client.auth import Auth, AuthClient, Basic, Digest, FormLogin
from postd.client.dpop import DPoP, load_dpop_key
from postd.client.errors import ClientError, NoAnswerError, ProblemError, SignInError, UnusableAnswerError
from postd.client.posts import Post, PostClient, SeenPost
from postd.client.tokens import BearerFile, ClientCredentials
from postd.client.watching import Change, Reset, Watch
from postd.errors import ConfigError, InvalidTextError
from postd.model import ChangeKind
from postd.protocol.dpop_proof import DPoPKey

__all__ = [
    "Auth",
    "AuthClient",
    "Basic",
    "BearerFile",
    "Change",
    "ChangeKind",
    "ClientCredentials",
    "ClientError",
    "ConfigError",
    "DPoP",
    "DPoPKey",
    "Digest",
    "FormLogin",
    "InvalidTextError",
    "NoAnswerError",
    "Post",
    "PostClient",
    "ProblemError",
    "Reset",
    "SeenPost",
    "SignInError",
    "UnusableAnswerError",
    "Watch",
    "load_dpop_key",
]
