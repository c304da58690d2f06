"""Requests, byte for byte: those of real clients, other valid ones, and those that must not reach a resource.

Written from RFC 9110, RFC 9112 and the specification, not from the code that parses them. The limits are
`MAX_BODY_BYTES` for a body, and those of postd's server for a head: 8 KiB of target, 16 KiB and 100 fields of head, 32
bytes of method.

A hostile request is made of a POST that would be stored as `SMUGGLED` if it were accepted. A parser that takes the
bytes behind it (`AFTER`) for another request stores one more.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

MAX_BODY_BYTES = 16384
SMUGGLED = "smuggled"
LEGITIMATE = "legitimate"

HIDDEN_BODY = b'{"post":"%b"}' % SMUGGLED.encode()
LEGITIMATE_BODY = b'{"post":"%b"}' % LEGITIMATE.encode()

TAKEN = frozenset({200})
"""The status of the tests' resource for each request that reaches it."""


class Case(Struct, frozen=True):
    """The input of a client on a new connection, and the expected responses.

    Args:
        family: the subject, a heading of the corpus.
        name: unique in the family.
        sent: the bytes.
        answers: the statuses that each of the final responses may have, in order. `TAKEN`: an accepted request.
        ends: whether the connection is closed after the last of them.
    """

    family: str
    name: str
    sent: bytes
    answers: tuple[frozenset[int], ...] = (TAKEN,)
    ends: bool = False

    @property
    def key(self) -> str:
        return f"{self.family}/{self.name}"

    @property
    def refused(self) -> bool:
        """Whether the last of its requests must be refused."""
        return not self.answers or 200 not in self.answers[-1]


def request(
    *fields: bytes,
    line: bytes = b"POST /post HTTP/1.1",
    host: bytes | None = b"localhost",
    length: bool = True,
    body: bytes = HIDDEN_BODY,
) -> bytes:
    """Return a request that is accepted, and would be stored as `SMUGGLED`, unless an argument makes it invalid."""
    lines = [line, b"Content-Type: application/json"]
    if host is not None:
        lines.insert(1, b"Host: " + host)
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, *fields, b"", body])


AFTER = request()
"""The request behind an attempt: executed by a parser that misreads where the attempt ends."""


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


# Requests of real clients: heads as seen on the wire, or as the source of the client writes them.

_CHROME = """\
Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
Chrome/141.0.0.0 Safari/537.36"""

_HEADS: Mapping[str, str] = {
    "curl": """\
GET /post HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*""",
    "curl -I": """\
HEAD /post HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*""",
    "curl -u": """\
GET /basic HTTP/1.1
Host: localhost:8080
Authorization: Basic YWxpY2U6czNjcjN0
User-Agent: curl/8.14.1
Accept: */*""",
    "curl --digest": """\
GET /digest HTTP/1.1
Host: localhost:8080
Authorization: Digest username="alice",realm="postd",nonce="nUwZ-x_8",uri="/digest",cnonce="ZTI4Nj==",nc=00000001,\
algorithm=MD5,response="8ca523f5e9506fed4657c9700eebdbec",qop="auth"
User-Agent: curl/8.14.1
Accept: */*""",
    "curl --http2": """\
GET /post HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*
Connection: Upgrade, HTTP2-Settings
Upgrade: h2c
HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA""",
    "curl --proxy": """\
GET http://posts.example/post?limit=5 HTTP/1.1
Host: posts.example
User-Agent: curl/8.14.1
Accept: */*
Proxy-Connection: Keep-Alive""",
    "curl -X DELETE": """\
DELETE /post/3 HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*
If-Match: "0c3f2a77b8e4d6a19f00aa31\"""",
    "wget": """\
GET /post HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: Wget/1.25.0
Accept: */*
Accept-Encoding: identity
Connection: Keep-Alive
""",
    "wget of BusyBox": """\
GET /post HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: Wget
Connection: close
""",
    "Firefox": """\
GET / HTTP/1.1
Host: posts.example
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8
Accept-Language: de,en-US;q=0.7,en;q=0.3
Accept-Encoding: gzip, deflate, br, zstd
Connection: keep-alive
Cookie: session=6mLkG5Q9o0Qx1t7w2Vd_iA; theme=dark
Upgrade-Insecure-Requests: 1
Sec-Fetch-Dest: document
Sec-Fetch-Mode: navigate
Sec-Fetch-Site: none
Sec-Fetch-User: ?1
Priority: u=0, i""",
    "Chrome": f"""\
GET /home HTTP/1.1
Host: localhost:8080
Connection: keep-alive
Cache-Control: max-age=0
sec-ch-ua: "Chromium";v="141", "Not?A_Brand";v="8"
sec-ch-ua-mobile: ?0
sec-ch-ua-platform: "Linux"
Upgrade-Insecure-Requests: 1
User-Agent: {_CHROME}
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8
Sec-Fetch-Site: same-origin
Sec-Fetch-Mode: navigate
Sec-Fetch-User: ?1
Sec-Fetch-Dest: document
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-GB,en-US;q=0.9,en;q=0.8
If-None-Match: W/"1-abc", "2-def\"""",
    "Chrome asks before a fetch": f"""\
OPTIONS /post HTTP/1.1
Host: localhost:8080
Connection: keep-alive
Accept: */*
Access-Control-Request-Method: POST
Access-Control-Request-Headers: content-type
Origin: http://app.example
User-Agent: {_CHROME}
Sec-Fetch-Mode: cors
Sec-Fetch-Site: cross-site
Referer: http://app.example/
Accept-Encoding: gzip, deflate, br, zstd""",
    "Chrome's EventSource": f"""\
GET /post/events HTTP/1.1
Host: localhost:8080
Connection: keep-alive
Cache-Control: no-cache
User-Agent: {_CHROME}
Accept: text/event-stream
Last-Event-ID: 41
Sec-Fetch-Site: same-origin""",
    "Chrome's WebSocket": f"""\
GET /post HTTP/1.1
Host: localhost:8080
Connection: Upgrade
Pragma: no-cache
Cache-Control: no-cache
User-Agent: {_CHROME}
Upgrade: websocket
Origin: http://localhost:8080
Sec-WebSocket-Version: 13
Accept-Encoding: gzip, deflate, br, zstd
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==
Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits""",
    "Safari": """\
GET / HTTP/1.1
Host: posts.example
Sec-Fetch-Dest: document
User-Agent: Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 \
Safari/605.1.15
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8
Sec-Fetch-Site: none
Sec-Fetch-Mode: navigate
Accept-Language: fr-FR,fr;q=0.9
Priority: u=0, i
Accept-Encoding: gzip, deflate
Connection: keep-alive""",
    "Internet Explorer 6": """\
GET / HTTP/1.1
Accept: */*
Accept-Language: en-us
Accept-Encoding: gzip, deflate
User-Agent: Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)
Host: posts.example
Connection: Keep-Alive""",
    "Lynx": """\
GET /post HTTP/1.0
Host: localhost:8080
Accept: text/html, text/plain, text/sgml, text/css, application/xhtml+xml, */*;q=0.01
Accept-Encoding: gzip, compress, bzip2
Accept-Language: en
User-Agent: Lynx/2.9.2 libwww-FM/2.14 SSL-MM/1.4.1 OpenSSL/3.5.0""",
    "requests": """\
GET /post?limit=10&after=3 HTTP/1.1
Host: localhost:8080
User-Agent: python-requests/2.34.2
Accept-Encoding: gzip, deflate
Accept: */*
Connection: keep-alive""",
    "httpx": """\
GET /post HTTP/1.1
Host: localhost:8080
Accept: */*
Accept-Encoding: gzip, deflate
Connection: keep-alive
User-Agent: python-httpx/0.28.1""",
    "aiohttp": """\
GET /post HTTP/1.1
Host: localhost:8080
Accept: */*
Accept-Encoding: gzip, deflate
User-Agent: Python/3.11 aiohttp/3.14.0""",
    "urllib": """\
GET /post HTTP/1.1
Accept-Encoding: identity
Host: localhost:8080
User-Agent: Python-urllib/3.11
Connection: close""",
    "treq": """\
GET /post HTTP/1.1
Accept-Encoding: gzip
Connection: close
Host: localhost:8080""",
    "Go": """\
GET /post HTTP/1.1
Host: localhost:8080
User-Agent: Go-http-client/1.1
Accept-Encoding: gzip""",
    "Java's HttpClient": """\
GET /post HTTP/1.1
Connection: Upgrade, HTTP2-Settings
Host: localhost:8080
HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA
Upgrade: h2c
User-Agent: Java-http-client/21.0.8""",
    "Java's URLConnection": """\
GET /post HTTP/1.1
User-Agent: Java/21.0.8
Host: localhost:8080
Accept: text/html, image/gif, image/jpeg, */*; q=0.2
Connection: keep-alive""",
    "Apache HttpComponents": """\
GET /post HTTP/1.1
Accept-Encoding: gzip, x-gzip, deflate
Host: localhost:8080
Connection: keep-alive
User-Agent: Apache-HttpClient/5.5 (Java/21.0.8)""",
    "ab": """\
GET /post HTTP/1.0
Host: 127.0.0.1:8080
User-Agent: ApacheBench/2.3
Accept: */*""",
    "ab -k": """\
GET /post HTTP/1.0
Connection: Keep-Alive
Host: 127.0.0.1:8080
User-Agent: ApacheBench/2.3
Accept: */*""",
    "wrk": """\
GET /post HTTP/1.1
Host: 127.0.0.1:8080""",
    "siege": """\
GET /post HTTP/1.1
Host: 127.0.0.1:8080
Accept: */*
Accept-Encoding: gzip, deflate
User-Agent: Mozilla/5.0 (pc-x86_64-linux-gnu) Siege/4.0.7
Connection: close""",
    "node's http": """\
GET /post HTTP/1.1
Host: localhost:8080
Connection: keep-alive""",
    "node's fetch": """\
GET /post HTTP/1.1
host: localhost:8080
connection: keep-alive
accept: */*
accept-language: *
sec-fetch-mode: cors
user-agent: node
accept-encoding: gzip, deflate""",
    "axios": """\
GET /post HTTP/1.1
Accept: application/json, text/plain, */*
User-Agent: axios/1.12.2
Accept-Encoding: gzip, compress, deflate, br
Host: localhost:8080
Connection: keep-alive""",
    "reqwest": """\
GET /post HTTP/1.1
accept: */*
host: localhost:8080""",
    ".NET": """\
GET /post HTTP/1.1
Host: localhost:8080
traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00""",
    "PowerShell": """\
GET /post HTTP/1.1
Host: localhost:8080
User-Agent: Mozilla/5.0 (Linux; Debian GNU/Linux 13; en-US) PowerShell/7.5.3
Accept-Encoding: gzip, deflate, br""",
    "PHP's streams": """\
GET /post HTTP/1.1
Host: localhost:8080
Connection: close""",
    "Ruby": """\
GET /post HTTP/1.1
Accept-Encoding: gzip;q=1.0,deflate;q=0.6,identity;q=0.3
Accept: */*
User-Agent: Ruby
Host: localhost:8080""",
    "libwww-perl": """\
GET /post HTTP/1.1
TE: deflate,gzip;q=0.3
Connection: TE, close
Host: localhost:8080
User-Agent: libwww-perl/6.78""",
    "Prometheus": """\
GET /metrics HTTP/1.1
Host: localhost:9100
User-Agent: Prometheus/3.5.0
Accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1
Accept-Encoding: gzip
X-Prometheus-Scrape-Timeout-Seconds: 10""",
    "a probe of Kubernetes": """\
GET /healthz HTTP/1.1
Host: 10.1.2.3:8080
User-Agent: kube-probe/1.33
Accept: */*
Connection: close""",
    "nginx, as a proxy": """\
GET /post HTTP/1.0
Host: postd
X-Forwarded-For: 2001:db8::17, 10.0.0.1
X-Forwarded-Proto: https
Connection: close
User-Agent: curl/8.14.1
Accept: */*""",
    "HAProxy's check": """\
OPTIONS / HTTP/1.0""",
    "a load balancer's check": """\
GET / HTTP/1.1
Host: 10.0.0.7
User-Agent: ELB-HealthChecker/2.0
Accept-Encoding: gzip, compressed
Connection: close""",
    "Googlebot": """\
GET /robots.txt HTTP/1.1
Host: posts.example
Connection: keep-alive
Accept: text/plain,text/html,*/*
From: googlebot(at)googlebot.com
User-Agent: Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)
Accept-Encoding: gzip, deflate, br""",
}

_JSON = b'{"post": "Gr\xc3\xbc\xc3\x9fe"}'
_FORM = b"username=alice&password=s3cr3t"

_HEADS_WITH_BODY: Mapping[str, tuple[str, bytes]] = {
    "curl -d": (
        """\
POST /post HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*
Content-Type: application/json
Content-Length: 19""",
        _JSON,
    ),
    "curl -T -": (
        """\
PUT /post/1 HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/8.14.1
Accept: */*
Transfer-Encoding: chunked
Content-Type: application/json
Expect: 100-continue""",
        chunked(_JSON),
    ),
    "wget --post-data": (
        """\
POST /login HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: Wget/1.25.0
Accept: */*
Accept-Encoding: identity
Connection: Keep-Alive
Content-Type: application/x-www-form-urlencoded
Content-Length: 30""",
        _FORM,
    ),
    "Firefox sends a form": (
        """\
POST /login HTTP/1.1
Host: posts.example
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8
Content-Type: application/x-www-form-urlencoded
Content-Length: 30
Origin: https://posts.example
Connection: keep-alive
Referer: https://posts.example/
Sec-Fetch-Site: same-origin""",
        _FORM,
    ),
    "requests with json": (
        """\
POST /post HTTP/1.1
Host: localhost:8080
User-Agent: python-requests/2.34.2
Accept-Encoding: gzip, deflate
Accept: */*
Connection: keep-alive
Content-Length: 19
Content-Type: application/json""",
        _JSON,
    ),
    "requests with a generator": (
        """\
POST /post HTTP/1.1
Host: localhost:8080
User-Agent: python-requests/2.34.2
Accept-Encoding: gzip, deflate
Accept: */*
Connection: keep-alive
Transfer-Encoding: chunked""",
        chunked(*(b"%c" % byte for byte in _JSON)),
    ),
    "httpx with json": (
        """\
POST /post HTTP/1.1
Host: localhost:8080
Accept: */*
Accept-Encoding: gzip, deflate
Connection: keep-alive
User-Agent: python-httpx/0.28.1
Content-Length: 19
Content-Type: application/json""",
        _JSON,
    ),
    "Go with a reader": (
        """\
POST /post HTTP/1.1
Host: localhost:8080
User-Agent: Go-http-client/1.1
Transfer-Encoding: chunked
Content-Type: application/json
Accept-Encoding: gzip""",
        chunked(_JSON),
    ),
    "Go with trailers": (
        """\
POST /post HTTP/1.1
Host: localhost:8080
User-Agent: Go-http-client/1.1
Transfer-Encoding: chunked
Trailer: X-Checksum
Accept-Encoding: gzip""",
        chunked(_JSON, end=b"0\r\nX-Checksum: 5d41402a\r\n\r\n"),
    ),
    "Java's HttpClient with a body": (
        """\
POST /post HTTP/1.1
Connection: Upgrade, HTTP2-Settings
Content-Length: 19
Host: localhost:8080
HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA
Upgrade: h2c
User-Agent: Java-http-client/21.0.8
Content-Type: application/json""",
        _JSON,
    ),
    ".NET with a body": (
        """\
POST /post HTTP/1.1
Host: localhost:8080
Transfer-Encoding: chunked
Content-Type: application/json; charset=utf-8""",
        chunked(_JSON),
    ),
    "ab -p": (
        """\
POST /post HTTP/1.0
Content-length: 19
Content-type: application/json
Host: 127.0.0.1:8080
User-Agent: ApacheBench/2.3
Accept: */*""",
        _JSON,
    ),
    "node's fetch with a body": (
        """\
POST /post HTTP/1.1
host: localhost:8080
connection: keep-alive
content-type: application/json
accept: */*
accept-language: *
sec-fetch-mode: cors
user-agent: node
accept-encoding: gzip, deflate
content-length: 19""",
        _JSON,
    ),
    "Postman without a body": (
        """\
POST /logout HTTP/1.1
User-Agent: PostmanRuntime/7.46.1
Accept: */*
Postman-Token: 5f0f1c3a-1c07-4d52-9ab7-3a54e1b1f8a2
Host: localhost:8080
Accept-Encoding: gzip, deflate, br
Connection: keep-alive
Content-Length: 0""",
        b"",
    ),
}


def _plain(name: str, head: str, body: bytes = b"") -> Case:
    lines = head.rstrip("\n").split("\n")
    lower = [line.lower() for line in lines]
    last = lines[0].endswith("HTTP/1.0") or any(
        line.startswith("connection:") and "close" in line.split(":", 1)[1].replace(",", " ").split() for line in lower
    )
    return Case("plain", name, "\r\n".join([*lines, "", ""]).encode() + body, ends=last)


PLAIN: Sequence[Case] = (
    *(_plain(name, head) for name, head in _HEADS.items()),
    *(_plain(name, head, body) for name, (head, body) in _HEADS_WITH_BODY.items()),
)


# Other valid requests.

_TCHAR = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CONTROLS = [*range(0x20), 0x7F]
_ONE_OF_EACH_BYTE = [bytes([byte]) for byte in range(256)]


def _odd(family: str, sent: Mapping[str, bytes], *, count: int = 1, ends: bool = False) -> Iterable[Case]:
    return (Case(family, name, data, (TAKEN,) * count, ends) for name, data in sent.items())


def _get(*fields: bytes, line: bytes = b"GET /post HTTP/1.1", host: bytes | None = b"localhost") -> bytes:
    lines = [line, *([b"Host: " + host] if host is not None else []), *fields]
    return b"\r\n".join([*lines, b"", b""])


def _each(values: Iterable[bytes], make: Callable[[bytes], bytes]) -> dict[str, bytes]:
    """Name requests by the value in which they differ."""
    return {_shown(value): make(value) for value in values}


def _shown(value: bytes) -> str:
    text = "an asterisk" if value == b"*" else repr(value)[2:-1]
    return text if len(text) <= 60 else f"{text[:20]}... {len(value)} bytes"


_GET = _get()
_CHUNKED = b"Transfer-Encoding: chunked"


def _in_chunks(body: bytes, *fields: bytes, line: bytes = b"POST /post HTTP/1.1") -> bytes:
    return request(_CHUNKED, *fields, line=line, length=False, body=body)


_LONG_TARGET = b"/post?" + b"a" * (8192 - 6)
_HEAD_OF_16_KIB = _get(b"X: ")[:-4]
_HEAD_OF_16_KIB += b"a" * (16384 - 4 - len(_HEAD_OF_16_KIB)) + b"\r\n\r\n"

ODD: Sequence[Case] = (
    *_odd(
        "request line",
        {
            "an empty line before it": b"\r\n" + _GET,
            "the end of a form's body that old browsers add": request(body=LEGITIMATE_BODY) + b"\r\n",
        },
    ),
    *_odd("an empty line between two requests", {"": _GET + b"\r\n" + _GET}, count=2),
    *_odd(
        "methods",
        {
            **_each(
                [b"PATCH", b"TRACE", b"PROPFIND", b"FOO", b"get", b"Get", b"M-SEARCH", b"$", _TCHAR[:32], _TCHAR[-32:]],
                lambda method: _get(line=method + b" /post HTTP/1.1"),
            ),
            "HEAD": _get(line=b"HEAD /post HTTP/1.1"),
            "DELETE": _get(line=b"DELETE /post/900719925474099 HTTP/1.1"),
            "OPTIONS": _get(line=b"OPTIONS /post HTTP/1.1"),
        },
    ),
    *_odd(
        "targets",
        _each(
            [
                b"/",
                b"//post",
                b"/post/",
                b"/post//1",
                b"/./post",
                b"/../post",
                b"/post?",
                b"/?",
                b"/post?a=b?c=/d",
                b"/post;v=1",
                b"/%70ost",
                b"/%",
                b"/%00",
                b"/%0d%0aX:%20y",
                b"/:80",
                b"/@",
                b"/post?q=http://x/",
                b"/a\"<>\\^`{|}[]'!$&()*+,;=~",
                _LONG_TARGET,
            ],
            lambda target: _get(line=b"GET " + target + b" HTTP/1.1"),
        ),
    ),
    *_odd(
        "targets in absolute form",
        _each(
            [
                b"http://localhost/post",
                b"HTTP://localhost/post?limit=1",
                b"https://localhost:443/post",
                b"http://posts.example:8080/",
                b"http://posts.example",
                b"http://posts.example:",
                b"http://posts.example?limit=1",
                b"http://[::1]:80/post",
                b"http://127.0.0.1//post",
            ],
            lambda target: _get(line=b"GET " + target + b" HTTP/1.1"),
        ),
    ),
    *_odd(
        "versions",
        _each(
            [b"HTTP/1.1", b"HTTP/1.2", b"HTTP/1.3", b"HTTP/1.9"],
            lambda version: _get(line=b"GET /post " + version),
        ),
    ),
    *_odd(
        "HTTP/1.0",
        {
            "only a request line": b"GET /post HTTP/1.0\r\n\r\n",
            "with a Host": _get(line=b"GET /post HTTP/1.0"),
            "keep-alive": _get(b"Connection: keep-alive", line=b"GET /post HTTP/1.0"),
            "with a body": request(line=b"POST /post HTTP/1.0", body=LEGITIMATE_BODY),
            "Expect: 100-continue": request(b"Expect: 100-continue", line=b"POST /post HTTP/1.0", body=LEGITIMATE_BODY),
            "Expect: dragons": request(b"Expect: dragons", line=b"POST /post HTTP/1.0", body=LEGITIMATE_BODY),
            "a request behind it": _get(line=b"GET /post HTTP/1.0") + _GET,
            "a request behind it, with keep-alive": _get(b"Connection: keep-alive", line=b"GET /post HTTP/1.0") + _GET,
        },
        ends=True,
    ),
    *_odd(
        "Host",
        _each(
            [
                b"x",
                b"x.",
                b"xn--bcher-kva.example",
                b"a_b",
                b"a-.b",
                b"127.0.0.1",
                b"localhost:8080",
                b"localhost:0",
                b"localhost:65535",
                b"localhost:",
                b"[::1]",
                b"[::1]:8080",
                b"[2001:DB8::7]:",
                b"[::ffff:127.0.0.1]",
                b"a%20b",
                b"a!$&'()*+,;=~b",
                b"999.999.999.999",
                b"a" * 1000,
                b"",
            ],
            lambda host: _get(host=host),
        ),
    ),
    *_odd(
        "fields",
        {
            "names in lower case": _get().lower().replace(b"get /post http", b"GET /post HTTP"),
            "names in any case": request(body=LEGITIMATE_BODY).replace(b"Content-Length", b"cONTENT-lENGTH"),
            "no space after the colon": b"GET /post HTTP/1.1\r\nHost:localhost\r\nX:y\r\n\r\n",
            "much space around": b"GET /post HTTP/1.1\r\nHost: \t localhost\t \r\nX:\t y\t z \t\r\n\r\n",
            "space around a length": request(b"Content-Length:\t 22 \t", length=False, body=LEGITIMATE_BODY + b" "),
            "empty": _get(b"X:", b"Y: ", b"Z:\t "),
            "twice": _get(b"X: a", b"x: b", b"X: a"),
            "a name of all token characters": _get(_TCHAR + b": x"),
            "names without letters": _get(b"7: x", b"-: y", b"!: z"),
            "a value of all valid bytes": _get(b"X: a\t" + bytes([*range(0x20, 0x7F), *range(0x80, 0x100)])),
            "a colon in a value": _get(b"X: a: b", b"Y:: c"),
            "looks like a request": _get(b"X: POST /post HTTP/1.1"),
            "a hundred": _get(*(b"X-%d: y" % n for n in range(99))),
            "long": _get(b"Cookie: " + b"c" * 12_000),
            "16 KiB": _HEAD_OF_16_KIB,
        },
    ),
    *_odd(
        "Content-Length",
        {
            "on a GET": request(line=b"GET /post HTTP/1.1", body=LEGITIMATE_BODY),
            "on a HEAD": request(line=b"HEAD /post HTTP/1.1", body=LEGITIMATE_BODY),
            "on an unknown method": request(line=b"FOO /post HTTP/1.1", body=LEGITIMATE_BODY),
            "0": request(body=b""),
            "00": request(b"Content-Length: 00", length=False, body=b""),
            "with zeros before": request(b"Content-Length: 00021", length=False, body=LEGITIMATE_BODY),
            "none on a POST": request(length=False, body=b""),
            "the longest body": request(body=b"x" * MAX_BODY_BYTES),
            "a body of any byte": request(body=b"".join(_ONE_OF_EACH_BYTE)),
        },
    ),
    *_odd(
        "chunks",
        {
            "one": _in_chunks(chunked(LEGITIMATE_BODY)),
            "a byte each": _in_chunks(chunked(*(b"%c" % byte for byte in LEGITIMATE_BODY))),
            "none": _in_chunks(chunked()),
            "on a GET": _in_chunks(chunked(LEGITIMATE_BODY), line=b"GET /post HTTP/1.1"),
            "on HTTP/1.2": _in_chunks(chunked(LEGITIMATE_BODY), line=b"POST /post HTTP/1.2"),
            "any case": request(b"tRANSFER-eNCODING: ChUnKeD", length=False, body=chunked(LEGITIMATE_BODY)),
            "space around": request(b"Transfer-Encoding: \tchunked \t", length=False, body=chunked(LEGITIMATE_BODY)),
            "size in capitals": _in_chunks(b"A\r\n0123456789\r\nB\r\n0123456789a\r\n0\r\n\r\n"),
            "size in small letters": _in_chunks(b"a\r\n0123456789\r\n0\r\n\r\n"),
            "zeros before a size": _in_chunks(b"0005\r\nhello\r\n0\r\n\r\n"),
            "16 digits": _in_chunks(b"0000000000000005\r\nhello\r\n0000000000000000\r\n\r\n"),
            "many zeros for the end": _in_chunks(b"5\r\nhello\r\n000\r\n\r\n"),
            "with line ends in them": _in_chunks(chunked(b"\r\n", b"0\r\n\r\n", b"\r\n0\r\n\r\n")),
            "the longest body": _in_chunks(chunked(*[b"x" * 1024] * (MAX_BODY_BYTES // 1024))),
        },
    ),
    *_odd(
        "chunk extensions",
        _each(
            [b";a", b";a=b", b';a="b c"', b";a;b=c", b';a="\\""', b";a=b\t", b";a=0"],
            lambda extension: _in_chunks(b"5%b\r\nhello\r\n0%b\r\n\r\n" % (extension, extension)),
        ),
    ),
    *_odd(
        "trailers",
        _each(
            [
                b"X-Checksum: abc\r\n",
                b"a: b\r\nc: d\r\n",
                b"Empty:\r\n",
                b"Authorization: Basic YTpi\r\n",
                b"X: POST /post HTTP/1.1\r\n",
                b"X: \xff\r\n",
            ],
            lambda trailers: _in_chunks(chunked(b"hello", end=b"0\r\n%b\r\n" % trailers)),
        ),
    ),
    *_odd(
        "Expect",
        {
            "100-continue": request(b"Expect: 100-continue", body=LEGITIMATE_BODY),
            "100-Continue": request(b"Expect: 100-Continue", body=LEGITIMATE_BODY),
            "100-continue and chunks": _in_chunks(chunked(LEGITIMATE_BODY), b"Expect: 100-continue"),
            "100-continue and no body": _get(b"Expect: 100-continue"),
        },
    ),
    *_odd(
        "Connection",
        {
            **_each(
                [b"close", b"Close", b"CLOSE", b"close, TE", b"TE, close", b"keep-alive, close", b"close,", b"\tclose"],
                lambda value: _get(b"Connection: " + value),
            ),
            "close in the second of two fields": _get(b"Connection: keep-alive", b"Connection: close"),
            "close and a body": request(b"Connection: close", body=LEGITIMATE_BODY),
            "close and a body in chunks": _in_chunks(chunked(LEGITIMATE_BODY), b"Connection: close"),
        },
        ends=True,
    ),
    *_odd(
        "Connection without close",
        _each(
            [b"keep-alive", b"closed", b"close-not", b"not close", b"TE", b"", b"Upgrade", b"x, y"],
            lambda value: _get(b"Connection: " + value),
        ),
    ),
    *_odd(
        "ignored Upgrade",
        {
            "h2c": _get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAoAAA"),
            "h2c with a body": request(b"Connection: Upgrade", b"Upgrade: h2c", body=LEGITIMATE_BODY),
            "websocket": _get(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
            "TLS/1.0": _get(b"Connection: Upgrade", b"Upgrade: TLS/1.0"),
            "without Connection": _get(b"Upgrade: h2c"),
        },
    ),
    *_odd(
        "two on one connection",
        {
            "plain": _GET + _get(line=b"HEAD / HTTP/1.1"),
            "after a body": request(body=LEGITIMATE_BODY) + _GET,
            "after chunks": _in_chunks(chunked(LEGITIMATE_BODY)) + _GET,
            "after trailers": _in_chunks(chunked(LEGITIMATE_BODY, end=b"0\r\nX: y\r\n\r\n")) + _GET,
            "after Upgrade": _get(b"Connection: Upgrade", b"Upgrade: h2c") + _GET,
            "after Expect: 100-continue": request(b"Expect: 100-continue", body=LEGITIMATE_BODY) + _GET,
            "after HTTP/1.9": _get(line=b"GET / HTTP/1.9") + _GET,
        },
        count=2,
    ),
    *_odd("many on one connection", {"plain": _GET * 20, "with bodies": request(body=LEGITIMATE_BODY) * 20}, count=20),
    Case(
        "the last of several",
        "Connection: close in the second",
        _GET + _get(b"Connection: close") + AFTER,
        (TAKEN, TAKEN),
        ends=True,
    ),
    Case("OPTIONS *", "on 1.1", _get(line=b"OPTIONS * HTTP/1.1"), (frozenset({200, 204}),)),
    Case("OPTIONS *", "on 1.0", _get(line=b"OPTIONS * HTTP/1.0"), (frozenset({200, 204}),), ends=True),
)


# Requests that a server may accept or refuse: RFC 9112 leaves it open, or its grammar is wider than any client's use.


def _either(family: str, sent: Mapping[str, bytes], refused: Collection[int] = (400,)) -> Iterable[Case]:
    return (Case(family, name, data, (frozenset({200, *refused}),)) for name, data in sent.items())


REFUSABLE: Sequence[Case] = (
    *_either(
        "unusual Hosts",
        _each(
            [b":80", b"[v1.x]", b"[::1%25eth0]", b"localhost:00080", b"localhost:" + b"0" * 100],
            lambda host: _get(host=host),
        ),
    ),
    *_either(
        "space around chunk extensions",  # BWS, RFC 9112 §7.1.1
        _each(
            [b" ;a", b"; a", b";a =b", b";a= b"], lambda extension: _in_chunks(b"5%b\r\nhello\r\n0\r\n\r\n" % extension)
        ),
    ),
    *_either(
        "malformed chunk extensions",
        _each([b";", b";;", b';a="', b";=b", b";\xff"], lambda ext: _in_chunks(b"5%b\r\nhello\r\n0\r\n\r\n" % ext)),
    ),
    *_either(
        "lists in Expect",
        _each([b"", b"100-continue, 100-continue"], lambda value: request(b"Expect: " + value, body=LEGITIMATE_BODY)),
        refused=(417,),
    ),
    *_either(
        "a length of many zeros",
        {"": request(b"Content-Length: " + b"0" * 5000 + b"21", length=False, body=LEGITIMATE_BODY)},
        refused=(400, 413, 431),
    ),
)


# Requests that must not reach a resource.


def _bad(family: str, sent: Mapping[str, bytes], *statuses: int) -> Iterable[Case]:
    return (Case(family, name, data, (frozenset(statuses or {400}),), ends=True) for name, data in sent.items())


def _line(line: bytes) -> bytes:
    return request(line=line)


_NOT_TOKEN = [byte for byte in _ONE_OF_EACH_BYTE if byte not in _TCHAR]
_NO_TARGET_BYTES = [bytes([byte]) for byte in (*_CONTROLS, 0x20, 0x23, 0x80, 0xE9, 0xFF)]
_NO_VALUE_BYTES = [bytes([byte]) for byte in _CONTROLS if byte != 0x09]
_TLS_HELLO = bytes.fromhex("16030100f1010000ed0303") + bytes(range(200)) + bytes.fromhex("130213011303")

_BAD_LINES = {
    "two spaces before the target": b"POST  /post HTTP/1.1",
    "two spaces before the version": b"POST /post  HTTP/1.1",
    "a tab before the target": b"POST\t/post HTTP/1.1",
    "a tab before the version": b"POST /post\tHTTP/1.1",
    "a tab and a space": b"POST \t/post HTTP/1.1",
    "a vertical tab": b"POST\x0b/post HTTP/1.1",
    "a form feed": b"POST\x0c/post HTTP/1.1",
    "a no-break space": b"POST\xa0/post HTTP/1.1",
    "a space before it": b" POST /post HTTP/1.1",
    "a tab before it": b"\tPOST /post HTTP/1.1",
    "a space after it": b"POST /post HTTP/1.1 ",
    "a tab after it": b"POST /post HTTP/1.1\t",
    "a space in the target": b"POST /post /x HTTP/1.1",
    "a word more": b"POST /post HTTP/1.1 HTTP/1.1",
    "no target": b"POST HTTP/1.1",
    "an empty target": b"POST  HTTP/1.1",
    "no method": b"/post HTTP/1.1",
    "only a method": b"POST",
    "only a space": b" ",
    "HTTP/0.9": b"POST /post",
    "HTTP/0.9 and a space": b"POST /post ",
    "two empty lines before it": b"\r\n\r\nPOST /post HTTP/1.1",
    "three empty lines before it": b"\r\n\r\n\r\nPOST /post HTTP/1.1",
    "a bare line feed before it": b"\nPOST /post HTTP/1.1",
    "a bare carriage return before it": b"\rPOST /post HTTP/1.1",
    "two carriage returns before it": b"\r\r\nPOST /post HTTP/1.1",
    "an empty line and a space before it": b"\r\n POST /post HTTP/1.1",
    "a byte order mark": b"\xef\xbb\xbfPOST /post HTTP/1.1",
    "quotes": b'"POST" "/post" "HTTP/1.1"',
    "an answer": b"HTTP/1.1 200 OK",
}

_BAD_VERSIONS = [
    b"http/1.1",
    b"Http/1.1",
    b"HTTP/1",
    b"HTTP/1.",
    b"HTTP/.1",
    b"HTTP/1.10",
    b"HTTP/1.1.1",
    b"HTTP/11",
    b"HTTP/01.1",
    b"HTTP/1.01",
    b"HTTP/1,1",
    b"HTTP/+1.1",
    b"HTTP/1.-1",
    b"HTTP/1.1x",
    b"HTTP/1.1;",
    b"HTTP/a.b",
    b"HTTP/1.\xb2",
    b"HTTP/1.\xd9\xa1",
    b"HTTP\\1.1",
    b"HTTP-1.1",
    b"HTTP1.1",
    b"HTTPS/1.1",
    b"XHTTP/1.1",
    b"/HTTP/1.1",
    b"HTCPCP/1.0",
    b"RTSP/1.0",
    b"SIP/2.0",
    b"1.1",
]

_BAD_TARGETS = [
    b"*",
    b"post",
    b"?post",
    b"./post",
    b"\\post",
    b"localhost/post",
    b"localhost:80",
    b"/post#",
    b"/post#frag",
    b"/#/post",
    b"#",
    b"http:",
    b"http:/post",
    b"http:post",
    b"http://",
    b"http:///post",
    b"http://?a",
    b"http://:80/post",
    b"https://:/post",
    b"http://user@localhost/post",
    b"http://user:secret@localhost/post",
    b"http://@localhost/post",
    b"http://localhost:port/post",
    b"http://localhost:99999/post",
    b"http://localhost:80:80/post",
    b"http://[::1/post",
    b"http://::1/post",
    b"http://local\\host/post",
    b'http://"localhost"/post',
    b"http://b\xc3\xbccher.example/post",
    b"http://localhost/post#frag",
    b"http://localhost#frag",
    b"ftp://localhost/post",
    b"ws://localhost/post",
    b"file:///post",
    b"javascript:alert(1)",
    b"httpx://localhost/post",
    b"https//localhost/post",
]

_BAD_HOSTS = [
    b"a b",
    b"a\tb",
    b"a/b",
    b"a@b",
    b"user:secret@localhost",
    b"a?b",
    b"a#b",
    b"a\\b",
    b'"a"',
    b"<a>",
    b"a|b",
    b"a^b",
    b"a`b",
    b"a{b}",
    b"http://localhost",
    b"localhost:port",
    b"localhost:80a",
    b"localhost: 80",
    b"localhost :80",
    b"localhost:-1",
    b"localhost:+80",
    b"localhost:65536",
    b"localhost:99999",
    b"localhost:18446744073709551696",
    b"localhost:" + b"9" * 5000,
    b"localhost:80:80",
    b"localhost:\xb2",
    b"::1",
    b"[::1",
    b"::1]",
    b"[]",
    b"[::g]",
    b"[::1]x",
    b"[::1]80",
    b"[::1]:x",
    b"[[::1]]",
    b"[1.2.3.4]",
    b"[localhost]",
    b"[1:2:3:4:5:6:7:8:9]",
    b"[::1::2]",
    b"%",
    b"%zz",
    b"a%2",
    b"b\xc3\xbccher.example",
    b"\xe4",
    b"\xff",
]

_BAD_CODINGS = [
    b"",
    b"identity",
    b"gzip",
    b"deflate",
    b"x-chunked",
    b"chunkedx",
    b"xchunked",
    b"chunke",
    b"chunked, chunked",
    b"chunked,chunked",
    b"chunked chunked",
    b"chunked, gzip",
    b"chunked, identity",
    b'"chunked"',
    b"'chunked'",
    b"chunked\x0b",
    b"\x0bchunked",
    b"chunked\x00",
    b"chunked\xa0",
    b"\xa0chunked",
    b"ch\xfcnked",
    b"chun\tked",
    b";chunked",
    b"true",
    b"*",
]

_BAD_LENGTHS = [
    b"",
    b"+%d",
    b"-%d",
    b"-0",
    b"%d.0",
    b"%d,",
    b",%d",
    b"%d;",
    b"%d a",
    b"%d 0",
    b"0 %d",
    b"%d, %d",
    b"0, %d",
    b"%d, 0",
    b"%d\x0b",
    b"\x0c%d",
    b"%d\x00",
    b"%d\xa0",
    b"\xa0%d",
    b"0x13",
    b"0b10",
    b"1_9",
    b"1e1",
    b"13h",
    b'"%d"',
    b"nineteen",
    b"NaN",
    b"\xb2",
    b"1\xb2",
    b"\xd9\xa1\xd9\xa9",
    b"\xef\xbc\x91\xef\xbc\x99",
]

_SIZE = b"%x" % len(HIDDEN_BODY)
_LATE_CHUNK = b"\r\n%b\r\n" % HIDDEN_BODY + b"0\r\n\r\n"
_BAD_SIZES = [
    b"",
    b" ",
    b"g",
    b"x",
    b"0x" + _SIZE,
    b"0X" + _SIZE,
    b"+" + _SIZE,
    b"-" + _SIZE,
    b" " + _SIZE,
    b"\t" + _SIZE,
    _SIZE + b" ",
    _SIZE + b"\t",
    _SIZE + b"h",
    _SIZE + b",",
    _SIZE + b".0",
    _SIZE + b" " + _SIZE,
    _SIZE + b"=a",
    _SIZE + b"\x00",
    _SIZE + b"\x0b",
    _SIZE + b"\xa0",
    b"\xa0" + _SIZE,
    b"1_3",
    b"\xb2",
    b"\xef\xbc\x95",
    b"\\x13",
    b"0" * 16 + _SIZE,
    b"0" * 5000 + _SIZE,
    b"1" + b"0" * 14 + _SIZE,
    b"1" + b"0" * 30 + _SIZE,
    b"-1",
    b"-0",
    b"\r",
]

_AFTER_LINE = b"POST /post HTTP/1.1"
_BAD_TRAILERS = [
    b"Content-Length: 5\r\n",
    b"content-length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"TRANSFER-ENCODING: identity\r\n",
    b"Host: x\r\n",
    _AFTER_LINE + b"\r\n",
    _AFTER_LINE + b"\r\nHost: localhost\r\nContent-Length: 0\r\n",
    b"X\r\n",
    b": y\r\n",
    b"X : y\r\n",
    b"X\t: y\r\n",
    b" X: y\r\n",
    b"\tX: y\r\n",
    b"X: a\r\n b\r\n",
    b"X: a\r\n\tb\r\n",
    b"X: a\n",
    b"X: a\r",
    b"X: a\rb\r\n",
    b"X: a\nb: c\r\n",
    b"X: a\x00\r\n",
    b"X: a\x0b\r\n",
    b"X: a\x7f\r\n",
    b"X\x00: a\r\n",
    b"X(Y): a\r\n",
    b"X\xff: a\r\n",
    b"\n",
    b"\r",
    b"\x00",
]


def _with_coding(value: bytes, *, body: bytes = chunked(HIDDEN_BODY)) -> bytes:
    return request(b"Transfer-Encoding: " + value, length=False, body=body)


def _with_length(value: bytes) -> bytes:
    written = value.replace(b"%d", b"%d" % len(HIDDEN_BODY))
    return request(b"Content-Length: " + written, length=False)


HOSTILE: Sequence[Case] = (
    *_bad("bad request lines", {name: _line(line) for name, line in _BAD_LINES.items()}),
    *_bad("invalid bytes in a method", _each(_NOT_TOKEN, lambda byte: _line(b"PO%bST /post HTTP/1.1" % byte))),
    *_bad("invalid first bytes of a method", _each(_NOT_TOKEN, lambda byte: _line(b"%bPOST /post HTTP/1.1" % byte))),
    *_bad("CONNECT", _each([b"localhost:80", b"localhost"], lambda x: _line(b"CONNECT %b HTTP/1.1" % x)), 501),
    *_bad("CONNECT with a path", {"": _line(b"CONNECT /post HTTP/1.1")}, 400, 501),
    *_bad("long methods", _each([b"M" * 33, b"M" * 1000], lambda method: _line(method + b" /post HTTP/1.1")), 501),
    *_bad("endless methods", {"": b"M" * 20_000}, 400, 414, 431, 501),
    *_bad("bad targets", _each(_BAD_TARGETS, lambda target: _line(b"POST %b HTTP/1.1" % target))),
    *_bad("invalid bytes in a target", _each(_NO_TARGET_BYTES, lambda byte: _line(b"POST /post?%b HTTP/1.1" % byte))),
    *_bad("bad versions", _each(_BAD_VERSIONS, lambda version: _line(b"POST /post " + version))),
    *_bad(
        "unsupported versions",
        _each(
            [b"HTTP/2.0", b"HTTP/3.0", b"HTTP/0.9", b"HTTP/0.0", b"HTTP/9.9", b"HTTP/2.1"],
            lambda version: _line(b"POST /post " + version),
        ),
        505,
    ),
    *_bad("bad hosts", _each(_BAD_HOSTS, lambda host: request(host=host))),
    *_bad("bad hosts on HTTP/1.0", _each(_BAD_HOSTS[:8], lambda x: request(line=b"POST /post HTTP/1.0", host=x))),
    *_bad(
        "no Host or several",
        {
            "none": request(host=None),
            "none on HTTP/1.2": request(host=None, line=b"POST /post HTTP/1.2"),
            "none, but an absolute target": request(host=None, line=b"POST http://localhost/post HTTP/1.1"),
            "the same twice": request(b"Host: localhost"),
            "two": request(b"Host: other"),
            "two in any case": request(b"hOST: other"),
            "two, one empty": request(b"Host:"),
            "two on HTTP/1.0": request(b"Host: other", line=b"POST /post HTTP/1.0"),
            "two and an absolute target": request(b"Host: other", line=b"POST http://localhost/post HTTP/1.1"),
            "a bad one and an absolute target": request(host=b"a b", line=b"POST http://localhost/post HTTP/1.1"),
        },
    ),
    *_bad(
        "invalid bytes in a field name",
        _each([byte for byte in _NOT_TOKEN if byte != b":"], lambda byte: request(b"X%bY: z" % byte)),
    ),
    *_bad("invalid bytes in a field value", _each(_NO_VALUE_BYTES, lambda byte: request(b"X: y%bz" % byte))),
    *_bad("invalid first bytes of a field value", _each(_NO_VALUE_BYTES, lambda byte: request(b"X: %by" % byte))),
    *_bad("invalid last bytes of a field value", _each(_NO_VALUE_BYTES, lambda byte: request(b"X: y%b" % byte))),
    *_bad("invalid bytes in a Host", _each(_NO_VALUE_BYTES, lambda byte: request(host=b"local%bhost" % byte))),
    *_bad(
        "bad fields",
        {
            "no colon": request(b"X"),
            "no name": request(b": y"),
            "only a colon": request(b":"),
            "a space before the colon": request(b"X : y"),
            "a tab before the colon": request(b"X\t: y"),
            "a space in a name": request(b"X Y: z"),
            "a line of spaces": request(b"  "),
            "a line of one tab": request(b"\t"),
            "a folded line": request(b"X: y", b" z"),
            "a line folded with a tab": request(b"X: y", b"\tz"),
            "a line folded to a field": request(b"X: y", b" Z: w"),
            "a line folded to nothing": request(b"X: y", b" "),
            "a folded value": request(b"X:", b" y"),
            "a folded first line": request(line=b"POST /post HTTP/1.1\r\n X: y"),
            "a folded Host": request(host=b"\r\n localhost"),
            "a folded length": request(b"Content-Length:\r\n %d" % len(HIDDEN_BODY), length=False),
            "a folded coding": _with_coding(b"\r\n chunked"),
            "a folded coding, with a tab": _with_coding(b"\r\n\tchunked"),
            "a space before the colon of Host": request(b"Host : localhost", host=None),
            "a space before the colon of a length": request(b"Content-Length : %d" % len(HIDDEN_BODY), length=False),
            "a space before the colon of a coding": request(
                b"Transfer-Encoding : chunked", length=False, body=chunked(HIDDEN_BODY)
            ),
            "a space before a coding": request(b" Transfer-Encoding: chunked", length=False, body=chunked(HIDDEN_BODY)),
            "a request line": request(_AFTER_LINE),
        },
    ),
    *_bad(
        "bad line ends",
        {
            "line feeds": request().replace(b"\r\n", b"\n"),
            "carriage returns": request().replace(b"\r\n", b"\r") + b"\r\n",
            "a line feed after the request line": request().replace(b"\r\n", b"\n", 1),
            "a carriage return after the request line": request().replace(b"\r\n", b"\r", 1),
            "two carriage returns after the request line": request().replace(b"\r\n", b"\r\r\n", 1),
            "a line feed after a field": request(b"X: y\nZ: w"),
            "a carriage return after a field": request(b"X: y\rZ: w"),
            "two carriage returns after a field": request(b"X: y\r\r\nZ: w"),
            "a line feed and a carriage return": request(b"X: y\n\rZ: w"),
            "a line feed for the end": request().replace(b"\r\n\r\n", b"\r\n\n"),
            "two line feeds for the end": request().replace(b"\r\n\r\n", b"\n\n"),
            "a line feed, then an empty line": request().replace(b"\r\n\r\n", b"\n\r\n"),
            "a carriage return for the end": request().replace(b"\r\n\r\n", b"\r\n\r"),
            "two carriage returns for the end": request().replace(b"\r\n\r\n", b"\r\n\r\r\n"),
            "a space in the empty line": request().replace(b"\r\n\r\n", b"\r\n \r\n"),
            "a vertical tab for a line end": request(b"X: y\x0bZ: w"),
            "a NUL for a line end": request(b"X: y\x00Z: w"),
            "a NEL for a line end": request().replace(b"\r\n", b"\x85", 1),
        },
    ),
    *_bad("bad codings", _each(_BAD_CODINGS, _with_coding)),
    *_bad("bad codings without chunks", _each(_BAD_CODINGS, lambda value: _with_coding(value, body=AFTER))),
    *_bad(
        "bad codings and a length",
        _each(_BAD_CODINGS, lambda value: request(b"Transfer-Encoding: " + value)),
    ),
    *_bad(
        "a list with an empty coding",  # RFC 9110 §5.6.1.2 would have us read it as "chunked"; nobody means well by it
        _each([b",chunked", b", chunked", b"chunked,", b"chunked ,", b",", b"chunked, ,"], _with_coding),
        400,
        501,
    ),
    *_bad("a coding with a parameter", _each([b"chunked;q=1", b"chunked; a=b", b"chunked;"], _with_coding), 400, 501),
    *_bad(
        "unsupported codings",
        _each([b"gzip, chunked", b"gzip,chunked", b"deflate, gzip, chunked", b"GZIP, Chunked"], _with_coding),
        501,
    ),
    *_bad("identity, then chunks", _each([b"identity, chunked", b"identity,chunked"], _with_coding), 400, 501),
    *_bad(
        "two codings",
        {
            "chunked twice": request(_CHUNKED, _CHUNKED, length=False, body=chunked(HIDDEN_BODY)),
            "chunked, then identity": request(
                _CHUNKED, b"Transfer-Encoding: identity", length=False, body=chunked(HIDDEN_BODY)
            ),
            "chunked, then nothing": request(_CHUNKED, b"Transfer-Encoding:", length=False, body=chunked(HIDDEN_BODY)),
            "chunked, then gzip": request(
                _CHUNKED, b"Transfer-Encoding: gzip", length=False, body=chunked(HIDDEN_BODY)
            ),
            "in any case": request(_CHUNKED, b"transfer-encoding: x", length=False, body=chunked(HIDDEN_BODY)),
            "nothing, then chunked": request(b"Transfer-Encoding:", _CHUNKED, length=False, body=chunked(HIDDEN_BODY)),
            "gzip, then chunked": request(
                b"Transfer-Encoding: gzip", _CHUNKED, length=False, body=chunked(HIDDEN_BODY)
            ),
        },
        400,
        501,
    ),
    *_bad(
        "a coding and a length",
        {
            "the length first": request(_CHUNKED, body=chunked(HIDDEN_BODY)),
            "the coding first": request(
                _CHUNKED, b"Content-Length: %d" % len(HIDDEN_BODY), length=False, body=chunked(HIDDEN_BODY)
            ),
            "a length of 0": request(_CHUNKED, b"Content-Length: 0", length=False, body=chunked(HIDDEN_BODY)),
            "an empty length": request(_CHUNKED, b"Content-Length:", length=False, body=chunked(HIDDEN_BODY)),
            "a length that is a word": request(_CHUNKED, b"Content-Length: x", length=False, body=chunked(HIDDEN_BODY)),
            "a length in lower case": request(_CHUNKED, b"content-length: 5", length=False, body=chunked(HIDDEN_BODY)),
            "an early last chunk": request(_CHUNKED, body=chunked() + AFTER),
            "on HTTP/1.0": request(_CHUNKED, line=b"POST /post HTTP/1.0"),
        },
    ),
    *_bad(
        "a coding on HTTP/1.0",
        {
            "chunked": _in_chunks(chunked(HIDDEN_BODY), line=b"POST /post HTTP/1.0"),
            "chunked, with keep-alive": _in_chunks(
                chunked(HIDDEN_BODY), b"Connection: keep-alive", line=b"POST /post HTTP/1.0"
            ),
            "identity": request(b"Transfer-Encoding: identity", line=b"POST /post HTTP/1.0", length=False, body=AFTER),
        },
    ),
    *_bad("bad lengths", _each(_BAD_LENGTHS, _with_length)),
    *_bad(
        "two lengths",
        {
            "the same": request(b"Content-Length: %d" % len(HIDDEN_BODY)),
            "the same in zeros": request(b"Content-Length: 0%d" % len(HIDDEN_BODY)),
            "a zero second": request(b"Content-Length: 0"),
            "a zero first": request(b"Content-Length: 0", b"Content-Length: %d" % len(HIDDEN_BODY), length=False),
            "an empty one": request(b"Content-Length:"),
            "in lower case": request(b"content-length: 5"),
            "one of them huge": request(b"Content-Length: 99999999999999999999"),
        },
        400,
    ),
    *_bad(
        "lengths over the limit",
        _each(
            [
                b"%d" % (MAX_BODY_BYTES + 1),
                b"%d" % 2**31,
                b"%d" % 2**32,
                b"%d" % (2**32 + len(HIDDEN_BODY)),
                b"%d" % 2**63,
                b"%d" % 2**64,
                b"%d" % (2**64 + len(HIDDEN_BODY)),
                b"9" * 400,
                b"9" * 5000,
                b"1" + b"0" * 5000,
            ],
            lambda value: request(b"Content-Length: " + value, length=False),
        ),
        413,
    ),
    *_bad(
        "an over-long length and Expect",
        {"": request(b"Content-Length: 99999", b"Expect: 100-continue", length=False)},
        413,
    ),
    *_bad("bad sizes of chunks", _each(_BAD_SIZES, lambda size: _in_chunks(size + _LATE_CHUNK))),
    *_bad(
        "bad sizes of second chunks", _each(_BAD_SIZES, lambda size: _in_chunks(b"5\r\nhello\r\n" + size + _LATE_CHUNK))
    ),
    *_bad(
        "sizes of chunks over the limit",
        _each(
            [b"4001", b"7fffffff", b"ffffffff", b"100000000", b"7FFFFFFFFFFFFFFF", b"FFFFFFFFFFFFFFFF"],
            lambda size: _in_chunks(size + _LATE_CHUNK),
        ),
        413,
    ),
    *_bad(
        "chunks over the limit in total",
        {"": _in_chunks(chunked(*[b"x" * 1024] * (MAX_BODY_BYTES // 1024), b"x"))},
        413,
    ),
    *_bad(
        "bad ends of chunks",
        {
            "none": _in_chunks(b"5\r\nhello0\r\n\r\n"),
            "a line feed": _in_chunks(b"5\r\nhello\n0\r\n\r\n"),
            "a carriage return": _in_chunks(b"5\r\nhello\r0\r\n\r\n"),
            "two line feeds": _in_chunks(b"5\r\nhello\n\n0\r\n\r\n"),
            "two other bytes": _in_chunks(b"5\r\nhelloxx0\r\n\r\n"),
            "a carriage return and another byte": _in_chunks(b"5\r\nhello\rx0\r\n\r\n"),
            "another byte and a line feed": _in_chunks(b"5\r\nhellox\n0\r\n\r\n"),
            "two carriage returns": _in_chunks(b"5\r\nhello\r\r0\r\n\r\n"),
            "a line feed and a carriage return": _in_chunks(b"5\r\nhello\n\r0\r\n\r\n"),
            "too late": _in_chunks(b"4\r\nhello\r\n0\r\n\r\n"),
            "too early": _in_chunks(b"6\r\nhello\r\n0\r\n\r\n"),
            "a space before": _in_chunks(b"5\r\nhello \r\n0\r\n\r\n"),
            "two": _in_chunks(b"5\r\nhello\r\n\r\n0\r\n\r\n"),
            "a line feed after the size": _in_chunks(b"5\nhello\r\n0\r\n\r\n"),
            "a carriage return after the size": _in_chunks(b"5\rhello\r\n0\r\n\r\n"),
            "two carriage returns after the size": _in_chunks(b"5\r\r\nhello\r\n0\r\n\r\n"),
            "a line feed after an extension": _in_chunks(b"5;a\nhello\r\n0\r\n\r\n"),
        },
    ),
    *_bad(
        "bad last chunks",
        {
            "a line feed for the empty line": _in_chunks(b"5\r\nhello\r\n0\r\n\n"),
            "a line feed after the 0": _in_chunks(b"5\r\nhello\r\n0\n\r\n"),
            "two line feeds": _in_chunks(b"5\r\nhello\r\n0\n\n"),
            "a carriage return, then more": _in_chunks(b"5\r\nhello\r\n0\r\n\rx"),
            "two carriage returns": _in_chunks(b"5\r\nhello\r\n0\r\n\r\r\n"),
            "a space": _in_chunks(b"5\r\nhello\r\n0\r\n \r\n"),
            "a space after the 0": _in_chunks(b"5\r\nhello\r\n0 \r\n\r\n"),
            "a minus": _in_chunks(b"5\r\nhello\r\n-0\r\n\r\n"),
            "17 digits": _in_chunks(b"5\r\nhello\r\n" + b"0" * 17 + b"\r\n\r\n"),
        },
    ),
    *_bad(
        "invalid bytes in a chunk extension",
        _each(
            [byte for byte in _NO_VALUE_BYTES if byte != b"\t"],
            lambda byte: _in_chunks(b"5;a=%bb\r\nhello\r\n0\r\n\r\n" % byte),
        ),
    ),
    *_bad(
        "a request in a chunk extension",
        {
            "after a line feed": _in_chunks(b"5;\n" + AFTER + b"\r\nhello\r\n0\r\n\r\n"),
            "after a carriage return": _in_chunks(b"5;\r" + AFTER + b"\r\nhello\r\n0\r\n\r\n"),
            "after a quote": _in_chunks(b'0;a="\r\n' + AFTER + b'"\r\n\r\n'),
        },
    ),
    *_bad(
        "endless chunk extensions",
        {
            "one": _in_chunks(b"5;" + b"a" * 100_000 + b"\r\nhello\r\n0\r\n\r\n"),
            "many": _in_chunks((b"1;" + b"a" * 200 + b"\r\nx\r\n") * 1000 + b"0\r\n\r\n"),
        },
        400,
        413,
        431,
    ),
    *_bad("endless sizes of chunks", {"zeros": _in_chunks(b"0" * 100_000)}, 400, 413, 431),
    *_bad("bad trailers", _each(_BAD_TRAILERS, lambda x: _in_chunks(chunked(b"hello", end=b"0\r\n%b\r\n" % x)))),
    *_bad(
        "endless trailers",
        {
            "many": _in_chunks(chunked(b"hello", end=b"0\r\n" + b"X: y\r\n" * 30_000 + b"\r\n")),
            "long": _in_chunks(chunked(b"hello", end=b"0\r\nX: " + b"y" * 100_000 + b"\r\n\r\n")),
            "several long": _in_chunks(
                chunked(b"hello", end=b"0\r\n" + (b"X: " + b"y" * 1000 + b"\r\n") * 90 + b"\r\n")
            ),
        },
        400,
        413,
        431,
    ),
    *_bad(
        "unknown expectations",
        _each(
            [b"dragons", b"200-ok", b"100", b"100-continu", b"100-continue-not", b"100-continue, dragons", b"a=b"],
            lambda value: request(b"Expect: " + value),
        ),
        417,
    ),
    *_bad(
        "long targets",
        {
            "a byte too many": _line(b"POST /post?" + b"a" * (8192 - 5) + b" HTTP/1.1"),
            "many": _line(b"POST /post?" + b"a" * 15_000 + b" HTTP/1.1"),
            "more than a head": _line(b"POST /post?" + b"a" * 100_000 + b" HTTP/1.1"),
            "endless": b"POST /post?" + b"a" * 100_000,
        },
        414,
    ),
    *_bad(
        "large heads",
        {
            "101 fields": request(*(b"X-%d: y" % n for n in range(98))),
            "1,000 fields": request(*(b"X-%d: y" % n for n in range(1000))),
            "10,000 fields": request(*(b"X-%d: y" % n for n in range(10_000))),
            "a value": request(b"X: " + b"y" * 16_384),
            "a long value": request(b"Cookie: " + b"y" * 100_000),
            "a name": request(b"X" * 16_384 + b": y"),
            "an endless value": b"POST /post HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000,
            "an endless name": b"POST /post HTTP/1.1\r\nHost: localhost\r\n" + b"X" * 100_000,
            "endless spaces": b"POST /post HTTP/1.1\r\nHost: localhost\r\nX:" + b" " * 100_000,
            "a target and a value": request(b"X: " + b"y" * 9000, line=b"POST /post?" + b"a" * 8000 + b" HTTP/1.1"),
            "the longest target and a value": request(
                b"X: " + b"y" * 9000, line=b"POST /post?" + b"a" * (8192 - 6) + b" HTTP/1.1"
            ),
            "many small lines": b"POST /post HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 30_000,
        },
        431,
    ),
    *_bad(
        "other protocols",
        {
            "TLS": _TLS_HELLO + b"\r\n",
            "SSH": b"SSH-2.0-OpenSSH_10.0p2 Debian-7\r\n",
            "PROXY": b"PROXY TCP4 192.0.2.1 192.0.2.2 4321 80\r\n",
            "PROXY, binary": b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x10\xe1\x00\x50",
            "SMTP": b"EHLO mail.example\r\n",
            "FTP": b"USER anonymous\r\n",
            "Redis": b"*1\r\n$4\r\nPING\r\n",
            "memcached": b"set k 0 0 5\r\nhello\r\n",
            "SOCKS5": b"\x05\x01\x00\r\n",
            "RTSP": b"DESCRIBE rtsp://localhost/post RTSP/1.0\r\nCSeq: 1\r\n\r\n",
            "SIP": b"INVITE sip:bob@localhost SIP/2.0\r\n\r\n",
            "gopher": b"\r\n\r\n",
            "JSON": HIDDEN_BODY + b"\r\n",
            "UTF-16": request().decode().encode("utf-16") + b"\r\n",
            "an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        },
    ),
    *_bad(
        "HTTP/2 with prior knowledge",
        {"": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
        400,
        505,
    ),
)


# Requests that are refused before the end of their head has arrived.

_OPENING = b"POST /post HTTP/1.1\r\nHost: localhost\r\n"

AT_ONCE: Sequence[Case] = (
    *_bad(
        "at once",
        {
            "a bad request line": b"POST /post\r\n",
            "a request line that ends in a line feed": b"POST /post HTTP/1.1\n",
            "a head in line feeds": request().replace(b"\r\n", b"\n"),
            "a bad version": b"POST /post HTTP/1.x\r\n",
            "an invalid target": b"POST post HTTP/1.1\r\n",
            "a field without a colon": _OPENING + b"X\r\n",
            "a space before a colon": _OPENING + b"X : y\r\n",
            "a folded line": _OPENING + b"X: y\r\n z\r\n",
            "a control byte in a field": _OPENING + b"X: \x00\r\n",
            "a field that ends in a line feed": _OPENING + b"X: y\n",
            "a bad size of a chunk": _in_chunks(b"x\r\n"),
            "a bad end of a chunk": _in_chunks(b"5\r\nhelloxx"),
            "a trailer without a colon": _in_chunks(b"0\r\nX\r\n"),
        },
    ),
    *_bad("at once: an over-long length", {"": _OPENING + b"Content-Length: 99999\r\n\r\n"}, 413),
    *_bad("at once: an over-long chunk", {"": _in_chunks(b"4001\r\n")}, 413),
    *_bad("at once: an unknown expectation", {"": _OPENING + b"Content-Length: 5\r\nExpect: dragons\r\n\r\n"}, 417),
    *_bad("at once: an endless target", {"": b"POST /" + b"a" * 8193}, 414),
    *_bad("at once: an endless field", {"": _OPENING + b"X: " + b"a" * 16_385}, 431),
    *_bad(
        "at once: endless parts of chunks",
        {
            "a size": _in_chunks(b"0" * 20_000),
            "an extension": _in_chunks(b"5;" + b"a" * 20_000),
            "a trailer": _in_chunks(b"0\r\nX: " + b"y" * 20_000),
        },
        400,
        413,
        431,
    ),
    *_bad("at once: an unsupported version", {"": b"POST /post HTTP/2.0\r\n\r\n"}, 505),
    *_bad("at once: CONNECT", {"": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n"}, 501),
)


# Attempts whose visible request may be accepted; the hidden request must not be executed.


def _hiding(
    family: str, sent: Mapping[str, bytes], answers: tuple[frozenset[int], ...] = (TAKEN,), *, ends: bool = False
) -> Iterable[Case]:
    return (Case(family, name, data, answers, ends) for name, data in sent.items())


_ANOTHER = _get(line=b"GET /another HTTP/1.1")

HIDING: Sequence[Case] = (
    *_hiding(
        "in a body",
        {
            **_each(
                [b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"PUT", b"TRACE", b"FOO", b"get"],
                lambda method: request(line=method + b" /another HTTP/1.1", body=AFTER),
            ),
            "of a login": request(line=b"POST /login HTTP/1.1", body=AFTER),
            "of a missing resource": request(line=b"POST /nowhere HTTP/1.1", body=AFTER),
            "of an invalid post": request(body=AFTER),
            "of a GET in chunks": _in_chunks(chunked(AFTER), line=b"GET /another HTTP/1.1"),
            "in chunks of a byte": _in_chunks(chunked(*(b"%c" % byte for byte in AFTER))),
            "after an end in a chunk": _in_chunks(chunked(b"0\r\n\r\n" + AFTER)),
            "with a name that is no coding's": request(b"Transfer_Encoding: chunked", body=chunked() + AFTER),
            "with a coding among other names": request(
                b"X-Transfer-Encoding: chunked", b"TE: chunked", body=chunked() + AFTER
            ),
            "with a length among other names": request(
                b"X-Content-Length: 0", b"Content_Length: 0", b"ContentLength: 0", body=AFTER
            ),
            "with a length in Connection": request(b"Connection: Content-Length", body=AFTER),
            "of a request to change over": request(b"Connection: Upgrade", b"Upgrade: h2c", body=AFTER),
            "of a request for a websocket": request(b"Connection: Upgrade", b"Upgrade: websocket", body=AFTER),
            "of a request to go on": request(b"Expect: 100-continue", body=AFTER),
            "of a request to go on, in chunks": _in_chunks(chunked(AFTER), b"Expect: 100-continue"),
        },
    ),
    *_hiding(
        "in a body, before another request",
        {
            "of a GET": request(line=b"GET /another HTTP/1.1", body=AFTER) + _ANOTHER,
            "in chunks": _in_chunks(chunked(AFTER)) + _ANOTHER,
            "of a HEAD": request(line=b"HEAD /another HTTP/1.1", body=AFTER) + _ANOTHER,
        },
        (TAKEN, TAKEN),
    ),
    *_hiding(
        "in a head",
        {
            "in a value": _get(b"X: " + AFTER.replace(b"\r\n", b"\\r\\n")),
            "in a value, with colons": _get(b"X:: POST /post HTTP/1.1"),
            "in a target": _get(line=b"GET /" + AFTER.replace(b"\r\n", b"%0d%0a").replace(b" ", b"%20") + b" HTTP/1.1"),
            "another method": _get(b"X-HTTP-Method-Override: POST", b"X-HTTP-Method: POST", b"X-Method-Override: POST"),
            "another target": _get(b"X-Original-URL: /post", b"X-Rewrite-URL: /post"),
            "in a chunk extension": _in_chunks(
                b'5;a="%b"\r\nhello\r\n0\r\n\r\n' % AFTER.replace(b"\r\n", b"").replace(b'"', b"'")
            ),
        },
    ),
    *_hiding(
        "after the last request",
        {
            "Connection: close": _get(b"Connection: close") + AFTER,
            "Connection: close and a body": request(b"Connection: close", body=LEGITIMATE_BODY) + AFTER,
            "Connection: close and chunks": _in_chunks(chunked(b"hello"), b"Connection: close") + AFTER,
            "close, TE": _get(b"Connection: close, TE") + AFTER,
            "two Connection fields": _get(b"Connection: keep-alive", b"Connection: close") + AFTER,
            "HTTP/1.0": _get(line=b"GET / HTTP/1.0") + AFTER,
            "HTTP/1.0 with keep-alive": _get(b"Connection: keep-alive", line=b"GET / HTTP/1.0") + AFTER,
            "HTTP/1.0 and a body": request(line=b"POST /another HTTP/1.0", body=LEGITIMATE_BODY) + AFTER,
        },
        ends=True,
    ),
    *_hiding(
        "behind a message that ends early",
        {
            "a length too small": request(b"Content-Length: 5", line=b"GET / HTTP/1.1", length=False, body=b"hello, ")
            + AFTER,
            "the end of chunks, then a size": _in_chunks(chunked() + chunked(AFTER), line=b"GET / HTTP/1.1"),
            "no length": request(line=b"GET / HTTP/1.1", length=False, body=LEGITIMATE_BODY + b"\r\n") + AFTER,
        },
        (TAKEN, frozenset({400})),
        ends=True,
    ),
    *_hiding(
        "in a body that never ends",
        {
            "a length": request(b"Content-Length: 9999", length=False, body=AFTER),
            "a chunk": _in_chunks(b"1000\r\n" + AFTER),
            "a trailer": _in_chunks(chunked(b"hello", end=b"0\r\nX: y")),
        },
        (),
    ),
    *_hiding(
        "in a bad request after a good one",
        {
            "a bad line": _GET + _line(b"POST  /post HTTP/1.1") + AFTER,
            "a bad coding": _GET + _with_coding(b"identity") + AFTER,
            "a bad chunk": _GET + _in_chunks(b"x\r\n") + AFTER,
            "a length with a sign": request(body=LEGITIMATE_BODY) + _with_length(b"+%d") + AFTER,
            "two empty lines": _GET + b"\r\n\r\n" + AFTER,
            "a bare line feed": _GET + b"\n" + AFTER,
            "chunks that end in a line feed": _in_chunks(chunked(b"hello")) + _in_chunks(b"0\r\n\n") + AFTER,
        },
        (TAKEN, frozenset({400})),
        ends=True,
    ),
)
