"""Every request that clients may make, by every kind of role, path and mode: who may ask it, and
that nobody else may. What is expected is written down here by itself: it follows from no code of
the broker but the requests' declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.access import be, close_access, give, lose_topic, rule, set_mode
from rigs.shards import catalog_of
from weir.access.signatures import PrivateKey
from weir.broker.api import events as ev
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.rules import Rule
from weir.broker.records.security import RoleChanged
from weir.errors import Unauthorized, UnknownTopic
from weir.model.batch_builder import encode
from weir.model.ids import place_of
from weir.model.topic import Mode
from weir.protocol.client import access as w
from weir.protocol.client import admin as a
from weir.protocol.client import fleets as f
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.protocol.client import order as o
from weir.protocol.client import quotas as q
from weir.protocol.client import schemas as s
from weir.protocol.client import tokens as k
from weir.protocol.client import topology as y
from weir.protocol.client.declaration import Asker, Request, Resource
from weir.protocol.client.sinks import ForgetSink, ListSinks, PublicationPart, Publish, Stage
from weir.topology.sets import Topology

MINE, OTHER = "default/mine", "default/mine2"
CLUSTER = "work"
KEY = PrivateKey.from_seed(bytes(32)).public("k")
BATCH = bytes(encode([b"v"], group=1))
#: Requests of each kind, about topic `mine`, its partition, its cluster; a new one belongs here.
SAMPLES: dict[type[Request], Callable[[m.TopicInfo], m.Request]] = {
    m.OpenProducer: lambda _: m.OpenProducer(),
    m.Positions: lambda t: m.Positions(t.addresses[0]),
    m.Produce: lambda t: m.Produce(t.addresses[0], 0, memoryview(BATCH)),
    m.Fetch: lambda t: m.Fetch(t.addresses[0], 0, 100),
    m.FetchChunks: lambda t: m.FetchChunks(t.addresses[0], 1, 1, 1),
    m.DescribeTopic: lambda _: m.DescribeTopic("mine"),
    m.CreateTopic: lambda _: m.CreateTopic("default/more"),
    m.RestoreTopic: lambda _: m.RestoreTopic("default/more", source="default/old"),
    a.AlterTopic: lambda _: a.AlterTopic("mine"),
    a.EndPartition: lambda _: a.EndPartition("mine", 1),
    a.DeleteTopic: lambda _: a.DeleteTopic("mine"),
    a.DescribePartition: lambda t: a.DescribePartition(t.addresses[0]),
    a.AskStats: lambda t: a.AskStats(t.addresses[0]),
    a.AskLeader: lambda t: a.AskLeader(t.addresses[0]),
    a.ListClusters: lambda t: a.ListClusters(t.addresses[0]),
    a.TraceMessage: lambda t: a.TraceMessage(t.addresses[0], 0),
    a.BeginCluster: lambda t: a.BeginCluster(t.addresses[0], CLUSTER, 0),
    a.SeekCluster: lambda t: a.SeekCluster(t.addresses[0], CLUSTER, 0),
    a.PauseCluster: lambda t: a.PauseCluster(t.addresses[0], CLUSTER),
    a.DeleteCluster: lambda t: a.DeleteCluster(t.addresses[0], CLUSTER),
    a.ListHubs: lambda t: a.ListHubs(t.addresses[0]),
    a.ForgetHub: lambda t: a.ForgetHub(t.addresses[0], 7),
    m.AskBarriers: lambda t: m.AskBarriers(t.id),
    m.AwaitMark: lambda t: m.AwaitMark(t.id),
    m.ResolveCut: lambda _: m.ResolveCut(["mine"]),
    m.Scatter: lambda t: m.Scatter(1, 0, 1, 0, [o.Part(t.addresses[0], BATCH, [])]),
    Stage: lambda t: Stage(t.addresses[0], "q", 1, 2, 0, BATCH),
    ListSinks: lambda t: ListSinks(t.addresses[0]),
    m.DescribeRelay: lambda _: m.DescribeRelay(),
    m.AskRelay: lambda t: m.AskRelay(t.addresses[0], b""),
    ForgetSink: lambda t: ForgetSink(t.addresses[0], "q"),
    Publish: lambda t: Publish(1, 0, 1, 0, "q", 1, [PublicationPart(t.addresses[0], BATCH)]),
    m.OpenCluster: lambda t: m.OpenCluster(t.addresses[0], CLUSTER, Mode.SHARED),
    m.Pull: lambda t: m.Pull(t.addresses[0], CLUSTER, 1, 1),
    m.MoveGrants: lambda t: m.MoveGrants(t.addresses[0], CLUSTER, bytes(16), 1, []),
    m.Withdraw: lambda t: m.Withdraw(t.addresses[0], CLUSTER),
    m.Ack: lambda t: m.Ack(t.addresses[0], CLUSTER, [(1, 0, 1)]),
    m.Nack: lambda t: m.Nack(t.addresses[0], CLUSTER, 1, [(0, 1)]),
    m.Extend: lambda t: m.Extend(t.addresses[0], CLUSTER, [1], 100),
    m.TakeTurn: lambda t: m.TakeTurn(t.addresses[0], CLUSTER, (0, 0)),
    m.MoveCursor: lambda t: m.MoveCursor(t.addresses[0], CLUSTER, 1, (0, 0), 100),
    m.SeekCursor: lambda t: m.SeekCursor(t.addresses[0], CLUSTER, (0, 0)),
    n.ListNodes: lambda _: n.ListNodes(),
    n.ListSets: lambda _: n.ListSets(),
    y.DescribeCopies: lambda _: y.DescribeCopies(),
    y.ForceRegistry: lambda _: y.ForceRegistry(0, 1, 1, [65536]),
    y.PromoteSet: lambda _: y.PromoteSet(1, 1, [1]),
    n.DescribeShard: lambda _: n.DescribeShard(),
    n.ChangeNode: lambda _: n.ChangeNode("drain", 1),
    n.RaiseLevel: lambda _: n.RaiseLevel(),
    n.TransferLeader: lambda t: n.TransferLeader(t.addresses[0]),
    s.AddSchema: lambda _: s.AddSchema("mine", "json", b"{}", b"{}"),
    s.SetSchemaRule: lambda _: s.SetSchemaRule("mine", "none"),
    s.ListSchemas: lambda _: s.ListSchemas("mine"),
    f.PutFleet: lambda _: f.PutFleet("locks", 1, 9, 1, 1, bytes(32)),
    f.RemoveFleet: lambda _: f.RemoveFleet("nothing"),
    f.DropFleetKey: lambda _: f.DropFleetKey("nothing", 1),
    f.ListFleets: lambda _: f.ListFleets(),
    f.SetDevice: lambda _: f.SetDevice(1, 1),
    f.ReplaceDevice: lambda _: f.ReplaceDevice(1, 1),
    f.DescribeDevice: lambda _: f.DescribeDevice(1),
    q.SetQuota: lambda _: q.SetQuota("namespace:mine", (("topics", 9),)),
    q.RemoveQuota: lambda _: q.RemoveQuota("namespace:nothing"),
    q.ListQuotas: lambda _: q.ListQuotas(),
    y.ApplyTopology: lambda _: y.ApplyTopology(0, Topology()),
    y.DescribeTopology: lambda _: y.DescribeTopology(),
    w.DescribeAccess: lambda _: w.DescribeAccess(),
    w.ChangeUser: lambda _: w.ChangeUser("revoke", "nobody"),
    w.ChangeRole: lambda _: w.ChangeRole("nothing", delete=True),
    w.SetAccessMode: lambda _: w.SetAccessMode("closed"),
    w.ExplainAccess: lambda _: w.ExplainAccess("root", "publish", "topic", "mine"),
    w.ListRefusals: lambda _: w.ListRefusals(),
    w.RewrapSecrets: lambda _: w.RewrapSecrets(),
    k.CreateTokenKey: lambda _: k.CreateTokenKey("k"),
    k.TrustIssuer: lambda _: k.TrustIssuer("https://idp", "weir", "default", (KEY,)),
    k.RemoveTokenKey: lambda _: k.RemoveTokenKey("nobody"),
    k.ListTokenKeys: lambda _: k.ListTokenKeys(),
    k.IssueTokenFor: lambda _: k.IssueTokenFor("root", 60),
}
#: Lists have what may be described: see below.
LISTS = {m.ListTopics, m.ListOffsets}
ROLES = ("none", "exact", "prefix", "cluster", "namesake", "other verb", "other kind", "admin")
#: A client's connection; what another shard of this node, and of another node, passes on.
PATHS = {"client": 0, "trunk": 1, "link": place_of(2, 1)}
MODES = ("open", "watch", "closed")


def test_there_is_a_sample_of_each_request_that_needs_a_right() -> None:
    needing = {kind for kind in m.REQUESTS if kind.declaration.rights}
    assert needing == {*SAMPLES, *LISTS}
    assert all(kind.declaration.asker is not Asker.SHARD for kind in needing)


def name_of(resource: Resource, kind: str) -> str:
    """Return the full name of what the samples are about."""
    return {
        "topic": MINE, "cluster": f"{MINE}:{CLUSTER}", "namespace": "default", "system": ""
    }[kind]  # fmt: skip


def rules_of(role: str, kind: type[Request]) -> list[Rule]:
    """Return what a role lets a user do, as it is meant for one kind of request."""
    right = kind.declaration.rights[0]
    about, verb = right.resource.kind, str(right.verb)
    name = name_of(right.resource, about)
    topic = about == "topic"
    by_cluster = [str(one.verb) for one in kind.declaration.rights
                  if one.resource in (Resource.CLUSTER, Resource.ANY_CLUSTER)]  # fmt: skip
    found: dict[str, list[Rule]] = {
        "exact": [rule(verb, about, name)],
        "prefix": [rule(verb, about, "default/mi" if topic else name[:4], True)],
        "cluster": [rule((*by_cluster, verb)[0], "cluster", f"{MINE}:{CLUSTER}")],
        "namesake": [rule(verb, about, OTHER if topic else "other"),
                     rule(verb, about, f"{MINE}/", True), rule(verb, about, f"{MINE}:", True)],
        "other verb": [rule(other, about, name) for other in ("nothing", verb[:-1], verb + "s")],
        "other kind": [
            rule(verb, other, name) for other in ("namespace", "system", "topic") if other != about
        ],
    }  # fmt: skip
    return found.get(role, [])


def may_ask(role: str, kind: type[Request]) -> bool:
    """Return whether a role lets a user ask it, in a closed set."""
    rights = kind.declaration.rights
    if role == "cluster":
        by_cluster = any(one.resource in (Resource.CLUSTER, Resource.ANY_CLUSTER) for one in rights)
        # Whoever has anything of a topic may have it described.
        describes = rights[0].verb == "describe" and rights[0].resource is Resource.TOPIC
        return by_cluster or describes
    if role == "other verb":
        return rights[0].verb == "describe"
    if role == "namesake":
        return rights[0].resource is Resource.ANY_TOPIC
    return role in ("exact", "prefix", "admin")


def answered(rig: Any, session: int, request: m.Request) -> m.Reply | None:
    """Return the answer to a request; None if it waits for something."""
    number = rig.ask(session, request)
    rig.settle()
    return dict(rig.replies.get(session, ())).get(number)


def is_refused(reply: m.Reply | None) -> bool:
    """Return whether an answer says that it is not allowed, or not there."""
    if not isinstance(reply, m.Refusal):
        return False
    absent = reply.code == UnknownTopic.code and reply.message.startswith("there is no such topic")
    return reply.code == Unauthorized.code or absent


def enter(rig: Any, path: str, principal: str, session: int) -> int:
    """Let a peer come by a path, and be a principal."""
    if path == "client":
        rig.connect(session, hello=False)
        be(rig.shard, session, principal)
        assert isinstance(rig.answer(session, m.Hello("test")), m.Welcome)
    else:
        rig.replies[session] = []
        rig.handle(ev.Opened(session, principal, PATHS[path]))
    return session


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
def test_a_request_is_answered_to_whom_a_rule_allows_it(
    make_rig: Callable[..., Any], kind: type[Request], tell: Callable[..., None]
) -> None:
    rig = make_rig()
    rig.connect(1)
    info = rig.answer(1, m.CreateTopic("mine", 2))
    rig.answer(1, m.CreateTopic("mine2", 1))
    access = catalog_of(rig.shard).access
    people = {
        role: give(access, f"default/u{number}", *rules_of(role, kind), admin=role == "admin")
        for number, role in enumerate(ROLES)
    }
    # Those who may come last: what they do may be the end of the topic.
    cases = sorted(
        ((mode == "closed" and not may_ask(role, kind), mode, role, path)
         for mode in MODES for role in ROLES for path in PATHS),
        reverse=True,
    )  # fmt: skip
    bypasses, wrongly_refused = [], []
    for number, (refused, mode, role, path) in enumerate(cases, 10):
        if catalog_of(rig.shard).find("default", "mine") is None:
            rig.connect(1)  # it was nobody's, and has ended
            info = rig.answer(1, m.CreateTopic("mine", 2))
            for at, one in enumerate(ROLES):  # what was allowed with the one before is gone
                rows = tuple((*found,) for found in rules_of(one, kind))
                access.apply(RoleChanged(f"default.u{at}", rows, ()))
        set_mode(access, mode)
        session = enter(rig, path, people[role], number)
        reply = answered(rig, session, SAMPLES[kind](info))
        if is_refused(reply) != refused:
            (bypasses if refused else wrongly_refused).append((mode, role, path, reply))
        set_mode(access, "open")
    tell(cases=len(cases), refused=sum(one[0] for one in cases), bypasses=len(bypasses))
    assert (bypasses, wrongly_refused) == ([], [])


def test_lists_have_only_what_may_be_described(rig: Any) -> None:
    rig.connect(1)
    for name in ("mine", "mine2", "shop/a", "shop/b"):
        rig.answer(1, m.CreateTopic(name))
    access = catalog_of(rig.shard).access
    set_mode(access, "closed")
    people = {
        (): give(access, "default/none", rule("create", "namespace", "shop")),
        ("mine",): give(access, "default/one", rule("publish", "topic", MINE)),
        ("mine2",): give(access, "default/cluster", rule("consume", "cluster", f"{OTHER}:c")),
        ("a", "b"): give(access, "default/shop", rule("read", "topic", "shop/", True)),
    }
    for number, (names, principal) in enumerate(people.items(), 10):
        enter(rig, "client", principal, number)
        listed = rig.answer(number, m.ListTopics())
        assert tuple(one.name for one in listed.topics) == names
        offsets = rig.answer(number, m.ListOffsets())
        assert tuple(one.name for one in offsets.topics) == names


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
def test_what_one_may_not_describe_is_not_there(rig: Any, kind: type[Request]) -> None:
    """The answer is the same, to the byte, as for a topic that was never there."""
    if kind.declaration.rights[0].resource not in (Resource.TOPIC, Resource.TOPICS, Resource.PARTS):
        return
    rig.connect(1)
    info = rig.answer(1, m.CreateTopic("mine", 2))
    close_access([rig.shard])
    access = catalog_of(rig.shard).access
    stranger = give(access, "default/ann", rule("publish", "topic", "default/yours"))
    enter(rig, "client", stranger, 5)
    request = SAMPLES[kind](info)
    there = rig.answer(5, request)
    assert there.code == UnknownTopic.code
    lose_topic(rig.shard, "default", "mine")
    assert rig.answer(5, request) == there


def test_who_is_nobody_is_not_greeted(rig: Any) -> None:
    close_access([rig.shard])
    rig.connect(5, hello=False)
    assert "log in" in rig.answer(5, m.Hello("x")).message
    assert "say hello first" in rig.answer(5, m.ListTopics()).message


def test_a_cluster_is_that_of_its_topic(rig: Any) -> None:
    """A name that could be read in two ways is no name."""
    rig.connect(1)
    info = rig.answer(1, m.CreateTopic("mine"))
    close_access([rig.shard])
    access = catalog_of(rig.shard).access
    ann = give(access, "default/ann", rule("consume", "cluster", f"{MINE}:work"))
    enter(rig, "client", ann, 5)
    for cluster in ("", "wor", "work2", "x:work", ":work"):
        assert is_refused(answered(rig, 5, m.Pull(info.addresses[0], cluster, 1, 1))), cluster
    assert not is_refused(answered(rig, 5, m.Pull(info.addresses[0], "work", 1, 1)))


def test_a_scattering_needs_a_right_for_each_of_its_parts(rig: Any) -> None:
    rig.connect(1)
    one, two = (rig.answer(1, m.CreateTopic(name)) for name in ("mine", "mine2"))
    close_access([rig.shard])
    access: Access = catalog_of(rig.shard).access
    publish = rule("publish", "topic", MINE)
    parts = [o.Part(one.addresses[0], BATCH, [])]
    acks = [o.Part(two.addresses[0], b"", [("work", [(1, 0, 1)]), ("more", [(1, 0, 1)])])]
    work, more = (rule("consume", "cluster", f"{OTHER}:{name}") for name in ("work", "more"))
    for number, (rules, sent, refused) in enumerate((
        ([publish], parts, False),
        ([publish], parts + acks, True),
        ([publish, work], parts + acks, True),
        ([work, more], parts + acks, True),
        ([publish, work, more], parts + acks, False),
        ([publish, rule("consume", "topic", OTHER)], parts + acks, False),
    ), 10):  # fmt: skip
        enter(rig, "client", give(access, f"default/u{number}", *rules), number)
        reply = answered(rig, number, m.Scatter(1, 0, 1, 0, sent))
        assert is_refused(reply) == refused, (rules, reply)


def test_to_restore_needs_a_right_in_both_namespaces(rig: Any) -> None:
    """Else a backup would be a way to messages of a namespace that one may not use."""
    rig.connect(1)
    close_access([rig.shard])
    access: Access = catalog_of(rig.shard).access
    into, source = (rule("restore", "namespace", name) for name in ("shop", "bank"))
    create = rule("create", "namespace", "shop")
    for number, (rules, is_allowed) in enumerate(
        (([into], False), ([source], False), ([create, source], False), ([into, source], True)), 10
    ):
        enter(rig, "client", give(access, f"default/u{number}", *rules), number)
        request = m.RestoreTopic(f"shop/t{number}", source="bank/t", system=10)
        assert is_refused(answered(rig, number, request)) != is_allowed, rules
        same = m.RestoreTopic(f"shop/same{number}", source="shop/t", system=10)
        assert is_refused(answered(rig, number, same)) == (into not in rules), rules
