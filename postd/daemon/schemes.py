"""The authentication that the settings describe: their tables as schemes, and all of them put together."""

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

from msgspec.structs import asdict, replace
from twisted.logger import Logger

from postd.auth.password import HashThreads
from postd.daemon.first_steps import no_accounts_notice
from postd.daemon.settings_checks import find_problems
from postd.errors import ConfigError
from postd.http.peer import PeerResolver
from postd.protect.account.options import AccountOptions
from postd.protect.assembly import Authentication, FailureLimits, load_users
from postd.protect.issuers import TrustedIssuer, issuer
from postd.protect.providers import TrustedProvider, provider
from postd.protect.schemes.interface import Scheme
from postd.reactor import IReactor, ServiceClock
from postd.scheme_names import SCHEMES
from postd.settings.loading import LoadedSettings, decode_table
from postd.settings.schema import BearerSettings, Settings
from postd.store.interface import LoginStore
from postd.web.name_pages import BOARD_LINK, DOCS_LINK

_log = Logger()


def make_schemes(loaded: LoadedSettings) -> list[Scheme]:
    """Return the schemes of the settings, in the order of their challenges.

    A further scheme with options has a table in the settings file. It is in force if there is that table, or if an
    access rule names it.

    Raises:
        ConfigError: the table of a scheme cannot be used, or is one of a scheme without options.
    """
    settings, schemes = loaded.settings, list[Scheme]()
    own: dict[str, dict[str, Any]] = {
        "digest": asdict(settings.digest),
        "bearer": {"issuers": _make_issuers(settings.bearer, loaded.where.get("bearer", "bearer"))},
        "token": {"issuers": [table.issuer for table in settings.sign_in]},
        "session": {
            **asdict(settings.session),
            **_first_page(loaded),
            "providers": make_providers(loaded),
            "accounts": AccountOptions(**asdict(settings.accounts), sample_path="/post"),
        },
    }
    for name, place in SCHEMES.items():
        kind: type[Scheme] = resolve_name(place)
        where = loaded.where.get(name, name)
        if name in loaded.values and (name == "token" or not kind.__struct_fields__):
            raise ConfigError(where, "unknown key; this scheme has no table")
        if name in own or not kind.__struct_fields__:
            schemes.append(kind(**own.get(name, {})))
        elif name in loaded.values or settings.uses_scheme(name):
            schemes.append(decode_table(loaded.values.get(name, {}), kind, where))
    return schemes


def _first_page(loaded: LoadedSettings) -> dict[str, object]:
    """Return the options of the form that do not come from its table."""
    is_open = loaded.settings.board.enabled and "open" in loaded.settings.api.read
    return {
        "after": "/home",
        "below": f"{DOCS_LINK}\n",
        "links": f"{BOARD_LINK}\n" if is_open else "",
        "no_accounts": no_accounts_notice(loaded),
    }


def _make_issuers(tables: Sequence[BearerSettings], where: str) -> list[TrustedIssuer]:
    return [make_issuer(table, f"{where}[{number}].") for number, table in enumerate(tables)]


def make_providers(loaded: LoadedSettings) -> list[TrustedProvider]:
    """Return the OpenID providers of the settings."""
    where = loaded.where.get("sign_in", "sign_in")
    return [
        replace(provider(**asdict(table)), place=f"{where}[{number}].")
        for number, table in enumerate(loaded.settings.sign_in)
    ]


def make_issuer(table: BearerSettings, place: str = "bearer.") -> TrustedIssuer:
    """Return the issuer of a table; `place` stands before the name of a key in errors."""
    arguments = asdict(table)
    return replace(issuer(arguments.pop("issuer"), leeway=arguments.pop("leeway_s"), **arguments), place=place)


def make_authentication(  # noqa: PLR0913 - all that it is made from
    loaded: LoadedSettings,
    store: LoginStore,
    *,
    clock: ServiceClock,
    reactor: IReactor,
    threads: HashThreads | None = None,
    previous: Authentication | None = None,
) -> Authentication:
    """Return the authentication of the settings; the other arguments are those of `Authentication`.

    Raises:
        ConfigError: a scheme's table, the user file, or a file of an issuer's settings cannot be used.
    """
    settings, schemes = loaded.settings, make_schemes(loaded)
    own_tables = SCHEMES.keys() - Settings.__struct_encode_fields__

    def log_problems() -> None:
        for problem in find_problems(settings, schemes, made.context.users.accounts):
            _log.warn("{problem}", problem=problem)

    made = Authentication(
        schemes,
        store,
        realm=settings.realm,
        users=load_users(settings.users, store, clock, previous.context.users if previous is not None else None),
        limits=FailureLimits(**asdict(settings.throttle)),
        clients=PeerResolver(settings.trusted_proxies, settings.public_url, settings.api.cors_origins),
        clock=clock,
        reactor=reactor,
        users_changed=log_problems,
        places={name: f"{loaded.where.get(name, name)}: " for name in own_tables},
        threads=threads,
        previous=previous,
    )
    return made
