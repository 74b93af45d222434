"""Bugs of members that catch up: they do not make way for live traffic, or never get there."""

from __future__ import annotations

from weir_lab.planted.bug import Bug

_UNIT = "packages/weir-mq/tests/unit"
_PERMITS = f"{_UNIT}/broker/replica/test_makes_way.py"
_WORLD = f"{_UNIT}/broker_replicas/test_catching_up_beside.py"
_BESIDE = f"{_WORLD}::test_a_node_catches_up_beside_live_traffic"
_GAINS = f"{_WORLD}::test_a_node_gets_there_though_more_is_written_than_it_gains_beside_it"
_MODULE = "weir.broker.replica.catch_up"

OF_REPLICAS = (
    Bug(
        "catch-up-rests-for-ever",
        "A rest of old entries ends.",
        _MODULE,
        "self._time.monotonic_ms() >= self._rests_until_ms",
        "not self._rests_until_ms",
        _BESIDE,
    ),
    Bug(
        "catch-up-rests-beside-nobody",
        "Without live traffic old entries come by the window.",
        "weir.broker.runtime.live_traffic",
        "return now < self._until_ms",
        "return True",
        f"{_PERMITS}::test_a_rest_ends_with_the_live_traffic",
    ),
    Bug(
        "catch-up-makes-way-for-nobody",
        "Old entries rest while there is live traffic.",
        "weir.broker.replica.group",
        "self._context.permits.traffic.came = True",
        "pass",
        _BESIDE,
    ),
    Bug(
        "catch-up-rests-for-nothing-more",
        "What was sent of old entries is acknowledged before more is read.",
        _MODULE,
        "(group in self._held and not makes_way)",
        "group in self._held",
        f"{_PERMITS}::test_a_group_with_a_permit_asks_for_its_next_piece_once_the_last_is_"
        "acknowledged",
    ),
    Bug(
        "catch-up-rests-until-a-tick",
        "A rest of old entries ends with any turn of the shard.",
        "weir.broker.shard",
        "replication.permits.proceed()",
        "pass",
        _BESIDE,
    ),
    Bug(
        "catch-up-never-hurries",
        "Who does not gain beside live traffic makes way no more.",
        _MODULE,
        "self._haste += 1",
        "pass",
        _GAINS,
    ),
    Bug(
        "catch-up-hurries-for-ever",
        "Who lags anew makes way as at first.",
        _MODULE,
        "            if not self._lags:\n                self._haste = 0",
        "",
        f"{_PERMITS}::test_who_lags_anew_makes_way_again",
    ),
    Bug(
        "refill-rests-for-nobody",
        "What rotted is asked for a piece at a time, with rests, while there is live traffic.",
        "weir.broker.replica.refill",
        "if rest_ms := self._traffic.rest_ms(now - lack.asked_ms):",
        "if rest_ms := 0:",
        f"{_UNIT}/broker_replicas/test_refill.py::"
        "test_a_node_that_is_filled_in_rests_between_pieces_beside_live_traffic",
    ),
)
