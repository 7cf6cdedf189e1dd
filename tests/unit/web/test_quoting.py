"""What strangers sent, as it may be shown."""

from deviceshare.web.messages import LONGEST, Repeats, quoted


def test_a_quotation_is_bounded_and_prints() -> None:
    """Escape codes would reach a terminal, and megabytes a disk."""
    assert quoted("as it is") == "as it is"
    assert quoted("\x1b[31m\n\u202e") == r"\x1b[31m\n\u202e"
    assert len(quoted("\x00" * 10_000_000)) < LONGEST + 40
    assert quoted("x" * 201) == "x" * 200 + "… (201 characters)"


def test_a_line_is_let_through_once_in_a_while_and_tells_how_many_were_not() -> None:
    """Each kind for itself."""
    repeats, again = Repeats(pause=3600), Repeats(pause=0)
    lines: list[tuple[str, dict[str, object]]] = []

    def log(text: str, **fields: object) -> None:
        lines.append((text, fields))

    for text in ("a", "a", "a", "b"):
        repeats.write(log, text, path="/")
    assert lines == [("a", {"path": "/"}), ("b", {"path": "/"})]
    lines.clear()
    for _ in range(2):
        again.write(log, "a")
    again._last["a"] = (again._last["a"][0], 7)
    again.write(log, "a", path="/")
    assert lines == [("a", {}), ("a", {}), ("a", {"path": "/", "omitted": 7})]
