"""What weir claims of access: what attackers achieve, and what it costs to keep them out."""

from __future__ import annotations

from weir_lab.proofs.claims import Figure, Goal, Proof, Sweep

OF_ACCESS = (
    Proof(
        "attack",
        "Peers without a right to it attack an open node, a closed one, and a stolen data folder; "
        "an honest client publishes to the closed one meanwhile",
        ("weir", "lab", "attack", "--json"),
        {
            "attacks": Figure("attacks"),
            "achieved, open": Figure("achieved_open"),
            "achieved, closed": Figure("achieved_closed"),
            "achieved, stolen folder": Figure("achieved_disk"),
            "p99 of that alone": Figure("p99_ratio"),
        },
        (
            Goal("attacks", "≥", 26),
            # An attack that nobody lets succeed says nothing.
            Goal("achieved, open", "≥", 20),
            Goal("achieved, closed", "=", 0),
            Goal("achieved, stolen folder", "=", 0),
            Goal("p99 of that alone", "≤", 2),
        ),
    ),
)

#: What `make proof-worlds` plays of it, in windows of seeds.
OF_ACCESS_SEEDS = (
    Proof(
        "fuzz-access",
        "100,000,000 damaged inputs before and behind authentication: logins, signed frames, TLS, "
        "and sessions of a closed broker, to which nobody gets in",
        ("python", "packages/weir-mq/tests/fuzz/fuzz_access.py", "--seed", "{SEED}",
         "--seeds", "{SEEDS}"),
        {
            "seeds": Figure("seeds"),
            "inputs": Figure("inputs"),
            "crashes": Figure("crashes"),
            "KiB more memory, most": Figure("rss_grown_kib", whole="most"),
        },
        (
            Goal("seeds", "=", 3_100),
            Goal("inputs", "≥", 100_000_000),
            Goal("crashes", "=", 0),
            Goal("KiB more memory, most", "≤", 4_096),
        ),
        sweep=Sweep("fuzz-access", 3_100),
    ),
)  # fmt: skip
