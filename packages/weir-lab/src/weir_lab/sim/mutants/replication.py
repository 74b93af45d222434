"""Rules of Raft, and of the groups that it replicates, that can be taken away."""

from __future__ import annotations

from dataclasses import replace

import weir_raft as raft
from weir.broker.api.events import TICK_MS
from weir.broker.metadata.membership import Membership
from weir.broker.produce import appender
from weir.broker.records.registry import LevelRaised
from weir.broker.runtime.outbox import Caller
from weir.protocol.client.nodes import RaiseLevel
from weir.testing.simulator.witness import AGREED
from weir.testing.simulator.world import MS, SECOND
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.outcome import CRASH
from weir_lab.sim.shape import UNORDERED
from weir_raft import core, election
from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.messages import Append, AppendReply, VoteReply
from weir_raft.node_state import NodeState
from weir_raft.replication import Replication
from weir_raft.storage import NOBODY, HardState

#: Every kind of program has a part in each run, and no disk rots in the end.
ALL = replace(UNORDERED, absent=0.0, rots=(0,))
#: Nodes go and come back, and forget what was not durable.
KILLED = replace(ALL, kinds=("kill",))
#: Nodes are cut off, and go on as if they were not.
PARTED = replace(ALL, kinds=("part", "pause"))
#: Nodes stand still while clients ask them, and others lead on.
PAUSED = replace(
    ALL,
    kinds=("pause",),
    beats=((100, 500),),
    ticks=(TICK_MS,),
    pace=(8, 60),
    hasty=0,
    producers=6,
    batches=120,
    onlookers=8,
    hubs=0,
    receivers=0,
    consumers=0,
    keepers=0,
    authors=0,
    operators=(False,),
)
#: Elections follow on each other while some are cut off or down.
STORMY = replace(
    ALL,
    kinds=("part", "kill"),
    fault_every=(100 * MS, 700 * MS),
    pace=(5, 60),
    hubs=0,
    receivers=0,
    consumers=0,
    keepers=0,
    authors=0,
    operators=(False,),
)
#: Groups move from node to node, while some do not hear of that.
MOVING = replace(
    ALL,
    nodes=4,
    kinds=("part", "kill"),
    fault_every=(100 * MS, 800 * MS),
    pace=(5, 60),
    stewards=2,
    hubs=0,
    receivers=0,
    consumers=0,
    keepers=0,
    authors=0,
    operators=(False,),
)
#: Leaders die soon after they were elected, most of them.
HASTY = replace(
    ALL,
    kinds=("kill", "slow disk"),
    fault_every=(30 * MS, 400 * MS),
    down=(0, 200 * MS),
    faults_until=8 * SECOND,
    at_least=0,
    beats=((30, 120),),
    ticks=(TICK_MS,),
    pace=(5, 60),
    hubs=0,
    receivers=0,
    consumers=0,
    keepers=0,
    authors=0,
    onlookers=0,
    operators=(False,),
)
#: Two leaders by turns, each with what the other does not have.
DUEL = replace(
    ALL,
    plot="duel",
    appends=(1,),
    in_flight=(1,),
    beats=((100, 500),),
    ticks=(TICK_MS,),
    pace=(5, 60),
    batches=40,
    hubs=0,
    receivers=0,
    consumers=0,
    keepers=0,
    authors=0,
    onlookers=0,
    stewards=0,
    operators=(False,),
)


@mutant(seed=3, breaks={"Durable", "OneOffset", "RisingStamps", AGREED, CRASH}, shape=DUEL)
def an_older_term_is_committed_by_count(patch: Patch) -> None:
    """An entry of an older term may be on a majority and still be replaced (§3.6.2, Figure 3.7)."""

    def commit(self: Leader) -> bool:
        log = self._node_state.log
        match = self._replication.match()
        reached = self._node_state.configuration.committed(match) if self.members else log.durable
        if reached <= log.committed:
            return False
        log.commit_to(reached)
        return True

    patch.setattr(Leader, "commit", commit)


@mutant(seed=8, breaks={"Durable", "OneOffset", "RisingStamps", AGREED}, shape=KILLED)
def repeated_append_re_acked(patch: Patch) -> None:
    """A follower answers with what is durable, never with what it merely holds (§3.8)."""

    def answer(self: Follower) -> None:
        node_state = self._node_state
        if not self.leader or node_state.pending.installing:
            return
        if self._matched <= self._acked and not self._owes:
            return
        self._acked, self._owes = self._matched, False
        node_state.pending.messages.append(
            AppendReply(self.leader, node_state.id, node_state.term, self._matched)
        )

    patch.setattr(Follower, "answer", answer)


@mutant(seed=33, breaks={"Durable", "OneOffset", "RisingStamps", AGREED}, shape=KILLED)
def a_leader_counts_what_it_has_not_written(patch: Patch) -> None:
    """A leader counts its own log as far as its disk holds it, like any other's (§10.2.1)."""

    def match(self: Replication) -> dict[int, int]:
        found = {id: member.match for id, member in self.members.items()}
        found[self._node_state.id] = self._node_state.log.last_index
        return found

    patch.setattr(Replication, "match", match)


@mutant(seed=3, breaks={"Durable", "OneOffset", "RisingStamps", AGREED}, shape=HASTY)
def vote_not_persisted(patch: Patch) -> None:
    """A vote is durable before it is told to anybody, and is not given twice (§3.8)."""

    def grant(node_state: NodeState, state: Follower, sender: int) -> None:
        state.heard()
        node_state.hard_state = HardState(node_state.term, sender)
        node_state.pending.messages.append(
            VoteReply(sender, node_state.id, node_state.term, granted=True, fence=node_state.fence)
        )

    def enter(self: NodeState, term: int, vote: int = NOBODY) -> None:
        self.hard_state, self.term = HardState(term, vote), term
        self.pending.hard_state = HardState(term, vote if vote == self.id else NOBODY)

    patch.setattr(election, "_grant", grant)
    patch.setattr(NodeState, "enter", enter)


@mutant(seed=14, breaks={"RealTime", "AckedOnce"}, shape=PAUSED)
def read_index_without_its_round(patch: Patch) -> None:
    """A leader serves a read once a majority has said that it still leads (§6.4)."""

    def read(self: Leader, context: int) -> None:
        node_state = self._node_state
        node_state.pending.reads.append(raft.ReadState(context, node_state.log.committed))

    patch.setattr(Leader, "read", read)


@mutant(seed=6, breaks={"Durable", "OneOffset", "RisingStamps", AGREED, CRASH}, shape=STORMY)
def a_follower_does_not_compare_terms(patch: Patch) -> None:
    """Entries are kept only behind one of the same index and term (§3.5)."""
    honest = Follower.append

    def append(self: Follower, message: Append) -> None:
        log, prev = self._node_state.log, message.prev_index
        if log.first_index <= prev <= log.last_index:
            message = message._replace(prev_term=log.term(prev))
        honest(self, message)

    patch.setattr(Follower, "append", append)


@mutant(seed=3, breaks={"Durable", "OneOffset", "RisingStamps", AGREED, CRASH}, shape=PARTED)
def a_follower_commits_what_it_did_not_compare(patch: Patch) -> None:
    """Only what is the same as the leader's log is committed, not all that lies there (§3.5)."""
    honest = Follower.append

    def append(self: Follower, message: Append) -> None:
        honest(self, message)
        log = self._node_state.log
        log.commit_to(min(message.commit, log.last_index))

    patch.setattr(Follower, "append", append)


@mutant(seed=2, breaks={"Durable", "OneOffset", "RisingStamps", AGREED, CRASH}, shape=PARTED)
def any_log_is_good_enough_for_a_vote(patch: Patch) -> None:
    """Nobody votes for a log that ends before the own one (§3.6.1)."""
    honest = election.reply_to_request

    def reply(node_state: NodeState, state: election.State, request: raft.VoteRequest) -> None:
        term, index = max((request.last_term, request.last_index), node_state.log.end)
        honest(node_state, state, replace(request, last_term=term, last_index=index))

    patch.setattr(core, "reply_to_request", reply)


@mutant(seed=7, breaks={"Durable", "OneOffset", AGREED, "Live"}, shape=PARTED)
def confirm_after_step_down(patch: Patch) -> None:
    """Who led and does not any more confirms nothing: another entry may have taken the place."""
    waits = "            for waiter in (*pending.early, *pending.clients):\n"
    patch.source(
        "weir.broker.produce.appender",
        waits + "                self._outbox.refuse(waiter.caller, error)\n",
        waits + "                self._confirm(waiter, pending.record)\n",
    )


@mutant(seed=0, breaks={"Durable"}, shape=ALL)
def what_was_only_received_has_a_place(patch: Patch) -> None:
    """One disk has it: the place may become another message's (counterexample 19)."""
    patch.setattr(appender, "_received", lambda confirm: confirm)


@mutant(seed=0, breaks={"Honest", CRASH}, shape=ALL)
def a_level_that_not_all_can_read(patch: Patch) -> None:
    """A format level is written once every node of the set supports it (DESIGN §4)."""

    def raise_level(self: Membership, caller: Caller, request: RaiseLevel) -> None:
        self._proposals.propose(LevelRaised(request.level), caller)

    patch.setattr(Membership, "raise_level", raise_level)


@mutant(seed=19, breaks={"Durable", "OneOffset", "RisingStamps", AGREED, CRASH}, shape=MOVING)
def membership_hole(patch: Patch) -> None:
    """While voters change, a majority of the old ones and one of the new ones decide (§4.3)."""
    honest = raft.Configuration.changed

    def changed(self: raft.Configuration, change: raft.Change) -> raft.Configuration:
        return replace(honest(self, change), outgoing=())

    patch.setattr(raft.Configuration, "changed", changed)
