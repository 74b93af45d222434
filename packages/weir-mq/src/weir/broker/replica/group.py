"""One Raft group on this shard: the node, its place in the log, and the machine it drives.

This is the only place where Raft, log and state machine meet. The order of things is Raft's: see
`weir_raft.ready`. A damaged group answers nothing, and listens to its leader until it may begin
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import weir_raft as raft
from weir.broker.api.events import Findings, ReplicaStopped
from weir.broker.records.entries import Payload, applied_by
from weir.broker.records.snapshots import unpack_slowly
from weir.broker.replica.catch_up import CatchUp, CatchUpPermits, Checkpoints
from weir.broker.replica.raft_storage import RaftStorage, stage
from weir.broker.replica.requests import GroupWaits, Reader, ReplicaHalt, elsewhere, refusal_of
from weir.broker.runtime.reads import Pause, Reads
from weir.codec import Buffer
from weir.errors import Damaged, NotLeader, Refused, Unavailable
from weir.model.ids import REGISTRY_GROUP
from weir.model.limits import KIB, MIB
from weir.storage.log import Log

#: So much is applied before other events have their turn, each batch counted with what it costs
#: besides its bytes: about a thousand small ones, or a hundred thousand rows of devices.
_AT_ONCE_BYTES = 4 * MIB
_BATCH_BYTES = 4 * KIB

_CONFIGURATION = raft.EntryKind.CONFIGURATION


class Machine(Protocol):
    """A state machine that committed entries drive."""

    def lead(self, leadership: raft.Leadership) -> None:
        """This node leads the group from here on."""

    def lose(self, error: NotLeader, cut_off: bool) -> None:
        """This node led and does not any more: `error` is for all who wait for it; `cut_off` says
        whether that is because the majority was out of reach.
        """

    def changing(self) -> None:
        """The members are about to be changed. Raises `Refused` if that cannot be just now."""

    def decode(self, data: Any) -> object:
        """Return the state that another replica's `encode` gave; called in another thread."""

    def restore(self, state: Any) -> None:
        """Take another replica's state, as `decode` gave it, in place of the own."""

    def apply(self, index: int, payload: Payload) -> None:
        """Apply one committed entry; each exactly once, in order."""

    def durable(self, index: int) -> None:
        """This node's own disk has all entries through `index`: see `Group.report_durable`."""

    def encode(self) -> object:
        """Return the whole state for a snapshot, as MessagePack can hold it."""

    @property
    def first_needed(self) -> int:
        """The index below which no entry is needed any more once a snapshot holds the state."""


class Replicas(Protocol):
    """The other replicas of all groups."""

    def send(self, group: int, messages: Sequence[raft.Message], /) -> None:
        """Send messages to the replicas that they name; who cannot be reached misses them."""


class GroupContext(NamedTuple):
    """What the groups of a shard share; `checkpoints` those of one log."""

    reads: Reads
    permits: CatchUpPermits
    replicas: Replicas
    checkpoints: Checkpoints
    #: Where a group that has stopped goes.
    findings: Findings


class Group:
    """Moves one group forward: proposals into the log, committed entries into the machine."""

    __slots__ = ("_catch_up", "_configuration", "_context", "_is_paused", "_is_processing",
                 "_waits", "damage", "id", "is_over", "log", "machine", "node", "rejoin",
                 "storage", "voter")  # fmt: skip

    machine: Machine

    def __init__(
        self,
        id: int,
        voter: int,
        node: raft.Node,
        log: Log,
        storage: RaftStorage,
        context: GroupContext,
        founders: tuple[int, ...],
    ) -> None:
        """Take a node restored from `storage`; `run` must come before anything else.

        `founders` voted when the group was new; none are known to a node that joined later.
        """
        self.id = id
        #: This node, as the group knows it.
        self.voter = voter
        self.node = node
        self.log = log
        #: What a damaged or incomplete group is told.
        self.rejoin = Rejoin()
        self.storage = storage
        self._context = context
        self._catch_up = CatchUp(self, storage, context.reads, context.permits, context.checkpoints)
        self._waits = GroupWaits()
        self._is_processing = self._is_paused = False
        #: What this group lost that it needs to go on, or what it met that it cannot apply, where
        #: it has stopped since it was opened; None if nothing.
        self.damage: Damaged | None = storage.damage
        #: Whether this node has let go of the group.
        self.is_over = False
        #: As of the applied index: what Raft has in force may be an entry that goes again.
        self._configuration = storage.configuration()
        if self._configuration is None and founders:
            self._configuration = raft.Configuration(founders)

    def run(self, machine: Machine, campaign: bool = True) -> None:
        """Drive `machine`, whose state is that of the node's snapshot; `campaign` at once, or not.

        A damaged group is driven nowhere: it neither votes nor leads, and is read as it lies.
        """
        self.machine = machine
        if self.damage is None:
            if campaign:
                self.node.campaign()
            self.process_ready()

    @property
    def leads(self) -> bool:
        """Whether this node leads the group."""
        return self.node.role is raft.Role.LEADER and self.damage is None

    @property
    def is_decoding(self) -> bool:
        """Whether a large snapshot that came is being decoded; the group goes on meanwhile."""
        return self._catch_up.incoming.is_decoding

    @property
    def leader(self) -> int:
        """The voter that leads as far as this node knows; 0 for none."""
        return self.node.leader if self.damage is None else self.rejoin.leader

    @property
    def has_others(self) -> bool:
        """Whether other nodes have a part in this group."""
        return self.storage.has_copies or self.node.configuration.members != (self.voter,)

    @property
    def knows_its_voter(self) -> bool:
        """Whether its log, or what others sent, says by which id they know this node: where all is
        lost, it may have come back under another one before.
        """
        return self.storage.configuration() is not None or bool(self.rejoin.leader)

    @property
    def is_incomplete(self) -> bool:
        """Whether old entries are lost here which others have, in a group that goes on."""
        return bool(self.storage.unreadable) and self.damage is None and self.has_others

    @property
    def is_read_as_it_lies(self) -> bool:
        """Whether it is damaged, and nobody else, who would know what was committed, has it."""
        return self.damage is not None and not self.has_others

    @property
    def is_current(self) -> bool:
        """Whether an entry of the term of a known leader is applied here: and so all that was
        committed before that term.
        """
        node = self.node
        return bool(node.leader and node.log.applied and self._applied_term == node.term)

    # -- snapshots ---------------------------------------------------------------------------

    @property
    def kept_index(self) -> int:
        """Through which index the next checkpoint is to hold this group's state.

        That of a damaged group stays as the last one had it.
        """
        if self.damage is None:
            return self.node.log.applied
        snapshot = self.storage.snapshot()
        return snapshot.index if snapshot else 0

    @property
    def lacks_state(self) -> bool:
        """Whether the state that a checkpoint is to hold is in the last one alone: it stopped with
        a newer one, which is not to be believed.
        """
        snapshot = self.storage.snapshot() if isinstance(self.damage, ReplicaHalt) else None
        return snapshot is not None and snapshot.data is None

    def covered(self) -> raft.Snapshot | None:
        """Return what `snapshot` does, without the state."""
        if not (index := self.node.log.applied):
            return None
        return raft.Snapshot(index, self._applied_term, None, self._configuration)

    def snapshot(self) -> raft.Snapshot | None:
        """Return the state as of `kept_index`; None if nothing was applied yet."""
        if self.damage is not None:
            return self.storage.snapshot()
        found = self.covered()
        return found and replace(found, data=self.machine.encode())

    @property
    def _applied_term(self) -> int:
        index = self.node.log.applied
        # While older entries are filled in, the log ends below what an installed snapshot holds.
        known = self.storage.saved_term(index)
        return self.node.log.term(index) if known is None else known

    def saved(self, snapshot: raft.Snapshot) -> None:
        """A durable checkpoint holds this: let go of entries nobody needs."""
        if self.damage is not None or self.node.log.durable < self.node.log.applied:
            return  # what is still being filled in lies below what is applied
        self.storage.saved(snapshot)
        needed = min(self.machine.first_needed, snapshot.index + 1)
        # Only entries that are gone from the log are gone for the others: members that are behind
        # get the rest.
        self.node.compact(needed - 1)
        self.log.drop_below(self.id, needed)

    def drop_below(self, index: int) -> None:
        """No reader needs the entries below `index` any more; replicas that are behind may need
        them until a snapshot is durable that covers them.
        """
        if not self.has_others:
            # Only what is gone for the others, who may come, is gone from the log.
            self.node.log.release(index - 1)
        index = min(index, self.node.log.first_index)
        self.log.drop_below(self.id, index)

    # -- lineages ----------------------------------------------------------------------------

    def force(self, lineage: int, voters: tuple[int, ...]) -> None:
        """Go on as one of `voters` alone: see `weir_raft.Node.lineages`. Without effect once
        another lineage has begun; one that is damaged cannot, and waits for the others.
        """
        if self.damage is None:
            with suppress(raft.InvalidChange):
                self.node.lineages.force(lineage, voters)
            self.process_ready()

    # -- proposals and reads -----------------------------------------------------------------

    @property
    def accepts(self) -> bool:
        """Whether `propose` would take an entry: false while leadership is handed over, too."""
        return self.node.accepts and self.damage is None

    def propose(self, payload: Payload) -> int:
        """Append an entry and stage its bytes; return its index.

        Raises `NotLeader`, `Unavailable` or `Overloaded`.
        """
        if isinstance(self.damage, ReplicaHalt):
            raise Unavailable(str(self.damage))
        try:
            index = self.node.propose(payload, payload.size)
        except (raft.NotLeader, raft.NotReady, raft.Overloaded) as error:
            raise refusal_of(error) from None
        self.process_ready()
        return index

    def read(self, reader: Reader) -> None:
        """Tell `reader` when what is applied here holds all that was confirmed to anybody by now,
        or why that will not be: at once where no other node could know better.
        """
        if isinstance(self.damage, ReplicaHalt):
            reader.readable(Unavailable(str(self.damage)))
        elif self._waits.begin(self.node, reader):
            self.process_ready()

    def report_durable(self, index: int) -> None:
        """Tell the machine once this node's own disk has an entry that it proposed just now; never,
        if it does not lead any more by then.
        """
        self._waits.durable_index = index

    def begins_own_term(self, index: int) -> bool:
        """Whether a NOOP opened the term that this node leads in, and not an earlier one's.

        After a restart the NOOPs of earlier terms are applied again, before entries that count.
        """
        node = self.node
        return node.role is raft.Role.LEADER and node.log.term(index) == node.term

    # -- steps -------------------------------------------------------------------------------

    def persisted(self, ready: int) -> None:
        """Take note that a Ready is durable; apply what is committed by it."""
        self.node.persisted(ready)
        self.process_ready()
        waits = self._waits
        if waits.durable_index:
            durable = self.node.log.durable
            if durable >= waits.durable_index:
                waits.durable_index = 0
            self.machine.durable(durable)

    def offer(self, message: raft.InstallSnapshot, refuse: Callable[[str], None]) -> str:
        """Take a piece of a snapshot; the one that completes it only if the whole can be decoded.
        Return why not; where that takes long, `refuse` is told later.
        """
        size = message.snapshot.size
        is_large = self.id != REGISTRY_GROUP and size >= MIB
        if (
            is_large
            and self._catch_up.incoming.is_decoding
            and message.position + len(message.data) == size
        ):
            return ""  # it is sent again until it is answered: nothing is joined for that
        arriving = raft.Arriving.of(message.snapshot, self.node.arriving)
        whole = arriving.with_piece(message.position, message.data)
        if whole is None:
            self.step(message)
            return ""

        def then(state: object, why: str) -> None:
            if why:
                refuse(why)
            elif not self.is_over and self.damage is None and self._awaits(message):
                self._take(message, state)

        if is_large:
            self._catch_up.incoming.decode_aside(whole, self.machine, then)
            return ""
        if not (why := self._catch_up.incoming.decode(whole, self.machine)):
            self._take(message, self._catch_up.incoming.state)
        return why

    def _awaits(self, message: raft.InstallSnapshot) -> bool:
        """Whether no other snapshot has begun to come since a piece did."""
        arriving = self.node.arriving
        return arriving is None or arriving.meta == message.snapshot

    def _take(self, message: raft.InstallSnapshot, state: object) -> None:
        self._catch_up.incoming.state = state
        self.step(message)
        self._catch_up.incoming.state = None

    def step(self, message: raft.Message) -> None:
        """Take what another replica sent."""
        if self.storage.unreadable:
            self.rejoin.take(message)
        self.node.step(message)
        if self._catch_up.sent and isinstance(message, raft.AppendReply) and not message.rejected:
            self._catch_up.acknowledged(message.sender, message.index)
        self.process_ready()

    def process_ready(self) -> None:
        """Stage and apply all that Raft has ready.

        A machine may propose while it applies: the loop that is running takes that up, for a
        second one inside it could apply later entries before earlier ones.
        """
        node = self.node
        if not node.touched or self._is_processing or self.is_over:
            return
        self._is_processing, room = True, _AT_ONCE_BYTES
        try:
            while self.damage is None and node.touched and (ready := node.take()) is not None:
                self._do(ready)
                if ready.committed and node.touched:
                    room -= _cost(ready.committed)
                    if room <= 0:  # a node that was down may have an hour to apply
                        return self._pause()
        finally:
            self._is_processing = False

    def _pause(self) -> None:
        """Let other events have their turn first; any that concerns this group may go on, too."""
        if not self._is_paused:
            self._is_paused = True
            self._context.reads.start(Pause(self.storage.log), self._pause_over, at_once=True)

    def _pause_over(self, _: Sequence[Buffer], failure: Refused | None) -> None:
        self._is_paused = False
        self.process_ready()

    def _do(self, ready: raft.Ready) -> None:
        if ready.lost_leadership:
            self._lose(ready.lost_quorum)
        if ready.became_leader:
            self.machine.lead(ready.became_leader)
        if ready.messages:
            self._context.replicas.send(self.id, ready.messages)
        if ready.snapshot is not None and not self._restore(ready.snapshot):
            return
        if ready.entries or ready.hard_state is not None or ready.snapshot is not None:
            if ready.entries:  # proposed here, or by a leader whom others may need this node for
                self._context.permits.traffic.came = True
            stage(self.log, self.id, self.node, ready)
        for entry in ready.committed:
            if not self._apply(entry):
                return
        if ready.reads or ready.loads or ready.wants_snapshot:
            self._serve(ready)
        elif ready.committed and self._waits.confirmed:
            self._waits.applied(self.node.log.applied)

    def _apply(self, entry: raft.Entry) -> bool:
        # Told first: a leader may propose at once from this very entry on.
        self.node.applied(entry.index)
        try:
            if entry.kind is _CONFIGURATION:  # it drives the group, not its machine
                assert isinstance(entry.data, bytes)
                self._configuration = raft.Configuration.unpack(entry.data)
            else:
                self.machine.apply(entry.index, applied_by(entry))
        except Exception as error:  # whatever a state meets in an entry that contradicts it
            self._stop(f"entry {entry.index:,}", error)
            return False
        return True

    def _stop(self, what: str, error: Exception) -> None:
        """Take no part any more: what is here may be half changed, and is not to be believed."""
        self.damage = halt = ReplicaHalt(self.id, what, error)
        # A leader before this term does not know what this one acknowledged in it.
        self.rejoin = Rejoin(self.node.term)
        if self.node.role is raft.Role.LEADER:
            self._lose(cut_off=False)
        self._context.findings.append(ReplicaStopped(self.id, halt, error))

    def _lose(self, cut_off: bool) -> None:
        error = elsewhere(self.leader)
        self._waits.lose(error)
        self._catch_up.lose()
        self.machine.lose(error, cut_off)

    def _restore(self, snapshot: raft.Snapshot) -> bool:
        state, self._catch_up.incoming.state = self._catch_up.incoming.state, None
        try:
            if state is None:  # Raft took it later than it was offered
                assert isinstance(snapshot.data, bytes | bytearray)  # it came over a link
                state = self.machine.decode(unpack_slowly(snapshot.data))
            self.machine.restore(state)
        except Exception as error:  # as for an entry
            self._stop(f"a snapshot through entry {snapshot.index:,}", error)
            return False
        self._configuration = snapshot.configuration
        self.storage.saved(replace(snapshot, data=None))
        return True

    def _serve(self, ready: raft.Ready) -> None:
        for read in ready.reads:
            self._waits.confirm(read)
        self._waits.applied(self.node.log.applied)
        for load in ready.loads:
            self._catch_up.load(load)
        for voter in ready.wants_snapshot:
            snapshot = self.snapshot()
            assert snapshot is not None  # there is something that the member lacks
            self._catch_up.snapshot(voter, snapshot)


def _cost(entries: Sequence[raft.Entry]) -> int:
    """Return what applying entries costs, in bytes."""
    cost = 0
    for entry in entries:
        data = entry.data
        batches = len(data.batches) if type(data) is Payload else 0
        cost += entry.size + _BATCH_BYTES * (1 + batches)
    return cost


class Rejoin:
    """Listens to what is sent to a group that answers nothing.

    A leader knows what each of the others holds. Once it says that a majority without this one
    holds an entry of the leader's own term, and all that this one ever acknowledged, nothing that
    was committed depends on what lies here, and it may begin anew with nothing. What is committed
    alone shows less: it may have been committed by what this one had before it was damaged.
    """

    __slots__ = ("_term", "leader", "others_go_on")

    def __init__(self, term: int = 0) -> None:
        """Begin with nothing heard; leaders of terms before `term` are not listened to."""
        #: The leader, of the members that were heard; 0 without one.
        self.leader = 0
        #: Whether the group may be given up here.
        self.others_go_on = False
        self._term = term

    def take(self, message: raft.Message) -> None:
        """Take note of a message."""
        if isinstance(message, raft.Append | raft.InstallSnapshot) and message.term >= self._term:
            # What was said last counts: there may be a leader who knows better.
            self._term, self.others_go_on = message.term, message.spared
            self.leader = message.sender
