"""What `weir doctor` says of BrokerSets: which of them could be lost, and which are only names."""

from __future__ import annotations

from weir.cli.doctor.finding import Finding
from weir.protocol.client.nodes import SetInfo, SetList


def judge_sets(listed: SetList) -> Finding:
    """Return what is to be mended first."""
    core = [one for one in listed.sets if one.tier == "core"]
    uses_sets = any(one.id for one in core)
    if uses_sets and listed.unknown:
        numbers = ", ".join(map(str, listed.unknown))
        return Finding(
            "sets", "warn", f"nodes that have not said of which BrokerSet they are: {numbers}",
            "groups are not placed by sets before all have: start those nodes, or drain and remove "
            "them (weir node drain)",
        )  # fmt: skip
    if empty := [_name(one) for one in core if not one.nodes]:
        return Finding(
            "sets", "warn", f"core sets of the topology without a node: {', '.join(empty)}",
            "add their nodes (weir node add HOST:PORT --brokerset NAME), or take the sets out of "
            "the topology",
        )  # fmt: skip
    if listed.rule == "apart" and (full := [one for one in core if one.majorities]):
        told = "; ".join(f"{_name(one)}: {one.majorities:,} groups" for one in full)
        registry = ", the registry among them" if any(one.has_registry for one in full) else ""
        return Finding(
            "sets", "warn", f"most voters lie in one set ({told}{registry})",
            "they stop when that set is lost. They move while weir node status shows MOVING; else "
            "give other sets nodes, activate drained ones, or create topics with three replicas",
        )  # fmt: skip
    told = {
        "none": "replicas are placed by nodes, not by sets",
        "home": "all vote in the home set, as far as it has nodes: the other one may be lost",
        "apart": "any one set may be lost",
    }[listed.rule]
    return Finding("sets", "ok", f"{len(core)} core sets: {told}")


def _name(one: SetInfo) -> str:
    return one.name or f"set {one.id}"
