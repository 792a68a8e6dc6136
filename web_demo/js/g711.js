// PCM16 at 24 kHz to what a session's format says, and back: linear, or G.711 at 8 kHz (ITU-T G.711).

import { Resampler } from './resampler.js';

/** Encodes Int16Arrays at 24 kHz in a wire format (`audio/pcm`, `audio/pcmu`, `audio/pcma`). */
export class Encoder {
  constructor(format) {
    this.format = format;
    this.down = new Resampler(24_000, 8_000);
    this.law = format === 'audio/pcmu' ? toMuLaw : toALaw;
  }

  /** Bytes (Uint8Array). */
  push(samples) {
    if (this.format === 'audio/pcm') return new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
    return Uint8Array.from(this.down.push(Float32Array.from(samples)), (sample) => this.law(clipped(sample)));
  }
}

/** Decodes bytes of a wire format into Int16Arrays at 24 kHz. */
export class Decoder {
  constructor(format) {
    this.format = format;
    this.up = new Resampler(8_000, 24_000);
    this.table = Int16Array.from({ length: 256 }, (_, code) => (format === 'audio/pcmu' ? ofMuLaw(code) : ofALaw(code)));
  }

  push(bytes) {
    if (this.format === 'audio/pcm') return new Int16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >> 1);
    const narrow = Float32Array.from(bytes, (code) => this.table[code]);
    return Int16Array.from(this.up.push(narrow), clipped);
  }
}

const clipped = (sample) => Math.max(-32768, Math.min(32767, Math.round(sample)));

function toMuLaw(sample) {
  const sign = sample < 0 ? 0x80 : 0;
  const magnitude = Math.min(Math.abs(sample), 32635) + 132;
  const exponent = 31 - Math.clz32(magnitude) - 7;
  return ~(sign | (exponent << 4) | ((magnitude >> (exponent + 3)) & 15)) & 255;
}

function ofMuLaw(code) {
  const bits = ~code & 255;
  const magnitude = ((((bits & 15) << 3) + 132) << ((bits >> 4) & 7)) - 132;
  return bits & 0x80 ? -magnitude : magnitude;
}

function toALaw(sample) {
  const sign = sample < 0 ? 0 : 0x80;
  const magnitude = Math.min(sample < 0 ? ~sample : sample, 32767) >> 3;
  const exponent = magnitude < 32 ? 0 : 31 - Math.clz32(magnitude) - 4;
  const mantissa = (exponent < 2 ? magnitude >> 1 : magnitude >> exponent) & 15;
  return (sign | (exponent << 4) | mantissa) ^ 0x55;
}

function ofALaw(code) {
  const bits = code ^ 0x55;
  const exponent = (bits >> 4) & 7;
  let magnitude = ((bits & 15) << 4) + 8;
  if (exponent > 0) magnitude = (magnitude + 256) << (exponent - 1);
  return bits & 0x80 ? magnitude : -magnitude;
}
