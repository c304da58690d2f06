"""Times and authors of posts: `?include=meta`, and `[api] own`, `moderators`, `show_authors`."""

import gzip
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from postd.model import PostDetails
from postd.protocol.timestamp import format_timestamp
from postd.web.lists.encoded_posts import PIECE_POSTS, SNAPSHOT_POSTS
from tests.cases import each
from tests.helpers import InMemoryApi, forget_own
from tests.web.clients import PASSWORD, account, basic
from tests.web.test_events import Subscriber
from tests.web.test_events import closed_subscribers as closed_subscribers  # noqa: PLC0414 - a fixture
from tests.web.test_posts import JSON, check_problem, post_body
from tests.web.wire import FORM as FORM_TYPE
from tests.web.wire import ask

Make = Callable[..., InMemoryApi]

OPEN = '[api]\nread = ["open"]\nwrite = ["basic"]\n'
START = "2027-01-15T08:00:00.000Z"
"""The time of `InMemoryApi.START_S`."""

PATHS = ("/post", "/post?limit=1", "/post/1")


def with_meta(path: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}include=meta"


def read(api: InMemoryApi, path: str, **headers: Any) -> Any:
    answer = ask(api, "GET", path, None, headers)
    assert answer.status == 200, answer
    return json.loads(answer.body)


def add(api: InMemoryApi, text: str, user: str = "alice") -> None:
    assert ask(api, "POST", "/post", post_body(text), JSON | basic(user)).status == 201


@pytest.fixture
def api(make: Make) -> InMemoryApi:
    """Two posts of alice and bob, the second one changed a second and a half later, and one without an author."""
    api = make(OPEN)
    add(api, "one")
    add(api, "two", "bob")
    api.add("three")
    api.clock.advance(1.5)
    assert ask(api, "PUT", "/post/2", post_body("due"), JSON | basic("alice")).status == 200
    return api


FIRST = {"id": 1, "post": "one", "created": START, "updated": START, "author": "alice"}
SECOND = {"id": 2, "post": "due", "created": START, "updated": START.replace("00.000", "01.500"), "author": "bob"}
THIRD = {"id": 3, "post": "three", "created": None, "updated": None, "author": None}


class ReadTests:
    def test_list_has_times_and_authors_in_order(self, api: InMemoryApi) -> None:
        answer = ask(api, "GET", "/post?include=meta")
        posts = [FIRST, SECOND, THIRD]
        assert answer.body.decode() == json.dumps(posts, indent=2) + "\n"
        assert answer.header("Content-Type") == "application/json"
        assert answer.header("Cache-Control") == "no-cache"
        assert answer.header("Vary") == "Accept-Encoding"

    def test_single_post_has_times_and_author(self, api: InMemoryApi) -> None:
        for post in (FIRST, SECOND, THIRD):
            answer = ask(api, "GET", f"/post/{post['id']}?include=meta")
            assert answer.body.decode() == json.dumps(post, indent=2) + "\n"
            assert answer.header("Cache-Control") == "no-cache"
        check_problem(ask(api, "GET", "/post/4?include=meta"), 404)

    def test_without_include_posts_are_as_before(self, api: InMemoryApi) -> None:
        plain = [{"id": post["id"], "post": post["post"]} for post in (FIRST, SECOND, THIRD)]
        assert read(api, "/post") == plain
        assert [read(api, f"/post/{n}?other=x") for n in (1, 2, 3)] == plain

    def test_pages_keep_the_details(self, api: InMemoryApi) -> None:
        first = ask(api, "GET", "/post?limit=2&include=meta")
        assert json.loads(first.body) == [FIRST, SECOND]
        assert first.header("Link") == '</post?include=meta&limit=2&after=2>; rel="next"'
        assert read(api, "/post?include=meta&limit=2&after=2") == [THIRD]

    def test_head_has_the_headers_of_get(self, api: InMemoryApi) -> None:
        for path in map(with_meta, PATHS):
            got, head = ask(api, "GET", path), ask(api, "HEAD", path)
            assert head.header("Content-Length") == str(len(got.body))
            forget_own(got, head)
            assert (head.status, head.headers, head.body) == (200, got.headers, b"")

    @each("query", ["", "=", "=all", "=Meta", "=meta,more", "=meta&include=meta", "=meta%20"])
    def test_another_value_of_include_is_400(self, api: InMemoryApi, query: str) -> None:
        for path in ("/post", "/post/1", "/post/9", "/post/events"):
            check_problem(ask(api, "GET", f"{path}?include{query}"), 400)

    def test_same_text_changes_no_time(self, api: InMemoryApi) -> None:
        etag = ask(api, "GET", "/post?include=meta").header("ETag")
        assert ask(api, "PUT", "/post/1", post_body("one"), JSON | basic()).status == 200
        assert ask(api, "GET", "/post?include=meta").header("ETag") == etag
        assert read(api, "/post/1?include=meta") == FIRST

    def test_repeated_request_keeps_the_first_time(self, api: InMemoryApi) -> None:
        headers = JSON | basic() | {"Idempotency-Key": "key"}
        for _ in range(2):
            assert ask(api, "POST", "/post", post_body("four"), headers).header("Location") == "/post/4"
            api.clock.advance(1)
        assert read(api, "/post/4?include=meta")["created"] == START.replace("00.000", "01.500")


class EtagTests:
    def test_details_have_an_entity_tag_of_their_own(self, api: InMemoryApi) -> None:
        for path in PATHS:
            plain, detailed = ask(api, "GET", path).header("ETag"), ask(api, "GET", with_meta(path)).header("ETag")
            assert plain != detailed
            for asked, etag in ((path, plain), (with_meta(path), detailed)):
                answer = ask(api, "GET", asked, None, {"If-None-Match": etag})
                assert (answer.status, answer.body, answer.header("ETag")) == (304, b"", etag)
                assert answer.header("Cache-Control") == "no-cache"
                assert ask(api, "GET", asked, None, {"If-Match": etag}).status == 200
            assert ask(api, "GET", path, None, {"If-None-Match": detailed}).status == 200
            assert ask(api, "GET", with_meta(path), None, {"If-None-Match": plain}).status == 200

    def test_each_change_makes_a_new_entity_tag(self, api: InMemoryApi) -> None:
        seen = {ask(api, "GET", "/post/1?include=meta").header("ETag")}
        for text in ("uno", "one"):
            api.clock.advance(1)
            ask(api, "PUT", "/post/1", post_body(text), JSON | basic())
            seen.add(ask(api, "GET", "/post/1?include=meta").header("ETag"))
        assert len(seen) == 3

    @pytest.mark.parametrize("method", ["PUT", "DELETE"])
    @pytest.mark.parametrize("path", ["/post/1", "/post/1?include=meta"])
    def test_write_takes_the_entity_tag_of_either_form(self, api: InMemoryApi, method: str, path: str) -> None:
        etag = ask(api, "GET", path).header("ETag") or ""
        headers = JSON | basic()
        for conditions in ({"If-Match": f'"x{etag[1:]}'}, {"If-None-Match": etag}):
            check_problem(ask(api, method, "/post/1", post_body("x"), headers | conditions), 412)
        assert ask(api, method, "/post/1", post_body("x"), headers | {"If-Match": etag}).status == 200

    def test_list_has_a_gzip_representation(self, api: InMemoryApi) -> None:
        for _ in range(20):
            api.add("x" * 100)
        plain = ask(api, "GET", "/post?include=meta")
        gzipped = ask(api, "GET", "/post?include=meta", None, {"Accept-Encoding": "gzip"})
        assert gzip.decompress(gzipped.body) == plain.body
        assert gzipped.header("ETag") != plain.header("ETag")
        assert {answer.header("Vary") for answer in (plain, gzipped)} == {"Accept-Encoding"}


class LongListTests:
    def fill(self, api: InMemoryApi, many: int) -> None:
        writer = api.store.database.writer
        assert writer is not None
        rows = [(f"post {n}", n, 2 * n, f"user {n % 7}") for n in range(1, many + 1)]
        writer.execute("BEGIN")
        writer.executemany("INSERT INTO post (post, created, updated, author) VALUES (?, ?, ?, ?)", rows)
        writer.execute("COMMIT")

    def test_long_list_is_a_snapshot_that_changes_with_its_posts(self, make: Make) -> None:
        many = 3 * PIECE_POSTS
        api = make(OPEN)
        self.fill(api, many)
        answer = ask(api, "GET", "/post?include=meta")
        posts = json.loads(answer.body)
        assert [post["id"] for post in posts] == list(range(1, many + 1))
        assert posts[6] == {
            "id": 7,
            "post": "post 7",
            "created": "1970-01-01T00:00:00.007Z",
            "updated": "1970-01-01T00:00:00.014Z",
            "author": "user 0",
        }
        etag = answer.header("ETag")
        assert ask(api, "GET", "/post?include=meta", None, {"If-None-Match": etag}).status == 304
        ask(api, "PUT", "/post/300", post_body("changed"), JSON | basic())
        ask(api, "DELETE", "/post/301", None, basic())
        add(api, "last")
        changed = ask(api, "GET", "/post?include=meta")
        assert changed.header("ETag") != etag
        after = json.loads(changed.body)
        assert after[299] == {**posts[299], "post": "changed", "updated": START}
        assert after[300:-1] == posts[301:]
        assert after[-1] == {"id": many + 1, "post": "last", "created": START, "updated": START, "author": "alice"}
        assert read(api, f"/post?include=meta&after={many - 3}&limit=9") == after[-4:]

    def test_list_that_is_too_long_for_a_snapshot_is_streamed(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("postd.web.lists.encoded_posts.PLAIN_MAX_BYTES", 0)
        monkeypatch.setattr("postd.web.lists.encoded_posts.COMPRESSED_MAX_BYTES", 0)
        many = SNAPSHOT_POSTS + PIECE_POSTS
        api = make(OPEN)
        self.fill(api, many)
        for headers in ({}, {"Accept-Encoding": "gzip"}):
            answer = ask(api, "GET", "/post?include=meta", None, headers)
            assert answer.header("ETag") is None
            posts = json.loads(gzip.decompress(answer.body) if headers else answer.body)
            assert [post["id"] for post in posts] == list(range(1, many + 1))
            assert {post["author"] for post in posts} == {f"user {n}" for n in range(7)}


class EventTests:
    def test_events_have_the_details_of_each_change(self, api: InMemoryApi) -> None:
        detailed, plain = Subscriber(api, "/post/events?include=meta"), Subscriber(api)
        assert detailed.wait() == plain.wait() == []
        now = format_timestamp(int(api.clock.seconds() * 1000))
        add(api, "four")
        four = {"id": 4, "post": "four", "created": now, "updated": now, "author": "alice"}
        api.clock.advance(0.05)
        later = format_timestamp(int(api.clock.seconds() * 1000))
        ask(api, "PUT", "/post/4", post_body("vier"), JSON | basic("bob"))
        ask(api, "DELETE", "/post/4", None, basic())
        events = [(event.kind, event.data) for event in detailed.wait()]
        vier = {**four, "post": "vier", "updated": later}
        assert events == [("added", four), ("updated", vier), ("deleted", {"id": 4})]
        plain_data = [{"id": 4, "post": "four"}, {"id": 4, "post": "vier"}, {"id": 4}]
        assert [event.data for event in plain.wait()] == plain_data

    def test_resumed_events_have_the_details_that_are_left(self, api: InMemoryApi) -> None:
        events = Subscriber(api, "/post/events?include=meta&after=0").wait()
        assert [(event.kind, event.data) for event in events] == [("added", FIRST), ("added", THIRD), ("added", SECOND)]


class AnonymousTests:
    """`show_authors = "signed-in"`."""

    @pytest.fixture
    def api(self, make: Make) -> InMemoryApi:
        api = make(f'{OPEN}show_authors = "signed-in"\n')
        add(api, "one")
        return api

    def test_clients_without_credentials_see_no_author(self, api: InMemoryApi) -> None:
        nameless = {**FIRST, "author": None}
        assert read(api, "/post?include=meta") == [nameless]
        assert read(api, "/post/1?include=meta") == nameless
        (event,) = Subscriber(api, "/post/events?include=meta&after=0").wait()
        assert event.data == nameless

    def test_responses_vary_by_the_credentials(self, api: InMemoryApi) -> None:
        for path, vary in (("/post", "Accept-Encoding, "), ("/post/1", "")):
            answer = ask(api, "GET", f"{path}?include=meta")
            assert answer.header("Vary") == f"{vary}Authorization, Cookie"
            assert answer.header("Cache-Control") == "no-cache"
            etag = answer.header("ETag")
            unchanged = ask(api, "GET", f"{path}?include=meta", None, {"If-None-Match": etag})
            assert (unchanged.status, unchanged.header("Vary")) == (304, answer.header("Vary"))

    def test_entity_tag_without_the_author_may_be_named_in_a_write(self, api: InMemoryApi) -> None:
        etag = ask(api, "GET", "/post/1?include=meta").header("ETag") or ""
        assert ask(api, "DELETE", "/post/1", None, basic() | {"If-Match": etag}).status == 200

    def test_credentials_that_are_not_required_show_it(self, api: InMemoryApi) -> None:
        for path, expected in (("/post", [FIRST]), ("/post/1", FIRST)):
            answer = ask(api, "GET", f"{path}?include=meta", None, basic("bob"))
            assert json.loads(answer.body) == expected
            assert answer.header("Cache-Control") == "private, no-store"
            assert ask(api, "GET", f"{path}?include=meta").header("ETag") != answer.header("ETag")
            assert ask(api, "GET", f"{path}?include=meta", None, basic("bob", "wrong")).status == 401
        (event,) = Subscriber(api, "/post/events?include=meta&after=0", **basic("bob")).wait()
        assert event.data == FIRST

    def test_clients_with_credentials_see_it(self, make: Make) -> None:
        api = make('[api]\nread = ["basic"]\nwrite = ["basic"]\nshow_authors = "signed-in"\n')
        add(api, "one")
        for path, expected in (("/post", [FIRST]), ("/post/1", FIRST)):
            answer = ask(api, "GET", f"{path}?include=meta", None, basic("bob"))
            assert json.loads(answer.body) == expected
            assert answer.header("Cache-Control") == "private, no-store"
        (event,) = Subscriber(api, "/post/events?include=meta&after=0", **basic("bob")).wait()
        assert event.data == FIRST


class OwnTests:
    """`own`: only the author of a post and the moderators change it."""

    OWN = 'own = true\nmoderators = ["bob", "https://idp.example#alice"]\n'
    USERS = account("alice") + account("bob") + account("carol")

    @pytest.fixture
    def api(self, make: Make) -> InMemoryApi:
        """Posts of alice and bob, and one without an author; bob is a moderator."""
        api = make(OPEN + self.OWN, users=self.USERS)
        add(api, "one")
        add(api, "two", "bob")
        api.add("three")
        return api

    @pytest.mark.parametrize("method", ["PUT", "DELETE"])
    def test_author_and_moderator_change_a_post(self, api: InMemoryApi, method: str) -> None:
        for user, post_id in (("alice", 1), ("bob", 2), ("bob", 3)):
            etag = ask(api, "GET", f"/post/{post_id}").header("ETag") or ""
            headers = JSON | basic(user) | {"If-Match": etag}
            assert ask(api, method, f"/post/{post_id}", post_body("new"), headers).status == 200
        assert [post["post"] for post in read(api, "/post")] == (["new"] * 3 if method == "PUT" else [])

    @pytest.mark.parametrize("method", ["PUT", "DELETE"])
    def test_others_are_refused(self, api: InMemoryApi, method: str) -> None:
        before = read(api, "/post")
        for user, post_id in (("carol", 1), ("alice", 2), ("alice", 3), ("carol", 3)):
            for conditions in ({}, {"If-Match": "*"}, {"If-Match": '"other"'}, {"If-None-Match": "*"}):
                headers = JSON | basic(user) | conditions
                problem = check_problem(ask(api, method, f"/post/{post_id}", post_body("new"), headers), 403)
                detail = f"Post {post_id} may be changed only by its author and by moderators."
                assert problem["detail"] == detail
        for headers in ({}, {"If-Match": '"other"'}):
            check_problem(ask(api, method, "/post/9", post_body("x"), JSON | basic("carol") | headers), 404)
        assert read(api, "/post") == before

    def test_moderator_may_change_the_text_of_another_author(self, api: InMemoryApi) -> None:
        api.clock.advance(1)
        assert ask(api, "PUT", "/post/1", post_body("moderated"), JSON | basic("bob")).status == 200
        post = read(api, "/post/1?include=meta")
        assert (post["post"], post["author"], post["created"] < post["updated"]) == ("moderated", "alice", True)

    def test_owner_of_a_token_is_not_the_account_with_its_name(self, make: Make) -> None:
        api = make(f'{OPEN}own = true\nmoderators = ["https://idp.example#alice"]\n')
        add(api, "one", "bob")
        check_problem(ask(api, "DELETE", "/post/1", None, basic("alice")), 403)

    def test_clients_without_credentials_change_nothing(self, make: Make) -> None:
        api = make("[api]\nown = true\n")
        assert ask(api, "POST", "/post", post_body("one"), JSON).status == 201
        check_problem(ask(api, "PUT", "/post/1", post_body("two"), JSON), 403)
        check_problem(ask(api, "DELETE", "/post/1"), 403)

    def test_change_is_refused_in_the_step_that_would_write_it(self, api: InMemoryApi) -> None:
        """The post is deleted and imported again, with another author, after its conditions were checked."""
        get = api.store.get_details

        async def get_late(post_id: int) -> PostDetails:
            found = await get(post_id)
            await api.store.delete_post(post_id)
            pending = await api.store.begin_import()
            await pending.add([PostDetails(post_id, found.post, author="carol")])
            await pending.commit()
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api.store, "get_details", get_late)
            check_problem(ask(api, "DELETE", "/post/1", None, basic() | {"If-Match": "*"}), 403)
        assert read(api, "/post/1")["post"] == "one"

    def test_board_refuses_others(self, make: Make) -> None:
        api = make(f'[api]\nread = ["session"]\nwrite = ["session"]\n{self.OWN}', users=self.USERS)
        alice, carol = (sign_in(api, name) for name in ("alice", "carol"))
        assert ask(api, "POST", "/board", b"post=hello", alice | FORM).status == 303
        page = ask(api, "GET", "/board/1", None, alice).body.decode()
        was = re.findall(r'name="?was"? value="([^"]*)"', page)[0]
        change = urlencode({"post": "changed", "was": was}).encode()
        assert ask(api, "POST", "/board/1", change, carol | FORM).status == 403
        assert ask(api, "POST", "/board/1/delete", change, carol | FORM).status == 403
        assert ask(api, "POST", "/board/1", change, alice | FORM).status == 303
        assert read(api, "/post/1", **alice)["post"] == "changed"


FORM = {"Content-Type": FORM_TYPE}


def sign_in(api: InMemoryApi, name: str) -> dict[str, str]:
    body = urlencode({"username": name, "password": PASSWORD}).encode()
    cookie = ask(api, "POST", "/login", body, FORM).header("Set-Cookie") or ""
    return {"Cookie": cookie.partition(";")[0]}
