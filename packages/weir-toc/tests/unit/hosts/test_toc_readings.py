"""What nodes tell of promises: it counts from processes that go on, and of known nodes."""

from __future__ import annotations

import pytest

from weir_toc.controller.entries import ProcessJoined
from weir_toc.controller.lag import READ_INTERVALS, Lagging
from weir_toc.controller.pacing import Pacing
from weir_toc.controller.promises import Held
from weir_toc.controller.records import Founded
from weir_toc.controller.state import ControllerState
from weir_toc.errors import ControlError
from weir_toc.hosts.condition import readings_in, status_of
from weir_toc.topology import process_id, switch_id

T = 1_000_000
A, B = process_id(0, 1), process_id(0, 2)
RACK = switch_id("rack-0")


class Told:
    """A leader of one rack with two processes, and what it is told."""

    def __init__(self) -> None:
        self.state, self.pacing = ControllerState(), Pacing(T)
        self.state.apply(Founded(1, 0, 0, T))
        assert self.state.failures is not None
        for process in (A, B):
            self.state.failures.apply(ProcessJoined(process))

    def read(self, node: int, waits_for: int, wait: int = 1) -> list[Lagging | Held]:
        """Let a node tell four times that its promise stands."""
        found: list[Lagging | Held] = []
        for number in range(4):
            at = (1 + number) * READ_INTERVALS * T
            frame = {"clock": at, "late": 0, "links": [], "commit": 1, "drops": 0,
                     "promise": [1, at, wait, waits_for]}  # fmt: skip
            found += readings_in(node, frame, at, self.state, self.pacing)
        return found


def test_a_process_that_holds_barriers_back_is_in_the_status() -> None:
    told = Told()
    (one,) = told.read(A, B)
    assert isinstance(one, Held)
    assert (one.process, one.waits_for) == (A, B)
    status = status_of(told.state, {}, told.pacing)
    assert [each["process"] for each in status["held"]] == [f"process {A}"]
    assert status["holds"] == 1


@pytest.mark.parametrize("waits_for", [process_id(0, 3), RACK + 77, 1 << 62])
def test_a_process_waits_for_nobody_that_is_not_known(waits_for: int) -> None:
    told = Told()
    (one,) = told.read(A, waits_for)
    assert isinstance(one, Held)
    assert one.waits_for == 0


@pytest.mark.parametrize("node", [RACK, process_id(0, 3)])
def test_only_a_process_that_goes_on_holds_barriers_back(node: int) -> None:
    assert Told().read(node, B) == []


def test_a_promise_that_is_none_is_refused() -> None:
    with pytest.raises(ControlError, match="waits for"):
        Told().read(A, B, wait=9)
