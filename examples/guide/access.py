from weir import errors, sync
from weir.client.access import AccessRule

with sync.connect("weir://localhost:6800") as w:
    w.create_topic("orders")
    w.create_topic("wages")
    w.access.create_user("root", "a long secret", roles=["admin"])
    w.access.change_rules("shop", add=[AccessRule(("publish", "read"), "topic", "orders")])
    w.access.create_user("ann", "another secret", roles=["shop"])

with sync.connect("weir://root@localhost:6800", password="a long secret") as w:
    w.access.set_mode("closed")

with sync.connect("weir://ann@localhost:6800", password="another secret") as w:
    print(w.publish("orders", b"3 apples").offset)
    print([topic.name for topic in w.topics()])
    for topic in ("wages", "no-such-topic"):
        try:
            w.publish(topic, b"0")
        except errors.UnknownTopic as error:
            print(error)
    try:
        w.delete_topic("orders")
    except errors.Unauthorized as error:
        print(error)
