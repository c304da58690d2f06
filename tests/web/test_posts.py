"""The post API, row by row of the table in docs/reference/http.md."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own
from tests.store.contract import texts
from tests.web.wire import ask

JSON = {"Content-Type": "application/json"}


def post_body(text: str) -> bytes:
    return json.dumps({"post": text}).encode()


def check_problem(answer: Response, status: int, pointer: str | None = None) -> dict[str, Any]:
    """Check an error of the API (RFC 9457); return the problem."""
    assert answer.header("Content-Type") == "application/problem+json"
    assert answer.header("Cache-Control") == "no-store"
    problem: dict[str, Any] = json.loads(answer.body)
    assert (answer.status, problem["status"]) == (status, status)
    assert problem["type"] == "about:blank"
    assert problem["title"]
    assert problem["detail"]
    assert problem.get("pointer") == pointer
    return problem


class ListTests:
    def test_empty_list_is_an_empty_array(self, api: InMemoryApi) -> None:
        answer = ask(api, "GET", "/post")
        assert (answer.status, answer.body) == (200, b"[]\n")

    def test_list_is_indented_by_two_spaces_and_ascending(self, api: InMemoryApi) -> None:
        for text in ("first", 'quote " and \\', "Grüße, 世界 🚀\n"):
            api.add(text)
        answer = ask(api, "GET", "/post")
        posts = [{"id": n, "post": text} for n, text in enumerate(("first", 'quote " and \\', "Grüße, 世界 🚀\n"), 1)]
        assert answer.body.decode() == json.dumps(posts, indent=2, ensure_ascii=False) + "\n"
        assert answer.header("Content-Type") == "application/json"
        assert answer.header("Cache-Control") == "no-cache"
        assert answer.header("X-Content-Type-Options") == "nosniff"

    def test_list_shows_every_change(self, api: InMemoryApi) -> None:
        ask(api, "POST", "/post", post_body("one"), JSON)
        assert json.loads(ask(api, "GET", "/post").body) == [{"id": 1, "post": "one"}]
        ask(api, "PUT", "/post/1", post_body("uno"), JSON)
        assert json.loads(ask(api, "GET", "/post").body) == [{"id": 1, "post": "uno"}]
        ask(api, "DELETE", "/post/1")
        assert json.loads(ask(api, "GET", "/post").body) == []

    def test_head_has_the_headers_of_get_and_no_body(self, api: InMemoryApi) -> None:
        api.add("one")
        for path in ("/post", "/post/1", "/post?limit=1", "/post/2"):
            got, head = ask(api, "GET", path), ask(api, "HEAD", path)
            assert head.header("Content-Length") == str(len(got.body))
            forget_own(got, head)
            assert (head.status, head.headers, head.body) == (got.status, got.headers, b"")

    def test_link_leads_through_all_pages(self, api: InMemoryApi) -> None:
        for n in range(7):
            api.add(f"post {n}")
        path, seen, requests = "/post?limit=3", [], 0
        while path:
            answer = ask(api, "GET", path)
            seen += [post["id"] for post in json.loads(answer.body)]
            link, requests = answer.header("Link"), requests + 1
            path = link.removeprefix("<").removesuffix('>; rel="next"') if link else ""
        assert (seen, requests) == ([1, 2, 3, 4, 5, 6, 7], 3)

    def test_after_may_name_a_missing_post(self, api: InMemoryApi) -> None:
        for n in range(3):
            api.add(f"post {n}")
        for path, ids in (
            ("/post?after=1", [2, 3]),
            ("/post?after=3", []),
            ("/post?after=0", [1, 2, 3]),
            ("/post?after=9007199254740991", []),
            ("/post?limit=1000&after=2&unknown=x", [3]),
        ):
            answer = ask(api, "GET", path)
            assert answer.status == 200
            assert [post["id"] for post in json.loads(answer.body)] == ids
            assert answer.header("Link") is None

    @each(
        "query",
        [
            *("limit=0", "limit=1001", "limit=-1", "limit=x", "limit=", "limit", "limit=1.5", "limit=01", "limit=%201"),
            *("x&" * 100, "limit=1" + "&" * 100),
            *("limit=1&limit=2", "limit=1_0", "limit=%D9%A1", "limit=99999999999999999999"),
            *("after=-1", "after=x", "after=", "after=01", "after=9007199254740992", "after=1&after=1", "after=+1"),
        ],
    )
    def test_invalid_paging_parameter_is_400(self, api: InMemoryApi, query: str) -> None:
        check_problem(ask(api, "GET", f"/post?{query}"), 400)

    @given(
        query=st.text(st.characters(codec="ascii", categories=["L", "N", "P"]) | st.sampled_from("&=%+;"), max_size=30)
    )
    def test_any_query_is_answered(self, api: InMemoryApi, query: str) -> None:
        assert ask(api, "GET", f"/post?after=%FF&{query}").status == 400
        assert ask(api, "GET", f"/post?limit={query}").status in {200, 400}


class EtagTests:
    def test_matching_if_none_match_is_304(self, api: InMemoryApi) -> None:
        api.add("one")
        for path in ("/post", "/post?limit=1", "/post/1"):
            etag = ask(api, "GET", path).header("ETag") or ""
            assert etag.startswith('"')
            for value in (etag, f"W/{etag}", f'"other", {etag}', f'"a,b" ,\t{etag},, W/"c",', "*"):
                answer = ask(api, "GET", path, headers={"If-None-Match": value})
                assert (answer.status, answer.body, answer.header("ETag")) == (304, b"", etag)
                assert answer.header("Cache-Control") == "no-cache"
            for value in ('"other"', etag.strip('"'), f'W/"x{etag[1:]}', "", f"{etag}x", f"w/{etag}"):
                assert ask(api, "GET", path, headers={"If-None-Match": value}).status == 200

    def test_different_lists_have_different_etags(self, api: InMemoryApi) -> None:
        seen = {ask(api, "GET", "/post").header("ETag")}
        for n, (method, path) in enumerate(
            [("POST", "/post"), ("PUT", "/post/1"), ("PUT", "/post/1"), ("POST", "/post"), ("DELETE", "/post/1")]
        ):
            ask(api, method, path, post_body(f"text {n % 2}"), JSON)
            seen.add(ask(api, "GET", "/post").header("ETag"))
        assert len(seen) == 6
        pages = {ask(api, "GET", f"/post?{query}").header("ETag") for query in ("limit=1", "limit=2", "after=1")}
        assert len(seen | pages) == 9

    def test_diverged_histories_have_different_etags(self) -> None:
        """As after a restored backup: the same number of changes, but different ones."""
        tags = set()
        for text in ("one", "another"):
            api = InMemoryApi()
            api.add(text)
            tags.add(ask(api, "GET", "/post").header("ETag"))
            api.close()
        assert len(tags) == 2

    def test_refused_write_keeps_the_etag(self, api: InMemoryApi) -> None:
        api.add("one")
        etag = ask(api, "GET", "/post").header("ETag")
        ask(api, "PUT", "/post/2", post_body("x"), JSON)
        ask(api, "DELETE", "/post/2")
        ask(api, "POST", "/post", b"{}", JSON)
        assert ask(api, "GET", "/post").header("ETag") == etag

    @pytest.mark.parametrize("method", ["PUT", "DELETE"])
    def test_write_with_failed_precondition_is_412(self, api: InMemoryApi, method: str) -> None:
        api.add("one")
        etag = ask(api, "GET", "/post/1").header("ETag") or ""
        for headers in (
            {"If-Match": '"other"'},
            {"If-Match": f"W/{etag}"},  # a weak tag never matches here (RFC 9110 §13.1.1)
            {"If-Match": "nonsense"},
            {"If-Match": f"{etag}x"},
            {"If-Match": f"x{etag}"},
            {"If-Match": f"w/{etag}"},
            {"If-Match": f"{etag} {etag}"},
            {"If-Match": f"{etag}, *"},
            {"If-None-Match": etag},
            {"If-None-Match": "*"},
        ):
            check_problem(ask(api, method, "/post/1", post_body("x"), JSON | headers), 412)
        assert json.loads(ask(api, "GET", "/post/1").body)["post"] == "one"

    def test_412_names_a_proxy_that_alters_the_entity_tag(self, api: InMemoryApi) -> None:
        api.add("one")
        etag = ask(api, "GET", "/post/1").header("ETag") or ""
        suffixes = ("-gzip", "--gzip", "-df", "-br", "-zstd", ";gzip", "-deflate")
        altered = [f"W/{etag}", *(f'{etag[:-1]}{suffix}"' for suffix in suffixes)]
        altered += [f'"other", {altered[1]}', f'{altered[0]}, W/"other"']
        other = [
            '"other"',
            'W/"other"',
            '"other-gzip"',
            f'"x{etag[1:-1]}-gzip"',
            f'{etag[:-1]}-gzip-12"',
            f'{etag[:-1]}x"',
        ]
        for values, is_named in ((altered, True), (other, False)):
            for value in values:
                for method in ("PUT", "DELETE", "GET"):
                    answer = ask(api, method, "/post/1", post_body("x"), JSON | {"If-Match": value})
                    check_problem(answer, 412)
                    assert ("proxy" in json.loads(answer.body)["detail"]) == is_named, value

    @pytest.mark.parametrize("method", ["PUT", "DELETE"])
    @pytest.mark.parametrize("value", ["{}", '"other", {}', "*"])
    def test_write_with_matching_precondition_is_done(self, api: InMemoryApi, method: str, value: str) -> None:
        api.add("one")
        etag = ask(api, "GET", "/post/1").header("ETag") or ""
        headers = JSON | {"If-Match": value.replace("{}", etag)}
        assert ask(api, method, "/post/1", post_body("x"), headers).status == 200

    def test_missing_post_is_404_before_412(self, api: InMemoryApi) -> None:
        check_problem(ask(api, "PUT", "/post/1", post_body("x"), JSON | {"If-Match": '"a"'}), 404)
        check_problem(ask(api, "DELETE", "/post/1", headers={"If-Match": "*"}), 404)

    def test_read_with_failed_if_match_is_412(self, api: InMemoryApi) -> None:
        check_problem(ask(api, "GET", "/post", headers={"If-Match": '"other"'}), 412)


class WriteTests:
    def test_post_adds_a_post(self, api: InMemoryApi) -> None:
        answer = ask(api, "POST", "/post", post_body("one"), JSON)
        assert (answer.status, answer.body) == (201, b"Success a Post!\n")
        assert answer.header("Location") == "/post/1"
        assert answer.header("Content-Type") == "text/plain; charset=utf-8"

    def test_get_returns_one_post(self, api: InMemoryApi) -> None:
        api.add("one")
        answer = ask(api, "GET", "/post/1")
        assert (answer.status, answer.body) == (200, b'{\n  "id": 1,\n  "post": "one"\n}\n')
        assert answer.header("Content-Type") == "application/json"

    def test_put_replaces_the_text(self, api: InMemoryApi) -> None:
        api.add("one")
        answer = ask(api, "PUT", "/post/1", post_body("uno"), JSON)
        assert (answer.status, answer.body) == (200, b"Update a Post!\n")
        assert answer.header("Content-Type") == "text/plain; charset=utf-8"

    def test_delete_removes_the_post(self, api: InMemoryApi) -> None:
        api.add("one")
        answer = ask(api, "DELETE", "/post/1")
        assert (answer.status, answer.body) == (200, b"Delete a Post!\n")
        check_problem(ask(api, "DELETE", "/post/1"), 404)

    def test_put_never_creates(self, api: InMemoryApi) -> None:
        check_problem(ask(api, "PUT", "/post/1", post_body("x"), JSON), 404)
        assert ask(api, "GET", "/post").body == b"[]\n"

    @given(text=texts)
    def test_any_text_comes_back_exactly(self, api: InMemoryApi, text: str) -> None:
        location = ask(api, "POST", "/post", post_body(text), JSON).header("Location") or ""
        assert json.loads(ask(api, "GET", location).body)["post"] == text
        assert json.loads(ask(api, "GET", "/post").body)[-1]["post"] == text


class BadBodyTests:
    """No bad body gives a 5xx or changes the store."""

    def send(self, api: InMemoryApi, body: bytes, headers: dict[str, Any] = JSON) -> Iterator[Response]:
        """Send a bad body by POST and by PUT."""
        api.add("untouched")
        posts = ask(api, "GET", "/post").body
        for method, path in (("POST", "/post"), ("PUT", "/post/1")):
            yield ask(api, method, path, body, headers)
            assert ask(api, "GET", "/post").body == posts

    @each(
        "body",
        [
            *(b"", b" ", b"{", b'{"post"', b'{"post":"x"', b'{"post":"x"}}', b'{"post":"x",}', b"{'post':'x'}"),
            *(b'{"post":"x"} trailing', b'{"post":"\xff"}', b'\xef\xbb\xbf{"post":"x"}', b'{"post":"\x01"}'),
            *(b'{"post":"x","post":"y"}', b'{"post":"x","p\\u006fst":"y"}', b'{"post":"x","post":"x"}'),
            *(b"[]", b"null", b"1", b'"post"', b'["post"]', b'[["post","x"]]', b"NaN", b'{"post":"x","n":NaN}'),
            *(b'{"post":"x","n":Infinity}', b'{"post":"x","n":01}', b"[" * 5000 + b"]" * 5000, b"post=x"),
            *('{"post":"x"}'.encode("utf-16"), b'{"post":"\\x"}', b"\0"),
        ],
    )
    def test_body_other_than_a_json_object_is_400(self, api: InMemoryApi, body: bytes) -> None:
        for answer in self.send(api, body):
            check_problem(answer, 400)

    def test_byte_order_mark_is_named(self, api: InMemoryApi) -> None:
        for answer in self.send(api, b'\xef\xbb\xbf{"post":"x"}'):
            assert check_problem(answer, 400)["detail"] == "The body is not JSON: it begins with a byte order mark."

    @each(
        "body",
        [
            *(b"{}", b'{"Post":"x"}', b'{"post":null}', b'{"post":1}', b'{"post":["x"]}', b'{"post":{}}'),
            *(b'{"post":true}', b'{"post":""}', b'{"post":"\\u0000"}', b'{"post":"a\\u0000b"}', b'{"id":1}'),
            *(
                b'{"\\ud800":1}',
                b'{"post":{"\\ud800":1}}',
                b'{"post":"\\ud800"}',
                b'{"post":"x\\udfff"}',
                b'{"post":"\\ude80\\ud83d"}',
            ),
            *(post_body("x" * 141), post_body("\U0001f680" * 141), post_body("x" * 10_000)),
        ],
    )
    def test_invalid_text_is_422(self, api: InMemoryApi, body: bytes) -> None:
        for answer in self.send(api, body):
            problem = check_problem(answer, 422, pointer="/post")
            assert problem["title"] == "Unprocessable Content"

    @each(
        "headers",
        [
            {},
            {"Content-Type": ""},
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/jsonx"},
            {"Content-Type": "application/json-seq"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Content-Type": "multipart/form-data; boundary=x"},
            {"Content-Type": "application/json; charset=latin-1"},
            {"Content-Type": "application/json; charset=utf-16"},
            {"Content-Type": "application/json; charset="},
            {"Content-Type": "application/json; charset"},
            {"Content-Type": "application/json; charset=utf-8; charset=latin-1"},
            {"Content-Type": ["application/json", "text/plain"]},
            {"Content-Type": "text/plain, application/json"},
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        ],
    )
    def test_other_content_type_is_415(self, api: InMemoryApi, headers: dict[str, Any]) -> None:
        for answer in self.send(api, post_body("x"), headers):
            check_problem(answer, 415)

    @given(
        body=st.builds(
            lambda start, name, colon, text, end: start + name + colon + text + end,
            *(st.sampled_from(parts) for parts in ((b"{", b" {\n", b"{{", b"\f{"), (b'"post"', b"'post'", b'"Post"'))),
            st.sampled_from((b":", b" :\t", b"::", b"")),
            st.text(st.sampled_from(' !#[]~"\\\x7f\ne\xe9'), max_size=5).map(lambda text: f'"{text}"'.encode()),
            st.sampled_from((b"}", b" }\r\n", b"}}", b",}", b"")),
        )
    )
    def test_fast_path_agrees_with_the_json_decoder(self, api: InMemoryApi, body: bytes) -> None:
        answer = ask(api, "POST", "/post", body, JSON)
        try:
            wanted = json.loads(body)
        except ValueError:
            assert answer.status == 400
            return
        if wanted.get("post", "") == "":
            assert answer.status == 422
        else:
            assert json.loads(ask(api, "GET", answer.headers["location"][0]).body)["post"] == wanted["post"]

    @given(body=st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")))
    def test_any_bytes_are_answered(self, api: InMemoryApi, body: bytes) -> None:
        assert ask(api, "POST", "/post", body, JSON).status in {400, 422}

    @given(
        value=st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        )
    )
    def test_any_json_is_answered(self, api: InMemoryApi, value: Any) -> None:
        body = json.dumps({"post": value}).encode()
        assert ask(api, "POST", "/post", body, JSON).status in {201, 400, 422}

    def test_longest_text_is_accepted(self, api: InMemoryApi) -> None:
        for text in ("x" * 140, "é" * 140, "\U0001f680" * 140):
            assert ask(api, "POST", "/post", post_body(text), JSON).status == 201

    @pytest.mark.parametrize(
        "body",
        [
            b'{"post":"x","id":99}',
            b' \r\n\t{ "other" : [1, {"post": 2}] , "post":"x" } ',
            b'{"n":1e999,"m":' + b"9" * 6000 + b',"post":"x"}',
            b'{"post":"x","other":1,"other":2}',
            b'{"post":"x","\\ud800":1,"nested":{"\\ud800":"\\udfff"}}',
            b'{"post":"x","deep":' + b"[" * 499 + b"]" * 499 + b"}",
        ],
    )
    def test_other_members_are_ignored(self, api: InMemoryApi, body: bytes) -> None:
        answer = ask(api, "POST", "/post", body, JSON)
        assert (answer.status, answer.header("Location")) == (201, "/post/1")
        assert json.loads(ask(api, "GET", "/post/1").body) == {"id": 1, "post": "x"}

    @each(
        "value",
        [
            *("application/json; charset=utf-8", "APPLICATION/JSON;CHARSET=UTF-8", 'application/json; charset="utf-8"'),
            *("application/json;profile=x", "application/json ;charset=utf-8"),
        ],
    )
    def test_json_media_type_may_have_parameters(self, api: InMemoryApi, value: str) -> None:
        assert ask(api, "POST", "/post", post_body("x"), {"Content-Type": value}).status == 201


class AddressTests:
    @each(
        "address",
        [
            *("0", "01", "-1", "+1", "1.0", "1_0", "x", "1x", "9007199254740992", "99999999999999999999", "%D9%A1"),
            *("%20", "%201", "1%0A", "%00", "%FF", "1/", "1/2", "", "%2F1", "1%2F", "/1", "1//"),
        ],
    )
    def test_invalid_id_is_404(self, api: InMemoryApi, address: str) -> None:
        api.add("one")
        posts = ask(api, "GET", "/post").body
        for method in ("GET", "HEAD", "PUT", "DELETE", "POST", "OPTIONS", "PATCH"):
            answer = ask(api, method, f"/post/{address}", post_body("x"), JSON)
            assert answer.status == 404
            assert answer.header("Content-Type") == "application/problem+json"
            assert ask(api, "GET", "/post").body == posts

    @pytest.mark.parametrize("post_id", [1, 9007199254740991])
    def test_unknown_id_is_404(self, api: InMemoryApi, post_id: int) -> None:
        for method in ("GET", "PUT", "DELETE"):
            problem = check_problem(ask(api, method, f"/post/{post_id}", post_body("x"), JSON), 404)
            assert str(post_id) in problem["detail"]

    @each("path", ["/nothing", "/postal", "//post", "/POST", "/%2Fpost", "/post%2F1", "/%FF", "//post/1"])
    def test_unknown_path_is_404(self, api: InMemoryApi, path: str) -> None:
        api.add("one")
        answer = ask(api, "GET", path)
        assert (answer.status, answer.body) == (404, b"Not Found\n")
        assert answer.header("Content-Type") == "text/plain; charset=utf-8"

    def test_escaped_path_is_equivalent(self, api: InMemoryApi) -> None:
        api.add("one")
        assert ask(api, "GET", "/%70ost/%31").status == 200
        check_problem(ask(api, "GET", "/%70ost/%32"), 404)

    @pytest.mark.parametrize(
        ("path", "allow"),
        [("/post", "GET, HEAD, OPTIONS, POST"), ("/post/1", "DELETE, GET, HEAD, OPTIONS, PUT")],
    )
    def test_other_method_is_405_with_allow(self, api: InMemoryApi, path: str, allow: str) -> None:
        methods = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "FOO"}
        for method in methods - set(allow.split(", ")):
            answer = ask(api, method, path, post_body("x"), JSON)
            check_problem(answer, 405)
            assert answer.header("Allow") == allow
        answer = ask(api, "OPTIONS", path)
        assert (answer.status, answer.header("Allow"), answer.body) == (204, allow, b"")

    def test_unknown_host_name_is_accepted_by_default(self, api: InMemoryApi) -> None:
        for host in ("x" * 1000, "no.such.name.", "[::1]:99", "a_b", ""):
            assert ask(api, "GET", "/post", headers={"Host": host}).status == 200

    def test_invalid_host_is_refused(self, api: InMemoryApi) -> None:
        for host in ("a b", "[::1", "localhost:port", "\xe9", "a@b", "a/b"):
            check_problem(ask(api, "GET", "/post", headers={"Host": host.encode("latin-1")}), 400)
