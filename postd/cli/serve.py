"""`postd serve`: `twistd -n --pidfile= postd` in one word."""

import sys
from collections.abc import Sequence

import click

from postd.daemon.tap import Options


class _Options(Options):
    """The options of the server, in the words of this command."""

    program = "postd serve"
    synopsis = f"Usage: {program} [options]"


class _Serve(click.Command):
    """A command whose options are those of `twistd postd`, which decodes them."""

    def parse_args(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        ctx.args = [*args]
        return []

    def get_help(self, ctx: click.Context) -> str:
        return f"{_Options.synopsis}\n{_Options().getUsage(width=ctx.terminal_width)}"

    def invoke(self, ctx: click.Context) -> object:
        _Options().parseOptions(ctx.args)  # --help, --version and wrong options end here
        from twisted.scripts.twistd import run  # noqa: PLC0415 - it takes the time that wrong options save

        sys.argv[1:] = ["--nodaemon", "--pidfile=", "postd", *ctx.args]
        return run()


serve = _Serve("serve", short_help="Serve posts in the foreground.")
