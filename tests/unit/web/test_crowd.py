"""Who has to make room on a server that is full."""

from deviceshare.web.crowd import Crowd


class Someone:
    """A connection of this address; `dropped` says why it was ended."""

    def __init__(self, crowd: Crowd, address: str = "stranger") -> None:
        self.address = address
        self.answered = False
        self.dropped = ""
        self.inside = crowd.enter(self)

    def drop(self, reason: str) -> None:
        self.dropped = reason


def a_crowd(*, connections: int = 3, request: int = 100, at_once: int = 250, per_address: int = 0) -> Crowd:
    return Crowd(connections, request, at_once, per_address)


def test_a_newcomer_takes_the_place_of_the_eldest_of_who_has_most() -> None:
    """Whoever fills the server loses what is theirs."""
    crowd = a_crowd()
    first, second, api_server = Someone(crowd), Someone(crowd), Someone(crowd, "api-server")
    newcomer = Someone(crowd, "other")

    assert newcomer.inside
    assert [each.dropped for each in (first, second, api_server)] == ["crowded", "", ""]
    assert crowd.size == 3


def test_a_stranger_who_has_most_displaces_their_own() -> None:
    """However often they come."""
    crowd = a_crowd()
    api_server = Someone(crowd, "api-server")
    strangers = [Someone(crowd) for _ in range(50)]

    assert api_server.dropped == ""
    assert [each.dropped for each in strangers] == ["crowded"] * 48 + ["", ""]


def test_an_address_has_no_more_than_its_own_limit() -> None:
    """Though there is room; its eldest makes place, and none where all are being answered."""
    crowd = a_crowd(connections=10, per_address=2)
    other = Someone(crowd, "other")
    strangers = [Someone(crowd) for _ in range(3)]
    assert [each.dropped for each in (other, *strangers)] == ["", "crowded", "", ""]
    for each in strangers:
        each.answered = True

    assert not Someone(crowd).inside
    assert Someone(crowd, "other").inside
    assert [each.dropped for each in (other, *strangers)] == ["", "crowded", "", ""]
    assert crowd.size == 4


def test_who_is_just_being_answered_stays_and_the_newcomer_does_not() -> None:
    """Their place is free in a moment."""
    crowd = a_crowd()
    busy = [Someone(crowd) for _ in range(3)]
    for each in busy:
        each.answered = True

    assert not Someone(crowd, "other").inside
    assert [each.dropped for each in busy] == ["", "", ""]
    assert crowd.size == 3


def test_who_ended_a_request_waits_behind_the_others() -> None:
    """The eldest is who has been silent for longest, not who came first."""
    crowd = a_crowd(connections=2)
    first, second = Someone(crowd), Someone(crowd)
    crowd.take(first, 1)
    crowd.settle(first)

    Someone(crowd)
    assert (first.dropped, second.dropped) == ("", "crowded")


def test_bytes_are_bounded_over_all_and_who_holds_most_makes_room() -> None:
    """A small review still comes through while a stranger holds the rest."""
    crowd = a_crowd(connections=10)
    hogs = [Someone(crowd) for _ in range(2)]
    for each in hogs:
        assert crowd.take(each, 100)
    api_server = Someone(crowd, "api-server")

    assert crowd.take(api_server, 60)
    assert [each.dropped for each in (*hogs, api_server)] == ["crowded", "", ""]
    assert crowd.held == 160


def test_of_an_address_the_largest_request_makes_room() -> None:
    """The API server's small review, though it came first, isn't dropped for the large ones beside it."""
    crowd = a_crowd(connections=10)
    small, *large = (Someone(crowd, "api-server") for _ in range(4))
    assert crowd.take(small, 10)
    for each in large:
        crowd.take(each, 100)

    assert small.dropped == ""
    assert sum(each.dropped == "crowded" for each in large) == 1


def test_one_request_is_bounded_too() -> None:
    """Also one that comes in many pieces."""
    crowd = a_crowd()
    someone = Someone(crowd)

    assert crowd.take(someone, 60)
    assert not crowd.take(someone, 60)


def test_who_left_holds_nothing() -> None:
    """Whichever way they left, and however often that is told."""
    crowd = a_crowd()
    someone = Someone(crowd)
    crowd.take(someone, 50)
    crowd.leave(someone)
    crowd.leave(someone)

    assert (crowd.size, crowd.held) == (0, 0)
    assert not crowd.take(someone, 1)
