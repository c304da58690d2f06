"use strict";
// Enhances the board, which works without it: drafts, adding without a reload, undo of a deletion, live changes
// (GET /post/events), a search, the characters that are left, and local times.
// Texts of posts are only set as text, and as links whose addresses begin with http or https.
{
  const ANNOUNCE_EVERY_MS = 1000;
  const CLEAR_AFTER_MS = 10000;
  const UNDO_MS = 10000;
  const SHOWN_MAX = 200;

  const find = (id) => document.getElementById(id);
  const make = (name, values, ...inside) => {
    const element = Object.assign(document.createElement(name), values);
    element.append(...inside);
    return element;
  };
  const news = find("news");
  const onlyPost = news?.dataset.post;
  const { account, session, open, onlyAuthor } = find("item").dataset;
  // With a session, often enough to notice its end.
  const RETRY_MS = [500, session === undefined ? 60000 : 4000];
  const inWords = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  const write = document.querySelector("form.write");
  const notice = find("notice") ?? news;

  // After a sign-in that has carried a form, the answer is the page of the form.
  if (location.pathname === "/login") {
    history.replaceState(null, "", onlyPost ? `/board/${onlyPost}` : "/board");
  }

  // Times in words, as the server writes them, and exactly in the reader's own time.

  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

  const sayWhen = (time) => {
    const seconds = (Date.now() - time) / 1000;
    if (seconds >= 7 * 86400) {
      return `${time.getUTCDate()} ${MONTHS[time.getUTCMonth()]} ${time.getUTCFullYear()}`;
    }
    for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= length) {
        return `${Math.floor(seconds / length)} ${unit} ago`;
      }
    }
    return "just now";
  };

  const fillTime = (element, text) => {
    const time = new Date(text);
    element.dateTime = text;
    element.title = time.toLocaleString();
    element.textContent = sayWhen(time);
  };

  const fillTimes = () => document.querySelectorAll("time").forEach((element) => fillTime(element, element.dateTime));
  fillTimes();
  setInterval(fillTimes, 30000);

  // Texts, whose URLs become links, as on the server (links.py).

  const URLS = new RegExp(URL_PATTERN, "gu");
  const HOST = new RegExp(HOST_PATTERN, "u");

  const lengthOf = (rest) => {
    const count = (char) => rest.split(char).length - 1;
    const extra = { ")": count(")") - count("("), "]": count("]") - count("[") };
    let length = rest.length;
    while (length > 0) {
      const last = rest[length - 1];
      if (extra[last] > 0) {
        extra[last] -= 1;
      } else if (!"?!.,:;*_~'".includes(last)) {
        break;
      }
      length -= 1;
    }
    return length;
  };

  const linkTo = (scheme, rest) => {
    const host = HOST.exec(rest)?.[1];
    if (!host) {
      return null;
    }
    const link = make("a", { href: scheme + rest, rel: "nofollow ugc noopener" }, scheme + rest);
    if (/[^\0-\x7f]/.test(host)) {
      if (!/^[0-9a-z._-]+$/.test(link.hostname)) {
        return null;
      }
      link.dataset.host = link.hostname;
      link.href = scheme + link.hostname + rest.slice(host.length);
    } else {
      link.setAttribute("href", scheme + rest);
    }
    return link;
  };

  const fillText = (element, text) => {
    const parts = [];
    let end = 0;
    for (const { 1: scheme, 2: whole, index } of text.matchAll(URLS)) {
      const rest = whole.slice(0, lengthOf(whole));
      const link = linkTo(scheme, rest);
      if (link) {
        parts.push(text.slice(end, index), link);
        end = index + scheme.length + rest.length;
      }
    }
    element.replaceChildren(...parts, text.slice(end));
  };

  // The characters that are left, while there are any in the field; in code points, as on the server.

  const count = () => {
    const field = find("post");
    const hint = find("hint");
    const most = Number(field.dataset.maxChars);
    const left = most - [...field.value].length;
    const said = left < 0 ? `${inWords(-left, "character")} too many` : `${inWords(left, "character")} left`;
    hint.textContent = left === most ? `At most ${most} characters.` : said;
    hint.classList.toggle("over", left < 0);
    field.setCustomValidity(left < 0 ? `${said}: a post has at most ${most}.` : "");
  };

  // Announcements

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
      if (counts.size > 0) {
        announceFor([...counts].map(([what, n]) => `${inWords(n, "post")} ${what}`).join(", ") + ".");
        counts.clear();
      }
    }, ANNOUNCE_EVERY_MS);
  };

  const announceFor = (text) => {
    announce(text);
    clearing = setTimeout(() => news.replaceChildren(), CLEAR_AFTER_MS);
  };

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

  // Drafts: what was typed is kept for this tab and account until it is stored, discarded, or the user signs out.

  const DRAFT = "draft ";
  const SENT = "sent";
  const channel = new BroadcastChannel("signed-out");
  let drafts = null;
  try {
    drafts = sessionStorage;
  } catch {
    // The reader allows no storage.
  }

  const nameOf = (who) => DRAFT + JSON.stringify([who, new URL(write.action).pathname]);
  const hiddenOf = (form) => form.querySelector("[type=hidden]");

  const forgetDrafts = (isForgotten) => {
    for (const name of Object.keys(drafts ?? {})) {
      if (name.startsWith(DRAFT) && isForgotten(JSON.parse(name.slice(DRAFT.length))[0])) {
        drafts.removeItem(name);
      }
    }
  };

  const keepDraft = () => {
    const field = find("post");
    if (field.value === field.defaultValue && write.dataset.kept === undefined) {
      drafts?.removeItem(nameOf(account));
    } else {
      drafts?.setItem(nameOf(account), JSON.stringify([field.value, hiddenOf(write).value]));
    }
  };

  const forgetDraft = () => {
    delete write.dataset.kept;
    drafts?.removeItem(nameOf(account));
  };

  const discard = () => {
    const field = find("post");
    forgetDraft();
    field.value = field.defaultValue;
    hiddenOf(write).value = hiddenOf(write).defaultValue;
    notice.replaceChildren();
    count();
    field.focus();
  };

  const restoreDraft = () => {
    const field = find("post");
    const kept = drafts?.getItem(nameOf(account)) ?? drafts?.getItem(nameOf(""));
    drafts?.removeItem(nameOf(""));
    if (write.dataset.kept === undefined && kept) {
      const [text, hidden] = JSON.parse(kept);
      hiddenOf(write).value = hidden;
      if (field.value !== text) {
        field.value = text;
        notice.replaceChildren(
          "This is what you typed before. ",
          make("button", { type: "button", onclick: discard }, "Discard"),
        );
      }
    }
    keepDraft();
  };

  channel.onmessage = () => {
    forgetDrafts(() => true);
    drafts = null;
  };

  document.querySelector("form[action='/logout']")?.addEventListener("submit", () => {
    channel.onmessage();
    channel.postMessage("");
  });

  // Sending a text. What the page can say about a failure it says itself, because the text is here; the rest is the
  // server's page, for which the form is sent again.

  const ask = (address, values = {}) => fetch(address, { ...values, headers: { Accept: "text/html" } });
  const post = (form, more) => ask(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)), ...more });
  const parse = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");

  const UNREACHABLE = "The server cannot be reached. Your text is kept here: try again later.";

  const refuse = (answer) => {
    const seconds = answer.headers.get("Retry-After");
    const later = seconds ? `Try again in ${inWords(Number(seconds), "second")}.` : "Try again later.";
    notice.textContent = `The post was not stored: ${answer.status} ${answer.statusText}. Your text is kept here. ${later}`;
  };

  const takeAdded = async (answer) => {
    const page = await parse(answer);
    counts.clear();
    seen = page.getElementById("news").dataset.revision;
    replaceList(page);
    hiddenOf(write).defaultValue = hiddenOf(page).value;
    discard();
    announceFor("The post was added.");
  };

  const sendForPage = () => {
    drafts?.setItem(SENT, nameOf(account));
    write.submit();
  };

  const send = async () => {
    const isList = write.matches(".new:not([data-kept])") && find("list")?.dataset.before === "";
    const button = write.querySelector("[type=submit]");
    button.disabled = true;
    try {
      const answer = await post(write);
      if (answer.redirected) {
        forgetDraft();
        const address = new URL(answer.url);
        if (isList) {
          await takeAdded(answer);
        } else {
          address.hash = write.matches(".new") ? "post" : new URL(write.action).pathname.replace("/board/", "post-");
          location.assign(address);
        }
      } else if (answer.status === 401) {
        end();
      } else if (answer.status === 429 || answer.status >= 500) {
        refuse(answer);
      } else {
        sendForPage();
      }
    } catch {
      notice.textContent = UNREACHABLE;
    } finally {
      button.disabled = false;
    }
  };

  if (write) {
    if (done && drafts?.getItem(SENT)) {
      drafts.removeItem(drafts.getItem(SENT));
    }
    drafts?.removeItem(SENT);
    if (account) {
      forgetDrafts((who) => who !== account && who !== "");
    }
    addEventListener("pageshow", () => {
      restoreDraft();
      count();
    });
    find("post").addEventListener("input", () => {
      keepDraft();
      count();
    });
    write.addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    find("post").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        write.requestSubmit();
      }
    });
  }

  // The list, newest first. A change may arrive twice or be shown already, so applying it is idempotent.

  const items = () => [...(find("posts")?.children ?? [])];
  const idOf = (item) => Number(item.dataset.id);
  const textOf = (item) => item.querySelector(".text")?.textContent ?? "";

  const isShownHere = (id) => {
    const { after, before } = find("list").dataset;
    return id > Number(after) && (before === "" || id < Number(before));
  };

  const focusOn = (item) => (item?.querySelector("button, a") ?? item ?? find("heading")).focus();

  const remove = (item) => {
    if (item.contains(document.activeElement)) {
      const others = items().filter((other) => other === item || !other.hidden);
      const place = others.indexOf(item);
      focusOn(others[place + 1] ?? others[place - 1]);
    }
    item.remove();
    showWhetherEmpty();
  };

  const showWhetherEmpty = () => {
    find("posts").hidden = items().length === 0;
    find("none").hidden = !find("posts").hidden;
    filter();
  };

  // The search, within the posts that are shown. A post that has the focus stays.

  const fold = (text) => text.normalize("NFKC").toLowerCase();

  const filter = () => {
    const query = fold(find("query").value.trim());
    let matching = 0;
    for (const item of items()) {
      const author = item.querySelector(".author")?.textContent ?? "";
      const matches = item.matches(".withdrawn") || fold(`${textOf(item)} ${author} #${item.dataset.id}`).includes(query);
      matching += matches;
      item.hidden = !matches && !item.contains(document.activeElement);
    }
    const said = query === "" ? "" : `${matching} of ${inWords(items().length, "post")} found.`;
    if (find("found").textContent !== said) {
      find("found").textContent = said;
    }
    find("search").hidden &&= items().length === 0;
  };

  const fillAbout = (item, { id, created, updated, author }) => {
    const about = item.querySelector(".about");
    about.querySelectorAll(".author, .issuer, .edited").forEach((element) => element.remove());
    const number = about.querySelector(".number");
    if (author) {
      const [, issuer, name] = /^(?:(.*)#)?(.*)$/s.exec(author);
      number.before(make("strong", { className: "author", dir: "auto" }, name));
      if (issuer) {
        number.before(make("span", { className: "issuer" }, issuer.replace(/^.*?:\/\//, "")));
      }
    }
    const time = (text) => {
      const element = make("time");
      fillTime(element, text);
      return element;
    };
    const unseen = (text) => make("span", { className: "unseen" }, text);
    number.href = `/board/${id}`;
    number.replaceChildren(...(created ? [unseen(`Post ${id}, `), time(created)] : [unseen("Post "), `#${id}`]));
    if (updated && updated !== created) {
      number.after(make("span", { className: "edited" }, "edited ", time(updated)));
    }
    if (onlyAuthor !== undefined && author !== onlyAuthor) {
      about.querySelector(".tools")?.remove();
    }
    for (const [selector, end] of [[".edit", "#post"], [".delete", "/delete"]]) {
      const tool = about.querySelector(selector);
      if (tool) {
        tool.href = `/board/${id}${end}`;
        tool.querySelector("span").textContent = ` post ${id}`;
      }
    }
  };

  const put = (change) => {
    const { id, post: text } = change;
    let item = find(`post-${id}`);
    if (!item) {
      item = find("item").content.firstElementChild.cloneNode(true);
      item.id = `post-${id}`;
      item.dataset.id = id;
      item.classList.add("arrived");
      find("posts").insertBefore(item, items().find((other) => idOf(other) < id) ?? null);
    }
    fillAbout(item, change);
    fillText(item.querySelector(".text"), text);
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

  const takeIntoList = (kind, change) => {
    withdrawn.get(change.id)?.restore("The post has changed. It was not deleted.");
    const item = find(`post-${change.id}`);
    if (!isShownHere(change.id) || (kind === "deleted" ? !item : item && textOf(item) === change.post)) {
      return;
    }
    if (kind === "deleted") {
      remove(item);
    } else {
      put(change);
      letGoOfOldest();
    }
    showWhetherEmpty();
    announceChange(kind === "updated" ? "changed" : kind);
  };

  const CHANGED = "This post was changed after you opened it. If you save, you can compare both texts first.";
  const DELETED = "This post was deleted after you opened it. If you save, you can add your text as a new post.";

  const takeForPost = (kind, change) => {
    if (change.id !== Number(onlyPost)) {
      return;
    }
    withdrawn.get(change.id)?.restore("The post has changed. It was not deleted.");
    const article = document.querySelector("article");
    if (kind === "deleted") {
      announce(write ? DELETED : "This post was deleted.");
      article?.remove();
    } else {
      announce(write ? CHANGED : "This post was changed.");
      if (article) {
        fillAbout(article, change);
        fillText(article.querySelector(".text"), change.post);
      }
    }
  };

  // Deleting: the request is held back for some seconds, in which it can be undone, and is sent at once when the page
  // is left.

  const withdrawn = new Map();

  const withdraw = (item) => {
    const id = idOf(item);
    const said = make("p", { id: `withdrawn-${id}` }, `Deleted. You can undo this for ${UNDO_MS / 1000} seconds.`);
    const undo = make("button", { type: "button" }, "Undo", make("span", { className: "unseen" }, ` the deletion of post ${id}`));
    undo.setAttribute("aria-describedby", said.id);
    const place = make(item.localName, { className: "withdrawn" }, said, undo);
    place.dataset.id = id;
    const entry = { item, place };
    const drop = () => {
      clearTimeout(timer);
      withdrawn.delete(id);
    };
    entry.restore = (why) => {
      drop();
      if (place.isConnected) {
        const hadFocus = place.contains(document.activeElement);
        place.replaceWith(entry.item);
        if (hadFocus) {
          focusOn(entry.item);
        }
        announceFor(why);
      }
    };
    entry.commit = async () => {
      drop();
      try {
        const body = new URLSearchParams({ was: textOf(entry.item) });
        const answer = await ask(`/board/${id}/delete`, { method: "POST", body, keepalive: true });
        if (answer.redirected && onlyPost) {
          location.assign("/board?done=deleted#done");
        } else if (answer.redirected) {
          remove(place);
        } else {
          entry.restore(answer.status === 409 ? "The post has changed. It was not deleted." : "The post was not deleted.");
          if (answer.status === 401) {
            end();
          }
        }
      } catch {
        entry.restore("The server cannot be reached. The post was not deleted.");
      }
    };
    undo.addEventListener("click", () => entry.restore("The post was not deleted."));
    const timer = setTimeout(entry.commit, UNDO_MS);
    withdrawn.set(id, entry);
    item.replaceWith(place);
    undo.focus();
  };

  document.addEventListener("click", (event) => {
    const item = event.target.closest("a.delete")?.closest("li");
    if (item && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      withdraw(item);
    }
  });
  document.querySelector("form.ask")?.addEventListener("submit", (event) => {
    const article = document.querySelector("article:not(.withdrawn)");
    event.preventDefault();
    if (article) {
      withdraw(article);
    }
  });
  addEventListener("pagehide", () => withdrawn.forEach(({ commit }) => commit()));

  // The end of the session

  let hasEnded = false;
  const end = () => {
    hasEnded = true;
    const path = onlyPost ? `/board/${onlyPost}` : "/board";
    const link = make("a", { href: `/?next=${encodeURIComponent(path)}` }, "Sign in again");
    const kept = write ? " Your text is kept. " : " ";
    notice.replaceChildren(`Your session has ended.${kept}`, link);
  };

  // The event stream. Hidden pages close theirs, because a browser limits its connections to a server. Reconnecting is
  // left to this script: the browser would not stop when the session has ended.

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
    source = new EventSource(`/post/events?include=meta&after=${seen}`);
    for (const kind of ["added", "updated", "deleted"]) {
      source.addEventListener(kind, (event) => {
        seen = event.lastEventId;
        (onlyPost ? takeForPost : takeIntoList)(kind, JSON.parse(event.data));
      });
    }
    source.addEventListener("reset", reload);
    source.addEventListener("open", () => { waits = RETRY_MS[0]; });
    source.addEventListener("error", () => {
      stop();
      reconnectLater();
    });
  };

  let waiting = 0;
  const reconnectLater = () => {
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
    fillTimes();
    for (const entry of [...withdrawn.values()]) {
      const fresh = find(entry.item.id);
      if (fresh && textOf(fresh) === textOf(entry.item)) {
        entry.item = fresh;
        fresh.replaceWith(entry.place);
      } else {
        entry.restore();
      }
    }
    if (focused) {
      focusOn(find(focused) ?? find("posts").firstElementChild);
    }
    filter();
    const same = topmost && find(topmost.id);
    if (same && scrollY > 0) {
      scrollBy(0, same.getBoundingClientRect().top - top);
    }
  };

  // Looks whether the session has ended, which is no use of it, and listens again if reading is still allowed.
  const reconnect = async () => {
    if (document.hidden) {
      return;
    }
    try {
      if (session !== undefined && !hasEnded) {
        const answer = await fetch("/login/session");
        if (answer.status === 401 || (answer.ok && (await answer.text()).trim() !== account)) {
          end();
        } else if (!answer.ok) {
          throw new Error(answer.statusText);
        }
      }
      if (!hasEnded || open !== undefined) {
        listen();
      }
    } catch {
      reconnectLater();
    }
  };

  // Requests this page again, when changes were missed.
  const reload = async () => {
    stop();
    try {
      const answer = await ask(location.pathname + location.search);
      if (answer.redirected) {
        end();
        return;
      }
      if (onlyPost && answer.status === 404) {
        takeForPost("deleted", { id: Number(onlyPost) });
        return;
      }
      if (!answer.ok) {
        throw new Error(answer.statusText);
      }
      const page = await parse(answer);
      seen = page.getElementById("news").dataset.revision;
      if (!onlyPost) {
        replaceList(page);
      } else if (textOf(page) !== textOf(document)) {
        document.querySelector("article")?.replaceWith(page.querySelector("article"));
        fillTimes();
        announce(write ? CHANGED : "This post was changed.");
      }
      listen();
    } catch {
      reconnectLater();
    }
  };

  if (find("query")) {
    const clear = () => {
      find("query").value = "";
      filter();
    };
    find("query").addEventListener("input", filter);
    find("query").addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        clear();
      }
    });
    find("search").addEventListener("toggle", () => (find("search").open ? find("query").focus() : clear()));
    addEventListener("pageshow", filter);
  }

  if (news) {
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : reconnect()));
    addEventListener("online", reconnect);
    addEventListener("pagehide", stop);
    addEventListener("pageshow", (event) => (event.persisted ? reload() : listen()));
  }
}
