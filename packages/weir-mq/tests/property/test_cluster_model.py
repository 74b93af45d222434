"""A cluster's state against the obvious one: a set of what is done, and a holder per message."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir.broker.records.partition import MessagesGranted, MessagesReturned
from weir.broker.records.snapshots import pack, unpack
from weir.broker.state.clusters import AT_ONCE, NOBODY, ClusterState, Holders
from weir.model.topic import Mode

SMALL = st.integers(0, 12)


def offsets(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [offset for first, behind in runs for offset in range(first, behind)]


class ClusterModel(RuleBasedStateMachine):
    """Grants, acks, nacks, extensions, seeks, retention and restarts in any order, as a leader may
    propose them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.behind = self.start = self.fence = self.skipped = 0
        self.done: set[int] = set()
        self.holders: dict[int, int] = {}
        self.granted: dict[int, range] = {}
        self.attempts: dict[int, int] = {}
        #: Of each grant that anybody holds something of: its consumer and deadline.
        self.leases: dict[int, tuple[int, int]] = {}
        self.mode: Mode | None = None

    @rule(count=st.integers(1, 8))
    def publish(self, count: int) -> None:
        self.behind += count

    @precondition(lambda self: self.state.frontier < self.behind)
    @rule(count=st.integers(1, 6), consumer=st.integers(1, 3))
    def grant_new(self, count: int, consumer: int) -> None:
        first = self.state.frontier
        self.grant(first, min(first + count, self.behind), consumer)

    @precondition(lambda self: self.state.frontier < self.behind)
    @rule(skip=st.integers(1, 4), count=st.integers(1, 6), consumer=st.integers(1, 3))
    def grant_past_what_is_not_due(self, skip: int, count: int, consumer: int) -> None:
        """What is passed by stays a hole: neither done nor with anybody."""
        first = min(self.state.frontier + skip, self.behind - 1)
        self.grant(first, min(first + count, self.behind), consumer)

    @precondition(lambda self: self.behind)
    @rule(places=st.lists(st.tuples(SMALL, st.integers(1, 4)), min_size=1), consumer=SMALL)
    def grant_runs(self, places: list[tuple[int, int]], consumer: int) -> None:
        """Of some keys, those of others between them left where they are."""
        runs: list[tuple[int, int]] = []
        for skip, count in places:
            first = (runs[-1][1] if runs else 0) + 1 + skip
            if first + count <= self.behind:
                runs.append((first, first + count))
        if runs:
            self.grant(runs[0][0], runs[-1][1], consumer + 1, runs)

    @rule(mode=st.sampled_from(Mode))
    def open(self, mode: Mode) -> None:
        self.state.open(mode)
        self.mode = mode if self.mode is None else self.mode

    @precondition(lambda self: self.holders)
    @rule(which=SMALL, count=st.integers(1, 6), consumer=st.integers(1, 3))
    def grant_again(self, which: int, count: int, consumer: int) -> None:
        """A lease is over; what was done of it meanwhile may lie in the range."""
        held = sorted(self.holders)
        first = held[which % len(held)]
        self.grant(first, min(first + count, self.state.frontier), consumer)

    def grant(
        self, first: int, behind: int, consumer: int, runs: list[tuple[int, int]] | None = None
    ) -> None:
        self.fence += 1
        record = MessagesGranted("c", consumer, first, behind, 100, 1, runs or [])
        made = self.state.grant(self.fence, record)
        self.mode = Mode.SHARED if self.mode is None else self.mode
        mine = {o for o, fence in self.holders.items() if self.leases[fence][0] == consumer}
        if self.mode is Mode.ORDERED and not mine.union(self.done).issuperset(range(first)):
            assert made is None, "something in front of it is not done"
            return
        self.depose(first)
        run: list[int] = []
        for whole in runs or [(first, behind)]:
            for offset in range(*whole):
                if offset not in self.done:
                    run.append(offset)
                elif run and not runs:
                    break
        assert (made is None) == (not run)
        if made is None:
            return
        assert offsets(made.left) == run
        self.leases[self.fence] = consumer, 100
        again = [self.attempts[offset] for offset in run if offset in self.holders]
        assert made.attempts == max(again, default=0) + 1
        for offset in run:
            self.holders[offset] = self.fence
            self.attempts[offset] = made.attempts
        self.granted[self.fence] = range(run[0], run[-1] + 1)

    @precondition(lambda self: self.granted)
    @rule(
        which=SMALL,
        parts=st.lists(st.tuples(SMALL, st.integers(1, 6)), min_size=1, max_size=3),
        deadline=st.sampled_from((AT_ONCE, 500)),
        untried=st.booleans(),
    )
    def give_back(
        self, which: int, parts: list[tuple[int, int]], deadline: int, untried: bool
    ) -> None:
        """Of any grant there ever was, in any order, the same twice, or of one that is over."""
        old = sorted(self.granted)[which % len(self.granted)]
        whole, self.fence = self.granted[old], self.fence + 1
        ranges = [whole[skip % len(whole) :][:count] for skip, count in parts]
        mine = {offset for part in ranges for offset in part if self.holders.get(offset) == old}
        spans = [(part.start, part.stop) for part in ranges]
        record = MessagesReturned("c", old, spans, deadline, 1, untried)
        told = self.state.give_back(self.fence, record)
        assert told == all(mine.union(self.done).issuperset(part) for part in ranges)
        assert (self.fence in self.state.grants) == bool(mine)
        for offset in mine:
            self.holders[offset] = self.fence
            self.attempts[offset] -= untried
        self.leases[self.fence] = NOBODY, deadline
        if mine:
            self.depose(min(mine))

    def depose(self, first: int) -> None:
        """Where order matters, nobody goes on behind what is granted again, or was given back."""
        for offset, fence in self.holders.items():
            if self.mode is Mode.ORDERED and offset >= first and self.leases[fence][0] != NOBODY:
                self.holders[offset] = -fence
                self.leases[-fence] = NOBODY, AT_ONCE

    @precondition(lambda self: self.granted)
    @rule(which=SMALL, deadline=st.sampled_from((50, 200, 900)))
    def extend(self, which: int, deadline: int) -> None:
        fence = sorted(self.granted)[which % len(self.granted)]
        live = fence in self.holders.values() and self.leases[fence][1] != AT_ONCE
        assert self.state.extend(fence, deadline) == live
        if live:
            self.leases[fence] = self.leases[fence][0], max(self.leases[fence][1], deadline)

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
        fences = [f for f, lease in self.leases.items() if lease[0] == consumer]
        assert self.state.release(consumer) == any(f in self.holders.values() for f in fences)
        self.leases |= dict.fromkeys(fences, (consumer, AT_ONCE))

    @rule()
    def restart(self) -> None:
        self.state = ClusterState.decode(*unpack(pack(self.state.encode())))

    @invariant()
    def both_agree(self) -> None:
        left = set(range(self.behind)) - self.done
        assert self.state.lag(self.behind) == len(left)
        assert self.state.cursor == min(left, default=self.behind)
        back = [f for f in self.holders.values() if self.leases[f][0] == NOBODY]
        assert (self.state.granted, self.state.held_back) == (
            len(self.holders) - len(back),
            len(back),
        )
        assert self.state.skipped == self.skipped
        grants = self.state.grants
        assert {
            offset: fence for fence, grant in grants.items() for offset in offsets(grant.left)
        } == self.holders
        assert {f: (g.consumer, g.deadline) for f, g in grants.items()} == {
            fence: self.leases[fence] for fence in self.holders.values()
        }
        for grant in grants.values():
            tried = {self.attempts[offset] for offset in offsets(grant.left)}
            assert max(tried) == grant.attempts
        assert left.difference(self.holders) >= set(range(self.state.frontier, self.behind))
        assert self.state.mode == self.mode
        assert {
            offset: fence
            for fence, first, behind in self.state.holders.within(0, self.behind)
            for offset in range(first, behind)
        } == self.holders


TestClusterModel = ClusterModel.TestCase
TestClusterModel.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)


RUN = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda ends: tuple(sorted(ends)))


@given(st.lists(st.tuples(RUN, st.integers(0, 3)), max_size=40), RUN)
def test_holders_agree_with_a_dict(
    changes: list[tuple[tuple[int, int], int]], probe: tuple[int, int]
) -> None:
    holders, twin = Holders(), dict[int, int]()
    for (first, behind), fence in changes:
        holders.clear(first, behind)
        for offset in range(first, behind):
            twin.pop(offset, None)
        if fence and first < behind:
            holders.put(first, behind, fence)
            twin |= dict.fromkeys(range(first, behind), fence)
    found = holders.within(*probe)
    assert all(first < behind for _, first, behind in found)
    assert {offset: fence for fence, a, b in found for offset in range(a, b)} == {
        offset: fence for offset, fence in twin.items() if probe[0] <= offset < probe[1]
    }
