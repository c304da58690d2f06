"""Proxies before postd, each with the settings that it needs; `python -m tests.field` runs these tests.

`POSTD_FIELD_PROGRAM` is the program to run.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S, wait_until
from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user
from tests.redis_server import free_port

PASSWORD = "correct horse"
STOP_MAX_S = 20
CLIENT = "127.0.0.7"
"""Where clients come from; the proxy that postd trusts is 127.0.0.1."""

SETTINGS = """
store = "memory:"
users = "users"
trusted_proxies = ["127.0.0.1"]
digest = {algorithms = ["SHA-256", "MD5"]}
page = [{path = "/basic", schemes = ["basic"]}, {path = "/digest", schemes = ["digest"]}]
"""

APACHE_MODULES = "/usr/lib/apache2/modules"

ATS_PROGRAMS = {
    "prefix": "",
    "exec_prefix": "",
    "bindir": "/bin",
    "sbindir": "/sbin",
    "includedir": "/include",
    "libdir": "/lib/trafficserver",
    "libexecdir": "/lib/trafficserver/modules",
}
ATS_FOLDERS = ("sysconfdir", "datadir", "localstatedir", "runtimedir", "logdir", "cachedir")

FILES = {
    "nginx": {
        "settings": """
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/1;
    proxy_temp_path {folder}/2;
    fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4;
    scgi_temp_path {folder}/5;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{postd};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto $scheme;
        }}
    }}
}}
"""
    },
    "haproxy": {
        "settings": """
defaults
    mode http
    option http-no-delay
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind 127.0.0.1:{port}
    http-request set-header X-Forwarded-For %[src]
    http-request set-header X-Forwarded-Proto http
    default_backend postd
backend postd
    server one 127.0.0.1:{postd}
"""
    },
    "caddy": {
        "settings": """
{{
    admin off
    auto_https off
}}
http://127.0.0.1:{port} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{postd}
}}
"""
    },
    "apache": {
        "settings": "".join(
            f"LoadModule {name}_module {APACHE_MODULES}/mod_{name}.so\n"
            for name in ("mpm_event", "authz_core", "proxy", "proxy_http", "headers")
        )
        + """
ServerRoot {folder}
ServerName 127.0.0.1
Listen 127.0.0.1:{port}
PidFile {folder}/pid
ErrorLog {folder}/error.log
AllowEncodedSlashes NoDecode
ProxyPreserveHost On
ProxyPass / http://127.0.0.1:{postd}/ nocanon flushpackets=on
RequestHeader set X-Forwarded-Proto http
"""
    },
    "lighttpd": {
        "settings": """
server.modules = ("mod_proxy")
server.document-root = "{folder}"
server.bind = "127.0.0.1"
server.port = {port}
server.stream-response-body = 1
server.http-parseopts = ("url-normalize" => "disable")
proxy.server = ("" => (("host" => "127.0.0.1", "port" => {postd})))
"""
    },
    "varnish": {
        "settings": """
vcl 4.1;
backend default {{ .host = "127.0.0.1"; .port = "{postd}"; .between_bytes_timeout = 120s; }}
sub vcl_recv {{
    set req.http.X-Forwarded-For = client.ip;
    set req.http.X-Forwarded-Proto = "http";
    return (pass);
}}
"""
    },
    "trafficserver": {
        "runroot.yaml": "".join(f"{name}: /usr{path}\n" for name, path in ATS_PROGRAMS.items())
        + "".join(f"{name}: {{folder}}/ats\n" for name in ATS_FOLDERS),
        "ats/records.config": """
CONFIG proxy.config.http.server_ports STRING {port}:ip-in=127.0.0.1
CONFIG proxy.config.url_remap.pristine_host_hdr INT 1
CONFIG proxy.config.http.insert_squid_x_forwarded_for INT 1
CONFIG proxy.config.http.cache.http INT 0
CONFIG proxy.config.admin.user_id STRING #-1
CONFIG proxy.config.crash_log_helper STRING NULL
""",
        "ats/storage.config": "",
        "ats/remap.config": "map / http://127.0.0.1:{postd}/\n",
        "ats/ip_allow.yaml": """
ip_allow: [{{apply: in, ip_addrs: 127.0.0.0/8, action: allow, methods: ALL}}]
""",
    },
    "traefik": {
        "settings.yml": """
http:
  routers:
    posts: {{rule: "PathPrefix(`/`)", service: postd}}
  services:
    postd: {{loadBalancer: {{servers: [{{url: "http://127.0.0.1:{postd}"}}]}}}}
"""
    },
    "envoy": {
        "settings.yml": """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: posts
          use_remote_address: true
          stream_idle_timeout: 0s
          route_config:
            virtual_hosts:
            - name: posts
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: postd, timeout: 0s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: postd
    connect_timeout: 2s
    load_assignment:
      cluster_name: postd
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {postd}}}}}}}
"""
    },
}

COMMANDS = {
    "nginx": "{program} -c {folder}/settings -e stderr",
    "haproxy": "{program} -db -f {folder}/settings",
    "caddy": "{program} run --adapter caddyfile --config {folder}/settings",
    "apache": "{program} -DFOREGROUND -f {folder}/settings",
    "lighttpd": "{program} -D -f {folder}/settings",
    "varnish": "{program} -j none -F -n {folder}/varnish -a 127.0.0.1:{port} -f {folder}/settings -s malloc,16M",
    "trafficserver": "setpriv --reuid=nobody --regid=nogroup --clear-groups {program} --run-root={folder}/runroot.yaml",
    "traefik": "{program} --entrypoints.web.address=127.0.0.1:{port} --providers.file.filename={folder}/settings.yml"
    " --global.checknewversion=false --global.sendanonymoususage=false",
    "envoy": "{program} -c {folder}/settings.yml --use-dynamic-base-id --concurrency 1 -l warning",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(params=COMMANDS)
def proxy(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, Daemon]]:
    """The origin of a proxy, and the daemon behind it."""
    kind: str = request.param
    run_postd_user(folder / "users", "add", "alice", PASSWORD)
    (folder / "postd.toml").write_text(SETTINGS)
    port = free_port()
    with Daemon(folder, "-c", "postd.toml") as daemon:
        words = {"program": os.environ.get("POSTD_FIELD_PROGRAM", kind), "folder": str(folder), "port": port}
        for name, text in FILES[kind].items():
            if "/" in name:  # for what an unprivileged proxy writes
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).parent.chmod(0o777)
            (folder / name).write_text(text.format(**words, postd=daemon.port))
        command = COMMANDS[kind].format(**words).split()
        with subprocess.Popen(command, cwd=folder, env=os.environ | {"HOME": str(folder)}) as process:
            try:
                wait_until(lambda: process.poll() is not None or serves(port))
                assert process.poll() is None
                yield f"http://127.0.0.1:{port}", daemon
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_MAX_S)
                process.kill()


def serves(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/post").status_code == 200
    except httpx.TransportError:
        return False


def test_proxy(proxy: tuple[str, Daemon]) -> None:
    """Basic, Digest, the address of the client, writes with entity tags, and events without buffering."""
    origin, daemon = proxy
    transport = httpx.HTTPTransport(local_address=CLIENT)
    with httpx.Client(base_url=origin, transport=transport, timeout=PATIENCE_S) as client:
        assert client.get("/basic", auth=("alice", PASSWORD)).text == "Success: alice\n"
        digest = httpx.DigestAuth("alice", PASSWORD)
        assert client.get("/digest?a=1&b=%20~%7e", auth=digest).text == "Success: alice\n"
        wait_until(lambda: f"{CLIENT} - alice [" in daemon.log)
        made = client.post("/post", json={"post": "Through a proxy"}, headers={"Origin": origin})
        assert made.status_code == 201
        path = httpx.URL(made.headers["Location"]).path
        tag = client.get(path).headers["ETag"]
        assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
        assert client.put(path, json={"post": "Changed"}, headers={"If-Match": tag}).status_code == 200
        assert client.put(path, json={"post": "Again"}, headers={"If-Match": tag}).status_code == 412
        with client.stream("GET", "/post/events") as stream:
            for line in stream.iter_lines():
                if line == "event: position":
                    assert client.post("/post", json={"post": "An event"}).status_code == 201
                elif "An event" in line:
                    return
