// What the page asks the server before it opens a conversation.

import { Problem } from './problems.js';

export const BASE = new URL('./', document.baseURI);

const authorised = (key) => (key ? { headers: { Authorization: `Bearer ${key}` } } : {});

async function ask(path, options = {}) {
  try {
    return await fetch(new URL(path, BASE), { cache: 'no-store', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem('no-server');
  }
}

/** The model that is served, as `/v1/models` shows it. Throws a `Problem`. */
export async function servedModel(key, signal) {
  const answer = await ask('v1/models', { ...authorised(key), signal });
  if (answer.status === 401) throw new Problem('wrong-key');
  if (!answer.ok) throw new Problem('refused', `It answered with status ${answer.status}.`);
  return (await answer.json()).data[0];
}

/** What a peer connection is to be made with: the STUN and TURN servers of the deployment. Throws a `Problem`. */
export async function iceServers(key) {
  const answer = await ask('v1/realtime/ice_servers', authorised(key));
  return answer.ok ? answer.json() : {}; // the offer will say what is wrong
}

/** Wait until the models are loaded; `waiting` is called when that is not at once. Throws a `Problem`. */
export async function untilReady(signal, waiting) {
  for (;;) {
    const { status } = await (await ask('health', { signal })).json();
    if (status === 'ok') return;
    if (status === 'draining') throw new Problem('refused', 'It is shutting down.');
    waiting();
    await new Promise((resolve) => setTimeout(resolve, 1000));
    signal.throwIfAborted();
  }
}
