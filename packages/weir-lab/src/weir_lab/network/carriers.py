"""Networks of places on one machine, whatever carries their bytes: what all of them have."""

from __future__ import annotations

import select
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import msgspec

from weir.server.interpreter import environment, python
from weir_lab.network.links import Count, Link, Way
from weir_lab.network.namespaces import NoNetwork
from weir_lab.network.switch import Connection, Cut, Listen, Tell, Told

_ANSWER_S = 20.0
PLACES_MAX = 200
#: From one place to another.
Pair = tuple[str, str]


class PlacesNetwork:
    """Places and links between them, until `close`. The first place is that of this process."""

    def __init__(self, places: Sequence[str], links: Mapping[Pair, Link]) -> None:
        """Take the names of places, and the links. Raises `ValueError` for what cannot be."""
        if not 1 <= len(places) <= PLACES_MAX or len({*places}) < len(places):
            raise ValueError(f"1 to {PLACES_MAX} places are possible, each with another name")
        for link in links.values():
            link.check()
        self._numbers = {place: number for number, place in enumerate(places)}
        self._names = tuple(places)
        self._pairs = tuple(links)
        self._stack = ExitStack()

    def _start(self, module: str, plan: object, wrong: str) -> CarrierProcess:
        """Start what carries bytes. Raises `NoNetwork`."""
        self._carrier = self._stack.enter_context(CarrierProcess(module, plan, wrong))
        return self._carrier

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Let nothing through from the first place of each pair to the second one."""
        self._carrier.ask(Cut([self._way(pair) for pair in pairs], is_cut=True))

    def heal(self, pairs: Iterable[Pair]) -> None:
        """Undo `cut`."""
        self._carrier.ask(Cut([self._way(pair) for pair in pairs], is_cut=False))

    def isolate(self, place: str) -> None:
        """Cut a place off from all others, in both directions."""
        self.cut(self._around(place))

    def rejoin(self, place: str) -> None:
        """Undo `isolate`."""
        self.heal(self._around(place))

    def counts(self) -> dict[Pair, Count]:
        """Return what came to each link since the beginning."""
        names = self._names
        told = self._carrier.ask(Tell()).counts
        return {(names[source], names[target]): count for (source, target), count in told}

    def close(self) -> None:
        """End what carries bytes, and give up all that was made."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def _around(self, place: str) -> list[Pair]:
        return [pair for pair in self._pairs if place in pair]

    def _connections(self, links: Mapping[Pair, Link]) -> list[Connection]:
        return [Connection(self._way(pair), link) for pair, link in links.items()]

    def _way(self, pair: Pair) -> Way:
        return self._numbers[pair[0]], self._numbers[pair[1]]


class CarrierProcess:
    """A process that carries bytes between places, and ends with this one."""

    def __init__(self, module: str, plan: object, wrong: str) -> None:
        """Run a module, which is told a plan first. Raises `NoNetwork`, with what is `wrong`."""
        #: No pipe: nobody reads it while the process runs, and a full one would stop it.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lasts as long as this)
        self._process = subprocess.Popen(
            python(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, env=environment(),
            start_new_session=True,  # Ctrl-C is for those who use the network, which goes last
        )  # fmt: skip
        self._ask(plan, wrong)

    def ask(self, command: Cut | Tell | Listen) -> Told:
        """Return the answer to a command. Raises `NoNetwork`."""
        return self._ask(command, "what carries the bytes of the network is gone")

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
            raise NoNetwork(f"{wrong}: {self._end()}")
        return msgspec.json.decode(line, type=Told)

    def _end(self) -> str:
        """End the process; return what it said last on stderr."""
        process = self._process
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        for pipe in (process.stdin, process.stdout, self._errors):
            with suppress(BrokenPipeError):  # what was not written is not wanted any more
                pipe.close()
        return lines[-1] if lines else "it said nothing"

    def __enter__(self) -> CarrierProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end()


def all_pairs(places: Sequence[str], link: Callable[[str, str], Link]) -> dict[Pair, Link]:
    """Return the links between any two of the places, in both directions."""
    return {(one, other): link(one, other) for one in places for other in places if one != other}
