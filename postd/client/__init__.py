"""A client for postd on treq, for programs that run Twisted; needs no server, and nothing of the server's settings.

`PostClient` has the posts of a server. `AuthClient` is treq's client with credentials: `Basic`, `Digest`, `FormLogin`,
`BearerFile` or `ClientCredentials`, for any server that speaks these schemes.
"""

from postd.client.auth import Auth, AuthClient, Basic, BearerFile, ClientCredentials, Digest, FormLogin
from postd.client.errors import ClientError, NoAnswerError, ProblemError, SignInError, UnusableAnswerError
from postd.client.posts import PostClient, SeenPost
from postd.client.watching import Reset, Watch
from postd.model import Change, ChangeKind, Post

__all__ = [
    "Auth",
    "AuthClient",
    "Basic",
    "BearerFile",
    "Change",
    "ChangeKind",
    "ClientCredentials",
    "ClientError",
    "Digest",
    "FormLogin",
    "NoAnswerError",
    "Post",
    "PostClient",
    "ProblemError",
    "Reset",
    "SeenPost",
    "SignInError",
    "UnusableAnswerError",
    "Watch",
]
