// Plays the pieces of audio that come over a WebSocket, and knows what was heard of them.

export class Player {
  constructor(sound) {
    this.sound = sound;
    this.node = new AudioWorkletNode(sound.context, 'player', { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.connect(sound.output);
    this.node.port.onmessage = ({ data }) => this.report(data);
    this.playing = null; // the item whose sound is in the loudspeaker, if any
    this.clearing = [];
  }

  /** `samples`: Int16Array at 24 kHz. */
  add(item, samples) {
    this.playing ??= item;
    this.node.port.postMessage({ item, samples }, [samples.buffer]);
  }

  /** Fall silent. Resolves to `[{item, ms}]`: how much was heard of each item that had not ended. */
  clear() {
    this.playing = null;
    return new Promise((resolve) => {
      this.clearing.push(resolve);
      this.node.port.postMessage({ clear: true });
    });
  }

  report({ position, ended, cleared }) {
    if (position !== undefined) this.playing = position.item;
    if (ended !== undefined) this.playing = null;
    if (cleared !== undefined) {
      const lag = this.sound.latencyMs;
      this.clearing.shift()?.(cleared.map(({ item, ms }) => ({ item, ms: Math.max(0, Math.floor(ms - lag)) })));
    }
  }

  close() {
    this.node.disconnect();
    for (const resolve of this.clearing.splice(0)) resolve([]);
  }
}
