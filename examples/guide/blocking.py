from weir import sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("arrivals")
    w.publish("arrivals", "DL461 LGA ATL", key="ATL", tag="landed")
    for message in w.reader("arrivals", follow=False):
        print(message.key, message.value)
