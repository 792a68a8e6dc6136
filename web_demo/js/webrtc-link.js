// A conversation as a WebRTC call: sound and pictures on tracks, events on the data channel.

import { Problem } from './problems.js';
import { BASE, iceServers } from './server.js';

const GATHERING_MS = 1000; // for our own addresses; the server finds those that come later by itself
const OPENING_MS = 20_000;
const SILENCE_MS = 2500; // without the network before a new connection is tried
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4000;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const late = (ms) => pause(ms).then(() => Promise.reject(new Problem('no-webrtc', 'Nothing came through in time.')));

/** Handlers as for `WebSocketLink`, and `video(stream)`. The server does what there the page does at interruptions. */
export class WebRtcLink {
  serverCuts = true;

  constructor({ sound, microphone, picture, extensions, key, model, handlers, audioElement }) {
    Object.assign(this, { sound, microphone, picture, extensions, key, model, handlers, audioElement });
    this.call = null; // {id, token} once there is one
    this.listening = 'open';
    this.speaking = new Set(); // responses whose sound is being played
    this.over = false;
    window.addEventListener('online', this.goneOnline = () => this.call !== null && this.lose());
  }

  async open() {
    const query = new URLSearchParams({ model: this.model, ...(this.extensions && { extensions: this.extensions }) });
    await this.connect(`v1/realtime/calls?${query}`, this.key);
  }

  /** A new peer connection, to a new call or to the one there is. Throws a `Problem`. */
  async connect(path, key) {
    const peer = new RTCPeerConnection(await iceServers(this.key));
    const channel = peer.createDataChannel('oai-events');
    const voice = peer.addTransceiver(this.track('audio') ?? 'audio', { direction: 'sendrecv' });
    const pictures = peer.addTransceiver(this.track('video') ?? 'video', { direction: 'sendrecv' });
    peer.ontrack = ({ track }) => this.heard(peer, track);
    try {
      await peer.setLocalDescription();
      await gathered(peer);
      const answer = await this.offer(path, key, peer.localDescription.sdp);
      await peer.setRemoteDescription({ type: 'answer', sdp: answer });
      await Promise.race([this.greeted(peer, channel), late(OPENING_MS)]);
    } catch (error) {
      peer.close();
      throw error instanceof Problem ? error : new Problem('no-webrtc', error.message);
    }
    if (this.over) return peer.close();
    this.peer?.close();
    Object.assign(this, { peer, channel, voice, pictures });
    this.setListening(this.listening);
    this.useMicrophone(this.microphone); // another one may have been chosen meanwhile
    this.usePicture(this.picture);
    this.watch(peer, channel);
    return undefined;
  }

  async offer(path, key, sdp) {
    const headers = { 'Content-Type': 'application/sdp', ...(key && { Authorization: `Bearer ${key}` }) };
    let response;
    try {
      response = await fetch(new URL(path, BASE), { method: 'POST', headers, body: sdp });
    } catch {
      throw new Problem('no-server');
    }
    const body = await response.text();
    if (!response.ok) throw refusal(response.status, body);
    if (response.status === 201) {
      this.call = { id: response.headers.get('Location').split('/').at(-1), token: response.headers.get('X-Duologue-Rejoin') };
    }
    return body;
  }

  /** Resolves with the first event, which says that the session is there. */
  greeted(peer, channel) {
    return new Promise((resolve, reject) => {
      channel.onmessage = ({ data }) => {
        const event = JSON.parse(data);
        resolve();
        this.take(event);
      };
      channel.onclose = () => reject(new Problem('no-webrtc', 'The server closed the call.'));
      peer.onconnectionstatechange = () => {
        if (peer.connectionState === 'failed') reject(new Problem('no-webrtc'));
      };
    });
  }

  heard(peer, track) {
    const stream = new MediaStream([track]);
    if (track.kind === 'audio') this.sound.attach(stream, this.audioElement);
    else if (peer.getTransceivers().find(({ receiver }) => receiver.track === track)?.currentDirection?.includes('recv')) {
      this.handlers.video(stream);
    }
  }

  take(event) {
    if (event.type === 'output_audio_buffer.started') this.speaking.add(event.response_id);
    if (event.type === 'output_audio_buffer.stopped' || event.type === 'output_audio_buffer.cleared') {
      this.speaking.delete(event.response_id);
    }
    this.handlers.event(event);
  }

  send(event) {
    if (this.channel?.readyState !== 'open') return;
    this.channel.send(JSON.stringify(event));
    this.handlers.sent(event);
  }

  // -- what is sent ----------------------------------------------------------------------------------------------------

  track(kind) {
    const [track] = (kind === 'audio' ? this.microphone : this.picture)?.getTracks() ?? [];
    return track?.kind === kind ? track : undefined;
  }

  /** As for `WebSocketLink`; the clock of a call never stops, so a closed microphone sends silence as well. */
  setListening(listening) {
    this.listening = listening;
    for (const track of this.microphone?.getAudioTracks() ?? []) track.enabled = listening === 'open';
  }

  useMicrophone(stream) {
    this.microphone = stream;
    return this.voice?.sender.replaceTrack(this.track('audio') ?? null);
  }

  /**
   * Says whether the server takes pictures, undefined before that is known; where it does they go out from now on,
   * without a new offer.
   */
  usePicture(stream) {
    this.picture = stream;
    if (this.pictures === undefined) return undefined;
    if (!this.pictures?.currentDirection?.includes('send')) return false;
    this.pictures.sender.replaceTrack(this.track('video') ?? null);
    return true;
  }

  get playing() {
    return this.speaking.size > 0;
  }

  async silence() {
    this.send({ type: 'output_audio_buffer.clear' });
    return [];
  }

  // -- when the connection breaks --------------------------------------------------------------------------------------

  watch(peer, channel) {
    peer.onconnectionstatechange = () => {
      if (peer !== this.peer) return;
      clearTimeout(this.patience);
      if (peer.connectionState === 'failed') this.lose();
      if (peer.connectionState === 'disconnected') this.patience = setTimeout(() => this.lose(), SILENCE_MS);
    };
    channel.onclose = () => {
      if (peer !== this.peer || this.over || this.losing) return;
      if (['disconnected', 'failed'].includes(peer.connectionState)) this.lose();
      else this.handlers.ended(new Problem('ended'));
    };
  }

  /** Join the same call anew until it works, or begin another where that is over. */
  async lose() {
    if (this.over || this.losing) return;
    this.losing = true;
    this.handlers.lost();
    for (let wait = FIRST_PAUSE_MS; !this.over; wait = Math.min(2 * wait, LONGEST_PAUSE_MS)) {
      try {
        const joins = this.call !== null;
        if (joins) await this.connect(`v1/realtime/calls/${this.call.id}/rejoin`, this.call.token);
        else await this.open();
        if (!this.over) this.handlers.back(joins);
        break;
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        if (error.kind === 'gone') this.call = null;
        await pause(wait);
      }
    }
    this.losing = false;
  }

  close() {
    this.over = true;
    clearTimeout(this.patience);
    window.removeEventListener('online', this.goneOnline);
    this.peer?.close();
    this.audioElement.srcObject = null;
    this.handlers.video(null);
  }
}

/** Resolves once the peer knows its addresses, or has looked for long enough. */
function gathered(peer) {
  const complete = new Promise((resolve) => {
    peer.onicegatheringstatechange = () => peer.iceGatheringState === 'complete' && resolve();
    if (peer.iceGatheringState === 'complete') resolve();
  });
  return Promise.race([complete, pause(GATHERING_MS)]);
}

function refusal(status, body) {
  let message = '';
  try {
    message = JSON.parse(body).error.message;
  } catch {
    message = `It answered with status ${status}.`;
  }
  const kinds = { 401: 'wrong-key', 404: 'gone', 501: 'webrtc-missing', 503: 'no-room' };
  return new Problem(kinds[status] ?? 'refused', message);
}
