// Inspector shows one record whole.

import { $, el, setText } from './dom.js';
import { bytesText, full, keyOf, keyText, kindOf, size, span } from './record.js';

const MAX_HEADERS = 100; // shown

export class Inspector {
  // onClose() closes, onFollow(key) follows a key.
  constructor({ onClose, onFollow }) {
    $('inspect-close').onclick = onClose;
    $('inspect-copy').onclick = () => navigator.clipboard?.writeText(this.item.payload.text);
    $('inspect-follow').onclick = () => onFollow(keyOf(this.item.record));
  }

  // show shows an item of the rows, or nothing.
  show(item) {
    const opened = $('inspector').hidden && item;
    if (!item && $('inspector').contains(document.activeElement)) $('table').focus();
    $('inspector').hidden = !item;
    document.body.classList.toggle('inspecting', !!item);
    this.item = item;
    if (!item) return;
    const { record: r, payload: p } = item;
    const headers = r.headers ?? [];
    setText('inspect-title', `Partition ${r.partition}, offset ${r.offset}`);
    const facts = [['Key', keyText(keyOf(r))], ['Time', r.time === undefined ? 'none' : `${new Date(r.time).toISOString()}${r.timeType === 'append' ? ' (append time)' : ''}`],
      ['Arrived', r.time === undefined ? '' : `${span(item.delay)} later${item.live ? '' : ', read from the log'}`], ['Leader epoch', r.epoch ?? ''],
      ...headers.slice(0, MAX_HEADERS).map(([name, value]) => [`Header ${bytesText(name)}`, bytesText(value)]),
      ['More headers', headers.length > MAX_HEADERS ? headers.length - MAX_HEADERS : '']];
    $('inspect-facts').replaceChildren(...facts.filter(([, v]) => v !== '').flatMap(([k, v]) => [el('dt', { textContent: k }), el('dd', { textContent: v })]));
    setText('inspect-kind', p.kind === 'tombstone' ? '' : `${kindOf(p)}, ${size(p.size)}${p.cut ? `, the first ${size(p.text.length)} of it` : ''}`);
    setText('inspect-value', p.kind === 'tombstone' ? 'tombstone: the record has no value' : full(p));
    $('inspect-copy').hidden = p.kind === 'tombstone';
    $('inspect-follow').hidden = keyOf(r) === undefined;
    if (opened && matchMedia('(max-width: 760px)').matches) $('inspect-title').focus();
  }
}
