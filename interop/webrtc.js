// One side of a call, driven by test_chromium.py: a data channel and a video track, relay candidates only.
"use strict";

class Call {
  constructor(side, configuration, messages) {
    this.side = side;
    this.messages = messages;
    this.received = 0;
    this.differing = 0;
    this.connection = new RTCPeerConnection(configuration);
    this.candidateErrors = [];
    this.connection.onicecandidateerror = (event) =>
      this.candidateErrors.push(`${event.url} ${event.errorCode} ${event.errorText}`);
    this.connection.ontrack = (event) => {
      const video = document.createElement("video");
      video.muted = true;
      video.autoplay = true;
      video.srcObject = new MediaStream([event.track]);
      document.body.append(video);
    };
    this.channel = this.connection.createDataChannel("contents", { negotiated: true, id: 0 });
    this.channel.binaryType = "arraybuffer";
    this.channel.onmessage = (event) => this.check(new Uint8Array(event.data));
    const stream = movingPicture().captureStream(30);
    this.sender = this.connection.addTrack(stream.getVideoTracks()[0], stream);
  }

  async offer() {
    await this.connection.setLocalDescription(await this.connection.createOffer());
    return this.description();
  }

  async answer(offer) {
    await this.connection.setRemoteDescription(offer);
    await this.connection.setLocalDescription(await this.connection.createAnswer());
    return this.description();
  }

  async accept(answer) {
    await this.connection.setRemoteDescription(answer);
  }

  // The local description once every candidate is in it.
  async description() {
    await reached(this.connection, "icegatheringstatechange", () => this.connection.iceGatheringState === "complete");
    return this.connection.localDescription.toJSON();
  }

  // Paced, so that the browser's own socket buffer never overflows and every packet lost would be the relay's loss.
  async sendMessages(pause_ms) {
    for (let number = 0; number < this.messages; number++) {
      this.channel.send(contents(this.side, number, this.messages));
      await new Promise((resolve) => setTimeout(resolve, pause_ms));
    }
  }

  // The channel is ordered and reliable, so the n-th message received must be the n-th sent.
  check(message) {
    const expected = contents(1 - this.side, this.received, this.messages);
    const same = message.length === expected.length && message.every((octet, index) => octet === expected[index]);
    if (!same) this.differing++;
    this.received++;
  }

  stopVideo() {
    return this.sender.replaceTrack(null);
  }

  async statistics() {
    const report = await this.connection.getStats();
    const of = (type, kind) => [...report.values()].find((row) => row.type === type && (!kind || row.kind === kind));
    const pair = report.get(of("transport").selectedCandidatePairId);
    return {
      pair,
      local: report.get(pair.localCandidateId),
      remote: report.get(pair.remoteCandidateId),
      channel: of("data-channel"),
      inbound: of("inbound-rtp", "video"),
      outbound: of("outbound-rtp", "video"),
    };
  }
}

// Resolves when `condition` holds, looking again at every `event` of `target`.
function reached(target, event, condition) {
  return new Promise((resolve) => {
    const look = () => {
      if (!condition()) return;
      target.removeEventListener(event, look);
      resolve();
    };
    target.addEventListener(event, look);
    look();
  });
}

// Message `number` of a side: its own length and octets, the same on every run.
function contents(side, number, messages) {
  const octets = new Uint8Array(1 + Math.floor((number * 4000) / messages));
  let state = (side * 1000003 + number * 7919 + 1) >>> 0;
  for (let index = 0; index < octets.length; index++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    octets[index] = state >>> 24;
  }
  return octets;
}

function movingPicture() {
  const canvas = document.createElement("canvas");
  canvas.width = 320;
  canvas.height = 240;
  document.body.append(canvas);
  const picture = canvas.getContext("2d");
  let frame = 0;
  setInterval(() => {
    frame++;
    picture.fillStyle = `hsl(${frame % 360} 80% 50%)`;
    picture.fillRect(0, 0, 320, 240);
    picture.fillStyle = "white";
    picture.fillRect((frame * 7) % 320, (frame * 5) % 240, 40, 40);
  }, 33);
  return canvas;
}
