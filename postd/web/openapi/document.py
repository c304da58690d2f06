"""The OpenAPI 3.1.0 document of the served routes."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from klein import Klein
from msgspec import Struct

from postd.http.responses import phrase
from postd.protect.schemes.interface import SchemeDescription
from postd.web.openapi import account, board, feed, login, metadata, posts
from postd.web.openapi.components import (
    ERROR_HEADERS,
    ERRORS,
    EVENTS_TYPE,
    FORM_TYPE,
    HEADERS,
    HTML_TYPE,
    PARAMETERS,
    PROBLEM_TYPE,
    TEXT_TYPE,
    Body,
    Operation,
    ProblemDetails,
    Reply,
    Rule,
)
from postd.web.routing import VARIABLE, is_api
from postd.web.samples import SampleRequest, make_samples

SECTIONS = (
    ("Posts", "Short texts, each with a number.", posts.OPERATIONS),
    ("Changes", "The changes of the posts, as a stream.", posts.CHANGES),
    ("Feed", "The newest posts for feed readers.", feed.OPERATIONS),
    ("Session", "Sign in by form, which exchanges a password for a session cookie, and sign out.", login.OPERATIONS),
    ("Account", "Pages on which users manage their accounts.", account.OPERATIONS),
    ("Board", "Pages with the posts.", board.OPERATIONS),
    ("Metadata", "Descriptions of this service.", metadata.OPERATIONS),
)
"""The tags with their descriptions, and the operations of each by method and path: "GET /post/{id}"."""

_ABOUT = {"contact": {"name": "The operator of this server"}, "license": {"name": "MIT", "identifier": "MIT"}}

_VERSION = "1"
"""The version of the API; that of the program is not disclosed (reference: Safe by default)."""

_DESCRIPTION = f"""\
A service that stores short text posts.

`HEAD` works wherever `GET` does, and `OPTIONS` lists the methods of a path in `Allow`. Neither is described here.

Errors of the API are problem details (RFC 9457, `{PROBLEM_TYPE}`), errors of pages plain text, or HTML for clients \
that prefer it (`Accept`). Any request may get: \
400, 408, 417, 501 or 505 if it is not valid HTTP for this server, 421 (always problem details) if it is for another \
host, 404 for an unknown path, and 405 with `Allow` for an unknown method.

Long responses are compressed with gzip for clients that accept it. Pages of other origins may use the API if the \
settings name the origins (CORS).

Every response has an `X-Request-Id`: the client's, or a new one. The server's log has the same id.
"""

Route = tuple[str, str]
"""A method and a path, with the names of its variables in braces."""


Schemes = Mapping[str, SchemeDescription]
"""The descriptions of authentication schemes by name, in the order of their challenges."""


class _Access(Struct, frozen=True):
    """The schemes that give access to an operation; their credentials may be optional."""

    schemes: Schemes
    is_optional: bool = False


def make_document(
    routes: Iterable[Route],
    described_schemes: Schemes,
    *,
    read: Collection[str],
    write: Collection[str],
    judged: Collection[str] = (),
) -> dict[str, object]:
    """Return the document of the routes that are served, and `/home`.

    The schemes `read` and `write` may read and write posts; "open" is access without credentials, where credentials of
    the schemes `judged` are optional.
    """

    def require(names: Collection[str]) -> _Access:
        is_open = "open" in names
        allowed = judged if is_open else names
        return _Access({name: one for name, one in described_schemes.items() if name in allowed}, is_optional=is_open)

    access: dict[Rule, _Access] = {
        "open": _Access({}),
        "read": require(read),
        "write": require(write),
        "session": require(["session"]),
    }
    # /home is a protected page (`postd.web.routes`), not a route of a Klein application.
    served = {*routes, ("GET", "/home")}
    tags: dict[str, str] = {}
    operations: dict[Route, tuple[str, Operation]] = {}
    for tag, description, of_tag in SECTIONS:
        for words, operation in of_tag.items():
            method, path = words.split(" ")
            if (method, path) in served:
                tags[tag] = description
                operations[method, path] = tag, operation
    described = [operation for _, operation in operations.values()]
    schemas = _Schemas(described)
    paths: dict[str, dict[str, object]] = {}
    for (method, path), (tag, operation) in operations.items():
        paths.setdefault(path, {})[method.lower()] = {
            "operationId": operation.id,
            "tags": [tag],
            **_describe(method, path, operation, access, schemas),
        }
    document: dict[str, object] = {
        "openapi": "3.1.0",
        "info": {"title": "Post API", "version": _VERSION, "description": _DESCRIPTION, **_ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in tags.items()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "parameters": {
                name: {
                    "name": parameter.name or name,
                    "in": parameter.place,
                    "description": parameter.description,
                    "required": parameter.place == "path",
                    "schema": schemas.of(parameter.type),
                    **({} if parameter.example is None else {"example": parameter.example}),
                }
                for name, parameter in PARAMETERS.items()
            },
            "headers": dict(HEADERS),
            "responses": {
                f"{kind}{status}": schemas.error(status, why, api=kind == "Problem")
                for kind in ("Problem", "Text")
                for status, why in ERRORS.items()
            },
            "securitySchemes": {
                name: dict(scheme.security)
                for name, scheme in described_schemes.items()
                if any(name in access[operation.rule].schemes for operation in described)
            },
        },
    }
    _leave_out_unused(document)
    return document


def _leave_out_unused(document: Mapping[str, Any]) -> None:
    """Remove the components that no operation refers to."""
    components = document["components"]
    used, found = set[str](), _references(document["paths"])
    while found - used:
        used |= found
        parts = (reference.split("/") for reference in found)
        found = set[str]().union(*(_references(components[kind][name]) for _, _, kind, name in parts))
    for kind in ("schemas", "parameters", "headers", "responses"):
        components[kind] = {
            name: one for name, one in components[kind].items() if f"#/components/{kind}/{name}" in used
        }


def _references(part: object) -> set[str]:
    """Return the references in a part of the document."""
    if isinstance(part, dict):
        own = {part["$ref"]} if "$ref" in part else set[str]()
        return own.union(*map(_references, part.values()))
    return set[str]().union(*map(_references, part)) if isinstance(part, list) else set()


def find_routes(application: Klein) -> Iterator[Route]:
    """Yield method and path of each view, without HEAD."""
    for rule in application.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"HEAD"}):
            yield method, VARIABLE.sub(r"{\1}", rule.rule)


class _Schemas:
    """The schemas of all types that occur."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        bodies = [
            body
            for operation in operations
            for reply in (Reply("", operation.body), *operation.replies.values())
            for body in (reply.body, reply.page)
            if body is not None
        ]
        types = [
            ProblemDetails,
            *(body.type for body in bodies),
            *(parameter.type for parameter in PARAMETERS.values()),
        ]
        schemas, self.components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
        for component in self.components.values():
            # Docstrings are for readers of the source.
            component.pop("description", None)
            component.pop("title")
        self._by_type = dict(zip(map(repr, types), schemas, strict=True))

    def of(self, kind: object) -> Mapping[str, object]:
        return self._by_type[repr(kind)]

    def content(self, *bodies: Body | None) -> dict[str, object]:
        return {
            body.content_type: {"schema": self.of(body.type), "example": body.example}
            for body in bodies
            if body is not None
        }

    def error(self, status: int, why: str, *, api: bool) -> Mapping[str, object]:
        text = phrase(HTTPStatus(status))
        page = f"<!DOCTYPE html> ... <h1>{text}</h1> ..."
        content: dict[str, object] = {PROBLEM_TYPE: {"schema": self.of(ProblemDetails)}}
        if not api:
            examples = {TEXT_TYPE: f"{text}\n", HTML_TYPE: page}
            content = {kind: {"schema": {"type": "string"}, "example": one} for kind, one in examples.items()}
        header = ERROR_HEADERS.get(status)
        return {"description": why, "content": content} | (
            {} if header is None else {"headers": {header: _header(header, required=True)}}
        )


def _describe(
    method: str, path: str, operation: Operation, by_rule: Mapping[Rule, _Access], schemas: _Schemas
) -> dict[str, object]:
    """Return the description of an operation; `by_rule` has the schemes that may use it."""
    schemes, is_optional = by_rule[operation.rule].schemes, by_rule[operation.rule].is_optional
    api = is_api(path.encode())
    kind = "Problem" if api else "Text"
    responses: dict[int, Any] = {status: {"$ref": f"#/components/responses/{kind}{status}"} for status in ERRORS}
    errors = dict(operation.errors)
    # Where a session is the only way in, pages redirect to the form.
    for status, why in _guard_errors(schemes, operation.rule) if api or [*schemes] != ["session"] else ():
        errors[status] = f"{errors[status]} Or {why[0].lower()}{why[1:]}" if status in errors else why
    responses |= {status: schemas.error(status, why, api=api) for status, why in errors.items()}
    for status, reply in operation.replies.items():
        headers = {name: _header(name, required=True) for name in reply.headers}
        optional = [*reply.optional_headers, *(name for scheme in schemes.values() for name in scheme.headers)]
        headers |= {name: _header(name, required=False) for name in optional}
        for name in reply.headers:
            example = reply.examples.get(name) or (_example_location(path, status, reply) if name == "Location" else "")
            headers[name] |= {"example": example} if example else {}
        described: dict[str, Any] = {
            "description": reply.description,
            **({"headers": headers} if headers else {}),
            **({} if reply.body is None else {"content": schemas.content(reply.body, reply.page)}),
        }
        if status in errors:  # both occur
            described["description"] += f" Or: {errors[status]}"
            described["content"] |= responses[status]["content"]
        responses[status] = described
    given = by_rule["session"].schemes if operation.sends_session else {} if is_optional else schemes
    references = [{"$ref": f"#/components/parameters/{name}"} for name in operation.parameters]
    body = operation.body
    return {
        "summary": operation.summary,
        "description": operation.description,
        "security": [*([{}] if is_optional and schemes else []), *({scheme: []} for scheme in schemes)],
        **({"parameters": references} if references else {}),
        **({} if body is None else {"requestBody": {"required": True, "content": schemas.content(body)}}),
        "responses": {str(status): responses[status] for status in sorted(responses)},
        "x-codeSamples": [*make_samples(_sample_request(method, path, operation), given)],
    }


def _example_location(path: str, status: int, reply: Reply) -> str:
    if status == HTTPStatus.CREATED:
        return f"{path}/{PARAMETERS['id'].example}"
    assert reply.body is not None  # the text of a redirect is its target
    return str(reply.body.example).rstrip()


def _sample_request(method: str, path: str, operation: Operation) -> SampleRequest:
    target = path.format_map({name: parameter.example for name, parameter in PARAMETERS.items()}) + operation.query
    body = operation.body
    return SampleRequest(
        method,
        target,
        operation.curl,
        None if body is None else body.example,
        is_form=body is not None and body.content_type == FORM_TYPE,
        redirects=any(status // 100 == 3 and status != 304 for status in operation.replies),
        streams=any(reply.body and reply.body.content_type == EVENTS_TYPE for reply in operation.replies.values()),
    )


def _guard_errors(schemes: Schemes, rule: Rule) -> Sequence[tuple[int, str]]:
    """Return the errors of authentication and authorization (`postd.protect.guard`)."""
    if not schemes:
        return ()
    errors = [(401, "Credentials are missing or invalid.")]
    if any(scheme.security["type"] == "http" for scheme in schemes.values()):
        errors.append((400, "There is more than one `Authorization`, or it is for another URL."))
    for scheme in schemes.values():
        errors += scheme.errors
        errors += scheme.write_errors if rule == "write" else ()
    return list(dict.fromkeys(errors))


def _header(name: str, *, required: bool) -> dict[str, object]:
    # A reference cannot add `required`.
    return {**HEADERS[name], "required": True} if required else {"$ref": f"#/components/headers/{name}"}
