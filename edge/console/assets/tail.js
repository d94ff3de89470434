// Tail is the one subscription of the page. Its positions outlive the connection, so that the next one goes on exactly there.

import { plural } from './record.js';

export class Tail {
  // send(frame), records(records, live), note(text, tone).
  constructor(on) {
    Object.assign(this, { on, id: null, serial: 0, topic: '', topicId: undefined, keys: [], start: 'latest', positions: new Map() });
    Object.assign(this, { live: false, error: null, over: false, unknown: false, lag: undefined, away: false, unavailable: [], beatAt: null });
  }

  // subscribe goes on at the tail's positions; fresh: anew, at the chosen start; again: since that did not work, and the trouble lasts until it does.
  subscribe(fresh, again) {
    if (this.id && fresh) this.on.send({ op: 'unsubscribe', id: this.id });
    if (fresh) Object.assign(this, { topicId: undefined, positions: new Map() });
    if (!again) Object.assign(this, { error: null, over: false, unknown: false });
    Object.assign(this, { id: null, live: false, lag: undefined, unavailable: [], resumed: this.positions.size > 0 });
    clearTimeout(this.retry);
    if (!this.topic) return;
    this.id = `s${++this.serial}`;
    const start = this.resumed ? { positions: Object.fromEntries(this.positions), missing: 'earliest' } : this.start;
    const frame = { op: 'subscribe', id: this.id, topic: this.topic, as: 'text', start };
    if (this.topicId) frame.topicId = this.topicId;
    if (this.keys.length) frame.keys = this.keys;
    this.on.send(frame);
  }

  // frame takes a message of the edge. Those of the subscription before the last change may still be on their way: they are dropped.
  frame(f) {
    if (f.id !== undefined && f.id !== this.id) return;
    if (Object.hasOwn(handlers, f.op)) handlers[f.op](this, f);
  }

  // stalled is true where nothing of the topic can be read at the moment.
  get stalled() {
    return this.unavailable.length > 0 && this.unavailable.length >= this.positions.size;
  }

  moved(positions = {}) {
    for (const [partition, position] of Object.entries(positions)) this.positions.set(Number(partition), position);
  }
}

const handlers = {
  started(t, f) {
    Object.assign(t, { error: null, over: false, unknown: false });
    t.topicId = f.topicId;
    for (const p of f.partitions) if (!t.positions.has(p.partition)) t.positions.set(p.partition, p.start);
    if (t.resumed) t.on.note('Resumed exactly where the tail had stopped');
  },
  records(t, f) {
    t.away = false;
    if (t.unavailable.length) t.unavailable = t.unavailable.filter((p) => !f.records.some((r) => r.partition === p));
    for (const r of f.records) t.positions.set(r.partition, r.epoch === undefined ? r.offset + 1 : [r.offset + 1, r.epoch]);
    t.on.records(f.records, t.live);
    t.moved(f.positions);
  },
  caughtup(t) {
    t.live = true;
  },
  gap(t, f) {
    if (f.topicId && f.topicId !== t.topicId) {
      t.topicId = f.topicId;
      t.positions.clear(); // they belong to the old log
    }
    t.positions.set(f.partition, f.to);
    const what = f.to > f.from ? `${plural(f.to - f.from, 'offset')} (${f.from} to ${f.to - 1}) will not come` : `the log goes on at offset ${f.to} instead of ${f.from}`;
    t.on.note(`Gap in partition ${f.partition}: ${what} · ${f.reason}`, 'warn');
  },
  topology(t, f) {
    for (const p of t.positions.keys()) if (p >= f.partitions) t.positions.delete(p);
    t.on.note(`The topic has ${plural(f.partitions, 'partition')} now`);
  },
  heartbeat(t, f) {
    t.beatAt = performance.now();
    t.away = f.upstream === 'unavailable';
    t.unavailable = f.unavailable?.[t.id] ?? [];
    t.lag = f.lag?.[t.id] ?? t.lag;
    t.moved(f.positions?.[t.id]);
  },
  error(t, f) {
    t.error = `${f.message || f.code} (${f.reason})`;
    if (!f.final || f.id === undefined) return;
    Object.assign(t, { id: null, live: false, over: !f.retryable, unknown: f.reason === 'UNKNOWN_TOPIC' });
    if (f.retryable) t.retry = setTimeout(() => t.subscribe(false, true), Math.max(1000, f.retryAfterMs ?? 0));
  },
};
