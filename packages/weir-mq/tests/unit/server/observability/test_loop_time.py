"""The stages of a loop are seen while it works, and nothing while it waits."""

from __future__ import annotations

import asyncio
import sys

from weir.model.batch_builder import encode
from weir.server.observability.loop_time import Stages, stage_of


def test_the_deepest_package_of_a_stack_is_its_stage() -> None:
    seen = []

    class Values(list[bytes]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            seen.append(stage_of(sys._getframe()))
            return super().__iter__()

    encode(Values([b"v"]), group=65_536, producer=1, epoch=1, sequence=0)
    assert set(seen) == {"model"}
    assert stage_of(sys._getframe()) == ""
    assert stage_of(None) == ""


def test_a_loop_that_works_is_seen_at_work_and_one_that_waits_is_not() -> None:
    async def sampled(seconds: float, *, works: bool) -> tuple[float, int]:
        stages = Stages()
        sampling = asyncio.create_task(stages.sample(seconds))
        values = [b"v" * 100] * 500
        while not sampling.done():
            # A turn of one batch ends so soon that a busy machine samples only the waits between.
            for _ in range(100 if works else 0):
                encode(values, group=65_536, producer=1, epoch=1, sequence=0)
            await asyncio.sleep(0 if works else 0.01)
            assert await stages.sample(0.1) is None or sampling.done(), "one at a time"
        found = await sampling
        assert found is not None
        return found.works, found.stages["model"]

    # On a busy machine the sampling thread may not get a processor for a second.
    for seconds in (0.6, 3.0, 15.0, 60.0):
        works, seen = asyncio.run(sampled(seconds, works=True))
        if seen > 3:
            break
    idle, unseen = asyncio.run(sampled(0.6, works=False))
    assert seen > 3
    assert unseen == 0
    assert works > idle
