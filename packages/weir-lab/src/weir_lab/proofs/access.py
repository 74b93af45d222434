"""What weir claims of access: what attackers achieve, and what it costs to keep them out."""

from __future__ import annotations

from weir_lab.proofs.claims import Figure, Goal, Proof

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
