"""`postd`: the table of commands, and the exit status and message of a failure."""

import io
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

import postd.linux  # noqa: F401 - refuses other systems
from postd.errors import PostdError, printable

_INTERRUPTED = 130
"""The exit status after Ctrl-C, as a shell reports it (128 + SIGINT)."""


_COMMANDS = {
    "serve": "postd.cli.serve:serve",
    "user": "postd.cli.user:user",
    "account": "postd.cli.account:account",
    "session": "postd.cli.session:session",
    "token": "postd.cli.token:token",
    "passkey": "postd.cli.passkey:passkey",
    "dpop-key": "postd.cli.dpop_key:make_dpop_key",
    "check": "postd.cli.check:check",
    "export": "postd.cli.transfer:export_posts",
    "import": "postd.cli.transfer:import_posts",
    "copy": "postd.cli.transfer:copy_posts",
    "backup": "postd.cli.transfer:backup_posts",
    "list": "postd.cli.posts:list_posts",
    "add": "postd.cli.posts:add_post",
    "update": "postd.cli.posts:update_post",
    "delete": "postd.cli.posts:delete_post",
    "watch": "postd.cli.posts:watch_posts",
}
"""The module of each command, imported on use: some take half a second to import."""


class _Commands(click.Group):
    """A command group that reports a failure in one line on stderr; click writes up to four.

    The exit status is 2 for wrong usage, 130 after Ctrl-C and 1 for any other failure.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        module, _, name = _COMMANDS.get(cmd_name, "").partition(":")
        command: click.Command | None = getattr(import_module(module), name) if module else None
        return command

    def main(self, *args: Any, **options: Any) -> NoReturn:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A name may have characters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            # click handles EPIPE: a closed pipe is not an error.
            status = super().main(*args, **{**options, "standalone_mode": False})
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "postd"
            _fail(f"{error.format_message()} ({command} --help shows the usage)", error.exit_code)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except PostdError as error:
            _fail(str(error))
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", _INTERRUPTED)
        except OSError as error:
            # Else the flush of stdout at exit would fail again, with two more lines.
            sys.stdout = io.StringIO()
            _fail(str(error))
        sys.exit(status)


def _fail(why: str, status: int = 1) -> NoReturn:
    click.echo(f"postd: {printable(' '.join(why.split()))}", err=True)
    sys.exit(status)


@click.group(name="postd", cls=_Commands, no_args_is_help=False)
@click.version_option(package_name="postd", prog_name="postd", message="%(prog)s %(version)s")
def main() -> None:
    """Serve short text posts, administer a server, or use its post API.

    `postd serve` is the server in the foreground; as a daemon it is `twistd postd`.
    """
