"""What goes wrong: each error says what to do about it."""

from __future__ import annotations


class TocError(Exception):
    """The base of all errors that this distribution raises."""


def first_error(error: BaseException) -> BaseException:
    """Return an error itself, and of a group of errors the first one that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class PacketError(TocError):
    """A packet that is damaged, too short, too long or of an unknown kind. It is dropped."""


class InvalidUse(TocError):
    """What nobody could carry out as it is asked; the words say what is possible."""


class InvalidTopology(InvalidUse):
    """A network that cannot be built, or a place that is not in it."""


class InvalidScattering(TocError):
    """A call of send that nobody could carry out: nobody addressed, one twice, a part too large."""


class SendBufferFull(TocError):
    """Too much waits to be sent. Wait until some of it has left, then send again."""


class Fenced(TocError):
    """This process was silent for too long and others go on without it: join again."""


class LogDamaged(TocError):
    """The file of a controller's member is damaged, or another's. It is left as it is."""


class LogInUse(TocError):
    """Another process has the file of a controller's member open."""


class ControlError(TocError):
    """A frame of the control protocol that is none. The connection that brought it ends."""


class CannotListen(TocError):
    """Nothing can be taken at an address; the words say at which one, and what to do."""


class SwitchTaken(TocError):
    """Another aggregator serves this switch. Stop one of the two."""


class ClockStopped(TocError):
    """The clock of this host stands still while its timers ring: repair it, then start again."""


class Refused(TocError):
    """The controller refused a request; its words say what to do."""


class NotSent(TocError):
    """A scattering never left: a receiver has failed, did not answer, or had no memory."""


class XdpError(TocError):
    """The kernel cannot run a switch, or not on this port; its words say what is missing."""
