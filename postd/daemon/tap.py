"""The twistd plugin: the options of `twistd postd`, and the service made from them."""

# First: other systems may lack modules that are imported next.
import postd.linux

# isort: split

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from twisted.application.service import IService, MultiService
from twisted.logger import FileLogObserver, ILogObserver, Logger
from twisted.python import usage
from twisted.python.components import Componentized
from twisted.python.logfile import LogFile

import postd
from postd.daemon.log import ACCESS_LOG, FORMATS, NO_FOLDER, AppendedFile, format_access, reopen_rotated
from postd.daemon.startup import startup_imports
from postd.errors import ConfigError
from postd.reactor import IReactor, use_monotonic_clock
from postd.settings.loading import LoadedSettings, load_settings

_log = Logger()


class Options(usage.Options):
    """The options of `twistd postd`; an option overrides the settings file."""

    program = "twistd postd"
    synopsis = "[options]"
    longdesc = (
        "Serves short text posts through a JSON API, and a board for browsers. Without options it listens on "
        "http://127.0.0.1:8080/ and stores the posts in postd.db in the current directory."
    )
    optParameters = [  # noqa: RUF012 - Twisted's way
        ["config", "c", None, "The settings file (TOML). Options override it."],
        [
            "store",
            "s",
            None,
            "The store: sqlite:PATH, redis://HOST, memory: … [default: sqlite:postd.db, beside the settings file]",
        ],
        ["users", "u", None, "The user file, as `postd user` writes it. [default: none]"],
        ["workers", "w", None, "The number of worker processes; 0 means one per core. [default: 1]"],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.listen: list[str] = []

    def opt_listen(self, endpoint: str) -> None:
        """A Twisted server endpoint to listen on; repeatable. [default: tcp:8080:interface=127.0.0.1]"""
        self.listen.append(endpoint)

    opt_l = opt_listen

    def opt_version(self) -> None:
        """Display the version of postd and exit."""
        sys.stdout.write(f"postd {postd.__version__}\n")
        raise SystemExit(0)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        # Stock twistd prints the whole help on stdout for an unknown option.
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            raise _exit(f"{error} ({self.program} --help shows the options)") from None


def makeService(options: Options) -> IService:
    """Make the service from parsed options; exits with one line if they cannot be used."""
    given: dict[str, object] = {"listen": options.listen} if options.listen else {}
    given |= {name: options[name] for name in ("store", "users", "workers") if options[name] is not None}
    try:
        # First: wrong settings are reported without the half second that the other imports take.
        read_settings = partial(load_settings, options["config"], given, Path.cwd())
        loaded = read_settings()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the service handles it; by default it ends the process

        with startup_imports(loaded.settings):
            from twisted.internet import reactor  # noqa: PLC0415 - importing the reactor installs it

            from postd.daemon.service import make_service  # noqa: PLC0415 - imports Klein, which imports the reactor

        use_monotonic_clock(reactor)
        daemon = _Daemon(loaded, options.parent or {})
        installed = cast("IReactor", reactor)
        service = make_service(
            loaded,
            read_settings=read_settings,
            reopen_log=daemon.reopen_log,
            access_log=daemon.access_log,
            reactor=installed,
        )
        service.setServiceParent(daemon)
        if not daemon.stays_in_foreground:
            service.show_address()  # now: when the server is ready, the terminal is gone
    except ConfigError as error:
        raise _exit(str(error)) from None
    return daemon


class _Daemon(MultiService):
    """The parent of the service; sets the log observer of `[log]` on twistd's application, and opens its files.

    Args:
        loaded: the settings.
        twistd: its options, whose `--logger` overrides `[log]`, and `--syslog` its `format`.

    Raises:
        ConfigError: a log file cannot be written to.

    Attributes:
        access_log: receives the lines of requests.
    """

    def __init__(self, loaded: LoadedSettings, twistd: Mapping[str, Any]) -> None:
        super().__init__()
        log, where = loaded.settings.log, loaded.where["log"]
        self._twistd = twistd
        self._format = FORMATS[log.format]
        self._file: AppendedFile | None = None
        self._rotated: LogFile | None = None
        if log.file:
            with _refusing(f"{where}.file", log.file):
                self._file = AppendedFile(log.file, self._format)
        self._access_file: AppendedFile | None = None
        if log.access_file:
            with _refusing(f"{where}.access_file", log.access_file):
                self._access_file = AppendedFile(
                    log.access_file, format_access, ignore_umask=True, at_first_event=not log.access
                )
        if twistd.get("logger") and log.file:
            _log.warn("{where}.file is ignored: twistd was given --logger", where=where)
        elif log.format != "text" and (twistd.get("logger") or (twistd.get("syslog") and not log.file)):
            _log.warn("{where}.format is ignored: twistd was given --logger or --syslog", where=where)

    @property
    def stays_in_foreground(self) -> bool:
        return bool(self._twistd.get("nodaemon", True))

    def reopen_log(self) -> None:
        """Reopen the log files, which may have been renamed: `[log] file` or twistd's, and `[log] access_file`."""
        if self._access_file is not None:
            self._access_file.reopen()
        if self._file is not None:
            self._file.reopen()
        elif self._rotated is not None:
            reopen_rotated(self._rotated)

    @property
    def access_log(self) -> Logger:
        return ACCESS_LOG if self._access_file is None else Logger(ACCESS_LOG.namespace, observer=self._access_file)

    def setServiceParent(self, parent: object) -> None:
        if isinstance(parent, Componentized):
            observer = self._file or self._twistd_observer()
            if observer is not None:
                parent.setComponent(ILogObserver, observer)
        super().setServiceParent(parent)

    def _twistd_observer(self) -> FileLogObserver | AppendedFile | None:
        """Return the observer that twistd would use, with our format; None where it has to make its own."""
        if self._twistd.get("logger") or self._twistd.get("syslog"):
            return None
        from postd.twisted_private import log_file_of, make_twistd_log_observer  # noqa: PLC0415 - imports twisted.web

        path = Path(self._twistd.get("logfile") or "-").absolute()  # twistd may change the folder
        try:
            if path.exists() and not path.is_file():
                # Stock twistd, if it may, renames /dev/null at each megabyte, and creates a file in its place.
                self._file = AppendedFile(str(path), self._format)
                return self._file
            observer = make_twistd_log_observer(self._twistd)
        except OSError as error:
            raise _exit(f"--logfile: {error.filename or path}: {error.strerror}") from None
        observer.formatEvent = self._format
        self._rotated = log_file_of(observer)
        return observer


@contextmanager
def _refusing(where: str, path: str) -> Iterator[None]:
    """Report that a file cannot be opened as an error of a setting."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(where, f"{path}: {NO_FOLDER}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(where, f"{path}: {getattr(error, 'strerror', error)}") from None


def _exit(why: str) -> SystemExit:
    """Return an exit with status 1 and one line on stderr."""
    return SystemExit("postd: " + " ".join(why.split()))
