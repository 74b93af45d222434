"""A cluster's state against the obvious one: a set of what is done, and a holder per message."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir.broker.clusters import ClusterState
from weir.broker.control import MessagesGranted

SMALL = st.integers(0, 12)


class ClusterModel(RuleBasedStateMachine):
    """Grants, acks, seeks, retention and restarts in any order, as a leader may propose them."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.behind = self.start = self.fence = self.skipped = 0
        self.done: set[int] = set()
        self.holders: dict[int, int] = {}
        self.granted: dict[int, range] = {}
        self.attempts: dict[int, int] = {}

    @rule(count=st.integers(1, 8))
    def publish(self, count: int) -> None:
        self.behind += count

    @precondition(lambda self: self.state.frontier < self.behind)
    @rule(count=st.integers(1, 6), consumer=st.integers(1, 3))
    def grant_new(self, count: int, consumer: int) -> None:
        first = self.state.frontier
        self.grant(first, min(first + count, self.behind), consumer)

    @precondition(lambda self: self.holders)
    @rule(which=SMALL, count=st.integers(1, 6), consumer=st.integers(1, 3))
    def grant_again(self, which: int, count: int, consumer: int) -> None:
        """A lease is over; what was done of it meanwhile may lie in the range."""
        held = sorted(self.holders)
        first = held[which % len(held)]
        self.grant(first, min(first + count, self.state.frontier), consumer)

    def grant(self, first: int, behind: int, consumer: int) -> None:
        self.fence += 1
        record = MessagesGranted("c", consumer, first, behind, 100, 1)
        made = self.state.grant(self.fence, record)
        run: list[int] = []
        for offset in range(first, behind):
            if offset not in self.done:
                run.append(offset)
            elif run:
                break
        assert (made is None) == (not run)
        if made is None:
            return
        assert list(made.left) == [(run[0], run[-1] + 1)]
        again = [self.attempts[offset] for offset in run if offset in self.holders]
        assert made.attempts == max(again, default=0) + 1
        for offset in run:
            self.holders[offset] = self.fence
            self.attempts[offset] = made.attempts
        self.granted[self.fence] = range(run[0], run[-1] + 1)

    @precondition(lambda self: self.granted)
    @rule(which=SMALL, skip=SMALL, count=st.integers(1, 6))
    def ack(self, which: int, skip: int, count: int) -> None:
        """Of any grant there ever was, also of one that is over."""
        fence = sorted(self.granted)[which % len(self.granted)]
        whole = self.granted[fence]
        part = whole[skip % len(whole) :][:count]
        mine = {offset for offset in part if self.holders.get(offset) == fence}
        for offset in mine:
            del self.holders[offset]
        self.done |= mine
        assert self.state.ack(fence, part.start, part.stop) == self.done.issuperset(part)

    @rule(offset=st.integers(0, 60))
    def seek(self, offset: int) -> None:
        offset = min(max(offset, self.start), self.behind)
        self.state.seek(offset)
        self.done = set(range(offset))
        self.holders.clear()

    @rule(step=st.integers(1, 4))
    def drop_below(self, step: int) -> None:
        self.start = min(self.start + step, self.behind)
        self.state.drop_below(self.start)
        gone = set(range(self.start)) - self.done
        self.skipped += len(gone)
        self.done |= gone
        for offset in gone:
            self.holders.pop(offset, None)

    @rule(consumer=st.integers(1, 3))
    def release(self, consumer: int) -> None:
        held = {grant.consumer for grant in self.state.grants.values()}
        assert self.state.release(consumer) == (consumer in held)

    @rule()
    def restart(self) -> None:
        row = msgspec.msgpack.decode(msgspec.msgpack.encode(self.state.encode()), strict=False)
        self.state = ClusterState.decode(*row)

    @invariant()
    def both_agree(self) -> None:
        left = set(range(self.behind)) - self.done
        assert self.state.lag(self.behind) == len(left)
        assert self.state.cursor == min(left, default=self.behind)
        assert self.state.granted == len(self.holders)
        assert self.state.skipped == self.skipped
        assert {
            offset: fence
            for fence, grant in self.state.grants.items()
            for first, behind in grant.left
            for offset in range(first, behind)
        } == self.holders
        assert left.difference(self.holders) == set(range(self.state.frontier, self.behind))


TestClusterModel = ClusterModel.TestCase
TestClusterModel.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
