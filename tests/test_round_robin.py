"""The fair line: the order of service between clients."""

from hfjax_app.round_robin import RoundRobin


def line_of(items: str) -> RoundRobin[str]:
    """A line of items such as "a1": the letter is the client."""
    line: RoundRobin[str] = RoundRobin(lambda item: item[0])
    for item in items.split():
        line.append(item)
    return line


def test_one_client_is_served_in_order() -> None:
    assert line_of("a1 a2 a3") == ["a1", "a2", "a3"]


def test_clients_take_turns() -> None:
    assert line_of("a1 a2 a3 a4 b1 c1 b2") == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_client_with_fifty_holds_up_one_with_one_for_one_turn() -> None:
    line = line_of(" ".join(f"a{number}" for number in range(50)))
    for _ in range(20):
        line.pop(0)
    line.append("b0")
    assert line[:3] == ["a20", "b0", "a21"]


def test_a_client_that_was_served_keeps_no_advantage_and_no_debt() -> None:
    line = line_of("a1 b1 a2")
    line.remove("a1")
    line.remove("b1")
    line.append("b2")  # its turn comes after b1's, with a2
    assert line == ["a2", "b2"]
    line.clear()
    line.append("a9")
    line.append("b9")
    assert line == ["a9", "b9"]
