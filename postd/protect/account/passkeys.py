"""The passkeys of an account: a list, adding, renaming and removing one."""

from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from string import Template

from postd.auth.accounts import Accounts
from postd.auth.passkey import Passkeys
from postd.defaults import PASSKEYS_PER_ACCOUNT
from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.pages.template import read_file
from postd.http.responses import JSON, PAGE_HEADERS, Response, make_response
from postd.protect.account.base import AccountArea, AccountTask, Fields, Visitor, require
from postd.protect.pages import Page
from postd.protect.passkey_form import SCRIPT, PasskeyForm
from postd.protocol.label import LABEL_MAX_CHARS, check_label
from postd.protocol.passkey import Passkey
from postd.protocol.personal_token import make_record_id
from postd.protocol.webauthn import ChallengeError, WebAuthnError, make_creation_options

_NAME = "account/passkeys"

_PAGE = Template(read_file(__package__, "passkeys.html"))
_ITEM = Template(read_file(__package__, "passkey.html"))
_ADD = Template(read_file(__package__, "add-passkey.html"))
_NONE = "<p>You have no passkeys. With one you sign in by a device of yours, without a password.</p>\n"
_NOT_HERE = "<p>Passkeys do not work at this address: browsers need https and a host name, or localhost.</p>\n"
_BACKED_UP = ' <span class="badge">backed up</span>'
_ONE_DEVICE = ' <span class="badge">on one device</span>'

_DONE = {
    "added": "The passkey was added. You can sign in with it from now on.",
    "renamed": "The passkey has a new name.",
    "removed": "The passkey was removed. Remove it from your device or password manager, too.",
    "gone": "There is no such passkey any more.",
    "confirmed": "Now add the passkey.",
}


class PasskeyTask(AccountTask):
    """The passkeys of an account.

    Args:
        area: the common part of the pages.
        passkeys: makes challenges, and registers passkeys.
        form: finds the relying party.
        accounts: the accounts.
    """

    name = _NAME
    title = "Passkeys"

    def __init__(self, area: AccountArea, passkeys: Passkeys, form: PasskeyForm, accounts: Accounts) -> None:
        super().__init__(area)
        self._passkeys = passkeys
        self._store = passkeys.store
        self._form = form
        self._accounts = accounts

    def pages(self) -> Mapping[str, Page]:
        area = self.area
        return {
            _NAME: area.make_page(self._show, self._add),
            f"{_NAME}/options": area.make_page(self._begin),
            f"{_NAME}/rename": area.make_page(post=self._rename),
            f"{_NAME}/remove": area.make_page(post=self._remove),
        }

    async def describe(self, visitor: Visitor) -> str:
        count = len(await self._list(visitor))
        return "Sign in without a password." if not count else f"You have {count}." if count > 1 else "You have one."

    async def _list(self, visitor: Visitor) -> list[Passkey]:
        entry = self._entry(visitor)
        return [one for one in await self._store.list_passkeys(visitor.account) if one.entry == entry]

    def _entry(self, visitor: Visitor) -> bytes:
        """Return the entry of the visitor's account.

        Raises:
            Problem: 403, it was removed a moment ago.
        """
        entry = self._accounts.entry(visitor.account, visitor.session.provider)
        if entry is None:
            raise Problem(403, "The account was removed.")
        return entry

    async def _show(self, request: Request, visitor: Visitor) -> Response:
        return await self._make_page(request, visitor)

    async def _make_page(
        self, request: Request, visitor: Visitor, alert: str = "", status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        items = "".join(map(self._make_item, await self._list(visitor)))
        party = self._form.find_party(request)
        add = _NOT_HERE
        if party is not None:
            add = _ADD.substitute(
                action=escape(self.area.path(_NAME)),
                options=escape(self.area.path(f"{_NAME}/options")),
                origin=escape(party.origin),
                label=escape(self.area.browser(visitor.session)),
                max=LABEL_MAX_CHARS,
            )
        content = _PAGE.substitute(
            done=self.area.message(request, _DONE),
            list=f'<ul class="rows" role="list">\n{items}</ul>\n' if items else _NONE,
            add=add,
        )
        return self.area.page(status, self.title, content, alert=alert, script=SCRIPT)

    def _make_item(self, passkey: Passkey) -> str:
        used = f"Last used {self.area.time(passkey.used)}" if passkey.used else "Not used yet"
        return _ITEM.substitute(
            id=passkey.id,
            label=escape(passkey.label),
            badge=_BACKED_UP if passkey.backed_up else "" if passkey.backup_eligible else _ONE_DEVICE,
            created=self.area.time(passkey.created),
            used=used,
            remove=escape(self.area.path(f"{_NAME}/remove")),
            rename=escape(self.area.path(f"{_NAME}/rename")),
            max=LABEL_MAX_CHARS,
        )

    async def _begin(self, request: Request, visitor: Visitor) -> Response:
        """Return the options for `navigator.credentials.create()`; 403 where the sign-in is not recent."""
        party = self._form.require_party(request)
        if not await self.area.is_recent(visitor):
            raise Problem(403, "Sign in again to add a passkey.")
        handle = await self._passkeys.user_handle(visitor.account, self._entry(visitor))
        options = make_creation_options(
            party,
            await self._passkeys.make_challenge("registration", visitor.id_hash),
            handle=handle,
            name=visitor.name,
            existing=[one.credential_id for one in await self._list(visitor)],
        )
        return make_response(HTTPStatus.OK, JSON, options, PAGE_HEADERS)

    async def _add(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        party = self._form.require_party(request)
        entry = self._entry(visitor)  # before anything is waited for: later the name may be that of another account
        asking = await self.area.confirm(request, visitor, fields)
        if asking is not None:
            return asking
        if not fields.get("credential", [""])[0]:  # the script could not begin without a recent sign-in
            return self.area.redirect(_NAME, "confirmed")
        label = _decode_label(fields)
        try:
            made = await self._passkeys.register(require(fields, "credential"), party, visitor.id_hash)
        except WebAuthnError as error:
            late = isinstance(error, ChallengeError)
            self.area.log(request, visitor, f"a passkey was not added: {error}")
            why = "That has taken too long. Try again." if late else "The passkey was not accepted."
            return await self._make_page(request, visitor, why, HTTPStatus.BAD_REQUEST)
        passkey = Passkey(
            id=make_record_id(),
            credential_id=made.credential_id,
            account=visitor.account,
            entry=entry,
            public_key=made.public_key,
            label=label,
            created=self.area.now(),
            sign_count=made.use.sign_count,
            backup_eligible=made.use.backup_eligible,
            backed_up=made.use.backed_up,
            shown_name=visitor.session.shown_name,
            subject=visitor.session.subject,
        )
        if not await self._store.add_passkey(passkey):
            why = f"The passkey exists already, or you have {PASSKEYS_PER_ACCOUNT}: remove one first."
            return await self._make_page(request, visitor, why, HTTPStatus.CONFLICT)
        self.area.log(request, visitor, f"passkey {passkey.id} was added")
        return self.area.redirect(_NAME, "added")

    async def _rename(self, _request: Request, visitor: Visitor, fields: Fields) -> Response:
        label = _decode_label(fields)
        renamed = await self._store.rename_passkey(require(fields, "id"), label, account=visitor.account)
        return self.area.redirect(_NAME, "renamed" if renamed else "gone")

    async def _remove(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        id_ = require(fields, "id")
        removed = await self._store.delete_passkeys([id_], account=visitor.account)
        if removed:
            self.area.log(request, visitor, f"passkey {id_} was removed")
        return self.area.redirect(_NAME, "removed" if removed else "gone")


def _decode_label(fields: Fields) -> str:
    """Return the label in a form.

    Raises:
        Problem: 400, it is missing, repeated, or cannot be one.
    """
    try:
        return check_label(require(fields, "label")) or "Passkey"
    except ValueError as error:
        raise Problem(400, f"The name {error}.") from None
