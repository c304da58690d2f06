"""Requests as code to copy: a command line of curl, and complete programs with httpx and treq (`x-codeSamples`)."""

import json
from collections.abc import Iterator, Mapping
from shlex import quote
from string import Template

from msgspec import Struct

from postd.protect.schemes.interface import ClientCode, SchemeDescription

ORIGIN = "http://127.0.0.1:8080"
"""The origin of the server in samples; `/docs` has its own in its place."""

JSON_TYPE = "application/json"

_PASSWORD = "password"  # noqa: S105 - the name of a field
_NO_LOGIN = SchemeDescription(title="", security={}, curl="", httpx=ClientCode(), treq=ClientCode())
_GETPASS = "from getpass import getpass"
_JSON_FIELD = f"-H 'Content-Type: {JSON_TYPE}'"
_HTTPX = Template("""\
${imports}import httpx

${before}${request}
""")
_TREQ = Template("""\
${imports}import treq
${more}from twisted.internet.task import react


async def main(reactor):
${body}

react(main)
""")


class SampleRequest(Struct, frozen=True):
    """A request to show.

    Args:
        method: the HTTP method.
        target: path and query.
        curl: further words of the command line, such as the file for cookies.
        body: JSON value or form fields; None for no body.
        is_form: whether the body is sent as a form; a password in it is prompted for, or read from a file.
        redirects: whether the expected response is a redirect, which no client follows.
        streams: whether the response has no end, and is shown as it arrives.
    """

    method: str
    target: str
    curl: str = ""
    body: Mapping[str, object] | None = None
    is_form: bool = False
    redirects: bool = False
    streams: bool = False


def make_samples(request: SampleRequest, schemes: Mapping[str, SchemeDescription]) -> Iterator[dict[str, str]]:
    """Yield the code samples of a request, client by client, for each scheme that it may use; its language and label.

    The label is the client's name, and where there are several schemes the title of one: "curl, Basic".
    """
    usable = list(schemes.values()) or [_NO_LOGIN]
    for client, language, of_scheme in (
        ("curl", "Shell", _curl),
        ("httpx", "Python", _httpx),
        ("treq", "Python", _treq),
    ):
        for scheme in usable:
            source = of_scheme(request, scheme)
            if source is not None:
                label = client if len(usable) == 1 else f"{client}, {scheme.title}"
                yield {"lang": language, "label": label, "source": source}


def make_curl(request: SampleRequest, credentials: str, *, origin: str = ORIGIN) -> str:
    """Return the command line of curl; `credentials` are its words for a scheme."""
    words = ["curl -i", "-N" if request.streams else "", credentials, request.curl, *_curl_body(request)]
    # -d makes it a POST.
    if request.method != ("GET" if request.body is None else "POST"):
        words.append(f"-X {request.method}")
    # Always quoted: an origin with an IPv6 address needs it.
    return " ".join([*filter(None, words), f"'{origin}{request.target}'"])


def _curl(request: SampleRequest, scheme: SchemeDescription) -> str:
    return make_curl(request, scheme.curl)


def _curl_body(request: SampleRequest) -> Iterator[str]:
    if request.body is None:
        return
    if not request.is_form:
        yield f"{_JSON_FIELD} -d {quote(json.dumps(request.body))}"
        return
    for name, value in request.body.items():
        yield (
            f"--data-urlencode {name}@{name}.txt"
            if name == _PASSWORD
            else f"--data-urlencode {quote(f'{name}={value}')}"
        )


def _httpx(request: SampleRequest, scheme: SchemeDescription) -> str | None:
    code = scheme.httpx
    if code is None:
        return None
    arguments = _arguments(request, code)
    if request.streams:
        call = _call("with httpx.stream(", [f'"{request.method}"', *arguments, "timeout=None"], ") as response:")
        sent = f"{call}\n    for line in response.iter_lines():\n        print(line)"
    else:
        call = _call(f"response = httpx.{request.method.lower()}(", arguments, ")")
        sent = f"{call}\nprint(response.status_code, response.text)"
    return _fill(
        _HTTPX,
        imports=_imports(request, code),
        before="".join(f"{line}\n" for line in code.before),
        request=sent,
    )


def _treq(request: SampleRequest, scheme: SchemeDescription) -> str | None:
    code = scheme.treq
    if code is None:
        return None
    arguments = _arguments(request, code)
    if request.redirects:
        arguments.append("allow_redirects=False")
    if request.streams:
        arguments.append("unbuffered=True")
        shown = 'await response.collect(lambda data: print(data.decode("utf-8", "replace"), end="", flush=True))'
    else:
        shown = 'print(response.code, await response.text("utf-8"))'
    call = _call(f"response = await treq.{request.method.lower()}(", arguments, ")")
    lines = [*code.before, *call.split("\n"), shown]
    return _fill(
        _TREQ,
        imports=_imports(request, code),
        more="".join(f"{line}\n" for line in code.more_imports),
        body="".join(f"    {line}\n" for line in lines),
    )


def _fill(template: Template, **parts: str) -> str:
    return template.substitute(parts).replace("{origin}", ORIGIN).rstrip("\n")


def _imports(request: SampleRequest, code: ClientCode) -> str:
    """Return the imports from the standard library, with an empty line after them if there are any."""
    asks = request.is_form and _PASSWORD in (request.body or ())
    lines = sorted({*code.imports, *([_GETPASS] if asks else [])})
    return "".join(f"{line}\n" for line in lines) + ("\n" if lines else "")


def _arguments(request: SampleRequest, code: ClientCode) -> list[str]:
    """Return URL, body and credentials as arguments of a call; httpx and treq name them alike."""
    arguments = [f'"{ORIGIN}{request.target}"']
    if request.body is not None:
        members = [
            f'"{name}": {"getpass()" if request.is_form and name == _PASSWORD else json.dumps(value)}'
            for name, value in request.body.items()
        ]
        arguments.append(f"{'data' if request.is_form else 'json'}={{{', '.join(members)}}}")
    return [*arguments, *([code.argument] if code.argument else [])]


def _call(begin: str, arguments: list[str], end: str) -> str:
    """Lay out a call: on one line with at most two arguments, else with a line for each."""
    if len(arguments) <= 2:
        return begin + ", ".join(arguments) + end
    return "\n".join([begin, *(f"    {argument}," for argument in arguments), end])
