#!/usr/bin/env bash
# A field `Link` is a list: empty elements are skipped (RFC 9110 section 5.6.1). Spaces are allowed around the `=` of a
# parameter, and a quoted value may have commas, semicolons and escaped quotes (RFC 8288 section 3 and appendix B).
#
# One would expect: the packages of npm that parse this field find the next page in each of these, and its title.
# Seen with parse-link-header 2.0.0 and li 1.3.0: with spaces around the `=` they find no link; li finds none after an
# empty element, and http-link-header 1.1.4 throws there; parse-link-header cuts a title at its first semicolon.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund parse-link-header@2.0.0 http-link-header@1.1.4 li@1.3.0
cat >parse.mjs <<'JAVASCRIPT'
import LinkHeader from "http-link-header";
import li from "li";
import parseLinkHeader from "parse-link-header";

for (const field of [
    '<https://a.example/2>; rel="next"; title="Page 2"',
    '<https://a.example/2>; rel = "next"; title = "Page 2"',
    ', <https://a.example/2>; rel="next"; title="Page 2"',
    '<https://a.example/2>; rel="next"; title="Page 2; the last"',
]) {
    const parsers = {
        "parse-link-header": () => parseLinkHeader(field)?.next,
        "http-link-header": () => LinkHeader.parse(field).rel("next")[0],
        li: () => li.parse(field, { extended: true }).find((link) => link.rel?.includes("next")),
    };
    console.log(field);
    for (const [name, parse] of Object.entries(parsers)) {
        try {
            const link = parse();
            console.log(`    ${name}: ${link ? `"${link.title}"` : "no next page"}`);
        } catch (error) {
            console.log(`    ${name}: ${error.message}`);
        }
    }
}
JAVASCRIPT
node parse.mjs >seen
diff - seen <<'SEEN'
<https://a.example/2>; rel="next"; title="Page 2"
    parse-link-header: "Page 2"
    http-link-header: "Page 2"
    li: "Page 2"
<https://a.example/2>; rel = "next"; title = "Page 2"
    parse-link-header: no next page
    http-link-header: "Page 2"
    li: no next page
, <https://a.example/2>; rel="next"; title="Page 2"
    parse-link-header: "Page 2"
    http-link-header: Unexpected character "," at offset 0
    li: no next page
<https://a.example/2>; rel="next"; title="Page 2; the last"
    parse-link-header: "Page 2"
    http-link-header: "Page 2; the last"
    li: "Page 2; the last"
SEEN
