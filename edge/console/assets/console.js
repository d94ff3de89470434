// The page: one connection, one subscription (the tail), a list of rows, a form to publish.

import { Link } from './link.js';
import { bytesText, clock, full, keyOf, keyText, plural, sameKey, size, span, visible } from './record.js';
import { Rows, el } from './rows.js';

const $ = (id) => document.getElementById(id);

// tail is the subscription. Its positions outlive the connection, so that the next one goes on exactly there.
const tail = { id: null, topic: '', topicId: undefined, keys: [], start: 'latest', positions: new Map(), live: false, error: null, lag: undefined };
const upstream = { away: false, partitions: [] };
const publishes = new Map(); // by id: when it was sent; each is answered once, or given up with its connection
const seconds = []; // of the last five seconds that had records: {second, count, delays}
let topics = [];
let serial = 0;

const rows = new Rows($('table'), $('records'), { onSelect: inspect, onChange: paintRows });

// subscribe goes on at the tail's positions; fresh: anew, at the chosen start.
function subscribe(fresh) {
  if (tail.id && fresh) link.send({ op: 'unsubscribe', id: tail.id });
  if (fresh) Object.assign(tail, { topicId: undefined, positions: new Map() });
  Object.assign(tail, { id: null, live: false, error: null, lag: undefined, resumed: tail.positions.size > 0 });
  upstream.partitions = [];
  clearTimeout(tail.retry);
  if (!tail.topic) return;
  tail.id = `s${++serial}`;
  const start = tail.resumed ? { positions: Object.fromEntries(tail.positions), missing: 'earliest' } : tail.start;
  const frame = { op: 'subscribe', id: tail.id, topic: tail.topic, as: 'text', start };
  if (tail.topicId) frame.topicId = tail.topicId;
  if (tail.keys.length) frame.keys = tail.keys;
  link.send(frame);
}

const onFrame = {
  welcome() {
    subscribe(false);
    loadTopics();
  },
  started(f) {
    tail.topicId = f.topicId;
    for (const p of f.partitions) if (!tail.positions.has(p.partition)) tail.positions.set(p.partition, p.start);
    if (tail.resumed) rows.note('Resumed exactly where the tail had stopped');
  },
  records(f) {
    upstream.away = false;
    upstream.partitions = upstream.partitions.filter((p) => !f.records.some((r) => r.partition === p));
    for (const r of f.records) {
      tail.positions.set(r.partition, r.epoch === undefined ? r.offset + 1 : [r.offset + 1, r.epoch]);
      rows.record(r, tail.live);
    }
    count(f.records);
    moved(f.positions);
  },
  caughtup: () => (tail.live = true),
  gap(f) {
    if (f.topicId && f.topicId !== tail.topicId) {
      tail.topicId = f.topicId;
      tail.positions.clear(); // they belong to the old log
    }
    tail.positions.set(f.partition, f.to);
    const what = f.to > f.from ? `${plural(f.to - f.from, 'offset')} (${f.from} to ${f.to - 1}) will not come` : `the log goes on at offset ${f.to} instead of ${f.from}`;
    rows.note(`Gap in partition ${f.partition}: ${what} · ${f.reason}`, 'warn');
  },
  topology: (f) => {
    for (const p of tail.positions.keys()) if (p >= f.partitions) tail.positions.delete(p);
    rows.note(`The topic has ${plural(f.partitions, 'partition')} now`);
  },
  heartbeat(f) {
    upstream.away = f.upstream === 'unavailable';
    upstream.partitions = f.unavailable?.[tail.id] ?? [];
    tail.lag = f.lag?.[tail.id] ?? tail.lag;
    moved(f.positions?.[tail.id]);
  },
  published: answer,
  error(f) {
    if (f.re === 'publish') return answer(f);
    if (f.id !== undefined && f.id !== tail.id) return;
    tail.error = `${f.message || f.code} (${f.reason})`;
    if (!f.final || f.id === undefined) return;
    Object.assign(tail, { id: null, live: false });
    if (f.retryable) tail.retry = setTimeout(() => subscribe(false), Math.max(1000, f.retryAfterMs ?? 0));
  },
};

const link = new Link(`${location.origin.replace(/^http/, 'ws')}/ws`, {
  frame(f) {
    // frames of the subscription before the last change may still be on their way
    if (f.id === undefined || f.id === tail.id || f.op === 'published' || f.op === 'error') onFrame[f.op]?.(f);
    if (f.op !== 'records') paint();
  },
  state(s, before) {
    if (before === 'open') {
      rows.note(`Connection lost: ${s.code}${s.reason ? ` ${visible(s.reason)}` : ''}`, 'warn');
      if (publishes.size) paintPublished('The connection was lost before the answer: the record may or may not be in the log.', 'bad');
      publishes.clear();
    }
    paint();
  },
});

function moved(positions = {}) {
  for (const [partition, position] of Object.entries(positions)) tail.positions.set(Number(partition), position);
}

function count(records) {
  const second = Math.floor(Date.now() / 1000);
  if (seconds.at(-1)?.second !== second) seconds.push({ second, count: 0, delays: [] });
  const last = seconds.at(-1);
  last.count += records.length;
  for (const r of records) if (tail.live && r.time !== undefined && last.delays.length < 200) last.delays.push(Date.now() - r.time);
}

function publish(e) {
  e.preventDefault();
  const { key, value, header, headerValue } = e.target.elements;
  const frame = { op: 'publish', id: `p${++serial}`, topic: tail.topic, text: value.value };
  if (key.value) frame.key = key.value;
  if (header.value) frame.headers = [[header.value, headerValue.value]];
  if (!link.send(frame)) return paintPublished('Not sent: there is no connection at the moment.', 'bad');
  publishes.set(frame.id, performance.now());
  paintPublished('Waiting for the broker …');
}

function answer(f) {
  if (!publishes.has(f.id)) return;
  const took = performance.now() - publishes.get(f.id);
  publishes.delete(f.id);
  if (f.op === 'published') {
    rows.mark(f.partition, f.offset);
    return paintPublished(`Acknowledged: partition ${f.partition}, offset ${f.offset}, in ${span(took)}`, 'good');
  }
  const outcome = f.outcome === 'unknown' ? 'It may be in the log all the same.' : 'It is not in the log.';
  paintPublished(`${visible(f.message || f.code)} (${f.reason}). ${outcome}`, 'bad');
}

// loadTopics runs again by itself; sooner after a failure.
async function loadTopics() {
  clearTimeout(loadTopics.timer);
  let next = 15_000;
  let note = '';
  try {
    const response = await fetch('/api/topics', { cache: 'no-store' });
    if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
    topics = (await response.json()).topics ?? [];
    if (!topics.length) note = 'No topics yet.';
  } catch (e) {
    note = `The topics can't be listed: ${visible(e.message)}`;
    next = 3000;
  }
  clearTimeout(loadTopics.timer);
  loadTopics.timer = setTimeout(loadTopics, next);
  paintTopics(note);
  if (!tail.topic && topics.length) show({ topic: topics[0].name });
}

// show changes what is followed, and the address with it.
function show(change) {
  const topic = change.topic !== undefined && change.topic !== tail.topic;
  Object.assign(tail, change);
  if (topic || change.start) rows.clear();
  else if (tail.keys.length) rows.keepOnly((r) => tail.keys.some((k) => sameKey(k, keyOf(r))));
  if (change.keys && !topic) rows.note(tail.keys.length ? `Only ${tail.keys.map(keyText).join(', ')} from here on` : 'All keys from here on');
  const hash = new URLSearchParams({ topic: tail.topic });
  for (const k of tail.keys) hash.append(...(typeof k === 'string' ? ['key', k] : ['keyBase64', k.base64]));
  if (tail.start !== 'latest') hash.set('start', tail.start);
  history.replaceState(null, '', `#${hash}`);
  subscribe(true);
  paintTopics();
  paintFilter();
  paint();
}

function fromAddress() {
  const hash = new URLSearchParams(location.hash.slice(1));
  return {
    topic: hash.get('topic') ?? '',
    keys: [...hash.getAll('key'), ...hash.getAll('keyBase64').map((base64) => ({ base64 }))],
    start: hash.get('start') === 'earliest' ? 'earliest' : 'latest',
  };
}

function setText(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function paintTopics(note) {
  if (note !== undefined) setText('topics-note', note);
  const old = new Map([...$('topics').children].map((li) => [li.dataset.name, li]));
  const items = topics.map(({ name, partitions }) => {
    const li = old.get(name) ?? el('li', {}, el('button', { type: 'button', onclick: () => show({ topic: name, keys: [] }) }, el('span', { textContent: visible(name) }), el('small')));
    li.dataset.name = name;
    li.querySelector('small').textContent = partitions;
    li.querySelector('small').title = plural(partitions, 'partition');
    li.firstChild.setAttribute('aria-current', String(name === tail.topic));
    return li;
  });
  if (items.length !== old.size || items.some((li) => !li.isConnected)) $('topics').replaceChildren(...items);
  setText('topic', visible(tail.topic));
  $('topic').title = visible(tail.topic);
  setText('publish-topic', visible(tail.topic) || '…');
}

function paintFilter() {
  $('start').value = tail.start;
  $('keys').replaceChildren(...tail.keys.map((k) => el('li', {}, el('span', { textContent: keyText(k) }), el('button', {
    type: 'button', textContent: '✕', ariaLabel: `Stop following ${keyText(k)}`,
    onclick: () => show({ keys: tail.keys.filter((x) => x !== k) }),
  }))));
  $('key-input').placeholder = tail.keys.length ? 'and …' : 'Follow a key …';
}

function paintRows(held) {
  $('newer').hidden = held === 0;
  setText('newer', rows.paused ? `${plural(held, 'newer row')} · resume` : `↑ ${plural(held, 'newer row')}`);
  $('empty').hidden = rows.shown.some((i) => i.record);
  setText('empty-text', !tail.topic ? 'Choose a topic.' : tail.keys.length ? 'No record with this key yet.' : 'Waiting for the next record.');
  $('from-beginning').hidden = !tail.topic || tail.start === 'earliest';
}

function paintPublished(text, tone = '') {
  $('published').className = tone;
  setText('published', text);
}

// trouble is what the banner says: [text, button or nothing].
function trouble() {
  const s = link.state;
  const close = s.code && `${s.code}${s.reason ? ` ${visible(s.reason)}` : ''}`;
  if (s.phase === 'ended') return [`The connection was closed (${close}), and asking again by itself would not help.`, 'Connect again'];
  if (s.phase === 'waiting' && !s.brief) return [`Connection lost (${close}). Next try in ${Math.ceil(Math.max(0, s.until - performance.now()) / 1000)} s.`, 'Try now'];
  if (upstream.away) return ['The edge cannot reach the service at the moment. The tail will go on by itself, exactly where it stopped.'];
  if (tail.error) return [visible(tail.error), 'Try again'];
  if (upstream.partitions.length) return [`Not readable at the moment: partition ${upstream.partitions.join(', ')}. The tail waits for it.`];
  return [];
}

const label = {
  connecting: ['Connecting', 'wait'],
  waiting: ['Reconnecting', 'wait'],
  ended: ['Disconnected', 'bad'],
  open: ['Connected', 'good'],
};

function paint() {
  const s = link.state;
  const open = s.phase === 'open';
  const [text, tone] = open && upstream.away ? ['Upstream unavailable', 'wait'] : open && tail.live ? ['Live', 'good'] : label[s.phase];
  $('state').dataset.state = s.phase;
  $('state').dataset.tone = tone;
  setText('state-text', text);
  const [message, button] = trouble();
  $('banner').hidden = !message;
  setText('banner-text', message ?? '');
  $('retry').hidden = !button;
  setText('retry', button ?? '');
}

function paintFacts() {
  const now = Math.floor(Date.now() / 1000);
  while (seconds.length && seconds[0].second < now - 5) seconds.shift();
  const whole = seconds.filter((s) => s.second < now);
  const delays = seconds.flatMap((s) => s.delays).sort((a, b) => a - b);
  const rate = whole.reduce((sum, s) => sum + s.count, 0) / 5;
  setText('fact-rate', `${rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString('en')} records/s`);
  setText('fact-delay', delays.length ? `median delay ${span(delays[delays.length >> 1])}` : '');
  setText('fact-lag', tail.lag ? `${plural(tail.lag, 'record')} behind` : '');
  setText('fact-heard', link.state.phase === 'open' ? `heard ${Math.floor((performance.now() - link.heardAt) / 1000)} s ago` : '');
  setText('fact-close', link.lastClose ? `last close ${link.lastClose.code}${link.lastClose.reason ? ` ${visible(link.lastClose.reason)}` : ''}` : '');
  setText('fact-session', link.session ? `session ${link.session}` : '');
}

function inspect(item) {
  const opened = $('inspector').hidden && item;
  if (!item && $('inspector').contains(document.activeElement)) $('table').focus();
  $('inspector').hidden = !item;
  document.body.classList.toggle('inspecting', !!item);
  if (!item) return;
  const { record: r, payload: p } = item;
  setText('inspect-title', `Partition ${r.partition}, offset ${r.offset}`);
  const facts = [['Key', keyText(keyOf(r))], ['Time', r.time === undefined ? 'none' : `${new Date(r.time).toISOString()}${r.timeType === 'append' ? ' (append time)' : ''}`],
    ['Arrived', r.time === undefined ? '' : `${span(item.delay)} later${item.live ? '' : ', read from the log'}`], ['Leader epoch', r.epoch ?? ''],
    ...(r.headers ?? []).map(([name, value]) => [`Header ${bytesText(name)}`, bytesText(value)])];
  $('inspect-facts').replaceChildren(...facts.filter(([, v]) => v !== '').flatMap(([k, v]) => [el('dt', { textContent: k }), el('dd', { textContent: v })]));
  setText('inspect-kind', p.kind === 'tombstone' ? '' : `${p.kind}, ${size(p.size)}${p.cut ? `, the first ${size(p.text.length)} of it` : ''}`);
  setText('inspect-value', p.kind === 'tombstone' ? 'tombstone: the record has no value' : full(p));
  $('inspect-copy').hidden = p.kind === 'tombstone';
  $('inspect-follow').hidden = keyOf(r) === undefined;
  if (opened && matchMedia('(max-width: 760px)').matches) $('inspect-title').focus();
}

$('publish-form').onsubmit = publish;
$('publish-toggle').onclick = (e) => e.currentTarget.setAttribute('aria-expanded', String($('publish').classList.toggle('open')));
$('filter').onsubmit = (e) => {
  e.preventDefault();
  const key = $('key-input').value;
  $('key-input').value = '';
  if (key && !tail.keys.includes(key)) show({ keys: [...tail.keys, key] });
};
$('start').onchange = (e) => show({ start: e.target.value });
$('from-beginning').onclick = () => show({ start: 'earliest' });
$('pause').onclick = () => pause(!rows.paused);
$('newer').onclick = () => {
  $('table').scrollTop = 0;
  pause(false);
};
$('retry').onclick = () => (link.state.phase === 'open' ? subscribe(false) : link.open());
$('inspect-close').onclick = () => rows.select(null);
$('inspect-copy').onclick = () => navigator.clipboard?.writeText(rows.selected.payload.text);
$('inspect-follow').onclick = () => show({ keys: [keyOf(rows.selected.record)] });
addEventListener('keydown', (e) => e.key === 'Escape' && rows.selected && rows.select(null));
addEventListener('hashchange', () => show(fromAddress()));
addEventListener('online', () => link.state.phase === 'waiting' && link.open());

function pause(on) {
  rows.paused = on;
  $('pause').setAttribute('aria-pressed', String(on));
  setText('pause', on ? 'Resume' : 'Pause');
  rows.schedule();
}

setInterval(() => {
  paint();
  paintFacts();
}, 500);

Object.assign(tail, fromAddress());
paintTopics();
paintFilter();
paintFacts();
rows.schedule();
link.open();
loadTopics();
