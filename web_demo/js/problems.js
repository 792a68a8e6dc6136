// What can go wrong, in words that say what to do.

/** `action`: label of the button that may help; what it does is the page's matter. */
export class Problem extends Error {
  constructor(kind, detail = '') {
    const { title, text, action } = KINDS[kind];
    super(title);
    this.kind = kind;
    this.detail = [text, detail].filter(Boolean).join(' ');
    this.action = action;
  }
}

const TEXT_ONLY = 'Continue with text';

const KINDS = {
  'insecure-origin': {
    title: 'This address cannot use the microphone',
    text:
      'Browsers give it only to https pages and to localhost. Start the server with "duologue serve --host 0.0.0.0 ' +
      '--ssl-self-signed" and open the https address, or go on in writing.',
    action: TEXT_ONLY,
  },
  'no-microphone': {
    title: 'No microphone was found',
    text: 'Connect one and press start again, or go on without speaking.',
    action: TEXT_ONLY,
  },
  'microphone-refused': {
    title: 'The microphone is not allowed',
    text: 'Allow it in the address bar of the browser and press start again, or go on without speaking.',
    action: TEXT_ONLY,
  },
  'microphone-busy': {
    title: 'The microphone cannot be opened',
    text: 'Another program may be using it.',
    action: TEXT_ONLY,
  },
  'microphone-gone': {
    title: 'The microphone went away',
    text: 'It was unplugged or switched off. Choose another one, or go on with text.',
  },
  'no-camera': { title: 'The camera cannot be opened', text: 'Connect one, allow it, or choose another one.' },
  'no-screen': {
    title: 'The screen is not shared',
    text: 'Try again and allow it; the system itself may have to allow it to the browser as well.',
  },
  'no-server': {
    title: 'The server does not answer',
    text: 'Is "duologue serve" still running, and does this device reach it?',
    action: 'Try again',
  },
  loading: { title: 'The server is still loading its models', text: 'The conversation begins as soon as they are ready.' },
  'wrong-key': {
    title: 'The server asks for a key',
    text: 'Put the key of "duologue serve --api-key" into the field Key and press start again.',
  },
  'no-room': { title: 'All conversations are taken', text: 'Try again in a moment.', action: 'Try again' },
  refused: { title: 'The server refused the conversation', text: '' },
  'no-webrtc': {
    title: 'The WebRTC call did not come about',
    text: 'The network may be in the way.',
    action: 'Use WebSocket',
  },
  'webrtc-missing': { title: 'The server has no WebRTC', text: '', action: 'Use WebSocket' },
  gone: { title: 'The conversation is over', text: '', action: 'Start a new one' },
  autoplay: { title: 'The browser holds the sound back', text: 'It waits for a sign from you.', action: 'Turn sound on' },
  lost: { title: 'The connection was lost', text: 'Trying to get it back.' },
  ended: { title: 'The conversation has ended', text: '', action: 'Start a new one' },
  rejected: { title: 'The server rejected a message', text: '' },
  'no-picture': { title: 'Pictures cannot be sent', text: '' },
};
