"""What goes wrong: each error says what to do about it."""

from __future__ import annotations


class TocError(Exception):
    """The base of all errors that this distribution raises."""


class PacketError(TocError):
    """A packet that is damaged, too short, too long or of an unknown kind. It is dropped."""


class InvalidTopology(TocError):
    """A network that cannot be built, or a place that is not in it."""


class InvalidScattering(TocError):
    """A call of send that nobody could carry out: nobody addressed, one twice, a part too large."""


class SendBufferFull(TocError):
    """Too much waits to be sent. Wait until some of it has left, then send again."""


class Fenced(TocError):
    """This process was silent for too long and others go on without it: join again."""
