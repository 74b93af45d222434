from weir import errors, sync

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("orders")
    try:
        w.publish("nowhere", b"x")
    except errors.UnknownTopic as error:
        print(error)
    try:
        w.publish("orders", b"x", partition=-1)
    except errors.UnknownTopic as error:
        print(error)
