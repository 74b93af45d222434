"""Group ids and addresses."""

from __future__ import annotations

import pytest

from weir.model.ids import (
    ADDRESS,
    PARTITIONS_MAX,
    REGISTRY_GROUP,
    group_of,
    partition_of,
    topic_of,
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
