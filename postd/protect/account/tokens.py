"""The personal access tokens of an account: a list, making and revoking one."""

import math
import secrets
import time
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from http import HTTPStatus
from string import Template
from typing import get_args

from msgspec import Struct

from postd.auth.accounts import Accounts
from postd.auth.personal_token import make_personal_token
from postd.defaults import TOKENS_PER_ACCOUNT
from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.pages.template import read_file
from postd.http.pages.times import make_date
from postd.http.responses import Response
from postd.protect.account.base import AccountArea, AccountTask, Fields, Visitor, require
from postd.protect.pages import Page
from postd.protocol.label import LABEL_MAX_CHARS, check_label
from postd.protocol.personal_token import Access, PersonalToken, hash_token
from postd.protocol.quantity import decode_duration
from postd.store.interface import LoginStore

_NAME = "account/tokens"
_REVOKE = f"{_NAME}/revoke"

_CONTENT = Template(read_file(__package__, "tokens.html"))
_ITEM = Template(read_file(__package__, "token.html"))
_FORM = Template(read_file(__package__, "make-token.html"))
_MADE = Template(read_file(__package__, "new-token.html"))
_OPTION = Template('<option value="$value"$selected>$text</option>\n')
_ERROR = Template('<p class="error" id="$name-error">$why</p>\n')
_EXPIRED = ' <span class="badge">expired</span>'

_DONE = {
    "revoked": "The token was revoked: no program can use it any more.",
    "gone": "There is no such token any more.",
    "repeated": "That form was sent before. If it has made a token, the list has it, and it is not shown again: if you "
    "have not copied it, revoke it and make another one.",
}

_ACCESSES: Mapping[str, str] = {"read": "Read only", "write": "Read and write"}

_DAY_S = 86400
_USUAL_DAYS = (7, 30, 90, 365)
_USUAL = "90d"
_NEVER = "never"
_FORM_KEPT_S = 24 * 3600
"""How long a form is remembered that has made a token."""


class _Draft(Struct, frozen=True):
    """What the form has: the fields as typed, and the error of each field that is wrong."""

    label: str = ""
    access: str = "read"
    expires: str = ""
    errors: Mapping[str, str] = {}


class TokenTask(AccountTask):
    """The personal access tokens of an account.

    Where users may make none, those that the administrator has made are listed, and can be revoked.

    Args:
        area: the common part of the pages.
        store: keeps the tokens.
        accounts: the accounts, to whose entries tokens belong.
    """

    name = _NAME
    title = "Access tokens"

    def __init__(self, area: AccountArea, store: LoginStore, accounts: Accounts) -> None:
        super().__init__(area)
        self._store, self._accounts = store, accounts
        self._may_make, self._lifetime_s = area.options.tokens, area.options.token_lifetime_s
        self._lifetimes = _find_lifetimes(self._lifetime_s)
        self._usual = _USUAL if _USUAL in self._lifetimes else [*self._lifetimes][-1]

    def pages(self) -> Mapping[str, Page]:
        make = self._make if self._may_make else None
        return {_NAME: self.area.make_page(self._show, make), _REVOKE: self.area.make_page(post=self._revoke)}

    async def describe(self, visitor: Visitor) -> str | None:
        count = len(await self._list(visitor))
        if not count:
            return "For programs that use this site in your name." if self._may_make else None
        return f"You have {count} token{'s' if count > 1 else ''}."

    async def _list(self, visitor: Visitor) -> list[PersonalToken]:
        """Return the tokens of the visitor, the newest first; expired ones for some time."""
        entry = self._accounts.entry(visitor.account, visitor.session.provider)
        found = await self._store.list_tokens(visitor.account)
        return [token for token in reversed(found) if token.entry == entry]

    async def _show(self, request: Request, visitor: Visitor) -> Response:
        return await self._make_page(request, visitor, _Draft())

    async def _make_page(
        self, request: Request, visitor: Visitor, draft: _Draft, status: HTTPStatus = HTTPStatus.OK, alert: str = ""
    ) -> Response:
        items = "".join(map(self._make_item, await self._list(visitor)))
        content = _CONTENT.substitute(
            done=self.area.message(request, _DONE),
            list=f'<ul class="rows" role="list">\n{items}</ul>\n' if items else "<p>You have no tokens.</p>\n",
            form=self._make_form(draft) if self._may_make else "<p>Only the administrator makes tokens here.</p>\n",
        )
        return self.area.page(status, self.title, content, alert=alert)

    def _make_item(self, token: PersonalToken) -> str:
        now = self.area.now()
        is_expired = token.expires <= now
        return _ITEM.substitute(
            id=token.id,
            label=escape(token.label) or "No name",
            badge=_EXPIRED if is_expired else "",
            access=_ACCESSES[token.access],
            created=self.area.time(token.created),
            expires=_say_expiry(token, now),
            used=f"Last used {self.area.time(token.used)}" if token.used else "Never used",
            path=escape(self.area.path(_REVOKE)),
            verb="Remove" if is_expired else "Revoke",
        )

    def _make_form(self, draft: _Draft) -> str:
        wrong = next(iter(draft.errors), "")
        parts = {
            "path": escape(self.area.path(_NAME)),
            "key": secrets.token_urlsafe(16),
            "label": escape(draft.label),
            "max": LABEL_MAX_CHARS,
            "accesses": _make_options(_ACCESSES, draft.access),
            "lifetimes": _make_options(self._lifetimes, draft.expires or self._usual),
        }
        for name in ("label", "access", "expires"):
            why = draft.errors.get(name, "")
            described = " ".join([*(["label-hint"] if name == "label" else []), *([f"{name}-error"] if why else [])])
            parts[f"{name}_error"] = _ERROR.substitute(name=name, why=escape(why)) if why else ""
            parts[f"{name}_state"] = (
                (f' aria-describedby="{described}"' if described else "")
                + (' aria-invalid="true"' if why else "")
                + (" autofocus" if name == wrong else "")
            )
        return _FORM.substitute(parts)

    async def _make(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        draft, lifetime_s = self._decode(fields)
        if draft.errors:
            return await self._make_page(request, visitor, draft, HTTPStatus.UNPROCESSABLE_ENTITY)
        # Before anything is waited for: later the name may be that of another account.
        entry = self._accounts.entry(visitor.account, visitor.session.provider)
        if entry is None:
            raise Problem(403, "The account was removed.")
        asking = await self.area.confirm(request, visitor, fields)
        if asking is not None:
            return asking
        if not await self._use_form(visitor, fields):
            return self.area.redirect(_NAME, "repeated")
        text, token = make_personal_token(
            visitor.account,
            entry,
            access="write" if draft.access == "write" else "read",
            label=draft.label,
            now=self.area.now(),
            lifetime_s=lifetime_s,
        )
        if not await self._store.add_token(hash_token(text), token):
            why = f"You have {TOKENS_PER_ACCOUNT} tokens, as many as you may. Revoke one first."
            return await self._make_page(request, visitor, draft, HTTPStatus.UNPROCESSABLE_ENTITY, why)
        self.area.log(request, visitor, f"token {token.id} was made")
        origin = self.area.clients.origin(request) or ""
        content = _MADE.substitute(
            label=escape(token.label),
            token=text,
            access=_ACCESSES[token.access],
            expires=_say_expiry(token, token.created),
            curl=escape(f"curl -H 'Authorization: Bearer {text}' '{origin}{self.area.options.sample_path}'"),
            back=escape(self.area.path(_NAME)),
        )
        return self.area.page(HTTPStatus.OK, "New access token", content)

    def _decode(self, fields: Fields) -> tuple[_Draft, float]:
        """Return the fields of the form with their errors, and the lifetime in seconds."""
        typed = {name: fields.get(name, [default])[-1] for name, default in _DEFAULTS.items()}
        errors, lifetime_s = dict[str, str](), self._lifetime_s
        try:
            typed["label"] = check_label(typed["label"])
            if not typed["label"]:
                errors["label"] = "Give the token a name."
        except ValueError as error:
            errors["label"] = f"The name {error}."
        if typed["access"] not in get_args(Access):
            errors["access"] = "Choose one of the two."
        try:
            if typed["expires"]:
                lifetime_s = math.inf if typed["expires"] == _NEVER else decode_duration(typed["expires"])
            if not 0 < lifetime_s <= self._lifetime_s:
                errors["expires"] = f"A token lasts at most {_say_duration(self._lifetime_s)} here."
        except ValueError as error:
            errors["expires"] = f"{error}."
        return _Draft(**typed, errors=errors), lifetime_s

    async def _use_form(self, visitor: Visitor, fields: Fields) -> bool:
        """Return whether a form is sent for the first time; one without a key always is."""
        keys = fields.get("key", [])
        if not keys:
            return True
        used = sha256("\0".join(["token form", visitor.account, *keys]).encode("utf-8", "surrogatepass")).digest()
        return await self._store.use_proof(used, expires=time.time() + _FORM_KEPT_S)

    async def _revoke(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        token_id = require(fields, "id")
        revoked = await self._store.delete_tokens([token_id], account=visitor.account)
        if revoked:
            self.area.log(request, visitor, f"token {token_id} was revoked")
        return self.area.redirect(_NAME, "revoked" if revoked else "gone")


def _find_lifetimes(longest_s: float) -> Mapping[str, str]:
    """Return the lifetimes to choose from: their texts by the values in the form."""
    usual_s = [days * _DAY_S for days in _USUAL_DAYS if days * _DAY_S < longest_s]
    last = {_NEVER: "never"} if math.isinf(longest_s) else _choice(longest_s)
    return {value: text for seconds in usual_s for value, text in _choice(seconds).items()} | last


def _choice(seconds: float) -> dict[str, str]:
    """Return a lifetime to choose."""
    days, rest = divmod(seconds, _DAY_S)
    value = f"{seconds:.6f}".rstrip("0").rstrip(".") + "s" if rest else f"{days:.0f}d"
    return {value: f"in {_say_duration(seconds)}"}


def _say_duration(seconds: float) -> str:
    for unit_s, unit in ((_DAY_S, "day"), (3600, "hour"), (60, "minute")):
        count, rest = divmod(seconds, unit_s)
        if count and not rest:
            return f"{count:.0f} {unit}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"


def _say_expiry(token: PersonalToken, now: float) -> str:
    """Return when a token expires, or that it has expired, as HTML."""
    if math.isinf(token.expires):
        return "never expires"
    return f"expire{'s' if token.expires > now else 'd'} {make_date(int(token.expires * 1000))}"


_DEFAULTS = {"label": "", "access": "read", "expires": ""}


def _make_options(texts: Mapping[str, str], chosen: str) -> str:
    """Render the options of a selection; a chosen one that is not among them is added."""
    known = texts if chosen in texts else {**texts, chosen: chosen}
    return "".join(
        _OPTION.substitute(value=escape(value), selected=" selected" * (value == chosen), text=escape(text))
        for value, text in known.items()
    )
