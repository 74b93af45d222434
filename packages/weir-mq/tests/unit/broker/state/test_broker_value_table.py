"""Which values grow, and what retention must keep for those that are closed."""

from __future__ import annotations

from weir.broker.state.large_values import ValueTable
from weir.model.columns import Piece, References, runs_of
from weir.model.limits import OPEN_VALUE_MS
from weir.order.clock import stamp_at


class TestTable:
    """`ValueTable` alone: what retention asks it."""

    def closed(self, table: ValueTable, producer: int, indices: list[int], offset: int) -> None:
        for n, index in enumerate(indices):
            table.grow(producer, 1, Piece(n, 1), 7, index, stamp_at(1), 100)
        table.close(producer, References(len(indices), 0, runs_of(indices)), offset)

    def test_chunks_are_kept_as_long_as_the_message_they_make(self) -> None:
        table = ValueTable()
        self.closed(table, 1, [3, 5], offset=10)
        self.closed(table, 2, [4, 8], offset=11)
        table.grow(3, 1, Piece(0, 1), 7, 9, stamp_at(1), 100)
        assert table.first_needed_index(20, 12) == 9  # an open one
        assert table.first_needed_index(20, 11) == 4
        assert table.first_needed_index(20, 10) == 3
        assert table.first_needed_index(2, 10) == 2
        assert [table.stored_from(offset) for offset in (0, 10, 11, 12)] == [400, 400, 200, 0]
        assert table.stored == 500
        assert table.first_needed_index(20, 12, since=stamp_at(2)) == 20  # it is to be void
        table.forget_below(11)
        assert [table.stored_from(offset) for offset in (0, 11, 12)] == [200, 200, 0]
        self.closed(table, 2, [10], offset=13)
        assert [table.stored_from(offset) for offset in (11, 12)] == [300, 100]
        assert table.first_needed_index(20, 0) == 4
        table.at(4, 1, stamp_at(OPEN_VALUE_MS + 2))
        assert len(table) == 0
        assert table.first_needed_index(20, 12) == 10
        assert table.first_needed_index(20, 14) == 20

    def test_a_snapshot_holds_all_of_it(self) -> None:
        table = ValueTable()
        self.closed(table, 1, [3, 5], offset=10)
        table.grow(3, 2, Piece(0, 7), 7, 9, stamp_at(5), 100)
        again = ValueTable.decode(*table.encode())  # type: ignore[misc]
        assert again.encode() == table.encode()
        assert again.open(3) == table.open(3)

    def test_a_piece_that_continues_nothing_is_void_on_every_replica(self) -> None:
        table = ValueTable()
        table.grow(1, 1, Piece(4, 1), 7, 3, stamp_at(1), 9)
        assert table.open(1) is None
        table.grow(1, 1, Piece(0, 4), 7, 4, stamp_at(1), 9)
        table.grow(1, 1, Piece(9, 4), 7, 5, stamp_at(1), 9)
        assert table.open(1) is None
