"""The memory of responses on their way: shares of clients, shared bodies."""

from hypothesis import given
from hypothesis import strategies as st

from postd.errors import ServerBusyError
from postd.front.response_memory import Holding, ResponseMemory
from postd.http.responses import Memory

MAX = 8000
SHARE = MAX // 8


def own(size: int) -> Memory:
    return size, None, 0


def shared(body: bytes) -> Memory:
    return 0, body, len(body)


def take(memory: ResponseMemory, client: str, wanted: Memory) -> Holding | None:
    """Hold memory for a response if there is room."""
    try:
        memory.require_room(client, wanted)
    except ServerBusyError:
        return None
    return memory.hold(client, wanted)


def count(memory: ResponseMemory, client: str, size: int) -> int:
    """Return how many responses of a size there is room for."""
    number = 0
    while take(memory, client, own(size)):
        number += 1
    return number


def test_client_may_use_an_eighth() -> None:
    memory = ResponseMemory(MAX)
    assert count(memory, "a", 100) == SHARE // 100
    assert memory.used_bytes == SHARE


def test_client_that_holds_nothing_gets_one_response_of_any_size() -> None:
    memory = ResponseMemory(MAX)
    first = take(memory, "a", own(2 * MAX))
    assert first is not None
    assert take(memory, "a", own(1)) is None
    assert take(memory, "b", own(1)) is None
    first.release()
    assert take(memory, "b", own(3 * SHARE)) is not None
    assert take(memory, "a", own(3 * SHARE)) is not None


def test_greedy_clients_leave_room_for_others() -> None:
    memory = ResponseMemory(MAX)
    used = [10 * count(memory, str(client), 10) for client in range(9)]
    assert used[:6] == [SHARE] * 6
    assert min(used) >= SHARE // 4
    assert count(memory, "another", 10) >= 10
    assert memory.used_bytes <= MAX


def test_networks_of_one_site_leave_room_for_others() -> None:
    memory = ResponseMemory(MAX)
    used = sum(100 * count(memory, f"2001:db8:1:{n:x}::/64", 100) for n in range(100))
    assert used <= MAX // 2
    assert count(memory, "192.0.2.1", 100) == SHARE // 100


def test_shared_body_counts_once() -> None:
    memory = ResponseMemory(MAX)
    body = bytes(SHARE - 10)
    holdings = [take(memory, client, shared(body)) for client in "aabbb" for _ in range(100)]
    assert all(holdings)
    assert memory.used_bytes == len(body)
    assert take(memory, "a", shared(bytes(SHARE - 10))) is None
    for holding in holdings:
        assert holding is not None
        holding.release()
    assert memory.used_bytes == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.integers(0, 3000), st.sampled_from([None, 0, 1])),
            st.integers(0, 50),
        ),
        max_size=60,
    )
)
def test_count_is_that_of_what_is_held(operations: list[tuple[str, int, int | None] | int]) -> None:
    memory = ResponseMemory(MAX)
    bodies = [bytes(700), bytes(900)]
    held: list[tuple[str, int, int | None, Holding]] = []
    for operation in operations:
        if isinstance(operation, int):
            if held:
                held.pop(operation % len(held))[3].release()
        else:
            client, size, index = operation
            wanted = size, *((None, 0) if index is None else (bodies[index], len(bodies[index])))
            holding = take(memory, client, wanted)
            if holding is not None:
                held.append((client, size, index, holding))
        used = sum(size for _, size, _, _ in held)
        used += sum(len(bodies[index]) for index in {index for _, _, index, _ in held if index is not None})
        assert memory.used_bytes == used
        assert used <= MAX
    for *_, holding in held:
        holding.release()
    assert memory.used_bytes == 0
    assert count(memory, "z", 100) == SHARE // 100
