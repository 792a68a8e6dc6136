// Every protocol event, both ways: searched, opened, saved.

import { byId, make } from './dom.js';

const KEPT = 4000;
const SHOWN = 200;
const SOUND = new Set(['input_audio_buffer.append', 'response.output_audio.delta']);

export class Inspector {
  constructor(panel, session) {
    this.events = [];
    this.paused = false;
    this.wanted = { words: '', from: 'both', sound: false };
    this.began = performance.now();
    this.list = make('ol', { class: 'events', tabindex: '0', 'aria-label': 'Events, newest first' });
    this.count = make('p', { class: 'hint', role: 'status' });
    panel.append(this.bar(), this.count, this.list);
    session.addEventListener('server', ({ detail }) => this.add('server', detail));
    session.addEventListener('client', ({ detail }) => this.add('client', detail));
    this.panel = panel;
  }

  bar() {
    const search = make('input', { type: 'search', id: 'events-search', placeholder: 'Search: a type, an id, a word' });
    search.addEventListener('input', () => this.want({ words: search.value.toLowerCase() }));
    const from = make('select', { id: 'events-from' }, new Option('both ways', 'both'), new Option('from the server', 'server'), new Option('from this page', 'client'));
    from.addEventListener('change', () => this.want({ from: from.value }));
    const sound = make('input', { type: 'checkbox', id: 'events-sound' });
    sound.addEventListener('change', () => this.want({ sound: sound.checked }));
    const pause = make('button', { type: 'button', id: 'events-pause', 'aria-pressed': 'false', text: 'Pause' });
    pause.addEventListener('click', () => {
      this.paused = !this.paused;
      pause.setAttribute('aria-pressed', this.paused);
      this.refresh();
    });
    return make(
      'div',
      { class: 'filter' },
      make('label', { class: 'hidden', for: 'events-search', text: 'Search the events' }),
      search,
      make('label', { class: 'hidden', for: 'events-from', text: 'Direction' }),
      from,
      make('label', {}, sound, ' sound'),
      pause,
      make('button', { type: 'button', text: 'Clear', onclick: () => this.clear() }),
      make('button', { type: 'button', text: 'Save', onclick: () => this.save() }),
    );
  }

  add(from, event) {
    const text = JSON.stringify(event, (name, value) => (typeof value === 'string' && value.length > 2000 ? `${value.slice(0, 60)}… (${value.length} characters)` : value));
    this.events.push({ from, type: event.type, text, low: text.toLowerCase(), at: performance.now() - this.began });
    if (this.events.length > KEPT) this.events.splice(0, KEPT / 10);
    if (!this.paused && !this.panel.hidden) this.refreshSoon();
  }

  want(changed) {
    Object.assign(this.wanted, changed);
    this.refresh();
  }

  refreshSoon() {
    this.due ??= setTimeout(() => {
      this.due = undefined;
      this.refresh();
    }, 150);
  }

  refresh() {
    const { words, from, sound } = this.wanted;
    const fitting = this.events.filter(
      (event) => (sound || !SOUND.has(event.type)) && (from === 'both' || event.from === from) && event.low.includes(words),
    );
    this.count.textContent = `${fitting.length} of ${this.events.length} events${this.paused ? ', paused' : ''}`;
    const shown = fitting.slice(-SHOWN).reverse();
    const wanted = new Set(shown);
    const rows = new Map([...this.list.children].filter((row) => wanted.has(row.event)).map((row) => [row.event, row]));
    // Rows that stay are not rebuilt: one may be open, or have the focus.
    this.list.replaceChildren(...shown.map((event) => rows.get(event) ?? rowOf(event)));
  }

  clear() {
    this.events = [];
    this.refresh();
  }

  save() {
    const lines = this.events.map(({ from, at, text }) => `{"from":"${from}","ms":${Math.round(at)},"event":${text}}\n`);
    const link = make('a', { href: URL.createObjectURL(new Blob(lines, { type: 'application/jsonl' })), download: 'duologue-events.jsonl' });
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

function rowOf(event) {
  const body = make('pre', { class: 'json', tabindex: '0' });
  const row = make(
    'li',
    { class: event.from },
    make(
      'details',
      {},
      make('summary', {}, make('span', { class: 'at', text: (event.at / 1000).toFixed(3) }), make('span', { class: 'way', text: event.from === 'client' ? '↑ sent' : '↓ received' }), make('code', { text: event.type })),
      body,
    ),
  );
  row.firstChild.addEventListener('toggle', () => (body.textContent = JSON.stringify(JSON.parse(event.text), null, 2)));
  row.event = event;
  return row;
}

/** Tabs as the ARIA pattern has them: arrows move, the panel of the chosen tab is shown. `shown(id)` tells which. */
export function tabs(list, shown = () => {}) {
  const all = [...list.querySelectorAll('[role=tab]')];
  const choose = (tab, focus = true) => {
    for (const one of all) {
      one.setAttribute('aria-selected', one === tab);
      one.tabIndex = one === tab ? 0 : -1;
      byId(one.getAttribute('aria-controls')).hidden = one !== tab;
    }
    if (focus) tab.focus();
    shown(tab.getAttribute('aria-controls'));
  };
  for (const tab of all) tab.addEventListener('click', () => choose(tab));
  list.addEventListener('keydown', (event) => {
    const here = all.indexOf(document.activeElement);
    const there = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 }[event.key];
    if (here < 0 || there === undefined) return;
    event.preventDefault();
    choose(all.at(there % all.length));
  });
}
