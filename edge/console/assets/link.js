// Link is one connection to the edge (protocol tailrace.v1.json, edge/README.md) that comes back by itself, with jitter, where the close
// code allows it. It knows nothing of subscriptions: on every `open` its owner asks again for what it wants.

import { comesBack } from './closes.js';

const STABLE = 10_000; // ms of life after which a lost connection is a new trouble, not the old one

export class Link {
  // on.frame(frame) is called for every message, on.state(state, phase before) for every change of phase:
  // connecting → open → waiting (until, brief) → connecting …, or ended. waiting and ended have the close's code and reason.
  constructor(url, on) {
    Object.assign(this, { url, on, state: { phase: 'connecting' }, attempt: 0, interval: 15_000, socket: null });
    setInterval(() => this.watch(), 1000);
  }

  open() {
    clearTimeout(this.timer);
    this.detach();
    this.goodbye = null;
    this.openedAt = this.heardAt = performance.now();
    this.set({ phase: 'connecting' });
    const socket = (this.socket = new WebSocket(this.url, 'tailrace.v1.json'));
    socket.onmessage = (e) => {
      this.heardAt = performance.now();
      this.receive(JSON.parse(e.data));
    };
    socket.onclose = (e) => this.closed(e.code, e.reason);
  }

  // send returns false, and sends nothing, unless the link is open.
  send(frame) {
    if (this.state.phase !== 'open') return false;
    this.socket.send(JSON.stringify(frame));
    return true;
  }

  receive(frame) {
    if (frame.op === 'welcome') {
      this.interval = frame.heartbeatMs;
      this.session = frame.session;
      this.set({ phase: 'open' });
    } else if (frame.op === 'goodbye') {
      this.goodbye = frame;
    }
    this.on.frame(frame);
  }

  // watch is the mirror of the edge's liveness: an edge that lives sends at least a heartbeat per interval.
  watch() {
    if (!this.socket || performance.now() - this.heardAt <= 2 * this.interval + 5000) return;
    const socket = this.socket;
    this.detach();
    socket.close(4004, 'no sign of life');
    this.closed(4004, 'no sign of life');
  }

  detach() {
    if (this.socket) this.socket.onmessage = this.socket.onclose = null;
    this.socket = null;
  }

  closed(code, reason) {
    this.detach();
    if (this.state.phase === 'open' && performance.now() - this.openedAt > STABLE) this.attempt = 0;
    const close = (this.lastClose = { code, reason: reason || this.goodbye?.reason || '' });
    if (!comesBack(code)) return this.set({ phase: 'ended', ...close });
    const [low, high] = this.goodbye?.reconnectAfterMs ?? [100, Math.min(30_000, 500 * 2 ** this.attempt)];
    this.attempt++;
    const delay = low + Math.random() * Math.max(0, high - low);
    this.set({ phase: 'waiting', ...close, until: performance.now() + delay, brief: this.attempt === 1 && delay < 2000 });
    this.timer = setTimeout(() => this.open(), delay);
  }

  set(state) {
    const before = this.state.phase;
    this.state = state;
    this.on.state(state, before);
  }
}
