// Groups is the panel of the consumer groups that read the tail's topic: who works, what is behind and what is in flight, as the service tells them
// every two seconds while the panel is open and the page is seen.

import { $, el, setText } from './dom.js';
import { Series, plot } from './plot.js';
import { plural, visible } from './record.js';

const REFRESH = 2000; // ms
const PATIENCE = 3 * REFRESH; // for how long an answer stands in a plot
const SPAN = 120; // seconds of a plot
const SMALL = 8; // partitions of a group that is unfolded at first

export class Groups {
  // tail has topic.
  constructor(tail) {
    Object.assign(this, { tail, open: false, topic: '', turn: 0, after: '', next: '', known: [], shown: new Map(), note: '', loaded: false });
    $('groups-toggle').onclick = () => this.toggle();
    $('groups-next').onclick = () => this.page(this.next);
    $('groups-first').onclick = () => this.page('');
    document.addEventListener('visibilitychange', () => this.refresh());
  }

  toggle() {
    this.open = !this.open;
    $('groups').hidden = !this.open;
    $('groups-toggle').setAttribute('aria-expanded', String(this.open));
    this.refresh();
  }

  page(after) {
    Object.assign(this, { after, loaded: false });
    this.refresh();
  }

  // refresh asks again, now; answers of an earlier turn are dropped.
  async refresh() {
    clearTimeout(this.timer);
    const turn = ++this.turn;
    const topic = this.tail.topic;
    if (topic !== this.topic) {
      Object.assign(this, { topic, after: '', next: '', known: [], note: '', loaded: false });
      this.fold();
    }
    this.paint();
    if (!this.open || !topic || document.hidden) return;
    const began = performance.now();
    let answer;
    let note = '';
    try {
      const query = new URLSearchParams({ topic, ...(this.after && { after: this.after }) });
      const response = await fetch(`/api/groups?${query}`, { cache: 'no-store', signal: AbortSignal.timeout(8000) });
      if (!response.ok) throw new Error((await response.text()).trim() || String(response.status));
      answer = await response.json();
    } catch (e) {
      note = `Groups are not to be had: ${visible(e.message)}`;
    }
    if (turn !== this.turn) return;
    this.note = note;
    if (answer) this.take(answer);
    this.paint();
    this.timer = setTimeout(() => this.refresh(), Math.max(REFRESH / 2, REFRESH - (performance.now() - began)));
  }

  take(answer) {
    Object.assign(this, { known: answer.groups ?? [], next: answer.next ?? '', loaded: true });
    if (answer.failed) this.note = `${plural(answer.failed, 'group')} can't be described at the moment.`;
    const now = Date.now();
    const known = new Set(this.known.map((g) => g.name));
    for (const [name, group] of this.shown) {
      if (known.has(name)) continue;
      group.body.remove();
      this.shown.delete(name);
    }
    this.known.forEach((g, i) => {
      let group = this.shown.get(g.name);
      if (!group) {
        group = new Group(g);
        this.shown.set(g.name, group);
      }
      const at = $('groups-table').tBodies[i];
      if (at !== group.body) $('groups-table').insertBefore(group.body, at ?? null);
      group.take(g, now);
    });
  }

  // fold forgets all groups.
  fold() {
    for (const group of this.shown.values()) group.body.remove();
    this.shown.clear();
  }

  // paint moves the plots; it is cheap enough to be called twice a second.
  paint() {
    if (!this.open) return;
    const now = Date.now();
    for (const group of this.shown.values()) group.draw(now);
    const none = this.after ? 'No further group reads this topic.' : 'No consumer group reads this topic.';
    setText('groups-note', this.note || (!this.topic ? 'Choose a topic.' : !this.loaded ? 'Loading …' : this.known.length ? '' : none));
    $('groups-next').hidden = !this.next;
    $('groups-first').hidden = !this.after;
  }
}

const number = (n) => (n < 0 ? '–' : n.toLocaleString('en'));

// Group is the rows of one group: its own, its members, and its partitions.
class Group {
  constructor({ name, partitionCount }) {
    this.name = name;
    this.body = el('tbody');
    this.fold = el('button', { type: 'button', className: 'fold' }, el('bdi', { textContent: visible(name), title: visible(name) }));
    this.state = el('small');
    this.row = new Row(el('th', { scope: 'rowgroup', colSpan: 3 }, this.fold, this.state), [], `Lag of ${visible(name)}`);
    this.members = el('ul');
    this.membersRow = el('tr', { className: 'members' }, el('td', { colSpan: 6 }, this.members));
    this.more = el('td', { colSpan: 6, className: 'quiet' });
    this.moreRow = el('tr', {}, this.more);
    this.partitions = new Map();
    this.row.tr.className = 'group';
    this.body.append(this.row.tr, this.membersRow, this.moreRow);
    this.fold.onclick = () => this.unfold(!this.unfolded);
    this.unfold(partitionCount <= SMALL);
  }

  unfold(on) {
    this.unfolded = on;
    this.fold.setAttribute('aria-expanded', String(on));
    for (const tr of this.body.rows) if (tr !== this.row.tr) tr.hidden = !on;
    this.moreRow.hidden = !on || !this.more.textContent;
    this.membersRow.hidden = !on || !this.members.childElementCount;
  }

  take(g, now) {
    const workers = g.members.reduce((sum, m) => sum + m.workers, 0);
    const facts = [g.state, g.memberCount ? plural(g.memberCount, 'member') : 'no members', ...(workers ? [plural(workers, 'worker')] : [])];
    setText(this.state, facts.join(' · '));
    this.row.take([g.inFlight, g.lag], now);
    const lines = g.members.map(describe);
    if (g.memberCount > lines.length) lines.push(`and ${plural(g.memberCount - lines.length, 'member')} more`);
    while (this.members.childElementCount > lines.length) this.members.lastChild.remove();
    lines.forEach((line, i) => setText(this.members.children[i] ?? this.members.appendChild(el('li')), line));
    const told = new Set(g.partitions.map((p) => p.partition));
    for (const [n, row] of this.partitions) {
      if (told.has(n)) continue;
      row.tr.remove();
      this.partitions.delete(n);
    }
    g.partitions.forEach((p, i) => {
      let row = this.partitions.get(p.partition);
      if (!row) {
        row = new Row(el('th', { scope: 'row', textContent: p.partition }), ['committed', 'end'], `Lag of ${visible(g.name)} in partition ${p.partition}`);
        this.partitions.set(p.partition, row);
      }
      const at = this.body.rows[i + 2]; // behind the group's own row and its members
      if (at !== row.tr) this.body.insertBefore(row.tr, at);
      row.take([p.committed, p.end, p.inFlight, p.lag], now);
    });
    const more = g.partitionCount - g.partitions.length;
    setText(this.more, more > 0 ? `and ${plural(more, 'partition')} more, with less lag` : '');
    this.unfold(this.unfolded);
  }

  draw(now) {
    this.row.draw(now);
    if (this.unfolded) for (const row of this.partitions.values()) row.draw(now);
  }
}

// Row has numbers, the last two of them in flight and lag, and a plot of the lag.
class Row {
  constructor(head, columns, name) {
    this.cells = [...columns, 'in-flight', 'lag'].map((className) => el('td', { className }));
    this.plot = plot(SPAN, 20);
    this.series = new Series(SPAN);
    this.name = name;
    this.tr = el('tr', {}, head, ...this.cells, el('td', { className: 'history' }, this.plot));
  }

  take(values, now) {
    values.forEach((v, i) => setText(this.cells[i], number(v)));
    const lag = values.at(-1);
    this.series.add(now, lag < 0 ? undefined : lag);
  }

  draw(now) {
    this.series.draw(this.plot, now, PATIENCE, this.name);
  }
}

// describe tells of a member in one line; partitions that follow each other are a range.
function describe(m) {
  const ranges = [];
  for (const p of m.partitions) {
    const last = ranges.at(-1);
    if (last && last[1] === p - 1) last[1] = p;
    else ranges.push([p, p]);
  }
  const named = ranges.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(', ');
  const which = !m.partitionCount ? 'no partition of this topic' : `partition${m.partitionCount > 1 ? 's' : ''} ${named}${m.partitionCount > m.partitions.length ? ' …' : ''}`;
  return [visible(m.process), ...(m.workers ? [plural(m.workers, 'worker')] : []), which].join(' · ');
}
