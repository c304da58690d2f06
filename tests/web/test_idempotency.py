"""`Idempotency-Key`: a repeated POST takes effect once (reference: Idempotency keys)."""

import json
from collections.abc import Callable
from typing import Any

from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own
from tests.web.clients import basic
from tests.web.test_posts import JSON, check_problem, post_body
from tests.web.wire import ask, begin

DAY_S = 24 * 3600


def add(api: InMemoryApi, body: bytes, *keys: str, **more: Any) -> Response:
    return ask(api, "POST", "/post", body, {**JSON, "Idempotency-Key": list(keys), **more})


def texts(api: InMemoryApi, **headers: Any) -> list[str]:
    return [post["post"] for post in json.loads(ask(api, "GET", "/post", headers=headers).body)]


def test_repeated_request_gets_the_first_response(api: InMemoryApi) -> None:
    first = add(api, post_body("one"), "k-1")
    assert (first.status, first.body, first.header("Location")) == (201, b"Success a Post!\n", "/post/1")
    again = add(api, post_body("one"), "k-1")
    forget_own(first, again)
    assert (again.status, again.headers, again.body) == (201, first.headers, first.body)
    ask(api, "DELETE", "/post/1")
    assert add(api, post_body("one"), "k-1").header("Location") == "/post/1"
    assert texts(api) == []


def test_request_with_another_key_or_none_stores_another_post(api: InMemoryApi) -> None:
    for keys in (["k-1"], ["K-1"], ['"k-1"'], [], []):
        assert add(api, post_body("one"), *keys).status == 201
    assert texts(api) == ["one"] * 5


def test_same_key_with_another_body_is_422(api: InMemoryApi) -> None:
    add(api, post_body("one"), "k-1")
    check_problem(add(api, post_body("two"), "k-1"), 422)
    check_problem(add(api, post_body("one") + b" ", "k-1"), 422)  # other bytes, although the same JSON
    assert texts(api) == ["one"]


def test_failed_request_does_not_use_the_key(api: InMemoryApi) -> None:
    check_problem(add(api, b"{", "k-1"), 400)
    check_problem(add(api, post_body(""), "k-1"), 422, "/post")
    assert add(api, post_body("one"), "k-1").header("Location") == "/post/1"


def test_key_expires_after_a_day(api: InMemoryApi) -> None:
    assert add(api, post_body("one"), "k-1").header("Location") == "/post/1"
    api.clock.rightNow += DAY_S - 1
    assert add(api, post_body("one"), "k-1").header("Location") == "/post/1"
    api.clock.rightNow += 1
    assert add(api, post_body("one"), "k-1").header("Location") == "/post/2"


@each("key", ["", "a b", "ü", "x" * 256, "a\tb"], ids=["empty", "space", "umlaut", "long", "tab"])
def test_invalid_key_is_400(api: InMemoryApi, key: str) -> None:
    check_problem(add(api, post_body("one"), key), 400)
    assert texts(api) == []


def test_repeated_key_field_is_400(api: InMemoryApi) -> None:
    check_problem(add(api, post_body("one"), "k-1", "k-1"), 400)
    assert add(api, post_body("one"), "x" * 255).status == 201


def test_keys_of_different_users_are_separate(make: Callable[..., InMemoryApi]) -> None:
    api = make('[api]\nread = ["basic"]\nwrite = ["basic"]\n')
    for user, location in (("alice", "/post/1"), ("bob", "/post/2"), ("alice", "/post/1"), ("bob", "/post/2")):
        assert add(api, post_body("one"), "k-1", **basic(user)).header("Location") == location
    check_problem(add(api, post_body("two"), "k-1", **basic("bob")), 422)
    assert texts(api, **basic()) == ["one", "one"]


def test_concurrent_request_with_the_same_key_is_409(api: InMemoryApi) -> None:
    headers = {**JSON, "Idempotency-Key": "k-1"}
    asked = [begin(api, "POST", "/post", post_body("one"), headers) for _ in range(3)]  # no post is stored yet
    first, *others = [one.response() for one in asked]
    assert first.status == 201
    for other in others:
        check_problem(other, 409)
        assert other.header("Retry-After") == "1"
    assert texts(api) == ["one"]
    assert add(api, post_body("one"), "k-1").status == 201


def test_put_ignores_the_key(api: InMemoryApi) -> None:
    api.add("one")
    for text in ("two", "three"):
        answer = ask(api, "PUT", "/post/1", post_body(text), {**JSON, "Idempotency-Key": ["a b", "c"]})
        assert answer.status == 200
