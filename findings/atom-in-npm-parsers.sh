#!/usr/bin/env bash
# In Atom a link without `rel` is the page itself ("alternate"), wherever it stands among links with other relations
# (RFC 4287 section 4.2.7.2), and content of type "xhtml" is the markup inside one `div` (section 4.1.3.3).
#
# One would expect: the packages of npm that parse feeds find the page of an entry, and its text.
# Seen: where no link says "alternate", rss-parser 3.13.0 and @extractus/feed-extractor 8.0.3 take the first one, here
# the feed itself and the address to edit the entry. rss-parser groups XHTML by the names of elements, text first: "one
# <b>two</b> three" becomes "one  three<b>two</b>", and a list moves behind the text after it. feed-extractor has no
# text at all there. @rowanmanning/feed-parser 2.1.5, feedparser 2.6.0 and Python's feedparser 6.0.14 do none of these.
# So a server does well to write `rel="alternate"`, and HTML with escapes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q feedparser==6.0.14
npm install --silent --no-audit --no-fund rss-parser@3.13.0 @extractus/feed-extractor@8.0.3 \
    @rowanmanning/feed-parser@2.1.5 feedparser@2.6.0
cat >feed.atom <<'XML'
<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
  <title>Board</title>
  <id>tag:example.org,2026:board</id>
  <updated>2026-11-01T00:00:00Z</updated>
  <author><name>Alice</name></author>
  <link rel="self" href="https://example.org/feed.atom"/>
  <link href="https://example.org/"/>
  <entry>
    <title>Markup</title>
    <id>tag:example.org,2026:1</id>
    <updated>2026-11-01T00:00:00Z</updated>
    <link rel="edit" href="https://example.org/edit/1"/>
    <link href="https://example.org/1"/>
    <content type="xhtml">
      <div xmlns="http://www.w3.org/1999/xhtml"><p>one <b>two</b> three</p><ul><li>four</li></ul><p>five</p></div>
    </content>
  </entry>
</feed>
XML
cat >read.mjs <<'JAVASCRIPT'
import { createReadStream, readFileSync } from "node:fs";
import { extractFromXml } from "@extractus/feed-extractor";
import { parseFeed } from "@rowanmanning/feed-parser";
import FeedParser from "feedparser";
import RssParser from "rss-parser";

const xml = readFileSync("feed.atom", "utf8");
const show = (name, feed, page, text) => {
    console.log(`${name}: feed ${feed}`);
    console.log(`${name}: entry ${page}`);
    console.log(`${name}: ${/<p>.*<\/(p|ul)>/.exec(text)?.[0] ?? "no text"}`); // without the `div`, which some keep
};
const rss = await new RssParser().parseString(xml);
show("rss-parser", rss.link, rss.items[0].link, rss.items[0].content);
const extracted = extractFromXml(xml, { descriptionMaxLen: 0 });
show("feed-extractor", extracted.link, extracted.entries[0].link, extracted.entries[0].description);
const parsed = parseFeed(xml);
show("@rowanmanning/feed-parser", parsed.url, parsed.items[0].url, parsed.items[0].content);
for await (const item of createReadStream("feed.atom").pipe(new FeedParser())) {
    show("feedparser", item.meta.link, item.link, item.description);
}
JAVASCRIPT
node read.mjs >seen
bin/python - >>seen <<'PYTHON'
import feedparser

feed = feedparser.parse("feed.atom")
[entry] = feed.entries
print("Python's feedparser: feed", feed.feed.link)
print("Python's feedparser: entry", entry.link)
print("Python's feedparser:", entry.content[0].value)
PYTHON
diff - seen <<'SEEN'
rss-parser: feed https://example.org/feed.atom
rss-parser: entry https://example.org/edit/1
rss-parser: <p>one  three<b>two</b></p><p>five</p><ul><li>four</li></ul>
feed-extractor: feed https://example.org/feed.atom
feed-extractor: entry https://example.org/edit/1
feed-extractor: no text
@rowanmanning/feed-parser: feed https://example.org/
@rowanmanning/feed-parser: entry https://example.org/1
@rowanmanning/feed-parser: <p>one <b>two</b> three</p><ul><li>four</li></ul><p>five</p>
feedparser: feed https://example.org/
feedparser: entry https://example.org/1
feedparser: <p>one <b>two</b> three</p><ul><li>four</li></ul><p>five</p>
Python's feedparser: feed https://example.org/
Python's feedparser: entry https://example.org/1
Python's feedparser: <p>one <b>two</b> three</p><ul><li>four</li></ul><p>five</p>
SEEN
