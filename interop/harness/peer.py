"""A UDP peer whose answer proves that it received exactly what was sent: every payload comes back transformed."""

import contextlib
import socket
import threading

from harness.topology import Namespace

_TABLE = bytes(octet ^ 0x5A for octet in range(256))


def transformed(payload: bytes) -> bytes:
    """Reversed, each octet XORed with 0x5A. The Go client has the same function."""
    return payload[::-1].translate(_TABLE)


class TransformingPeer:
    """Answers on `address` (an ephemeral port) until closed."""

    def __init__(self, namespace: Namespace, address: str):
        self._udp = namespace.udp(address)
        self.address = address
        self.port = self._udp.getsockname()[1]
        #: Source addresses seen: a relayed client appears here as its relayed transport address.
        self.sources: set[tuple[str, int]] = set()
        self._thread = threading.Thread(target=self._serve, name="transforming peer", daemon=True)

    def __enter__(self) -> "TransformingPeer":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        # Wakes the reader, although an unconnected socket reports that there was nothing to shut down.
        with contextlib.suppress(OSError):
            self._udp.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._udp.close()

    def _serve(self) -> None:
        while True:
            payload, source = self._udp.recvfrom(65536)
            if source is None:  # shut down; a datagram without payload still has a source
                return
            self.sources.add(source[:2])
            self._udp.sendto(transformed(payload), source)
