// The small plots of the page: an svg with one path, filled.

const NS = 'http://www.w3.org/2000/svg';

// plot makes an empty one, of so many units.
export function plot(width, height) {
  const svg = document.createElementNS(NS, 'svg');
  svg.setAttribute('class', 'plot');
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.append(document.createElementNS(NS, 'path'));
  return svg;
}

// Series is what a number was in the last span of seconds.
export class Series {
  constructor(span) {
    Object.assign(this, { span, points: [] });
  }

  // add takes a value at a time in ms; undefined: it is not known.
  add(at, value) {
    this.points.push({ at, value });
    while (this.points[0].at < at - (this.span + 10) * 1000) this.points.shift(); // one more, so that the plot begins at its edge
  }

  // draw paints steps: each value from its time until the next one, for at most patience ms, since nothing is known of what was longer ago.
  draw(svg, now, patience, name) {
    const { width, height } = svg.viewBox.baseVal;
    const top = Math.max(1, ...this.points.map((p) => p.value ?? 0));
    const x = (at) => Math.max(0, width * (1 - (now - at) / 1000 / this.span)).toFixed(1);
    let d = '';
    this.points.forEach((p, i) => {
      if (p.value === undefined) return;
      const until = Math.min(this.points[i + 1]?.at ?? now, p.at + patience);
      const h = p.value ? Math.max(1, (p.value / top) * height) : 0.5;
      if (x(until) > 0) d += `M${x(p.at)} ${height}V${(height - h).toFixed(1)}H${x(until)}V${height}z`;
    });
    svg.firstChild.setAttribute('d', d);
    svg.setAttribute('aria-label', `${name} in the last ${this.span / 60} minutes, at most ${top.toLocaleString('en')}`);
  }
}
