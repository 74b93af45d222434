from sqlalchemy import create_engine, text

import weir

engine = create_engine("sqlite:///ledger.db")
inbox = weir.Inbox("ledger")  # pip install 'weir-mq[inbox]'
app = weir.App("weir://localhost:6800")


@app.on_start
def begin():
    inbox.create(engine)
    with engine.begin() as connection:
        connection.execute(text("create table if not exists unlocks (door text, at integer)"))


@app.subscribe("unlocks", cluster="ledger", dead_letter="unlocks.dead", inbox=inbox)
def record(message: weir.Message):
    unlock = message.json()
    if "door" not in unlock:
        raise weir.Reject("no door is named")
    with engine.begin() as connection, inbox.once(connection, message) as fresh:
        if fresh:
            row = {"door": unlock["door"], "at": message.time}
            connection.execute(text("insert into unlocks values (:door, :at)"), row)


if __name__ == "__main__":
    app.run_sync()
