"""Group ids and addresses."""

from __future__ import annotations

import pytest

from weir.model.ids import (
    ADDRESS,
    LIMIT_MAX,
    NODE_MAX,
    PARTITIONS_MAX,
    REGISTRY_GROUP,
    granted_at,
    group_of,
    node_of,
    partition_of,
    place_node,
    place_of,
    place_shard,
    producer_of,
    topic_of,
    voter_of,
    window_of,
)


@pytest.mark.parametrize("topic", [1, 2, 2**40])
@pytest.mark.parametrize("partition", [0, 1, PARTITIONS_MAX - 1])
def test_a_group_is_its_topic_and_partition(topic: int, partition: int) -> None:
    group = group_of(topic, partition)
    assert (topic_of(group), partition_of(group)) == (topic, partition)
    assert group != REGISTRY_GROUP


@pytest.mark.parametrize(("topic", "partition"), [(0, 0), (-1, 0), (1, -1), (1, PARTITIONS_MAX)])
def test_what_has_no_group_is_refused(topic: int, partition: int) -> None:
    with pytest.raises(ValueError, match="no group"):
        group_of(topic, partition)


def test_an_address_takes_sixteen_bytes_so_that_batches_stay_aligned() -> None:
    assert ADDRESS.size == 16


@pytest.mark.parametrize("node", [1, 2, NODE_MAX])
@pytest.mark.parametrize("low", [0, 1, 65_535])
def test_a_voter_and_a_place_tell_their_node(node: int, low: int) -> None:
    assert node_of(voter_of(node, low)) == node
    assert (place_node(place_of(node, low)), place_shard(place_of(node, low))) == (node, low)
    assert voter_of(node, low) < 1 << 63


def test_a_place_of_this_node_is_its_shard() -> None:
    assert [place_of(0, shard) for shard in range(3)] == [0, 1, 2]
    assert place_node(65_535) == 0


def test_a_producer_id_says_its_window() -> None:
    for asked, window in ((1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (33, 64), (64, 64), (65, 64)):
        producer = producer_of(77 << 16, asked)
        assert window_of(producer) == window
        assert granted_at(producer) == 77 << 16
        assert 0 < producer <= LIMIT_MAX
    assert producer_of(77 << 16) == 77 << 16
    assert window_of(77 << 16) == 64


def test_a_producer_id_with_a_window_has_60_bits_for_its_stamp() -> None:
    assert producer_of((1 << 60) - 1, 1) == (1 << 61) - 1
    with pytest.raises(ValueError, match="too far ahead"):
        producer_of(1 << 60, 1)
