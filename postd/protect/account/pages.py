"""All pages of an account."""

from collections.abc import Mapping

from postd.auth.accounts import Accounts
from postd.protect.account.base import AccountArea, AccountTask
from postd.protect.account.overview import Overview
from postd.protect.account.password import ChangePassword
from postd.protect.account.sessions import SessionTask
from postd.protect.account.tokens import TokenTask
from postd.protect.pages import Page
from postd.protect.schemes.interface import Context


def make_account_pages(area: AccountArea, after: str, context: Context, *more: AccountTask) -> Mapping[str, Page]:
    """Return the pages by their paths below that of the sign-in form.

    Args:
        area: the common part of the pages.
        after: the path of the page to which a sign-in leads.
        context: what the tasks are made with.
        more: tasks of a server where they are on.
    """
    accounts = Accounts(context.accounts, context.providers)
    tasks: list[AccountTask] = [SessionTask(area), TokenTask(area, context.store, accounts)]
    if area.options.change_password and context.writer is not None:
        tasks.append(ChangePassword(area, context.users, context.writer, context.store))
    tasks += more
    pages = dict(Overview(area, tasks, after).pages())
    for task in tasks:
        pages |= task.pages()
    return pages
