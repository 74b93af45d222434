import pytest

import weir
from weir import sync


@pytest.fixture
def node():
    with weir.testing.node() as node:
        yield node


def bill(url, done):
    """The application: bills what it finds, until there is nothing."""
    with sync.connect(url) as w, w.consumer("orders", cluster="billing") as consumer:
        for message in consumer:
            with message:
                if message.value == b"end":
                    return
                done.append(message.value)


def test_orders_are_billed_once_whatever_happens(node):
    with sync.connect(node.url) as w:
        w.create_topic("orders")
        w.publish("orders", b"one")
        node.restart()  # a power cut: what was confirmed is still there
        w.publish("orders", b"two")
        node.cut()  # all connections end; clients come back
        w.publish("orders", b"end")
        done = []
        bill(node.url, done)
        assert done == [b"one", b"two"]


def test_work_of_a_hung_consumer_goes_to_another(node):
    with sync.connect(node.url) as w:
        w.create_topic("orders")
        w.publish("orders", b"one")
        with w.consumer("orders", cluster="billing", lease="10m") as hung:
            held = next(hung)
            assert held.attempts == 1
            node.advance(601)  # seconds: the lease ends now
            with w.consumer("orders", cluster="billing") as other, next(other) as again:
                assert again.attempts == 2
