from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import weir


class Base(DeclarativeBase):
    pass


class Unlock(Base):
    __tablename__ = "unlocks"
    id: Mapped[int] = mapped_column(primary_key=True)
    door: Mapped[str]


engine = create_async_engine("sqlite+aiosqlite:///doors.db")  # or postgresql+psycopg://...
sessions = async_sessionmaker(engine)
inbox = weir.Inbox("doors")
app = weir.App("weir://localhost:6800")


@app.on_start
async def begin():
    await inbox.create(engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


@app.subscribe("unlocks", cluster="doors", inbox=inbox)
async def record(message: weir.Message):
    async with sessions.begin() as session, inbox.once(session, message) as fresh:
        if fresh:
            session.add(Unlock(door=message.json()["door"]))
