"""The API description as an HTML page, rendered from the OpenAPI document; it has no script.

Three kept libraries do this from `/openapi.json`, and their files could be served from here. They were tried with the
document of a server with all schemes, in Chromium, with a policy that allows files of the server alone:

| | this page | Swagger UI 5.35 | Redoc 2.5 | Scalar 1.46 |
|---|---|---|---|---|
| license | | Apache-2.0 | MIT | MIT |
| bytes; with gzip | 100,000; 10,000 | 1,920,000; 485,000 | 1,100,000; 327,000 | 3,570,000; 989,000 |
| without JavaScript | complete | empty | empty | empty |
| strict policy | complete | its images are blocked | an error: needs inline styles | unstyled: needs inline styles |
| other hosts | none | none | a logo of its maker | fonts and a proxy of its maker |
| found by axe | nothing | 57 places | 210 places | 190 places |
| samples of the document | shown | not without a plugin | shown | shown |

Their one further feature is a form that sends requests. This page takes 300 lines of Python.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from http import HTTPStatus
from itertools import groupby
from string import Template
from typing import Any

from postd.http.pages.template import COLORS, make_policy, read_file
from postd.http.responses import phrase
from postd.protect.schemes.interface import SAMPLE_USER
from postd.web.samples import ORIGIN

_STYLE = COLORS + read_file(__package__, "page.css")

DOCS_POLICY = make_policy(_STYLE)
"""The `Content-Security-Policy` of the page."""

_PLACES = {"path": "in the path", "query": "in the query", "header": "header field"}

_NOTES = {
    SAMPLE_USER: "The name of a user. The sample asks for the password.",
    "TOKEN": "An environment variable with an access token.",
    "cookies.txt": "A file with the session cookie: the sample of `POST /login` writes it.",
    "password.txt": "A file with the password, without a line feed at its end.",
    "postd.client": "A module of the package of this server: treq itself does not have Digest.",
}
"""Explanations of words in samples."""

Node = Mapping[str, Any]
"""An object in the document."""

Document = Node


def make_docs_page(document: Document, scheme_titles: Mapping[str, str], site_name: str) -> bytes:
    """Return the page made from the OpenAPI document (`postd.web.openapi.document`); UTF-8.

    The server's origin in it is `postd.web.samples.ORIGIN`.
    """
    lead, _, description = document["info"]["description"].partition("\n\n")
    parts = {
        "title": escape(document["info"]["title"]),
        "site_name": escape(site_name),
        "style": _STYLE,
        "lead": _paragraphs(lead),
        "board": '<a href="/board">Board</a>\n' if "/board" in document["paths"] else "",
        "description": _paragraphs(description),
        "origin": ORIGIN,
        "notes": _notes(document),
        "contents": _contents(document),
        "operations": "\n".join(_tag(document, scheme_titles, tag) for tag in document["tags"]),
        "schemes": _schemes(document["components"]["securitySchemes"], scheme_titles),
        "errors": _common_errors(document),
        "problem": _properties(document, document["components"]["schemas"]["ProblemDetails"]),
    }
    return Template(read_file(__package__, "page.html")).substitute(parts).encode()


def _operations(document: Document) -> Iterable[tuple[str, str, Node]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _operations_of(document: Document, tag: Mapping[str, str]) -> Iterable[tuple[str, str, Node]]:
    return (found for found in _operations(document) if tag["name"] in found[2]["tags"])


def _contents(document: Document) -> str:
    rows = [_entry("overview", "Overview")]
    for tag in document["tags"]:
        rows += [_entry(_name(tag), tag["name"]), "<ul>"]
        rows += [
            f'<li><a href="#{escape(operation["operationId"])}"><code>{escape(f"{method} {path}")}</code>'
            f"<span>{escape(operation['summary'])}</span></a></li>"
            for method, path, operation in _operations_of(document, tag)
        ]
        rows.append("</ul>")
    if document["components"]["securitySchemes"]:
        rows.append(_entry("authentication", "Authentication"))
    return "\n".join([*rows, _entry("errors", "Errors of any request")])


def _entry(name: str, text: str) -> str:
    return f'<p><a href="#{name}">{escape(text)}</a></p>'


def _notes(document: Document) -> str:
    """Explain the words of the samples that a reader has to replace or to prepare."""
    sources = [sample["source"] for _, _, operation in _operations(document) for sample in operation["x-codeSamples"]]
    return _list(
        (f"<dt><code>{word}</code></dt>", f"<p>{_text(note)}</p>")
        for word, note in _NOTES.items()
        if any(word in source for source in sources)
    )


def _name(tag: Mapping[str, str]) -> str:
    return re.sub(r"\W+", "-", tag["name"].lower())


def _tag(document: Document, scheme_titles: Mapping[str, str], tag: Mapping[str, str]) -> str:
    name = _name(tag)
    articles = [
        _operation(document, scheme_titles, method, path, operation)
        for method, path, operation in _operations_of(document, tag)
    ]
    return "\n".join(
        [
            f'<section aria-labelledby="{name}">',
            f'<h2 id="{name}"><a href="#{name}">{escape(tag["name"])}</a></h2>',
            _paragraphs(tag["description"]),
            *articles,
            "</section>",
        ]
    )


def _operation(document: Document, scheme_titles: Mapping[str, str], method: str, path: str, operation: Node) -> str:
    name = escape(operation["operationId"])
    title = f"<code>{escape(f'{method} {path}')}</code> {escape(operation['summary'])}"
    parts = [
        f'<article aria-labelledby="{name}">',
        f'<h3 id="{name}"><a href="#{name}">{title}</a></h3>',
        _paragraphs(operation["description"]),
        "<h4>Authentication</h4>",
        _authentication(operation["security"], scheme_titles),
        "<h4>Request</h4>",
        *_samples(operation["x-codeSamples"]),
        "<h4>Response</h4>",
        _sample_response(document, operation["responses"]),
    ]
    if "parameters" in operation:
        parameters = [_resolve(document, parameter) for parameter in operation["parameters"]]
        parts += ["<h4>Parameters</h4>", _list(_parameter(document, parameter) for parameter in parameters)]
    if "requestBody" in operation:
        parts.append("<h4>Request body</h4>")
        for kind, content in operation["requestBody"]["content"].items():
            members = _properties(document, _resolve(document, content["schema"]))
            parts += [f"<p><code>{escape(kind)}</code></p>", members]
    own = [(status, response) for status, response in operation["responses"].items() if "$ref" not in response]
    parts += ["<h4>Status codes</h4>", _list(_response(status, response) for status, response in own)]
    common = [
        f'<a href="#error-{status}">{status}</a>'
        for status, response in operation["responses"].items()
        if "$ref" in response
    ]
    if common:
        parts.append(f'<p>And <a href="#errors">errors of any request</a>: {", ".join(common)}.</p>')
    return "\n".join([*parts, "</article>"])


def _samples(samples: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield a disclosure widget for each client, that of the first one open; in it a sample for each scheme."""
    for client, of_client in groupby(samples, lambda sample: sample["label"].partition(", ")[0]):
        opened = " open" if client == samples[0]["label"].partition(", ")[0] else ""
        yield f"<details{opened}>\n<summary>{escape(client)}</summary>"
        for sample in of_client:
            scheme = sample["label"].partition(", ")[2]
            if scheme:
                yield f'<p class="hint">{escape(scheme)}</p>'
            yield f'<pre class="sample"><code>{escape(sample["source"])}</code></pre>'
        yield "</details>"


def _sample_response(document: Document, responses: Node) -> str:
    """Return the response to the sample: status line, the most important fields, body."""
    status = min((status for status in responses if status < "300"), default="") or max(
        status for status in responses if "300" < status < "304"
    )
    response = responses[status]
    fields = [f"Content-Type: {kind}" for kind in [*response.get("content", {})][:1]]
    for name, referring in response.get("headers", {}).items():
        header = _resolve(document, referring)
        example = header.get("example", *header["schema"].get("examples", [])[:1])
        if header.get("required") and example is not None:
            fields.append(f"{name}: {example}")
    bodies = [content["example"] for content in response.get("content", {}).values()][:1]
    head = [f"HTTP/1.1 {status} {phrase(HTTPStatus(int(status)))}", *fields]
    texts = [body if isinstance(body, str) else json.dumps(body, indent=2, ensure_ascii=False) for body in bodies]
    return f"<pre><code>{escape(chr(10).join([*head, '', *texts]).rstrip())}</code></pre>"


def _authentication(security: Sequence[Node], scheme_titles: Mapping[str, str]) -> str:
    names = [name for requirement in security for name in requirement]
    if not names:
        return "<p>None.</p>"
    links = [f'<a href="#scheme-{escape(name)}">{escape(scheme_titles[name])}</a>' for name in names]
    need = "Optional: " if {} in security else ""
    return f"<p>{need}{' or '.join([', '.join(links[:-1]), links[-1]] if len(links) > 1 else links)}.</p>"


def _parameter(document: Document, parameter: Node) -> tuple[str, str]:
    need = "required" if parameter["required"] else "optional"
    about = f"{_PLACES[parameter['in']]}, {need}"
    hint = _hint(_resolve(document, parameter["schema"]))
    return _term(parameter["name"], about), _text(parameter["description"]) + f'<p class="hint">{hint}</p>'


def _response(status: str, response: Node) -> tuple[str, str]:
    parts = [f"<p>{_text(response['description'])}</p>"]
    headers = [f"<code>{escape(name)}</code>" for name in response.get("headers", {})]
    kinds = [f"<code>{escape(kind)}</code>" for kind in response.get("content", {})]
    about = [", ".join(kinds), f"with {', '.join(headers)}" if headers else ""]
    if any(about):
        parts.append(f'<p class="hint">{"; ".join(filter(None, about))}</p>')
    return f"<dt>{status} {escape(phrase(HTTPStatus(int(status))))}</dt>", "".join(parts)


def _properties(document: Document, schema: Node) -> str:
    """List the members of an object."""
    rows = []
    for name, of_member in schema["properties"].items():
        member = _resolve(document, of_member)
        need = "required" if name in schema["required"] else "optional"
        description = _text(member["description"]) if "description" in member else ""
        rows.append((_term(name, need), f'{description}<p class="hint">{_hint(member)}</p>'))
    return _list(rows)


def _schemes(schemes: Mapping[str, Mapping[str, str]], scheme_titles: Mapping[str, str]) -> str:
    if not schemes:
        return ""
    rows = [
        (f'<dt id="scheme-{escape(name)}">{escape(scheme_titles[name])}</dt>', _text(scheme["description"]))
        for name, scheme in schemes.items()
    ]
    heading = '<h2 id="authentication"><a href="#authentication">Authentication</a></h2>'
    return f'<section aria-labelledby="authentication">\n{heading}\n{_list(rows)}\n</section>'


def _common_errors(document: Document) -> str:
    responses = document["components"]["responses"]
    # The same errors of pages are plain text or HTML.
    statuses = [name.removeprefix("Problem") for name in responses if name.startswith("Problem")]
    return _list(
        (
            f'<dt id="error-{status}">{status} {escape(phrase(HTTPStatus(int(status))))}</dt>',
            f"<p>{_text(responses[f'Problem{status}']['description'])}</p>",
        )
        for status in statuses
    )


def _hint(schema: Node) -> str:
    """Describe a schema's type and bounds."""
    kind = " or ".join(one["type"] for one in schema.get("anyOf", [schema]))
    if "minimum" in schema:
        kind += f" from {schema['minimum']} to {schema['maximum']}" if "maximum" in schema else ""
    if "maxLength" in schema:
        kind += f" of {schema['minLength']} to {schema['maxLength']} characters"
    if "pattern" in schema:
        kind += f", as <code>{escape(schema['pattern'])}</code>"
    return kind[:1].upper() + kind[1:]


def _list(rows: Iterable[tuple[str, str]]) -> str:
    return "<dl>\n" + "\n".join(f"{term}\n<dd>{definition}</dd>" for term, definition in rows) + "\n</dl>"


def _term(name: str, about: str) -> str:
    return f'<dt><code>{escape(name)}</code> <span class="hint">{escape(about)}</span></dt>'


def _paragraphs(text: str) -> str:
    return "\n".join(f"<p>{_text(paragraph)}</p>" for paragraph in text.strip().split("\n\n"))


def _text(text: str) -> str:
    """Escape text for HTML; `code` in backticks becomes an element."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _resolve(document: Document, referring: Node) -> Node:
    """Resolve a `$ref` within the document; return anything else as it is."""
    if "$ref" not in referring:
        return referring
    found = document
    for name in referring["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found
