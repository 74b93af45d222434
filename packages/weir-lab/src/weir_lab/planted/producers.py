"""Bugs of producer ids and their windows: an answer is forgotten that is still asked for."""

from __future__ import annotations

from weir_lab.planted.bug import Bug

_UNIT = "packages/weir-mq/tests/unit"
_APPENDER = f"{_UNIT}/broker/produce/test_appender.py"
_WINDOWS = f"{_UNIT}/broker_replicas/test_windows_of_a_set.py"
_TABLE = f"{_UNIT}/broker/state/test_producer_table.py"
_IDS = f"{_UNIT}/broker/metadata/test_producer_ids.py"
_CLIENTS = f"{_UNIT}/client/producer/test_producer_windows.py"
_GRANTS = f"{_UNIT}/broker/metadata/test_broker_producers.py"

OF_PRODUCERS = (
    # No world shows this one: programs that keep to their window never come to it.
    Bug(
        "windows-are-not-enforced",
        "A producer with its window under way is refused one batch more.",
        "weir.broker.produce.appender",
        "if appender.windows.get((producer, epoch), 0) >= window:",
        "if appender.windows.get((producer, epoch), 0) > 4 * window:",
        f"{_APPENDER}::test_a_window_is_kept_to",
    ),
    Bug(
        "commits-make-no-room",
        "A commit makes room in the window.",
        "weir.broker.produce.appender",
        "under_way = self.windows[key] - 1",
        "under_way = self.windows[key]",
        f"{_APPENDER}::test_a_window_is_kept_to",
    ),
    Bug(
        "early-confirms-make-no-room",
        "A batch that is confirmed as received makes room before it is committed.",
        "weir.broker.produce.appender",
        "for pending in found:\n            if pending.in_window:",
        "for pending in found:\n            if pending.in_window and not pending.early:",
        f"{_WINDOWS}::test_a_batch_confirmed_as_received_makes_room_before_its_commit",
    ),
    Bug(
        "rings-are-cut-to-one",
        "A row keeps as many answers as its id has a window.",
        "weir.broker.state.producers",
        "end = at + min(written, stripe.window) * _ANSWER.size",
        "end = at + min(written, 1) * _ANSWER.size",
        f"{_TABLE}::test_as_many_answers_are_kept_as_the_window_has",
    ),
    Bug(
        "answers-of-an-ended-epoch-are-given",
        "A new epoch forgets the answers of the old one.",
        "weir.broker.state.producers",
        "end = at + min(written, stripe.window) * _ANSWER.size",
        "end = at + stripe.window * _ANSWER.size",
        f"{_TABLE}::test_as_many_answers_are_kept_as_the_window_has",
    ),
    Bug(
        "stripes-are-written-under-a-snapshot",
        "What a snapshot holds is copied before it is written to.",
        "weir.broker.state.producers",
        "if stripe is None or stripe.epoch != self._epoch:",
        "if stripe is None:",
        f"{_TABLE}::test_a_snapshot_of_producers_stays_what_it_was",
    ),
    Bug(
        "windows-count-as-time",
        "The window of an id is no part of the stamp of its grant.",
        "weir.broker.produce.appender",
        "return milliseconds_of(granted_at(producer)) <",
        "return milliseconds_of(producer) <",
        f"{_GRANTS}::test_an_old_id_with_a_window_is_refused_as_others_are",
    ),
    Bug(
        "windows-are-granted-below-their-level",
        "A set grants windows once all its nodes know them.",
        "weir.broker.metadata.registry",
        "window if self.catalog.level >= FORMAT_LEVEL_WINDOWS else 0",
        "window if self.catalog.level else 0",
        f"{_GRANTS}::test_a_set_below_format_level_3_grants_no_windows",
    ),
    Bug(
        "renewed-ids-are-forgotten",
        "An id is kept by the grant of its newest epoch.",
        "weir.broker.metadata.producer_ids",
        "if key >= end or self._renewed.get(_id_of(key), (0, -1))[1] >= below:",
        "if key >= end:",
        f"{_IDS}::test_ids_agree_with_a_dict",
    ),
    Bug(
        "ids-are-added-under-a-snapshot",
        "The chunk that a snapshot holds is not added to.",
        "weir.broker.metadata.producer_ids",
        "self._chunks[-1] = _Chunk(keys[:], owners[:])",
        "self._chunks[-1] = _Chunk(keys, owners)",
        f"{_IDS}::test_a_snapshot_stays_what_it_was",
    ),
    Bug(
        "an-id-is-shared-within-a-topic",
        "A topic's next producer has another id: it numbers its batches anew.",
        "weir.client.producer.sender",
        "if self._grant is None or topic in self._topics or is_old:",
        "if self._grant is None or is_old:",
        f"{_CLIENTS}::test_a_topic_gets_a_new_id_where_its_producer_failed",
    ),
)
