// When what happened in each turn, and how long each part of an answer took. Times are milliseconds of one clock.

const LONG_SILENCE_MS = 60_000;

/** The parts of an answer's latency: each lasts from the moment before it to its own. */
export const PARTS = [
  { name: 'stopped', label: 'End of turn', about: 'from your last sound until the server knows that you have finished' },
  { name: 'asked', label: 'Begin', about: 'until the answer is begun' },
  { name: 'words', label: 'First words', about: 'until its first words are here' },
  { name: 'sound', label: 'First sound', about: 'until its first sound is here' },
  { name: 'heard', label: 'Loudspeaker', about: 'until you hear it' },
];

/** Tells voice from the noise before and between. */
export class Loudness {
  constructor() {
    this.floor = 0.003;
  }

  /** Whether 20 ms of this root mean square are more than the background. */
  take(level) {
    this.floor = level < this.floor ? Math.max(level, 0.001) : Math.min(this.floor * 1.002, 0.01);
    return level > 4 * this.floor;
  }
}

/**
 * Follows the events and levels of a conversation. Events: `turn` (detail: a turn that changed), `voice` (detail
 * `{speaking, from}`: the server's voice activity).
 *
 * A turn: `number`, `typed`, `began`, `ended` (the last sound of the user), a moment per part, `response` (its id),
 * `status`, `cut` (when it was interrupted).
 */
export class Turns extends EventTarget {
  constructor(clock = () => performance.now()) {
    super();
    this.clock = clock;
    this.reset();
  }

  reset() {
    this.all = [];
    this.input = new Loudness();
    this.output = new Loudness();
    this.lastInput = this.onset = -Infinity;
    this.lastOutput = -Infinity;
    this.padding = 0;
    this.speaking = null; // the turn in which the user speaks now
  }

  /** 20 ms of microphone. */
  inputLevel(level) {
    if (!this.input.take(level)) return;
    const now = this.clock();
    if (now - this.lastInput > 300) this.onset = now;
    this.lastInput = now;
  }

  /** 20 ms of loudspeaker. */
  outputLevel(level) {
    if (!this.output.take(level)) return;
    this.lastOutput = this.clock();
    const turn = this.all.findLast(({ asked }) => asked !== undefined);
    if (turn !== undefined && turn.heard === undefined && turn.cut === undefined && turn.words !== undefined) {
      turn.sound ??= this.lastOutput;
      turn.heard = this.lastOutput;
      this.changed(turn);
    }
  }

  take(event) {
    const now = this.clock();
    switch (event.type) {
      case 'input_audio_buffer.speech_started':
        this.begin({ typed: false, began: Math.max(this.onset, now - 2000) });
        this.speaking = this.all.at(-1);
        this.voice(true, this.speaking.began);
        break;
      case 'input_audio_buffer.speech_stopped':
        this.stop(now);
        this.voice(false, now);
        break;
      case 'response.created':
        if (event.response.conversation_id !== null) this.answer(event.response, now);
        break;
      case 'response.output_audio_transcript.delta':
      case 'response.output_text.delta':
        this.mark(event.response_id, 'words', now);
        break;
      case 'response.output_audio.delta':
      case 'output_audio_buffer.started':
        this.mark(event.response_id, 'sound', now);
        break;
      case 'output_audio_buffer.cleared':
        this.interrupted();
        break;
      case 'response.done':
        this.done(event.response, now);
    }
  }

  sent(event) {
    const typed = event.type === 'conversation.item.create' && event.item.role === 'user';
    const byHand = event.type === 'input_audio_buffer.commit';
    if (!typed && !byHand) return;
    const now = this.clock();
    this.begin({ typed, began: now, ended: byHand ? Math.min(this.lastInput, now) : now, stopped: now });
  }

  /** The answer that is being heard was broken off. */
  interrupted() {
    const turn = this.all.findLast(({ response }) => response !== undefined);
    if (turn === undefined || turn.cut !== undefined) return;
    turn.cut = this.clock();
    this.changed(turn);
  }

  // -- inside ----------------------------------------------------------------------------------------------------------

  begin(turn) {
    this.all.push({ number: this.all.length + 1, ...turn });
    this.changed(this.all.at(-1));
  }

  stop(now) {
    const turn = this.speaking;
    this.speaking = null;
    if (turn === null) return;
    const known = this.lastInput > turn.began && now - this.lastInput < LONG_SILENCE_MS;
    turn.ended = known ? Math.min(this.lastInput, now) : now;
    turn.stopped = now;
    this.changed(turn);
  }

  answer(response, now) {
    let turn = this.all.findLast(({ began }) => began !== undefined);
    if (turn === undefined || turn.response !== undefined) {
      // nobody spoke: an answer to a tool's result, or one by itself
      this.begin({ typed: true, began: now, ended: now, stopped: now });
      turn = this.all.at(-1);
    }
    Object.assign(turn, { response: response.id, asked: now });
    this.changed(turn);
  }

  mark(response, name, now) {
    const turn = this.all.findLast((one) => one.response === response);
    if (turn === undefined || turn[name] !== undefined) return;
    if (name === 'sound') turn.words ??= now;
    turn[name] = now;
    this.changed(turn);
  }

  done(response, now) {
    const turn = this.all.findLast((one) => one.response === response.id);
    if (turn === undefined) return;
    turn.status = response.status;
    if (response.status === 'cancelled') turn.cut ??= now;
    this.changed(turn);
  }

  voice(speaking, at) {
    this.dispatchEvent(new CustomEvent('voice', { detail: { speaking, at } }));
  }

  changed(turn) {
    this.dispatchEvent(new CustomEvent('turn', { detail: turn }));
  }
}

/** `[{name, label, ms}]` of the parts that are known; they add up to `total(turn)`. */
export function parts(turn) {
  const known = [];
  let before = turn.ended;
  for (const { name, label } of PARTS) {
    if (before === undefined || turn[name] === undefined) continue;
    const at = Math.max(before, turn[name]);
    known.push({ name, label, ms: at - before });
    before = at;
  }
  return known;
}

/** From the user's last sound to the first one of the answer, or undefined. */
export const total = (turn) => (turn.heard === undefined || turn.ended === undefined ? undefined : turn.heard - turn.ended);
