"""The sessions of an account: a list, and ending one of them or all others."""

from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from string import Template

from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.pages.template import read_file
from postd.http.peer import UNIX
from postd.http.responses import Response, make_redirect
from postd.protect.account.base import AccountTask, Fields, Visitor, require
from postd.protect.cookie import expire_session_cookie
from postd.protect.pages import Page
from postd.protocol.session import Session

_NAME = "account/sessions"
_END = f"{_NAME}/end"

_ITEM = Template(read_file(__package__, "session.html"))
_END_ONE = Template(read_file(__package__, "end-session.html"))
_END_OTHERS = Template(read_file(__package__, "end-others.html"))
_THIS = ' <span class="badge">this one</span>'
_BOUND = ' <span class="badge">bound to its device</span>'
_UNBOUND = ' <span class="badge">not bound to a device</span>'

_DONE = {
    "ended": "The session has ended.",
    "others": "All other sessions have ended.",
    "gone": "There is no such session any more.",
}

_ID_CHARS = 16


class SessionTask(AccountTask):
    """The sessions of an account."""

    name = _NAME
    title = "Sessions"

    def pages(self) -> Mapping[str, Page]:
        return {_NAME: self.area.make_page(self._show), _END: self.area.make_page(post=self._end)}

    async def describe(self, visitor: Visitor) -> str:
        count = len(await self.area.sessions.list_of(visitor.account))
        return "This is your only session." if count <= 1 else f"You have {count} sessions. See and end them."

    async def _show(self, request: Request, visitor: Visitor) -> Response:
        found = await self.area.sessions.list_of(visitor.account)
        others = [one for one in found.items() if one[0] != visitor.id_hash]
        others.sort(key=lambda one: one[1].seen, reverse=True)
        binds = await self.area.sessions.binds(visitor.account)
        items = "".join(
            self._make_item(*one, visitor, binds=binds) for one in ((visitor.id_hash, visitor.session), *others)
        )
        ending = _END_OTHERS.substitute(path=escape(self.area.path(_END))) if others else ""
        content = f'{self.area.message(request, _DONE)}<ul class="rows" role="list">\n{items}</ul>\n{ending}'
        return self.area.page(HTTPStatus.OK, self.title, content)

    def _make_item(self, id_hash: bytes, session: Session, visitor: Visitor, *, binds: bool) -> str:
        area, is_this = self.area, id_hash == visitor.id_hash
        place = "this machine" if session.address == UNIX else session.address
        return _ITEM.substitute(
            id=_id_of(id_hash),
            browser=escape(area.browser(session)),
            this=_THIS if is_this else "",
            bound="" if not binds else _BOUND if session.bound else _UNBOUND,
            begun=area.time(session.created),
            address=f" from {escape(place)}" if place else "",
            means=escape(area.means(session)),
            seen=area.time(session.seen),
            end="" if is_this else _END_ONE.substitute(path=escape(area.path(_END)), id=_id_of(id_hash)),
        )

    async def _end(self, request: Request, visitor: Visitor, fields: Fields) -> Response:
        found = await self.area.sessions.list_of(visitor.account)
        if ("id" in fields) == ("others" in fields):
            raise Problem(400, "The form must have either 'id' or 'others'.")
        if "others" in fields:
            ended = [id_hash for id_hash in found if id_hash != visitor.id_hash]
        else:
            wanted = require(fields, "id")
            ended = [id_hash for id_hash in found if _id_of(id_hash) == wanted]
        await self.area.sessions.end(ended)
        if ended:
            self.area.log(request, visitor, f"{len(ended)} session{'s' if len(ended) > 1 else ''} ended")
        if visitor.id_hash in ended:
            expire_session_cookie(request)
            return make_redirect(self.area.sign_in.encode("ascii"), HTTPStatus.SEE_OTHER)
        return self.area.redirect(_NAME, "others" if "others" in fields else "ended" if ended else "gone")


def _id_of(id_hash: bytes) -> str:
    """Return the id of a session in pages: of its hash, by which nothing finds the session."""
    return f"session-{id_hash.hex()[:_ID_CHARS]}"
