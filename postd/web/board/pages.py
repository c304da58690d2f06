"""The HTML pages of the board. Texts of posts and names of users are escaped here."""

from collections.abc import Sequence
from html import escape
from string import Template

from msgspec import Struct

from postd.http.pages.template import STYLE, fill_page, make_policy, read_file
from postd.model import POST_MAX_CHARS, Post

_BOARD_STYLE = STYLE + read_file(__package__, "board.css")
_SCRIPT = read_file(__package__, "board.js")

BOARD_POLICY = make_policy(_BOARD_STYLE, _SCRIPT)
"""The `Content-Security-Policy` of the board's pages."""

_FIELD_MAX_UNITS = 800
"""`maxlength` of the text field in UTF-16 code units. At up to nine bytes each when encoded, the form stays below the
size limit, so that a text that is too long gets a message."""

_BOARD = Template(read_file(__package__, "board.html"))
_ITEM = Template(read_file(__package__, "item.html"))
_FIELD = Template(read_file(__package__, "field.html"))
_ADD = Template(read_file(__package__, "add.html"))
_POST = Template(read_file(__package__, "post.html"))
_CONFLICT = Template(read_file(__package__, "conflict.html"))
_SAVE = Template(read_file(__package__, "save.html"))
_DELETE = Template(read_file(__package__, "delete.html"))
_GONE = Template(read_file(__package__, "gone.html"))
_EDIT_LINK = Template('<a class="edit" href="/board/$id">Edit<span class="unseen"> post $id</span></a>')

_HOW = "Add the first post with curl:"
_HOW_WRITABLE = "Write the first post in the form above, or add it with curl:"

_NAME = Template('<p>Signed in as <strong dir="auto">$name</strong></p>\n')
_SIGN_OUT = '<form method="POST" action="/logout"><input type="submit" class="quiet" value="Sign out"></form>\n'
_SIGN_IN = Template('<p><a href="/?next=/board">$words</a></p>\n')

_DONE = {
    "added": "The post was added.",
    "saved": "The post was saved.",
    "deleted": "The post was deleted.",
    "gone": "The post was already deleted.",
}
"""Messages after a change, by the value of `?done`."""


class Draft(Struct, frozen=True):
    """The text in a form; `why` is the error message if it was refused."""

    text: str = ""
    why: str = ""


class Reader(Struct, frozen=True):
    """The reader of a page.

    Args:
        name: the name of the account, None without credentials.
        may_write: whether the page has forms.
        signs_out: whether the reader has a session, which a button ends.
        signs_in: whether the reader can sign in by form.
        signs_in_to_write: whether that lets the reader write.
    """

    name: str | None
    may_write: bool
    signs_out: bool = False
    signs_in: bool = False
    signs_in_to_write: bool = False


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
    posts: Sequence[tuple[int, str]]
    after: int
    before: int | None
    older: bool


class BoardPages:
    """Renders the pages of the board."""

    def __init__(self, site_name: str) -> None:
        self._site_name = site_name

    def make_list(  # noqa: PLR0913 - a page has as many parts
        self, listed: PostPage, *, reader: Reader, curl: str, draft: Draft, key: str, done: str = ""
    ) -> bytes:
        """Render the list, newest post first.

        It has forms if the reader may write. `curl` is the command line that adds a post, shown where there are none.
        The form that adds a post has the text `draft` and the idempotency key `key`. `done` is a key of `_DONE`;
        anything else shows no message.
        """
        message = _DONE.get(done, "")
        content = _BOARD.substitute(
            who=_make_who(reader),
            done=f'<p id="done" class="done" role="status" tabindex="-1">{message}</p>\n' if message else "",
            form=self._make_add_form(draft, key, has_message=bool(message)) if reader.may_write else "",
            revision=listed.revision,
            after=listed.after,
            before="" if listed.before is None else listed.before,
            posts="".join(_make_item(post_id, text, reader) for post_id, text in reversed(listed.posts)),
            posts_hidden=_hidden(not listed.posts),
            none_hidden=_hidden(bool(listed.posts)),
            how=_HOW_WRITABLE if reader.may_write else _HOW,
            curl=escape(curl),
            newer="/board" if listed.before is None else f"/board?after={listed.before - 1}",
            newer_hidden=_hidden(listed.before is None),
            older=f"/board?before={listed.after + 1}",
            older_hidden=_hidden(not listed.older),
            item=_make_item(0, "", reader),
            script=_SCRIPT,
        )
        return self._fill("Board", content)

    def make_post(self, post: Post, revision: int, *, draft: Draft, was: str, back: str) -> bytes:
        """Render the page to change or delete one post.

        `revision` is as in `PostPage`, `was` the tag of the text that the form was made for, `back` the list's URL.
        """
        content = _POST.substitute(
            id=post.id,
            back=escape(back),
            revision=revision,
            save=_make_save_form(post, draft, was),
            delete=_DELETE.substitute(id=post.id, was=escape(was), verb="Delete this post"),
            script=_SCRIPT,
        )
        return self._fill(f"Edit post {post.id}", content)

    def make_conflict(self, post: Post, revision: int, *, draft: Draft | None, was: str, back: str) -> bytes:
        """Render the page about an edit conflict: the post was changed after the form was made for it.

        Arguments are as for `make_post`; `draft` is None if the post was to be deleted.
        """
        if draft is None:
            undone, keep = "It was not deleted.", "Keep it"
            form = _DELETE.substitute(id=post.id, was=escape(was), verb="Delete it anyway")
        else:
            undone, keep = "Your text was not saved.", "Keep the current text"
            form = _make_save_form(
                post, draft, was, label="Your text", verb="Save your text instead", describing=["conflict"]
            )
        content = _CONFLICT.substitute(
            id=post.id,
            undone=undone,
            theirs=escape(post.post),
            back=escape(back),
            keep=keep,
            form=form,
            revision=revision,
            script=_SCRIPT,
        )
        return self._fill(f"Edit conflict in post {post.id}", content)

    def make_gone(self, post_id: int, *, draft: Draft | None, key: str) -> bytes:
        """Render the page about a missing post; `draft` is the text that it was to get, if any."""
        form = ""
        if draft is not None:
            form = "<p>You can add your text as a new post.</p>\n" + self._make_add_form(draft, key)
        return self._fill(f"Post {post_id} not found", _GONE.substitute(form=form, script=_SCRIPT))

    def _make_add_form(self, draft: Draft, key: str, *, has_message: bool = False) -> str:
        return _ADD.substitute(
            field=_make_field("New post", draft, describing=["done"] if has_message else []), key=escape(key)
        )

    def _fill(self, title: str, content: str) -> bytes:
        return fill_page(title, content, site_name=self._site_name, style=_BOARD_STYLE)


def _make_who(reader: Reader) -> str:
    if reader.name is not None:
        content = _NAME.substitute(name=escape(reader.name)) + (_SIGN_OUT if reader.signs_out else "")
    elif reader.signs_in:
        content = _SIGN_IN.substitute(words="Sign in to post" if reader.signs_in_to_write else "Sign in")
    else:
        return ""
    return f'<div class="who">\n{content}</div>\n'


def _make_item(post_id: int, text: str, reader: Reader) -> str:
    edit = _EDIT_LINK.substitute(id=post_id) if reader.may_write else ""
    return _ITEM.substitute(id=post_id, after=post_id - 1, text=escape(text), edit=edit)


def _make_save_form(  # noqa: PLR0913 - all but three have their defaults
    post: Post, draft: Draft, was: str, *, label: str = "Text", verb: str = "Save", describing: Sequence[str] = ()
) -> str:
    field = _make_field(label, draft, describing=describing)
    return _SAVE.substitute(id=post.id, field=field, was=escape(was), verb=verb)


def _make_field(label: str, draft: Draft, *, describing: Sequence[str]) -> str:
    """Render the text field; `describing` has the ids of elements that describe it beside hint and error."""
    described = [*describing, "error", "hint"] if draft.why else [*describing, "hint"]
    return _FIELD.substitute(
        label=label,
        max_units=_FIELD_MAX_UNITS,
        max_chars=POST_MAX_CHARS,
        described=" ".join(described),
        attributes=' aria-invalid="true" autofocus' if draft.why else "",
        # HTML cannot contain U+0000, which a refused text may.
        text=escape(draft.text.replace("\0", "\ufffd")),
        error=f'<p id="error" class="error">{escape(draft.why)}</p>\n' if draft.why else "",
    )


def _hidden(hidden: bool) -> str:  # noqa: FBT001 - the name of the function names the argument
    return " hidden" if hidden else ""
