"""`postd dpop-key`: make a key for DPoP."""

import os
from contextlib import suppress
from pathlib import Path

import click

from postd.errors import ConfigError
from postd.protocol.dpop_proof import DPoPKey

_MODE = 0o600
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@click.command("dpop-key")
@click.argument("file")
def make_dpop_key(*, file: str) -> None:
    """Create a DPoP key and print its thumbprint.

    FILE is created with mode 0600, and holds an EC P-256 key in PEM; an existing file is not overwritten. An access
    token that is bound to the key has its thumbprint (RFC 7638) in the claim cnf.jkt.
    """
    key = DPoPKey.generate()
    try:
        _write_new(file, key.encode_pem())
    except FileExistsError:
        raise ConfigError(file, "exists already, and is not overwritten") from None
    except (OSError, ValueError) as error:
        raise ConfigError(file, f"cannot be written: {getattr(error, 'strerror', error)}") from None
    click.echo(key.thumbprint)


def _write_new(file: str, content: bytes) -> None:
    """Write a file that must not exist; remove it again if it could not be written."""
    descriptor = os.open(file, _FLAGS, _MODE)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, _MODE)  # independent of the umask
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(file).unlink()
        raise
