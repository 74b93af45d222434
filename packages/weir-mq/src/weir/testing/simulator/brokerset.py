"""The simulated BrokerSet: one node, or several over a network that loses its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weir.broker.api.settings import Member
from weir.model.limits import FORMAT_LEVEL
from weir.protocol.link import Greeting, LinkAnswer, Verdict, decode_hello, encode_greeting, prove
from weir.testing.simulator.host import Host
from weir.testing.simulator.network import End, Link, Net, Way
from weir.testing.simulator.process import PORT, SHARD_PORT, Machine, Process
from weir.testing.simulator.sockets import Listening
from weir.testing.simulator.witness import Witness, led_by
from weir.testing.simulator.world import World

#: Of a folder that no set knows.
_BIRTH = 404


class Server(Protocol):
    """A port that another process of the world than a node listens on."""

    def accept(self, client: End, up: Way, down: Way) -> Link:
        """Take a connection."""


class BrokerSet:
    """All nodes of a run, and the ways between them and their clients."""

    def __init__(
        self, world: World, machine: Machine, nodes: int, sets: Sequence[int] = ()
    ) -> None:
        """Be down; `start` is what brings all nodes up. A single one was founded alone. `sets` has
        the id of the set of each node; all are of set 0 without it.
        """
        self.world = world
        self.net = Net(far=nodes > 1)
        self.machine = machine
        self.witness = Witness()
        #: By the node whose name leads elsewhere, the one that it leads to; 0 for a stranger.
        self.misled: dict[int, int] = {}
        self.stranger = Stranger(world)
        #: By its name, where another process than a node is; and by name and port, what listens.
        self.sites: dict[str, int] = {}
        self.servers: dict[tuple[str, int], Server] = {}
        numbers = range(1, nodes + 1)
        members = tuple(Member(n, f"node{n}", PORT) for n in numbers) if nodes > 1 else ()
        self.hosts = {
            n: Host(
                world, machine, n, members, _Dialer(self, n), self.witness,
                sets[n - 1] if sets else 0,
            )
            for n in numbers
        }  # fmt: skip

    @property
    def one(self) -> Host:
        """The only node of a set of one, or the first."""
        return self.hosts[1]

    @property
    def all(self) -> list[Host]:
        """All nodes."""
        return list(self.hosts.values())

    @property
    def far(self) -> bool:
        """Whether there is a network that loses its way, or one machine with all on it."""
        return len(self.hosts) > 1

    @property
    def ruined(self) -> str:
        """Why a node can never be started again; empty while all can."""
        return next((host.ruined for host in self.all if host.ruined), "")

    @property
    def divided(self) -> bool:
        """Whether a request may be passed on: then one that is refused may yet happen."""
        return self.far or self.one.layout.shards > 1

    @property
    def running(self) -> list[Process]:
        """The processes of all nodes that run."""
        return [process for host in self.all for process in host.running]

    def leaders(self) -> list[Host]:
        """Return the node that leads, for each group that is led: the same one for several."""
        return [self.hosts[process.node] for process in self.running for _ in led_by(process)]

    def start(self) -> None:
        """Start every node."""
        for host in self.all:
            host.start()

    def die(self, power: bool) -> None:
        """Lose every node at once."""
        for host in self.all:
            host.die(power)

    def connect(self, client: End, site: int, node: int = 0) -> Link | None:
        """Connect a client at a site to any process that serves, of `node` if that is not 0.

        None while none can be reached.
        """
        hosts = (self.hosts[node],) if node in self.hosts else self.hosts.values()
        joined = self.net.joined
        serving = [
            process
            for host in hosts
            for process in host.running
            if process.serves and joined(site, host.node)
        ]
        if not serving:
            return None
        process = self.world.dice.choice(serving)
        up, down = self.net.way(site, process.node), self.net.way(process.node, site)
        return process.sockets.connect(client, up, down)

    def peers(self) -> list[Link]:
        """Return the connections of clients that are open as far as the nodes know."""
        return [link for host in self.all for link in host.peers()]


class _Dialer:
    """How the processes of one node find those of the others."""

    def __init__(self, brokers: BrokerSet, source: int) -> None:
        self._brokers = brokers
        self._source = source

    def __call__(self, name: str, port: int) -> tuple[list[Listening], Way, Way]:
        brokers, node = self._brokers, int(name.removeprefix("node"))
        found = brokers.misled.get(node, node)
        at = found or node
        ways = brokers.net.way(self._source, at), brokers.net.way(at, self._source)
        if not found:
            return [brokers.stranger], *ways
        listening: list[Listening] = [
            one.sockets
            for one in brokers.hosts[found].running
            if port == PORT or one.number == port - SHARD_PORT
        ]
        return listening, *ways


class Stranger:
    """A node founded under the number of another, as a link meets it: it lets everybody in.

    It answers hellos as who was meant, with the birth of another folder; then it says nothing.
    """

    def __init__(self, world: World) -> None:
        """Be there."""
        self._world = world
        self._greetings: dict[Link, Greeting] = {}

    def connect(self, client: End, up: Way, down: Way, site: str) -> Link:
        """Open a connection."""
        link = Link(self._world, client, self, up, down)
        self._greetings[link] = Greeting()
        return link

    def received(self, link: Link, data: bytes) -> None:
        """Answer a hello."""
        greeting = self._greetings.get(link)
        if greeting is None or (body := greeting.receive(data)) is None:
            return
        del self._greetings[link]
        hello = decode_hello(body)
        answer = LinkAnswer(
            Verdict.ACCEPTED, "", hello.to_node, hello.to_shard, hello.to_shard + 1, FORMAT_LEVEL,
            _BIRTH, proof=prove(_BIRTH, hello),
        )  # fmt: skip
        link.to_client(encode_greeting(answer))

    def lost(self, link: Link) -> None:
        """The linked node is gone."""
        self._greetings.pop(link, None)
