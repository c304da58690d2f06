"""Schemes of an application's own: their background work, their pages, and errors of what they lack."""

from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.web.resource import Resource

from postd.daemon.server import ServerParts
from postd.errors import ConfigError
from postd.http.responses import TEXT, make_response
from postd.monitoring.tally import Metrics
from postd.protect import Context, Scheme, SchemeDescription, SchemeParts, issuer, make_parts
from postd.protect.pages import Page
from postd.reactor import IReactor, ServiceClock
from postd.scheme_names import SCHEMES
from postd.settings.loading import load_settings
from tests.cases import each
from tests.helpers import result_of
from tests.protect.program import AUDIENCE, ISSUER, MakeProgram, PendingChecker, Program, bearer, waits
from tests.web.clients import basic
from tests.web.wire import Worker, ask, begin


def reload(program: Program, **changed: Any) -> None:
    result_of(program.protection.reload(**changed))


class Work:
    """Background work that records what happens to it."""

    states: ClassVar[dict[str, str]] = {}
    metrics = Metrics()

    def __init__(self, account: str) -> None:
        self.account = account
        self.previous: str | None = None
        self.is_stopped = False

    def start(self, previous: "Work | None") -> None:
        self.previous = None if previous is None else previous.account

    def retire(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        self.is_stopped = True


class Key(Scheme, frozen=True):
    """The field `X-Key` has the name of the account; `made` are the works of all reloads."""

    account: str = ""
    made: list[Work] | None = None
    paths: tuple[str, ...] = ()

    name = "key"
    description = SchemeDescription("Key", {}, "")

    def make(self, context: Context) -> SchemeParts:
        def read(request: Any) -> bytes | None:
            sent: bytes = request.fields.get(b"X-Key", [b""])[0]
            return sent or None

        async def show(_request: Any) -> Any:
            return make_response(HTTPStatus.OK, TEXT, self.account.encode(), {})

        if self.made is not None:
            self.made.append(Work(self.account))
        parts = make_parts(self, context, read, lambda sent: self.account if sent == self.account.encode() else None)
        pages = {path: Page({b"GET": show}, context.clients) for path in self.paths}
        return SchemeParts(
            parts.checkers,
            reader=parts.reader,
            make_pages=(lambda *_: pages) if pages else None,
            background=self.made[-1] if self.made else None,
        )


class BackgroundTests:
    """Two values of one class, and two reloads."""

    def test_work_continues_that_of_the_same_value_and_all_of_it_ends(self, make_program: MakeProgram) -> None:
        program, works = make_program(), dict[str, list[Work]](a=[], b=[])
        for account, made in works.items():
            program.mount(account, Key(account, made))
        reload(program)
        reload(program)
        for account, made in works.items():
            assert [work.previous for work in made] == [None, account, account]
            assert program.get(f"/{account}", {"X-Key": account}).status == 200
            assert not any(work.is_stopped for work in made)
        program.stop()
        assert all(work.is_stopped for made in works.values() for work in made)

    def test_work_that_was_replaced_long_ago_is_released(self, make_program: MakeProgram) -> None:
        program, made = make_program(), list[Work]()
        program.mount("a", Key("a", made))
        reload(program)
        program.clock.advance(60)
        reload(program)
        program.stop()
        assert [work.is_stopped for work in made] == [False, True, True]

    def test_stop_ends_requests_that_wait_since_before_two_reloads(self, make_program: MakeProgram) -> None:
        endpoint = f"{ISSUER}/introspect"
        checker = PendingChecker()
        trusted = issuer(ISSUER, audience=AUDIENCE, introspection_endpoint=endpoint)
        program = make_program(users=checker, issuers=[trusted])
        program.mount("all", "basic", "bearer")
        waiting = [begin(program, "GET", "/all", headers=headers) for headers in (basic(), bearer("opaque"))]
        for _ in range(2):
            reload(program, users=PendingChecker(), issuers=[issuer("https://other.example", audience=AUDIENCE)])
        assert not any(one.has_begun for one in waiting)
        program.stop()
        assert [one.response().status for one in waiting] == [503, 503]
        assert not waits(program)


class Nameless(Scheme, frozen=True):
    def make(self, context: Context) -> SchemeParts:
        raise AssertionError


class Unmade(Scheme, frozen=True):
    name = "unmade"


class NoParts(Scheme, frozen=True):
    name = "no-parts"

    def make(self, context: Context) -> Any:
        """Return no parts."""


class ErrorTests:
    @each(
        "scheme, why",
        [
            (Nameless(), "Nameless needs a name and a method make"),
            (Unmade(), "Unmade needs a name and a method make"),
            (NoParts(), "expected SchemeParts of no-parts, got None"),
            (Key, "<class '.*Key'> is none of digest"),
        ],
    )
    def test_error_of_a_scheme_that_lacks_something_names_the_argument(
        self, make_program: MakeProgram, scheme: Any, why: str
    ) -> None:
        protection = make_program().protection
        for protect in (lambda: protection.protect(Resource(), scheme), lambda: protection.required("basic", scheme)):
            with pytest.raises(ValueError, match=rf"\Aschemes: {why}"):
                protect()

    def test_error_leaves_no_scheme_in_force(self, make_program: MakeProgram) -> None:
        program, made = make_program(), list[Work]()
        protection = program.protection
        for rest in (["bearer"], [NoParts()], [Unmade()]):
            with pytest.raises(ValueError, match=r"\Aschemes: "):
                protection.protect(Resource(), Key("a", made), *rest)
        for scheme in (Key("a", made), NoParts()):
            with pytest.raises(ValueError, match=r"\Aschemes?: "):
                protection.pages(scheme=scheme)
        made.clear()
        reload(program)
        assert made == []


class PageTests:
    def test_pages_of_a_scheme_are_mounted_in_an_application(self, make_program: MakeProgram) -> None:
        program = make_program()
        scheme = Key("a", paths=("", "one", "two", "two/below", "three/below"))
        program.root.putChild(b"keys", program.protection.pages(scheme=scheme))
        program.mount("a", scheme)
        for _ in range(2):
            for path in ("", "/", "/one", "/two", "/two/", "/two/below", "/three/below"):
                assert (path, program.get(f"/keys{path}").body) == (path, b"a")
            for path in ("/three", "/other", "/one/below", "/two/other", "/three/below/x"):
                assert (path, program.get(f"/keys{path}").status) == (path, 404)
            assert program.get("/a", {"X-Key": "a"}).status == 200
            reload(program)

    def test_path_without_a_page_is_not_found(self, make_program: MakeProgram) -> None:
        program = make_program()
        program.root.putChild(b"keys", program.protection.pages(scheme=Key("a", paths=("one",))))
        assert [program.get(path).status for path in ("/keys", "/keys/", "/keys/one")] == [404, 404, 200]

    @each("scheme, why", [(Key("a"), "key has no pages"), ("session", "expected a Scheme"), (Key, "expected a Scheme")])
    def test_scheme_without_pages_is_an_error(self, make_program: MakeProgram, scheme: Any, why: str) -> None:
        with pytest.raises(ValueError, match=rf"\Ascheme: {why}"):
            make_program().protection.pages(scheme=scheme)

    def test_page_of_a_further_scheme_hides_no_other(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(SCHEMES, "key", f"{__name__}:Key")
        file, reactor = tmp_path / "postd.toml", cast(IReactor, MemoryReactorClock())

        def make_server(path: str) -> ServerParts:
            page = '[[page]]\npath = "/staff/room"\nschemes = ["key"]\n'
            file.write_text(f'{page}[api]\nread = ["open", "session"]\n[key]\npaths = ["{path}"]')
            loaded = load_settings(str(file), {}, tmp_path)
            return ServerParts(loaded, clock=ServiceClock(reactor), reactor=reactor)

        for path in ("post", "post/keys", "board", "home", "docs", "openapi.json", "login", "", "staff", "staff/x"):
            with pytest.raises(ConfigError) as caught:
                make_server(path)
            assert str(caught.value) == f"{file}: key: its page /{path} would hide another one, or be hidden"
        worker = Worker(make_server("staffs/x").site, Clock())
        assert ask(worker, "GET", "/staffs/x").status == 200
