"""The API description as an HTML page, rendered from the OpenAPI document; it has no script."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from http import HTTPStatus
from string import Template
from typing import Any

from postd.http.pages import COLORS, make_policy
from postd.http.responses import phrase
from postd.web.pages import read

_STYLE = COLORS + read("docs.css")

DOCS_POLICY = make_policy(_STYLE)
"""The `Content-Security-Policy` of the page."""

_PLACES = {"path": "in the path", "query": "in the query", "header": "header field"}

Document = Mapping[str, Any]


def make_docs_page(document: Document, scheme_titles: Mapping[str, str], site_name: str) -> bytes:
    """Return the page made from the OpenAPI document (`postd.web.openapi.document`); UTF-8."""
    lead, _, description = document["info"]["description"].partition("\n\n")
    parts = {
        "title": escape(document["info"]["title"]),
        "site_name": escape(site_name),
        "style": _STYLE,
        "lead": _paragraphs(lead),
        "description": _paragraphs(description),
        "contents": _contents(document),
        "operations": "\n".join(_tag(document, scheme_titles, tag) for tag in document["tags"]),
        "schemes": _schemes(document["components"]["securitySchemes"], scheme_titles),
        "errors": _common_errors(document),
        "problem": _properties(document, document["components"]["schemas"]["ProblemDetails"]),
    }
    return Template(read("docs.html")).substitute(parts).encode()


def _operations(document: Document) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _contents(document: Document) -> str:
    rows = [
        f'<li><a href="#{escape(operation["operationId"])}"><code>{escape(f"{method} {path}")}</code>'
        f"<span>{escape(operation['summary'])}</span></a></li>"
        for method, path, operation in _operations(document)
    ]
    return "<ul>\n" + "\n".join(rows) + "\n</ul>"


def _tag(document: Document, scheme_titles: Mapping[str, str], tag: Mapping[str, str]) -> str:
    name = re.sub(r"\W+", "-", tag["name"].lower())
    articles = [
        _operation(document, scheme_titles, method, path, operation)
        for method, path, operation in _operations(document)
        if tag["name"] in operation["tags"]
    ]
    return "\n".join(
        [
            f'<section aria-labelledby="{name}">',
            f'<h2 id="{name}">{escape(tag["name"])}</h2>',
            _paragraphs(tag["description"]),
            *articles,
            "</section>",
        ]
    )


def _operation(
    document: Document, scheme_titles: Mapping[str, str], method: str, path: str, operation: Mapping[str, Any]
) -> str:
    name = escape(operation["operationId"])
    parts = [
        f'<article aria-labelledby="{name}">',
        f'<h3 id="{name}"><code>{escape(f"{method} {path}")}</code> {escape(operation["summary"])}</h3>',
        _paragraphs(operation["description"]),
        "<h4>Authentication</h4>",
        _authentication(operation["security"], scheme_titles),
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
    parts += ["<h4>Responses</h4>", _list(_response(status, response) for status, response in own)]
    common = [status for status, response in operation["responses"].items() if "$ref" in response]
    if common:
        parts.append(f'<p>And <a href="#errors">errors of any request</a>: {", ".join(common)}.</p>')
    samples = [sample["source"] for sample in operation["x-codeSamples"]]
    parts += ["<h4>Example</h4>", *map(_pre, samples), "</article>"]
    return "\n".join(parts)


def _authentication(security: Sequence[Mapping[str, Any]], scheme_titles: Mapping[str, str]) -> str:
    names = [name for requirement in security for name in requirement]
    if not names:
        return "<p>None.</p>"
    links = [f'<a href="#scheme-{escape(name)}">{escape(scheme_titles[name])}</a>' for name in names]
    return f"<p>{' or '.join([', '.join(links[:-1]), links[-1]] if len(links) > 1 else links)}.</p>"


def _parameter(document: Document, parameter: Mapping[str, Any]) -> tuple[str, str]:
    need = "required" if parameter["required"] else "optional"
    about = f"{_PLACES[parameter['in']]}, {need}"
    hint = _hint(_resolve(document, parameter["schema"]))
    return _term(parameter["name"], about), _text(parameter["description"]) + f'<p class="hint">{hint}</p>'


def _response(status: str, response: Mapping[str, Any]) -> tuple[str, str]:
    parts = [f"<p>{_text(response['description'])}</p>"]
    headers = [f"<code>{escape(name)}</code>" for name in response.get("headers", {})]
    kinds = [f"<code>{escape(kind)}</code>" for kind in response.get("content", {})]
    about = [", ".join(kinds), f"with {', '.join(headers)}" if headers else ""]
    if any(about):
        parts.append(f'<p class="hint">{"; ".join(filter(None, about))}</p>')
    if status.startswith("2"):
        parts += [_example(content["example"]) for content in response.get("content", {}).values()]
    return f"<dt>{status} {escape(phrase(HTTPStatus(int(status))))}</dt>", "".join(parts)


def _properties(document: Document, schema: Mapping[str, Any]) -> str:
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
    heading = '<h2 id="authentication">Authentication</h2>'
    return f'<section aria-labelledby="authentication">\n{heading}\n{_list(rows)}\n</section>'


def _common_errors(document: Document) -> str:
    responses = document["components"]["responses"]
    # The same errors of pages are plain text or HTML.
    statuses = [name.removeprefix("Problem") for name in responses if name.startswith("Problem")]
    return _list(
        (
            f"<dt>{status} {escape(phrase(HTTPStatus(int(status))))}</dt>",
            f"<p>{_text(responses[f'Problem{status}']['description'])}</p>",
        )
        for status in statuses
    )


def _hint(schema: Mapping[str, Any]) -> str:
    """Describe a schema's type and bounds."""
    kind: str = schema["type"]
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


def _example(example: Any) -> str:
    return _pre(example.rstrip() if isinstance(example, str) else json.dumps(example, indent=2, ensure_ascii=False))


def _pre(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"


def _paragraphs(text: str) -> str:
    return "\n".join(f"<p>{_text(paragraph)}</p>" for paragraph in text.strip().split("\n\n"))


def _text(text: str) -> str:
    """Escape text for HTML; `code` in backticks becomes an element."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _resolve(document: Document, referring: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a `$ref` within the document; return anything else as it is."""
    if "$ref" not in referring:
        return referring
    found = document
    for name in referring["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return found
