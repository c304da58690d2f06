"""Each file of etc/ is checked with the program that reads it; this is where that is done."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
ETC = ROOT / "etc"

CHECKED_IN = {
    "Caddyfile.example": "tests/system/test_balancers.py",
    "Containerfile": "tests/platforms/image.py",
    "container-build-requirements.txt": "tests/system/test_packaging.py",
    "container-requirements.txt": "tests/system/test_packaging.py",
    "container.toml.example": "tests/platforms/image.py",
    "fail2ban/filter.d/postd.conf": "tests/system/test_log_readers.py",
    "fail2ban/jail.d/postd.conf": "tests/system/test_log_readers.py",
    "gateway-Caddyfile.example": "tests/system/test_gateway.py",
    "gateway-apache.conf.example": "tests/system/test_gateway.py",
    "gateway-apache.lua.example": "tests/system/test_gateway.py",
    "gateway-envoy.yaml.example": "tests/system/test_gateway.py",
    "gateway-haproxy.cfg.example": "tests/system/test_gateway.py",
    "gateway-haproxy.lua.example": "tests/system/test_gateway.py",
    "gateway-nginx.conf.example": "tests/system/test_gateway.py",
    "gateway-traefik.yml.example": "tests/system/test_gateway.py",
    "gateway.toml.example": "tests/system/test_gateway.py",
    "grafana-dashboard.json": "tests/web/test_observability.py",
    "haproxy.cfg.example": "tests/system/test_balancers.py",
    "nginx-client-cert.conf.example": "tests/system/test_client_certificates.py",
    "nginx.conf.example": "tests/system/test_balancers.py",
    "node.toml.example": "tests/system/test_balancers.py",
    "postd.service": "tests/system/test_systemd.py",
    "postd.socket": "tests/system/test_systemd.py",
    "postd.sysusers": "tests/system/test_systemd.py",
    "postd.tmpfiles": "tests/system/test_systemd.py",
    "postd.toml": "tests/settings/test_settings.py",
    "prometheus-alerts.yml": "tests/system/test_alerts.py",
    "prometheus.yml.example": "docs/how-to/monitoring.md",  # which tests/system/test_alerts.py runs
    "redis.conf.example": "tests/system/test_redis.py",
    "sentinel.conf.example": "tests/system/test_redis.py",
    "service.toml.example": "tests/system/test_systemd.py",
    "try_issuer.py": "docs/how-to/tokens.md",  # which tests/system/test_pages.py runs
}


def test_each_example_is_checked() -> None:
    examples = {str(path.relative_to(ETC)) for path in ETC.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert examples == CHECKED_IN.keys()
    for example, file in CHECKED_IN.items():
        assert Path(example).name in (ROOT / file).read_text(), (example, file)
