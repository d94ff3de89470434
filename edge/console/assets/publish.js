// Publish is the form that sends records, and what became of them.

import { $, el, setText } from './dom.js';
import { span, visible } from './record.js';

const MAX_HEADERS = 20;
const MAX_WAITING = 64; // publishes without an answer

export class Publish {
  // topic() names the topic, link sends, onAcknowledged(partition, offset).
  constructor({ topic, link, onAcknowledged }) {
    Object.assign(this, { topic, link, onAcknowledged, waiting: new Map(), serial: 0 }); // waiting: by id, when it was sent
    this.form = $('publish-form');
    this.form.onsubmit = (e) => {
      e.preventDefault();
      this.send();
    };
    this.form.onkeydown = (e) => {
      if (e.key !== 'Enter' || !(e.ctrlKey || e.metaKey)) return;
      e.preventDefault(); // or a field and a button submit the form, too
      if (!e.repeat) this.send();
    };
    for (const radio of this.form.elements.kind) radio.onchange = () => this.paintKind();
    $('header-add').onclick = () => this.addHeader();
    $('publish-toggle').onclick = () => this.expand(!$('publish').classList.contains('open'));
    this.addHeader(false);
    this.paintKind();
  }

  // expand matters on a small screen, where the form is folded.
  expand(open) {
    $('publish').classList.toggle('open', open);
    $('publish-toggle').setAttribute('aria-expanded', String(open));
  }

  focus() {
    this.expand(true);
    this.form.elements.key.focus();
  }

  addHeader(focus = true) {
    const input = (name, what) => el('input', { name, placeholder: what, ariaLabel: `Header ${what}`, autocomplete: 'off', autocapitalize: 'off', spellcheck: false });
    const remove = el('button', { type: 'button', textContent: '✕', ariaLabel: 'Remove this header', className: 'remove' });
    const line = el('li', {}, input('header', 'name'), input('headerValue', 'value'), remove);
    remove.onclick = () => {
      line.remove();
      this.paintHeaders();
      $('header-add').focus();
    };
    $('headers').append(line);
    if (focus) line.firstChild.focus();
    this.paintHeaders();
  }

  paintHeaders() {
    $('header-add').disabled = $('headers').children.length >= MAX_HEADERS;
  }

  paintKind() {
    const tombstone = this.form.elements.kind.value === 'tombstone';
    $('publish-value').hidden = tombstone;
    $('publish-tombstone').hidden = !tombstone;
  }

  // send publishes JSON as the bytes that were typed: numbers keep their digits, and white space stays.
  send() {
    const { key, value, kind } = this.form.elements;
    const frame = { op: 'publish', id: `p${++this.serial}`, topic: this.topic() };
    if (kind.value === 'tombstone') frame.tombstone = true;
    else frame.text = value.value;
    if (kind.value === 'json') {
      try {
        JSON.parse(value.value);
      } catch (e) {
        return this.say(`Not sent: this is not JSON. ${visible(e.message)}`, 'bad');
      }
    }
    if (key.value) frame.key = key.value;
    const headers = [...$('headers').children].map((li) => [li.children[0].value, li.children[1].value]).filter(([name]) => name);
    if (headers.length) frame.headers = headers;
    if (!frame.topic) return this.say('Not sent: choose a topic first.', 'bad');
    if (this.waiting.size >= MAX_WAITING) return this.say('Not sent: too many are waiting for their answer.', 'bad');
    if (!this.link.send(frame)) return this.say('Not sent: there is no connection at the moment.', 'bad');
    this.waiting.set(frame.id, performance.now());
    this.say('Waiting for the broker …');
  }

  // answer takes a published, or an error of a publish.
  answer(f) {
    if (!this.waiting.has(f.id)) return;
    const took = performance.now() - this.waiting.get(f.id);
    this.waiting.delete(f.id);
    if (f.op === 'published') {
      this.onAcknowledged(f.partition, f.offset);
      return this.say(`Acknowledged: partition ${f.partition}, offset ${f.offset}, in ${span(took)}`, 'good');
    }
    const why = `${visible(f.message || f.code)} (${f.reason})`;
    if (f.outcome === 'unknown') this.say(`Unknown: ${why}. The record may or may not be in the log.`, 'wait');
    else this.say(`Refused: ${why}. The record is not in the log.`, 'bad');
  }

  // lost: nobody will answer what was sent through a connection that is gone.
  lost() {
    if (this.waiting.size) this.say('Unknown: the connection was lost before the answer. The record may or may not be in the log.', 'wait');
    this.waiting.clear();
  }

  say(text, tone = '') {
    $('published').className = tone;
    setText('published', text);
  }
}
