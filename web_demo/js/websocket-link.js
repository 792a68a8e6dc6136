// A conversation over a WebSocket: audio as events, both ways. A broken connection is taken up again where it broke.

import * as base64 from './base64.js';
import { Decoder, Encoder } from './g711.js';
import { Player } from './player.js';
import { Problem } from './problems.js';
import { BASE } from './server.js';

const KEPT_EVENTS = 1500; // of those that were sent: half a minute of sound
const MAX_BUFFERED = 1 << 20; // bytes that wait to leave; beyond it sound is dropped, not delayed
const STALLED_MS = 5000;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4000;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** `handlers`: `event(event)`, `sent(event)`, `lost(willRetry)`, `back(resumed)`, `ended(problem)`. */
export class WebSocketLink {
  constructor({ sound, key, model, handlers }) {
    Object.assign(this, { sound, key, model, handlers });
    this.player = sound.able ? new Player(sound) : null; // without it, answers are written
    this.formats = { input: 'audio/pcm', output: 'audio/pcm' };
    this.encoder = new Encoder('audio/pcm');
    this.decoder = new Decoder('audio/pcm');
    this.cut = new Set(); // items that were interrupted: what still comes of them is not played
    this.listening = 'open';
    this.over = false;
    this.forgetSession();
    if (sound.able) sound.record((samples) => this.hear(samples));
    window.addEventListener('online', this.goneOnline = () => this.socket?.close(4000));
  }

  forgetSession() {
    this.token = null;
    this.received = 0; // server events of this session, those about resuming apart
    this.sentCount = 0;
    this.recent = []; // the newest of the events that were sent
    this.window = 0;
  }

  /** Resolves once the session has begun. Throws a `Problem`. */
  async open() {
    await this.connect({ extensions: 'resume', ...(this.model && { model: this.model }) });
  }

  connect(query) {
    const url = new URL('v1/realtime', BASE);
    url.protocol = url.protocol.replace('http', 'ws');
    url.search = new URLSearchParams(query);
    const protocols = ['realtime', ...(this.key ? [`openai-insecure-api-key.${this.key}`] : [])];
    const socket = new WebSocket(url, protocols);
    return new Promise((resolve, reject) => {
      let open = false;
      socket.onmessage = ({ data }) => {
        const event = JSON.parse(data);
        if (event.type === 'session.created' || event.type === 'x.resume.resumed') {
          open = true;
          this.socket = socket;
          resolve(event);
        }
        this.take(event);
      };
      socket.onclose = ({ code, reason }) => {
        if (!open) reject(code === 1008 ? new Problem('refused', reason) : new Problem('no-server'));
        else if (socket === this.socket) this.dropped(code, reason);
      };
    });
  }

  take(event) {
    if (event.type === 'x.resume.offered') {
      this.token = event.token;
      this.window = event.window_s;
    } else if (event.type === 'x.resume.resumed') {
      const missing = this.sentCount - event.received_events;
      for (const again of missing > 0 ? this.recent.slice(-missing) : []) this.socket.send(again);
    } else {
      this.received += 1;
      if (event.type === 'session.created' || event.type === 'session.updated') this.follow(event.session);
      if (event.type === 'response.output_audio.delta') this.play(event);
    }
    this.handlers.event(event);
  }

  /** Speak the formats that the session has now. */
  follow({ audio }) {
    const input = audio?.input?.format?.type;
    const output = audio?.output?.format?.type;
    if (input !== this.formats.input) this.encoder = new Encoder(input);
    if (output !== this.formats.output) this.decoder = new Decoder(output);
    this.formats = { input, output };
  }

  play({ item_id: item, delta }) {
    if (!this.cut.has(item)) this.player?.add(item, this.decoder.push(base64.decode(delta)));
  }

  hear(samples) {
    if (this.listening === 'closed' || this.socket?.readyState !== WebSocket.OPEN) return;
    if (this.listening === 'silent') samples.fill(0);
    if (this.socket.bufferedAmount > MAX_BUFFERED) return this.watchStall();
    this.stalledSince = undefined;
    const bytes = this.encoder.push(samples);
    if (bytes.length > 0) this.send({ type: 'input_audio_buffer.append', audio: base64.encode(bytes) });
  }

  /** Nothing has left for a while: the connection is dead, whatever the browser still believes. */
  watchStall() {
    this.stalledSince ??= performance.now();
    if (performance.now() - this.stalledSince > STALLED_MS) this.socket.close(4000);
  }

  send(event) {
    const text = JSON.stringify(event);
    this.sentCount += 1;
    this.recent.push(text);
    if (this.recent.length > KEPT_EVENTS) this.recent.shift();
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(text);
    this.handlers.sent(event);
  }

  /** `open`; `silent`: silence is sent, so that a turn comes to its end; `closed`: nothing is sent. */
  setListening(listening) {
    this.listening = listening;
  }

  get playing() {
    return Boolean(this.player?.playing);
  }

  /** Fall silent, and tell the server how much was heard. */
  async silence() {
    const heard = (await this.player?.clear()) ?? [];
    for (const { item, ms } of heard) {
      this.cut.add(item);
      this.send({ type: 'conversation.item.truncate', item_id: item, content_index: 0, audio_end_ms: ms });
    }
    return heard;
  }

  // -- when the connection breaks --------------------------------------------------------------------------------------

  async dropped(code, reason) {
    if (this.over) return;
    if (code === 1000 || code === 1008 || code === 1011) {
      this.handlers.ended(new Problem('ended', reason));
      return;
    }
    this.handlers.lost();
    const broke = performance.now();
    for (let wait = FIRST_PAUSE_MS; !this.over; wait = Math.min(2 * wait, LONGEST_PAUSE_MS)) {
      if (this.token !== null && performance.now() - broke > this.window * 1000) this.token = null;
      if (await this.again()) return;
      await pause(wait);
    }
  }

  /** Try once to go on with the session or, where that is over, to begin another. Says whether it worked. */
  async again() {
    try {
      if (this.token !== null) {
        await this.connect({ resume: this.token, after: this.received });
        this.handlers.back(true);
      } else {
        this.forgetSession();
        await this.open();
        this.handlers.back(false);
      }
      return true;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.kind === 'refused') this.token = null; // the session is over
      return false;
    }
  }

  close() {
    this.over = true;
    window.removeEventListener('online', this.goneOnline);
    this.player?.close();
    this.socket?.close(1000);
  }
}
