"""ReadIndex: a read sees all that was committed when it was asked for. (§6.4)"""

from __future__ import annotations

from weir_raft import Change, Config, MemoryStorage, Node, ReadState, Role
from weir_raft.testing.rehearsal import Rehearsal


def reads(node: Node) -> list[ReadState]:
    found: list[ReadState] = []
    while node.has_ready:
        found += node.ready().reads
    return found


def test_a_lone_voter_reads_at_once() -> None:
    storage = MemoryStorage()
    node = Node(Config(1, (1,)), storage)
    node.campaign()
    while node.has_ready:
        ready = node.ready()
        node.persisted(ready.number)
    node.read_index(7)
    assert reads(node) == [ReadState(7, 1)]


def test_a_read_waits_for_a_round_of_heartbeats_after_it(group: Rehearsal) -> None:
    one = group.lead(1)
    group.mail.clear()
    one.node.read_index(1)
    one.serve()
    late = list(group.mail)
    group.mail.clear()
    one.node.propose("x", 1)
    group.flow()
    one.node.read_index(2)
    one.node.read_index(3)
    replies = []
    for message in late:
        if message.to == 2:
            group.actors[2].node.step(message)
            group.actors[2].serve()
            replies += [m for m in group.mail if m.to == 1]
    for reply in replies:
        one.node.step(reply)
    # The earlier round confirms the first read alone, at what was committed then.
    assert reads(one.node) == [ReadState(1, 1)]


def test_a_deposed_leader_serves_no_read(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 2), (1, 3), (2, 1), (3, 1)}
    one.node.read_index(1)
    served: list[ReadState] = []
    lost = False
    for _ in range(100):
        one.node.tick(50)
        while one.node.has_ready:
            ready = one.node.ready()
            served += ready.reads
            lost = lost or ready.lost_leadership
            if ready.must_persist:
                one.unsynced.append(ready)
    assert lost
    group.severed.clear()
    group.pass_ms(2_000)
    assert served == []


def test_reads_under_way_are_served_when_the_leader_is_left_alone(group: Rehearsal) -> None:
    group.lead(1)
    group.actors[1].node.change(Change(remove=(2, 3)))
    group.flow()
    one = group.actors[1].node
    assert (one.role, one.configuration.voters) == (Role.LEADER, (1,))
    one.read_index(5)
    assert reads(one) == [ReadState(5, one.log.committed)]
