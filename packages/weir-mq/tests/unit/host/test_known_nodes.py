"""What is known of a node, and which hellos can be its own."""

from __future__ import annotations

import msgspec

from weir.broker.api.effects import Connect
from weir.host.links import NOTHING_KNOWN
from weir.protocol.link import Lane, LinkHello, vouch

HELLO = LinkHello(1, 7, 3, 2, 0, 1, 2, 1, 9, Lane.QUICK, 1, 0, "two", 6800)


def test_a_node_is_of_the_set_that_it_is_known_to_be_of() -> None:
    assert not NOTHING_KNOWN.refuses(HELLO)
    known = NOTHING_KNOWN.with_news(Connect(2, "two", 6800, 0, 4))
    said = "node 2 is of BrokerSet 3, and here it is of BrokerSet 4"
    assert said in known.refuses(HELLO)
    assert not known.refuses(msgspec.structs.replace(HELLO, brokerset=4))
    # Who tells where it is reached anew says nothing else of it.
    assert known.with_news(Connect(2, "elsewhere", 6800)) == known


def test_a_node_is_the_folder_that_it_is_known_to_be() -> None:
    known = NOTHING_KNOWN.with_news(Connect(2, "two", 6800, 55, 3))
    assert "another data folder" in known.refuses(HELLO)
    assert not known.refuses(msgspec.structs.replace(HELLO, proof=vouch(55, HELLO)))
