from sqlalchemy import Column, Integer, MetaData, Table, insert

import weir

tables = MetaData()
charges = Table(
    "charges", tables, Column("id", Integer, primary_key=True), Column("number", Integer)
)
inbox = weir.Inbox("charging")


async def prepare(engine):
    await inbox.create(engine)
    async with engine.begin() as connection:
        await connection.run_sync(tables.create_all)


def naive(engine):
    app = weir.App(name="charging")

    @app.on_start
    async def begin():
        await prepare(engine)

    @app.subscribe("orders", cluster="charging")
    async def charge(message):
        async with engine.begin() as connection:
            await connection.execute(insert(charges).values(number=message.json()["number"]))

    return app


def mended(engine):
    app = weir.App(name="charging")

    @app.on_start
    async def begin():
        await prepare(engine)

    @app.subscribe("orders", cluster="charging", inbox=inbox)
    async def charge(message):
        async with engine.begin() as connection, inbox.once(connection, message) as fresh:
            if fresh:
                await connection.execute(insert(charges).values(number=message.json()["number"]))

    return app
