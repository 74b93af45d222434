from weir import sync

with sync.connect("weir://localhost:6800") as w, sync.connect("weir://localhost:6800") as other:
    w.create_topic("chess", partitions=4, order="total")
    first = w.publish("chess", "white: e4", partition=3)
    with other.reader("chess", start="earliest") as reader:
        print("seen    ", next(reader).value.decode())
        second = other.publish("chess", "black: e5", partition=0)  # an answer to what it saw
    print("in order", first.stamp < second.stamp)
    with w.producer("chess", ack="visible") as producer:
        producer.send(b"white: Nf3", partition=1)
    print("replayed", [m.value.decode()[7:] for m in w.reader("chess", follow=False)])
