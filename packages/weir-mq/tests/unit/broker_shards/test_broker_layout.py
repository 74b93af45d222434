"""Where groups lie: by the number of logs alone, spread over all of them."""

from __future__ import annotations

import pytest

from weir.broker.api.settings import Layout
from weir.model.ids import REGISTRY_GROUP, Address, group_of


@pytest.mark.parametrize("logs", [1, 2, 3, 8])
def test_a_group_never_changes_its_log_whatever_the_shards(logs: int) -> None:
    groups = [group_of(topic, p) for topic in range(1, 9) for p in range(9)]
    places = [[Layout(logs, shards).log_of(g) for g in groups] for shards in range(1, logs + 1)]
    assert all(one == places[0] for one in places)


@pytest.mark.parametrize("logs", [1, 2, 3, 8])
def test_partitions_and_topics_spread_over_all_logs(logs: int) -> None:
    layout = Layout(logs, 1)
    assert {layout.log_of(group_of(5, p)) for p in range(logs)} == set(range(logs))
    assert {layout.log_of(group_of(t, 0)) for t in range(1, logs + 1)} == set(range(logs))


@pytest.mark.parametrize(("logs", "shards"), [(1, 1), (4, 1), (4, 3), (5, 2), (8, 8)])
def test_each_log_has_one_shard_and_each_shard_a_log(logs: int, shards: int) -> None:
    layout = Layout(logs, shards)
    dealt = [log for shard in range(shards) for log in layout.logs_of(shard)]
    assert sorted(dealt) == list(range(logs))
    assert all(layout.logs_of(shard) for shard in range(shards))
    group = group_of(7, 3)
    address = layout.place(group)
    assert address == Address(layout.shard_of(group), layout.log_of(group), group)
    assert address.log in layout.logs_of(address.shard)


def test_the_registry_is_led_by_the_shard_of_the_first_log() -> None:
    assert Layout(4, 3).log_of(REGISTRY_GROUP) == 0
    assert Layout(4, 3).registry_shard == 0
