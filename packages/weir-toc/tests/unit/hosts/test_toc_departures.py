"""Calls that wait until what they sent has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest

from weir_toc.errors import NotSent, TocError
from weir_toc.hosts.process import Departures


def in_a_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


@in_a_loop
async def test_a_call_is_over_once_all_of_its_scatterings_have_left_or_never_will() -> None:
    calls = Departures()
    first, second = calls.add(range(1, 5)), calls.add(range(5, 7))
    calls.left_alike(range(2, 4), 70)
    assert calls.left(5, 90)
    assert calls.left(1, 60)
    assert not first.future.done()
    assert calls.left(4, 0, "its receiver has failed")
    assert first.future.result() == [60, 70, 71, 0]
    assert not second.future.done()
    assert calls.left(6, 91)
    assert second.future.result() == [90, 91]


@in_a_loop
async def test_what_has_left_waits_for_nothing_though_others_of_its_call_do() -> None:
    calls = Departures()
    call = calls.add(range(1, 4))
    assert calls.left(2, 0, "why")
    assert not calls.left(2, 0, "told again")  # one scattering may miss several receivers
    assert calls.left(3, 80)
    assert not calls.left(3, 0, "it was lost on the way")
    assert not calls.left(9, 80)
    assert calls.left(1, 79)
    assert call.future.result() == [79, 0, 80]
    assert not calls.left(1, 0, "its call is over")


@in_a_loop
async def test_a_lone_scattering_that_never_leaves_tells_why_not() -> None:
    calls = Departures()
    call = calls.add(range(1, 2))
    assert calls.left(1, 0, "its receiver has failed")
    with pytest.raises(NotSent, match="its receiver has failed"):
        call.future.result()


@in_a_loop
async def test_calls_fail_together_and_wait_for_nothing_after_that() -> None:
    calls = Departures()
    waiting = [calls.add(range(1, 3)).future, calls.add(range(3, 4)).future]
    assert await calls.add(range(4, 4)).future == []
    calls.fail(TocError("it has left"))
    for one in await asyncio.gather(*waiting, return_exceptions=True):
        assert str(one) == "it has left"
    calls.left_alike(range(1, 3), 5)
    assert not calls.left(3, 7)
