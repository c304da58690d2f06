"""The OpenAPI document: validity, completeness, and agreement with the server."""

import gzip
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from klein import Klein
from openapi_schema_validator import OAS31Validator, oas31_format_checker
from openapi_spec_validator import OpenAPIV31SpecValidator

import postd.web
from postd.web.openapi import document as documents
from tests.cases import each
from tests.helpers import InMemoryApi, Response, forget_own
from tests.protect.test_bearer import ISSUERS
from tests.protect.test_guard import log_in
from tests.web.clients import basic
from tests.web.test_posts import JSON, check_problem, post_body
from tests.web.wire import FORM, ask

METHODS = {"GET", "POST", "PUT", "DELETE", "PATCH"}

ALL = '[api]\nread = ["session", "basic"]\nwrite = ["digest", "bearer", "session"]\n[accounts]\ntokens = true\n'
BODIES: dict[str, tuple[Any, int]] = {
    "Unicode text": ({"post": "Grüße, 世界 🚀\n"}, 201),
    "the longest": ({"post": "x" * 140}, 201),
    "the longest beyond the BMP": ({"post": "🚀" * 140}, 201),
    "further members": ({"post": "x", "id": 7, "more": None}, 201),
    "too long": ({"post": "x" * 141}, 422),
    "too long beyond the BMP": ({"post": "🚀" * 141}, 422),
    "empty": ({"post": ""}, 422),
    "a NUL": ({"post": "a\0b"}, 422),
    "a number": ({"post": 1}, 422),
    "null": ({"post": None}, 422),
    "no text": ({}, 422),
    "an array": ([], 400),
    "a string": ("x", 400),
}
OPTIONAL = ["", "basic", "digest", "session"]
"""Schemes whose credentials are checked where none are required: all that have accounts or issuers."""

RULES = {
    "open": ('[api]\nread = ["open"]\nwrite = ["open"]\n', OPTIONAL, OPTIONAL),
    "open and another scheme": ('[api]\nread = ["basic", "open"]\nwrite = ["digest"]\n', OPTIONAL, ["digest"]),
    "in the order of the challenges": (ALL, ["basic", "session"], ["digest", "bearer", "session"]),
    "two kinds of tokens": (
        '[api]\nread = ["token", "open"]\nwrite = ["token", "bearer"]\n',
        [*OPTIONAL, "token"],
        ["bearer", "token"],
    ),
    "session only": ('[api]\nread = ["session"]\nwrite = ["session"]\n', ["session"], ["session"]),
}


_OTHER_ETAG = {"If-Match": '"000000000000000000000000"'}
REQUESTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("GET", "/post", "/post", {}),
    ("POST", "/post", "/post", {"body": post_body("one"), "headers": JSON}),
    ("POST", "/post", "/post", {"body": b"{", "headers": JSON}),
    ("POST", "/post", "/post", {"body": post_body(""), "headers": JSON}),
    ("POST", "/post", "/post", {"body": post_body("one")}),
    ("POST", "/post", "/post", {"body": b" " * 20_000, "headers": JSON}),
    ("POST", "/post", "/post", {"body": post_body("1"), "headers": {**JSON, "Idempotency-Key": "a b"}}),
    ("GET", "/post", "/post", {}),
    ("GET", "/post?limit=0", "/post", {}),
    ("GET", "/post", "/post", {"headers": {"If-None-Match": "*"}}),
    ("GET", "/post/1", "/post/{id}", {}),
    ("GET", "/post?include=meta", "/post", {}),
    ("GET", "/post/1?include=meta", "/post/{id}", {}),
    ("GET", "/post/1?include=more", "/post/{id}", {}),
    ("GET", "/feed.atom", "/feed.atom", {}),
    ("GET", "/feed.atom", "/feed.atom", {"headers": {"If-None-Match": "*"}}),
    ("GET", "/post/1", "/post/{id}", {"headers": _OTHER_ETAG}),
    ("GET", "/post/9", "/post/{id}", {}),
    ("PUT", "/post/1", "/post/{id}", {"body": post_body("uno"), "headers": JSON}),
    ("PUT", "/post/1", "/post/{id}", {"body": post_body("x"), "headers": {**JSON, **_OTHER_ETAG}}),
    ("PUT", "/post/9", "/post/{id}", {"body": post_body("uno"), "headers": JSON}),
    ("DELETE", "/post/1", "/post/{id}", {}),
    ("DELETE", "/post/1", "/post/{id}", {}),
    ("GET", "/post?" + "x" * 20_000, "/post", {}),
    ("GET", "/post", "/post", {"headers": {"X": "x" * 60_000}}),
    ("GET", "/openapi.json", "/openapi.json", {}),
    ("GET", "/docs", "/docs", {}),
    ("GET", "/", "/", {}),
    ("GET", "/home", "/home", {}),
    ("GET", "/logout", "/logout", {}),
    ("POST", "/logout", "/logout", {}),
    ("POST", "/logout", "/logout", {"headers": {"Sec-Fetch-Site": "cross-site"}}),
    ("POST", "/login", "/login", {"body": b"", "headers": {"Content-Type": FORM}}),
    ("POST", "/login", "/login", {"body": b""}),
]
"""Requests: method, target, path in the document, and the arguments of `ask`."""


def read(api: InMemoryApi) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ask(api, "GET", "/openapi.json").body)
    return document


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def find_applications() -> dict[str, Klein]:
    """Return the Klein applications of all classes in postd.web except the admin listener's, by class name."""
    found = {}
    for info in pkgutil.walk_packages(postd.web.__path__, "postd.web."):
        if info.name == "postd.web.admin":
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, type) and isinstance(vars(value).get("app"), Klein):
                found[name] = vars(value)["app"]
    return found


def find_routes(api: InMemoryApi) -> set[tuple[str, str]]:
    """Return method and path of each view, independently of how the document is made."""
    routes = {("GET", "/home")}
    for path, page in api.logins.make_pages([]).items():
        paths = [f"/{path}", f"/{path}/{{path}}"][: 1 + page.below]
        routes |= {(method.decode(), one) for method in page.views for one in paths}
    for application in find_applications().values():
        for rule in application.url_map.iter_rules():
            path = re.sub(r"<(?:\w+:)?(?:\w+_)?(\w+)>", r"{\1}", rule.rule)
            routes |= {(method, path) for method in (rule.methods or set()) - {"HEAD"}}
    return routes


def resolve(document: Mapping[str, Any], value: Any) -> Any:
    """Return a part of the document with its references resolved; no schema is recursive."""
    if isinstance(value, list):
        return [resolve(document, one) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        found: Any = document
        for name in value["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return resolve(document, found)
    return {name: resolve(document, one) for name, one in value.items()}


def check_value(value: Any, schema: Mapping[str, Any]) -> None:
    OAS31Validator.check_schema(schema)
    OAS31Validator(schema, format_checker=oas31_format_checker).validate(value)


@pytest.fixture
def complete_api(make: Callable[[str], InMemoryApi]) -> InMemoryApi:
    """A server with every optional route and scheme."""
    return make(ALL + "change_password = true\n" + ISSUERS)


class DocumentTests:
    def test_document_is_openapi_3_1(self, complete_api: InMemoryApi) -> None:
        document = read(complete_api)
        assert document["openapi"] == "3.1.0"
        OpenAPIV31SpecValidator(document).validate()

    def test_document_without_settings_is_openapi_3_1(self, api: InMemoryApi) -> None:
        OpenAPIV31SpecValidator(read(api)).validate()

    def test_document_has_exactly_the_routes(self, complete_api: InMemoryApi) -> None:
        """A new route needs a description, in the module of postd/web/openapi with the name of its views' module."""
        assert {(method, path) for method, path, _ in operations(read(complete_api))} == find_routes(complete_api)

    def test_every_description_has_a_route(self, complete_api: InMemoryApi) -> None:
        assert {tuple(words.split(" ")) for _, _, of_tag in documents.SECTIONS for words in of_tag} == find_routes(
            complete_api
        )

    def test_described_operations_are_served(self, complete_api: InMemoryApi) -> None:
        described = {(method, path) for method, path, _ in operations(read(complete_api))}
        for path in {path for _, path in described}:
            allowed = {
                method
                for method in METHODS
                if (answer := ask(complete_api, method, path.replace("{id}", "1").replace("{path}", "post"))).status
                not in {404, 405}
                or (answer.status == 404 and b"no post" in answer.body)
            }
            # A protected route checks credentials before the method.
            assert {method for method, of in described if of == path} <= allowed

    def test_document_omits_disabled_routes(self, make: Callable[[str], InMemoryApi]) -> None:
        paths = read(make("[board]\nenabled = false\n"))["paths"]
        assert "/.well-known/oauth-protected-resource" not in paths
        assert "/board" not in paths

    def test_operations_have_unique_ids_and_summaries(self, complete_api: InMemoryApi) -> None:
        described = [operation for _, _, operation in operations(read(complete_api))]
        for operation in described:
            assert re.fullmatch(r"[a-z][A-Za-z]+", operation["operationId"])
            assert operation["summary"]
            assert operation["description"].endswith(".")
            assert all(response.get("description", "x") for response in operation["responses"].values())
        assert len({operation["operationId"] for operation in described}) == len(described)
        assert len({operation["summary"] for operation in described}) == len(described)

    def test_server_url_is_relative(self, complete_api: InMemoryApi) -> None:
        assert read(complete_api)["servers"] == [{"url": "/"}]

    def test_document_has_no_docstrings(self, complete_api: InMemoryApi) -> None:
        """Docstrings are for readers of the source."""
        assert "spec:" not in json.dumps(read(complete_api))

    @each("settings", ["", ALL + ISSUERS, "[board]\nenabled = false\n"])
    def test_every_component_is_used(self, make: Callable[[str], InMemoryApi], settings: str) -> None:
        document = read(make(settings))
        text = json.dumps(document)
        for kind in ("schemas", "parameters", "headers", "responses"):
            for name in document["components"][kind]:
                assert f'"#/components/{kind}/{name}"' in text, name

    def test_document_names_contact_and_license(self, api: InMemoryApi) -> None:
        info = read(api)["info"]
        assert info["contact"] == {"name": "The operator of this server"}
        assert info["license"] == {"name": "MIT", "identifier": "MIT"}

    def test_every_reference_resolves(self, complete_api: InMemoryApi) -> None:
        document = read(complete_api)
        assert "$ref" in json.dumps(document)
        assert "$ref" not in json.dumps(resolve(document, document))


class SchemaTests:
    def test_examples_match_their_schemas(self, complete_api: InMemoryApi) -> None:
        document = resolve(read(complete_api), read(complete_api))
        checked = 0
        for _, _, operation in operations(document):
            contents = [operation.get("requestBody", {})]
            contents += operation["responses"].values()
            for content in [kind for one in contents for kind in one.get("content", {}).values()]:
                if "example" in content:
                    check_value(content["example"], content["schema"])
                    checked += 1
            for parameter in operation.get("parameters", []):
                # The form of Swagger UI would send the example of an optional one: `If-Match` would be a 412.
                assert ("example" in parameter) == parameter["required"]
                assert not {"default", "example", "examples"} & parameter["schema"].keys() or parameter["required"]
                if parameter["required"]:
                    check_value(parameter["example"], parameter["schema"])
                    checked += 1
        for schema in document["components"]["schemas"].values():
            for member in schema["properties"].values():
                for example in member.get("examples", []):
                    check_value(example, member)
                    checked += 1
        assert checked > 40

    @pytest.mark.parametrize("case", BODIES)
    def test_body_schema_agrees_with_the_server(self, api: InMemoryApi, case: str) -> None:
        body, status = BODIES[case]
        document = read(api)
        schema = resolve(document, document["paths"]["/post"]["post"]["requestBody"]["content"]["application/json"])
        assert OAS31Validator(schema["schema"]).is_valid(body) == (status == 201)
        for method, path, good in (("POST", "/post", 201), ("PUT", "/post/1", 200)):
            api.add("one")
            answer = ask(api, method, path, json.dumps(body).encode(), JSON)
            assert answer.status == (good if status == 201 else status)

    @each(
        "name, value, good",
        [
            *[("limit", value, 0 < value <= 1000) for value in (-1, 0, 1, 1000, 1001)],
            *[("after", value, 0 <= value < 2**53) for value in (-1, 0, 1, 2**53 - 1, 2**53)],
        ],
    )
    def test_parameters_have_the_bounds_of_the_server(
        self, api: InMemoryApi, name: str, value: int, *, good: bool
    ) -> None:
        schema = read(api)["components"]["parameters"][name]["schema"]
        assert OAS31Validator(schema).is_valid(value) == good
        assert ask(api, "GET", f"/post?{name}={value}").status == (200 if good else 400)

    @pytest.mark.parametrize("post_id", [0, 1, 2**53 - 1, 2**53])
    def test_id_has_the_bounds_of_the_server(self, api: InMemoryApi, post_id: int) -> None:
        schema = read(api)["components"]["parameters"]["id"]["schema"]
        answer = ask(api, "GET", f"/post/{post_id}")
        assert answer.status == 404
        assert OAS31Validator(schema).is_valid(post_id) == (b"no post" in answer.body)


class ResponseTests:
    """Real responses match their description."""

    def check(self, api: InMemoryApi, method: str, path: str, template: str, **arguments: Any) -> Response:
        answer = ask(api, method, path, arguments.get("body"), arguments.get("headers"))
        document = read(api)
        described = resolve(document, document["paths"][template][method.lower()]["responses"])[str(answer.status)]
        for name, header in described.get("headers", {}).items():
            assert name.lower() in answer.headers or not header.get("required"), name
        if described.get("content"):
            kinds = [answer.header("Content-Type")]
            if len(described["content"]) > 1:
                headers = {**(arguments.get("headers") or {}), "Accept": "text/html"}
                kinds.append(ask(api, method, path, arguments.get("body"), headers).header("Content-Type"))
            assert kinds == list(described["content"])
            if "json" in (answer.header("Content-Type") or ""):
                check_value(json.loads(answer.body), next(iter(described["content"].values()))["schema"])
        else:
            assert answer.body == b""
        return answer

    def test_api_responses_match_the_document(self, api: InMemoryApi) -> None:
        statuses = set()
        for method, path, template, arguments in REQUESTS:
            statuses.add(self.check(api, method, path, template, **arguments).status)
        assert statuses == {200, 201, 302, 304, 400, 401, 403, 404, 412, 413, 414, 415, 422, 431}

    def test_guard_responses_match_the_document(self, make: Callable[[str], InMemoryApi]) -> None:
        api = make(ALL + "[throttle]\nfailures = 1\n" + ISSUERS)
        metadata = "/.well-known/oauth-protected-resource"
        for method, path, template, arguments, status in [
            ("GET", "/post", "/post", {}, 401),
            ("GET", "/post", "/post", {"headers": basic()}, 200),
            ("GET", "/post", "/post", {"headers": basic("bob", "wrong")}, 401),
            ("GET", "/post", "/post", {"headers": basic("bob", "wrong")}, 429),
            ("POST", "/post", "/post", {"headers": {**log_in(api), "Sec-Fetch-Site": "cross-site"}}, 403),
            ("DELETE", "/post/1", "/post/{id}", {}, 401),
            ("GET", metadata, metadata, {}, 200),
        ]:
            assert self.check(api, method, path, template, **arguments).status == status

    def test_metadata_matches_the_document(self, make: Callable[[str], InMemoryApi]) -> None:
        metadata = "/.well-known/oauth-protected-resource"
        binding = make(f'{ALL}[tls]\nclient_certificates = "ask"\n{ISSUERS}dpop = "require"\nmtls = "accept"\n')
        for api in (make(ALL + ISSUERS), binding):
            for path, template in ((metadata, metadata), (f"{metadata}/post", f"{metadata}/{{path}}")):
                shown = json.loads(self.check(api, "GET", path, template).body)
                described = read(api)["components"]["schemas"]["ProtectedResource"]["properties"]
                assert shown.keys() <= described.keys()
        assert shown.keys() | {"scopes_supported"} == described.keys()


class SecurityTests:
    @pytest.mark.parametrize("rule", RULES)
    def test_security_follows_the_settings(self, make: Callable[[str], InMemoryApi], rule: str) -> None:
        settings, reading, writing = RULES[rule]
        document = read(make(settings))
        for method, path, operation in operations(document):
            expected: list[str] = []
            if path.startswith(("/post", "/feed.atom", "/board")):
                expected = reading if method == "GET" else writing
            elif path in {"/home", "/login/session"} or path.startswith("/account"):
                expected = ["session"]
            assert [list(one) for one in operation["security"]] == [
                [scheme] if scheme else [] for scheme in sorted_as_challenges(expected)
            ]
        assert set(document["components"]["securitySchemes"]) == {*reading, *writing, "session"} - {""}

    def test_security_agrees_with_the_server(self, complete_api: InMemoryApi) -> None:
        for method, path, operation in operations(read(complete_api)):
            answer = ask(complete_api, method, path.replace("{id}", "1").replace("{path}", "post"))
            refused = answer.status == 401 or answer.header("Location") in {"/", f"/?next={path}"}
            if path != "/logout":  # it redirects there as well
                assert refused == bool(operation["security"]), (method, path)
            assert ("401" in operation["responses"]) >= (answer.status == 401)

    def test_security_schemes_have_the_types_of_openapi(self, complete_api: InMemoryApi) -> None:
        schemes = read(complete_api)["components"]["securitySchemes"]
        assert {name: (scheme["type"], scheme.get("scheme") or scheme["in"]) for name, scheme in schemes.items()} == {
            "basic": ("http", "basic"),
            "digest": ("http", "digest"),
            "bearer": ("http", "bearer"),
            "session": ("apiKey", "cookie"),
        }
        assert schemes["session"]["name"] == "session"
        assert "in the field `DPoP` (RFC 9449)" in schemes["bearer"]["description"]


def sorted_as_challenges(schemes: list[str]) -> list[str]:
    return sorted(schemes, key=["", "digest", "bearer", "basic", "session", "token"].index)


class ServingTests:
    @pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
    def test_document_needs_no_credentials_and_has_an_etag(self, complete_api: InMemoryApi, path: str) -> None:
        answer = ask(complete_api, "GET", path)
        assert answer.status == 200
        # The page shows the origin, which is that of `Host`.
        assert answer.header("Cache-Control") == ("no-store" if path == "/docs" else "no-cache")
        assert answer.header("X-Content-Type-Options") == "nosniff"
        etag = answer.header("ETag") or ""
        assert re.fullmatch(r'"[^"]+"', etag)
        again = ask(complete_api, "GET", path, headers={"If-None-Match": etag})
        assert (again.status, again.header("ETag"), again.body) == (304, etag, b"")
        assert ask(complete_api, "GET", path, headers={"If-Match": '"x"'}).status == 412
        assert ask(complete_api, "GET", path, headers=basic("unknown")).body == answer.body

    @pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
    def test_head_has_the_headers_of_get(self, api: InMemoryApi, path: str) -> None:
        got, head = (ask(api, method, path) for method in ("GET", "HEAD"))
        forget_own(got, head)
        assert (head.status, head.headers, head.body) == (200, got.headers, b"")

    @pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
    def test_other_method_is_405_with_allow(self, api: InMemoryApi, path: str) -> None:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            answer = ask(api, method, path)
            assert answer.status == 405
            assert sorted((answer.header("Allow") or "").split(", ")) == ["GET", "HEAD", "OPTIONS"]
        answer = ask(api, "OPTIONS", path)
        assert (answer.status, answer.body) == (204, b"")
        assert sorted((answer.header("Allow") or "").split(", ")) == ["GET", "HEAD", "OPTIONS"]

    @pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
    def test_document_is_compressed(self, api: InMemoryApi, path: str) -> None:
        plain, packed = ask(api, "GET", path), ask(api, "GET", path, headers={"Accept-Encoding": "gzip"})
        assert packed.header("Content-Encoding") == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        assert len(packed.body) < len(plain.body) / 4
        assert packed.header("ETag") != plain.header("ETag")
        assert packed.header("Vary") == plain.header("Vary") == "Accept-Encoding"

    def test_errors_are_problem_details(self, api: InMemoryApi) -> None:
        check_problem(ask(api, "POST", "/openapi.json"), 405)
        check_problem(ask(api, "GET", "/openapi.json/x"), 404)

    def test_etag_depends_on_the_settings(self, make: Callable[[str], InMemoryApi]) -> None:
        tags = {ask(make(settings), "GET", "/openapi.json").header("ETag") for settings, _, _ in RULES.values()}
        assert len(tags) == len(RULES)
