"""Records, reports and commands as JSON: golden bytes, and what is refused."""

from __future__ import annotations

import pytest

from weir_toc.controller.codec import (
    command_from,
    command_to,
    decisions_from,
    decisions_to,
    decode_record,
    encode_record,
    report_from,
    report_to,
)
from weir_toc.controller.entries import (
    Command,
    Completed,
    Decide,
    Decisions,
    Fail,
    Freeze,
    InputSilent,
    LinkJoined,
    NodeSilent,
    ProcessJoined,
    Recalled,
    Remove,
    SetRoutes,
)
from weir_toc.controller.records import (
    Founded,
    Record,
    Registered,
    Removed,
    Reported,
    Returned,
    SwitchStarted,
)
from weir_toc.errors import ControlError

RECORDS: list[tuple[Record, bytes]] = [
    (Founded(4, 2, 1, 1_000_000), b'["Founded",4,2,1,1000000]'),
    (Founded(4, 2, 1, 5, "switch"), b'["Founded",4,2,1,5,"switch"]'),
    (Founded(4, 2, 1, 5, "host", 131), b'["Founded",4,2,1,5,"host",131]'),
    (Founded(4, 2, 1, 5, "xdp", 131, 9), b'["Founded",4,2,1,5,"xdp",131,9]'),
    (Registered("a", 3, 77), b'["Registered","a",3,77]'),
    (SwitchStarted(1 << 31, 5, "h", 9), b'["SwitchStarted",2147483648,5,"h",9]'),
    (NodeSilent(7), b'["NodeSilent",7]'),
    (Decide(), b'["Decide"]'),
    (Reported(1, 2, 3, InputSilent(4, 5, 6, 7)), b'["Reported",1,2,3,["InputSilent",4,5,6,7]]'),
    (Reported(1, 2, 3, ProcessJoined(4)), b'["Reported",1,2,3,["ProcessJoined",4]]'),
    (Reported(1, 2, 3, LinkJoined(4, 5)), b'["Reported",1,2,3,["LinkJoined",4,5]]'),
    (
        Reported(1, 2, 3, LinkJoined(4, 5, is_behind=True)),
        b'["Reported",1,2,3,["LinkJoined",4,5,1]]',
    ),
    (Reported(1, 2, 3, Completed(4, 5)), b'["Reported",1,2,3,["Completed",4,5]]'),
    (
        Reported(1, 2, 3, Recalled(4, 5, ((6, 7), (9, 9)))),
        b'["Reported",1,2,3,["Recalled",4,5,[[6,7],[9,9]]]]',
    ),
    (Reported(1, 2, 3, Returned(4, 5, (6, 7))), b'["Reported",1,2,3,["Returned",4,5,[6,7]]]'),
    (Reported(1, 2, 3, Removed(4, 5, 6)), b'["Reported",1,2,3,["Removed",4,5,6]]'),
    (Reported(1, 2, 3, Removed(4, 5, 6, True)), b'["Reported",1,2,3,["Removed",4,5,6,1]]'),
]
COMMANDS: list[tuple[Command, list[object]]] = [
    (Freeze(1, 2), ["Freeze", 1, 2]),
    (Remove(1, 2, 3), ["Remove", 1, 2, 3]),
    (Remove(1, 2, 3, holds=True), ["Remove", 1, 2, 3, 1]),
    (Fail(1, 2, ((3, 4), (5, 6))), ["Fail", 1, 2, [[3, 4], [5, 6]]]),
    (SetRoutes(1, {2: frozenset({4, 3})}), ["SetRoutes", 1, [[2, [3, 4]]]]),
]


@pytest.mark.parametrize(("record", "data"), RECORDS)
def test_records_have_golden_bytes(record: Record, data: bytes) -> None:
    assert encode_record(record) == data
    assert decode_record(data) == record
    if isinstance(record, Reported):
        assert report_from(report_to(record.report)) == record.report


@pytest.mark.parametrize(("command", "row"), COMMANDS)
def test_commands_have_golden_lists(command: Command, row: list[object]) -> None:
    assert command_to(command) == row
    assert command_from(row) == command


@pytest.mark.parametrize("data", [
    b"", b"{}", b"[]", b"[1]", b'["Nothing"]', b'["NodeSilent"]', b'["NodeSilent",-1]',
    b'["NodeSilent",true]', b'["NodeSilent",1.5]', b'["NodeSilent",9223372036854775808]',
    b'["Registered","",0,1]', b'["Registered",1,0,1]', b'["Reported",1,2,3]',
    b'["Reported",1,2,3,["Decide"]]', b'["Freeze",1,2]', b'["Founded",4,2,1]',
    b'["Founded",4,2,1,5,"nowhere"]', b'["Founded",4,2,1,5,"host",6,7,8]',
])  # fmt: skip
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ControlError):
        decode_record(data)


@pytest.mark.parametrize("row", [
    None, [], ["Fail", 1, 2, 3], ["Fail", 1, 2, [[3]]], ["Fail", 1, 2, [[3, "4"]]],
    ["SetRoutes", 1, [[2, 3]]], ["Decide"], ["Freeze", 1],
])  # fmt: skip
def test_what_is_no_command_is_refused(row: object) -> None:
    with pytest.raises(ControlError):
        command_from(row)


def test_decisions_come_back_from_a_frame() -> None:
    found = Decisions(((1, 2), (3, 0)), ((1, 5, 6),))
    assert decisions_from(decisions_to(found)) == found
    assert decisions_from({"failed": [], "recalled": []}) == Decisions((), ())


@pytest.mark.parametrize(
    "frame",
    [
        {}, {"failed": []}, {"failed": [[1]], "recalled": []}, {"failed": 1, "recalled": []},
        {"failed": [], "recalled": [[1, 2]]}, {"failed": [], "recalled": [[1, 7, 6]]},
        {"failed": [], "recalled": [[1, -1, 6]]}, {"failed": [["a", 1]], "recalled": []},
    ],
)  # fmt: skip
def test_what_is_no_decision_is_refused(frame: dict[str, object]) -> None:
    with pytest.raises(ControlError):
        decisions_from(frame)


@pytest.mark.parametrize(
    "row",
    [
        ["Recalled", 1, 2], ["Recalled", 1, 2, 3], ["Recalled", 1, 2, [[3]]],
        ["Recalled", 1, 2, [[4, 3]]], ["Recalled", 1, 2, [[one, one] for one in range(501)]],
        ["Returned", 1, 2], ["Returned", 1, 2, 3], ["Returned", 1, 2, ["a"]],
    ],
)  # fmt: skip
def test_what_is_no_report_of_a_recovery_is_refused(row: list[object]) -> None:
    with pytest.raises(ControlError):
        report_from(row)
