"""The exception tree of weir. Every error that crosses the wire has a number, fixed for ever.

WeirError
├── TooManyInHand           messages without an outcome, at the limit: ack them
├── LocalProtocolError      this side broke the dialect: a bug here
├── RemoteProtocolError     the peer broke the dialect: drop the peer
├── BadBatch                bytes are not what was sent: send again
├── Damaged                 the log lost bytes that were durable
├── UnknownVersion          a file of another release
├── DiskFailed              the disk refused: the process must end
├── MissingLibrary          an extra is not installed
├── WrongKey                no key file here opens a secret
├── NoJava                  no runtime for Spark
├── BadOption, RangeLost,   a Spark query cannot begin, or go on
│   CheckpointMismatch, ValueTooLarge
├── LakeMismatch            a lake cannot take what is to be archived there
├── BadPipeline             a pipeline's file or functions cannot be run
├── NotWritable             a folder that a job writes to takes nothing more
├── BadValue                it does not fit the schema that its producer names
├── Disconnected            no answer: it may or may not have happened
└── Refused                 a numbered answer of the broker
    ├── retry-able: Overloaded, Revoked, NotLeader, Unavailable, BadChecksum;
    │               StampTooFar for a moment
    └── final: the rest
"""

from __future__ import annotations

from typing import ClassVar


class WeirError(Exception):
    """The base of all errors that weir raises on purpose."""


class TooManyInHand(WeirError):
    """A task asked for more while it has the most messages in hand, all of them without an outcome:
    ack each, or give it back, before the next.
    """


class Reject(Exception):
    """Raise it in a handler, or in the block of a message: it will never work, take it to the
    dead-letter topic.
    """


class LocalProtocolError(WeirError):
    """This side sent what the protocol does not allow: a bug in weir."""


class RemoteProtocolError(WeirError):
    """The peer sent what the protocol does not allow; its connection is closed."""


class BadBatch(WeirError):
    """Bytes that claim to be a batch and are not, or not the one that was sent to this place."""


class Damaged(WeirError):
    """A log lost bytes that had been durable, or holds what no release of weir wrote there."""

    #: Where in the log that is, if it is one place.
    position: int = 0


class UnknownVersion(WeirError):
    """A file was written by another release, in a version that this one does not read; `newest` is
    the newest one that it reads, `version` what it met.
    """

    def __init__(self, message: str, version: int = 0, newest: int = 0) -> None:
        """Take a sentence that says what to do, and both versions where they are known."""
        super().__init__(message)
        self.version = version
        self.newest = newest

    @property
    def is_newer(self) -> bool:
        """Whether a newer release wrote it."""
        return isinstance(self.version, int) and self.version > self.newest > 0


class DiskFailed(WeirError):
    """A write or sync failed. What the page cache holds is unknown, so the process must end."""


class MissingLibrary(WeirError):
    """What is asked for needs an optional library; the text names the extra to install."""


class WrongKey(WeirError):
    """A secret at rest cannot be unwrapped: by this key file, or for this purpose."""


class NoJava(WeirError):
    """No Java runtime that can run Spark was found."""


class BadOption(WeirError):
    """An option of `format("weir")` is missing, unknown or out of range."""


class CheckpointMismatch(WeirError):
    """A Spark checkpoint is of another topic than the broker has under this name."""


class RangeLost(WeirError):
    """The broker no longer holds all messages of a range that a Spark query was promised. What is
    gone is `first` up to but not including `behind`, if the broker has what follows.
    """

    def __init__(self, message: str, first: int = 0, behind: int = 0) -> None:
        """Take a sentence that says what to do, and where messages are again."""
        super().__init__(message)
        self.first = first
        self.behind = behind


class LakeMismatch(WeirError):
    """A lake keeps another topic, or has other messages than a query goes on with."""


class BadPipeline(WeirError):
    """A pipeline's file, its functions, or a step of it cannot be run as they are."""


class NotWritable(WeirError):
    """A folder that a job writes to takes nothing more: its disk is full, or this user may not."""


class ValueTooLarge(WeirError):
    """A message's value is larger than a Spark query may load."""


class BadValue(WeirError):
    """A value does not fit the schema that its producer names; `place` is its place among those
    that were given together.
    """

    def __init__(self, message: str, place: int = 0) -> None:
        """Take a sentence that says what does not fit."""
        super().__init__(message)
        self.place = place


class Disconnected(WeirError):
    """The connection ended or the time ran out before the answer came."""


class Refused(WeirError):
    """A numbered refusal. `code` is on the wire; `detail` carries what a client needs to go on."""

    code: ClassVar[int] = 1
    #: Whether trying again may help; of `StampTooFar` whoever was refused knows.
    retryable: bool = False

    def __init__(self, message: str, detail: int = 0) -> None:
        """Take a sentence that says what to do, and one number (see the class) for programs."""
        super().__init__(message)
        self.detail = detail


class BadRequest(Refused):
    """The request does not fit its schema or a limit."""

    code = 2


class Unauthorized(Refused):
    """The principal may not do that."""

    code = 3


class UnknownTopic(Refused):
    """No topic of that name or id."""

    code = 4


class TopicExists(Refused):
    """A topic of that name exists with other settings."""

    code = 5


class BadName(Refused):
    """A name breaks the naming rule."""

    code = 6


class TooLarge(Refused):
    """Over a size limit; `detail` is the limit in bytes."""

    code = 7


class BadChecksum(Refused):
    """The bytes changed in transit: send them again (Minos §3.3, hash check and resend)."""

    code = 8
    retryable = True


class SequenceGap(Refused):
    """Sequences are missing; `detail` is the expected one: rewind and send from there."""

    code = 9


class SequenceReused(Refused):
    """The sequence was used with other bytes, or is older than the kept answers.

    A device that has lost count, or used all its sequences, begins a new boot.
    """

    code = 10


class Fenced(Refused):
    """A newer epoch of this producer exists; `detail` is that epoch."""

    code = 11


class ProducerExpired(Refused):
    """The producer id is older than the dedupe horizon: open a new producer."""

    code = 12


class UnknownProducer(Refused):
    """The producer id was never granted, or to another principal."""

    code = 13


class StampTooFar(Refused):
    """The last seen stamp lies too far in the future; `detail` is the highest one accepted. Where
    that is not far off, two sound clocks differ: producers wait for the slower one by themselves.
    """

    #: What a producer waits until it tries again.
    wait_seconds: float = 0.0

    code = 14


class Overloaded(Refused):
    """The byte budget is used up; try again after `detail` milliseconds."""

    code = 15
    retryable = True


class Revoked(Overloaded):
    """The frame was not read to its end, because others waited for its memory and it was the
    slowest; the connection is closed behind this answer. Connect and send it again after `detail`
    milliseconds.
    """

    code = 55


class NotLeader(Refused):
    """Another node or shard leads this partition; `detail` is the leader's node, 0 if that is not
    known here.
    """

    code = 16
    retryable = True


class Unavailable(Refused):
    """The partition cannot serve now (starting, stopping, or halted)."""

    code = 17
    retryable = True


class OffsetOutOfRange(Refused):
    """No such offset; `detail` is the nearest one that exists."""

    code = 18


class UnknownCluster(Refused):
    """No consumer cluster of that name reads this topic."""

    code = 19


class StaleGrant(Refused):
    """The grant expired and went to another consumer; the messages will be done there.

    `detail` is its fencing number; negative if it is that of a turn in total order in which all
    that the request says was done before it ended: it was made before, and its answer was lost.
    """

    code = 20


class NoHello(Refused):
    """The connection must say hello first."""

    code = 21


class UnknownOpcode(Refused):
    """The opcode is not part of this dialect."""

    code = 22


class WrongSystem(Refused):
    """The peer belongs to another system."""

    code = 23


class Halted(Refused):
    """The partition met an entry it does not know and stopped; upgrade this node."""

    code = 24


class DamagedRange(Refused):
    """The log lost bytes that had been durable: of the messages asked for, or of what this
    partition needs to take more. `detail` is their position in the log; the text names file and
    remedy.
    """

    code = 42


class ValueLost(Refused):
    """Chunks of a large value are not there: expired, replaced, or past retention.

    `detail` is how many bytes of it are there.
    """

    code = 28


class NotSubscribed(Refused):
    """The device must subscribe first, on this connection."""

    code = 38


class ClusterInUse(Refused):
    """The cluster has `detail` consumers at work: stop them first."""

    code = 32


class UnknownNode(Refused):
    """The set has no node with this number, or no longer has it."""

    code = 50


class NodeInUse(Refused):
    """The node holds `detail` groups that must go elsewhere first."""

    code = 51


class LevelTooHigh(Refused):
    """A node does not support this format level; `detail` is the highest that all support."""

    code = 52


class NotTogether(BadRequest):
    """The topics do not name each other in `scatter_with`."""

    code = 53


class PartitionEnded(Refused):
    """The partition has ended, or is about to: nothing is published to it any more, and this was
    not. Publish to another one; `detail` is the number of this one.
    """

    code = 54


class ErasedBoot(BadRequest):
    """The boot count is 0xFFFFFFFF, which erased flash reads as: taken, it would fence the hub for
    ever. Store a lower boot count, and send that.
    """

    code = 56


class UnknownSchema(Refused):
    """The topic's schema has no version of this number; `detail` is the newest one's, 0 if it has
    none: add it by `weir schema add`.
    """

    code = 57


class IncompatibleSchema(BadRequest):
    """The topic's rule does not let this version follow the one before; the text names the field.
    `detail` is the number of the version before.
    """

    code = 58


class LevelTooLow(Refused):
    """The set writes an older format level, `detail`, that cannot hold this: once all nodes run a
    release that supports the level that the text names, raise it by `weir node raise-level`.
    """

    code = 59


class NotAuthenticated(Refused):
    """Nobody was let in by this name and secret: unknown, wrong, expired and revoked read alike.
    Check name, secret and clock.
    """

    code = 60


class UserExists(Refused):
    """A user of this name is there already: set its password, or revoke it first."""

    code = 62


class UnknownUser(Refused):
    """No user of this name: `weir user list` names those that are there."""

    code = 63


class UnknownRole(Refused):
    """No role of this name: `weir role list` names those that are there."""

    code = 64


class AccessRevoked(Refused):
    """What this connection was let in for, or used, is not allowed to it any more; so it ended, and
    all that it waited for. Log in again to do what is still allowed.
    """

    code = 65


class ProofNeeded(Refused):
    """The hub is one of a fleet, whose devices prove who they are: answer the challenge by a proof,
    with the device's secret.
    """

    code = 66


class QuotaExceeded(Refused):
    """A namespace or a principal has as much as its quota allows; the text names the quota, and
    `detail` is its limit. Nothing was done: free some of it, or have the quota raised.
    """

    code = 70


class TopologyChanged(Refused):
    """Another topology was applied meanwhile: `detail` is its version. Nothing was changed: look at
    the difference from that one, then apply it again.
    """

    code = 80


class BatchPublished(Refused):
    """The query has published this batch, or a later one, in this topic already: `detail` is the
    number of the last one. Nothing was published again.
    """

    code = 61


class StagedRunGone(Refused):
    """What was staged is not there any more: it expired an hour after its last batch, or another
    attempt of the batch was published. Stage the batch again; `detail` is the number of the run.
    """

    code = 67


def _tree(kind: type[Refused]) -> list[type[Refused]]:
    return [kind, *(k for child in kind.__subclasses__() for k in _tree(child))]


BY_CODE: dict[int, type[Refused]] = {kind.code: kind for kind in _tree(Refused)}


def refusal(code: int, message: str, detail: int = 0) -> Refused:
    """Return the exception for a numbered refusal; an unknown number stays a plain `Refused`."""
    return BY_CODE.get(code, Refused)(message, detail)
