"use strict";
// Enhances the board, which works without it: a character count, a search, and live changes (GET /post/events).
// Texts of posts are only set as text, never as HTML.
{
  const ANNOUNCE_EVERY_MS = 1000;
  const CLEAR_AFTER_MS = 10000;
  const RETRY_MS = [500, 60000];
  const SHOWN_MAX = 200;

  const find = (id) => document.getElementById(id);
  const news = find("news");
  const onlyPost = news?.dataset.post;
  const inWords = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

  // The characters that are left, while there are any in the field; in code points, as on the server.

  for (const field of document.querySelectorAll("textarea")) {
    const hint = find("hint");
    const rule = hint.textContent;
    const most = Number(field.dataset.maxChars);
    const count = () => {
      const left = most - [...field.value].length;
      const said = left < 0 ? `${inWords(-left, "character")} too many` : `${inWords(left, "character")} left`;
      hint.textContent = left === most ? rule : said;
      hint.classList.toggle("over", left < 0);
      field.setCustomValidity(left < 0 ? `${said}: a post has at most ${most}.` : "");
    };
    field.addEventListener("input", count);
    addEventListener("pageshow", count);
  }

  // The message after a change: removed from the URL, so that a reload does not repeat it, and set again once the page
  // is loaded, so that screen readers announce it.

  const done = find("done");
  if (done) {
    const address = new URL(location.href);
    address.searchParams.delete("done");
    history.replaceState(null, "", address);
    const said = done.textContent;
    done.textContent = "\u00a0";
    setTimeout(() => { done.textContent = said; }, 100);
  }

  // Announcements of changes by other users

  let clearing = 0;
  const announce = (text, ...more) => {
    clearTimeout(clearing);
    news.replaceChildren(text, ...more);
  };

  const counts = new Map();
  let announcing = 0;
  const announceChange = (kind) => {
    counts.set(kind, (counts.get(kind) ?? 0) + 1);
    announcing ||= setTimeout(() => {
      announcing = 0;
      announce([...counts].map(([what, n]) => `${inWords(n, "post")} ${what}`).join(", ") + ".");
      counts.clear();
      clearing = setTimeout(() => news.replaceChildren(), CLEAR_AFTER_MS);
    }, ANNOUNCE_EVERY_MS);
  };

  // The list, newest first. A change may arrive twice or be shown already, so applying it is idempotent.

  const items = () => [...find("posts").children];
  const idOf = (item) => Number(item.dataset.id);

  const isShownHere = (id) => {
    const { after, before } = find("list").dataset;
    return id > Number(after) && (before === "" || id < Number(before));
  };

  const focusOn = (item) => (item?.querySelector("a") ?? item ?? find("heading")).focus();

  const remove = (item) => {
    if (item.contains(document.activeElement)) {
      const others = items().filter((other) => other === item || !other.hidden);
      const place = others.indexOf(item);
      focusOn(others[place + 1] ?? others[place - 1]);
    }
    item.remove();
  };

  // The search, within the posts that are shown. A post that has the focus stays.

  const fold = (text) => text.normalize("NFKC").toLowerCase();

  const filter = () => {
    const query = fold(find("query").value.trim());
    let matching = 0;
    for (const item of items()) {
      const matches = fold(`${item.querySelector(".text").textContent} #${item.dataset.id}`).includes(query);
      matching += matches;
      item.hidden = !matches && !item.contains(document.activeElement);
    }
    const said = query === "" ? "" : `${matching} of ${inWords(items().length, "post")} found.`;
    if (find("found").textContent !== said) {
      find("found").textContent = said;
    }
    find("search").hidden &&= items().length === 0;
  };

  const makeItem = (id) => {
    const item = find("item").content.firstElementChild.cloneNode(true);
    item.id = `post-${id}`;
    item.dataset.id = id;
    item.classList.add("arrived");
    const number = item.querySelector(".number");
    number.href = `/board?after=${id - 1}#post-${id}`;
    number.lastChild.textContent = `#${id}`;
    const edit = item.querySelector(".edit");
    if (edit) {
      edit.href = `/board/${id}`;
      edit.querySelector("span").textContent = ` post ${id}`;
    }
    return item;
  };

  const put = (id, text) => {
    let item = find(`post-${id}`);
    if (!item) {
      item = makeItem(id);
      find("posts").insertBefore(item, items().find((other) => idOf(other) < id) ?? null);
    }
    item.querySelector(".text").textContent = text;
  };

  const letGoOfOldest = () => {
    while (items().length > SHOWN_MAX) {
      remove(items().at(-1));
      const oldest = idOf(items().at(-1));
      find("list").dataset.after = oldest - 1;
      find("older").href = `/board?before=${oldest}`;
      find("older").hidden = false;
    }
  };

  const takeIntoList = (kind, { id, post }) => {
    const item = find(`post-${id}`);
    if (!isShownHere(id) || (kind === "deleted" ? !item : item?.querySelector(".text").textContent === post)) {
      return;
    }
    if (kind === "deleted") {
      remove(item);
    } else {
      put(id, post);
      letGoOfOldest();
    }
    find("posts").hidden = items().length === 0;
    find("none").hidden = !find("posts").hidden;
    filter();
    announceChange(kind === "updated" ? "changed" : kind);
  };

  const CHANGED = "This post was changed after you opened it. If you save, you can compare both texts first.";
  const DELETED = "This post was deleted after you opened it. If you save, you can add your text as a new post.";

  const takeForPost = (kind, { id }) => {
    if (id === Number(onlyPost)) {
      announce(kind === "deleted" ? DELETED : CHANGED);
    }
  };

  // The event stream. Hidden pages close theirs, because a browser limits its connections to a server. Reconnecting is
  // left to this script: the browser could prompt for a password of another scheme.

  let source = null;
  let seen = news?.dataset.revision;
  let waits = RETRY_MS[0];

  const stop = () => {
    source?.close();
    source = null;
  };

  const listen = () => {
    if (source || document.hidden) {
      return;
    }
    source = new EventSource(`/post/events?after=${seen}`);
    for (const kind of ["added", "updated", "deleted"]) {
      source.addEventListener(kind, (event) => {
        seen = event.lastEventId;
        (onlyPost ? takeForPost : takeIntoList)(kind, JSON.parse(event.data));
      });
    }
    source.addEventListener("reset", reload);
    source.addEventListener("open", () => { waits = RETRY_MS[0]; });
    source.addEventListener("error", reconnectLater);
  };

  let waiting = 0;
  const reconnectLater = () => {
    stop();
    clearTimeout(waiting);
    waiting = setTimeout(reconnect, waits * (1 + Math.random()));
    waits = Math.min(2 * waits, RETRY_MS[1]);
  };

  // Keeps the focus, and the place of the topmost visible post.
  const replaceList = (page) => {
    const focused = document.activeElement.closest("#list [id]")?.id;
    const topmost = items().find((item) => item.getBoundingClientRect().bottom > 0);
    const top = topmost?.getBoundingClientRect().top;
    find("list").replaceWith(page.getElementById("list"));
    if (focused) {
      focusOn(find(focused) ?? find("posts").firstElementChild);
    }
    filter();
    const same = topmost && find(topmost.id);
    if (same && scrollY > 0) {
      scrollBy(0, same.getBoundingClientRect().top - top);
    }
  };

  const announceSignedOut = () => {
    const link = document.createElement("a");
    link.href = "/";
    link.textContent = "Sign in";
    announce("You are signed out. ", link);
  };

  // Requests this page again; returns null if it is no longer available.
  const ask = async (method) => {
    const address = onlyPost ? `/board/${onlyPost}` : location.pathname + location.search;
    // Asked of a page for sessions alone: with a challenge for a password, the browser would show its dialog.
    const hasSession = document.querySelector('form[action="/logout"]') !== null;
    if (hasSession && (await fetch("/home", { method: "HEAD", redirect: "manual" })).type === "opaqueredirect") {
      announceSignedOut();
      return null;
    }
    const answer = await fetch(address, { method, redirect: "manual" });
    if (onlyPost && answer.status === 404) {
      announce(DELETED);
      return null;
    }
    if (!answer.ok) {
      throw new Error(answer.statusText);
    }
    return answer;
  };

  const reconnect = async () => {
    try {
      if (await ask("HEAD")) {
        listen();
      }
    } catch {
      reconnectLater();
    }
  };

  const reload = async () => {
    stop();
    try {
      const answer = await ask("GET");
      if (!answer) {
        return;
      }
      // Parsed but not executed: scripts of a DOMParser document do not run.
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      seen = page.getElementById("news").dataset.revision;
      if (!onlyPost) {
        replaceList(page);
      } else if (page.querySelector("[name=was]").value !== document.querySelector("[name=was]").value) {
        announce(CHANGED);
      }
      listen();
    } catch {
      reconnectLater();
    }
  };

  if (find("query")) {
    find("query").addEventListener("input", filter);
    find("query").addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.target.value = "";
        filter();
      }
    });
    addEventListener("pageshow", filter);
  }

  if (news) {
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : reconnect()));
    addEventListener("pagehide", stop);
    addEventListener("pageshow", (event) => (event.persisted ? reconnect() : listen()));
  }
}
