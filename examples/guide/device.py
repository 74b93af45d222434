from weir import device, sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("events")
    w.create_topic("commands")

    # A hub with the number 0xA17; `boot` must rise each time its sequences begin again.
    with device.Client("localhost", 6800, hub=0xA17, boot=1, topic="events") as hub:
        reply = hub.publish_sequenced(b"door 3 opened", sn=3)
        print("stored at offset", reply.offset)

        # The device behind the hub with the number 3 receives commands as a consumer of a cluster.
        commands = hub.subscribe("doors", "commands", sn=3)
        w.publish("commands", b"lock door 3")
        for message in commands.take(seconds=10):
            print("received", message.value.decode())
            commands.ack([message])
