"""Random schedules of a lone voter and its disk, with crashes between and inside writes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weir_raft import Config, Entry, MemoryStorage, Node, NotLeader, NotReady, Ready, Snapshot


class Schedule(RuleBasedStateMachine):
    """A host whose steps come in any order that the contract of Ready allows.

    `committed` is the twin: every entry ever handed out to apply, over all lives.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()
        self.committed: list[Entry] = []
        self.proposed = 0
        self.terms_led = [0]
        self.fence = 0
        self.start()

    def start(self, applied: int = 0) -> None:
        config = Config(1, (1,), (), self.fence, applied, max_apply_bytes=3)
        self.node = Node(config, self.storage)
        self.written: list[Ready] = []  # not durable
        self.durable: list[Ready] = []  # durable, not acknowledged
        self.own_from = 0  # first index of the term this life leads
        self.appended = self.storage.last_index()
        snapshot = self.storage.snapshot()
        self.handed = max(applied, snapshot.index if snapshot else 0)

    @rule()
    def campaign(self) -> None:
        self.node.campaign()

    @rule()
    def lead(self) -> None:
        """Most of what can go wrong needs a leader, and chance alone rarely gets that far."""
        self.node.campaign()
        self.settle()
        assert self.node.leader == 1

    def settle(self) -> None:
        while self.node.has_ready or self.written or self.durable:
            if self.node.has_ready:
                self.ready()
            if self.written:
                self.sync_one()
            if self.durable:
                self.acknowledge_one()
            if self.handed > self.node.log.applied:
                self.node.applied(self.handed)

    @rule(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4))
    def propose(self, sizes: list[int]) -> None:
        before = self.node.log.last_index
        may = self.node.leader == 1 and self.node.log.applied >= self.own_from > 0
        try:
            for place, size in enumerate(sizes, 1):
                assert self.node.propose(self.proposed, size) == before + place
                self.proposed += 1
        except (NotLeader, NotReady):
            assert not may
            assert self.node.log.last_index == before
        else:
            assert may

    @rule(fence=st.integers(0, 50))
    def raise_fence(self, fence: int) -> None:
        self.node.raise_fence(fence)
        self.fence = max(self.fence, fence)

    @rule()
    @precondition(lambda self: self.node.has_ready)
    def ready(self) -> None:
        ready = self.node.ready()
        assert ready.must_persist or ready.committed
        for entry in ready.entries:
            assert entry.index == self.appended + 1
            assert entry.term == self.node.term
            self.appended += 1
        # What a restart finds on disk waits for a leader's own entry.
        assert not ready.committed or self.node.leader == 1
        for entry in ready.committed:
            self.check_committed(entry)
        if ready.became_leader:
            assert ready.became_leader.term > self.terms_led[-1]
            assert ready.became_leader.fence == self.fence
            self.terms_led.append(ready.became_leader.term)
            self.own_from = ready.entries[0].index
        if ready.must_persist:
            self.written.append(ready)

    def check_committed(self, entry: Entry) -> None:
        assert entry.index == self.handed + 1
        self.handed += 1
        assert self.storage.entries(entry.index, entry.index + 1, 1)[0] == entry
        if entry.index > len(self.committed):
            if self.committed:
                assert entry.term >= self.committed[-1].term
            self.committed.append(entry)
        assert self.committed[entry.index - 1] == entry

    @rule()
    @precondition(lambda self: self.written)
    def sync_one(self) -> None:
        ready = self.written.pop(0)
        self.storage.save(ready.hard_state, ready.entries)
        self.durable.append(ready)

    @rule()
    @precondition(lambda self: self.durable)
    def acknowledge_one(self) -> None:
        self.node.persisted(self.durable.pop(0).number)

    @rule(data=st.data())
    @precondition(lambda self: self.handed > self.node.log.applied)
    def apply_some(self, data: st.DataObject) -> None:
        self.node.applied(data.draw(st.integers(self.node.log.applied + 1, self.handed)))

    @rule(data=st.data())
    @precondition(lambda self: self.node.log.applied >= self.node.log.first_index)
    def snapshot(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.node.log.first_index, self.node.log.applied))
        self.storage.save_snapshot(Snapshot(index, self.node.log.term(index), None))
        if data.draw(st.booleans()):
            self.node.compact(index)
            assert self.node.log.term(index) == self.committed[index - 1].term

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        whole = data.draw(st.integers(0, len(self.written)))
        for ready in self.written[:whole]:
            self.storage.save(ready.hard_state, ready.entries)
        if whole < len(self.written) and data.draw(st.booleans()):
            torn = self.written[whole]
            kept = data.draw(st.integers(0, len(torn.entries)))
            self.storage.save(torn.hard_state, torn.entries[:kept])
        applied = data.draw(st.sampled_from([0, self.node.log.applied]))
        self.start(applied)

    @invariant()
    def committed_entries_are_on_disk(self) -> None:
        assert self.storage.last_index() >= len(self.committed)
        for entry in self.committed[-3:]:
            assert self.storage.term(entry.index) == entry.term

    @invariant()
    def positions_are_ordered(self) -> None:
        node = self.node
        assert node.log.applied <= node.log.committed <= node.log.last_index
        assert node.log.committed <= self.storage.last_index()

    def teardown(self) -> None:
        """Served to the end, a restarted node hands out every committed entry again."""
        self.start()
        self.lead()
        assert self.handed == self.node.log.last_index >= len(self.committed) > 0
        super().teardown()


Schedule.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestSchedule = Schedule.TestCase
