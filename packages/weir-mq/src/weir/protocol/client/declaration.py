"""What is declared of a request, in one place.

The class of a request holds its fields and says what they mean; its `declaration` says the rest.
The codec, the limits of frames, the broker's router with its access control, the golden frames and
docs/PROTOCOL.md follow from both. CONTRIBUTING.md has the steps to add a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, ClassVar, Literal

import msgspec

from weir.errors import Refused

#: What a principal may be allowed to do with a resource.
Verb = Literal[
    "administer",
    "alter",
    "change",
    "consume",
    "create",
    "delete",
    "describe",
    "list",
    "promote",
    "publish",
    "pull",
    "read",
    "restore",
    "steer",
]
#: The kinds of resources. A topic is named `NAMESPACE/TOPIC`, a cluster `NAMESPACE/TOPIC:CLUSTER`,
#: a namespace and a BrokerSet by itself; of systems there is but one, and its name is empty.
Kind = Literal["cluster", "namespace", "set", "system", "topic"]


class Asker(Enum):
    """Which peers may send a request at all."""

    STRANGER = "anybody, before hello"
    CLIENT = "any peer that said hello"
    SHARD = "another shard of the BrokerSet"


class Scope(Enum):
    """Which shard decides. The shard that a frame comes to passes it on there."""

    HERE = "the shard that receives it"
    COPY = "the shard that receives it, once its copy of the registry is up to date"
    REGISTRY = "the leader of the registry"
    PARTITION = "the leader of the partition in `address`"
    FIRST_PARTITION = "the leader of partition 0 of the topic; `address` is that partition's"
    REPLICA = "the leader of the partition in `address`; with `replica`, any node that holds it"
    HOLDER = "the shard that holds or would hold the partition, of the node that receives it"
    SHARD = "the shard in `place`"


class Resource(Enum):
    """What a verb is done with, as access control names it."""

    TOPIC = "the topic"
    CLUSTER = "the cluster"
    NAMESPACE = "the namespace"
    NAMESPACES = "the namespace, and that of `source`"
    SYSTEM = "the system"
    PARTS = "the topic or cluster of each part"
    TOPICS = "each of `topics`"
    LISTED = "each topic of the answer; the others are left out"
    ANY_TOPIC = "any topic"
    ANY_CLUSTER = "any cluster of the topic"
    SET = "the tandem or access set that is named; one of the topology needs this right"

    @property
    def kind(self) -> Kind:
        """The kind of resource that a rule must be of."""
        match self:
            case Resource.NAMESPACE | Resource.NAMESPACES:
                return "namespace"
            case Resource.SYSTEM:
                return "system"
            case Resource.CLUSTER | Resource.ANY_CLUSTER:
                return "cluster"
            case Resource.SET:
                return "set"
        return "topic"


class Retry(Enum):
    """What asking again does, if the answer was lost or a refusal says to try again."""

    READ = "It changes nothing: ask again at any time."
    SAME = "Asking again does what asking once does."
    NUMBERED = (
        "Ask again with the same bytes: it is recognized by its number, and done once. The answer "
        "says that it is a `duplicate`."
    )
    ANEW = (
        "Each request gets another one. What a lost answer granted expires, or only a number is "
        "lost."
    )


#: How a body is packed that is no MessagePack array, by name and type; numbers are little-endian.
#: `u8` and so on have no sign, `i64` has one; `address` is as `weir.model.ids.ADDRESS`; `pad4` are
#: zeros; `runs` as many pairs of i64, first and next, as the number of them says; `batches` all
#: that is left.
Layout = tuple[tuple[str, str], ...]


class Right(msgspec.Struct, frozen=True):
    """A principal may ask if it may do `verb` with `resource`."""

    verb: Verb
    resource: Resource


class Declaration(msgspec.Struct, frozen=True):
    """All that is to be known of a kind of request, besides its fields."""

    #: Its number, for ever; its reply has it as well.
    opcode: int
    #: Where it is decided.
    scope: Scope
    #: The class of its answer, unless it is refused; None: it has none, or a stream.
    answer: type[Any] | None
    retry: Retry
    #: One of these rights is enough. What clients may ask needs one, or says by `free` why not.
    rights: tuple[Right, ...] = ()
    #: Why no right is needed.
    free: str = ""
    asker: Asker = Asker.CLIENT
    #: Whether it or its answer carries batches, and may be as long as those.
    is_large: bool = False
    #: Refusals beyond those that any request of its scope may get.
    refusals: tuple[type[Refused], ...] = ()
    #: How its body and that of its answer are packed, where they are not MessagePack arrays.
    body: Layout = ()
    answer_body: Layout = ()
    #: The methods of the Python client that ask it; empty for what the client asks by itself.
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `TypeError` for what any principal could ask because a right was forgotten, or for
        what says two things about it.
        """
        said = bool(self.rights) + bool(self.free) + (self.asker is Asker.SHARD)
        if said != 1:
            raise TypeError(
                f"opcode {self.opcode} must declare the rights that it needs, or why it is free, "
                "or that only shards ask it: one of these"
            )


class Control(msgspec.Struct, frozen=True, array_like=True):
    """A control body: a MessagePack array of its fields."""


class Request(msgspec.Struct, frozen=True):
    """A request of the client dialect."""

    declaration: ClassVar[Declaration]


def rights_there_are(kinds: Iterable[type[Request]]) -> dict[Kind, tuple[Verb, ...]]:
    """Return by kind of resource, in order, which verbs these kinds of requests need."""
    found: dict[Kind, set[Verb]] = {}
    for kind in kinds:
        for right in kind.declaration.rights:
            found.setdefault(right.resource.kind, set()).add(right.verb)
    return {kind: tuple(sorted(found[kind])) for kind in sorted(found)}


class ControlRequest(Request, frozen=True, array_like=True):
    """A request whose body is a MessagePack array of its fields."""


class ControlReply(Control, frozen=True, array_like=True):
    """A reply whose body is a MessagePack array of its fields."""


def opcode_of(kind: type[Request]) -> int:
    """Return the number of a kind of request."""
    return kind.declaration.opcode
