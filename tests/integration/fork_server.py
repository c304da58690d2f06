"""The fork server: it has imported what `twistd postd` and `postd` import, and forks for each of them that is started.

Its only client is `tests.integration.forking`. A process that it makes has its own id, arguments, environment, folder
and descriptors, runs what the script of that name runs, and ends as an interpreter ends; only its imports are behind
it. A reactor cannot be shared over a fork: it is installed after it.

A `twistd` has a fork server of its own beside it, for its worker processes: made before the reactor, as well. They are
children of `twistd` as those are that it starts itself.
"""

import ctypes
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from twisted.internet.process import Process

ENTRIES = {
    "twistd": "twisted.scripts.twistd:run",
    "postd": "postd.cli.main:main",
    "postd.daemon.worker": "postd.daemon.worker:main",
}
"""What each script calls, and the module that workers run."""

LIBRARIES = """
twisted.scripts.twistd twisted.internet.epollreactor twisted.internet.ssl twisted.trial.itrial
twisted.web.guard twisted.web.http twisted.web.static twisted.web.template twisted.web.util
hiredis joserfc.jws treq treq.client werkzeug.routing werkzeug.test
postd.daemon.tap postd.daemon.service postd.store.sqlite.store
postd.protect.schemes.basic postd.protect.schemes.bearer postd.protect.schemes.digest postd.protect.schemes.form
encodings.idna
postd.cli.main postd.cli.check postd.cli.transfer postd.cli.posts postd.cli.session postd.cli.user
postd.daemon.worker
"""

_MESSAGE_MAX_BYTES = 1 << 20
_DESCRIPTORS_MAX = 200
_PR_SET_CHILD_SUBREAPER = 36
_WORKER = ("-P", "-m", "postd.daemon.worker")


def main() -> None:
    """Serve the client at the other end of standard input until it disconnects; in a forked child, run its script."""
    # Klein imports the reactor, which would install it, for `Klein.run`, which postd does not use.
    reactor = sys.modules["twisted.internet.reactor"] = ModuleType("reactor")
    for name in LIBRARIES.split():
        import_module(name)
    assert sys.modules.pop("twisted.internet.reactor") is reactor
    assert [name for name, module in sys.modules.items() if reactor in vars(module).values()] == ["klein._app"]
    gc.freeze()  # or each process would go through all of this when it ends, for nothing
    script = serve(socket.socket(fileno=os.dup(0)))
    if script:
        module, _, function = ENTRIES[script].partition(":")
        sys.exit(getattr(import_module(module), function)())


def serve(control: socket.socket) -> str | None:
    """Fork at each request; return the name of the script in the child, and None at the end."""
    answering: dict[int, int] = {}  # by process id, the descriptor that receives the exit status
    # A handler of SIGCHLD alone would not interrupt a call that is about to wait.
    woken, wake = os.pipe2(os.O_NONBLOCK)

    def reap() -> None:
        while answering:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            _tell(answering[pid], os.waitstatus_to_exitcode(status))
            os.close(answering.pop(pid))

    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    while True:
        ready, _, _ = select.select([control.fileno(), woken], (), ())
        if woken in ready:
            os.read(woken, 4096)
            reap()
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_MAX_BYTES, 4)
        if not message:
            return None
        pid = os.fork()
        if not pid:
            control.detach()  # its number is another descriptor's soon
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            return _become(json.loads(message), descriptors[:3])
        *streams, answering[pid] = descriptors
        _tell(answering[pid], pid)
        for descriptor in streams:
            os.close(descriptor)


def _tell(descriptor: int, number: int) -> None:
    with suppress(OSError):  # the client has gone
        os.write(descriptor, b"%d" % number)


def _become(wanted: dict[str, Any], streams: list[int]) -> str:
    """Set up this process as requested; return the name of its script."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    # Those of this process are of files, in which Python asks for the position.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - by number
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if wanted["has_group"]:
        os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    sys.argv = wanted["command"]
    folder, script = os.path.split(sys.argv[0])
    sys.path.insert(0, folder)
    return _become_parent() if script == "twistd" else script


def _become_parent() -> str:
    """Have worker processes that are to be started made by a fork server of this process; return its script.

    In that fork server, return the script of a worker whenever one is made.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    # A worker is made by a process that ends at once: then it is a child of the nearest reaper above, and that is here.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if not os.fork():
        ours.close()
        return _serve_parent(theirs)
    theirs.close()
    start_itself = Process._fork  # noqa: SLF001 - here, and for these programs only, it is another way to the same end

    def fork(self: Any, *given: Any, **more: Any) -> None:
        *_, arguments, environment = given
        words = [os.fsdecode(word) for word in arguments]
        if tuple(words[1:4]) != _WORKER or os.getpid() != parent:  # twistd in the background is another process
            start_itself(self, *given, **more)
            return
        numbers, descriptors = zip(*more["fdmap"].items(), strict=True)
        wanted = {
            "numbers": numbers,
            "number": words[4],
            "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
            "blocked": [int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            "descriptors_max": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        socket.send_fds(ours, [json.dumps(wanted).encode()], descriptors)
        self.pid = int(ours.recv(100))
        self.status = -1

    Process._fork = fork  # type: ignore[method-assign]  # noqa: SLF001
    return "twistd"


def _serve_parent(control: socket.socket) -> str:
    """Make workers whenever that is asked for, until the process has gone that they are for."""
    # What reaches all processes of a group or a terminal reaches no worker before it has the mask of its parent.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_MAX_BYTES, _DESCRIPTORS_MAX)
        if not message:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            worker = os.fork()
            if worker:
                os.write(writing, b"%d" % worker)
                os._exit(0)
            control.detach()
            return _become_worker(json.loads(message), descriptors)
        os.waitpid(between, 0)
        control.send(os.read(reading, 100))
        for descriptor in (reading, writing, *descriptors):
            os.close(descriptor)


def _become_worker(wanted: Mapping[str, Any], descriptors: Sequence[int]) -> str:
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _DESCRIPTORS_MAX) for descriptor in descriptors]
    for number, descriptor in zip(wanted["numbers"], high, strict=True):
        os.dup2(descriptor, number)
    os.closerange(max(wanted["numbers"]) + 1, os.sysconf("SC_OPEN_MAX"))
    resource.setrlimit(resource.RLIMIT_NOFILE, wanted["descriptors_max"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    if os.environ.get("PYTHONFAULTHANDLER"):  # what starts as Python does looks there
        import_module("faulthandler").enable()
    Path("/proc/self/comm").write_text(f"worker {wanted['number']}")
    sys.argv = [_WORKER[-1], wanted["number"]]
    signal.pthread_sigmask(signal.SIG_SETMASK, wanted["blocked"])
    return _WORKER[-1]


if __name__ == "__main__":
    main()
