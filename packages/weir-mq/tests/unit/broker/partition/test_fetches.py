"""What a fetch is answered where several batches have one stamp."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.partition import fetches
from weir.broker.partition.fetches import check_equal_stamps
from weir.errors import BadRequest
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

ADDRESS = Address(0, 0, 1 << 16)


def test_only_who_knows_of_equal_stamps_is_answered_with_them() -> None:
    earlier, this = m.Fetch(ADDRESS, 7, 100), m.Fetch(ADDRESS, 7, 100, equal_stamps=True)
    for request, is_alike in ((earlier, False), (this, False), (this, True)):
        check_equal_stamps(request, is_alike)
    with pytest.raises(BadRequest, match="offset 7 on have one stamp"):
        check_equal_stamps(earlier, True)


def test_a_client_of_an_earlier_release_is_refused_in_one_sentence(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"one"))
    monkeypatch.setattr(
        fetches, "check_equal_stamps", lambda request, _: check_equal_stamps(request, True)
    )
    refused = rig.answer(1, m.Fetch(info.addresses[0], 0, 100))
    assert isinstance(refused, m.Refusal)
    assert refused.code == BadRequest.code
    assert "upgrade" in refused.message
    fetched = rig.answer(1, m.Fetch(info.addresses[0], 0, 100, equal_stamps=True))
    assert isinstance(fetched, m.Fetched)
    assert (fetched.is_cut, fetched.next_offset) == (False, 1)


def test_who_waits_in_partition_0_is_told_at_once_of_partitions_that_join(rig: Any) -> None:
    info = rig.topic(rig.connect(), partitions=2)
    first, second = (rig.ask(1, m.Fetch(at, 0, 100, wait_ms=60_000)) for at in info.addresses)
    rig.answer(1, a.AlterTopic("t", partitions=3))
    rig.settle()
    told = {number: reply for number, reply in rig.replies[1] if number in (first, second)}
    assert [*told] == [first]
    assert (told[first].partitions, told[first].next_offset, told[first].batches) == (3, 0, ())
