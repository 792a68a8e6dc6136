// The settings panel: every field of the session, sent as it is changed and shown as the server confirms it.

import { make } from './dom.js';
import { at, GROUPS, only } from './settings-fields.js';
import { merged } from './session.js';

export class Settings {
  constructor(panel, session) {
    this.session = session;
    this.fields = new Map(); // path -> {field, row, input, error, value}
    this.pending = new Map(); // event id -> path
    this.choices = { voices: [], recognisers: [] };
    this.note = make('p', { class: 'hint', text: 'Before a conversation: what you choose is used when it begins.' });
    panel.append(this.note, ...GROUPS.map((group) => this.group(group)), this.whole());
    session.addEventListener('settings', ({ detail }) => this.show(detail));
    session.addEventListener('state', () => this.moved());
    session.addEventListener('served', ({ detail }) => this.serve(detail));
    session.addEventListener('server', ({ detail }) => this.take(detail));
    this.moved();
  }

  group({ title, fields }) {
    return make('fieldset', {}, make('legend', { text: title }), ...fields.map((field) => this.row(field)));
  }

  row(field) {
    const id = `set-${field.path.replaceAll('.', '-')}`;
    const input = control(field, id);
    const error = make('p', { class: 'error', id: `${id}-error` });
    const value = make('output', { for: id });
    const label = make('label', { for: id, text: field.label });
    const row = make('div', { class: `field ${field.control}` }, label, input, ...(field.control === 'range' ? [value] : []), error);
    if (field.help !== undefined) row.append(make('p', { class: 'hint', id: `${id}-help`, text: field.help }));
    input.setAttribute('aria-describedby', [`${id}-error`, ...(field.help ? [`${id}-help`] : [])].join(' '));
    input.addEventListener('change', () => this.change(field, input));
    if (field.control === 'range') input.addEventListener('input', () => (value.textContent = input.value));
    this.fields.set(field.path, { field, row, input, error, value });
    return row;
  }

  /** Whatever has no control of its own, and all the rest: a part of a session object as JSON. */
  whole() {
    this.json = make('textarea', { id: 'set-json', rows: 6, spellcheck: 'false', 'aria-describedby': 'set-json-error' });
    this.json.value = '{"instructions": "Answer in one short sentence."}';
    this.jsonError = make('p', { class: 'error', id: 'set-json-error' });
    const current = make('pre', { class: 'json', tabindex: '0', 'aria-label': 'The effective session' });
    this.current = current;
    return make(
      'fieldset',
      {},
      make('legend', { text: 'As JSON' }),
      make('div', { class: 'field area' }, make('label', { for: 'set-json', text: 'session.update' }), this.json, this.jsonError),
      make('button', { type: 'button', text: 'Update the session', onclick: () => this.sendJson() }),
      make('details', {}, make('summary', { text: 'The effective session' }), current),
    );
  }

  change(field, input) {
    const written = readControl(field, input);
    this.error(field.path, '');
    if (written === undefined) return;
    const id = this.session.update(only(field.path, written));
    if (id !== null) this.pending.set(id, field.path);
    else this.show(this.known());
  }

  sendJson() {
    this.jsonError.textContent = '';
    let part;
    try {
      part = JSON.parse(this.json.value);
    } catch (error) {
      this.jsonError.textContent = error.message;
      return;
    }
    const id = this.session.update(part);
    if (id !== null) this.pending.set(id, null);
  }

  /** Whether an error is about a setting, and so is shown at its control. */
  expects(event) {
    return this.pending.has(event.error.event_id) || this.told === event;
  }

  take(event) {
    if (event.type !== 'error') return;
    const { event_id: id, message, param } = event.error;
    if (!this.pending.has(id)) return;
    this.told = event;
    const path = this.pending.get(id);
    this.pending.delete(id);
    if (path === null) this.jsonError.textContent = param ? `${param}: ${message}` : message;
    else this.error(path, message);
    this.show(this.known());
  }

  error(path, message) {
    const { input, error } = this.fields.get(path);
    error.textContent = message;
    input.setAttribute('aria-invalid', message !== '');
  }

  /** What is in force; before a conversation what will be. */
  known() {
    const initial = [...this.fields.values()].reduce(
      (session, { field }) => (field.initial === undefined || field.path.includes('turn_detection.') ? session : merged(session, only(field.path, field.initial))),
      {},
    );
    return this.session.settings ?? merged(initial, this.session.draft);
  }

  show(session) {
    for (const { field, row, input, value } of this.fields.values()) {
      row.hidden = field.when !== undefined && !field.when(session);
      const found = at(session, field.path);
      if (document.activeElement !== input || field.control === 'select' || field.control === 'switch') {
        display(field, input, found === undefined ? field.initial : found);
      }
      value.textContent = input.value;
    }
    this.current.textContent = JSON.stringify(session, null, 2);
  }

  serve(model) {
    this.choices.voices = model.voices;
    this.choices.recognisers = [['', 'off'], ...model.transcription_models];
    for (const { field, input } of this.fields.values()) {
      if (typeof field.options === 'string') fillSelect(input, this.choices[field.options]);
    }
    this.show(this.known());
  }

  moved() {
    this.note.hidden = this.session.state === 'live' || this.session.state === 'reconnecting';
    if (this.session.state === 'idle') this.pending.clear();
    this.show(this.known());
  }

  /** `transport`: which one is chosen; a WebRTC call settles its formats by itself. */
  useTransport(transport) {
    for (const { field, input } of this.fields.values()) {
      if (field.socketOnly) input.disabled = transport !== 'websocket';
    }
  }
}

function control(field, id) {
  const limits = { min: field.min, max: field.max, step: field.step, placeholder: field.placeholder };
  switch (field.control) {
    case 'select': {
      const select = make('select', { id });
      if (Array.isArray(field.options)) fillSelect(select, field.options);
      return select;
    }
    case 'switch':
      return make('input', { id, type: 'checkbox', role: 'switch' });
    case 'area':
      return make('textarea', { id, rows: 4 });
    case 'words':
      return make('input', { id, type: 'text', ...limits });
    default:
      return make('input', { id, type: field.control, ...limits });
  }
}

function fillSelect(select, options) {
  const chosen = select.value;
  select.replaceChildren(
    ...options.map((option) => (Array.isArray(option) ? new Option(option[1], option[0]) : new Option(option, option))),
  );
  select.value = chosen;
}

/** What the control says, as the session has it; undefined where there is nothing to send. */
function readControl(field, input) {
  if (field.control === 'switch') return field.write ? field.write(input.checked) : input.checked;
  if (field.control === 'words') {
    const words = input.value.split(',').map((word) => word.trim()).filter(Boolean);
    return words.length > 0 ? words : field.empty;
  }
  if (field.empty !== undefined && input.value.trim() === '') return field.empty;
  if (field.write !== undefined) return field.write(input.value);
  if (field.control === 'number' || field.control === 'range') return Number.isNaN(input.valueAsNumber) ? undefined : input.valueAsNumber;
  return input.value;
}

function display(field, input, value) {
  const shown = field.read ? field.read(value) : value;
  if (field.control === 'switch') input.checked = Boolean(shown);
  else if (field.control === 'words') input.value = (shown ?? []).join(', ');
  else {
    const text = shown === undefined || shown === null ? '' : String(shown);
    if (field.control === 'select' && ![...input.options].some((option) => option.value === text)) input.add(new Option(text || 'server default', text));
    input.value = text;
  }
}
