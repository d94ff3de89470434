// Rows is the list of the newest records and of notes between them. It works once per animation frame, keeps a bounded number of rows, and
// holds still while the reader has scrolled away or paused it.

import { el } from './dom.js';
import { bytesText, clock, keyOf, keyText, payload, plural, span, summary, weight } from './record.js';

const MAX_ROWS = 500; // newest first
const MAX_TEXT = 16 << 20; // characters kept of all values, keys and headers together
const HEADERS = 20; // of a record, in its row
const LINE = 300; // characters of a value in its row
const MAX_MARKS = 64; // own publishes to highlight

const at = (partition, offset) => `${partition}:${offset}`;

const lengthOf = (item) => item.length ?? 0;
const sumOf = (items) => items.reduce((sum, item) => sum + lengthOf(item), 0);

export class Rows {
  // table is the grid that scrolls and has the focus, body its row group. onSelect(item or null), onChange(number of items that wait).
  constructor(table, body, { onSelect, onChange }) {
    Object.assign(this, { table, body, onSelect, onChange, paused: false, serial: 0, marks: new Set() });
    Object.assign(this, { pending: [], pendingText: 0, shown: [], text: 0, selected: null, cut: 0, held: false }); // cut: how many no longer wait
    table.addEventListener('scroll', () => this.schedule(), { passive: true });
    table.addEventListener('keydown', (e) => this.key(e));
    body.addEventListener('click', (e) => {
      const row = e.target.closest('.row');
      if (row && !getSelection().toString()) this.select(this.shown.find((i) => i.row === row));
    });
  }

  clear() {
    if (this.selected) this.select(null);
    Object.assign(this, { pending: [], pendingText: 0, shown: [], text: 0, cut: 0, held: false });
    this.body.replaceChildren();
    this.onChange(0);
  }

  // keepOnly drops the records that do not pass.
  keepOnly(pass) {
    if (this.selected && !pass(this.selected.record)) this.select(null);
    this.pending = this.pending.filter((i) => i.note || pass(i.record));
    this.pendingText = sumOf(this.pending);
    this.cut = 0; // how many of them would pass is not known
    for (const item of this.shown) if (!item.note && !pass(item.record)) item.row.remove();
    this.shown = this.shown.filter((i) => i.row.isConnected);
    this.text = sumOf(this.shown);
    this.onChange(0);
  }

  record(record, live) {
    const { text, base64, value, ...rest } = record; // the payload has what is kept of them
    const kept = payload(record);
    this.push({ record: rest, payload: kept, length: kept.text.length + weight(rest), live, delay: Date.now() - record.time });
  }

  note(note, tone = '') {
    this.push({ note, tone, time: Date.now() });
  }

  // mark highlights a record, whether it has come or not.
  mark(partition, offset) {
    this.marks.add(at(partition, offset));
    if (this.marks.size > MAX_MARKS) this.marks.delete(this.marks.values().next().value);
    this.shown.find((i) => i.record?.partition === partition && i.record.offset === offset)?.row.classList.add('mine');
  }

  push(item) {
    this.pending.push(item);
    this.pendingText += lengthOf(item);
    // well above the bounds, so that the cut is rare: a hidden tab gets no frames, and a flood brings more than a frame can show
    if (this.pending.length > 2 * MAX_ROWS || this.pendingText > 1.25 * MAX_TEXT) this.cutPending();
    this.schedule();
  }

  // cutPending keeps the newest of what waits, within the bounds of what is shown.
  cutPending() {
    let from = this.pending.length;
    for (let text = 0; from > 0 && this.pending.length - from < MAX_ROWS; from--) {
      text += lengthOf(this.pending[from - 1]);
      if (text > MAX_TEXT) break;
    }
    this.cut += from;
    this.pending.splice(0, from);
    this.pendingText = sumOf(this.pending);
  }

  schedule() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.frame = 0;
    const held = this.paused || this.table.scrollTop > 60;
    this.held ||= held && this.pending.length > 0;
    if (held || !this.pending.length) return this.onChange(this.cut + this.pending.length);
    this.cutPending();
    if (this.held && this.cut) {
      if (this.pending.length === MAX_ROWS) this.cut += this.pending.splice(0, 1).length; // the note needs a row
      this.pending.unshift({ note: `${plural(this.cut, 'row')} passed unseen while this stood still`, tone: '', time: Date.now() });
    }
    const items = this.pending.reverse();
    Object.assign(this, { pending: [], pendingText: 0, cut: 0, held: false });
    const fragment = document.createDocumentFragment();
    for (const item of items) {
      item.row = item.note ? this.noteRow(item) : this.recordRow(item, items.length);
      this.text += lengthOf(item);
      fragment.append(item.row);
    }
    this.body.prepend(fragment);
    this.shown.unshift(...items);
    while (this.shown.length > MAX_ROWS || (this.text > MAX_TEXT && this.shown.length > 1)) {
      const item = this.shown.pop();
      this.text -= lengthOf(item);
      if (item === this.selected) this.table.removeAttribute('aria-activedescendant'); // it stays open
      item.row.remove();
    }
    this.onChange(0);
  }

  recordRow({ record: r, payload: p, live, delay }, burst) {
    const headers = (r.headers ?? []).slice(0, HEADERS).map(([name, value]) => `${bytesText(name)}: ${bytesText(value)}`);
    const key = keyOf(r);
    const row = el('div', { role: 'row', className: `row p${r.partition % 6}`, id: `r${++this.serial}` },
      cell('time', r.time === undefined ? '–' : clock(r.time)),
      cell(`delay${live ? '' : ' old'}`, r.time === undefined ? '–' : span(delay), live ? '' : 'Read from the log: its age when it arrived here'),
      cell('partition', r.partition),
      cell('offset', r.offset),
      cell(`key${key ? '' : ' none'}`, keyText(key).slice(0, 120)),
      cell(`value ${p.text === '' ? 'none' : p.kind}`, summary(p, LINE)),
      cell('headers', headers.join('  ').slice(0, 200)));
    if (burst < 25 && live) row.classList.add('new');
    if (this.marks.has(at(r.partition, r.offset))) row.classList.add('mine');
    row.dataset.at = at(r.partition, r.offset);
    return row;
  }

  noteRow({ note, tone, time }) {
    return el('div', { role: 'row', className: `note ${tone}` }, el('span', { role: 'gridcell', textContent: `${clock(time)}  ${note}` }));
  }

  select(item) {
    this.selected?.row.removeAttribute('aria-selected');
    this.selected = item ?? null;
    if (item) {
      item.row.setAttribute('aria-selected', 'true');
      this.table.setAttribute('aria-activedescendant', item.row.id);
    } else {
      this.table.removeAttribute('aria-activedescendant');
    }
    this.onSelect(this.selected);
  }

  key(e) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (!step) return;
    e.preventDefault();
    const records = this.shown.filter((i) => !i.note);
    const now = records.indexOf(this.selected);
    const next = records[now < 0 ? 0 : Math.max(0, Math.min(records.length - 1, now + step))];
    if (!next) return;
    this.select(next);
    next.row.scrollIntoView({ block: 'nearest' });
  }
}

function cell(className, text, title = '') {
  return el('span', { role: 'gridcell', className, textContent: text, title });
}
