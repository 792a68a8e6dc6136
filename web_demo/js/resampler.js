// A streaming resampler: any number of blocks gives the same samples as one long block.

const RESOLUTION = 256; // places per sample at which the kernel is tabulated
const ZEROS = 12; // zero crossings of the kernel on each side

/** Windowed sinc, one channel. `from` and `to` are rates in Hz. */
export class Resampler {
  constructor(from, to) {
    this.step = from / to;
    const cutoff = Math.min(1, to / from) * 0.94;
    this.half = Math.ceil(ZEROS / cutoff);
    this.kernel = kernel(cutoff, this.half);
    this.reset();
  }

  reset() {
    this.held = new Float32Array(this.half); // silence before the first sample
    this.at = this.half; // where in `held` the next output sample lies
  }

  /** The samples that a block of input makes possible; a Float32Array. */
  push(block) {
    if (this.step === 1) return block;
    const input = new Float32Array(this.held.length + block.length);
    input.set(this.held);
    input.set(block, this.held.length);
    const out = [];
    while (this.at + this.half < input.length) {
      out.push(this.sample(input));
      this.at += this.step;
    }
    const keep = Math.max(0, Math.floor(this.at) - this.half);
    this.held = input.slice(keep);
    this.at -= keep;
    return Float32Array.from(out);
  }

  sample(input) {
    let sum = 0;
    const first = Math.ceil(this.at - this.half);
    const last = Math.floor(this.at + this.half);
    for (let index = first; index <= last; index++) {
      const place = Math.abs(this.at - index) * RESOLUTION;
      const below = Math.floor(place);
      const left = this.kernel[below];
      sum += input[index] * (left + (this.kernel[below + 1] - left) * (place - below));
    }
    return sum;
  }
}

function kernel(cutoff, half) {
  const table = new Float32Array(half * RESOLUTION + 2);
  for (let index = 0; index <= half * RESOLUTION; index++) {
    const distance = index / RESOLUTION;
    const x = Math.PI * cutoff * distance;
    const sinc = x === 0 ? 1 : Math.sin(x) / x;
    const window = 0.42 + 0.5 * Math.cos((Math.PI * distance) / half) + 0.08 * Math.cos((2 * Math.PI * distance) / half);
    table[index] = cutoff * sinc * window; // Blackman window
  }
  return table;
}
