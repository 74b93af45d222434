"""Bugs of BrokerSets and their topology, each with one check left out.

Worlds have one BrokerSet; so tests of the rooms must miss these checks.
"""

from __future__ import annotations

from weir_lab.planted.bug import Bug

_UNIT = "packages/weir-mq/tests/unit"
_CHECKS = f"{_UNIT}/topology/test_topology_checks.py"
_METADATA = f"{_UNIT}/broker/metadata/test_topology.py"

OF_TOPOLOGY = (
    Bug(
        "topology-applied-without-compare",
        "A topology replaces the version that it was made of, and no other.",
        "weir.broker.metadata.topology",
        "self.check_version(record.version - 1)",
        "pass",
        f"{_METADATA}::test_of_two_that_are_proposed_together_one_is_refused_where_it_is_applied",
    ),
    Bug(
        "topology-next-upper-unchecked",
        "Every upper of a set holds what the set holds, not the preferred one alone.",
        "weir.topology.checks",
        "for upper in map(sets.__getitem__, one.upper):\n            for lacked",
        "for upper in map(sets.__getitem__, one.upper[:1]):\n            for lacked",
        f"{_CHECKS}::test_each_upper_holds_what_is_pulled_and_not_the_preferred_one_alone",
    ),
    Bug(
        "topology-node-changes-its-set",
        "A node belongs to the set that it was founded in.",
        "weir.broker.metadata.topology",
        "if (was := before.get(number)) is not None and was.id != one.id:",
        "if (was := before.get(number)) is not None and False:",
        f"{_METADATA}::test_what_does_not_fit_the_system_is_refused",
    ),
    Bug(
        "topology-cycle-unchecked",
        "The uppers of sets form no cycle.",
        "weir.topology.checks",
        "if following in path:",
        "if following in path and (is_done.add(following) or False):",
        f"{_UNIT}/topology/test_topology_file.py::test_what_is_wrong_is_said_with_its_line",
    ),
    Bug(
        "topology-loss-below-a-loss",
        "A set is cut off as well where all its uppers are cut off.",
        "weir.topology.checks",
        "cut.append(one.name)\n        else:",
        "cut.append(one.name)\n            reached.add(one.id)\n        else:",
        f"{_CHECKS}::test_what_lies_below_a_loss_is_lost_as_well",
    ),
    Bug(
        "topology-lost-in-snapshots",
        "The topology is in the snapshots of the registry.",
        "weir.broker.metadata.catalog",
        "*((self.topology.encode(),) if self.topology else ()),",
        "",
        f"{_METADATA}::test_a_topology_is_kept",
    ),
)

BUGS: tuple[Bug, ...] = OF_TOPOLOGY
