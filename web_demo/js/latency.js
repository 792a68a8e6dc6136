// How long answers took, part by part.

import { make } from './dom.js';
import { PARTS, parts, total } from './turns.js';

const SHOWN = 20;

export class LatencyView {
  constructor(panel, turns) {
    this.turns = turns;
    this.headline = make('p', { class: 'headline' }, make('strong', { text: '–' }), make('span', { text: 'until the answer is heard' }));
    this.bar = make('div', { class: 'bar', role: 'img', 'aria-label': 'No answer yet' });
    this.median = make('p', { class: 'hint' });
    this.rows = make('tbody');
    panel.append(this.headline, this.bar, legend(), this.median, this.table());
    turns.addEventListener('turn', () => this.show());
  }

  table() {
    const headings = ['Turn', ...PARTS.map(({ label }) => label), 'Total'];
    return make(
      'div',
      { class: 'scroll' },
      make(
        'table',
        {},
        make('caption', { class: 'hidden', text: 'Milliseconds of each part, newest turn first' }),
        make('thead', {}, make('tr', {}, ...headings.map((text) => make('th', { scope: 'col', text })))),
        this.rows,
      ),
    );
  }

  show() {
    const answered = this.turns.all.filter((turn) => total(turn) !== undefined);
    const last = answered.at(-1);
    this.headline.firstChild.textContent = last === undefined ? '–' : `${Math.round(total(last))} ms`;
    this.drawBar(last);
    const totals = answered.map(total).sort((a, b) => a - b);
    this.median.textContent =
      totals.length > 1 ? `Median of ${totals.length} answers: ${Math.round(totals[totals.length >> 1])} ms` : '';
    const recent = this.turns.all.filter(({ response }) => response !== undefined).slice(-SHOWN).reverse();
    this.rows.replaceChildren(...recent.map(row));
  }

  drawBar(turn) {
    const known = turn === undefined ? [] : parts(turn);
    this.bar.setAttribute('aria-label', known.map(({ label, ms }) => `${label} ${Math.round(ms)} ms`).join(', ') || 'No answer yet');
    this.bar.replaceChildren(
      ...known.map(({ name, ms }) => {
        const piece = make('span', { class: `part ${name}` });
        piece.style.flexGrow = Math.max(ms, 1);
        return piece;
      }),
    );
  }
}

function legend() {
  return make(
    'dl',
    { class: 'legend' },
    ...PARTS.map(({ name, label, about }) =>
      make('div', {}, make('dt', {}, make('span', { class: `dot ${name}` }), label), make('dd', { text: about })),
    ),
  );
}

function row(turn) {
  const known = new Map(parts(turn).map(({ name, ms }) => [name, Math.round(ms)]));
  const cells = PARTS.map(({ name }) => make('td', { text: known.get(name) ?? '–' }));
  const answer = total(turn);
  const label = `${turn.number}${turn.typed ? ' typed' : ''}${turn.cut === undefined ? '' : ' cut'}`;
  return make(
    'tr',
    {},
    make('th', { scope: 'row', text: label }),
    ...cells,
    make('td', { class: 'total', text: answer === undefined ? '–' : Math.round(answer) }),
  );
}
