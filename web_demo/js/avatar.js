// The assistant's face: a shape that moves with whoever speaks.

import { animate, calm, fitted } from './dom.js';
import { palette } from './timeline.js';

const LAYERS = [
  { scale: 1, lobes: 3, speed: 0.0009, alpha: 0.28 },
  { scale: 0.86, lobes: 4, speed: -0.0012, alpha: 0.45 },
  { scale: 0.7, lobes: 5, speed: 0.0016, alpha: 1 },
];

export class Avatar {
  constructor(canvas) {
    this.canvas = canvas;
    this.levels = { input: 0, output: 0 };
    this.shown = { input: 0, output: 0 };
    this.mood = 'idle';
    animate((now) => this.draw(now));
  }

  level(side, value) {
    this.levels[side] = Math.max(this.levels[side] * 0.85, Math.min(1, value * 5));
  }

  draw(now) {
    const { context, width, height } = fitted(this.canvas);
    if (width === 0) return;
    for (const side of ['input', 'output']) {
      this.shown[side] += (this.levels[side] - this.shown[side]) * 0.3;
      this.levels[side] *= 0.9;
    }
    const colours = palette(this.canvas);
    const level = Math.max(this.shown.output, this.mood === 'hearing' ? this.shown.input : 0);
    const colour = { hearing: colours.you, idle: colours.faint, reconnecting: colours.cut }[this.mood] ?? colours.bot;
    const time = calm.matches ? 0 : now;
    const breath = 1 + 0.02 * Math.sin(time * (this.mood === 'thinking' ? 0.006 : 0.0018));
    context.translate(width / 2, height / 2);
    for (const layer of LAYERS) this.layer(context, layer, (Math.min(width, height) / 2) * 0.82 * breath, level, time, colour);
    this.ring(context, Math.min(width, height) / 2 - 3, time, colours);
  }

  layer(context, { scale, lobes, speed, alpha }, radius, level, time, colour) {
    context.beginPath();
    for (let step = 0; step <= 120; step++) {
      const angle = (step / 120) * 2 * Math.PI;
      const wave = Math.sin(lobes * angle + time * speed * lobes) + 0.5 * Math.sin((lobes + 2) * angle - time * speed);
      const reach = radius * scale * (0.9 + 0.16 * level + wave * (0.015 + 0.1 * level));
      context.lineTo(Math.cos(angle) * reach, Math.sin(angle) * reach);
    }
    context.closePath();
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.fill();
    if (alpha === 1) {
      const light = context.createRadialGradient(-radius * 0.25, -radius * 0.3, 0, 0, 0, radius);
      light.addColorStop(0, 'rgb(255 255 255 / 0.45)');
      light.addColorStop(0.7, 'rgb(255 255 255 / 0)');
      context.fillStyle = light;
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** What is going on, around the shape. */
  ring(context, radius, time, colours) {
    if (this.mood !== 'thinking' && this.mood !== 'connecting' && this.mood !== 'reconnecting') return;
    context.strokeStyle = colours.bot;
    context.lineWidth = 3;
    context.lineCap = 'round';
    const begin = time * 0.004;
    context.beginPath();
    context.arc(0, 0, radius, begin, begin + 1.6);
    context.stroke();
  }
}
