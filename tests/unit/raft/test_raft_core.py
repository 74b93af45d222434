from __future__ import annotations

import pytest

from weir.raft import (
    Config,
    Entry,
    EntryKind,
    HardState,
    Leadership,
    MemoryStorage,
    NotLeader,
    NotReady,
    Role,
    StorageError,
)
from weir.raft.candidate import Candidate
from weir.raft.core import Core


@pytest.fixture
def core() -> Core:
    return Core(Config(id=1, voters=(1,), fence=5), MemoryStorage())


def elect(core: Core) -> None:
    core.campaign()
    core.hard_state_durable(core.hard_state)


def test_roles_follow_one_another(core: Core) -> None:
    assert core.role is Role.FOLLOWER
    core.campaign()
    assert core.role is Role.CANDIDATE
    core.hard_state_durable(HardState(1, 1))
    assert core.role is Role.LEADER


def test_a_campaign_is_one_step_of_one_term(core: Core) -> None:
    for _ in range(3):
        core.campaign()
        core.tick()
    assert core.hard_state == HardState(1, 1)
    assert core.take_hard_state() == HardState(1, 1)
    assert core.take_hard_state() is None
    core.hard_state_durable(HardState(1, 1))
    core.campaign()
    core.tick()
    assert core.role is Role.LEADER
    assert core.hard_state == HardState(1, 1)


def test_a_vote_of_another_term_does_not_count(core: Core) -> None:
    core.campaign()
    core.hard_state_durable(HardState(0, 0))
    core.hard_state_durable(HardState(1, 0))
    assert core.role is Role.CANDIDATE


def test_leadership_is_taken_once_with_the_highest_fence(core: Core) -> None:
    core.fence = 8
    elect(core)
    core.fence = 9
    assert core.has_news
    assert core.take_leadership() == Leadership(1, 9)
    assert core.take_leadership() is None


def test_another_vote_may_carry_a_higher_fence_than_its_own(core: Core) -> None:
    core.campaign()
    assert isinstance(core.state, Candidate)
    core.state.granted(2, 30)
    core.hard_state_durable(core.hard_state)
    assert core.take_leadership() == Leadership(1, 30)


def test_has_news_until_everything_is_taken(core: Core) -> None:
    assert not core.has_news
    elect(core)
    core.take_leadership()
    assert core.has_news
    core.take_hard_state()
    assert not core.has_news


def test_propose_needs_leadership_then_an_applied_entry_of_its_term(core: Core) -> None:
    with pytest.raises(NotLeader) as caught:
        core.propose("x", 1)
    assert caught.value.leader_hint == 0
    elect(core)
    with pytest.raises(NotReady, match="entry 1, the first of term 1"):
        core.propose("x", 1)
    core.log.take_unstaged()
    core.entries_durable(1)
    core.log.take_unhanded()
    with pytest.raises(NotReady):
        core.propose("x", 1)
    core.log.applied_to(1)
    with pytest.raises(ValueError, match="its bytes, not -1"):
        core.propose("x", -1)
    assert core.propose("x", 1) == 2


def test_a_log_beyond_the_hard_state_must_not_vote() -> None:
    storage = MemoryStorage()
    storage.save(HardState(2, 1), [Entry(1, 3, EntryKind.NOOP, None, 0)])
    with pytest.raises(StorageError, match="must not vote again"):
        Core(Config(id=1, voters=(1,)), storage)
