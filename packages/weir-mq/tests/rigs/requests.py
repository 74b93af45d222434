"""Requests and replies of the client protocol, as tests draw them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rigs import marks, quotas, topologies
from weir.access.credentials import ScramVerifier
from weir.access.signatures import Algorithm, PublicKey
from weir.model.ids import NODE_MAX, Address
from weir.model.topic import Mode, SettingsChange, TopicSettings
from weir.protocol.client import access as w
from weir.protocol.client import admin as a
from weir.protocol.client import fleets as f
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.protocol.client import schemas as s
from weir.protocol.client import sinks as k
from weir.protocol.client import tokens as t
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.order import Part, Standing, Step

NATURAL = st.integers(0, 2**63 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
SMALL = st.integers(0, 65_535)
ADDRESS = st.builds(Address, SMALL, SMALL, NATURAL, st.integers(0, NODE_MAX))
BODY = st.binary(max_size=60)
CORRELATION = st.integers(0, 2**64 - 1)

RUNS = st.lists(st.tuples(NATURAL, NATURAL), max_size=4)
NODE = st.integers(0, 2**31 - 1)
PORT = st.integers(0, 65_535)
COUNTS = st.dictionaries(NODE, NATURAL, max_size=3)
NODE_ROW = st.builds(n.NodeRow, NATURAL, TEXT, PORT, TEXT, *[NATURAL] * 5)
NAMES = st.lists(TEXT, max_size=3).map(tuple)
MEMBERS = st.lists(st.tuples(NATURAL, st.lists(NATURAL, max_size=3)), max_size=3)
CHANGE = st.builds(SettingsChange, st.none() | NATURAL, st.none() | NATURAL, st.none() | NAMES)

EPOCH = st.integers(0, 2**32 - 1)
PARTS = st.lists(NATURAL, min_size=1, max_size=3).map(tuple)
ACKS = st.lists(st.tuples(TEXT, st.lists(st.tuples(NATURAL, NATURAL, NATURAL))), max_size=2)
PART = st.builds(Part, ADDRESS, BODY, ACKS)
VECTOR = st.lists(NATURAL, max_size=4).map(tuple)
READ_TO = st.lists(st.tuples(NATURAL, NATURAL), max_size=3)
CUT_AT = st.lists(NATURAL, max_size=4)
HUB = st.integers(0, 2**32 - 1)
#: Rows of messages that a grant did not do, with what became of each.
LATE = st.lists(st.tuples(NATURAL, NATURAL, NATURAL, st.integers(0, 255)), max_size=3).map(tuple)

QUERY = st.text(min_size=1, max_size=64)
#: Names and words of access are bounded.
WORD, SHORT_NAME = st.text(max_size=32), st.text(max_size=512)
ROLE_NAMES = st.lists(SHORT_NAME, max_size=3).map(tuple)
KEY = st.binary(min_size=32, max_size=32)
VERIFIER = st.builds(ScramVerifier, EPOCH, st.binary(min_size=16, max_size=64), KEY, KEY)
PUBLIC_KEY = st.builds(PublicKey, WORD, st.sampled_from(Algorithm), KEY)
DEVICE_HUB = st.integers(0, (1 << 64) - 1)
FLEET = st.builds(
    f.FleetRow,
    TEXT,
    DEVICE_HUB,
    DEVICE_HUB,
    NATURAL,
    st.lists(st.integers(1, 255), max_size=3).map(tuple),
    SHORT_NAME,
)
RULE = st.builds(w.RuleRow, st.lists(WORD, max_size=3).map(tuple), WORD, SHORT_NAME, st.booleans())
RULES = st.lists(RULE, max_size=3).map(tuple)

REQUESTS: dict[type[Any], st.SearchStrategy[Any]] = {
    m.Hello: st.builds(m.Hello, TEXT, NATURAL, NATURAL),
    m.Ping: st.builds(m.Ping, st.lists(st.tuples(ADDRESS, TEXT, RUNS), max_size=2).map(tuple)),
    m.DescribeTopic: st.builds(m.DescribeTopic, TEXT),
    m.ListTopics: st.builds(m.ListTopics, TEXT, TEXT),
    m.ListOffsets: st.builds(m.ListOffsets, TEXT, TEXT, NATURAL, st.lists(NATURAL, max_size=3)),
    m.CreateTopic: st.builds(
        m.CreateTopic, TEXT, NATURAL, TEXT, st.booleans(), CHANGE, NATURAL, st.just("") | TEXT
    ),
    m.RestoreTopic: st.builds(
        m.RestoreTopic, TEXT, NATURAL, TEXT, st.booleans(), CHANGE, NATURAL, TEXT, TEXT, DEVICE_HUB
    ),
    m.OpenProducer: st.builds(m.OpenProducer, NATURAL, st.integers(0, 64)),
    m.Follow: st.builds(m.Follow, NATURAL),
    m.ReachRegistry: st.just(m.ReachRegistry()),
    m.Positions: st.builds(m.Positions, ADDRESS, NATURAL),
    a.TraceMessage: st.builds(a.TraceMessage, ADDRESS, NATURAL),
    m.ResolveCut: st.builds(
        m.ResolveCut,
        st.lists(TEXT, min_size=1, max_size=3),
        st.lists(st.builds(m.TopicPositions, NATURAL, READ_TO), max_size=2),
        *[NATURAL] * 5,
        st.lists(NATURAL, max_size=3),
        st.booleans(),
        st.booleans(),
    ),
    m.LocateOffsets: st.builds(
        m.LocateOffsets,
        st.lists(st.tuples(NATURAL, NATURAL, NATURAL), min_size=1, max_size=3),
        NATURAL,
        NATURAL,
        st.booleans(),
    ),
    m.ReportJoined: st.builds(m.ReportJoined, NATURAL, NATURAL, NATURAL),
    m.ReportDone: st.builds(
        m.ReportDone, ADDRESS, st.lists(st.tuples(TEXT, NATURAL), max_size=3).map(tuple)
    ),
    m.ReportEnded: st.builds(m.ReportEnded, *[NATURAL] * 4, st.booleans()),
    m.Fetch: st.builds(m.Fetch, ADDRESS, *[NATURAL] * 3, st.booleans(), st.booleans()),
    m.FetchChunks: st.builds(m.FetchChunks, ADDRESS, NATURAL, NATURAL, NATURAL),
    m.Scatter: st.builds(
        m.Scatter, NATURAL, EPOCH, NATURAL, NATURAL, st.lists(PART, min_size=1, max_size=3)
    ),
    m.Prepare: st.builds(m.Prepare, ADDRESS, NATURAL, EPOCH, NATURAL, NATURAL, PARTS, BODY, ACKS),
    m.Decide: st.builds(
        m.Decide, ADDRESS, NATURAL, EPOCH, NATURAL, NATURAL, st.booleans(), st.sampled_from(Step)
    ),
    m.Pull: st.builds(
        m.Pull, ADDRESS, TEXT, *[NATURAL] * 4, st.sampled_from(Mode), st.none() | RUNS, NAMES
    ),
    m.Ack: st.builds(m.Ack, ADDRESS, TEXT, st.lists(st.tuples(NATURAL, NATURAL, NATURAL))),
    m.Nack: st.builds(m.Nack, ADDRESS, TEXT, NATURAL, RUNS, NATURAL, st.booleans()),
    m.TakeTurn: st.builds(m.TakeTurn, ADDRESS, TEXT, VECTOR, NATURAL, NATURAL),
    m.MoveCursor: st.builds(
        m.MoveCursor, ADDRESS, TEXT, NATURAL, VECTOR, NATURAL, st.booleans(), st.booleans()
    ),
    m.SeekCursor: st.builds(m.SeekCursor, ADDRESS, TEXT, VECTOR),
    m.Extend: st.builds(m.Extend, ADDRESS, TEXT, st.lists(NATURAL), NATURAL),
    m.Withdraw: st.builds(m.Withdraw, ADDRESS, TEXT),
    m.MoveGrants: st.builds(
        m.MoveGrants,
        ADDRESS,
        TEXT,
        st.binary(max_size=16),
        NATURAL,
        st.lists(NATURAL),
        st.none() | RUNS,
    ),
    m.OpenCluster: st.builds(m.OpenCluster, ADDRESS, TEXT, st.sampled_from(Mode), NAMES),
    m.Produce: st.builds(m.Produce, ADDRESS, INT64, BODY.map(memoryview), st.sampled_from(m.Level)),
    a.AlterTopic: st.builds(a.AlterTopic, TEXT, CHANGE, NATURAL),
    a.DeleteTopic: st.builds(a.DeleteTopic, TEXT, NATURAL),
    a.EndPartition: st.builds(a.EndPartition, TEXT, NATURAL),
    a.DescribePartition: st.builds(a.DescribePartition, ADDRESS),
    a.AskLeader: st.builds(a.AskLeader, ADDRESS),
    a.AskStats: st.builds(a.AskStats, ADDRESS),
    a.ListClusters: st.builds(a.ListClusters, ADDRESS, TEXT),
    a.BeginCluster: st.builds(a.BeginCluster, ADDRESS, TEXT, NATURAL),
    a.SeekCluster: st.builds(a.SeekCluster, ADDRESS, TEXT, NATURAL),
    a.PauseCluster: st.builds(a.PauseCluster, ADDRESS, TEXT, st.booleans()),
    a.DeleteCluster: st.builds(a.DeleteCluster, ADDRESS, TEXT),
    a.ListHubs: st.builds(a.ListHubs, ADDRESS, st.none() | HUB, NATURAL),
    a.ForgetHub: st.builds(a.ForgetHub, ADDRESS, HUB),
    n.ListNodes: st.just(n.ListNodes()),
    n.DescribeShard: st.builds(n.DescribeShard, NATURAL),
    n.AskNodes: st.builds(n.AskNodes),
    n.ChangeNode: st.builds(n.ChangeNode, TEXT, NODE, TEXT, PORT, st.binary(max_size=32)),
    n.RaiseLevel: st.builds(n.RaiseLevel, NATURAL),
    n.TransferLeader: st.builds(n.TransferLeader, ADDRESS, NODE),
    n.ReportNode: st.builds(n.ReportNode, st.integers(1, 2**31 - 1), NATURAL, NATURAL),
    n.ReportLost: st.builds(n.ReportLost, NATURAL, NATURAL),
    n.ReportSettled: st.builds(n.ReportSettled, MEMBERS, MEMBERS),
    s.AddSchema: st.builds(s.AddSchema, TEXT, TEXT, BODY, BODY, TEXT),
    s.SetSchemaRule: st.builds(s.SetSchemaRule, TEXT, st.none() | TEXT, st.none() | st.booleans()),
    s.ListSchemas: st.builds(s.ListSchemas, TEXT, NATURAL, NATURAL),
    k.Stage: st.builds(k.Stage, ADDRESS, QUERY, *[NATURAL] * 3, BODY),
    k.ListSinks: st.builds(k.ListSinks, ADDRESS, QUERY),
    k.ForgetSink: st.builds(k.ForgetSink, ADDRESS, QUERY),
    k.Publish: st.builds(
        k.Publish,
        NATURAL,
        EPOCH,
        NATURAL,
        NATURAL,
        QUERY,
        NATURAL,
        st.lists(st.builds(k.PublicationPart, ADDRESS, BODY), min_size=1, max_size=3),
    ),
    f.PutFleet: st.builds(
        f.PutFleet,
        SHORT_NAME,
        DEVICE_HUB,
        DEVICE_HUB,
        NATURAL,
        st.integers(0, 255),
        st.binary(max_size=32),
        SHORT_NAME,
    ),
    f.RemoveFleet: st.builds(f.RemoveFleet, SHORT_NAME),
    f.DropFleetKey: st.builds(f.DropFleetKey, SHORT_NAME, st.integers(0, 255)),
    f.ListFleets: st.builds(f.ListFleets),
    f.SetDevice: st.builds(f.SetDevice, DEVICE_HUB, st.integers(0, 0xFFFFFF), st.booleans()),
    f.ReplaceDevice: st.builds(f.ReplaceDevice, DEVICE_HUB, st.integers(1, 0xFFFFFF)),
    f.UseDevice: st.builds(f.UseDevice, DEVICE_HUB, st.integers(1, 0xFFFFFF)),
    f.DescribeDevice: st.builds(f.DescribeDevice, DEVICE_HUB),
    **quotas.REQUESTS,
    **topologies.REQUESTS,
    **marks.REQUESTS,
    w.Login: st.builds(w.Login, WORD, BODY, BODY),
    w.DescribeAccess: st.builds(w.DescribeAccess, SHORT_NAME, SHORT_NAME),
    w.ChangeUser: st.builds(
        w.ChangeUser,
        st.sampled_from(("create", "password", "roles", "revoke")),
        SHORT_NAME,
        st.none() | VERIFIER,
        ROLE_NAMES,
        ROLE_NAMES,
    ),
    w.ChangeRole: st.builds(w.ChangeRole, SHORT_NAME, RULES, RULES, st.booleans()),
    w.SetAccessMode: st.builds(w.SetAccessMode, st.sampled_from(("open", "watch", "closed"))),
    w.ExplainAccess: st.builds(w.ExplainAccess, SHORT_NAME, WORD, WORD, SHORT_NAME),
    w.ListRefusals: st.builds(w.ListRefusals, NATURAL),
    w.ReachAccess: st.builds(w.ReachAccess, NATURAL),
    w.RewrapSecrets: st.builds(w.RewrapSecrets, st.booleans()),
    t.CreateTokenKey: st.builds(t.CreateTokenKey, WORD),
    t.TrustIssuer: st.builds(
        t.TrustIssuer,
        SHORT_NAME,
        SHORT_NAME,
        SHORT_NAME,
        st.lists(PUBLIC_KEY, max_size=3).map(tuple),
    ),
    t.RemoveTokenKey: st.builds(t.RemoveTokenKey, SHORT_NAME, SHORT_NAME),
    t.RenewToken: st.builds(t.RenewToken, BODY),
    t.ListTokenKeys: st.just(t.ListTokenKeys()),
    t.IssueToken: st.builds(
        t.IssueToken, st.integers(1, 86_400), WORD, st.none() | ROLE_NAMES, st.none() | ROLE_NAMES
    ),
    t.IssueTokenFor: st.builds(
        t.IssueTokenFor,
        SHORT_NAME,
        st.integers(1, 86_400),
        WORD,
        st.none() | ROLE_NAMES,
        st.none() | ROLE_NAMES,
    ),
}
SETTINGS = st.builds(TopicSettings, NATURAL, NATURAL, NAMES)
INFO = st.builds(
    m.TopicInfo,
    NATURAL,
    TEXT,
    TEXT,
    TEXT,
    st.lists(ADDRESS, max_size=3),
    SETTINGS,
    st.lists(st.tuples(NATURAL, NATURAL), max_size=2).map(tuple),
    NATURAL,
    st.booleans(),
    st.just("") | TEXT,
)
CLUSTER = st.builds(
    a.ClusterInfo,
    TEXT,
    *[INT64] * 7,
    st.booleans(),
    st.sampled_from((-1, *Mode)),
    *[INT64] * 2,
    VECTOR,
)
REPLIES: dict[type[Any], tuple[int, st.SearchStrategy[Any]]] = {
    m.Welcome: (
        opcode_of(m.Hello),
        st.builds(
            m.Welcome,
            *[NATURAL] * 7,
            st.lists(NATURAL, max_size=3).map(tuple),
            st.lists(st.tuples(NATURAL, TEXT, NATURAL), max_size=3).map(tuple),
            st.booleans(),
        ),
    ),
    m.Pong: (opcode_of(m.Ping), st.builds(m.Pong, st.integers(0, 2**62))),
    m.TopicInfo: (opcode_of(m.CreateTopic), INFO),
    m.TopicList: (
        opcode_of(m.ListTopics),
        st.builds(m.TopicList, st.lists(INFO, max_size=3), st.booleans()),
    ),
    m.OffsetList: (
        opcode_of(m.ListOffsets),
        st.builds(
            m.OffsetList,
            st.lists(INFO, max_size=3),
            st.lists(st.tuples(NATURAL, NATURAL, NATURAL), max_size=3),
            st.booleans(),
        ),
    ),
    s.SchemaChanged: (
        opcode_of(s.AddSchema),
        st.builds(s.SchemaChanged, NATURAL, NATURAL, st.booleans(), TEXT, st.booleans()),
    ),
    s.SchemaList: (
        opcode_of(s.ListSchemas),
        st.builds(
            s.SchemaList,
            NATURAL,
            NATURAL,
            TEXT,
            st.booleans(),
            st.lists(st.builds(s.SchemaRow, NATURAL, TEXT, TEXT, BODY, NATURAL), max_size=3),
            st.booleans(),
        ),
    ),
    k.Staged: (opcode_of(k.Stage), st.builds(k.Staged, NATURAL)),
    k.SinkReleased: (opcode_of(k.ForgetSink), st.builds(k.SinkReleased, st.booleans())),
    k.SinkList: (
        opcode_of(k.ListSinks),
        st.builds(
            k.SinkList,
            st.lists(st.builds(k.Sink, QUERY, *[NATURAL] * 2), max_size=3),
            st.booleans(),
        ),
    ),
    f.FleetChanged: (opcode_of(f.PutFleet), st.builds(f.FleetChanged, FLEET)),
    f.FleetList: (
        opcode_of(f.ListFleets),
        st.builds(f.FleetList, st.lists(FLEET, max_size=3), st.booleans()),
    ),
    f.DeviceInfo: (
        opcode_of(f.ReplaceDevice),
        st.builds(
            f.DeviceInfo,
            DEVICE_HUB,
            TEXT,
            st.integers(0, 0xFFFFFF),
            st.booleans(),
            st.integers(-1, 0xFFFFFF),
        ),
    ),
    **quotas.REPLIES,
    **topologies.REPLIES,
    **marks.REPLIES,
    w.LoginStep: (opcode_of(w.Login), st.builds(w.LoginStep, BODY, st.booleans(), TEXT, BODY)),
    w.AccessInfo: (
        opcode_of(w.DescribeAccess),
        st.builds(
            w.AccessInfo,
            TEXT,
            NATURAL,
            st.lists(st.builds(w.UserRow, TEXT, NATURAL, ROLE_NAMES), max_size=3),
            st.lists(st.builds(w.RoleRow, TEXT, RULES), max_size=3),
            st.booleans(),
        ),
    ),
    w.AccessChanged: (
        opcode_of(w.ChangeUser),
        st.builds(w.AccessChanged, NATURAL, RUNS, NATURAL),
    ),
    w.AccessExplained: (
        opcode_of(w.ExplainAccess),
        st.builds(w.AccessExplained, st.booleans(), TEXT, st.none() | RULE),
    ),
    w.RefusalList: (
        opcode_of(w.ListRefusals),
        st.builds(
            w.RefusalList,
            NATURAL,
            NATURAL,
            st.lists(st.builds(w.RefusalRow, TEXT, TEXT, TEXT, TEXT, NATURAL), max_size=3),
            NATURAL,
        ),
    ),
    w.SecretsLeft: (opcode_of(w.RewrapSecrets), st.builds(w.SecretsLeft, NATURAL)),
    t.TokenKeyList: (
        opcode_of(t.ListTokenKeys),
        st.builds(
            t.TokenKeyList,
            st.lists(
                st.builds(t.TokenKeyInfo, TEXT, TEXT, TEXT, TEXT, TEXT, st.booleans()), max_size=3
            ),
            st.booleans(),
        ),
    ),
    t.TokenIssued: (opcode_of(t.IssueToken), st.builds(t.TokenIssued, BODY, NATURAL)),
    w.AccessReached: (opcode_of(w.ReachAccess), st.builds(w.AccessReached, NATURAL)),
    m.RegistryReached: (opcode_of(m.ReachRegistry), st.builds(m.RegistryReached, NATURAL)),
    m.ProducerGrant: (opcode_of(m.OpenProducer), st.builds(m.ProducerGrant, NATURAL, EPOCH)),
    a.TracedMessage: (
        opcode_of(a.TraceMessage),
        st.builds(
            a.TracedMessage,
            st.integers(0, 255),
            *[NATURAL] * 5,
            st.lists(
                st.builds(
                    a.ClusterTrace, TEXT, st.integers(0, 255), NATURAL, NATURAL, TEXT, TEXT, NATURAL
                ),
                max_size=3,
            ),
        ),
    ),
    m.PositionsReply: (
        opcode_of(m.Positions),
        st.builds(m.PositionsReply, NATURAL, NATURAL, NATURAL),
    ),
    m.ResolvedCut: (
        opcode_of(m.ResolveCut),
        st.builds(
            m.ResolvedCut,
            NATURAL,
            st.lists(st.builds(m.TopicCut, INFO, CUT_AT, CUT_AT, CUT_AT), max_size=2),
            st.lists(st.tuples(*[NATURAL] * 3), max_size=3),
        ),
    ),
    m.Confirm: (opcode_of(m.Produce), st.builds(m.Confirm, INT64, INT64, st.booleans(), NATURAL)),
    m.Acked: (opcode_of(m.Ack), st.builds(m.Acked, NATURAL, LATE)),
    m.Nacked: (opcode_of(m.Nack), st.builds(m.Nacked, NATURAL)),
    m.Turn: (opcode_of(m.TakeTurn), st.builds(m.Turn, NATURAL, NATURAL, VECTOR, NATURAL)),
    m.Moved: (opcode_of(m.MoveCursor), st.builds(m.Moved, NATURAL)),
    m.Extended: (opcode_of(m.Extend), st.builds(m.Extended, NATURAL)),
    m.GrantsMoved: (
        opcode_of(m.MoveGrants),
        st.builds(m.GrantsMoved, st.lists(st.tuples(NATURAL, NATURAL)).map(tuple)),
    ),
    m.Withdrawn: (opcode_of(m.Withdraw), st.builds(m.Withdrawn)),
    m.ClusterIsOpen: (opcode_of(m.OpenCluster), st.builds(m.ClusterIsOpen, NAMES)),
    m.Refusal: (opcode_of(m.Fetch), st.builds(m.Refusal, SMALL, TEXT, INT64)),
    m.Fetched: (
        opcode_of(m.Fetch),
        st.builds(
            m.Fetched,
            ADDRESS,
            *[INT64] * 3,
            st.lists(BODY, max_size=3).map(tuple),
            INT64,
            NATURAL,
            RUNS.map(tuple),
            st.booleans(),
        ),
    ),
    m.FetchedChunks: (
        opcode_of(m.FetchChunks),
        st.builds(m.FetchedChunks, ADDRESS, INT64, st.lists(BODY, max_size=3).map(tuple)),
    ),
    m.Granted: (
        opcode_of(m.Pull),
        st.builds(
            m.Granted,
            ADDRESS,
            *[NATURAL] * 6,
            RUNS.map(tuple),
            st.lists(BODY, max_size=3).map(tuple),
        ),
    ),
    m.ScatterConfirm: (
        opcode_of(m.Scatter),
        st.builds(m.ScatterConfirm, NATURAL, st.lists(st.tuples(NATURAL, NATURAL)), st.booleans()),
    ),
    m.PartState: (
        opcode_of(m.Decide),
        st.builds(m.PartState, st.sampled_from(Standing), *[NATURAL] * 2),
    ),
    a.Deleted: (opcode_of(a.DeleteTopic), st.builds(a.Deleted, NATURAL)),
    a.LeaderInfo: (
        opcode_of(a.AskLeader),
        st.builds(a.LeaderInfo, NATURAL, NATURAL, st.lists(NATURAL).map(tuple)),
    ),
    a.PartitionStats: (opcode_of(a.AskStats), st.builds(a.PartitionStats, *[NATURAL] * 6)),
    a.PartitionInfo: (
        opcode_of(a.DescribePartition),
        st.builds(a.PartitionInfo, *[INT64] * 3, st.lists(TEXT), *[st.lists(NATURAL)] * 2),
    ),
    a.ClusterList: (
        opcode_of(a.ListClusters),
        st.builds(
            a.ClusterList,
            INT64,
            INT64,
            st.lists(CLUSTER, max_size=3),
            st.lists(st.tuples(INT64, INT64), max_size=2).map(tuple),
        ),
    ),
    a.ClusterChanged: (opcode_of(a.PauseCluster), st.builds(a.ClusterChanged, INT64)),
    a.HubList: (
        opcode_of(a.ListHubs),
        st.builds(a.HubList, st.lists(st.tuples(*[NATURAL] * 5), max_size=3), NATURAL),
    ),
    a.HubForgotten: (opcode_of(a.ForgetHub), st.builds(a.HubForgotten, NATURAL)),
    n.NodesTold: (
        opcode_of(n.AskNodes),
        st.builds(
            n.NodesTold,
            st.lists(
                st.builds(
                    n.NodeNews,
                    st.integers(1, NODE_MAX),
                    TEXT,
                    PORT,
                    NATURAL,
                    st.integers(-1, 9),
                    st.binary(max_size=32),
                ),
                max_size=3,
            ),
        ),
    ),
    n.NodeList: (
        opcode_of(n.ListNodes),
        st.builds(n.NodeList, st.lists(NODE_ROW, max_size=3), *[NATURAL] * 4),
    ),
    n.ShardInfo: (
        opcode_of(n.DescribeShard),
        st.builds(n.ShardInfo, *[NATURAL] * 6, COUNTS, st.lists(NODE, max_size=3)),
    ),
    n.Transferred: (opcode_of(n.TransferLeader), st.builds(n.Transferred, NODE)),
}
