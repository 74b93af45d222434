"""Who asked for an entry is known when it is applied, or when another node leads."""

from __future__ import annotations

import pytest

from weir.broker.replica.requests import Proposals
from weir.errors import Unavailable


class Log:
    """Takes entries, unless it is closed."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.is_closed = False

    def propose(self, entry: str) -> int:
        if self.is_closed:
            raise Unavailable("this group changes its leader")
        self.entries.append(entry)
        return len(self.entries)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def proposals(log: Log) -> Proposals[str, str]:
    """Ada and Ben wait for entries 1 and 3; nobody asked for entry 2."""
    proposals: Proposals[str, str] = Proposals(log)
    proposals.propose("an ack", "Ada")
    log.propose("another's")
    proposals.propose("a seek", "Ben")
    return proposals


def test_what_is_asked_for_is_appended(log: Log, proposals: Proposals[str, str]) -> None:
    assert log.entries == ["an ack", "another's", "a seek"]
    assert [*proposals] == ["Ada", "Ben"]


def test_who_asked_is_answered_once(proposals: Proposals[str, str]) -> None:
    assert proposals.applied(3) == "Ben"
    assert proposals.applied(3) is None
    assert proposals.applied(1) == "Ada"
    assert len(proposals) == 0


def test_nobody_waits_for_what_was_not_proposed_here(proposals: Proposals[str, str]) -> None:
    assert proposals.applied(2) is None
    assert proposals.applied(4) is None
    assert len(proposals) == 2


def test_nobody_waits_for_what_could_not_be_proposed(
    log: Log, proposals: Proposals[str, str]
) -> None:
    log.is_closed = True
    with pytest.raises(Unavailable):
        proposals.propose("a nack", "Cleo")
    assert [*proposals] == ["Ada", "Ben"]


def test_who_waits_when_the_lead_is_lost_is_told_then_and_never_again(
    proposals: Proposals[str, str],
) -> None:
    told = [name for name in proposals.lose() if not proposals]
    assert told == ["Ada", "Ben"], "each of them, and none waits any more by then"
    assert proposals.applied(1) is None, "it was committed after all; another answered for it"
    assert not proposals.lose()


def test_an_entry_that_changes_who_leads_leaves_nobody_behind() -> None:
    """To propose may apply what came before, and so end the term: whoever asked is not told twice,
    and is kept where the next `lose` finds it.
    """
    told: list[str] = []

    class Hasty(Log):
        def propose(self, entry: str) -> int:
            if entry == "the last":
                told.extend(proposals.lose())
            return super().propose(entry)

    proposals: Proposals[str, str] = Proposals(Hasty())
    proposals.propose("the first", "Ada")
    proposals.propose("the last", "Ben")
    assert told == ["Ada"]
    assert [*proposals.lose()] == ["Ben"]
