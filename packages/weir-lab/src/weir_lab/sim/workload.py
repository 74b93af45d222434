"""The programs of one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from weir.broker.metadata.placement import REPLICAS_DEFAULT
from weir.client.arguments import ConsumerMode
from weir.model.topic import Mode, Order
from weir.testing.simulator.world import MS
from weir_lab.sim.observations import Errands, Parcels, Printed, Sunk, Typed
from weir_lab.sim.programs.operators.operators import Operator
from weir_lab.sim.programs.operators.partitions import Ender, Grower, Newcomer
from weir_lab.sim.programs.operators.stewards import Steward
from weir_lab.sim.programs.program import Program
from weir_lab.sim.programs.publishers.authors import Author, Pen
from weir_lab.sim.programs.publishers.fleets import FIRST, FleetHub, Registrar
from weir_lab.sim.programs.publishers.hasty import Hasty
from weir_lab.sim.programs.publishers.hubs import Hub
from weir_lab.sim.programs.publishers.producers import Producer
from weir_lab.sim.programs.publishers.scatterers import Scatterer
from weir_lab.sim.programs.publishers.sinks import Sinker
from weir_lab.sim.programs.publishers.tellers import PatientTeller, Teller
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.blocking import BlockingProducer, BlockingReader
from weir_lab.sim.programs.shipped.consumers import ShippedConsumer
from weir_lab.sim.programs.shipped.errands import ShippedPublisher, ShippedWork
from weir_lab.sim.programs.shipped.parcels import ShippedPorter, ShippedSender
from weir_lab.sim.programs.shipped.process import Shipped
from weir_lab.sim.programs.shipped.producers import ShippedProducer
from weir_lab.sim.programs.shipped.readers import ShippedReader
from weir_lab.sim.programs.shipped.relays import ShippedRelay
from weir_lab.sim.programs.shipped.scatterers import ShippedScatterer
from weir_lab.sim.programs.shipped.schemas import ShippedSchemaPublisher
from weir_lab.sim.programs.shipped.sinks import ShippedSink
from weir_lab.sim.programs.shipped.terminals import ShippedSub, ShippedTail
from weir_lab.sim.programs.subscribers.cutters import Cutter
from weir_lab.sim.programs.subscribers.keepers import KeyedConsumer, OrderedConsumer
from weir_lab.sim.programs.subscribers.order_readers import OrderReader
from weir_lab.sim.programs.subscribers.planners import Planner
from weir_lab.sim.programs.subscribers.readers import Consumer, Onlooker, Reader
from weir_lab.sim.programs.subscribers.receivers import Receiver
from weir_lab.sim.programs.subscribers.takers import Seeker, Taker
from weir_lab.sim.shape import LEAST_BUDGET, Shape, cast

if TYPE_CHECKING:
    from weir_lab.sim.programs.shipped.apps import Office

CLUSTER = "crew"
FIELD = "field"
ORDER = "order"
CREW = "turns"
MILL = "mill"
#: How likely one reads or consumes from brokers, where there are relays.
_DIRECT = 0.3


class Domain(NamedTuple):
    """How many read in total order, and tell of it; whether partitions join meanwhile; how many
    take turns at it, and how many scatter; whether a partition ends meanwhile; and whether the
    client as it ships does what it can of that.
    """

    readers: int
    grows: bool
    takers: int = 0
    scatterers: int = 0
    ends: bool = False
    shipped: bool = False
    #: How many processes run handlers.
    apps: int = 0
    #: How many parcels there are.
    parcels: int = 0
    #: How many Spark queries read, and terminals show and take.
    queries: int = 0
    tails: int = 0
    subs: int = 0
    #: How many errands there are for the processes of `weir work`.
    errands: int = 0
    #: How often each of two clients adds a version of a schema or publishes a value of one.
    typed: int = 0
    #: How many batches each of two queries writes to a topic.
    sunk: int = 0
    #: How many queries write to the topic, by staging and publishing.
    sinkers: int = 0
    #: How many relays there are, by which some read and consume.
    relays: int = 0


def _fleet(scene: Scene, shape: Shape) -> list[Program]:
    """Return devices that prove their identity, and are replaced meanwhile."""
    programs: list[Program] = []
    coming: list[FleetHub] = []
    for number in range(shape.replaced):
        hub, partition, each = FIRST + number, number % scene.partitions, shape.device_messages
        old = FleetHub(scene, f"old{number}", hub, partition, each, 0)
        new = FleetHub(scene, f"new{number}", hub, partition, each, 1)
        old.successor = new
        coming.append(new)
        programs += [old, new]
    return [*programs, Registrar(scene, "registrar", coming)] if programs else []


def _unfinished(*kinds: Sequence[Program | Shipped]) -> Program | Shipped | None:
    """Return the first program that is not finished."""
    return next((one for one in chain.from_iterable(kinds) if not one.finished), None)


class Workload:
    """The programs of one run."""

    #: The publisher and the reader that were not finished at the last look, which follows each
    #: event: mostly they are not finished yet.
    _begun: Program | Shipped | None = None
    _reading: Program | Shipped | None = None

    def __init__(self, scene: Scene, shape: Shape, operated: bool, domain: Domain) -> None:
        """Make them; `start` lets them go, each when chance has it."""
        self._world = scene.world
        shape = cast(scene.world, shape)
        parts, batches, each, pen = scene.partitions, shape.batches, shape.device_messages, Pen()
        #: Of the simulated producers one is left, for what no honest client does.
        twins = min(shape.producers, 1) if domain.shipped else shape.producers
        self.producers: list[Program | Shipped] = [*_fleet(scene, shape),
            *(Producer(scene, f"p{n}", n % parts, batches) for n in range(twins)),
            *(Hasty(scene, f"hasty{n}", n % parts, 2 * batches) for n in range(shape.hasty)),
            *(Hub(scene, f"hub{n}", 7000 + n, n % parts, each) for n in range(shape.hubs)),
            *(Author(scene, f"author{n}", -1 % parts, 2 * batches, pen)
              for n in range(shape.authors)),
        ]  # fmt: skip
        self.readers: list[Reader | OrderReader | Shipped] = []
        self.relays = self._relays(scene, domain.relays * domain.shipped)
        if domain.shipped:
            self._add_shipped(scene, shape, domain)
        else:
            self.readers += [Reader(scene, f"reader{n}", n) for n in range(parts)]
        for n in range(0 if domain.shipped else domain.readers):
            reader = OrderReader(scene, f"order{n}")
            self.readers.append(reader)
            teller = Teller if n % 2 else PatientTeller
            self.producers.append(teller(scene, f"teller{n}", n % parts, batches, reader))
        if domain.readers:
            self.producers += [Cutter(scene, f"cutter{n}") for n in range(shape.cutters)]
            self.producers += [Planner(scene, f"planner{n}") for n in range(shape.planners)]
        self.producers += [Sinker(scene, f"writer{n}", batches) for n in range(domain.sinkers)]
        if domain.grows:
            newcomer = Newcomer(scene, "newcomer", parts, batches)
            self.producers += [Grower(scene, "grower"), newcomer]
        self.producers += [Ender(scene, "ender")] if domain.ends else []
        takers = 0 if domain.shipped else domain.takers
        self.readers += [Taker(scene, f"taker{n}", CREW) for n in range(takers)]
        if takers:
            self.producers.append(Seeker(scene, "seeker", CREW))
        self.consumers: list[Consumer | Shipped] = [
            Consumer(scene, f"consumer{n}", 0, CLUSTER)
            for n in range(0 if domain.shipped else shape.consumers)
        ]
        if domain.scatterers and domain.shipped:
            for n in range(domain.scatterers):
                name = f"shippedscatterer{n}"
                self.producers.append(ShippedScatterer(scene, name, batches, MILL))
            self.consumers.append(ShippedConsumer(scene, "shippedmiller", MILL, Mode.SHARED))
        elif domain.scatterers:
            self._add_mill(scene, domain.scatterers, batches)
        keeper: type[Consumer] = scene.world.dice.choice((KeyedConsumer, OrderedConsumer))
        if domain.shipped:
            self._add_shipped_consumers(scene, shape, domain, keeper.mode)
        else:
            self.consumers += [
                keeper(scene, f"keeper{n}", -1 % parts, ORDER) for n in range(shape.keepers)
            ]
        self._office: Office | None = None
        if domain.shipped:
            self._add_beside(scene, domain)
        # The least budget has no room for a subscription.
        room = scene.brokers.machine.shard.budget_bytes > LEAST_BUDGET
        self.receivers = [
            Receiver(scene, f"lock{n}", 8000 + n, 0, FIELD)
            for n in range(shape.receivers if room else 0)
        ]
        self.onlookers = [Onlooker(scene, f"onlooker{n}") for n in range(shape.onlookers)]
        drains = shape.nodes > REPLICAS_DEFAULT
        self.stewards = [Steward(scene, f"steward{n}", drains) for n in range(shape.stewards)]
        self.operators = (
            [Operator(scene, "operator", 0, CLUSTER)] if operated and shape.consumers else []
        )

    def _relays(self, scene: Scene, count: int) -> list[ShippedRelay]:
        """Return relays, of which one may pull from another."""
        names = [f"relay{n}" for n in range(count)]
        return [
            ShippedRelay(scene, name, names[:n] if self._world.chance(0.5) else ())
            for n, name in enumerate(names)
        ]

    def _by(self) -> Sequence[str]:
        """Draw by which relays somebody reads or consumes; by none of them, it is from brokers."""
        dice, names = self._world.dice, [relay.name for relay in self.relays]
        if not names or self._world.chance(_DIRECT):
            return ()
        return dice.sample(names, dice.randint(1, len(names)))

    def _add_mill(self, scene: Scene, scatterers: int, times: int) -> None:
        """Let some scatter, for what a cluster of theirs is granted; another one of it acks."""
        partition = scene.world.dice.randrange(scene.partitions)
        self.producers += [
            Scatterer(scene, f"scatterer{n}", times, partition, MILL) for n in range(scatterers)
        ]
        self.consumers.append(Consumer(scene, "miller", partition, MILL))

    def _add_shipped(self, scene: Scene, shape: Shape, domain: Domain) -> None:
        """Let the client as it ships publish and read."""
        dice, parts, batches = self._world.dice, scene.partitions, shape.batches
        for n in range(max(shape.producers - 1, 1)):
            partition = dice.choice((None, n % parts))
            kind = BlockingProducer if shape.blocking and not n else ShippedProducer
            self.producers.append(kind(scene, f"shipped{n}", partition, batches))
        self.readers.append(ShippedReader(scene, "shippedreader", "partition", relays=self._by()))
        for n in range(domain.readers):
            stays = domain.grows and not n
            name = f"shippedorder{n}"
            self.readers.append(ShippedReader(scene, name, "total", stays, self._by()))
        if shape.blocking:
            order: Order = "total" if domain.readers else "partition"
            self.readers.append(BlockingReader(scene, "blockingreader", order))

    def _add_shipped_consumers(
        self, scene: Scene, shape: Shape, domain: Domain, keeps: Mode
    ) -> None:
        """Let the client as it ships consume, in all modes; in turns, of a topic in total order."""
        for n in range(shape.consumers):
            name = f"shippedconsumer{n}"
            self.consumers.append(ShippedConsumer(scene, name, CLUSTER, Mode.SHARED, self._by()))
        if scene.order == "total":
            keeps = Mode.KEYED
            for n in range(domain.takers):
                name = f"shippedtaker{n}"
                self.consumers.append(ShippedConsumer(scene, name, CREW, Mode.ORDERED, self._by()))
        for n in range(shape.keepers):
            name = f"shippedkeeper{n}"
            self.consumers.append(ShippedConsumer(scene, name, ORDER, keeps, self._by()))

    def _add_beside(self, scene: Scene, domain: Domain) -> None:
        """Let those take part that do not concern others."""
        self._add_parcels(scene, domain.parcels)
        self._add_apps(scene, domain.apps)
        self._add_queries(scene, domain.queries)
        self._add_terminals(scene, domain.tails, domain.subs)
        if domain.errands:
            errands = scene.history.errands = Errands()
            self.producers.append(ShippedPublisher(scene, "publisher", domain.errands, errands))
            self.consumers.append(ShippedWork(scene, "work", errands))
        if domain.typed and find_spec("fastavro") is not None:
            typed = scene.history.typed = Typed()
            self.producers += [
                ShippedSchemaPublisher(scene, f"schemas{n}", domain.typed, typed) for n in range(2)
            ]
        if domain.sunk and find_spec("pyarrow") is not None:
            sunk = scene.history.sunk = Sunk()
            self.producers += [ShippedSink(scene, f"sink{n}", domain.sunk, sunk) for n in range(2)]

    def _add_parcels(self, scene: Scene, count: int) -> None:
        """Let large values and delayed messages go, and be taken."""
        if not count:
            return
        parcels = scene.history.parcels = Parcels()
        self.producers.append(ShippedSender(scene, "sender", count, parcels))
        self.consumers += [ShippedPorter(scene, f"porter{n}", parcels) for n in range(2)]

    def _add_apps(self, scene: Scene, count: int) -> None:
        """Let handlers run, if the library is here that an inbox needs."""
        if not count or find_spec("sqlalchemy") is None:
            return
        from weir_lab.sim.programs.shipped.apps import Office, ShippedApp

        self._office = office = Office(scene)
        self.consumers += [ShippedApp(scene, f"app{n}", office) for n in range(count)]

    def _add_terminals(self, scene: Scene, tails: int, subs: int) -> None:
        """Let commands show what is there, and take it."""
        self.readers += [ShippedTail(scene, f"tail{n}") for n in range(tails)]
        if not subs:
            return
        printed = scene.history.printed = Printed()
        modes: tuple[ConsumerMode, ...] = ("shared", "keyed")
        mode = self._world.dice.choice(modes)
        self.consumers += [ShippedSub(scene, f"sub{n}", mode, printed) for n in range(subs)]

    def _add_queries(self, scene: Scene, count: int) -> None:
        """Let Spark queries read, if the libraries are here that their source needs."""
        if not count or find_spec("pyarrow") is None or find_spec("numpy") is None:
            return
        from weir_lab.sim.programs.shipped.queries import ShippedQuery

        self.readers += [ShippedQuery(scene, f"query{n}") for n in range(count)]

    def start(self) -> None:
        """Let all programs begin within the first moments."""
        for program in self._all():
            self._world.after(self._world.between(0, 50 * MS), program.start)

    def end_producing(self) -> None:
        """Begin nothing new."""
        for program in (*self.producers, *self.operators, *self.onlookers, *self.stewards):
            program.ending = True
        for one in self._all():
            if isinstance(one, Shipped | ShippedRelay):
                one.spared = True
        for reader in self._tellers():
            reader.quiet = True
        if self._office is not None:
            self._office.database.calm = True

    def _tellers(self) -> list[ShippedReader]:
        """Return the readers that publish, too."""
        return [one for one in self.readers if isinstance(one, ShippedReader)]

    def end_consuming(self) -> None:
        """Work off what is left, readers to the end, consumers until there is nothing to grant."""
        for reader in self.readers:
            reader.end()
        for consumer in self.consumers:
            if isinstance(consumer, Consumer):
                consumer.ending_since = self._world.now
            consumer.ending = True
        for receiver in self.receivers:
            receiver.end()

    def retire(self) -> None:
        """Let all programs be over."""
        for program in self._all():
            program.retire()
        if self._office is not None:
            self._office.close()

    def produced(self) -> bool:
        """Whether everything that was begun is confirmed, and the cluster goes on."""
        if self._begun is None or self._begun.finished:
            self._begun = _unfinished(self.producers, self.operators, self.stewards)
        return self._begun is None and not any(one.telling for one in self._tellers())

    def consumed(self) -> bool:
        """Whether readers are at the end and the cluster has nothing left."""
        if self._reading is None or self._reading.finished:
            self._reading = _unfinished(self.readers, self.consumers, self.receivers)
        return self._reading is None

    def _all(self) -> Iterable[Program | Shipped | ShippedRelay]:
        return (
            *self.relays,
            *self.producers,
            *self.readers,
            *self.consumers,
            *self.receivers,
            *self.operators,
            *self.onlookers,
            *self.stewards,
        )
