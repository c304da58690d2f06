"""The drawings of the architecture as SVG: the floor plan of the packages, and the walks of two requests."""

from collections.abc import Sequence
from html import escape

FLOORS: Sequence[Sequence[tuple[str, str]]] = (
    (("testing", "servers, issuers, users for tests"), ("cli", "the command postd")),
    (("daemon", "processes, signals, reload, composition"),),
    (("web", "the URLs of postd: the API, the board, the pages"),),
    (
        ("protect", "the guard, the schemes, the form"),
        ("front", "the HTTP server: connections, requests"),
    ),
    (("http", "requests and responses as values, errors, views as coroutines"),),
    (("auth", "credentials to identities"), ("settings", "the settings file"), ("client", "HTTP clients")),
    (("net", "endpoints, TLS, fetching"), ("store", "SQLite, Redis, memory"), ("fair_queue", "turns by client")),
    (("protocol", "what RFCs define: values in, values out"),),
    (
        ("model", "posts, changes, versions"),
        ("caching", "cache, single flight"),
        ("monitoring", "counters, health"),
        ("credential_files", "secrets, certificates"),
    ),
    (("errors", ""), ("defaults", ""), ("scheme_names", ""), ("linux", ""), ("reactor", ""), ("twisted_private", "")),
)
"""The packages and modules of postd with their purposes. Each imports only from floors below its own."""

WITHOUT_TWISTED = {"settings", "protocol", "model", "errors", "defaults", "scheme_names", "linux"}

DIGEST_LANES = ("client", "front", "protect", "auth", "store")
DIGEST_STEPS = (
    (0, 1, "GET /digest, Authorization: Digest …"),
    (1, 1, "decode the head, check Host"),
    (1, 2, "find guard and view by method and path"),
    (2, 2, "decode the response, compare its uri"),
    (2, 3, "credentials"),
    (3, 4, "throttle: failures of account and address"),
    (3, 3, "response and rspauth by H(A1), compare"),
    (3, 4, "use the nonce count: one bit, group commit"),
    (4, 3, "first use of this count"),
    (3, 2, "identity, rspauth"),
    (2, 1, "the protected resource"),
    (1, 0, "200, Authentication-Info; a line in the access log"),
)

POST_LANES = ("client", "front", "web", "store", "writer thread")
POST_STEPS = (
    (0, 1, "POST /post, JSON body"),
    (1, 1, "decode head and body, within the limits"),
    (1, 2, "request with its whole body"),
    (2, 2, "decode the JSON, check the text"),
    (2, 2, "hold the Idempotency-Key"),
    (2, 3, "add_post"),
    (3, 3, "queue the write for the next batch"),
    (3, 4, "all queued writes, up to 512"),
    (4, 4, "wait for the turn among processes"),
    (4, 4, "BEGIN; posts, change log, version; COMMIT"),
    (4, 4, "fsync of the write-ahead log"),
    (4, 3, "an outcome for each write"),
    (3, 2, "the id"),
    (2, 1, "201, Location: /post/<id>"),
    (1, 0, "the response"),
)

_STYLE = """
text { font: 14px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.name { font-weight: bold } .small { font-size: 13px; fill: #59636e } .number { font-size: 11px; fill: #fff }
.label { paint-order: stroke; stroke: #fff; stroke-width: 5px }
.paper { fill: #fff; stroke: #d0d7de } .box { fill: #ddf4ff; stroke: #54aeff } .free { fill: #dafbe1; stroke: #4ac26b }
.lane { stroke: #d0d7de; stroke-dasharray: 4 4 } .arrow { stroke: #0969da; fill: none } .head, .dot { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .number { fill: #0d1117 } .label { stroke: #0d1117 }
  .paper { fill: #0d1117; stroke: #3d444d } .box { fill: #0c2d4d; stroke: #388bfd }
  .free { fill: #10331c; stroke: #3fb950 } .lane { stroke: #3d444d } .arrow { stroke: #79c0ff }
  .head, .dot { fill: #79c0ff }
}"""


def draw_floor_plan() -> str:
    """Return the floor plan of the packages as SVG."""
    width, margin, floor, gap = 760, 16, 52, 8
    drawn = []
    for level, boxes in enumerate(FLOORS):
        box_width = (width - 2 * margin - gap * (len(boxes) - 1)) / len(boxes)
        y = margin + level * (floor + gap)
        for place, (name, purpose) in enumerate(boxes):
            x = margin + place * (box_width + gap)
            kind = "free" if name in WITHOUT_TWISTED else "box"
            middle = x + box_width / 2
            drawn.append(f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{box_width:.1f}" height="{floor}" rx="6"/>')
            drawn.append(_text(middle, y + (22 if purpose else 31), name, "name"))
            if purpose:
                drawn.append(_text(middle, y + 41, purpose, "small"))
    bottom = margin + len(FLOORS) * (floor + gap) + 14
    drawn.append(_text(width / 2, bottom, "A package imports only from floors below. Green: without Twisted.", "small"))
    return _frame(drawn, width, bottom + margin, "The packages of postd, by floors")


def draw_walk(title: str, lanes: Sequence[str], steps: Sequence[tuple[int, int, str]]) -> str:
    """Return a sequence diagram as SVG; a step is the lane that it begins in, the lane that it leads to, and a text."""
    lane_width, margin, top, row = 152, 16, 56, 42
    centers = [margin + lane_width * (place + 0.5) for place in range(len(lanes))]
    width, height = 2 * margin + lane_width * len(lanes), top + row * len(steps) + margin
    drawn = []
    for center, name in zip(centers, lanes, strict=True):
        drawn.append(f'<rect class="box" x="{center - 64}" y="{margin}" width="128" height="32" rx="6"/>')
        drawn.append(_text(center, margin + 21, name, "name"))
        drawn.append(f'<path class="lane" d="M{center} {top - 8}V{height - margin}"/>')
    for number, (start, end, words) in enumerate(steps, 1):
        y, x = top + row * number - 12, centers[start]
        if start != end:
            side = 1 if start < end else -1
            drawn.append(f'<path class="arrow" d="M{x} {y}H{centers[end] - 6 * side}"/>')
            drawn.append(f'<path class="head" d="M{centers[end]} {y}l{-9 * side} -4v8z"/>')
        drawn.append(f'<circle class="dot" cx="{x}" cy="{y}" r="9"/>')
        drawn.append(_text(x, y + 4, str(number), "number"))
        # Above an arrow, beside a dot; toward the middle of the drawing, where there is room.
        left, right = sorted((start, end))
        begin, anchor = (centers[left] + 14, "start") if left < len(lanes) / 2 else (centers[right] - 14, "end")
        drawn.append(_text(begin, y + 5 if start == end else y - 11, words, "label", anchor))
    return _frame(drawn, width, height, title)


def _text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _frame(drawn: Sequence[str], width: float, height: float, title: str) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}\n</style>",
            f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )


DRAWINGS = {
    "packages": draw_floor_plan(),
    "digest-request": draw_walk("A Digest request, from the client and back", DIGEST_LANES, DIGEST_STEPS),
    "post-request": draw_walk("A POST, from the client to the disk and back", POST_LANES, POST_STEPS),
}
"""The drawings by the names of their files."""
