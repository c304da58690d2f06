"""The entries, their results, and the page that is made of both."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
RESULTS = FOLDER / "results.json"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"

MAX_DAYS = 90
"""The age at which a result is old."""

PROBES = {
    "basic": "Basic",
    "md5": "MD5",
    "sha256": "SHA-256",
    "both": "both",
    "all": "both and Basic",
    "form": "form",
    "events": "events",
}
"""What a client is tried with, and the heading of its column."""

FAILED = "no"
"""The outcome of a probe that the client did not pass."""


TEXTS = {"note", "guide", "works"}
"""The fields of entries that are for the page alone."""


class Entry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A program.

    `apt`, `pip` and `npm` are packages; those of pip and npm have a version. `version` is a shell command whose output
    has the version. `note` says what to set, in Markdown.
    """

    name: str
    version: str
    apt: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    note: str = ""

    @property
    def definition(self) -> str:
        """A hash of all that decides on the result."""
        deciding = {name: value for name, value in msgspec.structs.asdict(self).items() if value and name not in TEXTS}
        return hashlib.sha256(msgspec.json.encode(deciding, order="sorted")).hexdigest()[:12]


class Client(Entry, frozen=True, kw_only=True):
    """A client, with a shell command for each way of authentication that it has.

    The commands find in the environment: `URL` of the page, which is `http://$HOST$PAGE`; `BASE`, `HOST` and `PORT` of
    the server; `NAME` and `PASSWORD`. `files` are written into their folder first, then `build` is run. `mixed` is for
    a page with Digest and Basic; by default it is that of `digest`. `expects` has the outcomes that are not usual.
    """

    files: dict[str, str] = {}
    build: str = ""
    basic: str = ""
    digest: str = ""
    mixed: str = ""
    form: str = ""
    events: str = ""
    expects: dict[str, str] = {}

    @property
    def commands(self) -> dict[str, str]:
        """The command of each probe that the client has."""
        digest = dict.fromkeys(("md5", "sha256", "both"), self.digest)
        found = {"basic": self.basic, **digest, "all": self.mixed or self.digest or self.basic}
        found |= {"form": self.form, "events": self.events}
        return {probe: found[probe] for probe in PROBES if found[probe]}

    @property
    def expected(self) -> dict[str, str]:
        usual = {"basic": "yes", "md5": "yes", "sha256": "yes", "both": "SHA-256", "all": "SHA-256"}
        usual |= {"form": "yes", "events": "yes"}
        return {probe: self.expects.get(probe, usual[probe]) for probe in self.commands}


class Other(Entry, frozen=True, kw_only=True):
    """An issuer, proxy, browser, store or tool, with the tests that run it.

    `works` is what the tests show, in Markdown, `guide` the how-to guide with the settings. `program` is the path or
    name of the program, `POSTD_FIELD_PROGRAM` of the tests; `environment` are further variables.
    """

    kind: str
    test: tuple[str, ...]
    works: str
    guide: str = ""
    program: str = ""
    environment: dict[str, str] = {}


class Clients(Struct, frozen=True, forbid_unknown_fields=True):
    client: tuple[Client, ...]


class Others(Struct, frozen=True, forbid_unknown_fields=True):
    entry: tuple[Other, ...]


class Result(Struct, frozen=True):
    """What an entry did: the outcome of each probe of a client, or the number of passed tests."""

    day: str
    definition: str
    version: str
    outcomes: dict[str, str]


def read_clients() -> tuple[Client, ...]:
    return msgspec.toml.decode((FOLDER / "clients.toml").read_bytes(), type=Clients).client


def read_others() -> tuple[Other, ...]:
    return msgspec.toml.decode((FOLDER / "others.toml").read_bytes(), type=Others).entry


def read_results() -> dict[str, Result]:
    """Return the result of each entry, by its name."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, Result]) if RESULTS.exists() else {}


def write_results(results: Mapping[str, Result]) -> None:
    ordered = dict(sorted(results.items(), key=lambda item: item[0].casefold()))
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


INTRODUCTION = """\
# Compatibility

Each row is a program that was run with postd: its version, the day, and what it did. `python -m tests.field` runs the
programs and makes this page ([how](../development/tests.md#compatibility)). A program that is not here was not run,
which does not mean that it does not work."""

ABOUT_CLIENTS = """\
## Clients

The columns *MD5* and *SHA-256* are Digest with one algorithm. *both* is the algorithm that the client uses with
`algorithms = ["SHA-256", "MD5"]`; *both and Basic* is what it uses where the page has Basic, too. *form* is a sign-in
by the form and a request with the cookie, *events* a reader of `/post/events`. *no* is a failure, an empty cell was
not tried: the client has no such feature, or no use for it."""

KINDS = {"issuer": "Issuers", "proxy": "Proxies", "browser": "Browsers", "store": "Stores", "tool": "Tools"}


def make_page(clients: Sequence[Client], others: Sequence[Other], results: Mapping[str, Result]) -> str:
    parts = [INTRODUCTION, ABOUT_CLIENTS]
    heading = ["client", "version", *PROBES.values(), "note", "run on"]
    parts.append(_table([heading, *_client_rows(clients, results)]))
    for kind, title in KINDS.items():
        rows = [row for other in others if other.kind == kind for row in _other_rows(other, results)]
        parts += [f"## {title}", _table([[kind, "version", "works", "note", "test", "run on"], *rows])]
    return "\n\n".join(parts) + "\n"


def _client_rows(clients: Sequence[Client], results: Mapping[str, Result]) -> Iterator[list[str]]:
    for client in sorted(clients, key=lambda client: client.name.casefold()):
        if result := results.get(client.name):
            outcomes = [result.outcomes.get(probe, "") for probe in PROBES]
            yield [client.name, result.version, *outcomes, client.note, result.day]


def _other_rows(other: Other, results: Mapping[str, Result]) -> Iterator[list[str]]:
    if result := results.get(other.name):
        tests = ", ".join(sorted({f"`{test.partition('::')[0]}`" for test in other.test}))
        page, _, heading = other.guide.partition("#")
        guide = f"[guide](../how-to/{page}.md{heading and '#'}{heading})" if page else ""
        note = "; ".join(filter(None, [other.note, guide]))
        yield [other.name, result.version, other.works, note, tests, result.day]


def _table(rows: Sequence[Sequence[str]]) -> str:
    heading, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([heading, "|---" * len(rows[0]) + "|", *others])
