"""The routes of the form for signing in (spec: Form-login paths); `/home` is a protected page."""

from postd.protect.login import LoginViews
from postd.web.routing import Application


class LoginPages(LoginViews):
    """The pages `/`, `/login` and `/logout`."""

    below_form = '<a href="/docs">API documentation</a>\n'

    app = Application()
    app.route("/", methods=["GET"])(LoginViews.show_form)
    app.route("/login", methods=["POST"])(LoginViews.log_in)
    app.route("/logout", methods=["GET"])(LoginViews.show_button)
    app.route("/logout", methods=["POST"])(LoginViews.log_out)
