"""A reply that makes no sense ends the connection; what it should have answered goes out again."""

from __future__ import annotations

import asyncio

from weir.client.client import connect
from weir.client.core.retries import Backoff
from weir.protocol.client import messages as m
from weir.protocol.frame import ClientFrame


# The request was forgotten before its reply was read: nobody told the lane, which waited for ever.
def test_what_a_senseless_reply_should_have_answered_is_sent_again(fake_broker) -> None:
    async def scenario() -> None:
        async with (
            fake_broker() as broker,
            connect(broker.url, retry=Backoff(0.005, 0.02), request_timeout=2) as w,
        ):
            await w.create_topic("t")
            told, reply = [], broker.reply

            def senseless(
                answer: m.Reply, frame: ClientFrame, writer: asyncio.StreamWriter
            ) -> None:
                if isinstance(answer, m.Confirm) and not told:
                    told.append(answer)
                    answer = m.Pong(5)
                reply(answer, frame, writer)

            broker.reply = senseless
            await w.publish("t", b"x")
            assert told
            assert broker.values("t") == [b"x"]

    asyncio.run(asyncio.wait_for(scenario(), 20))
