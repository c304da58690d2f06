"""Makes the document (OpenAPI 3.1.0)."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from klein import Klein

from postd.web.errors import is_api
from postd.web.openapi import about, board, login, posts
from postd.web.openapi.operation import Access, Body, Operation, Reply
from postd.web.openapi.parts import (
    ERROR_HEADERS,
    ERRORS,
    HEADERS,
    PARAMETERS,
    PROBLEM_TYPE,
    TEXT_TYPE,
    ProblemDetails,
)
from postd.web.responses import phrase
from postd.web.server.routing import VARIABLE

OPERATIONS = {**posts.OPERATIONS, **login.OPERATIONS, **board.OPERATIONS, **about.OPERATIONS}
_TAGS = {
    posts.TAG: "Short texts, which are kept under numbers.",
    login.TAG: "How a person gets a session: a cookie that stands for a password.",
    board.TAG: "Pages with the posts, for people who are signed in.",
    about.TAG: "What there is to know before one uses it.",
}

_VERSION = "1"
"""That of the interface. No answer tells which version of the program it is from (contract 7)."""

_DESCRIPTION = f"""\
A service that keeps short texts, each under a number.

`HEAD` works wherever `GET` does, and `OPTIONS` tells in `Allow` what else does. Neither is listed here.

Errors of the API are problem details (RFC 9457, `{PROBLEM_TYPE}`), those of pages plain text. Some can come whatever \
is asked for: 400, 408, 417, 501 or 505 where a request is no HTTP that this server speaks, 421 \
(problem details on pages, too) where the server does not answer for that host, 404 where there is \
nothing, and 405 with `Allow` where there is no such method.

Long answers come with gzip to who accepts it. Pages of other origins may use the API where the settings name these \
origins (CORS).

Every answer names its request in `X-Request-Id`: as the request itself does in that field, or as the server does. The \
log of the server has that name, too.
"""

_SCHEMES: Mapping[str, Mapping[str, str]] = {
    "digest": {
        "type": "http",
        "scheme": "digest",
        "description": "User name and password, of which only a hash is sent (RFC 7616).",
    },
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An access token in the field `Authorization` (RFC 6750). Who issues them stands at "
        "`/.well-known/oauth-protected-resource`.",
    },
    "basic": {"type": "http", "scheme": "basic", "description": "User name and password (RFC 7617)."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "session",
        "description": "The cookie that `POST /login` sets. What is changed with it must be sent by a page of this "
        "site, or by no page at all.",
    },
}
"""In the order of their challenges (contract 4)."""

_CURL = {
    "digest": "--digest -u alice",
    "bearer": '-H "Authorization: Bearer $TOKEN"',
    "basic": "-u alice",
    "session": "-b cookies.txt",
}

Route = tuple[str, str]
"""A method and a path, with the names of its variables in braces."""

Rules = Mapping[Access, Sequence[str]]
"""The schemes that let a client use an operation; none if it is open to everybody."""


def make_document(routes: Iterable[Route], *, read: Collection[str], write: Collection[str]) -> dict[str, Any]:
    """Return the document of what is served.

    Args:
        routes: those of the applications that serve; `/home` is told of, too.
        read: the schemes that let a client read posts; "open" for no questions asked.
        write: those that let it write.
    """
    rules: Rules = {
        Access.OPEN: (),
        Access.READ: _schemes(read),
        Access.WRITE: _schemes(write),
        Access.SESSION: ("session",),
    }
    # No Klein application has /home: it is a protected page (`postd.web.routes`).
    served = {" ".join(route) for route in (*routes, ("GET", "/home"))}
    described = {
        (method, path): operation
        for words, operation in OPERATIONS.items()
        if words in served
        for method, path in [words.split(" ")]
    }
    schemas = _Schemas(described.values())
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in described.items():
        paths.setdefault(path, {})[method.lower()] = _Writer(method, path, operation, rules, schemas).write()
    used = {scheme for operation in described.values() for scheme in rules[operation.access]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Post API", "version": _VERSION, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [
            {"name": name, "description": text}
            for name, text in _TAGS.items()
            if any(operation.tag == name for operation in described.values())
        ],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "parameters": {
                name: _write_parameter(name, schemas)
                for name in PARAMETERS
                if any(name in operation.parameters for operation in described.values())
            },
            "headers": dict(HEADERS),
            "responses": {
                f"{kind}{status}": _write_error(status, why, api=kind == "Problem", schemas=schemas)
                for kind in ("Problem", "Text")
                for status, why in ERRORS.items()
            },
            "securitySchemes": {name: dict(scheme) for name, scheme in _SCHEMES.items() if name in used},
        },
    }


def find_routes(application: Klein) -> Iterator[Route]:
    """Yield method and path of each view; HEAD goes with GET."""
    for rule in application.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"HEAD"}):
            yield method, VARIABLE.sub(r"{\1}", rule.rule)


def _schemes(rule: Collection[str]) -> Sequence[str]:
    return () if "open" in rule else [name for name in _SCHEMES if name in rule]


class _Schemas:
    """The schemas of all types that are told of."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        bodies = [
            body
            for operation in operations
            for body in (operation.body, *(reply.body for reply in operation.replies.values()))
            if body is not None
        ]
        types = [ProblemDetails, *(body.type for body in bodies), *(one.type for one in PARAMETERS.values())]
        schemas, self.components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
        for component in self.components.values():
            # Docstrings are for who reads the source.
            component.pop("description", None)
            component.pop("title")
        self._by_type = dict(zip(map(repr, types), schemas, strict=True))

    def of(self, kind: Any) -> Mapping[str, Any]:
        return self._by_type[repr(kind)]


class _Writer:
    """Writes an operation down."""

    def __init__(self, method: str, path: str, operation: Operation, rules: Rules, schemas: _Schemas) -> None:
        self._method = method
        self._path = path
        self._operation = operation
        self._rule = rules[operation.access]
        self._schemas = schemas
        self._api = is_api(path.encode())

    def write(self) -> dict[str, Any]:
        operation = self._operation
        written: dict[str, Any] = {
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            "description": operation.description,
            "security": [{scheme: []} for scheme in self._rule],
        }
        if operation.parameters:
            written["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in operation.parameters]
        if operation.body is not None:
            written["requestBody"] = {"required": True, "content": self._content(operation.body)}
        replies = self._errors()
        for status, reply in operation.replies.items():
            told = self._reply(reply)
            if status in operation.errors:  # either may come
                told["description"] += f" Or: {replies[status]['description']}"
                told["content"] |= replies[status]["content"]
            replies[status] = told
        written["responses"] = {str(status): replies[status] for status in sorted(replies)}
        written["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": self._sample()}]
        return written

    def _reply(self, reply: Reply) -> dict[str, Any]:
        written: dict[str, Any] = {"description": reply.description}
        headers = {name: _header(name, required=True) for name in reply.headers}
        headers |= {name: _header(name, required=False) for name in reply.sometimes}
        if "digest" in self._rule:
            headers["Authentication-Info"] = _header("Authentication-Info", required=False)
        if headers:
            written["headers"] = headers
        if reply.body is not None:
            written["content"] = self._content(reply.body)
        return written

    def _content(self, body: Body) -> dict[str, Any]:
        return {body.content_type: {"schema": self._schemas.of(body.type), "example": body.example}}

    def _errors(self) -> dict[int, Any]:
        own: dict[int, str] = dict(self._operation.errors)
        if self._api:
            for status, why in self._login_errors():
                own[status] = f"{own[status]} Or {why[0].lower()}{why[1:]}" if status in own else why
        errors = {
            status: _write_error(status, why, api=self._api, schemas=self._schemas) for status, why in own.items()
        }
        common = "Problem" if self._api else "Text"
        return {**{status: {"$ref": f"#/components/responses/{common}{status}"} for status in ERRORS}, **errors}

    def _login_errors(self) -> Iterator[tuple[int, str]]:
        """Yield what the guard may answer (`postd.web.guard`)."""
        rule = set(self._rule)
        writes = self._operation.access is Access.WRITE
        if not rule:
            return
        yield 401, "Credentials are needed, or are not good."
        if rule - {"session"}:
            yield 400, "There is more than one `Authorization`, or it is for another address."
        if "bearer" in rule:
            yield 403, "The token is good, but not for this: it lacks a scope."
        if "session" in rule and writes:
            yield 403, "A page of another site made the browser send this."
        if rule & {"basic", "digest"}:
            yield 429, "Too many logins have failed."
        if rule & {"basic", "bearer"}:
            yield 503, "Credentials cannot be checked now."

    def _sample(self) -> str:
        words = [
            "curl",
            *([_CURL[self._rule[0]]] if self._rule else []),
            *([self._operation.curl] if self._operation.curl else []),
        ]
        path = self._path.replace("{id}", str(PARAMETERS["id"].example))
        return f'{" ".join(words)} "$POSTD{path}{self._operation.query}"'


def _header(name: str, *, required: bool) -> dict[str, Any]:
    # A reference has no room for what differs.
    return {**HEADERS[name], "required": True} if required else {"$ref": f"#/components/headers/{name}"}


def _write_error(status: int, why: str, *, api: bool, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {PROBLEM_TYPE: {"schema": schemas.of(ProblemDetails)}}
    if not api:
        content = {TEXT_TYPE: {"schema": {"type": "string"}, "example": f"{phrase(HTTPStatus(status))}\n"}}
    written: dict[str, Any] = {"description": why, "content": content}
    if status in ERROR_HEADERS:
        written["headers"] = {ERROR_HEADERS[status]: _header(ERROR_HEADERS[status], required=True)}
    return written


def _write_parameter(name: str, schemas: _Schemas) -> dict[str, Any]:
    parameter = PARAMETERS[name]
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "required": parameter.place == "path",
        "schema": schemas.of(parameter.type),
        "example": parameter.example,
    }
