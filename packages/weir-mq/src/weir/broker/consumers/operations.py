"""What is asked of the clusters and hubs of one partition, and what their control records mean.

Consumers pull, ack and steer cursors. Operators list, seek, pause and delete clusters, and list and
forget hubs (DESIGN §5 Consume). A change is an entry. While it is under way its cluster is granted
nothing: a grant that was picked before a seek and committed after it would let the cluster go on at
the wrong place.
"""

from __future__ import annotations

from collections import defaultdict

from weir.broker.consumers.acks import Acks, Commands, Returns
from weir.broker.consumers.cursor_leases import CursorLeases
from weir.broker.consumers.grants import Grants
from weir.broker.consumers.moves import GrantMoves
from weir.broker.records.entries import of_control
from weir.broker.records.partition import (
    ClusterDeleted,
    ClusterOpened,
    ClusterPaused,
    ClusterRecord,
    ClusterSought,
    ConsumerRecord,
    CursorMoved,
    CursorRecord,
    CursorSought,
    CursorTaken,
    FilteredClusterOpened,
    GrantsExtended,
    GrantsReleased,
    HubBuried,
    HubForgotten,
    MessagesAcked,
    MessagesGranted,
    MessagesReturned,
    UnwantedSkipped,
)
from weir.broker.replica.group import Group
from weir.broker.replica.requests import assured
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.reads import Reads
from weir.broker.state.clusters import Cursor
from weir.broker.state.state import PartitionState
from weir.errors import (
    BadRequest,
    ClusterInUse,
    OffsetOutOfRange,
    Refused,
    Unavailable,
    UnknownCluster,
)
from weir.model.limits import RETRY_AFTER_MS, TOMBSTONES_MAX
from weir.model.topic import AckOutcome, ClusterPause, Mode, check_name
from weir.order.clock import HybridClock, Time, milliseconds_of
from weir.protocol.client import admin as a
from weir.protocol.client.admin import (
    BeginCluster,
    ClusterChanged,
    ClusterInfo,
    ClusterList,
    DeleteCluster,
    ListClusters,
    SeekCluster,
)
from weir.protocol.client.consumers import MoveCursor, SeekCursor, TakeTurn
from weir.protocol.client.messages import (
    Ack,
    ClusterIsOpen,
    Extend,
    MoveGrants,
    Nack,
    OpenCluster,
    Withdraw,
    Withdrawn,
)

Change = SeekCluster | DeleteCluster | BeginCluster
#: Of how many runs of void offsets a list of clusters tells.
_VOIDS_TOLD_MAX = 1_000
#: So many devices at least are told together, if there are so many.
_TOGETHER = 2_000


class ClusterOperations:
    """Lists and changes the clusters of one partition while this node leads it."""

    __slots__ = (
        "_cursor_leases",
        "_grants",
        "_group",
        "_outbox",
        "_pauses",
        "_proposed",
        "_state",
        "_time",
        "commands",
    )  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, grants: Grants, cursor_leases: CursorLeases,
        outbox: Outbox, time: Time,
    ) -> None:  # fmt: skip
        """Begin to lead; no change is under way."""
        self._group = group
        self._state = state
        self._grants = grants
        self._cursor_leases = cursor_leases
        self._outbox = outbox
        self._time = time
        self.commands = Commands(group, outbox)
        #: What the registry says of the topic's clusters, and what of that is proposed here.
        self._pauses: tuple[ClusterPause, ...] = ()
        self._proposed: dict[str, int] = {}

    def follow(self, pauses: tuple[ClusterPause, ...]) -> None:
        """Bring to this partition what the registry says of its topic's clusters, as entries. A
        cluster that is paused there is granted nothing meanwhile.
        """
        self._pauses = pauses
        names = frozenset(row.cluster for row in pauses if row.paused)
        self._grants.pause(names)
        self._cursor_leases.pause(names)
        self.propose_pauses()

    @property
    def has_unproposed(self) -> bool:
        """Whether some of that is not proposed yet."""
        return any(map(self._is_news, self._pauses))

    def propose_pauses(self) -> None:
        """Propose what could not be proposed before."""
        for name, paused, revision in filter(self._is_news, self._pauses):
            if self._group.accepts:
                self._proposed[name] = revision
                try:
                    self._group.propose(of_control(ClusterPaused(name, paused, revision)))
                except Refused:
                    del self._proposed[name]
                    return

    def _is_news(self, row: ClusterPause) -> bool:
        applied = self._state.pauses.get(row.cluster, (False, 0))[1]
        return row.revision > max(applied, self._proposed.get(row.cluster, 0))

    def list(self, caller: Caller, request: ListClusters) -> None:
        """Say how far one cluster is, or all."""
        state = self._state
        # One that is paused and did not begin here yet is told, too: it is paused here.
        paused = (name for name, (is_paused, _) in state.pauses.items() if is_paused)
        names = sorted({*state.clusters, *state.cursors, *paused})
        infos = [self._info(name) for name in names if request.cluster in ("", name)]
        start, behind = state.log_start, state.decided_offset
        voids = tuple(state.voids.within(start, behind)[-_VOIDS_TOLD_MAX:])
        clusters = state.clusters
        tags = tuple(
            (info.name, clusters[info.name].tags)
            for info in infos
            if info.name in clusters and clusters[info.name].tags
        )
        self._outbox.reply(caller, ClusterList(start, behind, infos, voids, tags))

    def change(self, caller: Caller, request: Change) -> None:
        """Propose a change; the answer comes when it is committed.

        Raises `BadName`, `OffsetOutOfRange`, `UnknownCluster`, `ClusterInUse` or `Overloaded`, and
        `Unavailable` once the node stops or while leadership is handed over.
        """
        self.commands.check_open()
        name = check_name(request.cluster, "cluster")
        record = self._record(name, request)
        self._grants.suspend(name)  # first: to propose may apply others, and grant by what they say
        try:
            self.commands.propose(record, caller)
        except Refused:
            self._grants.resume(name, forget=False)
            raise

    def begin(self, caller: Caller, request: BeginCluster) -> None:
        """Let a cluster begin at an offset, unless it has a position here; the answer comes when a
        majority knows.

        This leader decides it, for it proposes all that a cluster can begin by, and no two of that
        together: so what is stored is a seek, which earlier releases apply the same. Raises as
        `change`, and `Unavailable` while it cannot be told whether the cluster has a position.
        """
        self.commands.check_open()
        name = check_name(request.cluster, "cluster")
        if self._cursor_leases.is_read(name):
            raise BadRequest(f"cluster {name!r} reads this topic in total order: take a turn")
        if self._grants.may_begin(name):
            raise Unavailable(f"cluster {name!r} is being changed: ask again", RETRY_AFTER_MS)
        if name in self._state.clusters:
            assured(self._group, self._outbox, caller, lambda: self._tell_position(caller, name))
        else:
            self.change(caller, request)

    def _tell_position(self, caller: Caller, name: str) -> None:
        cluster = self._state.clusters.get(name)
        if cluster is None:
            raise Unavailable(f"cluster {name!r} was deleted meanwhile: ask again", RETRY_AFTER_MS)
        self._outbox.reply(caller, ClusterChanged(cluster.cursor))

    def open(self, caller: Caller, request: OpenCluster) -> None:
        """Let a cluster have a mode, unless it has one; the answer comes when a majority knows.

        Raises `BadName`, `BadRequest` or `Overloaded`, and `Unavailable` once the node stops.
        """
        self.commands.check_open()
        name, mode = check_name(request.cluster, "cluster"), request.mode
        tags = frozenset(request.tags)
        self._check_mode(name, mode, tags)
        self._grants.check_name(name)
        cluster, is_changing = self._state.clusters.get(name), self._grants.is_changing(name)
        if cluster is not None and cluster.mode is not None and not is_changing:
            assured(
                self._group, self._outbox, caller, lambda: self._tell_mode(caller, name, mode, tags)
            )
            return
        self._grants.opens(name, mode, tags)
        opened: ClusterRecord = ClusterOpened(name, mode)
        if tags:
            opened = FilteredClusterOpened(name, mode, tuple(sorted(tags)))
        try:
            self.commands.propose(opened, caller)
        except Refused:
            self._grants.resume(name, forget=False)
            raise

    def _check_mode(self, name: str, mode: Mode, tags: frozenset[str]) -> None:
        if self._cursor_leases.is_read(name):
            raise BadRequest(f"cluster {name!r} reads this topic in total order: take a turn")
        self._grants.check_mode(name, mode, tags)

    def _tell_mode(self, caller: Caller, name: str, mode: Mode, tags: frozenset[str]) -> None:
        """Answer who asked for a mode. Raises `BadRequest` if the cluster has another one, or other
        tags.
        """
        self._check_mode(name, mode, tags)
        if name not in self._state.clusters:
            raise Unavailable(f"cluster {name!r} was deleted meanwhile: open it again")
        self._outbox.reply(caller, ClusterIsOpen(tuple(sorted(tags))))

    def applied(self, index: int, record: ClusterRecord) -> None:
        """Answer for a change that is committed, and let the cluster be granted again."""
        if isinstance(record, ClusterPaused):
            self._grants.serve(record.cluster)
            return
        caller = self.commands.applied(index)
        if caller is None:
            return
        if isinstance(record, ClusterOpened | FilteredClusterOpened):
            tags = frozenset(record.tags if isinstance(record, FilteredClusterOpened) else ())
            try:
                self._tell_mode(caller, record.cluster, record.mode, tags)
            except Refused as error:
                self._outbox.refuse(caller, error)
            self._grants.resume(record.cluster, forget=False)
            return
        cluster = self._state.clusters.get(record.cluster)
        cursor = self._state.log_start if cluster is None else cluster.cursor
        self._outbox.reply(caller, ClusterChanged(cursor))
        self._grants.resume(record.cluster, forget=True)

    def _record(self, name: str, request: Change) -> ClusterRecord:
        state = self._state
        if isinstance(request, DeleteCluster):
            if name not in state.clusters and name not in state.cursors:
                raise UnknownCluster(f"there is no cluster {name!r} here")
            if consumers := self._grants.consumers(name) + self._cursor_leases.consumers(name):
                raise ClusterInUse(
                    f"{consumers} consumers of cluster {name!r} are at work: stop them first",
                    consumers,
                )
            return ClusterDeleted(name)
        self._grants.check_name(name)
        if name in state.cursors:
            raise BadRequest(f"cluster {name!r} reads in total order: seek all partitions at once")
        start, behind = state.log_start, state.next_offset
        if not start <= request.offset <= behind:
            raise OffsetOutOfRange(
                f"offset {request.offset} is not there: this partition holds {start} to {behind}",
                min(max(request.offset, start), behind),
            )
        return ClusterSought(name, request.offset)

    def _info(self, name: str) -> ClusterInfo:
        state = self._state
        if name in state.cursors:
            return self._cursor_info(name, state.cursors[name])
        cluster = state.clusters.get(name)
        if cluster is None:
            cluster = state.new_cluster()
            cluster.paused = True
        oldest_ms = -1
        if cluster.cursor < state.next_offset:
            stamp = self._group.log.reader.stamp_of(self._group.id, cluster.cursor)
            if stamp is not None:
                oldest_ms = max(self._time.wall_ms() - milliseconds_of(stamp), 0)
        return ClusterInfo(
            name,
            cluster.cursor,
            cluster.lag(state.next_offset),
            cluster.granted,
            cluster.attempts,
            oldest_ms,
            cluster.skipped,
            self._grants.consumers(name),
            cluster.paused,
            -1 if cluster.mode is None else int(cluster.mode),
            cluster.held_back,
            self._grants.pickers.delayed(name),
        )

    def _cursor_info(self, name: str, cursor: Cursor) -> ClusterInfo:
        """Say where a cluster is that reads in total order; here, its lag in partition 0."""
        at = max(cursor.offsets[0] if cursor.offsets else 0, self._state.log_start)
        return ClusterInfo(
            name,
            at,
            self._state.messages_from(at),
            0,
            cursor.attempts,
            -1,
            0,
            self._cursor_leases.consumers(name),
            cursor.paused,
            int(Mode.ORDERED),
            offsets=cursor.offsets,
        )


class HubOperations:
    """Lists and forgets the hubs of one partition while this node leads it."""

    __slots__ = ("_outbox", "_state", "commands")

    def __init__(self, group: Group, state: PartitionState, outbox: Outbox) -> None:
        """Begin to lead; nobody waits for an answer yet."""
        self._state = state
        self._outbox = outbox
        self.commands = Commands(group, outbox)

    def list(self, caller: Caller, request: a.ListHubs) -> None:
        """Say where the devices of a hub stand, or some of all."""
        origins = self._state.origins
        if request.hub is not None:
            self._outbox.reply(caller, a.HubList(origins.of_hub(request.hub)))
        else:
            self._outbox.reply(caller, a.HubList(*origins.part(request.part, _TOGETHER)))

    def forget(self, caller: Caller, request: a.ForgetHub, buries: bool) -> None:
        """Propose to forget a hub, but for a tombstone if the set `buries` hubs; that is confirmed
        once it is committed.

        Raises `BadRequest` if there are too many tombstones, `Unavailable` once the node stops, and
        what a proposal does.
        """
        self.commands.check_open()
        if buries and self._state.origins.floors.tombstones >= TOMBSTONES_MAX:
            raise BadRequest(
                f"{TOMBSTONES_MAX:,} hubs of this partition were forgotten, as many as it keeps in "
                "mind: let devices publish to another topic",
                TOMBSTONES_MAX,
            )
        record = HubBuried(request.hub) if buries else HubForgotten(request.hub)
        self.commands.propose(record, caller)

    def forgotten(self, index: int, devices: int) -> None:
        """A hub is forgotten: answer."""
        caller = self.commands.applied(index)
        if caller is not None:
            self._outbox.reply(caller, a.HubForgotten(devices))


class ConsumerRequests:
    """What is asked of the clusters of one partition, while this node leads it, by consumers and by
    operators.
    """

    __slots__ = ("_outbox", "acks", "cluster_operations", "cursor_leases", "grants",
                 "hub_operations", "moves", "returns")  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, clock: HybridClock, reads: Reads, outbox: Outbox,
        time: Time, pauses: tuple[ClusterPause, ...],
    ) -> None:  # fmt: skip
        """Begin to lead with nobody waiting; `pauses` are what the registry says of the topic's
        clusters.
        """
        self._outbox = outbox
        self.grants = Grants(group, state, clock, reads, outbox, time)
        self.acks = Acks(group, state, outbox)
        self.returns = Returns(group, state, clock, self.grants, outbox, time)
        self.moves = GrantMoves(group, state, self.grants, clock, outbox, time)
        self.cursor_leases = CursorLeases(group, state, clock, outbox, time, self.grants)
        self.cluster_operations = ClusterOperations(
            group, state, self.grants, self.cursor_leases, outbox, time
        )
        self.cluster_operations.follow(pauses)
        self.hub_operations = HubOperations(group, state, outbox)

    def change_grants(
        self, caller: Caller, request: Ack | Nack | Extend | MoveGrants | Withdraw
    ) -> None:
        """Ack messages of grants, give them back, let grants last longer, take them over, or wait
        for none. Raises `Refused`.
        """
        match request:
            case Ack():
                self.acks.ack(caller, request)
                self.grants.pickers.acks_came(caller.session, request)
            case Nack():
                self.returns.nack(caller, request)
            case Extend():
                self.returns.extend(caller, request)
            case MoveGrants():
                self.moves.move(caller, request)
            case Withdraw():
                self.grants.withdraw(caller.session, request.cluster)
                self.cursor_leases.withdraw(caller.session, request.cluster)
                self._outbox.reply(caller, Withdrawn())

    def steer_cursor(self, caller: Caller, request: TakeTurn | MoveCursor | SeekCursor) -> None:
        """Read the topic in total order, in turn. Raises `Refused`."""
        match request:
            case TakeTurn():
                self.cursor_leases.take(caller, request)
            case MoveCursor():
                self.cursor_leases.move(caller, request)
            case SeekCursor():
                self.cursor_leases.seek(caller, request)

    def check_deadlines(self) -> None:
        """Let waits end that are over."""
        self.moves.check_deadlines()
        self.grants.serve_all()
        self.cursor_leases.serve_all()
        self.cluster_operations.propose_pauses()

    @property
    def due_ms(self) -> int | None:
        """The monotonic time in ms before which no tick answers a waiter; 0 if the next tick may,
        None if nobody waits.
        """
        if self.cluster_operations.has_unproposed:
            return 0
        dues = [self.grants.due_ms, self.grants.ended.due_ms, self.cursor_leases.due_ms]
        return min((due for due in dues if due is not None), default=None)

    def closed(self, session: int) -> None:
        """A peer is gone."""
        self.grants.closed(session)
        self.cursor_leases.closed(session)

    def drain(self, acks: bool) -> None:
        """The node stops: let nobody wait any more, but for `acks` for a while."""
        self.grants.drain()
        self.cluster_operations.commands.drain()
        self.hub_operations.commands.drain()
        self.cursor_leases.drain()
        if not acks:
            self.acks.commands.drain()
            self.returns.commands.drain()

    def end(self, error: Refused) -> None:
        """The topic is deleted: refuse all who wait; what is under way comes to its end."""
        self.grants.end(error)
        self.cursor_leases.end(error)

    def lose(self, error: Refused) -> None:
        """Another leads: refuse all who wait."""
        self.cursor_leases.lose(error)
        self.moves.lose(error)
        self.grants.lose(error)
        self.acks.commands.lose(error)
        self.returns.commands.lose(error)
        self.cluster_operations.commands.lose(error)
        self.hub_operations.commands.lose(error)


def apply_to_clusters(
    index: int, record: ConsumerRecord, state: PartitionState, consumers: ConsumerRequests | None
) -> None:
    """Apply what the entry at Raft index `index` changes in clusters and hubs, on every replica;
    then answer its waiting callers, if there are `consumers`: this node leads.
    """
    match record:
        case MessagesGranted():
            grant = state.cluster(record.cluster).grant(index, record)
            state.last_stamp = max(state.last_stamp, record.stamp)
            if consumers is not None and not consumers.moves.applied(index, grant):
                consumers.grants.granted(index, record, grant)
        case MessagesAcked():
            _apply_ack(index, record, state, consumers)
        case MessagesReturned():
            cluster = state.clusters.get(record.cluster)
            whole = cluster is not None and cluster.give_back(index, record)
            state.last_stamp = max(state.last_stamp, record.stamp)
            if consumers is not None:
                consumers.returns.returned(index, record, cluster, whole)
        case GrantsExtended(name, fences, deadline, stamp):
            cluster = state.clusters.get(name)
            over = [f for f in fences if cluster is not None and not cluster.extend(f, deadline)]
            state.last_stamp = max(state.last_stamp, stamp)
            if consumers is not None:
                consumers.returns.extended(index, record, cluster, over)
        case GrantsReleased():
            _release(record, state, consumers)
        case CursorTaken() | CursorMoved() | CursorSought():
            _apply_cursor(index, record, state, consumers)
        case _:
            _apply_operation(index, record, state, consumers)


def _apply_operation(
    index: int,
    record: ClusterRecord | UnwantedSkipped | HubForgotten | HubBuried,
    state: PartitionState,
    consumers: ConsumerRequests | None,
) -> None:
    match record:
        case (
            ClusterOpened()
            | FilteredClusterOpened()
            | ClusterSought()
            | ClusterPaused()
            | ClusterDeleted()
        ):
            state.steer(record)
            if consumers is not None:
                consumers.cluster_operations.applied(index, record)
                consumers.cursor_leases.steered(record.cluster)
        case UnwantedSkipped(name, runs):
            if (cluster := state.clusters.get(name)) is not None:
                for run in runs:
                    cluster.skip_unwanted(*run)
            if consumers is not None:
                consumers.grants.pickers.skipped(record)
                consumers.grants.serve(name)
        case HubForgotten(hub):
            devices = state.origins.forget(hub)
            if consumers is not None:
                consumers.hub_operations.forgotten(index, devices)
        case HubBuried(hub):
            devices = state.origins.bury(hub)
            if consumers is not None:
                consumers.hub_operations.forgotten(index, devices)


def _apply_ack(
    index: int, record: MessagesAcked, state: PartitionState, consumers: ConsumerRequests | None
) -> None:
    cluster = state.clusters.get(record.cluster)
    if consumers is not None and cluster is not None:
        consumers.grants.pickers.acking(record)
    late: list[tuple[int, int, int, AckOutcome]] = []
    stale: list[tuple[int, int, int]] = []
    if cluster is not None:
        for one in record.ranges:
            if consumers is not None:
                late += [(one[0], *row) for row in cluster.late(*one)]
            if not cluster.ack(*one):
                stale.append(one)
    if consumers is not None:
        consumers.acks.applied(index, cluster, stale, late)
        consumers.grants.acked(record.cluster)


def _release(
    record: GrantsReleased, state: PartitionState, consumers: ConsumerRequests | None
) -> None:
    consumer, counted = record.consumer, defaultdict[str, list[tuple[int, int]]](list)
    for name, *run in record.counted or ():
        counted[name].append((run[0], run[1]))
    released = [
        one.release(consumer, None if record.counted is None else counted[name])
        for name, one in state.clusters.items()
    ]
    had_turn = state.cursors.release(consumer)
    if any(released) and consumers is not None:
        consumers.grants.released(consumer)
    if had_turn and consumers is not None:
        consumers.cursor_leases.released()


def _apply_cursor(
    index: int, record: CursorRecord, state: PartitionState, consumers: ConsumerRequests | None
) -> None:
    in_time = state.steer_cursor(index, record)
    if consumers is None:
        return
    match record:
        case CursorTaken():
            consumers.cursor_leases.taken(index, record, in_time)
        case CursorMoved():
            consumers.cursor_leases.moved(index, record, in_time)
        case CursorSought():
            consumers.cursor_leases.sought(index, record)
