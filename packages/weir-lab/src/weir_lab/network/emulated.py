"""A network of places on one machine: a namespace for each, and one switch between them."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType

import msgspec

from weir.server.interpreter import environment, python
from weir_lab.network.links import Count, Link, Way
from weir_lab.network.namespaces import Namespace, NoNetwork, ip_batch
from weir_lab.network.switch import Connection, Cut, Plan, Tell, Told

_ANSWER_S = 20.0
_MTU = 1_500
#: Packets that wait in a device until the switch reads them.
_QUEUE = 10_000
PLACES_MAX = 200
#: From one place to another.
Pair = tuple[str, str]


class EmulatedNetwork:
    """Places with an address each, and links between them, until `close`.

    The first place is that of this process. Processes of another one are started by a command that
    begins with `before(place)`.
    """

    def __init__(
        self, places: Sequence[str], links: Mapping[Pair, Link], seed: int = 1
    ) -> None:  # fmt: skip
        """Make it; `namespaces.enter` comes first. Raises `NoNetwork`, and `ValueError` for links
        or places that cannot be.
        """
        if not 1 <= len(places) <= PLACES_MAX or len({*places}) < len(places):
            raise ValueError(f"1 to {PLACES_MAX} places are possible, each with another name")
        for link in links.values():
            link.check()
        self._numbers = {place: number for number, place in enumerate(places)}
        self._names = tuple(places)
        self._pairs = tuple(links)
        self._spaces: dict[str, Namespace] = {}
        self._stack = ExitStack()
        devices = [f"weir{number}" for number in range(len(places))]
        plan = Plan(
            devices,
            [self.address(place) for place in places],
            [Connection(self._way(pair), link) for pair, link in links.items()],
            seed,
        )
        try:
            self._switch = self._stack.enter_context(_SwitchProcess(plan))
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

    def before(self, place: str) -> tuple[str, ...]:
        """Return what a command begins with that runs in a place."""
        space = self._spaces.get(place)
        return () if space is None else space.before

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Let nothing through from the first place of each pair to the second one."""
        self._switch.ask(Cut([self._way(pair) for pair in pairs], is_cut=True))

    def heal(self, pairs: Iterable[Pair]) -> None:
        """Undo `cut`."""
        self._switch.ask(Cut([self._way(pair) for pair in pairs], is_cut=False))

    def isolate(self, place: str) -> None:
        """Cut a place off from all others, in both directions."""
        self.cut(self._around(place))

    def rejoin(self, place: str) -> None:
        """Undo `isolate`."""
        self.heal(self._around(place))

    def counts(self) -> dict[Pair, Count]:
        """Return what came to each link since the beginning."""
        names = self._names
        told = self._switch.ask(Tell()).counts
        return {(names[source], names[target]): count for (source, target), count in told}

    def close(self) -> None:
        """End the switch, and give up the namespaces; what runs in one keeps it."""
        self._stack.close()

    def __enter__(self) -> EmulatedNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def _around(self, place: str) -> list[Pair]:
        return [pair for pair in self._pairs if place in pair]

    def _way(self, pair: Pair) -> Way:
        return self._numbers[pair[0]], self._numbers[pair[1]]

    def _up(self, device: str, place: str) -> list[str]:
        return [
            f"link set {device} mtu {_MTU} txqueuelen {_QUEUE}",
            f"addr add {self.address(place)}/24 dev {device}",
            f"link set {device} up",
        ]


class _SwitchProcess:
    """The process of the switch, which ends with this one."""

    def __init__(self, plan: Plan) -> None:
        """Start it. Raises `NoNetwork`."""
        self._process = subprocess.Popen(
            python("weir_lab.network.switch"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=environment(),
            start_new_session=True,  # Ctrl-C is for those who use the network, which goes last
        )  # fmt: skip
        self._ask(plan, "devices of networks cannot be made here")

    def ask(self, command: Cut | Tell) -> Told:
        """Return the answer to a command. Raises `NoNetwork`."""
        return self._ask(command, "the switch of the network is gone")

    def _ask(self, what: object, wrong: str) -> Told:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(what) + b"\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], (), (), _ANSWER_S)
            line = self._process.stdout.readline() if ready else b""
        except BrokenPipeError:
            line = b""
        if not line:
            raise NoNetwork(f"{wrong}: {self._end()}. Be root, and have /dev/net/tun")
        return msgspec.json.decode(line, type=Told)

    def _end(self) -> str:
        """End the process; return what it said last on stderr."""
        process = self._process
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stderr.closed:
            return ""
        lines = process.stderr.read().decode(errors="replace").splitlines()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):  # what was not written is not wanted any more
                pipe.close()
        return lines[-1] if lines else "it said nothing"

    def __enter__(self) -> _SwitchProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end()


def all_pairs(places: Sequence[str], link: Callable[[str, str], Link]) -> dict[Pair, Link]:
    """Return the links between any two of the places, in both directions."""
    return {(one, other): link(one, other) for one in places for other in places if one != other}
