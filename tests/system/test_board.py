"""The board in Chromium and Firefox: with and without JavaScript, by keyboard and on a phone."""

import base64
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.helpers import run_sql
from tests.integration.daemon import Daemon
from tests.system.browser import AXE_OF_COLORS, DESK, NARROWEST, PHONE, WAIT_MAX_S, Browser, OpenBrowser
from tests.system.chromium import Chromium, open_chromium
from tests.system.test_browser import IN_CHROMIUM, PASSWORD, add_user, store_session

RULES = '[api]\nread = ["session", "basic"]\nwrite = ["session", "basic"]\n'
AUTHORIZATION = "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
ODD_TEXTS = [
    "x" * 140,
    "<script>alert(1)</script> & <b>",
    "two\n\nlines, and\n   spaces",
    "שלום עולם, זה טקסט 123 abc",
    "👩‍👩‍👧‍👦" * 20,
    "\u202eturned round",
]
LISTEN_FROM_THE_FUTURE = """
    const Stock = EventSource;
    let first = true;
    EventSource = class extends Stock {
        constructor(address) {
            super(first ? address.replace(/after=.*/, "after=999999999") : address);
            first = false;
        }
    };
    for (const name of ["CONNECTING", "OPEN", "CLOSED"]) EventSource[name] = Stock[name];
"""
KEEP_STREAM = "EventSource = class extends EventSource { constructor(url) { super(url); window.stream = this; } };"
TARGETS = "input:not([type=hidden]), textarea, a:not(.text a, .notice a, #news a), button, summary"
"""What is pressed; links in sentences are exempt (WCAG 2.2, 2.5.8)."""
TOP_OF_FOCUS = "return document.activeElement.getBoundingClientRect().top"
SIGN_OUT_ELSEWHERE = "fetch('/logout', {method: 'POST', redirect: 'manual'}).then(arguments[0])"
HIDE = """
    Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
"""


class Others:
    """Changes by other users, through the API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, method: str, path: str, text: str | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if text is None else json.dumps({"post": text}).encode(),
            headers={"Content-Type": "application/json", "Authorization": AUTHORIZATION},
        )
        with urllib.request.urlopen(request, timeout=WAIT_MAX_S) as answer:
            return answer.headers["Location"] if method == "POST" else answer.read()

    def posts(self) -> list[dict[str, Any]]:
        posts: list[dict[str, Any]] = json.loads(self.ask("GET", "/post"))
        return posts

    def texts(self) -> list[str]:
        return [post["post"] for post in self.posts()]

    def add(self, text: str) -> int:
        return int(self.ask("POST", "/post", text).rpartition("/")[2])

    def change(self, post_id: int, text: str) -> None:
        self.ask("PUT", f"/post/{post_id}", text)

    def delete(self, post_id: int) -> None:
        self.ask("DELETE", f"/post/{post_id}")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    settings = folder / "postd.toml"
    settings.write_text(RULES)
    with Daemon(folder, "--config", str(settings), "--users", add_user(folder)) as daemon:
        yield daemon


@pytest.fixture
def others(daemon: Daemon) -> Others:
    """Begin with an empty board."""
    run_sql(daemon.folder / "postd.db", "DELETE FROM post")
    return Others(daemon.url)


@pytest.fixture
def browser(one_browser: Browser, others: Others) -> Iterator[Browser]:
    """Begin signed in."""
    store_session(one_browser)
    yield one_browser
    one_browser.begin_anew()


def wait_for_text(browser: Browser, text: str) -> None:
    browser.wait_until(lambda: text in browser.text)


def wait_without(browser: Browser, text: str) -> None:
    browser.wait_until(lambda: text not in browser.text)


def find(browser: Browser, selector: str) -> Any:
    return browser.driver.find_element(By.CSS_SELECTOR, selector)


def shown(browser: Browser) -> list[str]:
    """Return the texts on the board, newest first."""
    texts: list[str] = browser.driver.execute_script(
        "return [...document.querySelectorAll('#posts .text')].map(text => text.textContent)"
    )
    return texts


def typed(browser: Browser) -> str:
    return str(find(browser, "#post").get_attribute("value"))


def turn_off_scripts(browser: Browser) -> None:
    browser.turn_off_scripts()
    browser.driver.get("data:text/html,<title>off</title><script>document.title='on'</script>")
    assert browser.driver.title == "off"


def focus(browser: Browser, selector: str) -> None:
    """Move the focus with the Tab key."""
    wanted = find(browser, selector)
    for _ in range(30):
        if browser.driver.switch_to.active_element == wanted:
            return
        browser.type(Keys.TAB)
    raise AssertionError(f"the Tab key does not lead to {selector}")


@pytest.mark.parametrize("scripts", ["with", "without"])
def test_keyboard_adds_edits_and_deletes(browser: Browser, others: Others, scripts: str) -> None:
    if scripts == "without":
        turn_off_scripts(browser)
    browser.open("/board")
    assert "There are no posts yet." in browser.text
    for text in ("First", "Second"):
        focus(browser, "#post")
        browser.type(text, Keys.TAB, Keys.ENTER)
        wait_for_text(browser, "The post was added.")
        browser.wait_until(lambda: browser.focused == "post")
        assert typed(browser) == ""
    assert others.texts() == ["First", "Second"]
    post_id = others.posts()[0]["id"]
    focus(browser, f"#post-{post_id} .edit")
    browser.type(Keys.ENTER)
    browser.wait_for(f"/board/{post_id}#post")
    focus(browser, "#post")
    browser.type(Keys.END, " of all", Keys.TAB, Keys.ENTER)
    wait_for_text(browser, "The post was saved.")
    browser.wait_until(lambda: browser.driver.switch_to.active_element.get_attribute("id") == f"post-{post_id}")
    assert others.texts() == ["First of all", "Second"]
    focus(browser, f"#post-{post_id} .delete")
    browser.type(Keys.ENTER)
    if scripts == "without":
        wait_for_text(browser, f"Delete post {post_id}?")
        focus(browser, ".danger")
        browser.type(Keys.SPACE)
        wait_for_text(browser, "The post was deleted.")
        browser.wait_until(lambda: browser.driver.switch_to.active_element.get_attribute("id") == "done")
    else:
        assert "Undo" in browser.focused
        assert others.texts() == ["First of all", "Second"]
        browser.driver.get(f"{browser.url}/docs")  # leaving the page deletes at once
        browser.wait_until(lambda: others.texts() == ["Second"])
    assert others.texts() == ["Second"]
    browser.open("/board")  # Firefox's own buttons are between the end of a page and its beginning
    focus(browser, ".quiet")
    browser.type(Keys.ENTER)
    browser.wait_for("/")
    browser.open("/board")
    assert browser.path == "/?next=/board"
    assert browser.complaints() == []


def test_status_message_is_announced_once(browser: Browser) -> None:
    browser.open("/board?done=added")
    wait_for_text(browser, "The post was added.")
    assert browser.path == "/board"
    browser.driver.refresh()
    assert "The post was added." not in browser.text


def test_other_window_updates_live_and_keeps_typed_text(
    browser: Browser, open_browser: OpenBrowser, others: Others, daemon: Daemon, tmp_path: Path
) -> None:
    kept = others.add("There before")
    with open_browser(daemon.url, tmp_path / "another") as another:
        store_session(another)
        another.open("/board")
        another.type(Keys.TAB, Keys.TAB, Keys.TAB, "I am typing")
        browser.open("/board")
        focus(browser, "#post")
        browser.type("From here <b>&", Keys.TAB, Keys.ENTER)
        another.wait_until(lambda: shown(another) == ["From here <b>&", "There before"])
        wait_for_text(another, "1 post added.")
        others.change(kept, "Changed")
        another.wait_until(lambda: shown(another) == ["From here <b>&", "Changed"])
        others.delete(kept)
        another.wait_until(lambda: shown(another) == ["From here <b>&"])
        others.delete(others.posts()[0]["id"])
        wait_for_text(another, "There are no posts yet.")
        assert typed(another) == "I am typing"
        assert another.focused == "post"
        assert another.complaints() == []


def test_live_post_has_the_place_and_markup_of_the_list(browser: Browser, others: Others) -> None:
    browser.open("/board")
    for text in ODD_TEXTS:
        others.add(text)
    browser.wait_until(lambda: shown(browser) == ODD_TEXTS[::-1])
    markup = """
        const list = document.getElementById("posts").cloneNode(true);
        for (const item of list.children) item.classList.remove("arrived");
        return list.innerHTML.replace(/ class=""/g, "").replace(/>\\s+</g, "><").trim();
    """
    live = browser.driver.execute_script(markup)
    browser.driver.refresh()
    assert browser.driver.execute_script(markup) == live
    assert browser.complaints() == []


def test_focus_moves_on_when_its_post_is_deleted(browser: Browser, others: Others) -> None:
    first, second = others.add("First"), others.add("Second")
    browser.open("/board")
    focus(browser, f"#post-{first} a")
    others.delete(first)
    wait_without(browser, "First")
    assert browser.driver.switch_to.active_element == find(browser, f"#post-{second} a")
    others.delete(second)
    wait_without(browser, "Second")
    assert browser.driver.switch_to.active_element.get_attribute("id") == "heading"


def test_older_page_shows_changes_of_its_own_posts_only(browser: Browser, others: Others) -> None:
    ids = [others.add(f"Post {n}") for n in range(102)]
    browser.open("/board")
    find(browser, "#older").click()
    browser.wait_until(lambda: shown(browser) == ["Post 1", "Post 0"])
    others.add("New")
    others.change(ids[50], "Elsewhere")
    others.change(ids[0], "Here")
    browser.wait_until(lambda: shown(browser) == ["Post 1", "Here"])
    find(browser, "#newer").click()
    browser.wait_until(lambda: shown(browser)[0] == "Post 101")
    find(browser, "#newer").click()
    browser.wait_until(lambda: shown(browser)[:2] == ["New", "Post 101"])


def test_long_open_page_drops_the_oldest_posts(browser: Browser, others: Others) -> None:
    others.add("First")
    others.add("Second")
    browser.open("/board")
    assert not find(browser, "#older").is_displayed()
    for n in range(200):
        others.add(f"Post {n}")
    browser.wait_until(lambda: shown(browser)[:1] == ["Post 199"])
    assert shown(browser) == [f"Post {n}" for n in reversed(range(200))]
    find(browser, "#older").click()
    browser.wait_until(lambda: shown(browser) == ["Second", "First"])


def test_page_reloads_the_list_after_reset(browser: Browser, others: Others) -> None:
    others.add("Hello")
    browser.run_first(LISTEN_FROM_THE_FUTURE)
    browser.requested()
    browser.open("/board")
    browser.type(Keys.TAB, Keys.TAB, Keys.TAB, "I am typing")
    asked: list[str] = []

    def listens_again() -> bool:
        asked.extend(url.rpartition("/")[2] for url in browser.requested())
        return len([name for name in asked if name.startswith("events?")]) == 2

    browser.wait_until(listens_again)
    assert asked[:3] == ["board", "events?include=meta&after=999999999", "board"]
    others.add("After it")
    browser.wait_until(lambda: shown(browser) == ["After it", "Hello"])
    assert typed(browser) == "I am typing"
    assert browser.complaints() == []


def test_hidden_page_catches_up_when_shown(browser: Browser, others: Others) -> None:
    browser.open("/board")
    browser.driver.execute_script(HIDE, True)  # noqa: FBT003 - Selenium's way to hand over arguments
    others.add("Meanwhile")
    browser.driver.execute_script(HIDE, False)  # noqa: FBT003
    browser.wait_until(lambda: shown(browser) == ["Meanwhile"])


def test_ended_session_is_announced(browser: Browser, others: Others) -> None:
    browser.open("/board")
    find(browser, "#post").send_keys("I am typing")
    browser.driver.execute_async_script(SIGN_OUT_ELSEWHERE)
    others.add("A change")  # at which the stream looks whether it may go on
    wait_for_text(browser, "Your session has ended. Your text is kept.")
    assert typed(browser) == "I am typing"
    assert shown(browser) == []
    find(browser, "#notice a").click()
    browser.wait_for_focus("username")
    browser.type("alice", Keys.TAB, PASSWORD, Keys.ENTER)
    browser.wait_for("/board")
    browser.wait_until(lambda: typed(browser) == "I am typing")
    find(browser, ".write [type=submit]").click()
    wait_for_text(browser, "The post was added.")
    assert others.texts() == ["A change", "I am typing"]
    browser.driver.refresh()
    assert typed(browser) == ""


def test_concurrent_update_during_edit_shows_both_texts(browser: Browser, others: Others) -> None:
    post_id = others.add("As it was")
    browser.open(f"/board/{post_id}")
    focus(browser, "#post")
    browser.type(Keys.END, ", and mine")
    others.change(post_id, "Theirs")
    wait_for_text(browser, "This post was changed after you opened it.")
    assert typed(browser) == "As it was, and mine"
    assert browser.complaints() == []
    browser.type(Keys.TAB, Keys.ENTER)
    wait_for_text(browser, "Current text\nTheirs")
    assert typed(browser) == "As it was, and mine"
    assert others.texts() == ["Theirs"]
    focus(browser, ".write [type=submit]")
    browser.type(Keys.ENTER)
    wait_for_text(browser, "The post was saved.")
    assert others.texts() == ["As it was, and mine"]


def test_concurrent_delete_during_edit_offers_to_add(browser: Browser, others: Others) -> None:
    post_id = others.add("As it was")
    browser.open(f"/board/{post_id}")
    others.delete(post_id)
    wait_for_text(browser, "This post was deleted after you opened it.")
    find(browser, "#post").submit()
    wait_for_text(browser, f"Post {post_id} not found")
    find(browser, "#post").submit()
    wait_for_text(browser, "The post was added.")
    assert others.texts() == ["As it was"]


def test_characters_that_are_left_are_counted(browser: Browser, others: Others) -> None:
    browser.open("/board")
    field, hint = find(browser, "#post"), find(browser, "#hint")
    assert hint.text == ""
    field.send_keys("x" * 100)
    assert hint.text == "40 characters left"
    field.send_keys("\n" + "é" * 38)
    assert hint.text == "1 character left"
    field.send_keys("éé")
    assert hint.text == "1 character too many"
    find(browser, ".write [type=submit]").click()  # the browser says what is wrong
    assert browser.path == "/board"
    field.send_keys(Keys.BACKSPACE)
    assert hint.text == "0 characters left"
    find(browser, ".write [type=submit]").click()
    wait_for_text(browser, "The post was added.")
    assert others.texts() == ["x" * 100 + "\n" + "é" * 39]


def test_characters_are_counted_as_by_the_server(browser: Browser) -> None:
    browser.open("/board")
    browser.driver.execute_script(
        "const field = document.getElementById('post');"
        "field.value = arguments[0];"
        "field.dispatchEvent(new Event('input'))",
        "🚀" * 70 + "e\u0301\r\n",  # a form sends CRLF, which the server counts once
    )
    assert find(browser, "#hint").text == "67 characters left"


def test_search_shows_the_posts_with_a_text(browser: Browser, others: Others) -> None:
    first, *_ = [others.add(text) for text in ("Tea at four", "Coffee", "GRÜSSE <b>")]
    browser.open("/board")
    query = find(browser, "#query")
    focus(browser, "#search summary")
    browser.type(Keys.ENTER)
    browser.wait_until(lambda: browser.driver.switch_to.active_element == query)
    for key, left in {"e": ["Coffee", "GRÜSSE <b>", "Tea at four"], "x": []}.items():
        browser.type(key)
        assert visible(browser) == left
        assert find(browser, "#found").text == f"{len(left)} of 3 posts found."
    browser.type(Keys.BACKSPACE * 2, "grü")
    assert visible(browser) == ["GRÜSSE <b>"]
    browser.type(Keys.BACKSPACE * 3, "tea")
    others.add("More tea")
    others.add("More coffee")
    browser.wait_until(lambda: visible(browser) == ["More tea", "Tea at four"])
    wait_for_text(browser, "2 of 5 posts found.")
    assert browser.driver.switch_to.active_element == query
    browser.type(Keys.ESCAPE)
    assert len(visible(browser)) == 5
    assert find(browser, "#found").text == ""
    browser.type(f"#{first}")
    focus(browser, f"#post-{first} .edit")
    others.delete(first)
    wait_for_text(browser, "0 of 4 posts found.")
    assert browser.driver.switch_to.active_element == find(browser, "#heading")
    assert browser.complaints() == []


def visible(browser: Browser) -> list[str]:
    """Return the texts that the search leaves, sorted."""
    texts = browser.driver.find_elements(By.CSS_SELECTOR, "#posts .text")
    return sorted(text.text for text in texts if text.is_displayed())


def test_post_has_a_page_which_leads_back_to_its_place_without_javascript(browser: Browser, others: Others) -> None:
    turn_off_scripts(browser)
    first, *_ = [others.add(f"Post {n}") for n in range(30)]
    browser.open("/board")
    assert not find(browser, "#search").is_displayed()
    find(browser, f"#post-{first} .number").send_keys(Keys.ENTER)
    browser.wait_for(f"/board/{first}")
    assert find(browser, "article .text").text == "Post 0"
    find(browser, ".back a").send_keys(Keys.ENTER)
    browser.wait_for(f"/board#post-{first}")
    top = browser.driver.execute_script("return document.querySelector(':target').getBoundingClientRect().top")
    assert find(browser, ":target .text").text == "Post 0"
    assert 0 <= top < browser.driver.execute_script("return innerHeight")


def test_empty_board_shows_a_command_that_works(browser: Browser, others: Others, tmp_path: Path) -> None:
    browser.open("/board")
    assert not find(browser, "#search").is_displayed()
    find(browser, "#none summary").click()
    command = find(browser, ".sample")
    command.click()
    selected = browser.driver.execute_script("return getSelection().toString()").strip()
    assert selected == command.text
    # Without a terminal curl reads the password from its input.
    subprocess.run(["bash", "-c", selected], input=f"{PASSWORD}\n".encode(), start_new_session=True, check=True)
    browser.wait_until(lambda: shown(browser) == ["Hello, world"])
    assert not command.is_displayed()
    assert find(browser, "#search").is_displayed()


def test_reloaded_list_keeps_focus_and_place(browser: Browser, others: Others) -> None:
    ids = [others.add(f"Post {n}\n\n\n") for n in range(30)]
    browser.run_first(KEEP_STREAM)
    browser.open("/board")
    browser.wait_until(lambda: browser.driver.execute_script("return window.stream?.readyState === 1"))
    focus(browser, f"#post-{ids[-8]} .number")
    top = browser.driver.execute_script(TOP_OF_FOCUS)
    for n in range(3):
        others.add(f"New {n}\n\n\n")
    browser.wait_until(lambda: shown(browser)[0].startswith("New 2"))
    assert abs(browser.driver.execute_script(TOP_OF_FOCUS) - top) < 2
    browser.driver.execute_script("document.getElementById('posts').children[2].remove()")  # which the new list has
    browser.driver.execute_script("window.before = document.getElementById('list')")
    browser.driver.execute_script("stream.dispatchEvent(new Event('reset'))")
    browser.wait_until(lambda: browser.driver.execute_script("return !before.isConnected"))
    assert browser.driver.switch_to.active_element == find(browser, f"#post-{ids[-8]} .number")
    assert abs(browser.driver.execute_script(TOP_OF_FOCUS) - top) < 2


def meet_states(browser: Browser, others: Others) -> Iterator[str]:
    """Show every state of the board, one after the other."""
    browser.open("/board")
    yield "empty"
    post_id, *_ = [others.add(text) for text in ODD_TEXTS]
    browser.wait_until(lambda: find(browser, "#news").text)
    yield "live"
    find(browser, "#search summary").click()
    find(browser, "#query").send_keys("two")
    wait_for_text(browser, "1 of 6 posts found.")
    yield "searched"
    find(browser, "#post").send_keys("x")
    browser.driver.execute_script("document.getElementById('post').value = 'x'.repeat(150)")
    browser.driver.execute_script("document.querySelector('.write').submit()")  # past the script and the browser
    wait_for_text(browser, "this one has 150")
    yield "refused"
    browser.open("/board?done=deleted#done")
    yield "done"
    browser.open(f"/board/{post_id}")
    others.change(post_id, "y" * 140)
    wait_for_text(browser, "after you opened it")
    yield "edited"
    yield "post"
    find(browser, "#post").send_keys(Keys.BACKSPACE)
    find(browser, ".write").submit()
    wait_for_text(browser, "Your text")
    yield "conflict"
    browser.open(f"/board/{post_id}/delete")
    yield "question"
    others.change(post_id, "z" * 140)
    find(browser, ".danger").submit()
    wait_for_text(browser, "It was not deleted.")
    yield "conflict about a delete"
    browser.open("/board")
    find(browser, f"#post-{post_id} .delete").click()
    yield "undo"
    browser.type(Keys.ENTER)
    browser.driver.execute_async_script(SIGN_OUT_ELSEWHERE)
    wait_for_text(browser, "Your session has ended.")
    yield "ended"
    browser.driver.execute_script("document.querySelector('.write').submit()")
    wait_for_text(browser, "Sign in")
    yield "ended, and sent"
    store_session(browser)
    browser.open(f"/board/{post_id}")
    others.delete(post_id)
    find(browser, ".write").submit()
    wait_for_text(browser, "not found")
    yield "gone"


@IN_CHROMIUM
@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", PHONE)], ids=["light", "dark"])
def test_axe_finds_no_violation(browser: Chromium, others: Others, scheme: str, size: tuple[int, int]) -> None:
    browser.set_screen(size)
    for state in meet_states(browser, others):
        for contrast, rules in (("no-preference", ()), ("more", AXE_OF_COLORS)):
            browser.prefer(prefers_color_scheme=scheme, prefers_contrast=contrast, prefers_reduced_motion="reduce")
            assert (state, browser.find_barriers(rules)) == (state, [])
        assert (state, browser.smallest(TARGETS) >= 44) == (state, True)
    # 409 and the like are reported as failed resources.
    complaints = [line for line in browser.complaints() if "Failed to load resource" not in line]
    assert complaints == []


def test_content_fits_the_smallest_screen(daemon: Daemon, others: Others, tmp_path: Path) -> None:
    """WCAG 2.2, 1.4.10 (320 px wide) and 1.4.4 (text twice as large), both at once, and with words too long."""
    with open_chromium(daemon.url, tmp_path / "profile", font_size=32) as browser:
        store_session(browser)
        browser.set_screen(NARROWEST)
        for state in meet_states(browser, others):
            assert (state, browser.width <= NARROWEST[0]) == (state, True)
            assert (state, browser.sticking_out) == (state, [])


def test_draft_is_kept_until_it_is_stored_discarded_or_the_user_signs_out(browser: Browser, others: Others) -> None:
    browser.open("/board")
    find(browser, "#post").send_keys("Not sent yet")
    browser.driver.refresh()
    wait_for_text(browser, "This is what you typed before.")
    assert typed(browser) == "Not sent yet"
    browser.open("/docs")
    browser.open("/board")
    assert typed(browser) == "Not sent yet"
    find(browser, "#notice button").click()
    assert typed(browser) == ""
    browser.driver.refresh()
    assert typed(browser) == ""
    post_id = others.add("As it was")
    browser.open(f"/board/{post_id}")
    find(browser, "#post").send_keys(", and mine")
    others.change(post_id, "Theirs")
    browser.open(f"/board/{post_id}")
    assert typed(browser) == "As it was, and mine"
    find(browser, ".write [type=submit]").click()
    wait_for_text(browser, "Current text\nTheirs")
    find(browser, ".quiet").click()
    browser.wait_for("/")
    store_session(browser)
    browser.open(f"/board/{post_id}")
    assert typed(browser) == "Theirs"
    assert others.texts() == ["Theirs"]


def test_text_stays_in_the_field_without_a_network(browser: Browser, others: Others) -> None:
    browser.open("/board")
    find(browser, "#post").send_keys("Hello")
    browser.driver.execute_script("window.stock = fetch; window.fetch = () => Promise.reject(new TypeError('x'));")
    find(browser, ".write [type=submit]").click()
    wait_for_text(browser, "The server cannot be reached.")
    assert typed(browser) == "Hello"
    browser.driver.execute_script("window.fetch = stock")
    find(browser, ".write [type=submit]").click()
    browser.wait_until(lambda: others.texts() == ["Hello"])
    browser.wait_until(lambda: typed(browser) == "")
    assert browser.path == "/board"


def test_deletion_can_be_undone_by_keyboard(browser: Browser, others: Others) -> None:
    first, second = others.add("First"), others.add("Second")
    browser.open("/board")
    focus(browser, f"#post-{first} .delete")
    browser.type(Keys.ENTER)
    assert browser.focused.split() == ["Undo", "the", "deletion", "of", "post", str(first)]
    assert shown(browser) == ["Second"]
    browser.type(Keys.ENTER)
    wait_for_text(browser, "The post was not deleted.")
    assert shown(browser) == ["Second", "First"]
    assert find(browser, f"#post-{first}").is_displayed()
    find(browser, f"#post-{first} .delete").click()
    others.change(first, "First, changed")
    browser.wait_until(lambda: shown(browser) == ["Second", "First, changed"])  # the change cancels the deletion
    browser.driver.execute_script("window.setTimeout = (run, ms) => setInterval(run, Math.min(ms, 50))")
    find(browser, f"#post-{second} .delete").click()
    browser.wait_until(lambda: others.texts() == ["First, changed"])


def test_reader_without_an_account_sees_posts_live_and_signs_in_to_post(one_browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "postd.toml").write_text('[api]\nread = ["open"]\nwrite = ["session", "basic"]\n')
    with (
        Daemon(tmp_path, "--config", "postd.toml", "--users", add_user(tmp_path)) as daemon,
        one_browser.at(daemon.url) as browser,
    ):
        others = Others(daemon.url)
        post_id = others.add("See https://example.com/a.")
        browser.open("/board")
        assert browser.driver.find_elements(By.CSS_SELECTOR, "textarea, .tools, form") == []
        others.add("Live (https://example.com/b)")
        browser.wait_until(lambda: len(shown(browser)) == 2)
        links = browser.driver.find_elements(By.CSS_SELECTOR, ".text a")
        assert [link.get_attribute("href") for link in links] == ["https://example.com/b", "https://example.com/a"]
        find(browser, f"#post-{post_id} .number").click()
        browser.wait_for(f"/board/{post_id}")
        find(browser, ".back a").click()
        find(browser, ".join a").click()
        browser.wait_for_focus("username")
        browser.type("alice", Keys.TAB, PASSWORD, Keys.ENTER)
        browser.wait_for("/board")
        find(browser, "#post").send_keys("Mine")
        browser.driver.execute_async_script(SIGN_OUT_ELSEWHERE)
        others.add("A change")
        wait_for_text(browser, "Your session has ended.")
        browser.wait_until(lambda: shown(browser)[0] == "A change")
        others.add("Read on")
        browser.wait_until(lambda: shown(browser)[0] == "Read on")


def test_ended_session_keeps_the_text_without_javascript(browser: Browser, others: Others) -> None:
    browser.open("/board")
    turn_off_scripts(browser)
    browser.open("/board")
    find(browser, "#post").send_keys("Typed long ago")
    browser.store_session("session=" + "A" * 43)
    find(browser, ".write [type=submit]").click()
    wait_for_text(browser, "Your session has ended.")
    browser.wait_for_focus("username")
    browser.type("alice", Keys.TAB, PASSWORD, Keys.ENTER)
    wait_for_text(browser, "Your session had ended.")
    assert typed(browser) == "Typed long ago"
    assert others.texts() == []
    find(browser, ".write [type=submit]").click()
    wait_for_text(browser, "The post was added.")
    assert others.texts() == ["Typed long ago"]
