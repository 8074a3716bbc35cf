"""A Binding request, for asking a server whether it is there."""

import os
import struct

from harness.topology import Namespace

_MAGIC_COOKIE = 0x2112A442
_BINDING_REQUEST = 0x0001
_BINDING_SUCCESS = 0x0101


def binding_request(transaction_id: bytes) -> bytes:
    return struct.pack("!HHI", _BINDING_REQUEST, 0, _MAGIC_COOKIE) + transaction_id


def answers(namespace: Namespace, local: str, server: str, port: int, timeout: float) -> bool:
    """Whether one Binding request from `local` gets its success response. False at once where nothing listens."""
    transaction_id = os.urandom(12)
    with namespace.udp(local) as udp:
        udp.connect((server, port))  # so that an ICMP error is reported
        udp.settimeout(timeout)
        try:
            udp.send(binding_request(transaction_id))
            answer = udp.recv(2048)
        except OSError:  # the time is over, or an ICMP error came
            return False
    return len(answer) >= 20 and answer[:2] == struct.pack("!H", _BINDING_SUCCESS) and answer[8:20] == transaction_id
