"""What a host gives: transports, its network, timers, a log, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol, TypeVar

from weir.codec import Buffer

#: Calls what it is given behind this turn of the host.
Soon = Callable[[Callable[[], None]], object]
#: Calls what it is given after so many seconds, and has the shard take what comes of it. Returns
#: what to call if that is not wanted any more.
Later = Callable[[float, Callable[[], None]], Callable[[], None]]


class Transport(Protocol):
    """What carries a connection's bytes, as asyncio's do. What it is asked for comes in order."""

    def write(self, data: Buffer) -> None:
        """Send bytes, or keep what is not taken."""

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send buffers as one."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are not sent."""

    def pause_reading(self) -> None:
        """Hand on no more bytes."""

    def resume_reading(self) -> None:
        """Hand bytes on again."""

    def can_write_eof(self) -> bool:
        """Return whether one direction can be closed alone."""

    def write_eof(self) -> None:
        """Close this direction once all is sent."""

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""

    def close(self) -> None:
        """Close once all is sent."""

    def abort(self) -> None:
        """Close at once."""


T = TypeVar("T", bound=Transport)
T_contra = TypeVar("T_contra", bound=Transport, contravariant=True)


class Receiver(Protocol):
    """A receiver of replies: a connection, or a peer of another shard."""

    def send(self, buffers: tuple[Buffer, ...], charged: int) -> None:
        """Send buffers in order; `charged` bytes of the budget come back once they are out."""

    def answer(self, reply: bytes) -> None:
        """Send a small reply."""

    def hang_up(self, reason: str) -> None:
        """Close once everything sent is out."""


class Network(Protocol[T_contra]):
    """What a host knows of its network besides what a transport says."""

    #: The addresses of other nodes, as far as they are known: those are let in before clients.
    found: Container[str]

    def address(self, transport: T_contra) -> str:
        """Return the address of a peer; empty if it has none."""

    def is_gone(self, transport: T_contra) -> bool:
        """Return whether a peer has hung up from which nothing is read."""


class Log(Protocol):
    """Takes a text, what is filled into it, and fields, as a `logging.Logger` does."""

    def info(self, text: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        """Say what happens now and then."""

    def warning(self, text: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        """Say what an operator should know."""

    def error(self, text: str, *given: object, extra: Mapping[str, object] | None = None) -> None:
        """Say what should not have happened."""


class RandomSource(Protocol):
    """Draws numbers, as a `random.Random` does."""

    def getrandbits(self, bits: int, /) -> int:
        """Draw a number of so many bits."""

    def uniform(self, least: float, most: float) -> float:
        """Draw a number between two."""
