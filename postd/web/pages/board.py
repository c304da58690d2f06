"""The pages of the board. All that they show of posts and people is text, escaped here."""

from collections.abc import Sequence
from html import escape
from string import Template

from msgspec import Struct

from postd.model import POST_MAX_CHARS, Post
from postd.web.pages import STYLE, fill_page, make_policy, read

_BOARD_STYLE = STYLE + read("board.css")
_SCRIPT = read("board.js")

BOARD_POLICY = make_policy(_BOARD_STYLE, _SCRIPT)
"""The policy that these pages are to be sent with."""

_LONGEST_PASTED = 800
"""UTF-16 code units that a browser takes into a text field: with up to nine bytes each the form stays one that we read,
and can say what is wrong with it."""

_BOARD = Template(read("board.html"))
_ITEM = Template(read("board_item.html"))
_FIELD = Template(read("board_field.html"))
_ADD = Template(read("board_add.html"))
_POST = Template(read("board_post.html"))
_CONFLICT = Template(read("board_conflict.html"))
_SAVE = Template(read("board_save.html"))
_DELETE = Template(read("board_delete.html"))
_GONE = Template(read("board_gone.html"))
_EDIT_LINK = Template(' <a href="/board/$id">Edit<span class="unseen"> post $id</span></a>')

_DONE = {
    "added": "The post was added.",
    "saved": "The post was saved.",
    "deleted": "The post was deleted.",
    "gone": "The post was deleted already.",
}
"""What a page may be asked to say that was done."""


class Draft(Struct, frozen=True):
    """A text in the making.

    `why` says what is wrong with it, if anything is.
    """

    text: str = ""
    why: str = ""


class Listed(Struct, frozen=True):
    """Posts for one page, in ascending order of their ids.

    Args:
        revision: the page has all changes up to this one, and perhaps more.
        posts: the posts with ids larger than `after`, and smaller than `before` if there is one.
        after: see `posts`.
        before: see `posts`; None where new posts come in.
        older: whether there are posts with smaller ids.
    """

    revision: int
    posts: Sequence[tuple[int, str]]
    after: int
    before: int | None
    older: bool


class BoardPages:
    """Makes the pages of a board.

    Args:
        site_name: what stands above each.
        writable: whether there are forms to write.
    """

    def __init__(self, site_name: str, *, writable: bool) -> None:
        self._site_name = site_name
        self._writable = writable

    def make_list(self, listed: Listed, *, user: str, draft: Draft, key: str, done: str = "") -> bytes:
        """Return the page with the list, newest post first.

        Args:
            listed: what is on it.
            user: who looks at it.
            draft: a post to be added.
            key: by which the form's post will be known, sent once or more often.
            done: the word for what was done before; another word than `_DONE` has says nothing.
        """
        said = _DONE.get(done, "")
        content = _BOARD.substitute(
            user=escape(user),
            done=f'<p id="done" class="done" role="status" tabindex="-1">{said}</p>\n' if said else "",
            form=self._make_add_form(draft, key, says_done=bool(said)) if self._writable else "",
            revision=listed.revision,
            after=listed.after,
            before="" if listed.before is None else listed.before,
            posts="".join(self._make_item(str(post_id), text) for post_id, text in reversed(listed.posts)),
            posts_hidden=_hidden(not listed.posts),
            none_hidden=_hidden(bool(listed.posts)),
            newer="/board" if listed.before is None else f"/board?after={listed.before - 1}",
            newer_hidden=_hidden(listed.before is None),
            older=f"/board?before={listed.after + 1}",
            older_hidden=_hidden(not listed.older),
            item=self._make_item("0", ""),
            script=_SCRIPT,
        )
        return self._fill("Board", content)

    def make_post(self, post: Post, revision: int, *, draft: Draft, was: str, back: str) -> bytes:
        """Return the page to change or delete one post.

        Args:
            post: the post.
            revision: as in `Listed`.
            draft: what its text is to become.
            was: names the text that it has.
            back: the address of the list with it.
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
        """Return the page for somebody whose post another one has changed; as `make_post`.

        `draft` is None for somebody who wanted to delete it.
        """
        if draft is None:
            undone, keep = "deleted", "Keep it"
            form = _DELETE.substitute(id=post.id, was=escape(was), verb="Delete it all the same")
        else:
            undone, keep = "saved", "Keep this"
            form = "<h2>What you wrote</h2>\n" + _make_save_form(
                post, draft, was, verb="Save yours instead", describing=["conflict"]
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
        return self._fill(f"Post {post.id} was changed meanwhile", content)

    def make_gone(self, post_id: int, *, draft: Draft | None, key: str) -> bytes:
        """Return the page that is in the place of a post that is not there; `draft` is what it was to become."""
        form = ""
        if draft is not None:
            form = "<p>Your text is kept here: you can add it as a new post.</p>\n" + self._make_add_form(draft, key)
        return self._fill(f"There is no post {post_id}", _GONE.substitute(form=form, script=_SCRIPT))

    def _make_item(self, post_id: str, text: str) -> str:
        edit = _EDIT_LINK.substitute(id=post_id) if self._writable else ""
        return _ITEM.substitute(id=post_id, text=escape(text), edit=edit)

    def _make_add_form(self, draft: Draft, key: str, *, says_done: bool = False) -> str:
        return _ADD.substitute(
            field=_make_field("New post", draft, describing=["done"] if says_done else []), key=escape(key)
        )

    def _fill(self, title: str, content: str) -> bytes:
        return fill_page(title, content, site_name=self._site_name, style=_BOARD_STYLE)


def _make_save_form(post: Post, draft: Draft, was: str, *, verb: str = "Save", describing: Sequence[str] = ()) -> str:
    field = _make_field("Text", draft, describing=describing)
    return _SAVE.substitute(id=post.id, field=field, was=escape(was), verb=verb)


def _make_field(label: str, draft: Draft, *, describing: Sequence[str]) -> str:
    """Return the field for a text; `describing` names what else is to be read out with it."""
    described = [*describing, "error", "hint"] if draft.why else [*describing, "hint"]
    return _FIELD.substitute(
        label=label,
        max_units=_LONGEST_PASTED,
        max_chars=POST_MAX_CHARS,
        described=" ".join(described),
        attributes=' aria-invalid="true" autofocus' if draft.why else "",
        # No HTML has U+0000 in it; a text that is refused for it has.
        text=escape(draft.text.replace("\0", "\ufffd")),
        error=f'<p id="error" class="error">{escape(draft.why)}</p>\n' if draft.why else "",
    )


def _hidden(hidden: bool) -> str:  # noqa: FBT001 - what the name says
    return " hidden" if hidden else ""
