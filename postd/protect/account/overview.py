"""The first page of an account: who its user is, how the user has signed in, and links to the tasks."""

from collections.abc import Mapping, Sequence
from html import escape
from http import HTTPStatus
from string import Template

from postd.http.interface import Request
from postd.http.pages.template import read_file
from postd.http.responses import Response
from postd.protect.account.base import FORM, TITLE, AccountArea, AccountTask, Visitor
from postd.protect.pages import Page

_CONTENT = Template(read_file(__package__, "overview.html"))
_TASK = Template(read_file(__package__, "task.html"))

_BOUND = "<p>This session is bound to this device: a copy of its cookies is worthless after a few minutes.</p>\n"
_UNBOUND = (
    "<p>This session is <strong>not bound to a device</strong>, as others of yours are or were. If this browser can "
    "bind sessions, end it: its cookie may be a copy.</p>\n"
)

_DONE = {"confirmed": "You have signed in again. Go back to the other tab, and continue there."}


class Overview:
    """The first page.

    Args:
        area: the common part of the pages.
        tasks: what users can do, in the order of the links.
        after: the path of the page to which a sign-in leads.
    """

    def __init__(self, area: AccountArea, tasks: Sequence[AccountTask], after: str) -> None:
        self._area, self._tasks, self._after = area, tasks, after

    def pages(self) -> Mapping[str, Page]:
        """Return the page by its path below that of the sign-in form."""
        return {FORM: self._area.make_page(self._show)}

    async def _show(self, request: Request, visitor: Visitor) -> Response:
        area, session, tasks = self._area, visitor.session, list[str]()
        for task in self._tasks:
            about = await task.describe(visitor)
            if about is not None:
                path = escape(area.path(task.name))
                tasks.append(_TASK.substitute(path=path, title=task.title, about=escape(about)))
        content = _CONTENT.substitute(
            done=area.message(request, _DONE),
            name=escape(visitor.name),
            means=escape(area.means(session)),
            when=area.time(session.created),
            bound=await self._describe_binding(visitor),
            tasks="".join(tasks),
            after=escape(self._after),
            logout=escape(area.path("logout")),
        )
        return area.page(HTTPStatus.OK, TITLE, content)

    async def _describe_binding(self, visitor: Visitor) -> str:
        if not await self._area.sessions.binds(visitor.account):
            return ""
        return _BOUND if visitor.session.bound else _UNBOUND
