"""Headless Chromium: two pages that may only use relay candidates exchange video and data channel messages."""

import contextlib
import pathlib
import shlex

import playwright.sync_api
import pytest

from harness import topology, waiting

SCRIPT = pathlib.Path(__file__).parent / "webrtc.js"
MESSAGES = 400
#: As `contents` in webrtc.js makes them.
MESSAGE_BYTES = sum(1 + number * 4_000 // MESSAGES for number in range(MESSAGES))
PAUSE_MS = 8
FRAMES = 90
#: Several of what the test waits for come one after the other, each of which a starved browser takes long for.
TIMEOUT = 100
#: Debian's Chromium as root in a network without the outside.
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--ignore-certificate-errors",  # the server's is signed by itself
]


@contextlib.contextmanager
def _two_pages(hosts, program, folder):
    """Two pages of two browser contexts, the browser running in the client's namespace."""
    launcher = folder / "chromium-in-namespace"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(hosts.client.argv(program("chromium")))} "$@"\n')
    launcher.chmod(0o755)
    with playwright.sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=launcher, args=FLAGS, timeout=TIMEOUT * 1000)
        print("Chromium", browser.version)
        with contextlib.closing(browser):
            yield [browser.new_context().new_page() for _ in range(2)]


def _configure(page, side: int, server, address: str, transport: str) -> None:
    page.set_default_timeout(TIMEOUT * 1000)
    page.add_script_tag(path=SCRIPT)
    server_url = {
        "UDP": f"turn:{topology.with_port(address, server.port)}?transport=udp",
        "TCP": f"turn:{topology.with_port(address, server.port)}?transport=tcp",
        "TLS": f"turns:{topology.with_port(address, server.tls_port)}?transport=tcp",
    }[transport]
    configuration = {
        "iceServers": [{"urls": server_url, "username": server.user, "credential": server.password}],
        "iceTransportPolicy": "relay",
    }
    page.evaluate(
        "([side, configuration, messages]) => { window.call = new Call(side, configuration, messages) }",
        [side, configuration, MESSAGES],
    )


def _statistics(page) -> dict:
    return page.evaluate("() => call.statistics()")


def _settled(pages) -> list[dict] | None:
    """The statistics of both pages, once each has received every packet that the other has sent, of whatever kind."""
    ends = [_statistics(page) for page in pages]
    for this, other in (ends, ends[::-1]):
        if this["pair"]["packetsSent"] != other["pair"]["packetsReceived"]:
            return None
        if this["outbound"]["packetsSent"] != other["inbound"]["packetsReceived"]:
            return None
    return ends


def _show(ends: list[dict]) -> None:
    for side, end in enumerate(ends):
        print(f"page {side}:")
        for row in ("pair", "local", "remote", "channel", "inbound", "outbound"):
            print(f"  {row}: {end[row]}")


@pytest.mark.secure
@pytest.mark.client("Chromium")
@pytest.mark.parametrize("listener", ["IPv4", "IPv6"])
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS"])
def two_pages_with_relay_only_exchange_video_and_messages(hosts, server, program, tmp_path, listener, transport):
    address = {"IPv4": server.ipv4, "IPv6": server.ipv6}[listener]
    with _two_pages(hosts, program, tmp_path) as pages:
        for side, page in enumerate(pages):
            _configure(page, side, server, address, transport)
        offerer, answerer = pages
        offer = offerer.evaluate("() => call.offer()")
        assert "typ relay" in offer["sdp"], offerer.evaluate("() => call.candidateErrors")
        answer = answerer.evaluate("offer => call.answer(offer)", offer)
        offerer.evaluate("answer => call.accept(answer)", answer)
        for page in pages:
            page.wait_for_function("() => call.channel.readyState === 'open'")
        for page in pages:
            page.evaluate("pause => { call.sendMessages(pause) }", PAUSE_MS)
        for page in pages:
            page.wait_for_function("messages => call.received === messages", arg=MESSAGES)
            waiting.await_condition(
                lambda page=page: _statistics(page)["inbound"]["framesDecoded"] > FRAMES, f"{FRAMES} frames", TIMEOUT
            )
        for page in pages:
            page.evaluate("() => call.stopVideo()")
        try:
            ends = waiting.await_condition(lambda: _settled(pages), "the arrival of every packet sent", TIMEOUT)
        except TimeoutError:
            _show([_statistics(page) for page in pages])
            raise
        differing = [page.evaluate("() => call.differing") for page in pages]
    _show(ends)
    assert differing == [0, 0]
    for this, other in (ends, ends[::-1]):
        assert (this["local"]["candidateType"], this["remote"]["candidateType"]) == ("relay", "relay")
        assert (this["local"]["relayProtocol"], this["local"]["protocol"]) == (transport.lower(), "udp")
        assert this["local"]["address"] == this["remote"]["address"] == topology.RELAY_IPV4
        assert (this["local"]["address"], this["local"]["port"]) == (other["remote"]["address"], other["remote"]["port"])
        assert this["pair"]["bytesSent"] == other["pair"]["bytesReceived"] > MESSAGE_BYTES
        assert this["channel"]["messagesSent"] == other["channel"]["messagesReceived"] == MESSAGES
        assert this["channel"]["bytesSent"] == other["channel"]["bytesReceived"] == MESSAGE_BYTES
        assert this["outbound"]["bytesSent"] == other["inbound"]["bytesReceived"] > 0
        assert this["inbound"]["packetsLost"] == 0
        assert this["inbound"]["framesDecoded"] > FRAMES
