// A start is where a tail begins: 'latest' | 'earliest' | {last} | {time} | {positions, missing}, as the protocol has it. This file knows its two other
// forms: parameters of an address (as the edge's URL form has them) and the fields that a person fills in.

const MAX_LAST = 100_000; // of each partition, a limit of the protocol

export const kindOf = (start) => (typeof start === 'string' ? start : Object.keys(start)[0]);

// parse makes a start of a kind and what was typed; or throws an Error that says what is wrong.
export function parse(kind, text) {
  switch (kind) {
    case 'last': {
      const n = Number(text);
      if (!Number.isInteger(n) || n < 1 || n > MAX_LAST) throw new Error(`A whole number from 1 to ${MAX_LAST.toLocaleString('en')}`);
      return { last: n };
    }
    case 'time': {
      const t = new Date(text);
      const year = t.getUTCFullYear(); // RFC 3339 has four digits for it, and the local time may be of the next
      if (!text || !(year >= 1 && year < 9999)) throw new Error('A date and a time');
      return { time: t.toISOString() };
    }
    case 'positions': {
      const positions = {};
      for (const part of text.split(/[\s,]+/).filter(Boolean)) {
        const m = /^(\d{1,9}):(\d{1,15})(?::(\d{1,9}))?$/.exec(part);
        if (!m) throw new Error('Positions are partition:offset, as in 0:12, 1:40');
        positions[m[1]] = m[3] === undefined ? Number(m[2]) : [Number(m[2]), Number(m[3])]; // with the leader epoch
      }
      if (!Object.keys(positions).length) throw new Error('Positions are partition:offset, as in 0:12, 1:40');
      return { positions, missing: 'earliest' };
    }
    case 'earliest':
      return 'earliest';
    default:
      return 'latest';
  }
}

// field is what a person would have typed.
export function field(start) {
  if (start.last) return String(start.last);
  if (start.positions) return Object.entries(start.positions).map(([p, o]) => `${p}:${[o].flat().join(':')}`).join(', ');
  if (!start.time) return '';
  const t = new Date(start.time);
  return new Date(t - t.getTimezoneOffset() * 60e3).toISOString().slice(0, 19); // datetime-local speaks local time
}

export function toAddress(start, hash) {
  const kind = kindOf(start);
  if (kind === 'earliest') hash.set('start', 'earliest');
  else if (kind === 'time') hash.set('time', start.time);
  else if (kind !== 'latest') hash.set(kind, field(start).replaceAll(' ', ''));
}

// fromAddress is latest where the address holds no start, and null where it holds one that cannot be read.
export function fromAddress(hash) {
  try {
    for (const kind of ['last', 'time', 'positions']) if (hash.has(kind)) return parse(kind, hash.get(kind));
  } catch {
    return null;
  }
  const start = hash.get('start') ?? 'latest';
  return ['latest', 'earliest'].includes(start) ? start : null;
}
