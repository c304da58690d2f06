"""The fork server: it has imported what `twistd postd` and `postd` import, and forks for each of them that is started.

Its only client is `tests.integration.forking`. A process that it makes has its own id, arguments, environment, folder
and descriptors, runs what the script of that name runs, and ends as an interpreter ends; only nine tenths of its
imports are behind it. A reactor cannot be shared over a fork and is installed after it, and so is imported what imports
the reactor: Klein, and our modules above it.
"""

import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

ENTRIES = {"twistd": "twisted.scripts.twistd:run", "postd": "postd.cli.main:main"}
"""The function that each script calls."""

LIBRARIES = """
twisted.scripts.twistd twisted.internet.epollreactor twisted.internet.ssl twisted.trial.itrial
twisted.web.guard twisted.web.http twisted.web.static twisted.web.template twisted.web.util
hiredis joserfc.jws treq treq.client werkzeug.routing werkzeug.test
postd.daemon.tap postd.store.sqlite.store
postd.auth.bearer postd.auth.introspection postd.auth.jwks postd.auth.session
postd.cli.main postd.cli.check postd.cli.transfer postd.cli.posts postd.cli.session postd.cli.user
"""

_MESSAGE_MAX_BYTES = 1 << 20


def main() -> None:
    """Serve the client at the other end of standard input until it disconnects; in a forked child, run its script."""
    for name in LIBRARIES.split():
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules
    gc.freeze()  # or each process would go through all of this when it ends, for nothing
    script = serve(socket.socket(fileno=os.dup(0)))
    if script:
        module, _, function = ENTRIES[script].partition(":")
        sys.exit(getattr(import_module(module), function)())


def serve(control: socket.socket) -> str | None:
    """Fork at each request; return the name of the script in the child, and None at the end."""
    answering: dict[int, int] = {}  # by process id, the descriptor that receives the exit status

    def reap(*_: object) -> None:
        while answering:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _tell(answering[pid], os.waitstatus_to_exitcode(status))
            os.close(answering.pop(pid))

    signal.signal(signal.SIGCHLD, reap)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_MAX_BYTES, 4)
        if not message:
            return None
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            control.detach()  # its number is another descriptor's soon
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            return _become(json.loads(message), descriptors[:3])
        *streams, answering[pid] = descriptors
        _tell(answering[pid], pid)
        for descriptor in streams:
            os.close(descriptor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _tell(descriptor: int, number: int) -> None:
    with suppress(OSError):  # the client has gone
        os.write(descriptor, b"%d" % number)


def _become(wanted: dict[str, Any], streams: list[int]) -> str:
    """Set up this process as requested; return the name of its script."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if wanted["has_group"]:
        os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    sys.argv = wanted["command"]
    folder, script = os.path.split(sys.argv[0])
    sys.path.insert(0, folder)
    return script


if __name__ == "__main__":
    main()
