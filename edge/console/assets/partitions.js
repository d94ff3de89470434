// Partitions is the panel of a topic's partitions: leader and watermarks as the service tells them every few seconds while the panel is open,
// and beside them the tail's own position.

import { $, el, setText } from './dom.js';
import { plural, visible } from './record.js';

const REFRESH = 3000; // ms
const RETRY = 2000;
const MAX_SHOWN = 200; // partitions; the rest is counted
const columns = ['partition', 'leader', 'start', 'position', 'end', 'watermark', 'behind'];

export class Partitions {
  // tail has topic and positions, a Map of offsets or [offset, epoch].
  constructor(tail) {
    Object.assign(this, { tail, known: [], rows: new Map(), open: false, topic: '', turn: 0 });
    $('partitions-toggle').onclick = () => this.toggle();
  }

  toggle() {
    this.open = !this.open;
    $('partitions').hidden = !this.open;
    $('partitions-toggle').setAttribute('aria-expanded', String(this.open));
    this.refresh();
  }

  // refresh asks again, now; answers of an earlier turn are dropped.
  async refresh() {
    clearTimeout(this.timer);
    const turn = ++this.turn;
    const topic = this.tail.topic;
    if (topic !== this.topic) Object.assign(this, { topic, known: [] });
    this.paint();
    if (!this.open || !topic) return;
    let next = REFRESH;
    let known;
    let note = '';
    try {
      const response = await fetch(`/api/topics?topic=${encodeURIComponent(topic)}`, { cache: 'no-store', signal: AbortSignal.timeout(8000) });
      if (!response.ok) throw new Error((await response.text()).trim() || String(response.status));
      known = (await response.json()).partitions ?? [];
    } catch (e) {
      note = `Leaders and watermarks are not to be had: ${visible(e.message)}`;
      next = RETRY;
    }
    if (turn !== this.turn) return;
    if (known) this.known = known;
    this.note = note;
    this.paint();
    this.timer = setTimeout(() => this.refresh(), next);
  }

  // paint changes what changed; it is cheap enough to be called twice a second.
  paint() {
    if (!this.open) return;
    const told = new Map(this.known.map((p) => [p.partition, p]));
    const numbers = [...new Set([...told.keys(), ...this.tail.positions.keys()])].sort((a, b) => a - b);
    const shown = numbers.slice(0, MAX_SHOWN);
    for (const [n, row] of this.rows) {
      if (shown.includes(n)) continue;
      row.remove();
      this.rows.delete(n);
    }
    shown.forEach((n, i) => this.paintRow(n, told.get(n), i));
    const more = numbers.length - shown.length;
    setText('partitions-note', this.note || (more > 0 ? `and ${plural(more, 'partition')} more` : numbers.length ? '' : 'Loading …'));
  }

  paintRow(n, p, i) {
    let row = this.rows.get(n);
    if (!row) {
      row = el('tr', {}, ...columns.map((className, c) => el(c ? 'td' : 'th', c ? { className } : { className, scope: 'row' })));
      this.rows.set(n, row);
      const body = $('partitions-body');
      body.insertBefore(row, body.children[i] ?? null);
    }
    const position = [this.tail.positions.get(n)].flat()[0];
    const values = [n, p ? (p.leader < 0 ? 'none' : p.leader) : '–', p?.start ?? '–', position ?? '–', p ? Math.max(p.end, position ?? 0) : '–', p ? Math.max(p.highWatermark, position ?? 0) : '–',
      p && position !== undefined ? Math.max(0, p.end - position) : '–'];
    values.forEach((v, c) => setText(row.children[c], typeof v === 'number' && c > 1 ? v.toLocaleString('en') : v));
    row.classList.toggle('trouble', p?.leader < 0);
  }
}
