"""What settings ask for and users cannot do: told at start, when the user file changes, and by `postd check`."""

from collections.abc import Mapping

from postd.auth.userfile import Account
from postd.config import Settings

_NAMES_MAX = 10


def rules_of(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the schemes that let a client in, by what they let it into: "read", "write", and each page's path."""
    pages = {str(page.path): page.schemes for page in settings.pages}
    return {"read": settings.api.read, "write": settings.api.write, **pages}


def find_problems(settings: Settings, accounts: Mapping[str, Account] | None) -> list[str]:
    """Return a sentence for each thing that cannot work.

    Args:
        settings: what is asked for.
        accounts: those of the user file, by name; None if it is not there.
    """
    rules = rules_of(settings)
    if not settings.users:
        asked_for = settings.pages != Settings().pages or "open" not in rules["read"] or "open" not in rules["write"]
        return ["users is not set: nobody can sign in, and no protected page can be entered"] if asked_for else []
    if not accounts:
        state = "there is no such user file yet" if accounts is None else "has no users"
        return [f"{settings.users}: {state}: nobody can sign in"]
    if not any("digest" in schemes for schemes in rules.values()):
        return []
    without = [
        name
        for name, account in accounts.items()
        if any(account.h_a1_for(settings.realm, algorithm) is None for algorithm in settings.digest.algorithms)
    ]
    if not without:
        return []
    more = f" and {len(without) - _NAMES_MAX} more" if len(without) > _NAMES_MAX else ""
    names = ", ".join(without[:_NAMES_MAX]) + more
    cure = "give each a new password with `postd user passwd NAME`"
    return [f"no Digest in the realm {str(settings.realm)!r} for {names}: {cure}"]
