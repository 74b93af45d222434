"""The three places of aggregation: who sends where, and what carries barriers."""

from __future__ import annotations

import pytest

from weir_toc.errors import InvalidTopology
from weir_toc.places import Place, place_named


@pytest.mark.parametrize(("name", "is_direct", "barriers_in_data"), [
    ("host", False, True), ("switch", True, False), ("xdp", False, True),
])  # fmt: skip
def test_a_place_says_where_data_go_and_what_they_carry(
    name: str, is_direct: bool, barriers_in_data: bool
) -> None:
    place = place_named(name)
    assert place is Place(name)
    assert (place.is_direct, place.barriers_in_data) == (is_direct, barriers_in_data)


def test_an_unknown_place_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidTopology, match="take one of host, switch, xdp"):
        place_named("nowhere")
