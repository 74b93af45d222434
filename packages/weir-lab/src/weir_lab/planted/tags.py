"""Bugs of reading some tags, and of the index that says where they lie: something is left out, told
to be skipped that is not, or believed that rotted.
"""

from __future__ import annotations

from weir_lab.planted.bug import Bug

_UNIT = "packages/weir-mq/tests/unit"
_FETCHES = f"{_UNIT}/broker/partition/test_tagged_fetches.py"
_SLICES = f"{_UNIT}/model/test_slices.py"
_SETS = f"{_UNIT}/storage/test_tag_sets.py"
_FILTERS = f"{_UNIT}/client/core/test_client_filters.py"
_READERS = f"{_UNIT}/client/reader/test_reader_tags.py"

_SEGMENTS = f"{_UNIT}/storage/test_segment_lifecycle.py"

OF_TAGS = (
    # No world shows this one: what an entry's frame says of itself is compared, too.
    Bug(
        "index-files-are-believed",
        "An index file counts only if its checksum is right (DESIGN §4 Log).",
        "weir.storage.format.index_file",
        " or U32.unpack_from(data, len(body))[0] != crc32c(data[: len(body)])",
        "",
        f"{_SEGMENTS}::test_an_index_file_that_is_not_to_be_believed_is_made_again",
    ),
    Bug(
        "an-entry-of-several-tags-has-one",
        "The set of an entry has the tags of all its batches.",
        "weir.model.slices",
        "return tuple({tag: None for tags in lists for tag in tags}) if all(lists) else ()",
        "return next(iter(lists)) if all(lists) else ()",
        _SETS,
    ),
    Bug(
        "an-unlisted-batch-counts-for-nothing",
        "An entry with a batch whose tags are not known is looked into.",
        "weir.model.slices",
        "for tag in tags}) if all(lists) else ()",
        "for tag in tags})",
        f"{_SETS}::test_a_batch_whose_tags_are_many_makes_its_entry_unknown",
    ),
    Bug(
        "a-lost-entry-is-passed-over",
        "An entry that was lost is read, so that its loss is told.",
        "weir.storage.group_index",
        "        columns.tags[at] = LOOK_INSIDE\n",
        "        columns.tags[at] = columns.tags[at]\n",
        f"{_SETS}::test_a_lost_entry_is_never_passed_over",
    ),
    Bug(
        "numbers-of-a-file-are-those-here",
        "Numbers of sets from an index file are translated.",
        "weir.storage.group_index",
        "numbers = self.sets.numbers(rows.sets)",
        "numbers = range(len(rows.sets) + 1)",
        f"{_SETS}::test_numbers_of_another_index_are_translated",
    ),
    Bug(
        "rows-of-a-slice-count-in-the-slice",
        "A slice of a slice has the rows of the first original.",
        "weir.model.slices",
        "numbers = rows if before is None else [before.rows[row] for row in rows]",
        "numbers = rows",
        f"{_SLICES}::test_a_slice_has_these_messages_of_its_batch_however_often_it_is_sliced",
    ),
    Bug(
        "offsets-of-a-slice-have-no-gaps",
        "A message of a slice has the offset that it has in its batch.",
        "weir.model.columns",
        "return [first + row for row in self.rows]",
        "return [first + row for row, _ in enumerate(self.rows)]",
        f"{_READERS}::test_a_reader_of_some_tags_gets_the_same_less_others",
    ),
    Bug(
        "a-void-is-told-as-skipped-too",
        "What is void is told as that alone.",
        "weir.broker.runtime.filtering",
        "        skipped.discard(first, last)\n",
        "        skipped.add(first, last)\n",
        f"{_FETCHES}::test_what_is_void_is_not_skipped",
    ),
    Bug(
        "what-did-not-come-was-skipped",
        "Only what was looked at is told as skipped.",
        "weir.broker.runtime.filtering",
        "    skipped = Ranges()\n",
        "    skipped = Ranges(((offset, behind),))\n",
        f"{_FETCHES}::test_what_was_neither_read_nor_passed_over_is_in_no_run",
    ),
    Bug(
        "an-answer-goes-on-behind-what-it-looked-at",
        "An answer that ends early says where.",
        "weir.broker.runtime.filtering",
        "            behind = first\n            break\n",
        "            break\n",
        f"{_FETCHES}::test_an_answer_looks_at_so_many_messages_and_goes_on_there",
    ),
    Bug(
        "a-hole-is-read-over",
        "A client asks again where an answer leaves something out.",
        "weir.client.core.delivered_batches",
        "        if first != at or not tags:\n",
        "        if first < at or not tags:\n",
        f"{_FILTERS}::test_what_is_neither_skipped_nor_void_nor_there_is_missing",
    ),
)
