"""Turns at the event loop."""

import asyncio

from deviceshare.web.crowd import AddressTurns


async def test_who_comes_alone_does_not_wait() -> None:
    """Nearly always."""
    turns = AddressTurns()
    coming = turns.turn("a")
    try:
        coming.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


async def test_addresses_take_turns_whoever_sent_more() -> None:
    """The API server's one request is answered second, not behind a hundred."""
    turns, order = AddressTurns(), list[str]()

    async def answer(address: str) -> None:
        await turns.turn(address)
        order.append(address)

    works = [asyncio.create_task(answer("stranger")) for _ in range(100)]
    works.append(asyncio.create_task(answer("api-server")))
    await asyncio.gather(*works)

    assert order.index("api-server") <= 2
    assert len(order) == 101


async def test_between_two_turns_the_loop_runs() -> None:
    """Else a newcomer's request would not even be read."""
    turns, seen = AddressTurns(), list[str]()

    async def answer(number: int) -> None:
        await turns.turn("stranger")
        seen.append(f"answer {number}")
        asyncio.get_running_loop().call_soon(seen.append, "loop")

    await asyncio.gather(*(answer(number) for number in range(3)))

    assert seen[:5] == ["answer 0", "loop", "answer 1", "loop", "answer 2"]


async def test_who_gave_up_is_passed_over() -> None:
    """And holds up nobody."""
    turns, order = AddressTurns(), list[int]()

    async def answer(number: int) -> None:
        await turns.turn("stranger")
        order.append(number)

    works = [asyncio.create_task(answer(number)) for number in range(4)]
    await asyncio.sleep(0)
    works[2].cancel()
    await asyncio.gather(*works, return_exceptions=True)

    assert order == [0, 1, 3]
    await asyncio.wait_for(turns.turn("other"), 10)


async def test_tenants_of_one_address_take_turns() -> None:
    """The API server asks for everybody: one namespace's hundred large pods delay another's pod by two."""
    turns, order = AddressTurns(), list[str]()

    async def answer(tenant: str) -> None:
        await turns.turn("api-server", tenant)
        order.append(tenant)

    works = [asyncio.create_task(answer("stranger")) for _ in range(100)]
    works.append(asyncio.create_task(answer("team")))
    await asyncio.gather(*works)

    assert order.index("team") <= 2
    assert len(order) == 101
