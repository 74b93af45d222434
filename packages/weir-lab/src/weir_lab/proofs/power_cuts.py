"""What weir claims of machines that lose power, and of slow cables between nodes."""

from __future__ import annotations

from weir_lab.proofs.claims import Figure, Goal, Proof


def _powercut(name: str, what: str, nodes: int) -> Proof:
    words = f"python -m weir_lab.bench.faults.powercut --nodes {nodes} --times 20 --json"
    counted = ("lost", "undelivered", "repeated", "reordered", "strange")
    figures = {
        "power cuts": Figure("cuts"),
        "messages confirmed": Figure("verdict.confirmed"),
        **{one: Figure(f"verdict.{one}") for one in counted},
        "worked on again before their ack": Figure("verdict.again"),
        "seconds until everything flowed again, most": Figure("rounds.*.up_s", highest=True),
    }
    goals = (Goal("power cuts", "≥", 20), *(Goal(one, "=", 0) for one in counted))
    return Proof(name, what, tuple(words.split()), figures, goals)


OF_MACHINES = (
    _powercut(
        "powercut",
        "20 power cuts of a node on a kernel of its own, under load, with a consumer that works 2 "
        "ms on each message (`make powercut` installs what it needs)",
        1,
    ),
    _powercut(
        "powercut-set", "the same on three kernels: 20 times one, two or all nodes lose power", 3
    ),
    Proof(
        "slow-link",
        "three nodes on cables of 100 Mbit/s: entries of 1 MiB cause no election",
        ("python", "-m", "weir_lab.bench.faults.slow_link", "--entries", "400"),
        {
            "elections": Figure("elections"),
            "entries": Figure("confirmed"),
            "busiest cable used": Figure("cable_used"),
        },
        (Goal("elections", "=", 0), Goal("busiest cable used", "≥", 0.8)),
    ),
    Proof(
        "far-link",
        "three nodes with 250 ms round trips between them: entries of 1 MiB cause no election",
        ("python", "-m", "weir_lab.bench.faults.slow_link", "--entries", "1000", "--partitions", "3",
         "--round-trip-ms", "250"),
        {
            "elections": Figure("elections"),
            "entries": Figure("confirmed"),
            "ms to a lone confirm": Figure("lone_ms"),
        },
        (Goal("elections", "=", 0), Goal("ms to a lone confirm", "≥", 500)),
    ),
)  # fmt: skip
