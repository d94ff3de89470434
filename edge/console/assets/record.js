// A record as text for people. All of it is untrusted: these functions return strings, never markup.

const MAX_TEXT = 256 << 10; // characters kept of one value; the rest is counted, not kept
const MAX_DUMP = 4 << 10; // bytes shown of a binary value
const MAX_SHORT = 4 << 10; // characters shown of a key or a header; a multiple of four, as base64 is

// visible makes characters readable that would not show, or would reorder the text around them; except those in keep.
export const visible = (text, keep = '') =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => {
    if (keep.includes(c)) return c;
    if (c === '\n') return '↵';
    const n = c.charCodeAt(0);
    return n < 32 ? String.fromCharCode(0x2400 + n) : `\\u${n.toString(16).padStart(4, '0')}`;
  });

export const plural = (n, one) => `${n.toLocaleString('en')} ${one}${n === 1 ? '' : 's'}`;

export const size = (n) =>
  n < 1024 ? `${n} B` : n < 1 << 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / (1 << 20)).toFixed(1)} MiB`;

export function span(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60e3) return `${(ms / 1e3).toFixed(1)} s`;
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min`;
  return ms < 86400e3 ? `${Math.floor(ms / 3600e3)} h` : `${Math.floor(ms / 86400e3)} d`;
}

const pad = (n, width = 2) => String(n).padStart(width, '0');

// clock is the local time of day; with the date where that is not today.
export function clock(ms) {
  const t = new Date(ms);
  const day = t.toDateString() === new Date().toDateString() ? '' : `${t.getFullYear()}-${pad(t.getMonth() + 1)}-${pad(t.getDate())} `;
  return `${day}${pad(t.getHours())}:${pad(t.getMinutes())}:${pad(t.getSeconds())}${day ? '' : `.${pad(t.getMilliseconds(), 3)}`}`;
}

const bytesOf = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
const hex = (bytes) => Array.from(bytes, (b) => pad(b.toString(16))).join('');

// payload is a record's value: its kind, its text of at most MAX_TEXT characters, its size in bytes, and whether the text was cut. The cut
// goes through bytes, so that the kept part does not hold on to the whole.
export function payload(record) {
  if (record.tombstone) return { kind: 'tombstone', text: '', size: 0 };
  const kind = record.base64 === undefined ? 'text' : 'binary';
  let text = record.base64 ?? record.text ?? JSON.stringify(record.value) ?? '';
  const encoded = new TextEncoder().encode(text);
  const bytes = kind === 'text' ? encoded.length : Math.floor((text.replace(/=+$/, '').length * 3) / 4);
  const cut = text.length > MAX_TEXT;
  if (cut) text = new TextDecoder().decode(encoded.slice(0, MAX_TEXT));
  return { kind, text, size: bytes, cut };
}

// kindOf is what a payload is for people: JSON is text, too.
export function kindOf(p) {
  if (p.kind !== 'text' || p.cut) return p.kind;
  try {
    JSON.parse(p.text);
    return 'JSON';
  } catch {
    return 'text';
  }
}

// summary is a payload in one line of at most length characters.
export function summary(p, length) {
  if (p.kind === 'tombstone') return 'tombstone';
  if (p.kind === 'binary') return `${size(p.size)} binary · ${hex(bytesOf(p.text.slice(0, 64)))}${p.size > 48 ? ' …' : ''}`;
  if (p.text === '') return 'empty';
  return visible(p.text.slice(0, length)) + (p.text.length > length ? ' …' : '');
}

// full is a payload to read: JSON indented, bytes as a dump.
export const full = (p) => (p.kind === 'binary' ? dump(p.text) : visible(p.cut ? p.text : pretty(p.text), '\n\t'));

function dump(base64) {
  const bytes = bytesOf(base64.slice(0, Math.ceil((MAX_DUMP * 4) / 3 / 4) * 4));
  const lines = [];
  for (let i = 0; i < bytes.length; i += 16) {
    const row = bytes.slice(i, i + 16);
    const text = Array.from(row, (b) => (b > 31 && b < 127 ? String.fromCharCode(b) : '·')).join('');
    lines.push(`${pad(i.toString(16), 4)}  ${hex(row).replace(/../g, '$& ').padEnd(48)} ${text}`);
  }
  return lines.join('\n');
}

// pretty indents JSON and changes nothing else of it: numbers keep their digits, objects their doubled names.
function pretty(text) {
  if (!/^[[{]/.test(text)) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  const line = () => `\n${'  '.repeat(Math.min(depth, 40))}`;
  return text.replace(/"(?:[^"\\]|\\.)*"|\[\s*\]|\{\s*\}|[[{\]},:]|\s+/g, (t) => {
    if (t[0] === '"' || (t.length > 1 && /[[{]/.test(t))) return t;
    if (t === '[' || t === '{') return depth++, t + line();
    if (t === ']' || t === '}') return depth--, line() + t;
    return t === ',' ? t + line() : t === ':' ? ': ' : '';
  });
}

// A key is a string, {base64} or undefined (none); a header's value also null.
export const keyOf = (record) => record.key ?? (record.keyBase64 === undefined ? undefined : { base64: record.keyBase64 });
export const sameKey = (a, b) => (a?.base64 === undefined ? a === b : a.base64 === b?.base64);
export const keyText = (key) => (key === undefined ? '–' : key === '' ? 'empty' : bytesText(key));

// bytesText shows the beginning of long ones; so does keyText.
export function bytesText(v) {
  if (v === null) return 'null';
  const all = v.base64 ?? v;
  const text = all.slice(0, MAX_SHORT);
  return (v.base64 === undefined ? visible(text) : `0x${hex(bytesOf(text))}`) + (all.length > MAX_SHORT ? ' …' : '');
}

const lengthOf = (v) => (v?.base64 ?? v ?? '').length;

// weight is the number of characters that are kept of a record, its payload's text aside.
export const weight = (record) =>
  (record.headers ?? []).reduce((sum, [name, value]) => sum + lengthOf(name) + lengthOf(value), lengthOf(keyOf(record)));
