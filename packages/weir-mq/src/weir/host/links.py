"""Links between the shards of different nodes: those that are kept, and those that are served.

Each shard dials the shards of the other nodes itself, by one link for what it sends; what they send
comes by theirs. Which nodes there are is the core's word (`Connect`, `Disconnect`). A node of the
set that the core has not heard of yet may link here as well, and is linked back to where it says
that it is: else who fell behind could never be told of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity
from weir.errors import RemoteProtocolError
from weir.host.greeting import NO_TLS, AcceptedConnection, Certified, Dialer
from weir.host.lanes import InLane
from weir.host.outbound_link import LinkRefused, NodeAddress, OutboundLink, founded_anew
from weir.host.ports import RandomSource, Transport
from weir.host.shard_connections import LocalShard, ShardConnection
from weir.host.trunks import TrunkEnd, Trunks
from weir.model.ids import (
    SET_UNKNOWN,
    SHARD_BITS,
    SHARDS_MAX,
    place_node,
    place_of,
    place_shard,
)
from weir.model.limits import FORMAT_LEVEL, LINK_NODES_MAX, LINKS_GREETING_MAX
from weir.protocol.link import (
    LINK_PROTOCOL,
    Lane,
    LinkAnswer,
    LinkHello,
    Verdict,
    announce,
    decode_hello,
    encode_greeting,
    is_expected,
    is_from,
    is_of,
    prove,
    vouch,
)

_COMPLAINTS_MAX = 64
_NO_LINKS: dict[int, OutboundLink] = {}


class InboundLink:
    """A link from the shard at a place. It began with its quick lane, and ends with any of them."""

    def __init__(self, local: LocalShard, trunks: Trunks, place: int, hello: LinkHello) -> None:
        """Have no lane yet; `hello` is what the other side said first, which tells this life of its
        process from others, and perhaps its node's folder.
        """
        self.hello = hello
        self.over = False
        self._local = local
        self._trunks = trunks
        self._place = place
        self._lanes: dict[Lane, InLane | TrunkEnd] = {}

    def takes(self, run: int, lane: Lane) -> bool:
        """Return whether a lane may join this link."""
        return not self.over and self.hello.run == run and lane not in self._lanes

    def add(self, lane: Lane, connection: ShardConnection) -> None:
        """Give the link a lane."""
        if lane is Lane.TRUNK:
            self._lanes[lane] = self._trunks.serve(
                self._place, connection, lambda _: self.end("its trunk broke"), self.hello.shards
            )
        else:
            one = InLane(self._local, connection.transport, self._place, self.end)
            self._lanes[lane] = connection.handler = one

    def check_silence(self) -> None:
        """Look whether the other side is still there."""
        quick = self._lanes.get(Lane.QUICK)
        if isinstance(quick, InLane):
            quick.check_silence()

    def cut(self) -> None:
        """End the link, which is no news."""
        self.over = True
        for lane in self._lanes.values():
            lane.cut()

    def end(self, why: str, is_warning: bool = False) -> None:
        """End the link, and say why; as a warning where an operator has something to mend."""
        if self.over:
            return
        node, shard = place_node(self._place), place_shard(self._place)
        fields = {"peer_node": node, "peer_shard": shard}
        log = self._local.log
        say = log.warning if is_warning else log.info
        text = "shard %d of node %d sends here no more: %s"
        say(text, shard, node, why, extra={"fields": fields})
        self.cut()


class KnownNode(NamedTuple):
    """What the core knows of a node: the birth of the only folder that is this node (0: unknown),
    its BrokerSet, whether it left, by which key it joins (empty: by none), and in which lineage a
    set was promoted without it (0: in none).
    """

    birth: int
    brokerset: int
    has_left: bool = False
    join_key: bytes = b""
    lineage: int = 0

    def with_news(self, effect: ef.Connect) -> KnownNode:
        """Return what is known now."""
        is_unknown = effect.brokerset == SET_UNKNOWN
        brokerset = self.brokerset if is_unknown else effect.brokerset
        return KnownNode(effect.birth or self.birth, brokerset, join_key=effect.join_key)

    def refuses(self, hello: LinkHello) -> str:
        """Return why a hello cannot be of this node; empty if it can."""
        if self.brokerset not in (SET_UNKNOWN, hello.brokerset):
            return (
                f"it says that node {hello.node} is of BrokerSet {hello.brokerset}, and here it is "
                f"of BrokerSet {self.brokerset}: found it in that one (`weir init --brokerset "
                f"{self.brokerset}`), or add it under another number"
            )
        if self.birth and not is_from(hello, self.birth):
            return founded_anew(hello.node)
        return ""


#: What a node that was never in a closed set remembers of others.
NO_BIRTHS: Mapping[int, int] = {}
#: Of a node that the core has not named.
NOTHING_KNOWN = KnownNode(0, SET_UNKNOWN)


class ShardInfo(msgspec.Struct, frozen=True):
    """This shard as others are told of it: its identity, its node's numbers of logs and shards, the
    shards' own ports by number (none if there is but one), and where other nodes reach the port of
    them all.
    """

    identity: Identity
    logs: int = 1
    shards: int = 1
    ports: tuple[int, ...] = ()
    host: str = ""
    port: int = 0


class Links:
    """All links of a shard."""

    def __init__(
        self,
        local: LocalShard,
        trunks: Trunks,
        own: ShardInfo,
        nodes: dict[int, NodeAddress],
        found: set[str],
        run: int,
        dialer: Dialer,
        random: RandomSource,
        named_only: bool = False,
        births: Mapping[int, int] = NO_BIRTHS,
    ) -> None:
        """Begin without any; each has a lane that is one of the `trunks`. `nodes` are to be those
        that this shard links to, by number, and `found` the addresses of other nodes, as far as
        they are known. `run` tells this life of the process from others. `named_only` is as in
        `GuardLinks`, until the core says it; `births`, by node, are what was known of them before.
        A node of these that was removed since is served until the core says so (`Disconnect`).
        """
        self.local = local
        self.trunks = trunks
        self.dialer = dialer
        self.random = random
        self.run = run
        self.found = found
        self._own = own
        self.nodes = nodes
        self._out: dict[int, dict[int, OutboundLink]] = {}
        self._in: dict[int, InboundLink] = {}
        self._named_only = named_only
        #: By node, what is known of it.
        self._known = {node: KnownNode(birth, SET_UNKNOWN) for node, birth in births.items()}
        #: Nodes that were refused, and why: told once until one is let in, for it comes every
        #: second.
        self._complaints: set[tuple[int, str]] = set()
        self._callers: dict[AcceptedConnection, None] = {}
        self._closed = False

    # -- the host calls -----------------------------------------------------------------------

    def connect(self, effect: ef.Connect) -> None:
        """Keep links to a node from now on, at this address."""
        if effect.node == self._own.identity.node or self._closed:
            return
        known = self._known.get(effect.node, NOTHING_KNOWN).with_news(effect)
        self._known[effect.node] = known
        self._cut([at for at, one in self._of(effect.node) if known.refuses(one.hello)])
        if effect.birth:
            for link in self._out.get(effect.node, {}).values():
                link.expect(effect.birth)
        at = self.nodes.setdefault(effect.node, NodeAddress(effect.node))
        at.registered = effect.host, effect.port
        self._join(at)

    def disconnect(self, effect: ef.Disconnect) -> None:
        """Keep none any more, and serve none."""
        known = self._known.get(effect.node, NOTHING_KNOWN)
        self._known[effect.node] = known._replace(has_left=True, lineage=effect.lineage)
        # Behind what this turn has to say: replies to peers of that node may be gathered already.
        self.local.later(0.0, partial(self._leave, effect.node))

    def guard(self, effect: ef.GuardLinks) -> None:
        """Serve nodes that the core has not named by their certificates only, or again without."""
        self._named_only = effect.named_only
        if self._named_only:  # those with a certificate or a key come again
            self._cut([place for place in self._in if self._must_prove(place_node(place))])

    def end_inbound(self, effect: ef.EndLink) -> None:
        """End a link that is served; the other side may dial again."""
        if (link := self._in.get(effect.place)) is not None:
            link.end(effect.reason, is_warning=True)

    def send(self, effect: ef.SendToPeer) -> None:
        """Write frames to a shard of another node, or drop them."""
        link = self._outbound(effect.place)
        lane = link.lane(effect.quick) if link is not None else None
        if lane is not None:
            lane.write(effect.buffers, effect.charged)
        elif effect.charged:
            self.local.budget.release(effect.charged)

    def accept(
        self, transport: Transport, data: bytes, address: str, certified: Certified | None = None
    ) -> ShardConnection:
        """Take a connection over that began with `data`, in the link dialect; `address` is where it
        comes from. `certified` is as in `AcceptedConnection`.
        """
        caller = AcceptedConnection(self, self.local, transport, address, certified)
        connection = caller.connection
        if self._closed or len(self._callers) >= LINKS_GREETING_MAX:
            caller.cut()
            return connection
        self._callers[caller] = None
        connection.handler.receive(data)
        return connection

    def check_silence(self) -> None:
        """Look after all lanes."""
        for links in self._out.values():
            for link in links.values():
                link.check_silence()
        for serving in list(self._in.values()):
            serving.check_silence()

    def close(self) -> None:
        """End all links; the shard hears no more of them."""
        self._closed = True
        for caller in list(self._callers):
            caller.cut()
        self._callers.clear()
        for node in list(self.nodes):
            self._leave(node)
        for serving in self._in.values():
            serving.cut()

    # -- links that are kept ------------------------------------------------------------------

    def hello(self, lane: Lane, node: int, shard: int) -> LinkHello:
        """Return what this shard says when it dials another."""
        own = self._own
        who = own.identity
        # Anybody may say that it is a node which the registry does not name yet.
        is_named = self._is_named(node)
        hello = LinkHello(
            LINK_PROTOCOL, who.system, who.brokerset, who.node, who.shard, own.shards, own.logs,
            FORMAT_LEVEL, self.run, lane, node, shard, own.host, own.port,
            who.birth if is_named else 0, self.random.getrandbits(62),
        )  # fmt: skip
        joins = announce(who.join_key, hello)
        return msgspec.structs.replace(hello, proof=vouch(who.birth, hello), joins=joins)

    def lanes_to(self, at: NodeAddress, shard: int) -> list[Lane]:
        """Return which lanes a link has, in the order to dial them: entries go only between shards
        that share a log, since the same group lies in the same log everywhere.
        """
        logs = range(self._own.identity.shard, self._own.logs, self._own.shards)
        shared = any(log % at.shards == shard for log in logs)
        return [Lane.QUICK, *([Lane.BULK] if shared else []), Lane.TRUNK]

    def answered(self, at: NodeAddress, host: str, hello: LinkHello, answer: LinkAnswer) -> None:
        """A node that was dialled at `host` identified itself. Raises `LinkRefused` if its folder
        is another than that node's.
        """
        if answer.node != at.node:
            return
        birth = self._known.get(at.node, NOTHING_KNOWN).birth
        if birth and not is_of(answer, hello, birth):
            raise LinkRefused(founded_anew(at.node))
        if answer.verdict == Verdict.REMOVED and answer.lineage and birth and answer.proof:
            self.tell(ev.Outlived(at.node, answer.lineage))
        if answer.verdict in (Verdict.ACCEPTED, Verdict.ELSEWHERE):
            at.learn(host, answer.ports)
            if at.shards != answer.shards:
                at.shards = answer.shards
                self._join(at)

    def tell(self, event: ev.LinkOpened | ev.LinkClosed | ev.Outlived) -> None:
        """Tell the shard what became of a link."""
        if not self._closed:
            self.local.queue.put(event)

    def _join(self, at: NodeAddress) -> None:
        """Have a link to each shard that a node has now."""
        if self.nodes.get(at.node) is not at:
            return
        links = self._out.setdefault(at.node, {})
        for shard in [one for one in links if one >= at.shards]:
            links.pop(shard).close()
        for shard in range(at.shards):
            if shard not in links:
                links[shard] = OutboundLink(self, at, shard)

    def _leave(self, node: int) -> None:
        self.nodes.pop(node, None)
        for link in self._out.pop(node, {}).values():
            link.close()
        self._cut([place for place, _ in self._of(node)])

    def _of(self, node: int) -> list[tuple[int, InboundLink]]:
        return [(place, link) for place, link in self._in.items() if place_node(place) == node]

    def _cut(self, places: list[int]) -> None:
        for place in places:
            self._in.pop(place).cut()

    def _is_named(self, node: int) -> bool:
        """Whether the core has named a node."""
        return (at := self.nodes.get(node)) is not None and at.registered is not None

    def _must_prove(self, node: int) -> bool:
        """Whether a node without a certificate must show in a closed set that it is expected: its
        birth, by which other nodes prove their identity, is not known, and the set was not founded
        with it.
        """
        if self._known.get(node, NOTHING_KNOWN).birth:
            return False
        return all(one.node != node for one in self._own.identity.members)

    def _outbound(self, place: int) -> OutboundLink | None:
        # As `place_node` and `place_shard` tell: each message to a replica comes by here.
        return self._out.get(place >> SHARD_BITS, _NO_LINKS).get(place & SHARDS_MAX - 1)

    # -- links that are served ----------------------------------------------------------------

    def greeted(self, caller: AcceptedConnection, body: memoryview) -> None:
        """A linking node has identified itself: accept it, or say why not."""
        self._callers.pop(caller, None)
        try:
            hello = decode_hello(body)
        except RemoteProtocolError as error:
            self.local.log.warning("a link was refused: %s", error)
            caller.refuse(self._answer(Verdict.UNCLEAR, str(error)))
            return
        refused = self._judge_certificate(hello, caller.certified) or self._judge(hello)
        if refused is not None:
            verdict, reason = refused
            if verdict is not Verdict.ELSEWHERE:
                self._complain(hello.node, reason)
            answer = self._answer(verdict, reason)
            if verdict is Verdict.REMOVED:
                answer = self._last_word(hello, answer)
            caller.refuse(answer)
            return
        self._serve(hello, caller)
        if hello.lane is Lane.QUICK:
            self._met(hello)

    def unheard(self, caller: AcceptedConnection, why: str) -> None:
        """A linking node did not identify itself."""
        if self._callers.pop(caller, caller) is None:
            self.local.log.warning("a link without a hello: %s", why)

    def _complain(self, node: int, reason: str) -> None:
        if (node, reason) not in self._complaints and len(self._complaints) < _COMPLAINTS_MAX:
            self._complaints.add((node, reason))
            self.local.log.warning("a link from node %d was refused: %s", node, reason)

    def _judge_certificate(
        self, hello: LinkHello, certified: Certified | None
    ) -> tuple[Verdict, str] | None:
        """Return why who says hello is not believed; None if he is."""
        if certified is None and self._named_only and self._must_prove(hello.node):
            known = self._known.get(hello.node, NOTHING_KNOWN)
            if not self._is_named(hello.node):
                return Verdict.STRANGER, (
                    f"this set is closed, and node {hello.node} is not known here: add it (`weir "
                    "node add`), or let nodes show certificates (links.tls)"
                )
            if not is_expected(hello, known.join_key):
                return Verdict.STRANGER, (
                    f"this set is closed, and node {hello.node} does not prove that it is the one "
                    "that was added: found it by the whole command that `weir node add` printed "
                    "last (--join), or let nodes show certificates (links.tls)"
                )
        if certified in (None, (hello.node, hello.brokerset)):
            return None
        if certified == NO_TLS:
            why = "this node takes links by TLS only: set links.tls there to prefer, then require"
            return Verdict.STRANGER, why
        who, whose = f"node {hello.node}", "of no node of this system"
        if certified.node:
            whose = f"of node {certified.node}"
        if certified.node == hello.node:
            who += f" of BrokerSet {hello.brokerset}"
            whose += f" of BrokerSet {certified.brokerset}"
        return Verdict.STRANGER, (
            f"it says it is {who}, and its certificate is {whose}: give each node its own (`weir "
            "cert issue node`)"
        )

    def _judge(self, hello: LinkHello) -> tuple[Verdict, str] | None:
        """Return why there is no link; None if there is."""
        if hello.protocol != LINK_PROTOCOL:
            reason = f"it speaks protocol {hello.protocol}, this node {LINK_PROTOCOL}: upgrade it"
            return Verdict.UNKNOWN_PROTOCOL, reason
        who, meant = self._own.identity, (hello.to_node, hello.to_shard)
        if strange := _strange(hello, self._own):
            return Verdict.STRANGER, strange
        known = self._known.get(hello.node, NOTHING_KNOWN)
        if known.has_left:
            return Verdict.REMOVED, _why_removed(hello.node, known.lineage)
        if why := known.refuses(hello):
            return Verdict.STRANGER, why
        if meant != (who.node, who.shard):
            return Verdict.ELSEWHERE, f"this is shard {who.shard}"
        link = self._in.get(place_of(hello.node, hello.shard))
        if hello.lane is not Lane.QUICK and (link is None or not link.takes(hello.run, hello.lane)):
            return Verdict.UNCLEAR, "a link begins with its quick lane, and has one of each"
        if link is None and not self._has_room(hello.node):
            return Verdict.UNCLEAR, "too many nodes that are not in the registry link here already"
        return None

    def _has_room(self, node: int) -> bool:
        """Whether another link may be served: of a node that the core has named, always."""
        if self._is_named(node):
            return True
        most = LINK_NODES_MAX * self._own.logs
        if len(self._in) >= most:
            self._in = {place: link for place, link in self._in.items() if not link.over}
        return len(self._in) < most

    def _serve(self, hello: LinkHello, caller: AcceptedConnection) -> None:
        if caller.address:
            self.found.add(caller.address)
        self._complaints = {one for one in self._complaints if one[0] != hello.node}
        proof = prove(self._own.identity.birth, hello)
        connection = caller.connection
        connection.transport.write(encode_greeting(self._answer(Verdict.ACCEPTED, "", proof)))
        place = place_of(hello.node, hello.shard)
        if hello.lane is Lane.QUICK:
            if (old := self._in.pop(place, None)) is not None:
                old.cut()
            self._in[place] = InboundLink(self.local, self.trunks, place, hello)
        self._in[place].add(hello.lane, connection)

    def _last_word(self, hello: LinkHello, answer: LinkAnswer) -> LinkAnswer:
        """Return the answer to a node that was removed: in which lineage its groups go on, and that
        this is a node of the system which says so.
        """
        lineage = self._known.get(hello.node, NOTHING_KNOWN).lineage
        if not lineage:
            return answer
        proof = prove(self._own.identity.birth, hello)
        return msgspec.structs.replace(answer, lineage=lineage, proof=proof)

    def _met(self, hello: LinkHello) -> None:
        """Link back to a shard that links here."""
        at = self.nodes.get(hello.node)
        if at is None:
            if not hello.port or len(self.nodes) >= LINK_NODES_MAX:
                return
            at = self.nodes[hello.node] = NodeAddress(hello.node)
        if hello.port:
            at.advertised = hello.host, hello.port
        at.shards = hello.shards
        self._join(at)
        if (link := self._outbound(place_of(hello.node, hello.shard))) is not None:
            link.nudge()

    def _answer(self, verdict: Verdict, reason: str, proof: bytes = b"") -> LinkAnswer:
        own = self._own
        who = own.identity
        return LinkAnswer(
            verdict, reason, who.node, who.shard, own.shards, FORMAT_LEVEL, self.run, own.ports,
            proof=proof,
        )  # fmt: skip


def _why_removed(node: int, lineage: int) -> str:
    """Return what a node is told that was removed."""
    if not lineage:
        return f"node {node} was removed from this set: found a new one"
    return (
        f"another core set was promoted without node {node} (lineage {lineage}): it serves nothing "
        "any more. Keep its folder as long as its uncopied messages may be needed, and found a "
        "node under another number in an empty one (`weir node add`)"
    )


def _strange(hello: LinkHello, own: ShardInfo) -> str:
    """Return what makes a node a stranger here; empty if nothing does."""
    who = own.identity
    if hello.system != who.system:
        return "it is of another system: correct the address it dials, or found it with this one's"
    if hello.logs != own.logs:
        return f"it was founded with {hello.logs} logs, this node with {own.logs}: they must agree"
    if not hello.shard < hello.shards <= hello.logs:
        return f"no node has a shard {hello.shard} of {hello.shards} for {hello.logs} logs"
    if hello.node == who.node:
        return f"it is node {hello.node} like this one: found each with a number of its own"
    if hello.to_node != who.node:
        return f"this is node {who.node}, not {hello.to_node}: correct the address it dials"
    return ""
