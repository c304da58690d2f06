from http import HTTPStatus

from postd.http.responses import phrase
from tests.cases import each


@each(
    "status, expected",
    [
        (200, "OK"),
        (413, "Content Too Large"),
        (414, "URI Too Long"),
        (416, "Range Not Satisfiable"),
        (422, "Unprocessable Content"),
    ],
)
def test_reason_phrases_are_those_of_rfc_9110_on_each_version_of_python(status: int, expected: str) -> None:
    assert phrase(HTTPStatus(status)) == expected
