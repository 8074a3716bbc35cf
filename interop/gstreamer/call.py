"""A call between two of GStreamer's webrtcbin (libnice) in one process, over relays only; prints one JSON object about it.

Debian's Python runs it, because only that one has Debian's gi. Arguments: the TURN server's URL with user and password, how many
messages each side sends, and how many RTP packets of video it sends at least.
"""

import json
import os
import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstSdp", "1.0")
gi.require_version("GstWebRTC", "1.0")
from gi.repository import GLib, Gst, GstSdp, GstWebRTC  # noqa: E402  (versions have to be chosen first)

DEADLINE_S = 120
#: As in webrtc.js, so that the sender's own socket buffer does not overflow.
PAUSE_MS = 8
#: How often it is looked whether all has arrived at the end.
SETTLED_MS = 300
#: After so many looks at which nothing more had arrived, nothing is under way: what is missing then was lost.
STILL_LOOKS = 10

# Looked up here: gi makes such classes when they are first asked for. One that a thread finds half made lacks attributes, and one that two threads ask for at
# once is made twice, and what is of the one is refused by the other.
NEEDED_BY_THREADS = [Gst.Buffer, Gst.BufferList, Gst.ElementFactory, Gst.GhostPad, Gst.PadLinkReturn, Gst.Promise, GLib.Bytes]
NEEDED_BY_THREADS += [GstSdp.SDPMessage, GstSdp.SDPResult, GstWebRTC.WebRTCSDPType, GstWebRTC.WebRTCSessionDescription]
FROM_PEER = Gst.PadDirection.SRC
BUFFERS = Gst.PadProbeType.BUFFER | Gst.PadProbeType.BUFFER_LIST
LIST = Gst.PadProbeType.BUFFER_LIST
PASS = Gst.PadProbeReturn.OK


def contents(side: int, number: int, messages: int) -> bytes:
    """Message `number` of a side: its own length and octets, the same on every run."""
    state = (side * 1000003 + number * 7919 + 1) & 0xFFFFFFFF
    octets = bytearray(1 + number * 4000 // messages)
    for index in range(len(octets)):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        octets[index] = state >> 24
    return bytes(octets)


class Side:
    """One webrtcbin with a video track and a data channel, and what was seen of both."""

    def __init__(self, call: "Call", number: int, url: str):
        self.call = call
        self.number = number
        self.candidates: list[str] = []
        self.selected = 0
        self.sent: set[int] = set()
        self.received: set[int] = set()
        self.messages = 0
        self.differing = 0
        self.opened = False
        self.pipeline = Gst.parse_launch(
            "webrtcbin name=peer bundle-policy=max-bundle ice-transport-policy=relay "
            "videotestsrc is-live=true pattern=ball ! video/x-raw,width=320,height=240,framerate=30/1 ! "
            "vp8enc deadline=1 keyframe-max-dist=30 ! rtpvp8pay ! valve name=valve ! "
            "application/x-rtp,media=video,encoding-name=VP8,clock-rate=90000,payload=96 ! peer."
        )
        self.peer = self.pipeline.get_by_name("peer")
        self.peer.set_property("turn-server", url)
        self.valve = self.pipeline.get_by_name("valve")
        self.valve.get_static_pad("src").add_probe(BUFFERS, self._note, self.sent)
        self.peer.connect("on-ice-candidate", self._candidate)
        self.peer.connect("pad-added", self._media)
        self.pipeline.set_state(Gst.State.READY)
        self.channel = self.peer.emit("create-data-channel", "contents", Gst.Structure.new_from_string("options,negotiated=(boolean)true,id=(int)1"))
        self.channel.connect("on-open", self._open)
        self.channel.connect("on-message-data", self._message)
        self.pipeline.get_bus().add_signal_watch()
        self.pipeline.get_bus().connect("message::error", self._error)

    def _error(self, _bus, message) -> None:
        self.call.fail(f"side {self.number}: {message.parse_error()}")

    def _candidate(self, _peer, line: int, candidate: str) -> None:
        self.candidates.append(candidate)
        self.call.other(self).peer.emit("add-ice-candidate", line, candidate)

    def _media(self, _peer, pad) -> None:
        if pad.get_direction() != FROM_PEER:
            return
        pad.add_probe(BUFFERS, self._note, self.received)
        sink = Gst.ElementFactory.make("fakesink")
        sink.set_property("async", False)
        sink.set_property("sync", False)
        self.pipeline.add(sink)
        sink.sync_state_with_parent()
        pad.link(sink.get_static_pad("sink"))

    @staticmethod
    def _note(_pad, info, numbers: set[int]):
        """Notes the sequence number of each RTP packet that passes."""
        if info.type & LIST:
            buffers = info.get_buffer_list()
            every = [buffers.get(index) for index in range(buffers.length())]
        else:
            every = [info.get_buffer()]
        for buffer in every:
            numbers.add(int.from_bytes(buffer.extract_dup(2, 2), "big"))
        return PASS

    def _open(self, _channel) -> None:
        self.opened = True

    def _message(self, _channel, data) -> None:
        # The channel is ordered and reliable, so the n-th message received is the n-th sent.
        self.differing += data.get_data() != contents(1 - self.number, self.messages, self.call.messages)
        self.messages += 1

    def say(self, number: int) -> None:
        self.channel.emit("send-data", GLib.Bytes.new(contents(self.number, number, self.call.messages)))

    def report(self) -> dict:
        return {
            "candidates": self.candidates,
            "messages": self.messages,
            "differing": self.differing,
            "rtp_sent": len(self.sent),
            "rtp_lost": len(self.sent - self.received_by_other()),
            "rtp_unknown": len(self.received_by_other() - self.sent),
        }

    def received_by_other(self) -> set[int]:
        return self.call.other(self).received


class Call:
    def __init__(self, url: str, messages: int, packets: int):
        self.messages = messages
        self.packets = packets
        self.loop = GLib.MainLoop()
        self.failure: str | None = None
        self.sides = [Side(self, number, url) for number in range(2)]
        self.said = 0
        self.arrived = 0
        self.still_looks = 0

    def other(self, side: Side) -> Side:
        return self.sides[1 - side.number]

    def fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.loop.quit()

    def run(self) -> dict:
        for side in self.sides:
            side.pipeline.set_state(Gst.State.PLAYING)
        self._describe(0, "offer")
        GLib.timeout_add(PAUSE_MS, self._step)
        GLib.timeout_add_seconds(DEADLINE_S, lambda: self.fail(f"not done after {DEADLINE_S} s"))
        self.loop.run()
        return {"failure": self.failure, "sides": [side.report() for side in self.sides]}

    def _describe(self, number: int, kind: str) -> None:
        """Has a side make an offer or an answer, and both take it."""
        this, other = self.sides[number], self.sides[1 - number]

        def made(promise) -> None:
            # The description is a part of the reply and lives no longer.
            reply = promise.get_reply()
            description = reply.get_value(kind)
            this.peer.emit("set-local-description", description, Gst.Promise.new())
            parsed = GstSdp.SDPMessage.new_from_text(description.sdp.as_text())[1]
            copy = GstWebRTC.WebRTCSessionDescription.new(description.type, parsed)
            other.peer.emit("set-remote-description", copy, Gst.Promise.new_with_change_func(taken))

        def taken(_promise) -> None:
            if kind == "offer":
                self._describe(1 - number, "answer")

        this.peer.emit(f"create-{kind}", None, Gst.Promise.new_with_change_func(made))

    def _step(self) -> bool:
        """The next message of each side, then the end of the video, then the wait for what is under way."""
        if not all(side.opened for side in self.sides):
            return True
        if self.said < self.messages:
            for side in self.sides:
                side.say(self.said)
            self.said += 1
            return True
        if any(len(side.received) < self.packets or side.messages < self.messages for side in self.sides):
            return True
        for side in self.sides:
            side.valve.set_property("drop", True)
        GLib.timeout_add(SETTLED_MS, self._settled)
        return False

    def _settled(self) -> bool:
        """Ends the call once all has arrived, or nothing more arrives: a client may lose packets itself, and whose loss it was is not for here."""
        arrived = sum(len(side.received) for side in self.sides)
        self.still_looks = 0 if arrived > self.arrived else self.still_looks + 1
        self.arrived = arrived
        is_complete = not any(side.sent - side.received_by_other() for side in self.sides)
        if not is_complete and self.still_looks < STILL_LOOKS:
            return True
        self.loop.quit()
        return False


def main() -> None:
    Gst.init(None)
    url, messages, packets = sys.argv[1:]
    call = Call(url, int(messages), int(packets))
    json.dump(call.run(), sys.stdout)
    sys.stdout.flush()
    # Without a word to GStreamer, whose threads may still be at work: what had to be seen has been.
    os._exit(0)


main()
