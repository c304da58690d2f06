"""The pages of authentication schemes, such as the form, as a Klein application (spec: Form-login paths)."""

from collections.abc import Mapping
from typing import Any

from postd.http.views import Responding, View
from postd.protect.pages import Page
from postd.web.routing import Application


class SchemePages:
    """The routes of pages by path without the first slash, as `Authentication.make_pages` returns them."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.app = Application()
        for path, page in pages.items():
            for method, view in page.views.items():
                shown = _with_path_below(view) if page.below else view
                for rule in (f"/{path}", *([f"/{path}/<path:path>"] if page.below else [])):
                    endpoint = f"{method.decode('ascii')} {rule}"
                    setattr(self, endpoint, shown)  # where `Router` looks for the view of a route
                    decorate: Any = self.app.route(rule, methods=[method.decode("ascii")], endpoint=endpoint)
                    decorate(shown)


def _with_path_below(view: View) -> View:
    def show(request: Any, path: str = "") -> Responding:
        request.postpath = path.encode().split(b"/") if path else []
        return view(request)

    return show
