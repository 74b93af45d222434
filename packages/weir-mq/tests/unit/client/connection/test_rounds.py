"""Who asks the same now and then asks it together with all others of its client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weir.client.connection.network_client import Rounds
from weir.errors import Disconnected

_HOUR = 3_600.0


def test_all_who_wait_go_on_in_one_turn_as_soon_as_the_first_of_them_has_to() -> None:
    async def body() -> None:
        loop, rounds = asyncio.get_running_loop(), Rounds()
        turns = 0
        woken: list[tuple[int, float]] = []

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def wait(seconds: float) -> None:
            await rounds.wait(seconds)
            woken.append((turns, loop.time()))

        began = loop.time()
        tasks = [asyncio.create_task(wait(0.2))]
        for seconds in (0.3, _HOUR):
            await asyncio.sleep(0.03)
            tasks.append(asyncio.create_task(wait(seconds)))
        counting = asyncio.create_task(count())
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
        counting.cancel()
        assert len({turn for turn, _ in woken}) == 1
        assert min(at for _, at in woken) - began >= 0.19
        # The next round is another one.
        again = loop.time()
        async with asyncio.timeout(20):
            await rounds.wait(0.05)
        assert loop.time() - again >= 0.04

    asyncio.run(body())


def test_a_round_for_which_nobody_waits_any_more_does_not_come() -> None:
    async def body() -> None:
        loop, rounds = asyncio.get_running_loop(), Rounds()
        waiting = [asyncio.create_task(rounds.wait(_HOUR)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        late = asyncio.create_task(rounds.wait(0.01))
        await asyncio.sleep(0.1)
        assert not late.done(), "the round of who still waits is an hour away"
        for one in (late, waiting[1]):
            one.cancel()
        await asyncio.wait([late, waiting[1]])
        began = loop.time()
        async with asyncio.timeout(20):
            await rounds.wait(0.05)  # no timer of the earlier ones is left
        assert loop.time() - began >= 0.04

    asyncio.run(body())


class Broker:
    """Answers each question once it is let to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def ask(self) -> Any:
        self.asked += 1
        return await asyncio.shield(self.answers)


def test_what_several_want_to_know_is_asked_once_and_anew_once_it_was_answered() -> None:
    async def body() -> None:
        rounds, broker = Rounds(), Broker()
        asking = [asyncio.create_task(rounds.share("t", broker.ask)) for _ in range(3)]
        asking.append(asyncio.create_task(rounds.share("u", broker.ask)))
        await asyncio.sleep(0.01)
        assert broker.asked == 2, "another topic is another question"
        broker.answers.set_result("here")
        async with asyncio.timeout(20):
            assert set(await asyncio.gather(*asking)) == {"here"}
            await rounds.share("t", broker.ask)
        assert broker.asked == 3

    asyncio.run(body())


def test_an_error_is_told_to_all_who_asked_and_one_who_gives_up_takes_nobody_along() -> None:
    async def body() -> None:
        rounds, broker = Rounds(), Broker()
        asking = [asyncio.create_task(rounds.share("t", broker.ask)) for _ in range(4)]
        await asyncio.sleep(0.01)
        asking[0].cancel()  # it had asked
        asking[3].cancel()  # it waited for that
        await asyncio.sleep(0.01)
        assert broker.asked == 2, "one of the others asks"
        assert not asking[1].done()
        assert not asking[2].done()
        broker.answers.set_exception(Disconnected("cut"))
        for one in asking[1:3]:
            with pytest.raises(Disconnected):
                await asyncio.wait_for(one, 20)
        assert asking[3].cancelled()

    asyncio.run(body())
