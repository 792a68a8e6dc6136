// The page: what is where, and who is told of what.

import { Avatar } from './avatar.js';
import { animate, byId } from './dom.js';
import { Inspector, tabs } from './inspector.js';
import { LatencyView } from './latency.js';
import { SCREEN, followDevices, openPicture, still } from './microphone.js';
import { Problem } from './problems.js';
import { servedModel } from './server.js';
import { Session } from './session.js';
import { Settings } from './settings.js';
import { rememberTheme } from './theme.js';
import { Timeline } from './timeline.js';
import { Tools } from './tools.js';
import { Transcript } from './transcript.js';
import { Turns } from './turns.js';

export const session = new Session();
export const turns = new Turns();

const announcer = byId('announcer');
const transcript = new Transcript(byId('transcript'), (text) => (announcer.textContent = text));
const timeline = new Timeline(byId('timeline'), turns);
const avatar = new Avatar(byId('avatar'));
const settings = new Settings(byId('panel-settings'), session);
export const inspector = new Inspector(byId('panel-events'), session);
new LatencyView(byId('panel-latency'), turns);
new Tools(byId('panel-tools'), session);
tabs(document.querySelector('[role=tablist]'), (id) => id === 'panel-events' && inspector.refresh());
rememberTheme(byId('theme'));

const refreshDevices = followDevices(byId('microphone'), byId('picture'));
let picture = null; // the stream of the camera or the screen

// -- the conversation -------------------------------------------------------------------------------------------------

const transport = () => document.querySelector('input[name=transport]:checked').value;

export function start(withMicrophone = true) {
  turns.reset();
  transcript.reset();
  return session.start({
    transport: transport(),
    key: byId('key').value.trim(),
    device: byId('microphone').value,
    withMicrophone,
    extensions: transport() === 'webrtc' ? byId('face').value : '',
    audioElement: byId('voice'),
  });
}

byId('start').addEventListener('click', () => (session.state === 'idle' ? start() : session.stop()));
byId('interrupt').addEventListener('click', () => session.interrupt());
byId('mute').addEventListener('click', ({ currentTarget }) => session.setMuted(toggled(currentTarget, 'Mute', 'Unmute')));
byId('talk').addEventListener('click', ({ currentTarget }) => session.talk(toggled(currentTarget, 'Talk', 'Send')));
byId('microphone').addEventListener('change', ({ target }) => session.useMicrophone(target.value));
byId('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = byId('text').value.trim();
  if (text !== '') session.say(text);
  byId('text').value = '';
});
for (const radio of document.querySelectorAll('input[name=transport]')) {
  radio.addEventListener('change', () => useTransport());
}
useTransport();

function useTransport() {
  settings.useTransport(transport());
  byId('face').disabled = session.state !== 'idle' || transport() !== 'webrtc';
}

function toggled(button, off, on) {
  const pressed = button.getAttribute('aria-pressed') !== 'true';
  button.setAttribute('aria-pressed', pressed);
  button.textContent = pressed ? on : off;
  return pressed;
}

session.addEventListener('sound', ({ detail: sound }) => {
  refreshDevices(); // with the permission, devices have names
  for (const [name, side] of [['input-level', 'input'], ['output-level', 'output']]) {
    sound.addEventListener(name, ({ detail: level }) => {
      if (side === 'input' && session.muted) level = 0;
      turns[`${side}Level`](level);
      timeline.level(side, level);
      avatar.level(side, level);
    });
  }
});
session.addEventListener('server', ({ detail }) => {
  turns.take(detail);
  transcript.take(detail);
  if (detail.type === 'error' && !settings.expects(detail) && !session.owed) showProblem(new Problem('rejected', detail.error.message));
});
session.addEventListener('client', ({ detail }) => turns.sent(detail));
session.addEventListener('cut', ({ detail }) => detail?.length > 0 && turns.interrupted());
session.addEventListener('restarted', () => transcript.note('Connected again, to a new conversation.'));
session.addEventListener('settings', ({ detail }) => (byId('talk').hidden = detail.audio.input.turn_detection !== null));
session.addEventListener('served', ({ detail: model }) => showServed(model));
session.addEventListener('problem', ({ detail }) => {
  if (detail?.kind !== 'webrtc-missing') return showProblem(detail);
  ACTIONS['Use WebSocket']();
  return transcript.note('This server has no WebRTC; the conversation goes over a WebSocket.');
});
session.addEventListener('video', ({ detail: stream }) => {
  byId('remote').srcObject = stream;
  byId('remote').hidden = stream === null;
});
session.addEventListener('state', ({ detail: state }) => showState(state));

const STATES = { idle: 'Not connected', connecting: 'Connecting', live: 'Connected', reconnecting: 'Reconnecting' };

function showState(state) {
  byId('status').textContent = STATES[state];
  byId('status').dataset.state = state;
  const idle = state === 'idle';
  byId('start').textContent = idle ? 'Start' : 'Stop';
  byId('start').classList.toggle('primary', idle);
  for (const id of ['mute', 'interrupt', 'text']) byId(id).disabled = state !== 'live';
  byId('composer').querySelector('button').disabled = state !== 'live';
  for (const input of document.querySelectorAll('input[name=transport], #key')) input.disabled = !idle;
  useTransport();
  if (state === 'connecting') timeline.start();
  if (idle) {
    timeline.stop();
    byId('talk').hidden = true;
    byId('remote').hidden = true;
  }
}

function showServed(model) {
  byId('served').textContent = `${model.id} · ${model.stages.join(' → ')}`.replaceAll('_', ' ');
  byId('snapshot').dataset.eyes = model.capabilities.image_in;
}

// -- what is going on -------------------------------------------------------------------------------------------------

const MOODS = {
  idle: ['Say hello', 'Press start, then simply speak. You may interrupt at any time.'],
  connecting: ['One moment', 'Opening the conversation.'],
  reconnecting: ['Connection lost', 'Trying to get it back.'],
  hearing: ['You are speaking', 'It listens while you speak.'],
  thinking: ['Thinking', 'The answer is being made.'],
  speaking: ['Speaking', 'Speak to interrupt.'],
  listening: ['Listening', 'Go ahead.'],
};
const TAIL_MS = 400; // a pause between words is not the end of an answer

function mood() {
  if (session.state !== 'live') return session.state;
  if (turns.speaking !== null || session.talking) return 'hearing';
  if (performance.now() - turns.lastOutput < TAIL_MS) return 'speaking';
  const last = turns.all.at(-1);
  const waits = last !== undefined && last.stopped !== undefined && last.heard === undefined && last.status === undefined;
  return waits || session.responding ? 'thinking' : 'listening';
}

animate(() => {
  const now = mood();
  if (avatar.mood === now) return;
  avatar.mood = now;
  document.documentElement.dataset.mood = now;
  [byId('mood').textContent, byId('mood-detail').textContent] = MOODS[now];
});

// -- pictures ---------------------------------------------------------------------------------------------------------

byId('camera').addEventListener('click', () => usePicture(picture === null));
byId('picture').addEventListener('change', () => picture !== null && usePicture(true));
byId('snapshot').addEventListener('click', () => {
  if (byId('snapshot').dataset.eyes === 'true') session.show(still(byId('preview')));
  else showProblem(new Problem('no-picture', 'The model that is served has no eyes.'));
});

let asked = 0; // how often the person has decided about the picture

async function usePicture(on) {
  const decision = ++asked;
  const source = byId('picture').value;
  // Many devices open one camera at a time. A share may be refused: until it is granted the old picture stays.
  if (!on || source !== SCREEN) showPicture(null);
  if (!on) return;
  try {
    const stream = await openPicture(source);
    if (decision !== asked) return stopTracks(stream); // decided otherwise while the browser asked
    if (['no-camera', 'no-screen'].includes(byId('problem').dataset.kind)) showProblem(null);
    showPicture(stream, source);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (decision !== asked) return;
    showProblem(error);
    if (picture !== null) byId('picture').value = byId('preview').dataset.source;
  }
}

function showPicture(stream, source = '') {
  stopTracks(picture);
  picture = stream;
  for (const track of stream?.getTracks() ?? []) track.onended = () => usePicture(false); // "Stop sharing"
  byId('preview').srcObject = stream;
  byId('preview').dataset.source = source;
  byId('preview').hidden = byId('snapshot').hidden = stream === null;
  byId('camera').setAttribute('aria-pressed', stream !== null);
  session.usePicture(stream);
  refreshDevices();
}

function stopTracks(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

// -- trouble ----------------------------------------------------------------------------------------------------------

const ACTIONS = {
  'Continue with text': () => start(false),
  'Try again': () => start(),
  'Start a new one': () => start(),
  'Turn sound on': () => session.sound?.wake(),
  'Use WebSocket': () => {
    document.querySelector('input[value=websocket]').checked = true;
    useTransport();
    return start();
  },
};

function showProblem(problem) {
  byId('problem').hidden = problem === null;
  if (problem === null) return;
  byId('problem').dataset.kind = problem.kind;
  if (problem.kind === 'wrong-key') askForKey();
  byId('problem-title').textContent = problem.message;
  byId('problem-detail').textContent = problem.detail;
  byId('problem-action').hidden = problem.action === undefined;
  byId('problem-action').textContent = problem.action ?? '';
  byId('problem-action').onclick = () => {
    showProblem(null);
    ACTIONS[problem.action]();
  };
}

function askForKey() {
  byId('devices').open = true;
  byId('key-row').hidden = false;
  byId('key').focus();
}

byId('problem-close').addEventListener('click', () => showProblem(null));

if (window.matchMedia('(max-width: 620px)').matches) byId('devices').open = false;

// -- when the page opens ----------------------------------------------------------------------------------------------

// A link may bring the key in its fragment, which is not sent to any server: "#key=...". It lasts as long as the tab.
const fragment = new URLSearchParams(location.hash.slice(1));
byId('key').value = fragment.get('key') ?? sessionStorage.getItem('key') ?? '';
byId('key-row').hidden = byId('key').value === '';
byId('key').addEventListener('change', ({ target }) => sessionStorage.setItem('key', target.value));
if (fragment.has('key')) {
  sessionStorage.setItem('key', fragment.get('key'));
  history.replaceState(null, '', location.pathname + location.search);
}
if (!window.isSecureContext) showProblem(new Problem('insecure-origin'));
servedModel(byId('key').value).then(
  (model) => session.state === 'idle' && session.adopt(model),
  (problem) => problem.kind === 'wrong-key' && showProblem(problem),
);
