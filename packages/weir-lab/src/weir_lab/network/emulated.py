"""Networks of places on one machine: a namespace for each and one switch between them, or, without
devices, a TCP proxy in front of each port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.testing.nodes import HOST, free_ports
from weir_lab.network.carriers import Pair, PlacesNetwork
from weir_lab.network.links import Link
from weir_lab.network.namespaces import Namespace, ip_batch
from weir_lab.network.proxy import MARK, ProxyPlan
from weir_lab.network.switch import Listen, Plan

_MTU = 1_500
#: Packets that wait in a device until the switch reads them.
_QUEUE = 10_000


class EmulatedNetwork(PlacesNetwork):
    """Places with an address each, and links between them, until `close`.

    The first place is that of this process. Processes of another one are started by a command that
    begins with `before(place)`; what runs in a place keeps its namespace.
    """

    kind = "tun"

    def __init__(
        self, places: Sequence[str], links: Mapping[Pair, Link], seed: int = 1
    ) -> None:  # fmt: skip
        """Make it; `namespaces.enter` comes first. Raises `NoNetwork`, and `ValueError` for links
        or places that cannot be.
        """
        super().__init__(places, links)
        self._spaces: dict[str, Namespace] = {}
        devices = [f"weir{number}" for number in range(len(places))]
        plan = Plan(
            devices,
            [self.address(place) for place in places],
            self._connections(links),
            seed,
        )
        try:
            self._start(
                "weir_lab.network.switch", plan,
                "devices cannot be made here; be root and have /dev/net/tun, or use proxies",
            )  # fmt: skip
            ip_batch(["link set lo up", *self._up(devices[0], places[0])])
            for place, device in zip(places[1:], devices[1:], strict=True):
                space = self._spaces[place] = Namespace()
                self._stack.callback(space.close)
                ip_batch([f"link set {device} netns {space.pid}"])
                ip_batch(["link set lo up", *self._up(device, place)], space.before)
        except BaseException:
            self.close()
            raise

    def address(self, place: str) -> str:
        """Return the address of a place."""
        return f"10.77.0.{self._numbers[place] + 1}"

    def listen(self, place: str, port: int) -> int:
        """Return at which port a process of a place listens that others reach at `port`."""
        return port

    def before(self, place: str) -> tuple[str, ...]:
        """Return what a command begins with that runs in a place."""
        space = self._spaces.get(place)
        return () if space is None else space.before

    def _up(self, device: str, place: str) -> list[str]:
        return [
            f"link set {device} mtu {_MTU} txqueuelen {_QUEUE}",
            f"addr add {self.address(place)}/24 dev {device}",
            f"link set {device} up",
        ]


class ProxiedNetwork(PlacesNetwork):
    """Places that share an address, and links between them, until `close`.

    A process of a place is started by a command that begins with `before(place)`, and listens where
    `listen` says. Bytes are those of streams, not of packets, and nothing is lost on a link.
    """

    kind = "proxies"

    def __init__(
        self, places: Sequence[str], links: Mapping[Pair, Link], seed: int = 1
    ) -> None:  # fmt: skip
        """Make it. Raises `NoNetwork`, and `ValueError` for links or places that cannot be."""
        super().__init__(places, links)
        plan = ProxyPlan(list(places), self._connections(links), seed)
        self._start("weir_lab.network.proxy", plan, "the proxies do not start")

    def address(self, place: str) -> str:
        """Return the address of a place, which all have."""
        return HOST

    def before(self, place: str) -> tuple[str, ...]:
        """Return what a command begins with that runs in a place."""
        return ("env", f"{MARK}={place}")

    def listen(self, place: str, port: int) -> int:
        """Return at which port a process of a place listens that others reach at `port`. Raises
        `NoNetwork`.
        """
        (target,) = free_ports(1)
        self._carrier.ask(Listen(self._numbers[place], port, target))
        return target
