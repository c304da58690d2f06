"""The pages of postd.protect, as resources that an application mounts where it likes."""

from collections.abc import Mapping
from typing import Any

from twisted.web.resource import Resource

from postd.http.errors import Problem, not_found
from postd.http.interface import Request
from postd.http.responses import Response, StreamedResponse, make_no_content
from postd.http.views import View, ViewResource
from postd.protect.login import LoginViews


class SignInPages(Resource):
    """The form at the path of the resource itself, `login` and `logout` below it."""

    def __init__(self, views: LoginViews) -> None:
        super().__init__()
        self._form = make_page({b"GET": views.show_form})
        self.putChild(b"", self._form)
        self.putChild(b"login", make_page({b"POST": views.log_in}))
        self.putChild(b"logout", make_page({b"GET": views.show_button, b"POST": views.log_out}))

    def render(self, request: Any) -> int:
        """Show the form where the path has no slash at its end."""
        return self._form.render(request)


def make_page(views: Mapping[bytes, View]) -> ViewResource:
    """Return a resource with a view for each method; GET has HEAD with it, and nothing is below its path."""
    allow = b", ".join(sorted({*views, b"OPTIONS", *([b"HEAD"] if b"GET" in views else [])}))

    async def view(request: Request) -> Response | StreamedResponse | None:
        if request.postpath:
            raise not_found()
        found = views.get(b"GET" if request.method == b"HEAD" else request.method)
        if found is not None:
            return await found(request)
        if request.method == b"OPTIONS":
            return make_no_content({b"Allow": allow})
        raise Problem(405, f"Allowed methods: {allow.decode('ascii')}.", headers={b"Allow": allow})

    return ViewResource(view)
