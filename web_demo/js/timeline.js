// The last seconds of the conversation, drawn as they happen.

import { animate, fitted } from './dom.js';
import { total } from './turns.js';

const BUCKET_MS = 100;
const KEPT_MS = 60_000;
const PIXELS_PER_SECOND = 42;

export class Timeline {
  constructor(canvas, turns) {
    this.canvas = canvas;
    this.turns = turns;
    this.reset();
    turns.addEventListener('voice', ({ detail }) => this.voice(detail));
    turns.addEventListener('turn', ({ detail }) => this.describe(detail));
    animate(() => this.draw());
  }

  reset() {
    this.levels = []; // {at, input, output} per bucket
    this.spans = []; // voice activity: {from, to}
    this.running = false;
  }

  start() {
    this.reset();
    this.running = true;
    this.began = performance.now();
  }

  stop() {
    this.running = false;
    this.stopped = performance.now();
  }

  level(side, value) {
    const at = Math.floor(performance.now() / BUCKET_MS) * BUCKET_MS;
    let bucket = this.levels.at(-1);
    if (bucket?.at !== at) {
      this.levels.push((bucket = { at, input: 0, output: 0 }));
      if (this.levels.length > KEPT_MS / BUCKET_MS) this.levels.shift();
    }
    bucket[side] = Math.max(bucket[side], value);
  }

  voice({ speaking, at }) {
    if (speaking) this.spans.push({ from: at });
    else if (this.spans.length > 0) this.spans.at(-1).to ??= at;
    if (this.spans.length > 50) this.spans.shift();
  }

  describe(turn) {
    const answer = total(turn);
    const words = [`Turn ${turn.number}.`];
    if (turn.ended !== undefined && !turn.typed) words.push(`You spoke for ${seconds(turn.ended - turn.began)}.`);
    if (answer !== undefined) words.push(`The answer was heard after ${Math.round(answer)} milliseconds.`);
    if (turn.cut !== undefined) words.push('It was interrupted.');
    this.canvas.setAttribute('aria-label', `The last seconds of the conversation. ${words.join(' ')}`);
  }

  draw() {
    const { context, width, height } = fitted(this.canvas);
    if (width === 0) return;
    if (this.began === undefined) return this.invite(context, width, height);
    const now = this.running ? performance.now() : (this.stopped ?? performance.now());
    const x = (time) => width - ((now - time) / 1000) * PIXELS_PER_SECOND - 8;
    const colours = palette(this.canvas);
    const lanes = { input: height * 0.27, output: height * 0.71, half: height * 0.2 };
    this.grid(context, colours, x, now, width, height);
    this.voices(context, colours, x, now, lanes);
    this.bars(context, colours, x, width, lanes);
    for (const turn of this.turns.all.slice(-30)) this.turn(context, colours, x, turn, lanes, width);
  }

  /** Before the first conversation. */
  invite(context, width, height) {
    context.fillStyle = palette(this.canvas).faint;
    context.font = '14px system-ui, sans-serif';
    context.textAlign = 'center';
    context.fillText('Both voices are drawn here as they speak.', width / 2, height / 2);
  }

  grid(context, colours, x, now, width, height) {
    context.font = '11px system-ui, sans-serif';
    context.fillStyle = colours.faint;
    context.textAlign = 'center';
    for (let second = Math.floor((now - this.began) / 5000) * 5; second >= 0; second -= 5) {
      const left = x(this.began + second * 1000);
      if (left < 0) break;
      context.globalAlpha = 0.35;
      context.fillRect(Math.round(left), 0, 1, height - 16);
      context.globalAlpha = 1;
      const clock = `${Math.floor(second / 60)}:${String(second % 60).padStart(2, '0')}`;
      if (left > 14 && left < width - 14) context.fillText(clock, left, height - 3);
    }
  }

  voices(context, colours, x, now, { input, half }) {
    context.fillStyle = colours.vad;
    for (const { from, to } of this.spans) {
      context.beginPath();
      context.roundRect(x(from), input - half, Math.max(4, x(to ?? now) - x(from)), half * 2, 8);
      context.fill();
    }
  }

  bars(context, colours, x, width, lanes) {
    const barWidth = (BUCKET_MS / 1000) * PIXELS_PER_SECOND - 1.2;
    const seen = this.levels.filter(({ at }) => x(at) > -barWidth && x(at) < width);
    for (const [side, colour] of [['input', colours.you], ['output', colours.bot]]) {
      const silent = new Path2D();
      const loud = new Path2D();
      for (const bucket of seen) {
        const size = loudness(bucket[side]) * lanes.half;
        if (size <= 1) silent.rect(x(bucket.at), lanes[side] - 1, barWidth, 2);
        else loud.roundRect(x(bucket.at), lanes[side] - size, barWidth, size * 2, 1.5);
      }
      context.fillStyle = colour;
      context.fill(loud);
      context.globalAlpha = 0.35;
      context.fill(silent);
      context.globalAlpha = 1;
    }
  }

  turn(context, colours, x, turn, lanes, width) {
    const answer = total(turn);
    const middle = (lanes.input + lanes.output) / 2;
    if (answer !== undefined) {
      context.strokeStyle = context.fillStyle = colours.lag;
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(x(turn.ended), lanes.input);
      context.bezierCurveTo(x(turn.ended), middle, x(turn.heard), middle, x(turn.heard), lanes.output);
      context.stroke();
      context.font = '600 12px system-ui, sans-serif';
      const room = x(turn.heard) + 64 < width;
      context.textAlign = room ? 'left' : 'right';
      context.fillText(`${Math.round(answer)} ms`, x(turn.heard) + (room ? 6 : -10), room ? middle + 4 : lanes.output - 6);
    }
    if (turn.cut !== undefined) {
      context.strokeStyle = context.fillStyle = colours.cut;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(x(turn.cut), lanes.output - lanes.half);
      context.lineTo(x(turn.cut), lanes.output + lanes.half);
      context.stroke();
      context.beginPath();
      context.arc(x(turn.cut), lanes.output - lanes.half, 3.5, 0, 2 * Math.PI);
      context.fill();
    }
  }
}

/** How tall a level is drawn, 0 to 1: -60 dB is nothing. */
const loudness = (level) => Math.max(0, Math.min(1, (20 * Math.log10(level + 1e-6) + 60) / 52)) ** 1.4;

const seconds = (ms) => `${(ms / 1000).toFixed(1)} seconds`;

/** The page's colours as they are now. */
export function palette(element) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(`--${name}`);
  return Object.fromEntries(['you', 'bot', 'cut', 'lag', 'vad', 'faint', 'ink', 'card'].map((name) => [name, colour(name)]));
}
