// One conversation with the server, whatever carries it.

import { openMicrophone } from './microphone.js';
import { Problem } from './problems.js';
import { servedModel, untilReady } from './server.js';
import { Sound } from './sound.js';
import { WebRtcLink } from './webrtc-link.js';
import { WebSocketLink } from './websocket-link.js';

const BUSY = 'conversation_already_has_active_response';
const LINKS = { webrtc: WebRtcLink, websocket: WebSocketLink };

/**
 * Events, each with a detail: `state` (`idle`, `connecting`, `live`, `reconnecting`), `served` (the model), `settings`
 * (the effective session), `server` and `client` (a protocol event), `cut` (`[{item, ms}]` that was heard), `problem`
 * (a `Problem` or null), `restarted` (a connection came back with a new session), `sound` (the `Sound` of a conversation
 * that begins), `video` (a stream).
 */
export class Session extends EventTarget {
  constructor() {
    super();
    this.state = 'idle';
    this.settings = null;
    this.link = null;
    this.sound = null;
    this.microphone = null;
    this.picture = null; // it belongs to the page, and stays when a conversation ends
    this.muted = false;
    this.draft = { type: 'realtime' }; // what the next conversation begins with
    this.count = 0;
  }

  /** `withMicrophone` false: a conversation in text, with spoken answers. `extensions`: what a call asks for besides. */
  async start({ transport, key, device, withMicrophone = true, extensions = '', audioElement }) {
    this.move('connecting');
    this.tell('problem', null);
    const aborted = (this.starting = new AbortController()).signal;
    try {
      const model = await servedModel(key, aborted);
      this.adopt(model);
      const microphone = withMicrophone ? await openMicrophone(device) : null;
      if (aborted.aborted) return microphone?.getTracks().forEach((track) => track.stop());
      this.microphone = microphone;
      const sound = await Sound.open(microphone);
      if (aborted.aborted) return await sound.close();
      this.sound = sound;
      if (!this.sound.able) this.draft = merged(this.draft, { output_modalities: ['text'] });
      this.sound.addEventListener('blocked', ({ detail }) => this.soundBlocked(detail));
      this.watchMicrophone();
      this.tell('sound', this.sound);
      await untilReady(aborted, () => this.tell('problem', new Problem('loading')));
      const handlers = {
        event: (event) => this.take(event),
        sent: (event) => this.tell('client', event),
        lost: () => this.lost(),
        back: (resumed) => this.back(resumed),
        ended: (problem) => this.stop(problem),
        video: (stream) => this.tell('video', stream),
      };
      this.link = new LINKS[transport]({ sound, microphone, picture: this.picture, extensions, key, model: model.id, handlers, audioElement });
      await this.link.open();
      aborted.throwIfAborted();
      this.listen();
      this.move('live');
      this.allIsWell();
      if (this.picture !== null) this.usePicture(this.picture); // only now it is known whether the server takes any
      this.update(transport === 'webrtc' ? withoutFormats(this.draft) : this.draft);
    } catch (error) {
      if (!aborted.aborted) {
        await this.stop(error instanceof Problem ? error : new Problem('refused', error.message));
        if (!(error instanceof Problem)) throw error;
      }
    }
    return undefined;
  }

  async stop(problem = null) {
    this.starting?.abort();
    this.link?.close();
    this.link = null;
    for (const track of this.microphone?.getTracks() ?? []) track.stop();
    this.microphone = null;
    const sound = this.sound;
    this.sound = null;
    this.settings = null;
    this.move('idle');
    this.tell('problem', problem);
    await sound?.close();
  }

  /** This is what is served: what you say is written down while you say it, if it can, and if nobody has said otherwise. */
  adopt(model) {
    const [recogniser] = model.transcription_models;
    if (this.draft.audio?.input?.transcription === undefined && recogniser !== undefined) {
      this.draft = merged(this.draft, { audio: { input: { transcription: { model: recogniser, delay: 'low' } } } });
    }
    this.tell('served', model);
  }

  // -- what the person does --------------------------------------------------------------------------------------------

  /** Send a protocol event; returns its id. */
  send(event) {
    const id = event.event_id ?? `page_${++this.count}`;
    this.link?.send({ event_id: id, ...event });
    return id;
  }

  /**
   * Change settings: a part of a session object. Without a conversation they wait for the next one (null), else the id
   * of the event is returned.
   */
  update(part) {
    if (this.link !== null) return this.send({ type: 'session.update', session: { type: 'realtime', ...part } });
    this.draft = merged(this.draft, part);
    return null;
  }

  say(text) {
    this.interruptIfSpeaking();
    this.item({ type: 'message', role: 'user', content: [{ type: 'input_text', text }] });
    this.send({ type: 'response.create' });
  }

  show(picture) {
    this.item({ type: 'message', role: 'user', content: [{ type: 'input_image', image_url: picture }] });
  }

  item(item) {
    this.send({ type: 'conversation.item.create', item });
  }

  interrupt() {
    if (this.responding) this.send({ type: 'response.cancel' });
    this.responding = null; // pressed again before the server has answered, there is nothing left to cancel
    return this.cut();
  }

  interruptIfSpeaking() {
    if (this.responding || this.link?.playing) this.interrupt();
  }

  setMuted(muted) {
    this.muted = muted;
    this.listen();
  }

  /** With turn detection off: begin a turn, or end it and ask for the answer. */
  talk(begin) {
    if (begin) {
      this.interruptIfSpeaking();
      this.send({ type: 'input_audio_buffer.clear' });
    }
    this.talking = begin;
    this.listen();
    if (!begin) {
      this.send({ type: 'input_audio_buffer.commit' });
      this.send({ type: 'response.create' });
    }
  }

  async useMicrophone(device) {
    if (this.microphone === null) return;
    const before = this.microphone;
    try {
      this.microphone = await openMicrophone(device);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return this.tell('problem', error);
    }
    for (const track of before.getTracks()) track.stop();
    this.watchMicrophone();
    this.sound.listen(this.microphone);
    this.link?.useMicrophone?.(this.microphone);
    this.listen();
  }

  /** Send the pictures of a stream along, or none (null), where the transport takes any. */
  usePicture(stream) {
    this.picture = stream;
    if (this.link?.usePicture?.(stream) === false && stream !== null) {
      this.tell('problem', new Problem('no-picture', 'This server takes no video in calls.'));
    }
  }

  // -- what happens ----------------------------------------------------------------------------------------------------

  take(event) {
    if (event.type === 'session.created' || event.type === 'session.updated') {
      this.settings = event.session;
      if (event.type === 'session.updated') this.draft = changeable(event.session);
      this.listen();
      this.tell('settings', event.session);
    } else if (event.type === 'response.created') {
      if (event.response.conversation_id !== null) this.responding = event.response.id;
    } else if (event.type === 'response.done') {
      if (this.responding === event.response.id) this.responding = null;
      if (this.owed && event.response.conversation_id !== null) {
        this.owed = false;
        this.send({ type: 'response.create' });
      }
    } else if (event.type === 'error' && event.error.code === BUSY) {
      this.owed = true; // somebody spoke at the same time: the answer comes after the one that is being made
    } else if (event.type === 'input_audio_buffer.speech_started') {
      const interrupts = this.settings.audio.input.turn_detection?.interrupt_response && this.link?.playing;
      if (interrupts && !this.link.serverCuts) this.cut();
    }
    this.tell('server', event);
  }

  async cut() {
    this.tell('cut', await this.link?.silence());
  }

  /** Decide what of the microphone goes out now. */
  listen() {
    const byHand = this.settings !== null && this.settings.audio.input.turn_detection === null;
    this.link?.setListening(byHand && !this.talking ? 'closed' : this.muted ? 'silent' : 'open');
  }

  watchMicrophone() {
    for (const track of this.microphone?.getTracks() ?? []) {
      track.onended = () => this.tell('problem', new Problem('microphone-gone'));
    }
  }

  soundBlocked(blocked) {
    if (blocked !== Boolean(this.blocked)) this.tell('problem', blocked ? new Problem('autoplay') : null);
    this.blocked = blocked;
  }

  /** What was wrong with the connection is over. */
  allIsWell() {
    this.tell('problem', this.blocked ? new Problem('autoplay') : null);
  }

  lost() {
    this.move('reconnecting');
    this.tell('problem', new Problem('lost'));
  }

  back(resumed) {
    this.move('live');
    this.allIsWell();
    if (resumed) return;
    this.responding = null;
    this.tell('restarted');
    this.update(this.link.serverCuts ? withoutFormats(this.draft) : this.draft);
  }

  move(state) {
    this.state = state;
    if (state !== 'live' && state !== 'reconnecting') {
      Object.assign(this, { responding: null, owed: false, talking: false, blocked: false });
    }
    this.tell('state', state);
  }

  tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/** What of a session another one can begin with. */
function changeable({ id, object, model, expires_at, ...rest }) {
  return rest;
}

/** What a call settles by itself is not asked for. */
function withoutFormats({ audio: { input: { format: _, ...input } = {}, output: { format: __, ...output } = {} }, ...rest }) {
  return { ...rest, audio: { input, output } };
}

/** `base` with the fields of `part` in it, level by level; an object of another `type` replaces what was there. */
export function merged(base, part) {
  const result = { ...base };
  for (const [name, value] of Object.entries(part)) {
    const before = result[name];
    const both = isObject(before) && isObject(value) && (value.type === undefined || value.type === before.type);
    result[name] = both ? merged(before, value) : value;
  }
  return result;
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
