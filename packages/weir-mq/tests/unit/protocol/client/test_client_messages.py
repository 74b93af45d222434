"""Control bodies: fields may only be added at the end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from weir.model.ids import Address
from weir.model.limits import CLIENT_FRAME_BYTES_MAX
from weir.model.topic import SettingsChange, TopicSettings
from weir.protocol.client import messages as m
from weir.protocol.client.codec import body_bytes_max
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.sinks import Publish, Stage

ADDRESS = [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (m.Hello, ["python"], m.Hello("python", 0, 1)),
        (m.CreateTopic, ["locks"], m.CreateTopic("locks", 1, "partition", True)),
        (m.ListTopics, [], m.ListTopics("")),
        (m.OpenProducer, [], m.OpenProducer(0)),
        (m.Fetch, [ADDRESS, 4, 5], m.Fetch(Address(1, 2, 3), 4, 5, 0)),
        (m.Pull, [ADDRESS, "c", 4, 5], m.Pull(Address(1, 2, 3), "c", 4, 5, 0, 30_000)),
        (m.Confirm, [4, 5], m.Confirm(4, 5, False)),
        (m.Refusal, [2, "no"], m.Refusal(2, "no", 0)),
    ],
)
def test_fields_with_defaults_may_be_left_out(
    kind: type[m.Control], fields: list[object], expected: m.Control
) -> None:
    body = msgspec.msgpack.encode(fields)
    assert msgspec.msgpack.decode(body, type=kind) == expected


def test_only_opcodes_with_batches_have_large_bodies() -> None:
    data = {
        opcode_of(m.Produce),
        opcode_of(m.Fetch),
        opcode_of(m.Pull),
        opcode_of(m.Ack),
        opcode_of(m.FetchChunks),
    }
    data |= {opcode_of(m.Scatter), opcode_of(m.Prepare), opcode_of(Stage), opcode_of(Publish)}
    data.add(opcode_of(m.AskRelay))
    large = {
        opcode
        for opcode in map(opcode_of, m.REQUESTS)
        if body_bytes_max(opcode) == CLIENT_FRAME_BYTES_MAX
    }
    assert large == data


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        m.Hello("python").system = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        m.Fetched(Address(1, 2, 3), 0, 0, 0).offset = 5  # type: ignore[misc]


def test_settings_of_the_release_before_are_read() -> None:
    settings = msgspec.convert([1_000, 0, ["home/doors"]], TopicSettings)
    assert settings == TopicSettings(1_000, 0, ("home/doors",), ())
    change = msgspec.convert([None, 5, None], SettingsChange)
    assert change == SettingsChange(retention_bytes=5)


@pytest.mark.parametrize(
    ("start", "forks", "nearest", "why"),
    [
        (0, (), 19, "this partition holds 0 to 19. It may have been read from another topic"),
        (0, ((1, 8), (4, 17)), 17, "Lineage 4 began at offset 17, when a core set was promoted"),
        (18, ((4, 17),), 18, "this partition holds 18 to 19. Lineage 4 began at offset 17"),
    ],
)
def test_who_has_read_further_is_told_where_to_read_on(
    start: int, forks: Sequence[tuple[int, int]], nearest: int, why: str
) -> None:
    refused = m.Fetch(Address(0, 0, 65_536), 30, 1).beyond(start, 19, forks)
    assert refused.detail == nearest
    assert str(refused).startswith("offset 30 is not there: this partition holds")
    assert why in str(refused)


@pytest.mark.parametrize(
    ("lineage", "nearest", "named"), [(-1, 25, 4), (0, 8, 1), (1, 20, 3), (2, 20, 3), (3, 25, 4)]
)
def test_who_says_its_lineage_is_told_where_that_ended(
    lineage: int, nearest: int, named: int
) -> None:
    forks = ((1, 8), (2, 22), (3, 20), (4, 25))
    fetch = m.Fetch(Address(0, 0, 65_536), 30, 1, lineage=lineage)
    for end, words in ((29, "offset 30 is not there"), (40, f"the end of lineage {lineage}")):
        refused = fetch.beyond(0, end, forks)
        assert refused.detail == nearest
        assert words in str(refused)
        assert f"Lineage {named} began at offset {nearest}" in str(refused)
