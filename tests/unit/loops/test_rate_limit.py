"""The rate limit: which key waits, and how long."""

from deviceshare.loops.queue import RateLimit


def test_few_never_wait() -> None:
    """A turn comes at once while nobody else wants one."""
    turns: RateLimit[str] = RateLimit(10)
    for now in (5.0, 6.0, 7.0):
        assert turns.at("a", now) == now
        turns.over("a")


def test_many_stand_in_line() -> None:
    """Each a tenth of a second after the one before, in the order in which they asked."""
    turns: RateLimit[int] = RateLimit(10)
    assert [round(turns.at(key, 5.0), 6) for key in range(3)] == [5.0, 5.1, 5.2]


def test_asking_again_does_not_move_a_turn() -> None:
    """A group is looked at again and again while it waits."""
    turns: RateLimit[str] = RateLimit(10)
    turns.at("a", 5.0)
    given = turns.at("b", 5.0)
    assert [turns.at("b", now) for now in (5.05, 9.0)] == [given, given]


def test_a_turn_is_good_once() -> None:
    """Whoever had it stands in line again."""
    turns: RateLimit[str] = RateLimit(10)
    turns.at("a", 5.0)
    turns.over("a")
    assert round(turns.at("a", 5.0), 6) == 5.1
