// A conversation as a WebRTC call: media on tracks, events on the data channel.

import { Problem } from './problems.js';

export class WebRtcLink {
  async open() {
    throw new Problem('no-webrtc');
  }
  close() {}
}
