"""The broker's end of a connection: the first byte tells the dialect (DESIGN §4 Client frame)."""

from __future__ import annotations

from collections.abc import Sequence

from weir.access.devices import FrameKeys
from weir.errors import RemoteProtocolError
from weir.protocol.client.codec import ClientStream
from weir.protocol.device import VERSION as DEVICE_VERSION
from weir.protocol.device import DeviceRequest, DeviceStream
from weir.protocol.frame import CLIENT_VERSION, ClientFrame
from weir.protocol.proof import ReplySigner


class Connection:
    """Bytes of one peer, in whichever dialect it speaks."""

    __slots__ = ("is_device", "pending", "signer", "stream")

    def __init__(self) -> None:
        """Know nothing of the peer yet."""
        self.stream: ClientStream | DeviceStream | None = None
        #: Whether the peer speaks the device dialect.
        self.is_device = False
        #: Bytes held for a frame that is not whole yet.
        self.pending = 0
        #: What signs replies to a device whose frames are signed.
        self.signer: ReplySigner | None = None

    @property
    def claimed(self) -> int:
        """Bytes that the frame under way will take when it is whole; 0 until its header is."""
        return self.stream.claimed if self.stream else 0

    @property
    def unfinished(self) -> tuple[int, int] | None:
        """Opcode and correlation of the client frame under way, if its header has come."""
        return self.stream.unfinished if isinstance(self.stream, ClientStream) else None

    def sign(self, keys: FrameKeys) -> None:
        """Take only signed frames of a device from now on, and let `signer` sign its replies.
        Raises `RemoteProtocolError` for a peer that is no device.
        """
        if not isinstance(self.stream, DeviceStream):
            raise RemoteProtocolError("only devices sign their frames")
        self.stream.expect_signed(keys)
        self.signer = ReplySigner(keys.of_broker, self.signer)

    def receive(self, data: bytes) -> Sequence[ClientFrame | DeviceRequest]:
        """Take bytes as they come; return what is whole. Raises `RemoteProtocolError`."""
        if self.stream is None:
            if not data:
                return ()
            if data[0] == CLIENT_VERSION:
                self.stream = ClientStream()
            elif data[0] == DEVICE_VERSION:
                self.stream, self.is_device = DeviceStream(), True
            else:
                raise RemoteProtocolError(
                    f"a connection begins with 1 (device) or 2 (client), not {data[0]}"
                )
        frames = self.stream.receive(data)
        self.pending = self.stream.pending
        return frames
