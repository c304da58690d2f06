"""Protected pages: the text of the specification, and folders of files."""

import email
import email.policy
import errno
import gc
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from postd.front.connection import HttpConnection
from postd.front.request import SEGMENTS_MAX
from tests.cases import each
from tests.helpers import FIELD_TEXT, InMemoryApi, Response, SlowTransport, connect, forget_own, make_shared_folder
from tests.web.wire import ask, begin, user_line

ALICE = {"Authorization": "Basic YWxpY2U6c2VjcmV0"}  # alice:secret
BOB = {"Authorization": "Basic Ym9iOnA6dw=="}  # bob:p:w
DIGITS = b"0123456789"
MTIME_S = 1_700_000_000.5
LAST_MODIFIED = "Tue, 14 Nov 2023 22:13:21 GMT"  # rounded up: never earlier than the file

MakeApi = Callable[..., InMemoryApi]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files and folders of all kinds."""
    folder = tmp_path / "files"
    for name in ("sub", "bare", ".git", "inner", "with space & ü"):
        (folder / name).mkdir(parents=True)
    for name, content in (
        *(("index.html", b"<p>index"), ("digits.txt", DIGITS), ("empty.txt", b""), ("sub/index.html", b"<p>sub")),
        *(("sub/page.html", b"<p>page"), (".htaccess", b"hidden"), (".git/config", b"hidden"), ("noext", b"x")),
        *(("script.js", b"x"), ("image.png", b"x"), ("data.json", b"{}"), ("Grüße.txt", b"x"), ("a%2fb.txt", b"x")),
        *(
            ("with space & ü/x.txt", b"x"),
            ("inner/deep.txt", b"deep"),
            ("back\\slash", b"x"),
            ("big.bin", b"x" * 300_000),
        ),
    ):
        (folder / name).write_bytes(content)
    os.utime(folder / "digits.txt", (MTIME_S, MTIME_S))
    (tmp_path / "outside.txt").write_text("outside")
    (tmp_path / "files-too").mkdir()
    (tmp_path / "files-too" / "x.txt").write_text("outside")
    return folder


@pytest.fixture
def make_api(tmp_path: Path) -> Iterator[MakeApi]:
    made: list[InMemoryApi] = []

    def make(*pages: str) -> InMemoryApi:
        (tmp_path / "users").write_text(user_line("alice", "secret") + user_line("bob", "p:w"))
        api = InMemoryApi(tmp_path, "".join(f"[[page]]\n{page}\n" for page in pages))
        made.append(api)
        return api

    yield make
    for api in made:
        api.close()


def page(path: str, files: Path | None = None, more: str = "") -> str:
    return f'path = "{path}"\nschemes = ["basic"]\n' + (f'files = "{files}"\n' if files else "") + more


@pytest.fixture
def api(make_api: MakeApi, folder: Path) -> InMemoryApi:
    return make_api(page("/files", folder), page("/text"))


def get(api: InMemoryApi, path: str | bytes, method: str = "GET", **headers: Any) -> Response:
    return ask(api, method, path, None, ALICE | {name.replace("_", "-"): value for name, value in headers.items()})


def check_not_found(answer: Response) -> None:
    assert (answer.status, answer.body) == (404, b"Not Found\n")
    assert answer.header("Content-Type") == "text/plain; charset=utf-8"
    assert answer.header("Cache-Control") == "no-store"


def check_whole(answer: Response, body: bytes = DIGITS) -> None:
    assert (answer.status, answer.body, answer.header("Content-Range")) == (200, body, None)


@each("first", ["/files", "/post", "/nothing", "/%66iles"])
@each("method", ["GET", "POST", "OPTIONS"])
def test_path_with_too_many_segments_is_404(api: InMemoryApi, method: str, first: str) -> None:
    """It is refused before authentication and without looking for a resource."""
    assert ask(api, method, first + "/a" * SEGMENTS_MAX).status == 404


def test_path_with_the_most_segments_reaches_its_resource(api: InMemoryApi) -> None:
    assert ask(api, "GET", "/files" + "/a" * (SEGMENTS_MAX - 1)).status == 401


class TextPageTests:
    def test_text_page_names_the_user(self, api: InMemoryApi) -> None:
        for headers, name in ((ALICE, "alice"), (BOB, "bob")):
            answer = ask(api, "GET", "/text", None, headers)
            assert (answer.status, answer.body.decode()) == (200, f"Success: {name}\n")
            assert answer.header("Content-Type") == "text/plain; charset=utf-8"
            assert answer.header("Cache-Control") == "no-store"
            assert answer.header("X-Content-Type-Options") == "nosniff"
            assert {"Authorization", "Cookie"} <= set((answer.header("Vary") or "").split(", "))

    def test_head_has_the_headers_of_get(self, api: InMemoryApi) -> None:
        got, head = get(api, "/text"), get(api, "/text", "HEAD")
        forget_own(got, head)
        assert (head.status, head.headers, head.body) == (200, got.headers, b"")

    @pytest.mark.parametrize("path", ["/text", "/files/digits.txt", "/files/nothing"])
    def test_without_credentials_every_method_is_401_and_with_them_405(self, api: InMemoryApi, path: str) -> None:
        for method in ("POST", "PUT", "DELETE", "PATCH", "FOO", "get"):
            answer = ask(api, method, path, b"x")
            assert (answer.status, answer.header("WWW-Authenticate")) == (401, 'Basic realm="postd"')
            answer = ask(api, method, path, b"x", ALICE)
            assert (answer.status, answer.body) == (405, b"Method Not Allowed\n")
            assert {"GET", "HEAD"} <= set((answer.header("Allow") or "").split(", "))
        for method in ("GET", "HEAD"):
            assert ask(api, method, path).status == 401

    def test_path_below_a_text_page_is_404(self, api: InMemoryApi) -> None:
        for path in ("/text/", "/text/x", "/text//", "/text/%2e", "/text/."):
            check_not_found(get(api, path))
            assert ask(api, "GET", path).status == 401

    def test_path_similar_to_a_text_page_is_404(self, api: InMemoryApi) -> None:
        for path in ("/texts", "/tex", "//text", "/TEXT", "/text%2F", "/x/text", "/%2ftext", "/basic"):
            check_not_found(get(api, path))

    def test_path_of_a_page_may_be_escaped(self, api: InMemoryApi) -> None:
        assert get(api, "/%74ext").body == b"Success: alice\n"
        assert ask(api, "GET", "/%74ext").status == 401


class FileTests:
    @each(
        "name, content_type",
        [
            *(("index.html", "text/html"), ("digits.txt", "text/plain"), ("script.js", "text/javascript")),
            *(("image.png", "image/png"), ("data.json", "application/json"), ("noext", "application/octet-stream")),
        ],
    )
    def test_file_has_its_content_type(self, api: InMemoryApi, folder: Path, name: str, content_type: str) -> None:
        answer = get(api, f"/files/{name}")
        assert (answer.status, answer.body) == (200, (folder / name).read_bytes())
        assert (answer.header("Content-Type") or "").partition(";")[0] == content_type
        assert answer.header("X-Content-Type-Options") == "nosniff"
        assert answer.header("Cache-Control") == "private, no-store"
        assert answer.header("Accept-Ranges") == "bytes"

    @each(
        "name, content_type",
        [
            *(
                ("backup.tar.gz", "application/gzip"),
                ("b.tgz", "application/gzip"),
                ("data.csv.gz", "application/gzip"),
            ),
            *(("old.tar.bz2", "application/x-bzip2"), ("c.tar.xz", "application/x-xz"), ("d.zst", "application/zstd")),
            *(("e.Z", "application/x-compress"), ("f.js.br", "application/x-brotli"), ("g.svgz", "application/gzip")),
            *(("x.gz", "application/gzip"), ("UPPER.GZ", "application/gzip"), ("data:,x.csv", "text/csv")),
        ],
    )
    def test_packed_file_has_its_own_type_and_no_coding(
        self, api: InMemoryApi, folder: Path, name: str, content_type: str
    ) -> None:
        (folder / name).write_bytes(DIGITS)
        for method, headers in (("GET", {}), ("HEAD", {}), ("GET", {"Range": "bytes=0-3"})):
            for coding in ("identity", "gzip, br", None):
                asked = {**headers, **({} if coding is None else {"Accept-Encoding": coding})}
                answer = get(api, f"/files/{name}", method, **asked)
                assert answer.header("Content-Type") == content_type
                assert answer.header("Content-Encoding") is None
                assert answer.body == (DIGITS[:4] if headers else DIGITS if method == "GET" else b"")

    def test_folder_needs_credentials(self, api: InMemoryApi) -> None:
        for path in ("/files", "/files/", "/files/digits.txt", "/files/nothing", "/files/..", "/files/.htaccess"):
            for headers in ({}, {"Authorization": "Basic eDp4"}, {"Range": "bytes=0-1"}):
                answer = ask(api, "GET", path, None, headers)
                assert (answer.status, answer.body) == (401, b"Unauthorized\n")

    def test_user_outside_the_users_of_a_folder_is_403(self, make_api: MakeApi, folder: Path) -> None:
        api = make_api(page("/files", folder, 'users = ["bob"]'))
        for path in ("/files", "/files/digits.txt", "/files/nothing"):
            answer = get(api, path)
            assert (answer.status, answer.body, answer.header("WWW-Authenticate")) == (403, b"Forbidden\n", None)
        check_whole(ask(api, "GET", "/files/digits.txt", None, BOB))

    def test_index_html_is_served_for_its_folder(self, api: InMemoryApi) -> None:
        assert get(api, "/files/").body == b"<p>index"
        assert get(api, "/files/sub/").body == b"<p>sub"
        check_not_found(get(api, "/files/bare/"))

    @pytest.mark.parametrize(
        ("path", "location"),
        [
            ("/files", "/files/"),
            ("/files?x=1&y=%20", "/files/?x=1&y=%20"),
            ("/files?", "/files/?"),
            ("/files/sub", "/files/sub/"),
            ("/files/sub?a=b?c/d", "/files/sub/?a=b?c/d"),
            ("/files/with%20space%20%26%20%C3%BC", "/files/with%20space%20%26%20%C3%BC/"),
            ("/%66iles/%73ub", "/%66iles/%73ub/"),
        ],
    )
    def test_folder_without_slash_is_redirected(self, api: InMemoryApi, path: str, location: str) -> None:
        for method in ("GET", "HEAD"):
            answer = get(api, path, method)
            assert (answer.status, answer.header("Location")) == (302, location)

    def test_file_names_may_be_escaped(self, api: InMemoryApi) -> None:
        for path in ("/files/Gr%C3%BC%C3%9Fe.txt", "/files/with%20space%20&%20%c3%bc/x.txt", "/files/%6eoext"):
            check_whole(get(api, path), b"x")
        check_whole(get(api, "/files/%64igits%2Etxt"))
        check_whole(get(api, "/files/digits.txt?query=ignored"))
        check_whole(get(api, "/files/a%252fb.txt"), b"x")

    def test_large_file_is_complete(self, api: InMemoryApi, folder: Path) -> None:
        check_whole(get(api, "/files/big.bin"), b"x" * 300_000)

    def test_head_has_the_headers_of_get_and_no_body(self, api: InMemoryApi) -> None:
        for path in ("/files/digits.txt", "/files/empty.txt", "/files/", "/files/nothing", "/files/big.bin"):
            got, head = get(api, path), get(api, path, "HEAD")
            forget_own(got, head)
            assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")

    def test_changed_file_is_served_at_once(self, api: InMemoryApi, folder: Path) -> None:
        (folder / "digits.txt").write_bytes(b"other")
        check_whole(get(api, "/files/digits.txt"), b"other")
        (folder / "digits.txt").unlink()
        check_not_found(get(api, "/files/digits.txt"))
        (folder / "new.txt").write_bytes(b"new")
        check_whole(get(api, "/files/new.txt"), b"new")

    def test_disconnect_closes_the_file(self, api: InMemoryApi) -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        asked = begin(api, "GET", "/files/big.bin", None, ALICE)
        asked.disconnect()
        api.clock.advance(1)
        get(api, "/files/digits.txt", If_Modified_Since=LAST_MODIFIED)
        get(api, "/files/digits.txt", "HEAD")
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    def test_folder_may_be_a_link(self, make_api: MakeApi, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "current").symlink_to(folder)
        check_whole(get(make_api(page("/files", tmp_path / "current")), "/files/digits.txt"))

    def test_folder_may_be_in_a_hidden_one(self, make_api: MakeApi, tmp_path: Path) -> None:
        (tmp_path / ".hidden" / "www").mkdir(parents=True)
        (tmp_path / ".hidden" / "www" / "x.txt").write_bytes(DIGITS)
        check_whole(get(make_api(page("/files", tmp_path / ".hidden" / "www")), "/files/x.txt"))

    def test_missing_folder_is_404(self, make_api: MakeApi, tmp_path: Path) -> None:
        api = make_api(page("/files", tmp_path / "gone"))
        for path in ("/files", "/files/", "/files/x"):
            check_not_found(get(api, path))


NOT_BELOW = [
    *("..", "../outside.txt", "../files/digits.txt", "../files-too/x.txt", "sub/../digits.txt", "./digits.txt", "."),
    *("%2e%2e/outside.txt", "%2E%2E/outside.txt", ".%2e/outside.txt", "..%2foutside.txt", "..%2Foutside.txt"),
    *("%2e%2e%2foutside.txt", "sub%2fpage.html", "sub%2Fpage.html", "%2fetc/passwd", "%2Fetc%2Fpasswd", "/etc/passwd"),
    *("//etc/passwd", "..%5coutside.txt", "..\\outside.txt", "%5c..%5coutside.txt", "%252e%252e/outside.txt"),
    *("..%252foutside.txt", "%c0%ae%c0%ae/outside.txt", "..%c0%afoutside.txt", "%uff0e%uff0e/outside.txt"),
    *("digits.txt%00", "digits.txt%00.html", "%00", "..%00/outside.txt", "sub//page.html", "/digits.txt", "sub/"),
    *(".htaccess", ".git/config", ".git/", ".git", "%2ehtaccess", "sub/.", "sub/..", "sub/%2e%2e/digits.txt", "..."),
    *(
        "digits.txt/",
        "digits.txt/..",
        "digits.txt/x",
        "DIGITS.TXT",
        "digits.txt%20",
        "digits.txt.",
        "%ff",
        "Gr%FC%DFe.txt",
    ),
    *("~root", "con", "*", "%", "%zz", "digits.txt;x", "digits.txt%3fx", "x" * 300, "x/" * 3000, "%0a", "nothing"),
]
SERVED = {"sub/": b"<p>sub"}


@pytest.mark.parametrize("path", ["/nothing-here", "/files/nothing-here"])
def test_error_response_keeps_no_connection_in_memory(api: InMemoryApi, path: str) -> None:
    def connections() -> int:
        gc.collect()
        return sum(isinstance(one, HttpConnection) for one in gc.get_objects())

    ask(api, "GET", path, None, ALICE)
    before = connections()
    for _ in range(20):
        assert ask(api, "GET", path, None, ALICE).status == 404
    assert connections() <= before + 1


class ChangingTests:
    """A file that changes while it is sent."""

    SIZE = 300_000

    @pytest.fixture
    def file(self, folder: Path) -> Path:
        file = folder / "changing.bin"
        file.write_bytes(b"a" * self.SIZE)
        return file

    @pytest.mark.parametrize("ranges", ["", "bytes=0-299998", "bytes=0-9,20-299998"])
    def test_growing_file_keeps_its_announced_length(self, api: InMemoryApi, file: Path, ranges: str) -> None:
        slow = SlowClient(api, ranges)
        with file.open("ab") as appending:
            appending.write(b"HTTP/1.1 200 OK\r\n\r\n" * 10_000)
        sent = slow.read_all()
        assert sent.count(b"HTTP/1.1") == 1
        assert sent.count(b"a" * 1000) >= 299
        assert slow.transport.connected

    @pytest.mark.parametrize("ranges", ["", "bytes=0-299998", "bytes=0-9,20-299998"])
    def test_shrinking_file_aborts_the_connection(self, api: InMemoryApi, file: Path, ranges: str) -> None:
        slow = SlowClient(api, ranges)
        os.truncate(file, 100_000)
        with capturedLogs() as events:
            sent = slow.read_all()
        assert slow.transport.aborted
        assert len(sent) < self.SIZE
        assert [event["log_format"] for event in events if "name" in event] == [
            "{name} became shorter while it was sent"
        ]


class SlowClient:
    """Requests the file of `ChangingTests`, and reads it in pieces."""

    def __init__(self, api: InMemoryApi, ranges: str) -> None:
        self.transport = SlowTransport()
        channel = connect(self.transport, api.site)
        fields = {"Host": "x", **ALICE, **({"Range": ranges} if ranges else {})}
        lines = ["GET /files/changing.bin HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        channel.dataReceived("\r\n".join(lines).encode())
        for _ in range(2):  # the login attempt is reserved and released
            api.clock.advance(0)
        assert self.transport.value()

    def read_all(self) -> bytes:
        sent = b""
        while self.transport.connected and self.transport.value():
            sent += self.transport.drain()
        return sent


class TraversalTests:
    @each("below", NOT_BELOW)
    def test_path_traversal_is_404(self, api: InMemoryApi, below: str) -> None:
        with capturedLogs() as events:
            for method in ("GET", "HEAD"):
                answer = get(api, f"/files/{below}", method)
                if below in SERVED:
                    assert (answer.status, answer.body) == (200, b"" if method == "HEAD" else SERVED[below])
                else:
                    assert answer.status == 404
                    assert answer.body == (b"" if method == "HEAD" else b"Not Found\n")
        assert not [event for event in events if "failure" in str(event.get("log_level"))]

    def test_sibling_with_the_same_prefix_is_404(self, api: InMemoryApi) -> None:
        for path in ("/files-too/x.txt", "/files../outside.txt", "/files%2f..%2foutside.txt", "/files%2fdigits.txt"):
            check_not_found(get(api, path))

    @given(
        segments=st.lists(
            st.sampled_from(
                [*("..", ".", "", "%2e%2e", "%2f", "sub", "page.html", "digits.txt", "%00", "..%5c", "%c3%bc", "loop")]
            )
            | st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="?#"), max_size=6),
            max_size=5,
        )
    )
    @example(segments=["files", ""])
    def test_any_path_is_answered(self, api: InMemoryApi, folder: Path, segments: list[str]) -> None:
        answer = get(api, "/files/" + "/".join(segments))
        assert answer.status in {200, 302, 404}
        assert b"outside" not in answer.body
        assert b"hidden" not in answer.body

    @given(path=st.binary(min_size=1, max_size=20).filter(lambda path: not set(path) & set(b" \r\n\t\x0b\x0c\x00?#")))
    def test_any_bytes_are_answered(self, api: InMemoryApi, path: bytes) -> None:
        assert get(api, b"/files/" + path).status < 500


class LinkTests:
    def test_links_within_the_folder_are_followed(self, api: InMemoryApi, folder: Path) -> None:
        (folder / "link.txt").symlink_to("digits.txt")
        (folder / "linked").symlink_to("sub")
        (folder / "absolute.txt").symlink_to(folder / "digits.txt")
        check_whole(get(api, "/files/link.txt"))
        check_whole(get(api, "/files/absolute.txt"))
        check_whole(get(api, "/files/linked/page.html"), b"<p>page")
        assert get(api, "/files/linked").header("Location") == "/files/linked/"

    def test_link_out_of_the_folder_is_404(self, api: InMemoryApi, folder: Path, tmp_path: Path) -> None:
        for number, target in enumerate(
            [
                *(
                    "../outside.txt",
                    str(tmp_path / "outside.txt"),
                    "/etc/passwd",
                    "..",
                    "/",
                    "../files-too",
                    "sub/../..",
                ),
                *(".htaccess", ".git", ".git/config", "nothing", "/proc/self/cwd", "/dev/zero"),
            ]
        ):
            (folder / f"link{number}").symlink_to(target)
            for below in ("", "/", "/outside.txt", "/x.txt", "/config", "/etc/passwd"):
                check_not_found(get(api, f"/files/link{number}{below}"))

    def test_link_loop_is_404(self, api: InMemoryApi, folder: Path) -> None:
        for name, target in (("loop", "loop"), ("a", "b"), ("b", "a"), ("sub/up", "../sub/up/x")):
            (folder / name).symlink_to(target)
            for below in ("", "/", "/x"):
                check_not_found(get(api, f"/files/{name}{below}"))

    def test_index_linked_from_outside_is_404(self, api: InMemoryApi, folder: Path, tmp_path: Path) -> None:
        (folder / "bare" / "index.html").symlink_to(tmp_path / "outside.txt")
        check_not_found(get(api, "/files/bare/"))


class OddFileTests:
    def test_special_file_is_404(self, api: InMemoryApi, folder: Path) -> None:
        os.mkfifo(folder / "fifo")
        os.mkfifo(folder / "bare" / "index.html")
        for path in ("/files/fifo", "/files/bare/", "/files/fifo/"):
            check_not_found(get(api, path))

    def test_file_that_fails_to_open_is_500(self, api: InMemoryApi, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on a broken disk; only errors that say that there is no such file are 404."""
        monkeypatch.setattr(Path, "open", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        with capturedLogs() as events:
            assert get(api, "/files/digits.txt").status == 500
        errors = [event["log_failure"].value.errno for event in events if "log_failure" in event]
        assert errors == [errno.EIO]

    def test_unreadable_file_is_403(self, make_api: MakeApi) -> None:
        with make_shared_folder(0o755) as folder:
            (folder / "secret.txt").write_text("x")
            (folder / "secret.txt").chmod(0)
            (folder / "closed").mkdir()
            (folder / "closed" / "x.txt").write_text("x")
            (folder / "closed").chmod(0)
            api = make_api(page("/files", folder))
            with unprivileged():
                for path in ("/files/secret.txt", "/files/closed/x.txt", "/files/closed/"):
                    for method in ("GET", "HEAD"):
                        answer = get(api, path, method)
                        assert answer.status == 403
                        assert answer.body == (b"Forbidden\n" if method == "GET" else b"")
                        assert answer.header("Content-Type") == "text/plain; charset=utf-8"
            (folder / "closed").chmod(stat.S_IRWXU)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As root, run with the user id of `nobody`."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


class RangeTests:
    @each(
        "value, first, last",
        [
            *(("bytes=0-3", 0, 3), ("bytes=5-", 5, 9), ("bytes=-3", 7, 9), ("bytes=0-0", 0, 0), ("bytes=9-9", 9, 9)),
            *(("bytes=0-", 0, 9), ("bytes=0-9", 0, 9), ("bytes=0-10", 0, 9), ("bytes=3-999999999999999999", 3, 9)),
            *(("bytes=-10", 0, 9), ("bytes=-11", 0, 9), ("bytes=-999999999999", 0, 9), ("bytes=-1", 9, 9)),
            *(("bytes=0-1,20-30", 0, 1), ("bytes=20-,0-1,-0", 0, 1), (" bytes=0-3 ", 0, 3)),
        ],
    )
    def test_single_range_is_206(self, api: InMemoryApi, value: str, first: int, last: int) -> None:
        answer = get(api, "/files/digits.txt", Range=value)
        assert (answer.status, answer.body) == (206, DIGITS[first : last + 1])
        assert answer.header("Content-Range") == f"bytes {first}-{last}/10"
        assert answer.header("Content-Type") == "text/plain"
        assert answer.header("Cache-Control") == "private, no-store"

    @each(
        "value, ranges",
        [
            ("bytes=0-0,-1", [(0, 0), (9, 9)]),
            ("bytes=0-1, 3-4 ,6-", [(0, 1), (3, 4), (6, 9)]),
            ("bytes=5-6,0-1", [(5, 6), (0, 1)]),
            ("bytes=0-9,0-9", [(0, 9), (0, 9)]),
            ("bytes=0-0,1-1,2-2,3-3,4-4,5-5,6-6,7-7", [(n, n) for n in range(8)]),
            ("bytes=0-1,50-60,-1000", [(0, 1), (0, 9)]),
        ],
    )
    def test_several_ranges_are_multipart(self, api: InMemoryApi, value: str, ranges: list[tuple[int, int]]) -> None:
        answer = get(api, "/files/digits.txt", Range=value)
        assert answer.status == 206
        assert answer.header("Content-Range") is None
        head = f"Content-Type: {answer.header('Content-Type')}\r\n\r\n".encode()
        message = email.message_from_bytes(head + answer.body, policy=email.policy.HTTP)
        assert message.get_content_type() == "multipart/byteranges"
        parts = [
            (str(part["Content-Range"]), part.get_content_type(), part.get_payload()) for part in message.iter_parts()
        ]
        assert parts == [
            (f"bytes {first}-{last}/10", "text/plain", DIGITS[first : last + 1].decode()) for first, last in ranges
        ]

    @each("value", ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=20-30,40-", "bytes=-0,-0"])
    def test_unsatisfiable_range_is_416(self, api: InMemoryApi, value: str) -> None:
        answer = get(api, "/files/digits.txt", Range=value)
        assert (answer.status, answer.header("Content-Range")) == (416, "bytes */10")
        assert answer.header("Content-Type") == "text/plain; charset=utf-8"

    def test_range_of_an_empty_file_is_416(self, api: InMemoryApi) -> None:
        for value in ("bytes=0-", "bytes=-1", "bytes=0-0"):
            answer = get(api, "/files/empty.txt", Range=value)
            assert (answer.status, answer.header("Content-Range")) == (416, "bytes */0")
        check_whole(get(api, "/files/empty.txt"), b"")

    @each(
        "value",
        [
            *("", "bytes", "bytes=", "bytes=-", "bytes=,", "bytes=3-1", "bytes=0-1,3-1", "bytes=a-b", "bytes=0-1-2"),
            *("bytes=0x0-1", "bytes=+0-1", "bytes=--1", "bytes=0 - 1", "bytes=1_0-", "items=0-1", "0-1", "bytes 0-1"),
            *(
                "bytes=0-1;x",
                "bytes=0.0-1",
                "\xe9",
                "bytes=\xb2-",
                "bytes=0-\xb9",
                "bytes=" + "9" * 5000 + "-",
                "bytes=0-1\xff",
            ),
            *("bytes=" + ",".join(["0-0"] * 9), "bytes=" + ",".join(["0-0"] * 2000), "bytes=0-0,bytes=1-1"),
            *(["bytes=0-1", "bytes=2-3"], ["bytes=0-1", "bytes=0-1"]),
        ],
    )
    def test_malformed_or_too_many_ranges_are_ignored(self, api: InMemoryApi, value: Any) -> None:
        check_whole(get(api, "/files/digits.txt", Range=value))

    def test_head_ignores_ranges(self, api: InMemoryApi) -> None:
        """RFC 9110 §14.2: the field is defined for GET alone."""
        for value in ("bytes=0-1", "bytes=99-", "bytes=0-0,2-2"):
            answer = get(api, "/files/digits.txt", "HEAD", Range=value)
            assert (answer.status, answer.header("Content-Length")) == (200, "10")
            assert answer.header("Content-Range") is None

    def test_text_page_ignores_ranges(self, api: InMemoryApi) -> None:
        assert get(api, "/text", Range="bytes=0-1").body == b"Success: alice\n"

    @given(
        value=st.lists(st.sampled_from([b"bytes=", b"0", b"9", b"10", b"-", b",", b" ", b"\t", b"1", b"=", b"x"])).map(
            b"".join
        )
        | st.binary(max_size=30).filter(lambda value: set(value) <= set(FIELD_TEXT))
    )
    @example(value=b"bytes=9-9,0-")
    def test_any_range_is_answered(self, api: InMemoryApi, value: bytes) -> None:
        for name, size in (("digits.txt", 10), ("empty.txt", 0)):
            answer = get(api, f"/files/{name}", Range=value)
            assert answer.status in {200, 206, 416}
            if answer.status == 200:
                assert len(answer.body) == size


class ConditionTests:
    def test_unchanged_file_is_304(self, api: InMemoryApi) -> None:
        assert get(api, "/files/digits.txt").header("Last-Modified") == LAST_MODIFIED
        for method in ("GET", "HEAD"):
            for since in (LAST_MODIFIED, "Wed, 15 Nov 2023 00:00:00 GMT", "Tue, 14 Nov 2124 00:00:00 GMT"):
                answer = get(api, "/files/digits.txt", method, If_Modified_Since=since)
                assert (answer.status, answer.body) == (304, b"")
                assert answer.header("Last-Modified") == LAST_MODIFIED
                assert answer.header("Cache-Control") == "private, no-store"

    @each(
        "since",
        [
            *(
                "Tue, 14 Nov 2023 22:13:20 GMT",
                "Thu, 01 Jan 1970 00:00:00 GMT",
                "Mon, 01 Jan 0001 00:00:00 GMT",
                "",
                "x",
            ),
            *("Xyz, 99 Foo 9999 99:99:99 GMT", "Tue, 14 Nov 99999 22:13:20 GMT", "2124-11-14T00:00:00Z", "4102444800"),
            *("Tue, 14 Nov 2124 00:00:00", "Tue, 14 Nov 2124 00:00:00 +0000", "\xe9", "Tue, 31 Feb 1971 00:00:00 GMT"),
            *(["Tue, 14 Nov 2124 00:00:00 GMT", "Tue, 14 Nov 2124 00:00:00 GMT"], "Tue, 14 Nov 2124 00:00:00 GMT; x"),
            *("Tuesday, 14-Nov-23 22:13:20 GMT", "Tue Nov 14 22:13:20 2023", "Tue, 14 Nov 2124 25:00:00 GMT"),
        ],
    )
    def test_other_or_invalid_date_is_200(self, api: InMemoryApi, since: Any) -> None:
        check_whole(get(api, "/files/digits.txt", If_Modified_Since=since))

    @each("date", [LAST_MODIFIED, "Tuesday, 14-Nov-23 22:13:21 GMT", "Tue Nov 14 22:13:21 2023"])
    def test_each_form_of_a_date_is_read(self, api: InMemoryApi, date: str) -> None:
        assert get(api, "/files/digits.txt", If_Modified_Since=date).status == 304
        assert get(api, "/files/digits.txt", If_Unmodified_Since=date).status == 200
        assert get(api, "/files/digits.txt", Range="bytes=0-1", If_Range=date).status == 206

    def test_entity_tag_is_strong_and_names_the_state_of_the_file(self, api: InMemoryApi, folder: Path) -> None:
        file = folder / "digits.txt"
        tags = [get(api, "/files/digits.txt").header("ETag")]
        assert tags == [get(api, "/files/digits.txt", "HEAD").header("ETag")]
        assert (tags[0] or "").startswith('"')
        (folder / "new").write_bytes(DIGITS[::-1])
        os.utime(folder / "new", (MTIME_S, MTIME_S))
        (folder / "new").rename(file)  # of the same size and time
        tags.append(get(api, "/files/digits.txt").header("ETag"))
        file.write_bytes(b"longer than before")
        tags.append(get(api, "/files/digits.txt").header("ETag"))
        assert len(set(tags)) == 3

    def test_conditions_have_the_precedence_of_rfc_9110(self, api: InMemoryApi) -> None:
        """§13.2.2: If-Match, If-Unmodified-Since, If-None-Match, If-Modified-Since, If-Range."""
        tag = get(api, "/files/digits.txt").header("ETag")
        earlier, later = "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:22 GMT"
        for conditions, status in (
            ({"If-Match": tag}, 200),
            ({"If-Match": "*"}, 200),
            ({"If-Match": '"x"'}, 412),
            ({"If-Match": f"W/{tag}"}, 412),
            ({"If-Unmodified-Since": LAST_MODIFIED}, 200),
            ({"If-Unmodified-Since": earlier}, 412),
            ({"If-Unmodified-Since": "x"}, 200),
            ({"If-Match": tag, "If-Unmodified-Since": earlier}, 200),
            ({"If-None-Match": tag}, 304),
            ({"If-None-Match": f'"x", W/{tag}'}, 304),
            ({"If-None-Match": "*"}, 304),
            ({"If-None-Match": '"x"'}, 200),
            ({"If-None-Match": '"x"', "If-Modified-Since": later}, 200),
            ({"If-None-Match": tag, "If-Modified-Since": earlier}, 304),
            ({"If-Match": '"x"', "If-None-Match": tag}, 412),
            ({"If-Unmodified-Since": earlier, "If-None-Match": tag}, 412),
            ({"If-None-Match": tag, "Range": "bytes=0-1"}, 304),
            ({"If-Match": '"x"', "Range": "bytes=99-"}, 412),
            ({"If-Match": tag, "Range": "bytes=0-1"}, 206),
            ({"Range": "bytes=0-1", "If-Range": tag}, 206),
            ({"Range": "bytes=99-", "If-Range": tag}, 416),
            ({"Range": "bytes=0-1", "If-Range": f"W/{tag}"}, 200),
        ):
            for method in ("GET", "HEAD"):
                answer = get(api, "/files/digits.txt", method, **conditions)
                wanted = 200 if method == "HEAD" and status in {206, 416} else status
                assert (answer.status, conditions) == (wanted, conditions)
                assert answer.header("ETag") == (None if wanted in {412, 416} else tag)

    def test_last_modified_is_not_in_the_future(self, api: InMemoryApi, folder: Path) -> None:
        """RFC 9110 §8.8.2.1; and the date of such a file is no strong validator (§8.8.2.2)."""
        when = time.time() + 3600
        os.utime(folder / "digits.txt", (when, when))
        date = get(api, "/files/digits.txt").header("Last-Modified")
        assert date is not None
        assert parsedate_to_datetime(date).timestamp() <= time.time()
        check_whole(get(api, "/files/digits.txt", Range="bytes=0-1", If_Range=date))

    def test_matching_if_range_is_206(self, api: InMemoryApi) -> None:
        answer = get(api, "/files/digits.txt", Range="bytes=0-1", If_Range=LAST_MODIFIED)
        assert (answer.status, answer.body) == (206, b"01")

    @each(
        "condition",
        [
            *("Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:22 GMT", '"tag"', 'W/"tag"', "", "x", "\xe9"),
            [LAST_MODIFIED, LAST_MODIFIED],
        ],
    )
    def test_other_if_range_is_200(self, api: InMemoryApi, condition: Any) -> None:
        check_whole(get(api, "/files/digits.txt", Range="bytes=0-1", If_Range=condition))
        check_whole(get(api, "/files/digits.txt", Range="bytes=99-", If_Range=condition))

    def test_file_with_extreme_mtime_is_served(self, api: InMemoryApi, folder: Path) -> None:
        for year in (1965, 1970, 2100):
            when = datetime(year, 1, 1, tzinfo=UTC)
            os.utime(folder / "digits.txt", (when.timestamp(), when.timestamp()))
            check_whole(get(api, "/files/digits.txt"))
            date = format_datetime(when, usegmt=True)
            assert get(api, "/files/digits.txt", If_Modified_Since=date).status in {200, 304}

    @given(value=st.binary(max_size=40).filter(lambda value: set(value) <= set(FIELD_TEXT)))
    def test_any_condition_is_answered(self, api: InMemoryApi, value: bytes) -> None:
        for name in ("If-Modified-Since", "If-Range", "If-None-Match", "If-Match", "If-Unmodified-Since"):
            answer = ask(api, "GET", "/files/digits.txt", None, ALICE | {name: value, "Range": "bytes=0-1"})
            assert answer.status in {200, 206, 304, 412}


class NestedPageTests:
    @pytest.fixture
    def api(self, make_api: MakeApi, folder: Path) -> InMemoryApi:
        return make_api(
            page("/files", folder),
            page("/files/inner", None, 'users = ["bob"]'),
            page("/files/sub/far/away", None, 'users = ["bob"]'),
            page("/x/y"),
        )

    def test_rule_of_the_nearest_page_applies(self, api: InMemoryApi) -> None:
        assert get(api, "/files/digits.txt").status == 200
        for path in ("/files/inner", "/files/inner/", "/files/inner/deep.txt", "/files/sub/far/away/x"):
            assert get(api, path).status == 403
        assert ask(api, "GET", "/files/inner", None, BOB).body == b"Success: bob\n"
        check_not_found(ask(api, "GET", "/files/inner/deep.txt", None, BOB))
        assert get(api, "/files/sub/page.html").status == 200
        check_not_found(get(api, "/files/sub/far"))

    def test_nested_page_cannot_be_bypassed(self, api: InMemoryApi) -> None:
        for path in (
            *(
                "/files/%69nner/deep.txt",
                "/files/sub/../inner/deep.txt",
                "/files/./inner/deep.txt",
                "/files//inner/deep.txt",
            ),
            *("/files/inner%2fdeep.txt", "/files%2finner/deep.txt", "/files/INNER/deep.txt", "/files/inner;/deep.txt"),
            *("/files/sub/%2e%2e/inner/deep.txt", "//files/inner/deep.txt", "http://localhost/files/inner/deep.txt"),
        ):
            answer = get(api, path)
            assert answer.status in {403, 404}
            assert b"deep" not in answer.body

    def test_path_above_a_page_is_404(self, api: InMemoryApi) -> None:
        for path in ("/x", "/x/", "/x/z", "/x/yy"):
            check_not_found(ask(api, "GET", path))
        assert ask(api, "GET", "/x/y").status == 401
