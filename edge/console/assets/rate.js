// Rate counts records and their delays, second by second, and draws the last minute.

import { setText } from './dom.js';
import { span } from './record.js';

const SECONDS = 60; // in the plot
const RECENT = 5; // of them in the figures
const MAX_DELAYS = 200; // of a second; more would change the median little
const HEIGHT = 24;

export class Rate {
  // plot is an svg with a path, of SECONDS × HEIGHT.
  constructor(plot) {
    Object.assign(this, { plot, path: plot.querySelector('path'), seconds: [] });
  }

  // add counts records; only those of a live tail have a delay.
  add(records, live) {
    const now = Date.now();
    const second = Math.floor(now / 1000);
    if (this.seconds.at(-1)?.second !== second) this.seconds.push({ second, count: 0, delays: [] });
    const last = this.seconds.at(-1);
    last.count += records.length;
    for (const r of records) if (live && r.time !== undefined && last.delays.length < MAX_DELAYS) last.delays.push(now - r.time);
  }

  clear() {
    this.seconds = [];
  }

  paint() {
    const now = Math.floor(Date.now() / 1000);
    while (this.seconds.length && this.seconds[0].second < now - SECONDS) this.seconds.shift();
    const recent = this.seconds.filter((s) => s.second >= now - RECENT);
    const delays = recent.flatMap((s) => s.delays).sort((a, b) => a - b);
    const rate = recent.filter((s) => s.second < now).reduce((sum, s) => sum + s.count, 0) / RECENT;
    setText('fact-rate', `${rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString('en')} records/s`);
    setText('fact-delay', delays.length ? `delay ${span(delays[delays.length >> 1])}` : '');
    if (this.painted === now) return;
    this.painted = now;
    const top = Math.max(1, ...this.seconds.map((s) => s.count));
    let bars = '';
    for (const s of this.seconds) {
      if (s.second === now) continue; // it is not over
      const h = Math.max(1, Math.round((s.count / top) * HEIGHT));
      bars += `M${SECONDS - (now - s.second)} ${HEIGHT}v-${h}h.8v${h}z`;
    }
    this.path.setAttribute('d', bars);
    this.plot.setAttribute('aria-label', `Records per second in the last minute, at most ${top.toLocaleString('en')}`);
  }
}
