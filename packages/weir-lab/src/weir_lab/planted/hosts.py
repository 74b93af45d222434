"""Bugs of hosts and clients: of nodes founded anew, last words, silent leaders and lost leases."""

from __future__ import annotations

from weir_lab.planted.bug import Bug

_UNIT = "packages/weir-mq/tests/unit"
_DOORS = f"{_UNIT}/server/links/test_link_doors.py"
_KNOWN = f"{_UNIT}/host/test_known_nodes.py"
_OUTBOX = f"{_UNIT}/broker/runtime/test_broker_outbox.py"
_ARRIVALS = f"{_UNIT}/broker_shards/test_device_arrivals.py"
_NODES = f"{_UNIT}/client/connection/test_client_nodes.py"
_SETTLING = f"{_UNIT}/client/consumer/test_settling.py"
_RETURNS = f"{_UNIT}/broker/consumers/test_broker_returns.py"

OF_HOSTS = (
    # In worlds a node founded anew lets everybody in and says nothing: that link ends as silent.
    Bug(
        "birth-of-who-was-dialled-unchecked",
        "No link is kept to a node whose folder is another than it had.",
        "weir.host.links",
        "if birth and not is_of(answer, hello, birth):",
        "if False:",
        f"{_DOORS}::test_no_link_is_kept_to_a_node_founded_anew",
    ),
    Bug(
        "birth-of-who-dials-unchecked",
        "No link is served from a node whose folder is another than it had.",
        "weir.host.links",
        "if self.birth and not is_from(hello, self.birth):",
        "if False:",
        f"{_KNOWN}::test_a_node_is_the_folder_that_it_is_known_to_be",
    ),
    Bug(
        "welcome-behind-a-hang-up",
        "A welcome that waits goes out ahead of a hang-up.",
        "weir.broker.runtime.outbox",
        "        if self._welcomes and isinstance(effect, Hangup) "
        "and effect.session in self._welcomes:\n            self.send(effect.session)\n",
        "",
        f"{_OUTBOX}::test_a_hangup_comes_behind_it",
        f"{_ARRIVALS}::test_who_is_let_go_or_left_by_a_shard_that_stops_hears_its_welcome",
    ),
    Bug(
        "redirect-to-the-leader-that-is-silent",
        "Who waits for a silent leader is sent to another node, and never back to that one.",
        "weir.client.connection.network_client",
        "if told.node not in (0, silent.node) and silent.is_silent:",
        "if told.node and silent.is_silent:",
        f"{_NODES}::test_a_leader_that_is_slow_is_waited_for_while_nobody_names_another",
    ),
    Bug(
        "lease-goes-on-after-it-was-lost",
        "A consumer that is told that its lease is over holds nothing by it.",
        "weir.client.consumer.delivery",
        "            holdings[0].ends = self._monotonic()\n            return False",
        "            holdings[0].ends = self._monotonic() + self._lease\n            return True",
        f"{_SETTLING}::test_a_lease_that_has_ended_is_not_extended",
    ),
    Bug(
        "grant-of-who-is-gone-extended",
        "A grant that ended with its consumer's connection is not extended.",
        "weir.broker.state.clusters",
        "if grant is None or grant.consumer == NOBODY or grant.deadline == AT_ONCE:\n"
        "            return False",
        "if grant is None or grant.consumer == NOBODY:\n            return False",
        f"{_RETURNS}::test_a_gone_consumers_grants_are_not_extended",
    ),
)
