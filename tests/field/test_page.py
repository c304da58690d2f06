"""The page of compatibility, its results and its entries agree; programs are run by `python -m tests.field` only."""

from datetime import date

from tests.cases import each
from tests.field.__main__ import is_current, outcome
from tests.field.entries import PAGE, ROOT, Other, Result, make_page, read_clients, read_others, read_results
from tests.field.recorder import Exchange, pair

CLIENTS, OTHERS, RESULTS = read_clients(), read_others(), read_results()
ENTRIES = {entry.name: entry for entry in (*CLIENTS, *OTHERS)}

BASIC = b"Authorization: Basic YTpi\r\n"


def exchange(fields: bytes, status: int, target: str = "/digest") -> Exchange:
    return Exchange("GET", target, fields, status)


def digest(response: str, algorithm: str = "") -> bytes:
    return f'authorization: Digest username="a", response="{response}"{algorithm}\r\n'.encode()


def test_page_is_made_of_the_results() -> None:
    assert PAGE.read_text() == make_page(CLIENTS, OTHERS, RESULTS), "run python -m tests.field"


def test_names_of_entries_are_unique() -> None:
    assert len(ENTRIES) == len(CLIENTS) + len(OTHERS)


def test_results_are_of_the_present_commands() -> None:
    """After a change of an entry, `python -m tests.field` runs it again."""
    assert {name: result.definition for name, result in RESULTS.items()} == {
        name: ENTRIES[name].definition for name in RESULTS
    }


def test_results_of_clients_are_the_expected_ones() -> None:
    expected = {client.name: client.expected for client in CLIENTS if client.name in RESULTS}
    assert {name: RESULTS[name].outcomes for name in expected} == expected


@each("other", OTHERS)
def test_test_of_the_entry_exists(other: Other) -> None:
    for test in other.test:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text() if name else (ROOT / file).is_file()


def test_old_and_changed_results_are_not_current() -> None:
    entry = CLIENTS[0]
    result = Result("2026-11-28", entry.definition, "1.0", {})
    assert is_current(entry, result, date(2026, 11, 28))
    assert not is_current(entry, None, date(2026, 11, 28))
    assert not is_current(entry, result, date(2027, 11, 28))
    assert not is_current(CLIENTS[1], result, date(2026, 11, 28))


def test_used_algorithm_is_that_of_the_hash() -> None:
    """Lftp sends a hash of MD5 under the name of SHA-256."""
    md5, sha256 = "0" * 32, "0" * 64
    assert exchange(BASIC, 200).credentials == "Basic"
    assert exchange(digest(md5), 200).credentials == "MD5"
    assert exchange(digest(sha256, ", algorithm=SHA-256"), 200).credentials == "SHA-256"
    assert exchange(digest(md5, ', algorithm="SHA-256"'), 200).credentials == "MD5 named SHA-256"


def test_outcome_is_the_choice_or_whether_it_was_accepted() -> None:
    assert outcome("basic", [exchange(b"", 401), exchange(BASIC, 200)]) == "yes"
    assert outcome("all", [exchange(b"", 401), exchange(BASIC, 200)]) == "Basic"
    assert outcome("md5", [exchange(digest("0" * 32), 401)]) == "no"
    assert outcome("form", [exchange(b"Cookie: session=x\r\n", 200, "/home")]) == "yes"
    assert outcome("form", [exchange(b"", 302, "/home")]) == "no"


def test_requests_and_statuses_of_a_connection_are_paired() -> None:
    sent = b"POST /login HTTP/1.1\r\nHost: a\r\n\r\nname=aGET /home HTTP/1.1\r\nCookie: session=x\r\n\r\n"
    received = b"HTTP/1.1 302 Found\r\n\r\nbodyHTTP/1.1 200 OK\r\n\r\n"
    assert [(one.method, one.target, one.status) for one in pair(sent, received)] == [
        ("POST", "/login", 302),
        ("GET", "/home", 200),
    ]
