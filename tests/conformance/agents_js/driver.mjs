// One conversation of @openai/agents with a server: RealtimeSession over its WebSocket transport, only the URL changed.
//
//   node driver.mjs '{"scenario": "...", "url": "ws://...", "key": "...", "audio": "speech.pcm"}'
//
// Prints one JSON object: `trace` (every event both ways, as on the wire), `ignored` (server events that the client
// did not understand), `said` (whatever it wrote to the console), `errors` (its error events), and `result`.

import { readFile } from 'node:fs/promises';
import { hostedMcpTool } from '@openai/agents';
import { RealtimeAgent, RealtimeSession, tool } from '@openai/agents/realtime';
import { WebSocket } from 'ws';
import { z } from 'zod';

const PATIENCE_MS = 60_000;
const NOVELIST = 'You are a novelist. Write a long story of at least three hundred words.';
const { scenario, url, key, audio, mcp } = JSON.parse(process.argv[2]);
const report = { trace: [], ignored: [], said: [], errors: [], result: {} };

// -- watching ---------------------------------------------------------------------------------------------------------

for (const level of ['log', 'info', 'warn', 'error']) {
  console[level] = (...words) => report.said.push(words.map(String).join(' '));
}

const waiters = new Set();

function note(fromClient, event) {
  report.trace.push([fromClient, event]);
  for (const waiter of waiters) waiter(fromClient, event);
}

const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (data, ...rest) {
  note(true, JSON.parse(data));
  return send.call(this, data, ...rest);
};

function watch(session) {
  const { transport } = session;
  const known = new Set();
  let understood;
  transport.on('*', (event) => {
    // the transport emits '*' for every event, and after it the event's own type if its schema fits
    if (understood !== undefined) report.ignored.push(understood);
    understood = event.type;
    if (!known.has(event.type)) {
      known.add(event.type);
      transport.on(event.type, () => (understood = undefined));
    }
    note(false, event);
  });
  session.on('error', (error) => report.errors.push(error?.error?.error ?? { message: String(error?.error ?? error) }));
}

// The first event from now on that fits: of the server, or with `fromClient` of the client.
function next(type, accept = () => true, fromClient = false) {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => finish(reject, new Error(`no ${type} in time`)), PATIENCE_MS);
    function finish(settle, value) {
      clearTimeout(late);
      waiters.delete(waiter);
      settle(value);
    }
    function waiter(from, event) {
      if (from === fromClient && event.type === type && accept(event)) finish(resolve, event);
    }
    waiters.add(waiter);
  });
}

// Events that may be refused: a question about nothing, and the end of an answer that has ended by itself meanwhile.
const HARMLESS = new Set(['settle_1', 'enough_1']);

// Once this harmless question is answered, so is everything that was said before it.
async function settle(session) {
  const answered = next('error', (event) => event.error.event_id === 'settle_1');
  session.transport.sendEvent({ type: 'conversation.item.retrieve', event_id: 'settle_1', item_id: 'item_that_is_not_there' });
  await answered;
  report.errors = report.errors.filter((error) => !HARMLESS.has(error?.error?.event_id ?? error?.event_id));
}

// -- doing ------------------------------------------------------------------------------------------------------------

async function connected(options = {}, config = {}) {
  const agent = new RealtimeAgent({ name: 'Assistant', instructions: 'Answer briefly.', ...options });
  const session = new RealtimeSession(agent, { transport: 'websocket', model: 'gpt-realtime', config });
  watch(session);
  const began = performance.now();
  // one answer to the configuration, one to the tracing that the client switches on by itself, in whichever order
  let answers = 0;
  const updated = next('session.updated', () => ++answers === 2);
  await session.connect({ apiKey: key, url });
  await updated;
  report.result.connected_ms = performance.now() - began;
  return session;
}

async function speak(session, silenceS) {
  const speech = Buffer.concat([await readFile(audio), Buffer.alloc(48_000 * silenceS)]);
  for (let first = 0; first < speech.length; first += 960) {
    const piece = speech.subarray(first, first + 960);
    session.sendAudio(piece.buffer.slice(piece.byteOffset, piece.byteOffset + piece.byteLength));
  }
}

async function answered(session, message) {
  const done = next('response.done');
  session.sendMessage(message);
  return (await done).response;
}

function heard(session) {
  let bytes = 0;
  session.on('audio', (event) => (bytes += event.data.byteLength));
  return () => bytes;
}

const scenarios = {
  async connect() {
    return connected();
  },

  async spoken() {
    const session = await connected({}, { providerData: { max_output_tokens: 30 } });
    const bytes = heard(session);
    const done = next('response.done');
    // the client asks for the user's item once it has been transcribed
    const item = next('conversation.item.retrieved');
    await speak(session, 5);
    report.result.response = (await done).response;
    report.result.transcript = (await item).item.content[0].transcript;
    report.result.audio_bytes = bytes();
    report.result.history = session.history;
    return session;
  },

  async bargeIn() {
    const session = await connected({ instructions: NOVELIST });
    const interrupted = new Promise((resolve) => session.once('audio_interrupted', resolve));
    const talking = next('response.output_audio.delta');
    session.sendMessage('Tell me a very long story about a dragon, with many details.');
    const { item_id: itemId, response_id: responseId } = await talking;
    const done = next('response.done');
    const truncated = next('conversation.item.truncated');
    const retrieved = next('conversation.item.retrieved', (event) => event.item.id === itemId);
    await speak(session, 5);
    await interrupted;
    report.result.cut = (await done).response;
    report.result.response_id = responseId;
    report.result.truncated = await truncated;
    report.result.retrieved = (await retrieved).item;
    const ended = next('response.done');
    await next('response.created');
    // not `interrupt`: it cancels too, if sound has come, and the second of two finds nothing to cancel
    session.transport.sendEvent({ type: 'response.cancel', event_id: 'enough_1' });
    await ended;
    return session;
  },

  async interrupt() {
    const session = await connected();
    const talking = next('response.output_audio.delta');
    session.sendMessage('A story, please.');
    await talking;
    const done = next('response.done');
    const truncated = next('conversation.item.truncated');
    session.interrupt();
    report.result.cut = (await done).response;
    await truncated;
    report.result.response = await answered(session, 'And now?');
    return session;
  },

  async functionTool() {
    const asked = [];
    const weather = tool({
      name: 'weather',
      description: 'The weather in a city.',
      parameters: z.object({ city: z.string() }),
      execute: async ({ city }) => {
        asked.push(city);
        return 'sunny';
      },
    });
    const session = await connected({ tools: [weather] });
    const said = next('response.output_audio_transcript.done');
    const done = next('response.done', (event) => event.response.output.some((item) => item.type === 'message'));
    session.sendMessage('How is the weather?');
    report.result.said = (await said).transcript;
    await done;
    report.result.asked = asked;
    return session;
  },

  async mcp() {
    const library = hostedMcpTool({
      serverLabel: 'library',
      serverUrl: mcp,
      allowedTools: ['weather'],
      requireApproval: 'always',
    });
    const listed = next('mcp_list_tools.completed');
    const session = await connected({ tools: [library] });
    await listed;
    const requested = new Promise((resolve) =>
      session.once('tool_approval_requested', (context, agent, request) => resolve(request)),
    );
    const called = new Promise((resolve) => session.once('mcp_tool_call_completed', (context, agent, call) => resolve(call)));
    session.sendMessage('How is the weather?');
    const request = await requested;
    const said = next('response.output_audio_transcript.done');
    const done = next('response.done', (event) => event.response.output.some((item) => item.type === 'message'));
    await session.approve(request.approvalItem);
    report.result.call = await called;
    report.result.said = (await said).transcript;
    await done;
    report.result.tools = session.availableMcpTools.map((tool) => tool.name);
    return session;
  },

  async history() {
    const session = await connected();
    await answered(session, 'one');
    await answered(session, 'two');
    const [one, answer, two] = session.history;
    const last = session.history[3];
    const edited = { ...two, content: [{ type: 'input_text', text: 'TWO' }] };
    const added = { itemId: 'item_of_mine', type: 'message', role: 'user', status: 'completed', content: [{ type: 'input_text', text: 'zero' }] };
    const arrived = next('conversation.item.done', (event) => event.item.id === two.itemId);
    session.updateHistory([added, answer, edited, last]);
    await arrived;
    report.result.expected = [added.itemId, answer.itemId, two.itemId, last.itemId];
    report.result.gone = one.itemId;
    report.result.history = session.history.map((item) => item.itemId);
    report.result.response = await answered(session, 'three');
    return session;
  },

  async errors() {
    const session = await connected();
    const wrong = next('error');
    session.transport.sendEvent({ type: 'nonsense', event_id: 'wrong_1' });
    report.result.wrong = (await wrong).error;
    const refused = next('error');
    session.transport.sendEvent({ type: 'response.create', event_id: 'wrong_2', response: { modalities: ['text'] } });
    await refused;
    // the client holds its next request back until this error has freed the one before
    report.result.response = await answered(session, 'And now?');
    return session;
  },
};

try {
  const session = await scenarios[scenario]();
  await settle(session);
  session.close();
} catch (error) {
  report.failure = String(error?.stack ?? error);
}
process.stdout.write(JSON.stringify(report), () => process.exit(0));
