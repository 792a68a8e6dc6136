// Functions that the page itself answers, so that one can see a model use tools.

import { make } from './dom.js';

const COLOURS = ['violet', 'teal', 'blue', 'green', 'rose', 'amber'];

const TOOLS = [
  {
    name: 'get_time',
    description: 'The date and time now, in a time zone if one is given.',
    parameters: {
      type: 'object',
      properties: { time_zone: { type: 'string', description: 'An IANA name, such as Europe/Paris.' } },
    },
    run: ({ time_zone: timeZone }) => new Intl.DateTimeFormat('en-GB', { dateStyle: 'full', timeStyle: 'short', timeZone }).format(),
  },
  {
    name: 'set_page_colour',
    description: 'Change the colour of the page that the user looks at.',
    parameters: { type: 'object', properties: { colour: { type: 'string', enum: COLOURS } }, required: ['colour'] },
    run: ({ colour }) => {
      if (!COLOURS.includes(colour)) throw new Error(`There is no '${colour}'. Colours: ${COLOURS.join(', ')}.`);
      document.documentElement.dataset.hue = colour;
      return `The page is ${colour} now.`;
    },
  },
  {
    name: 'roll_dice',
    description: 'Roll a die and return the number.',
    parameters: { type: 'object', properties: { sides: { type: 'integer', minimum: 2, description: '6 if not given.' } } },
    run: ({ sides = 6 }) => String(1 + Math.floor(Math.random() * sides)),
  },
];

export class Tools {
  constructor(panel, session) {
    this.session = session;
    this.chosen = new Set();
    this.note = make('p', { class: 'hint', id: 'tools-note', text: 'The assistant may call these; the page does the work.' });
    this.log = make('ol', { class: 'calls', tabindex: '0', 'aria-label': 'Calls' });
    panel.append(this.note, ...TOOLS.map((tool) => this.row(tool)), make('h3', { text: 'Calls' }), this.log);
    session.addEventListener('served', ({ detail }) => this.serve(detail));
    session.addEventListener('server', ({ detail }) => this.take(detail));
  }

  row(tool) {
    const input = make('input', { type: 'checkbox', role: 'switch', id: `tool-${tool.name}`, 'aria-describedby': `about-${tool.name}` });
    input.addEventListener('change', () => this.choose(tool, input.checked));
    return make(
      'div',
      { class: 'field switch' },
      make('label', { for: input.id }, make('code', { text: tool.name })),
      input,
      make('p', { class: 'hint', id: `about-${tool.name}`, text: tool.description }),
    );
  }

  choose(tool, on) {
    if (on) this.chosen.add(tool);
    else this.chosen.delete(tool);
    const tools = TOOLS.filter((one) => this.chosen.has(one)).map(({ run, ...described }) => ({ type: 'function', ...described }));
    this.session.update({ tools });
  }

  serve(model) {
    const able = model.capabilities.tools;
    this.note.textContent = able
      ? 'The assistant may call these; the page does the work.'
      : `The model that is served (${model.id}) cannot call tools. Serve one that can: see docs/language-models.md.`;
  }

  /** Answer the calls of a finished response, then ask for the words that go with the results. */
  take(event) {
    if (event.type !== 'response.done' || event.response.status !== 'completed') return;
    const calls = event.response.output.filter((item) => item.type === 'function_call' && TOOLS.some(({ name }) => name === item.name));
    if (calls.length === 0) return;
    for (const call of calls) {
      const output = answer(call);
      this.log.prepend(make('li', {}, make('code', { text: `${call.name}(${call.arguments})` }), ` → ${output}`));
      this.session.item({ type: 'function_call_output', call_id: call.call_id, output });
    }
    this.session.send({ type: 'response.create' });
  }
}

function answer({ name, arguments: text }) {
  try {
    return TOOLS.find((tool) => tool.name === name).run(JSON.parse(text || '{}'));
  } catch (error) {
    return `Error: ${error.message}`;
  }
}
