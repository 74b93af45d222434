"""What a request declares is true of its fields, of the client's methods, and of nothing twice."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import weir
from weir.client import access, nodes, schemas, sinks
from weir.client import client as asynchronous
from weir.client.consumer import consumer as consumers
from weir.client.producer import producer as producers
from weir.client.sync import client as blocking
from weir.client.sync import consumer as leased_without_async
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login
from weir.protocol.client.declaration import (
    Asker,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
    opcode_of,
)
from weir.protocol.client.tokens import IssueToken, RenewToken

BY_CLIENTS = [kind for kind in m.REQUESTS if kind.declaration.asker is not Asker.SHARD]
#: What needs no right: who may ask is decided by other means.
FREE = {m.Hello, m.Ping, Login, IssueToken, RenewToken}
#: Rights with a cluster stand beside those with its topic.
BESIDES_TOPIC = {Resource.CLUSTER, Resource.ANY_CLUSTER, Resource.SET}
ADDRESSED = {Scope.PARTITION, Scope.FIRST_PARTITION, Scope.REPLICA, Scope.HOLDER}
TWINS: dict[str, tuple[Any, Any]] = {
    "Client": (asynchronous.Client, blocking.Client),
    "Producer": (producers.Producer, blocking.Producer),
    "Consumer": (consumers.Consumer, blocking.Consumer),
    "Schemas": (schemas.Schemas, blocking.Schemas),
    "Sink": (sinks.Sink, blocking.Sink),
    "Access": (access.Access, blocking.Access),
    "Fleets": (access.Fleets, blocking.Fleets),
    "Quotas": (access.Quotas, blocking.Quotas),
    "SystemTopology": (nodes.SystemTopology, blocking.SystemTopology),
    "LeasedMessage": (consumers.LeasedMessage, leased_without_async.LeasedMessage),
}
#: Methods of `Client` that ask nothing.
BESIDES = {"close", "wait_without_end"}


def subclasses(kind: type[Request]) -> Iterator[type[Request]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def names_of(kind: type[Any]) -> tuple[str, ...]:
    names: tuple[str, ...] = kind.__struct_fields__
    return names


@cache
def made_in(*folders: str) -> set[str]:
    """Return the names of all that the code of these folders calls."""
    root, found = Path(inspect.getfile(weir)).parent, set[str]()
    for path in (path for folder in folders for path in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name):
                found.add(node.id)
    return found


def test_every_request_is_listed_once_and_has_its_own_opcode() -> None:
    kinds = {kind for kind in subclasses(Request) if kind is not ControlRequest}
    assert kinds == set(m.REQUESTS)
    assert len(m.REQUESTS) == len(kinds) == len(set(map(opcode_of, kinds)))


@pytest.mark.parametrize("kind", m.REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_has_the_fields_that_say_where_and_on_what(kind: type[Request]) -> None:
    declared, names = kind.declaration, names_of(kind)
    if declared.scope in ADDRESSED:
        assert names[0] == "address"
    if declared.scope is Scope.REPLICA:
        assert "replica" in names
    if declared.scope is Scope.SHARD:
        assert "place" in names
    assert len({right.resource for right in declared.rights} - BESIDES_TOPIC) <= 1
    for right in declared.rights:
        about = {
            Resource.TOPIC: {"address", "name", "topic"},
            Resource.CLUSTER: {"cluster"},
            Resource.ANY_CLUSTER: {"address"},
            Resource.ANY_TOPIC: set(names),
            Resource.LISTED: {"namespace"},
            Resource.NAMESPACE: {"namespace", "name"},
            Resource.NAMESPACES: {"source"},
            Resource.PARTS: {"parts"},
            Resource.SET: {"message"},
            Resource.TOPICS: {"topics"},
            Resource.SYSTEM: set(names) or {""},
        }[right.resource]
        assert about & set(names) or right.resource is Resource.SYSTEM
    assert bool(declared.rights) == (kind in BY_CLIENTS and not declared.free)
    assert bool(declared.free) == (kind in FREE)


def test_what_needs_no_right_must_say_why() -> None:
    with pytest.raises(TypeError, match="opcode 250 must declare the rights"):
        Declaration(250, Scope.HERE, None, Retry.READ)
    right = Right("read", Resource.TOPIC)
    with pytest.raises(TypeError, match="opcode 250"):
        Declaration(250, Scope.HERE, None, Retry.READ, rights=(right,), free="it is cheap")
    with pytest.raises(TypeError, match="opcode 250"):
        Declaration(250, Scope.HERE, None, Retry.READ, free="it is cheap", asker=Asker.SHARD)
    assert Declaration(250, Scope.HERE, None, Retry.READ, free="it tells the time").free


@pytest.mark.parametrize("kind", m.REQUESTS, ids=lambda kind: kind.__name__)
def test_bodies_are_packed_in_the_order_of_their_fields(kind: type[Request]) -> None:
    declared = kind.declaration
    assert issubclass(kind, ControlRequest) == (not declared.body)
    packed = declared.answer is not None and not issubclass(declared.answer, ControlReply)
    assert packed == bool(declared.answer_body)
    for of, layout in ((kind, declared.body), (declared.answer, declared.answer_body)):
        if layout:
            named = {name for name, _ in layout if name and not name.startswith("number of ")}
            assert named == set(names_of(of))


@pytest.mark.parametrize("kind", BY_CLIENTS, ids=lambda kind: kind.__name__)
def test_methods_that_ask_it_are_there_with_and_without_async(kind: type[Request]) -> None:
    for method in kind.declaration.methods:
        owner, _, name = method.rpartition(".")
        if owner:
            for twin in TWINS[owner]:
                assert inspect.getdoc(getattr(twin, name)), f"{twin} has no {name}"
        else:
            assert callable(getattr(weir, name))
            assert callable(getattr(weir.sync, name))
    assert kind.__name__ in made_in("client", "spark", "relay_node"), "no client asks it"


def test_every_method_of_the_client_says_what_it_asks() -> None:
    declared = {one for kind in m.REQUESTS for one in kind.declaration.methods}
    public = {
        name
        for name, one in vars(asynchronous.Client).items()
        if inspect.isfunction(one) and not name.startswith("_")
    }
    assert {f"Client.{name}" for name in public - BESIDES} <= declared
