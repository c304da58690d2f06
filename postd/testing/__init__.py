"""Servers, issuers, providers and credentials for the tests of applications that use `postd.protect` or `postd.client`.

Rules of this package:

- It runs under `trial` and under pytest-twisted, and imports neither: servers and issuers are asynchronous context
  managers, and have `start` and `stop`, so that `stop` can be a cleanup of a `TestCase`.
- Nothing outlives `stop`: no port, connection, thread or timer, which `trial` would report.
- It is for tests alone: passwords are hashed cheaply, and keys are new in each run.
- `ConfigError` and `SignInError` are the errors of `postd.client`.

docs/how-to/testing.md has complete test files.
"""

from postd.client import ConfigError, SignInError
from postd.testing.credentials import basic, bearer, write_users
from postd.testing.issuer import Issuer
from postd.testing.posts import PostServer
from postd.testing.provider import Provider
from postd.testing.serving import Server

__all__ = ["ConfigError", "Issuer", "PostServer", "Provider", "Server", "SignInError", "basic", "bearer", "write_users"]
