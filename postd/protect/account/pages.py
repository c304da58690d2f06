"""All pages of an account."""

from collections.abc import Mapping

from postd.protect.account.base import AccountArea, AccountTask
from postd.protect.account.overview import Overview
from postd.protect.pages import Page


def make_account_pages(area: AccountArea, after: str) -> Mapping[str, Page]:
    """Return the pages by their paths below that of the sign-in form.

    `after` is the path of the page to which a sign-in leads.
    """
    tasks: list[AccountTask] = []
    pages = dict(Overview(area, tasks, after).pages())
    for task in tasks:
        pages |= task.pages()
    return pages
