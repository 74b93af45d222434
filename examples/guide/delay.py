from datetime import datetime, timedelta

from weir import sync, testing

with testing.node() as node, sync.connect(node.url) as w:
    w.create_topic("reminders")
    w.publish("reminders", "in an hour", delay="1h")
    w.publish("reminders", "tomorrow", due=datetime.now() + timedelta(days=1))
    w.publish("reminders", "your code is 1234", ttl="5m")
    w.publish("reminders", "now")
    print("readers see", len([*w.reader("reminders", follow=False)]))
    node.advance(3_601)
    with w.consumer("reminders", cluster="mail") as consumer:
        for message in consumer:
            with message:
                print(message.value.decode())
            if message.value == b"now":
                node.advance(86_400)
            if message.value == b"tomorrow":
                break
