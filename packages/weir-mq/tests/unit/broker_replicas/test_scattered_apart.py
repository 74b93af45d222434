"""A participant of a scattering is cut off between its prepare and the decision."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.part_questions import ask_part
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import batch_part
from weir.protocol.client import messages as m
from weir.protocol.client.order import Decide, Standing, Step

#: Longer than a recovery waits for an answer.
APART_MS = 7_000


@pytest.mark.parametrize("is_told", [False, True])
def test_who_was_cut_off_behind_its_prepare_decides_as_all_do(trio: Any, is_told: bool) -> None:
    """Nobody can say what a part holds that is not reached: it is committed once it is. The client
    of the coordinator, which is gone, may have been told so.
    """
    info, grant = trio.topic("t", 3, replicas=1), trio.producer()
    trio.run(2_000)  # groups are spread evenly, and move no more
    leaders = {address.group: trio.leader(address.group) for address in info.addresses}
    away, *near = leaders
    near = [group for group in near if leaders[group] is not leaders[away]]
    groups = sorted([away, *near])
    assert len(groups) >= 2
    addresses = {address.group: address for address in info.addresses}
    numbers = tuple(sorted(map(batch_part, groups)))
    ids = grant.producer, grant.epoch, 0, (trio.clock.wall + 5) << 16

    def part(group: int, request: m.Prepare | Decide) -> Any:
        told: list[Any] = []
        node = leaders[group]
        ask_part(node.shard, request, told.append)
        node.do(node.shard.run_deferred())
        return trio.until(lambda: told)[0]

    for group in groups:
        data = encode(
            [b"x"], group=group, producer=grant.producer, epoch=grant.epoch, sequence=0,
            scattered=Scattered(0, numbers),
        )  # fmt: skip
        prepared = part(group, m.Prepare(addresses[group], *ids, numbers, bytes(data)))
        assert prepared.standing == Standing.PREPARED
    trio.isolate(leaders[away].id)
    if is_told:
        decided = part(near[0], Decide(addresses[near[0]], *ids, False, Step.COMMIT))
        assert decided.standing == Standing.COMMITTED
    trio.run(APART_MS)
    trio.heal()
    machines = [leaders[group].group(group).machine for group in groups]
    trio.until(
        lambda: not any(machine.state.scatterings.batches for machine in machines),
        "it is never decided",
    )
    assert [leaders[group].messages(group) for group in groups] == [[b"x"]] * len(groups)
    assert [machine.state.decided_offset for machine in machines] == [1] * len(groups)
    assert not any(machine.state.voids for machine in machines)
