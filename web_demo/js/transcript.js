// What both sides said, while they say it.

import { make } from './dom.js';

export class Transcript {
  /** `announce(text)` says a finished message to people who listen to the page. */
  constructor(list, announce) {
    this.list = list;
    this.announce = announce;
    this.reset();
  }

  reset() {
    this.items = new Map(); // id -> {entry, words, tag, side}
    this.list.replaceChildren(make('li', { class: 'empty', text: 'What you and the assistant say appears here.' }));
  }

  take(event) {
    const id = event.item_id;
    switch (event.type) {
      case 'input_audio_buffer.speech_started':
        this.forgetEmpty();
        this.write(this.item(id, 'you'), '', true);
        break;
      case 'input_audio_buffer.speech_stopped':
      case 'input_audio_buffer.committed':
        this.write(this.item(id, 'you'), this.items.get(id)?.text ?? '', true);
        break;
      case 'conversation.item.input_audio_transcription.delta':
        this.write(this.item(id, 'you'), this.item(id, 'you').text + event.delta, true);
        break;
      case 'conversation.item.input_audio_transcription.completed':
        this.finish(this.item(id, 'you'), event.transcript || '(nothing was understood)');
        break;
      case 'conversation.item.input_audio_transcription.failed':
        this.finish(this.item(id, 'you'), `(not understood: ${event.error.message})`);
        break;
      case 'conversation.item.added':
        this.added(event.item);
        break;
      case 'response.output_audio_transcript.delta':
      case 'response.output_text.delta':
        this.write(this.item(id, 'bot'), this.item(id, 'bot').text + event.delta, true);
        break;
      case 'response.output_audio_transcript.done':
        this.finish(this.item(id, 'bot'), event.transcript);
        break;
      case 'response.output_text.done':
        this.finish(this.item(id, 'bot'), event.text);
        break;
      case 'response.function_call_arguments.done':
        this.finish(this.item(id, 'tool'), `${event.name}(${event.arguments})`);
        break;
      case 'conversation.item.truncated':
        this.tag(id, `interrupted after ${(event.audio_end_ms / 1000).toFixed(1)} s`);
        break;
      case 'conversation.item.deleted':
        this.items.get(id)?.entry.remove();
        this.items.delete(id);
        break;
      case 'response.done':
        this.done(event.response);
    }
  }

  /** A line of the page itself, between the messages. */
  note(text) {
    this.append(make('li', { class: 'note', text }));
    this.announce(text);
  }

  added(item) {
    if (item.type === 'function_call_output') return this.finish(this.item(item.id, 'tool'), `→ ${item.output}`);
    if (item.type !== 'message') return undefined;
    const text = item.content.map((part) => part.text ?? part.transcript ?? (part.type === 'input_image' ? '(a picture)' : '')).join(' ');
    const side = item.role === 'user' ? 'you' : 'bot';
    const isTyped = item.content.some(({ type }) => type === 'input_text' || type === 'input_image');
    return isTyped ? this.finish(this.item(item.id, side), text) : this.write(this.item(item.id, side), text, true);
  }

  done(response) {
    for (const { id } of response.output) {
      this.items.get(id)?.entry.classList.remove('partial');
      if (response.status === 'cancelled' && !this.items.get(id)?.tag.textContent) this.tag(id, 'interrupted');
      if (response.status === 'failed') this.tag(id, 'failed');
    }
    if (response.status === 'failed') this.note(response.status_details?.error?.message ?? 'The answer failed.');
  }

  item(id, side) {
    if (!this.items.has(id)) {
      const words = make('span', { class: 'words' });
      const tag = make('span', { class: 'tag' });
      const who = { you: 'You', bot: 'Assistant', tool: 'Tool' }[side];
      const entry = make('li', { class: side }, make('span', { class: 'who', text: who }), words, tag);
      this.items.set(id, { entry, words, tag, side, who, text: '' });
      this.append(entry);
    }
    return this.items.get(id);
  }

  append(entry) {
    this.list.querySelector('.empty')?.remove();
    const follows = this.follows();
    this.list.append(entry);
    if (follows) this.list.scrollTop = this.list.scrollHeight;
  }

  write(item, text, partial) {
    const follows = this.follows();
    item.text = text;
    item.words.textContent = text;
    item.entry.classList.toggle('partial', partial);
    item.entry.classList.toggle('waiting', text === '');
    if (follows) this.list.scrollTop = this.list.scrollHeight;
  }

  finish(item, text) {
    this.write(item, text, false);
    this.announce(`${item.who}: ${text}`);
  }

  tag(id, text) {
    const item = this.items.get(id);
    if (item === undefined) return;
    const follows = this.follows();
    item.tag.textContent = text;
    item.entry.classList.remove('partial', 'waiting');
    if (follows) this.list.scrollTop = this.list.scrollHeight;
  }

  /** Speech that came to nothing leaves no empty bubble. */
  forgetEmpty() {
    for (const [id, item] of this.items) {
      if (item.side !== 'you' || item.text !== '' || !item.entry.classList.contains('waiting')) continue;
      if (item.entry.nextSibling === null) continue;
      item.entry.remove();
      this.items.delete(id);
    }
  }

  follows() {
    return this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 60;
  }
}
