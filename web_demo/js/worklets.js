// What runs on the audio thread: capture at 24 kHz, playback of 24 kHz pieces with a count of what was played, meters.

import { Resampler } from './resampler.js';

const WIRE_RATE = 24_000;
const CHUNK = 480; // 20 ms
const FADE_S = 0.005;

/** Posts `Int16Array`s of 20 ms at 24 kHz. */
class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, WIRE_RATE);
    this.chunk = new Int16Array(CHUNK);
    this.filled = 0;
  }

  process([input]) {
    if (input.length === 0) return true;
    for (const sample of this.resampler.push(mono(input))) {
      this.chunk[this.filled++] = Math.max(-1, Math.min(1, sample)) * 32767;
      if (this.filled === CHUNK) {
        this.port.postMessage(this.chunk, [this.chunk.buffer]);
        this.chunk = new Int16Array(CHUNK);
        this.filled = 0;
      }
    }
    return true;
  }
}

function mono(channels) {
  if (channels.length === 1) return channels[0];
  return channels[0].map((_, index) => channels.reduce((sum, channel) => sum + channel[index], 0) / channels.length);
}

/**
 * Plays pieces in order. In: `{item, samples: Int16Array}` at 24 kHz, or `{clear: true}`. Out, in milliseconds:
 * `{position: {item, ms}}`, `{ended: item}` once nothing is left, and in answer to clear `{cleared: [{item, ms}]}`
 * with how much of each item in the queue was played.
 */
class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(WIRE_RATE, sampleRate);
    this.queue = [];
    this.fading = null;
    this.played = new Map(); // frames of the items in the queue
    this.reported = 0;
    this.port.onmessage = ({ data }) => (data.clear ? this.clear() : this.add(data));
  }

  add({ item, samples }) {
    const wide = Float32Array.from(samples, (sample) => sample / 32768);
    this.queue.push({ item, samples: this.resampler.push(wide), next: 0 });
    if (!this.played.has(item)) this.played.set(item, 0);
  }

  clear() {
    const cleared = [...new Set(this.queue.map((piece) => piece.item))].map((item) => ({ item, ms: this.ms(item) }));
    if (this.queue.length > 0) {
      const { samples, next } = this.queue[0];
      this.fading = fadedOut(samples.slice(next, next + Math.round(FADE_S * sampleRate)));
    }
    this.queue = [];
    this.played.clear();
    this.resampler.reset();
    this.port.postMessage({ cleared });
  }

  ms(item) {
    return (this.played.get(item) / sampleRate) * 1000;
  }

  process(_, [[output]]) {
    let filled = 0;
    if (this.fading !== null) {
      filled = Math.min(output.length, this.fading.length);
      output.set(this.fading.subarray(0, filled));
      this.fading = filled < this.fading.length ? this.fading.subarray(filled) : null;
    }
    while (filled < output.length && this.queue.length > 0) {
      const piece = this.queue[0];
      const part = piece.samples.subarray(piece.next, piece.next + output.length - filled);
      output.set(part, filled);
      filled += part.length;
      piece.next += part.length;
      this.played.set(piece.item, this.played.get(piece.item) + part.length);
      if (piece.next === piece.samples.length) this.finish(this.queue.shift().item);
    }
    if (this.queue.length > 0 && currentTime - this.reported > 0.05) this.report(this.queue[0].item);
    return true;
  }

  report(item) {
    this.reported = currentTime;
    this.port.postMessage({ position: { item, ms: this.ms(item) } });
  }

  finish(item) {
    if (this.queue.length > 0) {
      if (this.queue[0].item !== item) this.played.delete(item);
      return;
    }
    this.report(item);
    this.port.postMessage({ ended: item });
  }
}

function fadedOut(samples) {
  return samples.map((sample, index) => sample * (1 - (index + 1) / samples.length));
}

/** Posts the root mean square of every 20 ms, 0 to 1. */
class Meter extends AudioWorkletProcessor {
  constructor() {
    super();
    this.sum = 0;
    this.count = 0;
  }

  process([input]) {
    const samples = input[0];
    if (samples !== undefined) for (const sample of samples) this.sum += sample * sample;
    this.count += samples?.length ?? 128;
    if (this.count >= sampleRate * 0.02) {
      this.port.postMessage(Math.sqrt(this.sum / this.count));
      this.sum = this.count = 0;
    }
    return true;
  }
}

registerProcessor('capture', Capture);
registerProcessor('player', Player);
registerProcessor('meter', Meter);
