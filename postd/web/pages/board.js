"use strict";
// What the board is better with: it counts characters, and shows what others do as they do it (GET /post/events).
// All of the board works without it. Texts of posts are only ever set as text.
{
  const RARELY_TOLD_MS = 1000;
  const GONE_AFTER_MS = 10000;
  const RETRY_MS = [500, 60000];
  const SHOWN_MAX = 200;
  const QUIET_UP_TO = 0.75;

  const find = (id) => document.getElementById(id);
  const news = find("news");
  const onlyPost = news?.dataset.post;

  // The characters of a text, once there are many: code points, as the server counts them.

  for (const field of document.querySelectorAll("textarea")) {
    const hint = find("hint");
    const rule = hint.textContent;
    const most = Number(field.dataset.maxChars);
    const count = () => {
      const chars = [...field.value].length;
      hint.textContent = chars > most * QUIET_UP_TO ? `${chars} of ${most} characters` : rule;
      hint.classList.toggle("over", chars > most);
      field.setCustomValidity(chars > most ? `${chars - most} too many: a post has at most ${most} characters.` : "");
    };
    field.addEventListener("input", count);
    addEventListener("pageshow", count);
  }

  // What was done is said once: not when the page is loaded anew, but also by a screen reader, which tells of changes.

  const done = find("done");
  if (done) {
    const address = new URL(location.href);
    address.searchParams.delete("done");
    history.replaceState(null, "", address);
    const said = done.textContent;
    done.textContent = "\u00a0";
    setTimeout(() => { done.textContent = said; }, 100);
  }

  // What others have done, in few words

  let clearing = 0;
  const tell = (text, ...more) => {
    clearTimeout(clearing);
    news.replaceChildren(text, ...more);
  };

  const counts = new Map();
  let telling = 0;
  const tellRarely = (kind) => {
    counts.set(kind, (counts.get(kind) ?? 0) + 1);
    telling ||= setTimeout(() => {
      telling = 0;
      tell([...counts].map(([what, n]) => `${n} ${n === 1 ? "post" : "posts"} ${what}`).join(", ") + ".");
      counts.clear();
      clearing = setTimeout(() => news.replaceChildren(), GONE_AFTER_MS);
    }, RARELY_TOLD_MS);
  };

  // The list, newest first. A change may come twice, or be shown already: it says what is so from then on.

  const items = () => [...find("posts").children];
  const idOf = (item) => Number(item.dataset.id);

  const isShownHere = (id) => {
    const { after, before } = find("list").dataset;
    return id > Number(after) && (before === "" || id < Number(before));
  };

  const focusOn = (item) => (item?.querySelector("a") ?? item ?? find("heading")).focus();

  const remove = (item) => {
    if (item.contains(document.activeElement)) {
      focusOn(item.nextElementSibling ?? item.previousElementSibling);
    }
    item.remove();
  };

  const makeItem = (id) => {
    const item = find("item").content.firstElementChild.cloneNode(true);
    item.id = `post-${id}`;
    item.dataset.id = id;
    item.classList.add("arrived");
    item.querySelector(".number").textContent = `#${id}`;
    const link = item.querySelector("a");
    if (link) {
      link.href = `/board/${id}`;
      link.querySelector("span").textContent = ` post ${id}`;
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
    tellRarely(kind === "updated" ? "changed" : kind);
  };

  const CHANGED = "Somebody else has changed this post meanwhile. Saving will show you both texts first.";
  const DELETED = "Somebody else has deleted this post meanwhile. Your text can still be added as a new post: save it.";

  const takeForPost = (kind, { id }) => {
    if (id === Number(onlyPost)) {
      tell(kind === "deleted" ? DELETED : CHANGED);
    }
  };

  // The stream. Hidden pages have none: a browser has few connections to a server for all its windows. One that has
  // ended is not taken up by the browser itself, which might ask for a password that it is not about.

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
    source.addEventListener("reset", readAgain);
    source.addEventListener("open", () => { waits = RETRY_MS[0]; });
    source.addEventListener("error", waitAndComeBack);
  };

  let waiting = 0;
  const waitAndComeBack = () => {
    stop();
    clearTimeout(waiting);
    waiting = setTimeout(comeBack, waits * (1 + Math.random()));
    waits = Math.min(2 * waits, RETRY_MS[1]);
  };

  const replaceList = (page) => {
    const focused = document.activeElement.closest("#posts li")?.id;
    find("list").replaceWith(page.getElementById("list"));
    if (focused) {
      focusOn(find(focused) ?? find("posts").firstElementChild);
    }
  };

  const tellSignedOut = () => {
    const link = document.createElement("a");
    link.href = "/";
    link.textContent = "Sign in";
    tell("You are signed out. ", link);
  };

  // Asks for this page once more; comes to nothing if there is none for us.
  const ask = async (method) => {
    const address = onlyPost ? `/board/${onlyPost}` : location.pathname + location.search;
    const answer = await fetch(address, { method, redirect: "manual" });
    if (answer.type === "opaqueredirect") {
      tellSignedOut();
      return null;
    }
    if (onlyPost && answer.status === 404) {
      tell(DELETED);
      return null;
    }
    if (!answer.ok) {
      throw new Error(answer.statusText);
    }
    return answer;
  };

  const comeBack = async () => {
    try {
      if (await ask("HEAD")) {
        listen();
      }
    } catch {
      waitAndComeBack();
    }
  };

  const readAgain = async () => {
    stop();
    try {
      const answer = await ask("GET");
      if (!answer) {
        return;
      }
      // The page as the server makes it, as inert as it is escaped.
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      seen = page.getElementById("news").dataset.revision;
      if (!onlyPost) {
        replaceList(page);
      } else if (page.querySelector("[name=was]").value !== document.querySelector("[name=was]").value) {
        tell(CHANGED);
      }
      listen();
    } catch {
      waitAndComeBack();
    }
  };

  if (news) {
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : comeBack()));
    addEventListener("pagehide", stop);
    addEventListener("pageshow", (event) => (event.persisted ? comeBack() : listen()));
  }
}
