"""Checks which machines can reach a node, and whether others can read or change its traffic."""

from __future__ import annotations

import time

from weir.cli.doctor.finding import Finding, Patient
from weir.cli.output import counted


def certificate(patient: Patient) -> Finding:
    """Look whether the files of TLS can be served, for how long, and whether a node serves them."""
    from weir.server.disk.node_folder import NodeFolder
    from weir.server.network.certificate_files import WARN_SECONDS, states
    from weir.tls.files import server_tls

    tls = patient.config.tls
    if (given := tls.files()) is None:
        if tls != type(tls)() or patient.config.links.tls != "off":
            return Finding("certificate", "fail", "settings of TLS without a certificate",
                           "set tls.certificate, tls.key and tls.trust")  # fmt: skip
        return Finding("certificate", "ok", "none: connections are not encrypted")
    own = server_tls(given, tls.minimum).own  # raises with what to do
    left = own.ends - time.time()
    shown = f"{own.identity or given.certificate} for {int(left // 86_400)} days"
    served = states(patient.folder) if NodeFolder(patient.folder).endpoint() else {}
    late = sorted(shard for shard, state in served.items() if state.serial != own.serial)
    if late:
        problem = next((state.problem for state in served.values() if state.problem), "")
        advice = problem or "see the log of the node; weir cert reload asks it to read them"
        return Finding("certificate", "warn", f"{shown}, not served by shards {late}", advice)
    if left < WARN_SECONDS:
        advice = "weir cert renew makes a new one: copy it here, the node takes it by itself"
        return Finding("certificate", "warn", shown, advice)
    return Finding("certificate", "ok", shown)


def access(patient: Patient) -> Finding:
    """Look whether anyone in a network may use the node; and, in a closed set, whether its users
    can log in from there, and devices have to be read by nobody.
    """
    from weir.server.disk.node_folder import NodeFolder
    from weir.server.exposure import CLOSED, is_reachable

    config = patient.config
    mode = NodeFolder(patient.folder).access_mode() or "open"
    shown = f"mode {mode}, on {config.node.host}"
    if not is_reachable(config.node.host):
        return Finding("access", "ok", shown)
    if mode == CLOSED:
        if config.tls.files() is None:
            return Finding(
                "access", "warn", f"{shown} without TLS: users log in on this machine only",
                "weir cert issue node makes a certificate: set tls.certificate, tls.key and "
                "tls.trust (docs/how-to/tls.md)",
            )  # fmt: skip
        if config.tls.plaintext == "allow":
            return Finding(
                "access", "warn", f"{shown}; devices may connect without TLS, readable by others",
                'tls.plaintext = "loopback", unless devices without TLS must connect',
            )  # fmt: skip
        return Finding("access", "ok", shown)
    advice = "create users and rules, then: weir access mode closed (docs/how-to/access.md)"
    if config.access.insecure:
        return Finding(
            "access", "warn", f"{shown}: anyone who reaches it may do everything", advice
        )
    return Finding("access", "fail", f"{shown}: weir serve does not start so",
                   f"{advice}; or say by --insecure that this is meant")  # fmt: skip


def links(patient: Patient) -> Finding:
    """Look whether somebody could pass for another node of a closed set."""
    from weir.server.disk.node_folder import NodeFolder
    from weir.server.exposure import CLOSED

    tls, folder = patient.config.links.tls, NodeFolder(patient.folder)
    mode, nodes = folder.access_mode() or "open", len(folder.births())
    shown = f"links.tls is {tls}, in the mode {mode}"
    if mode == CLOSED and nodes > 1 and tls != "require":
        return Finding(
            "links", "warn", f"{shown}, with {counted(nodes, 'node')}",
            "an attacker who reads traffic between nodes, or a copy of a data folder, can pass for "
            'a node: links.tls = "prefer" on all nodes, then "require" (docs/how-to/tls.md)',
        )  # fmt: skip
    return Finding("links", "ok", shown)
