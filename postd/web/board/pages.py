"""The HTML pages of the board. Texts of posts and names of users are escaped here."""

import json
from collections.abc import Collection, Sequence
from html import escape
from string import Template

from msgspec import Struct

from postd.http.pages.template import STYLE, fill_page, make_policy, read_file
from postd.http.pages.times import make_time
from postd.model import POST_MAX_CHARS, PostDetails
from postd.protocol.bearer import has_issuer
from postd.web.board.links import HOST_PATTERN, URL_PATTERN, link_urls
from postd.web.feed import PATH as FEED_PATH

_BOARD_STYLE = STYLE + read_file(__package__, "board.css")
_SCRIPT = (
    read_file(__package__, "board.js")
    .replace("URL_PATTERN", json.dumps(URL_PATTERN))
    .replace("HOST_PATTERN", json.dumps(HOST_PATTERN))
)

BOARD_POLICY = make_policy(_BOARD_STYLE, _SCRIPT)
"""The `Content-Security-Policy` of the board's pages."""


def make_board_policy(targets: Collection[str]) -> bytes:
    """Return the policy of the board's pages where signing out may lead to other origins."""
    return make_policy(_BOARD_STYLE, _SCRIPT, targets) if targets else BOARD_POLICY


_FIELD_MAX_UNITS = 640
"""`maxlength` of the text field in UTF-16 code units. At up to nine bytes each when encoded, the form stays below the
size limit with the former text of a post, so that a text that is too long gets a message."""

_BOARD = Template(read_file(__package__, "board.html"))
_ITEM = Template(read_file(__package__, "item.html"))
_ABOUT = Template(read_file(__package__, "about.html"))
_POST = Template(read_file(__package__, "post.html"))
_CONFLICT = Template(read_file(__package__, "conflict.html"))
_GONE = Template(read_file(__package__, "gone.html"))
_WRITE = Template(read_file(__package__, "write.html"))
_DELETE = Template(read_file(__package__, "delete.html"))
_TOOLS = Template(read_file(__package__, "tools.html"))
_ASK = Template(read_file(__package__, "ask.html"))

_FEED_LINK = f'<link rel="alternate" type="application/atom+xml" title="Posts" href="{FEED_PATH}">\n'

_DONE = {
    "added": "The post was added.",
    "saved": "The post was saved.",
    "deleted": "The post was deleted.",
    "gone": "The post was already deleted.",
}
"""Messages after a change, by the value of `?done`."""


class Draft(Struct, frozen=True):
    """The text in a form.

    Args:
        text: the text.
        why: the error message if it was refused.
        note: why else it is in the form, though it is not stored.
    """

    text: str = ""
    why: str = ""
    note: str = ""


class Reader(Struct, frozen=True):
    """The reader of a page.

    Args:
        now: the time, in milliseconds since the epoch.
        account: the account, "" without credentials.
        name: its name, as shown.
        may_write: whether the page has forms.
        signs_out: whether the reader has a session, which a button ends.
        signs_in: whether the reader can sign in by form.
        signs_in_to_write: whether that lets the reader write.
        open_to_read: whether the posts can be read without credentials, too.
        only_author: the author whose posts alone the reader may change, "" for none; None if there is no such limit.
        sees_authors: whether the reader sees the authors of posts.
    """

    now: int
    account: str = ""
    name: str = ""
    may_write: bool = False
    signs_out: bool = False
    signs_in: bool = False
    signs_in_to_write: bool = False
    open_to_read: bool = False
    only_author: str | None = None
    sees_authors: bool = True

    def may_change(self, post: PostDetails) -> bool:
        """Return whether the reader may change and delete a post."""
        return self.may_write and self.only_author in {None, post.author}


class PostPage(Struct, frozen=True):
    """One page of the list, in ascending order of ids.

    Args:
        revision: the page includes all changes up to this one, and maybe later ones.
        posts: the posts with ids larger than `after` and smaller than `before`.
        after: see `posts`.
        before: see `posts`; None on the page to which new posts are added.
        older: whether there are posts with smaller ids.
    """

    revision: int
    posts: Sequence[PostDetails]
    after: int
    before: int | None
    older: bool


class BoardPages:
    """Renders the pages of the board."""

    def __init__(self, site_name: str) -> None:
        self._site_name = site_name

    def make_list(  # noqa: PLR0913 - a page has as many parts
        self, listed: PostPage, reader: Reader, *, curl: str, draft: Draft, key: str, done: str = ""
    ) -> bytes:
        """Render the list, newest post first.

        `curl` is the command line that adds a post, shown where there are none. The form that adds a post has the text
        `draft` and the idempotency key `key`. `done` is a key of `_DONE`; anything else shows no message.
        """
        message = _DONE.get(done, "")
        content = _BOARD.substitute(
            done=f'<p id="done" class="done" role="status" tabindex="-1">{message}</p>\n' if message else "",
            form=_make_add_form(reader, draft, key),
            revision=listed.revision,
            after=listed.after,
            before="" if listed.before is None else listed.before,
            posts="".join(_make_item(post, reader) for post in reversed(listed.posts)),
            posts_hidden=_hidden(not listed.posts),
            none_hidden=_hidden(bool(listed.posts)),
            how=" Write the first one." if reader.may_write else "",
            curl=escape(curl),
            newer="/board" if listed.before is None else f"/board?after={listed.before - 1}",
            newer_hidden=_hidden(listed.before is None),
            older=f"/board?before={listed.after + 1}",
            older_hidden=_hidden(not listed.older),
        )
        return self._fill("Board", content, reader)

    def make_post(  # noqa: PLR0913 - a page has as many parts
        self, post: PostDetails, reader: Reader, revision: int, *, draft: Draft, was: str, back: str
    ) -> bytes:
        """Render the page of one post, with forms to change and delete it for readers who may.

        `revision` is as in `PostPage`, `was` the text that the form was made for, `back` the list's URL.
        """
        forms = ""
        if reader.may_change(post):
            forms = _make_save_form(post.id, reader, draft, was, label="Edit") + _ASK.substitute(id=post.id)
        content = _POST.substitute(
            id=post.id,
            about=_make_about(post, reader, tools=""),
            text=link_urls(post.post),
            forms=forms,
            revision=revision,
        )
        return self._fill(f"Post {post.id}", content, reader, back=back)

    def make_conflict(
        self, post: PostDetails, reader: Reader, revision: int, *, draft: Draft | None, back: str
    ) -> bytes:
        """Render the page about an edit conflict: the post was changed after the form was made for it.

        Arguments are as for `make_post`; `draft` is None if the post was to be deleted.
        """
        if draft is None:
            undone, keep = "It was not deleted.", "Keep it"
            form = _make_delete_form(post, "Delete it anyway")
        else:
            undone, keep = "Your text was not saved.", "Keep the current text"
            form = _make_save_form(
                post.id, reader, draft, post.post, label="Your text", verb="Save your text instead", about="conflict"
            )
        content = _CONFLICT.substitute(
            id=post.id, undone=undone, theirs=link_urls(post.post), keep=keep, form=form, revision=revision
        )
        return self._fill(f"Edit conflict in post {post.id}", content, reader, back=back)

    def make_question(self, post: PostDetails, reader: Reader, *, back: str) -> bytes:
        """Render the page that asks whether to delete a post."""
        text = f'<blockquote class="text" dir="auto">{link_urls(post.post)}</blockquote>\n'
        form = _make_delete_form(post, "Delete")
        keep = f'<p class="choice"><a href="/board/{post.id}">Keep it</a></p>\n'
        return self._fill(f"Delete post {post.id}?", text + form + keep, reader, back=back)

    def make_gone(self, post_id: int, reader: Reader, *, draft: Draft | None, key: str) -> bytes:
        """Render the page about a missing post; `draft` is the text that it was to get, if any."""
        form = ""
        if draft is not None:
            form = "<p>You can add your text as a new post.</p>\n" + _make_add_form(reader, draft, key)
        return self._fill(f"Post {post_id} not found", _GONE.substitute(form=form), reader, back="/board")

    def make_failure(  # noqa: PLR0913 - a page has as many parts
        self, title: str, reader: Reader, *, path: str, why: str, draft: Draft, hidden: tuple[str, str]
    ) -> bytes:
        """Render the page about a form that was not handled, to send it again; `hidden` is its hidden field."""
        form = _make_write_form(path, reader, draft, *hidden, label="Your text", verb="Send again", about="why")
        return self._fill(title, f'<p id="why" class="error">{escape(why)}</p>\n{form}', reader, back="/board")

    def _fill(self, title: str, content: str, reader: Reader, back: str = "") -> bytes:
        site = f'<p class="site">{escape(self._site_name)}</p>\n' if self._site_name else ""
        heading = f"<header>\n<h1>{escape(title)}</h1>\n{site}{_make_who(reader)}</header>\n"
        if back:
            heading += f'<p class="back"><a href="{escape(back)}">Board</a></p>\n'
        data = f' data-account="{escape(reader.account)}"'
        data += " data-session" * reader.signs_out + " data-open" * reader.open_to_read
        data += "" if reader.only_author is None else f' data-only-author="{escape(reader.only_author)}"'
        template = f'<template id="item"{data}>\n{_make_item(PostDetails(0, "", author=reader.only_author), reader)}'
        script = f"{template}</template>\n<script>{_SCRIPT}</script>\n"
        style = _BOARD_STYLE
        site_name = self._site_name
        return fill_page(title, content + script, site_name=site_name, style=style, heading=heading, head=_FEED_LINK)


def _make_who(reader: Reader) -> str:
    """Render who reads the page, and how to sign in or out."""
    if not reader.name:
        is_below = reader.signs_in_to_write and not reader.may_write  # the link is in the place of the form
        return '<p class="who"><a href="/?next=/board">Sign in</a></p>\n' if reader.signs_in and not is_below else ""
    leave = ""
    if reader.signs_out:
        leave = '<form method="POST" action="/logout"><input type="submit" class="quiet" value="Sign out"></form>'
    name = f'<span class="unseen">Signed in as </span><strong dir="auto">{escape(reader.name)}</strong>'
    if reader.signs_out:  # the account's pages need a session
        name = f'<a href="/account">{name}</a>'
    return f'<div class="who">{name}{leave}</div>\n'


def _make_item(post: PostDetails, reader: Reader) -> str:
    tools = _TOOLS.substitute(id=post.id) if reader.may_change(post) else ""
    return _ITEM.substitute(id=post.id, about=_make_about(post, reader, tools=tools), text=link_urls(post.post))


def _make_about(post: PostDetails, reader: Reader, *, tools: str) -> str:
    """Render author and times of a post, with a link to it."""
    if post.created is None:
        label = f'<span class="unseen">Post </span>#{post.id}'
    else:
        label = f'<span class="unseen">Post {post.id}, </span>{make_time(post.created, reader.now)}'
    edited = ""
    if post.updated is not None and post.updated != post.created:
        edited = f'<span class="edited">edited {make_time(post.updated, reader.now)}</span>'
    author = _make_author(post.author) if post.author is not None and reader.sees_authors else ""
    return _ABOUT.substitute(id=post.id, author=author, label=label, edited=edited, tools=tools)


def _make_author(account: str) -> str:
    """Render the name of an account; that of a token's owner with its issuer."""
    issuer, _, name = account.partition("#") if has_issuer(account) else ("", "", account)
    of_issuer = f'<span class="issuer">{escape(issuer.partition("://")[2] or issuer)}</span>' if issuer else ""
    return f'<strong class="author" dir="auto">{escape(name)}</strong>{of_issuer}'


def _make_add_form(reader: Reader, draft: Draft, key: str) -> str:
    """Render the form that adds a post; where a sign-in is necessary, the link to it."""
    if reader.may_write:
        return _make_write_form("/board", reader, draft, "key", key, label="New post", verb="Post", kind=" new")
    if reader.signs_in and reader.signs_in_to_write:
        return '<p class="join"><a href="/?next=/board">Sign in to post</a></p>\n'
    return ""


def _make_save_form(  # noqa: PLR0913 - as many parts
    post_id: int, reader: Reader, draft: Draft, was: str, *, label: str, verb: str = "Save", about: str = ""
) -> str:
    return _make_write_form(f"/board/{post_id}", reader, draft, "was", was, label=label, verb=verb, about=about)


def _make_write_form(  # noqa: PLR0913 - as many parts
    action: str,
    reader: Reader,
    draft: Draft,
    name: str,
    value: str,
    *,
    label: str,
    verb: str,
    kind: str = "",
    about: str = "",
) -> str:
    """Render a form with a text; `name` and `value` are of its hidden field.

    `about` is the id of an element that describes the field beside hint and error.
    """
    described = [*([about] if about else []), *(["error"] if draft.why else []), "hint"]
    return _WRITE.substitute(
        kind=kind,
        action=action,
        account=escape(reader.account),
        kept=" data-kept" if draft.why or draft.note or about else "",
        note=draft.note,
        label=label,
        max_units=_FIELD_MAX_UNITS,
        max_chars=POST_MAX_CHARS,
        described=" ".join(described),
        attributes=' aria-invalid="true" autofocus' if draft.why else "",
        # HTML cannot contain U+0000, which a refused text may.
        text=escape(draft.text.replace("\0", "\ufffd")),
        verb=verb,
        error=f'<p id="error" class="error">{escape(draft.why)}</p>\n' if draft.why else "",
        name=name,
        value=escape(value),
    )


def _make_delete_form(post: PostDetails, verb: str) -> str:
    return _DELETE.substitute(id=post.id, was=escape(post.post), verb=verb)


def _hidden(hidden: bool) -> str:  # noqa: FBT001 - the name of the function names the argument
    return " hidden" if hidden else ""
