"""What weir claims of access: what attackers achieve, and what it costs to keep them out."""

from __future__ import annotations

from weir.model.limits import KIB
from weir_lab.proofs.claims import NONE_LOST, WHOLE, Figure, Goal, Proof, Sweep, bench, tests

OF_ACCESS = (
    Proof(
        "attack",
        "Peers without a right to it attack an open node, a closed one and its stolen folder, and "
        "sets that a node joined by a secret, with all that went over the network; an honest "
        "client publishes to the closed node meanwhile",
        ("weir", "lab", "attack", "--json"),
        {
            "attacks": Figure("attacks"),
            "achieved, open": Figure("achieved_open"),
            "achieved, closed": Figure("achieved_closed"),
            "achieved, stolen folder": Figure("achieved_disk"),
            "p99 of that alone": Figure("p99_ratio"),
        },
        (
            Goal("attacks", "≥", 33),
            # An attack that nobody lets succeed says nothing.
            Goal("achieved, open", "≥", 20),
            Goal("achieved, closed", "=", 0),
            Goal("achieved, stolen folder", "=", 0),
            Goal("p99 of that alone", "≤", 2),
        ),
        seconds=80,
    ),
    Proof(
        "access-bugs",
        "A check of logins, tokens, rules, devices, quotas or pages is left out, or a part of "
        "BrokerSets, tags, producer ids, hosts or replicas, one after the other; a test must miss "
        "each",
        ("python", "-m", "weir_lab.planted.run"),
        {"planted": Figure("planted"), "caught": Figure("caught", over="planted")},
        (Goal("planted", "≥", 25), Goal("caught", "=", 1)),
        seconds=240,
    ),
    tests(
        "access-table",
        "Every request of clients and devices, by each kind of role, path and mode, and every way "
        "by which users come, with all that it needs and with less: who gets what no rule allows",
        "packages/weir-mq/tests/unit/broker/access/test_access_table.py "
        "packages/weir-mq/tests/unit/broker/access/test_access_of_devices.py "
        "packages/weir-mq/tests/unit/client/test_access_of_paths.py",
        {
            "cases": Figure("cases"),
            "to be refused": Figure("refused"),
            "bypasses": Figure("bypasses"),
        },
        Goal("cases", "≥", 5_000),
        Goal("to be refused", "≥", 1_000),
        Goal("bypasses", "=", 0),
        seconds=120,
    ),
)


def _handshakes(name: str, what: str, options: str, least: int) -> Proof:
    """Return a row of handshakes, of which one core must make so many a second."""
    return bench(
        name,
        what,
        f"handshakes{options}",
        {
            "handshakes a core and second": Figure("per_core_s"),
            "bytes of an idle connection by TLS": Figure("tls_bytes"),
            "bytes of an idle connection": Figure("plain_bytes"),
            "µs to sign a frame": Figure("sign_us"),
        },
        Goal("handshakes a core and second", "≥", least),
        Goal("bytes of an idle connection by TLS", "≤", 45 * KIB),
        Goal("bytes of an idle connection", "≤", 30 * KIB),
        Goal("µs to sign a frame", "≤", 3),
        seconds=30,
    )


OF_LOGINS = (
    bench(
        "burst-logins",
        "8,000 devices connect and send a message within a second, and each waits for its confirm: "
        "as anybody, by a proof, by signed frames, and by TLS; a producer publishes beside them",
        "burst --devices 8000 --auth none,secret,signed,tls --beside",
        {
            "confirmed": Figure("runs.*.share_confirmed"),
            "delivered": Figure("runs.*.share_delivered"),
            "seconds, anybody": Figure("runs.0.seconds"),
            "seconds, by a proof": Figure("runs.1.seconds"),
            "seconds, by signed frames": Figure("runs.2.seconds"),
            "seconds, by TLS": Figure("runs.3.seconds"),
            "beside, p99 ms": Figure("runs.*.beside_p99_ms", highest=True),
        },
        Goal("confirmed", "=", 1),
        Goal("delivered", "=", 1),
        # The second in which they come, and no more.
        Goal("seconds, anybody", "≤", 1.05),
        Goal("seconds, by a proof", "≤", 1.5),
        Goal("seconds, by signed frames", "≤", 1.7),
        Goal("seconds, by TLS", "≤", 15),
        Goal("beside, p99 ms", "≤", 50),
        seconds=90,
    ),
    bench(
        "burst-tags",
        "8,000 devices connect and send a message within a second, and prove who they are: with "
        "one tag, and with 100 tags",
        "burst --devices 8000 --auth secret --tags 1,100",
        {
            "confirmed": Figure("runs.*.share_confirmed"),
            "seconds, 1 tag": Figure("runs.0.seconds"),
            "seconds, 100 tags": Figure("runs.1.seconds"),
            "100 tags, times 1 tag": Figure("runs.1.seconds", over="runs.0.seconds"),
        },
        Goal("confirmed", "=", 1),
        Goal("100 tags, times 1 tag", "≤", 1.1),
        seconds=40,
    ),
)
OF_HANDSHAKES = (
    bench(
        "revocations",
        "Users, devices and certificates are revoked in a loaded closed set of three nodes, one "
        "after the other, with 13 kinds of sessions in turn, one of them at a relay: the time "
        "until the session of each ends",
        "revocations",
        {
            "revocations": Figure("revocations"),
            "sessions that went on": Figure("unended"),
            "sessions served behind it": Figure("late"),
            "p99 ms": Figure("p99_ms"),
            "p99 ms, worst kind": Figure("kinds.*.p99_ms", highest=True),
            "load messages/s": Figure("load_per_s"),
        },
        Goal("revocations", "≥", 200),
        Goal("sessions that went on", "=", 0),
        Goal("sessions served behind it", "=", 0),
        Goal("p99 ms", "≤", 1_000),
        Goal("p99 ms, worst kind", "≤", 1_000),
        # Else nothing was loaded.
        Goal("load messages/s", "≥", 250),
        seconds=150,
    ),
    _handshakes("handshakes", "Devices connect by TLS, say hello, and go", "", 900),
    _handshakes(
        "handshakes-mutual", "Devices connect by TLS with certificates, say hello, and go",
        " --mutual", 550,
    ),
    bench(
        "timeliness-tls",
        "One producer and one consumer, without TLS and with it, by five turns: the median ratio",
        "timeliness --tls --turns 5",
        {"by TLS, of plain": Figure("runs.1.tls_ratio")},
        Goal("by TLS, of plain", "≥", 0.6),
        seconds=50,
    ),
    bench(
        "timeliness-tls-set",
        "The same on three nodes, whose links are by mutual TLS in the run by TLS",
        "timeliness --tls --replicas 3 --turns 3",
        {"by TLS, of plain": Figure("runs.1.tls_ratio")},
        Goal("by TLS, of plain", "≥", 0.6),
        seconds=60,
    ),
    bench(
        "latency-tls",
        "One message at a time, and then 1,000 a second, without TLS and with it, by ten turns: by "
        "how much the medians differ",
        "latency --tls --turns 10",
        {
            "lone confirm, ms more by TLS": Figure("runs.1.tls_confirm_more_ms"),
            "delivery, ms more by TLS": Figure("runs.1.tls_delivery_more_ms"),
            **{name: Figure(f"runs.*.{name}", highest=True) for name in WHOLE},
        },
        Goal("lone confirm, ms more by TLS", "≤", 0.2),
        Goal("delivery, ms more by TLS", "≤", 0.2),
        *NONE_LOST,
        seconds=60,
    ),
    bench(
        "timeliness-closed",
        "One producer and one consumer, on an open node and then on a closed one, both without "
        "TLS, by seven turns: the median ratio",
        "timeliness --closed --turns 7",
        {"closed, of open": Figure("runs.1.closed_ratio")},
        Goal("closed, of open", "≥", 0.97),
        seconds=45,
    ),
    bench(
        "tenants",
        "A namespace publishes at a steady pace for 10 s, alone and then beside one that floods "
        "the node by 16 connections and has a quota: what the first keeps of its rate, and what "
        "the flood gets of its quota",
        "tenants",
        {
            "kept of its rate": Figure("kept"),
            "of the quota, by the flood": Figure("share"),
            "p99 ms alone": Figure("alone.p99_ms"),
            "p99 ms beside": Figure("beside.p99_ms"),
        },
        Goal("kept of its rate", "≥", 0.9),
        Goal("of the quota, by the flood", "≥", 0.9),
        Goal("of the quota, by the flood", "≤", 1.1),
        seconds=30,
    ),
)  # fmt: skip

#: What `make proof-parts` plays of it, in windows of seeds.
OF_ACCESS_SEEDS = (
    Proof(
        "access-worlds",
        "300 worlds of three nodes with users, to whom rights are given and from whom they are "
        "taken under faults, while a node is cut off, and with an audit: nobody is served what was "
        "taken away, and nobody is refused what was kept",
        ("weir", "sim", "run", "--scenario", "users", "--seed", "{SEED}", "--seeds", "{SEEDS}",
         "--jobs", "2", "--json"),
        {
            **{one: Figure(one) for one in ("seeds", "faults", "operations", "violations")},
            "worlds of Authorized": Figure("worlds_of.Authorized"),
            "worlds of Audited": Figure("worlds_of.Audited"),
        },
        (
            Goal("seeds", "=", 300),
            Goal("faults", "≥", 2_000),
            Goal("operations", "≥", 60_000),
            Goal("violations", "=", 0),
            Goal("worlds of Authorized", "≥", 290),
            Goal("worlds of Audited", "≥", 90),
        ),
        sweep=Sweep("access-worlds", 300, step=30),
        seconds=1_200,
    ),
    Proof(
        "fuzz-access",
        "100,000,000 damaged inputs before and behind authentication: logins, tokens, signed "
        "frames and devices that send them, pages, TLS, sessions of a closed broker, to which "
        "nobody gets in, and sessions of a user and of devices, to whom nothing is given that they "
        "have no right to",
        ("python", "packages/weir-mq/tests/fuzz/fuzz_access.py", "--seed", "{SEED}",
         "--seeds", "{SEEDS}"),
        {
            "seeds": Figure("seeds"),
            "inputs": Figure("inputs"),
            "crashes": Figure("crashes"),
            "KiB more memory, most": Figure("rss_grown_kib", whole="most"),
        },
        (
            Goal("seeds", "=", 2_900),
            Goal("inputs", "≥", 100_000_000),
            Goal("crashes", "=", 0),
            Goal("KiB more memory, most", "≤", 4_096),
        ),
        sweep=Sweep("fuzz-access", 2_900, at_once=2),
        seconds=2_550,
    ),
)  # fmt: skip
