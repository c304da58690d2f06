"""A Django site with two real issuers: django-oauth-toolkit at `/o`, and django-allauth's provider at the root.

`python django_site.py FOLDER [ORIGIN]` prints its port, and what the tests know of it, as a line of JSON; then it
serves. People sign in there to a postd at the origin.
"""

import json
import secrets
import sys
from datetime import timedelta
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.conf import settings
from django.core.management import call_command
from django.urls import include, path

KEY = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
SCOPES = ["post:read", "post:write"]
SECRET = PASSWORD = secrets.token_urlsafe()
urlpatterns: list[Any] = []


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def configure(folder: Path) -> None:
    settings.configure(
        SECRET_KEY=SECRET,
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")}},
        INSTALLED_APPS=[
            *(f"django.contrib.{name}" for name in ("auth", "contenttypes", "sessions", "messages")),
            *("allauth", "allauth.account", "allauth.idp.oidc", "oauth2_provider"),
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
            "allauth.account.middleware.AccountMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
            }
        ],
        LOGIN_URL="/a/login/",
        ACCOUNT_EMAIL_VERIFICATION="none",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        IDP_OIDC_PRIVATE_KEY=KEY,
        IDP_OIDC_ACCESS_TOKEN_FORMAT="jwt",
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_RSA_PRIVATE_KEY": KEY,
            "OIDC_RP_INITIATED_LOGOUT_ENABLED": True,
            "SCOPES": dict.fromkeys(["openid", "profile", *SCOPES], "posts"),
        },
    )
    django.setup()
    call_command("migrate", verbosity=0)
    toolkit = include("oauth2_provider.urls", namespace="oauth2_provider")
    urlpatterns.extend(
        [path("o/", toolkit), path("", include("allauth.idp.urls")), path("a/", include("allauth.urls"))]
    )


def fill(origin: str = "") -> str:
    """Make the clients and a user of both issuers; return a token of django-oauth-toolkit for the user."""
    from allauth.idp.oidc.models import Client  # noqa: PLC0415 - after the settings
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.utils import timezone  # noqa: PLC0415
    from oauth2_provider.models import AccessToken, Application  # noqa: PLC0415

    user = User.objects.create_user("alice", password=PASSWORD)
    grant = {"client_type": "confidential", "authorization_grant_type": "client-credentials", "client_secret": SECRET}
    machine, _ = (Application.objects.create(client_id=name, **grant) for name in ("posts-cli", "posts-server"))
    client = Client(id="posts-cli")
    client.set_secret(SECRET)
    client.set_scopes(SCOPES)
    client.set_grant_types(["client_credentials"])
    client.save()
    people = Client(id="posts")
    people.set_secret(SECRET)
    people.set_scopes(["openid", "profile"])
    people.set_redirect_uris([f"{origin}/login/allauth/callback"])
    people.save()
    Application.objects.create(
        client_id="posts",
        client_type="confidential",
        authorization_grant_type="authorization-code",
        client_secret=SECRET,
        redirect_uris=f"{origin}/login/toolkit/callback",
        post_logout_redirect_uris=f"{origin}/",
        algorithm="RS256",
    )
    expires = timezone.now() + timedelta(hours=1)
    made = AccessToken.objects.create(
        user=user, application=machine, token=secrets.token_urlsafe(), expires=expires, scope=" ".join(SCOPES)
    )
    return str(made.token)


if __name__ == "__main__":
    sys.modules["django_site"] = sys.modules[__name__]
    configure(Path(sys.argv[1]))
    token = fill(*sys.argv[2:])
    from django.core.wsgi import get_wsgi_application

    with make_server("127.0.0.1", 0, get_wsgi_application(), Server, Quiet) as server:
        sys.stdout.write(f"{json.dumps({'port': server.server_port, 'secret': SECRET, 'token': token})}\n")
        sys.stdout.flush()
        server.serve_forever()
