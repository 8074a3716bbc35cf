"""A Binding request, for asking a server whether it is there."""

import os
import socket
import struct
import time

from harness.topology import Namespace

_MAGIC_COOKIE = 0x2112A442
_BINDING_REQUEST = 0x0001
_BINDING_SUCCESS = 0x0101


def binding_request(transaction_id: bytes) -> bytes:
    return struct.pack("!HHI", _BINDING_REQUEST, 0, _MAGIC_COOKIE) + transaction_id


def answers(namespace: Namespace, local: str, server: str, port: int, timeout: float = 0.2) -> bool:
    """Whether one Binding request from `local` gets its success response within `timeout` seconds."""
    transaction_id = os.urandom(12)
    with namespace.udp(local) as udp:
        udp.sendto(binding_request(transaction_id), (server, port))
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            udp.settimeout(left)
            try:
                answer = udp.recv(2048)
            except (socket.timeout, ConnectionError):
                return False
            if len(answer) >= 20 and answer[:2] == struct.pack("!H", _BINDING_SUCCESS) and answer[8:20] == transaction_id:
                return True
    return False
