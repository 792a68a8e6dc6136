// The page's audio context: the microphone comes in, the answers go out, both are metered.

const RATE = 24_000;

/**
 * Events: `input-level` and `output-level` (detail: root mean square of 20 ms), `blocked` (detail: whether the browser
 * holds the sound back until the person does something).
 */
export class Sound extends EventTarget {
  /** `stream`: the microphone, or null. Browsers that cannot take it at 24 kHz get a context of the device's rate. */
  static async open(stream) {
    try {
      return await new Sound(new AudioContext({ sampleRate: RATE, latencyHint: 'interactive' })).begin(stream);
    } catch (error) {
      if (error.name !== 'NotSupportedError') throw error;
      return new Sound(new AudioContext({ latencyHint: 'interactive' })).begin(stream);
    }
  }

  constructor(context) {
    super();
    this.context = context;
    this.output = context.createGain(); // answers are connected to it
    this.source = null;
    this.leaving = new AbortController();
  }

  /** Whether sound can be played and metered: pages of insecure origins have no audio thread. */
  get able() {
    return this.context.audioWorklet !== undefined;
  }

  async begin(stream) {
    try {
      if (!this.able) return this;
      await this.context.audioWorklet.addModule(new URL('worklets.js', import.meta.url));
      this.inputMeter = this.meter('input-level');
      this.output.connect(this.context.destination);
      this.output.connect(this.meter('output-level'));
      if (stream !== null) this.listen(stream);
    } catch (error) {
      await this.close();
      throw error;
    }
    this.stayAwake();
    return this;
  }

  /** Take the microphone from another stream. */
  listen(stream) {
    this.source?.disconnect();
    this.source = this.context.createMediaStreamSource(stream);
    this.source.connect(this.inputMeter);
    if (this.capture !== undefined) this.source.connect(this.capture);
  }

  /** Call `take` with Int16Arrays of 20 ms at 24 kHz from the microphone. */
  record(take) {
    this.capture = new AudioWorkletNode(this.context, 'capture', { numberOfOutputs: 0 });
    this.capture.port.onmessage = ({ data }) => take(data);
    this.source?.connect(this.capture);
  }

  /** Play and meter a stream from elsewhere. The element plays it; Chromium feeds the meter only while one does. */
  attach(stream, element) {
    element.srcObject = stream;
    this.remote?.disconnect();
    try {
      this.remote = this.context.createMediaStreamSource(stream);
      this.remote.connect(this.meter('output-level'));
    } catch (error) {
      if (error.name !== 'NotSupportedError') throw error; // heard, but not drawn: Firefox without a microphone
    }
    return this.play(element);
  }

  async play(element) {
    try {
      await element.play();
    } catch (error) {
      if (error.name === 'NotAllowedError') {
        this.refused = element;
        this.tellBlocked();
      } else if (error.name !== 'AbortError') throw error;
    }
  }

  /** Where what is heard lags behind what is played, in milliseconds. */
  get latencyMs() {
    return ((this.context.outputLatency || 0) + (this.context.baseLatency || 0)) * 1000;
  }

  /** A suspended context (autoplay policy, a phone call) goes on at the next gesture, or when the page is seen again. */
  stayAwake() {
    const { signal } = this.leaving;
    const wake = () => void this.wake();
    for (const gesture of ['pointerdown', 'keydown']) document.addEventListener(gesture, wake, { signal });
    document.addEventListener('visibilitychange', () => document.visibilityState === 'visible' && wake(), { signal });
    this.context.addEventListener('statechange', () => this.tellBlocked(), { signal });
    wake();
    setTimeout(() => this.tellBlocked(), 500); // a context that may start has done so by then
  }

  async wake() {
    if (this.context.state === 'closed') return;
    if (this.context.state !== 'running') {
      // a promise that stays open for as long as the policy refuses: it is not waited for
      this.context.resume().then(() => this.tellBlocked(), () => this.tellBlocked());
    }
    if (this.refused !== undefined) {
      const element = this.refused;
      this.refused = undefined;
      await this.play(element);
      this.tellBlocked();
    }
  }

  tellBlocked() {
    if (this.leaving.signal.aborted) return;
    const blocked = this.context.state !== 'running' || this.refused !== undefined;
    this.dispatchEvent(new CustomEvent('blocked', { detail: blocked }));
  }

  meter(name) {
    const node = new AudioWorkletNode(this.context, 'meter', { numberOfOutputs: 0 });
    node.port.onmessage = ({ data }) => this.dispatchEvent(new CustomEvent(name, { detail: data }));
    return node;
  }

  async close() {
    this.leaving.abort();
    if (this.context.state !== 'closed') await this.context.close();
  }
}
