"""The page on which users of the user file change their password."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from http import HTTPStatus
from string import Template

from twisted.internet.defer import CancelledError

from postd.auth.credentials import Refused, run_to_completion
from postd.auth.password_change import PasswordWriter
from postd.auth.users import UserDirectory
from postd.errors import StoreUnavailableError
from postd.http.errors import Problem, make_problem_response, retry_after_text
from postd.http.interface import Request
from postd.http.pages.template import negotiate_html, read_file
from postd.http.responses import PAGE_HEADERS, Response
from postd.protect.account.base import AccountArea, AccountTask, Fields, Visitor, require
from postd.protect.new_password import check_new_password, to_password_problem
from postd.protect.pages import Page
from postd.protocol.passkey import Passkey
from postd.protocol.personal_token import PersonalToken
from postd.store.interface import LoginStore

_FORM = Template(read_file(__package__, "password.html"))
_WRONG = ' aria-invalid="true" aria-describedby="alert" autofocus'
_CHANGED = "Your password was changed. Your other sessions have ended."
_OFFER = Template(
    "<p>Your $which still work. If another person may know the old password, revoke those that are not yours:</p>\n"
    "<nav>\n$links</nav>\n"
)


class ChangePassword(AccountTask):
    """The page.

    Args:
        area: the common part of the pages.
        users: the accounts.
        writer: writes the new password.
        store: has the tokens and passkeys.
    """

    name = "account/password"
    title = "Password"

    def __init__(self, area: AccountArea, users: UserDirectory, writer: PasswordWriter, store: LoginStore) -> None:
        super().__init__(area)
        self._users, self._writer, self._store = users, writer, store

    def pages(self) -> Mapping[str, Page]:
        return {self.name: self.area.make_page(self._show, self._change)}

    async def describe(self, visitor: Visitor) -> str | None:
        return None if visitor.session.provider else "Change the password that you sign in with."

    async def _show(self, request: Request, visitor: Visitor) -> Response:
        _require_password(visitor)
        done = self.area.message(request, {"changed": _CHANGED})
        return self._make_form(visitor, done=done + await self._offer(visitor) if done else "")

    async def _offer(self, visitor: Visitor) -> str:
        """Return links to what signs the user in beside the password, which was changed; HTML."""
        found: Mapping[str, Sequence[PersonalToken | Passkey]] = {
            "tokens": await self._store.list_tokens(visitor.account),
            "passkeys": await self._store.list_passkeys(visitor.account),
        }
        entry = self._users.entry(visitor.account)
        names = [name for name, ones in found.items() if any(one.entry == entry for one in ones)]
        if not names:
            return ""
        links = [f'<a href="{escape(self.area.path(f"account/{name}"))}">{name.capitalize()}</a>\n' for name in names]
        return _OFFER.substitute(which=" and ".join(names), links="".join(links))

    async def _change(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        _require_password(visitor)
        present, new, again = (require(fields, name) for name in ("present", "new", "again"))
        try:
            new = check_new_password(new, again)
            await self.area.check_password(request, visitor, present)
            judged = self._users.fingerprint(visitor.account) or b""  # of the password that was right
            await run_to_completion(self._write(request, visitor, judged, new))
        except CancelledError:
            raise
        except Refused:
            headers = {b"WWW-Authenticate": self.area.challenge}
            return self._refuse(request, visitor, Problem(401, "The present password is wrong.", headers=headers))
        except Exception as error:
            problem = to_password_problem(error)
            if problem is None:
                raise
            return self._refuse(request, visitor, problem)
        return self.area.redirect(self.name, "changed")

    async def _write(self, request: Request, visitor: Visitor, fingerprint: bytes, password: str) -> None:
        address = self.area.clients.address(request)
        account = await self._writer.make(visitor.account, password, address=address)
        await self._writer.write(account, fingerprint=fingerprint, address=address)
        with suppress(StoreUnavailableError):  # the password was changed, and its user signs in again
            # Before the file is loaded again: the session lives on.
            await self.area.sessions.confirm(visitor.id_hash, account.fingerprint)
        await self._writer.settle(account)
        self.area.log(request, visitor, "password changed")

    def _refuse(self, request: Request, visitor: Visitor, problem: Problem) -> Response:
        """Return the response to a change that was not made; a browser gets the form with an alert."""
        if not negotiate_html(request):
            return make_problem_response(request, problem)
        return self._make_form(visitor, problem)

    def _make_form(self, visitor: Visitor, problem: Problem | None = None, *, done: str = "") -> Response:
        status = HTTPStatus.OK if problem is None else problem.status
        content = _FORM.substitute(
            done=done,
            action=escape(self.area.path(self.name)),
            name=escape(visitor.account),
            present=_WRONG if status is HTTPStatus.UNAUTHORIZED else "",
            new=_WRONG if status is HTTPStatus.UNPROCESSABLE_ENTITY else "",
        )
        if problem is None:
            return self.area.page(status, self.title, content)
        alert = f"{problem.detail} {retry_after_text(problem)}".strip()
        headers = {**PAGE_HEADERS, **problem.headers}
        return self.area.page(status, self.title, content, alert=alert, headers=headers)


def _require_password(visitor: Visitor) -> None:
    if visitor.session.provider:
        raise Problem(403, "This account has no password here: its provider signs its user in.")
