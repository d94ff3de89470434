// The page: one connection, one subscription (the tail), a list of rows, a form to publish. Here they are wired together and painted; each has its
// own file.

import { meaning } from './closes.js';
import { $, el, setText } from './dom.js';
import { Groups } from './groups.js';
import { Inspector } from './inspect.js';
import { Link } from './link.js';
import { Partitions } from './partitions.js';
import { Publish } from './publish.js';
import { Rate } from './rate.js';
import { keyOf, keyText, plural, sameKey, visible } from './record.js';
import { Rows } from './rows.js';
import * as starts from './starts.js';
import { Tail } from './tail.js';

const RECENT = 60_000; // ms for which a connection's end is still told once there is another

let topics = [];

const inspector = new Inspector({
  onClose: () => rows.select(null),
  onFollow: (key) => show({ keys: [key] }),
});
const rows = new Rows($('table'), $('records'), { onSelect: (item) => inspector.show(item), onChange: paintRows });
const rate = new Rate($('plot'));
const tail = new Tail({
  send: (frame) => link.send(frame),
  note: (text, tone) => rows.note(text, tone),
  records(records, live) {
    rate.add(records, live);
    for (const r of records) rows.record(r, live);
  },
});
const link = new Link(`${location.origin.replace(/^http/, 'ws')}/ws`, {
  frame(f) {
    if (f.op === 'published' || (f.op === 'error' && f.re === 'publish')) publish.answer(f);
    else tail.frame(f);
    if (f.op === 'welcome') {
      tail.subscribe(false);
      loadTopics();
    }
    if (f.op !== 'records') paint();
  },
  state(s, before) {
    if (before === 'open') {
      rows.note(`Connection lost: ${closeText(s)}`, 'warn');
      publish.lost();
      tail.beatAt = null; // of that connection
    }
    paint();
  },
});
const publish = new Publish({ topic: () => tail.topic, link, onAcknowledged: (partition, offset) => rows.mark(partition, offset) });
const partitions = new Partitions(tail);
const groups = new Groups(tail);

const closeText = (s) => `${s.code}${s.reason ? ` ${visible(s.reason)}` : ''}: ${meaning(s.code)}`;

// loadTopics runs again by itself; sooner after a failure.
async function loadTopics() {
  clearTimeout(loadTopics.timer);
  let next = 15_000;
  let note = '';
  try {
    const response = await fetch('/api/topics', { cache: 'no-store' });
    if (!response.ok) throw new Error((await response.text()).trim() || String(response.status));
    topics = (await response.json()).topics ?? [];
    if (!topics.length) note = 'No topics yet.';
  } catch (e) {
    note = `The topics can't be listed: ${visible(e.message)}`;
    next = 3000;
  }
  clearTimeout(loadTopics.timer);
  loadTopics.timer = setTimeout(loadTopics, next);
  paintTopics(note);
  if (!tail.topic && topics.length) show({ topic: topics[0].name }, 'replace');
}

// show changes what is followed, and the address with it: 'push' for a step that "back" takes back, 'replace' for one that nobody took, and
// 'keep' where the address came first.
function show(change, address = 'push') {
  const topic = change.topic !== undefined && change.topic !== tail.topic;
  if (topic && !change.start && tail.start.positions) change.start = 'latest'; // they are of the other topic
  Object.assign(tail, change);
  if (topic || change.start) rows.clear();
  else if (tail.keys.length) rows.keepOnly((r) => tail.keys.some((k) => sameKey(k, keyOf(r))));
  if (topic) rate.clear();
  if (change.keys && !topic) rows.note(tail.keys.length ? `Only ${tail.keys.map(keyText).join(', ')} from here on` : 'All keys from here on');
  if (address === 'push') history.pushState(null, '', toAddress());
  if (address === 'replace') history.replaceState(null, '', toAddress());
  tail.subscribe(true);
  partitions.refresh();
  groups.refresh();
  paintTopics();
  paintFilter();
  paint();
}

// The address holds topic, keys and start, so that a bookmark shows them again.
function toAddress() {
  const hash = new URLSearchParams({ topic: tail.topic });
  for (const k of tail.keys) hash.append(...(typeof k === 'string' ? ['key', k] : ['keyBase64', k.base64]));
  starts.toAddress(tail.start, hash);
  return `#${hash}`;
}

function fromAddress() {
  const hash = new URLSearchParams(location.hash.slice(1));
  return {
    topic: hash.get('topic') ?? '',
    keys: [...hash.getAll('key'), ...hash.getAll('keyBase64').map((base64) => ({ base64 }))],
    start: starts.fromAddress(hash) ?? 'latest',
  };
}

const inAddress = ['topic', 'key', 'keyBase64', 'start', 'last', 'time', 'positions'];

// noteAddress says so where the address has a start that is none, or what means nothing: not everything that was asked for will come.
function noteAddress() {
  const hash = new URLSearchParams(location.hash.slice(1));
  if (!starts.fromAddress(hash)) rows.note('The start in the address cannot be read: the tail starts now', 'warn');
  const odd = [...new Set(hash.keys())].filter((name) => !inAddress.includes(name)).map((name) => `“${visible(name.slice(0, 40))}”`);
  if (odd.length) rows.note(`The address has ${odd.slice(0, 5).join(', ')}, which means nothing here: it may have ${inAddress.join(', ')}`, 'warn');
}

function paintTopics(note) {
  if (note !== undefined) setText('topics-note', note);
  const old = new Map([...$('topics').children].map((li) => [li.dataset.name, li]));
  const items = topics.map(({ name, partitions: n }) => {
    const li = old.get(name) ?? el('li', {}, el('button', { type: 'button', onclick: () => show({ topic: name, keys: [] }) }, el('span', { textContent: visible(name) }), el('small')));
    li.dataset.name = name;
    setText(li.querySelector('small'), n);
    li.querySelector('small').title = plural(n, 'partition');
    li.firstChild.setAttribute('aria-current', String(name === tail.topic));
    return li;
  });
  if (items.length !== old.size || items.some((li) => !li.isConnected)) $('topics').replaceChildren(...items);
  setText('topic', visible(tail.topic));
  $('topic').title = visible(tail.topic);
  setText('publish-topic', visible(tail.topic) || '…');
  document.title = tail.topic ? `${visible(tail.topic)} · Tailrace` : 'Tailrace';
}

function paintFilter() {
  $('start').value = starts.kindOf(tail.start);
  paintStart();
  $('keys').replaceChildren(...tail.keys.map((k) => el('li', {}, el('span', { textContent: keyText(k) }), el('button', {
    type: 'button', textContent: '✕', ariaLabel: `Stop following ${keyText(k)}`,
    onclick: () => {
      show({ keys: tail.keys.filter((x) => x !== k) });
      $('key-input').focus();
    },
  }))));
  $('key-input').placeholder = tail.keys.length ? 'and …' : 'Follow a key …';
}

// paintStart shows the field that the chosen start needs.
function paintStart() {
  const kind = $('start').value;
  for (const input of document.querySelectorAll('#from input')) {
    input.hidden = input.name !== kind;
    if (kind === starts.kindOf(tail.start)) input.value = input.name === kind ? starts.field(tail.start) : input.value;
    input.setCustomValidity('');
  }
  $('from-go').hidden = kind === 'latest' || kind === 'earliest';
}

function chooseStart(e) {
  e.preventDefault();
  const kind = $('start').value;
  const input = document.querySelector(`#from input[name=${kind}]`);
  try {
    const start = starts.parse(kind, input?.value ?? '');
    input?.setCustomValidity('');
    show({ start });
  } catch (wrong) {
    input.setCustomValidity(wrong.message);
    input.reportValidity();
  }
}

function paintRows(held) {
  $('newer').hidden = held === 0;
  setText('newer', rows.paused ? `${plural(held, 'newer row')} · resume` : `↑ ${plural(held, 'newer row')}`);
  paintEmpty();
}

function paintEmpty() {
  const text = () => {
    if (!tail.topic) return 'Choose a topic.';
    if (tail.unknown) return `There is no topic “${visible(tail.topic)}”.`;
    if (tail.over) return 'Nothing will come.';
    if (tail.away || tail.error || tail.stalled) return 'Nothing comes at the moment.';
    return tail.keys.length ? 'No record with this key yet.' : 'Waiting for the next record.';
  };
  $('empty').hidden = rows.shown.some((i) => i.record);
  setText('empty-text', text());
  $('from-beginning').hidden = !tail.topic || tail.start === 'earliest' || tail.away || tail.stalled || Boolean(tail.error);
}

// trouble is what the banner says: [text, button or nothing, seconds until something happens or nothing].
function trouble() {
  const s = link.state;
  if (s.phase === 'ended') return [`The connection was closed (${closeText(s)}). Asking again by itself would not help.`, 'Connect again'];
  if (s.phase === 'waiting' && !s.brief) return [`Connection lost (${closeText(s)}).`, 'Try now', Math.ceil(Math.max(0, s.until - performance.now()) / 1000)];
  if (tail.away) return ['The edge cannot reach the service at the moment. The tail will go on by itself, exactly where it stopped.'];
  if (tail.unknown) return [`There is no topic “${visible(tail.topic)}”. Choose another one, or try again once it was created.`, 'Try again'];
  if (tail.error) return [`${visible(tail.error)}${tail.over ? '' : ' · it is tried again by itself'}`, 'Try again'];
  if (tail.stalled) return ['Kafka, or the leader of every partition, does not answer the service. The tail goes on by itself, exactly where it stopped; what is published is refused meanwhile.'];
  if (tail.unavailable.length) return [`Not readable at the moment, since its leader in Kafka does not answer: partition ${tail.unavailable.join(', ')}. The tail goes on there by itself.`];
  return [];
}

const label = {
  connecting: ['Connecting', 'wait'],
  waiting: ['Reconnecting', 'wait'],
  ended: ['Disconnected', 'bad'],
  open: ['Connected', 'good'],
};

// standing is what the chip says: whether records come.
function standing() {
  const { phase } = link.state;
  if (phase !== 'open') return label[phase];
  if (tail.away) return ['Upstream unavailable', 'wait'];
  if (tail.error) return tail.over ? ['Not following', 'bad'] : ['Topic unavailable', 'wait'];
  if (tail.unavailable.length) return [tail.stalled ? 'Stalled' : 'Partly stalled', 'wait'];
  return tail.live ? ['Live', 'good'] : label.open;
}

function paint() {
  const s = link.state;
  const [text, tone] = standing();
  $('state').dataset.state = s.phase;
  $('state').dataset.tone = tone;
  setText('state-text', text);
  const [message, button, seconds] = trouble();
  $('banner').hidden = !message;
  setText('banner-text', message ?? '');
  setText('banner-count', seconds === undefined ? '' : ` Next try in ${seconds} s.`);
  $('retry').hidden = !button;
  setText('retry', button ?? '');
  paintEmpty();
}

const ago = (at) => `${Math.floor((performance.now() - at) / 1000)} s ago`;

function paintFacts() {
  rate.paint();
  partitions.paint();
  groups.paint();
  setText('fact-lag', tail.lag ? `${plural(tail.lag, 'record')} behind` : '');
  setText('fact-heard', link.state.phase === 'open' ? `heard ${ago(link.heardAt)}` : '');
  setText('fact-beat', link.state.phase === 'open' && tail.beatAt ? `heartbeat ${ago(tail.beatAt)}` : '');
  const close = link.lastClose;
  if (link.state.phase !== 'open') setText('fact-close', close ? `last close ${closeText(close)}` : '');
  else setText('fact-close', close && performance.now() - link.openedAt < RECENT ? `reconnected ${ago(link.openedAt)}, after ${closeText(close)}` : '');
  setText('fact-session', link.session ? `session ${link.session}` : '');
}

function pause(on) {
  rows.paused = on;
  $('pause').setAttribute('aria-pressed', String(on));
  setText('pause', on ? 'Resume' : 'Pause');
  rows.schedule();
}

// The shortcuts that the dialog lists; none while somebody types.
const shortcuts = {
  p: () => pause(!rows.paused),
  '/': () => $('key-input').focus(),
  n: () => publish.focus(),
  t: () => partitions.toggle(),
  g: () => groups.toggle(),
  s: () => $('start').focus(),
  r: () => $('table').focus(),
  '?': () => $('help').showModal(),
};

function shortcut(e) {
  if (e.key === 'Escape' && rows.selected && !$('help').open) return rows.select(null);
  if (e.ctrlKey || e.metaKey || e.altKey || $('help').open || e.target.closest('input, textarea, select')) return;
  if (!Object.hasOwn(shortcuts, e.key)) return;
  e.preventDefault();
  shortcuts[e.key]();
}

$('filter').onsubmit = (e) => {
  e.preventDefault();
  const key = $('key-input').value;
  $('key-input').value = '';
  if (key && !tail.keys.includes(key)) show({ keys: [...tail.keys, key] });
};
$('start').onchange = (e) => {
  paintStart();
  const input = document.querySelector(`#from input[name=${e.target.value}]`);
  if (input) input.focus();
  else chooseStart(e);
};
$('from').onsubmit = chooseStart;
$('from').oninput = (e) => e.target.setCustomValidity('');
$('from-beginning').onclick = () => show({ start: 'earliest' });
$('pause').onclick = () => pause(!rows.paused);
$('newer').onclick = () => {
  $('table').scrollTop = 0;
  pause(false);
};
$('retry').onclick = () => (link.state.phase === 'open' ? tail.subscribe(false) : link.open());
$('skip').onclick = () => $('table').focus(); // no link: the address's fragment is the bookmark
$('help-toggle').onclick = () => $('help').showModal();
$('help-close').onclick = () => $('help').close();
addEventListener('keydown', shortcut);
addEventListener('popstate', () => {
  show({ keys: [], ...fromAddress() }, 'keep');
  noteAddress();
});
addEventListener('online', () => link.state.phase === 'waiting' && link.open());

setInterval(() => {
  paint();
  paintFacts();
}, 500);

Object.assign(tail, fromAddress());
noteAddress();
paintTopics();
paintFilter();
paintFacts();
rows.schedule();
link.open();
loadTopics();
