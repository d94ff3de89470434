package edge

import "tailrace.dev/tailrace/services/hub"

// sample is the record of a write whose delay is measured: the first that is live.
type sample struct {
	time int64 // its own, in milliseconds; -1: there is none
	end  int   // in writer.buf, of the frame that it is in
}

// timeOf is the time of the first record in parts, -1 without one.
func timeOf(parts []hub.Part) int64 {
	for i := range parts {
		if p := &parts[i]; p.Kind == hub.Records && p.Lo < p.Hi {
			return p.Meta[p.Lo].Time
		}
	}
	return -1
}

// live says that the frame at the end of buf begins with a live record of that time.
func (w *worker) live(time int64) {
	if w.sample.time < 0 {
		w.sample = sample{time, len(w.buf)}
	}
}

// measure takes the delay of the write's sample, if the socket took its frame: n bytes. Clocks that disagree make no negative delay.
func (w *worker) measure(n int) {
	if w.sample.time < 0 || n < w.sample.end {
		return
	}
	ms := max((w.wall+w.wrote)/1e6-w.sample.time, 0)
	w.delay.observe(float64(ms)/1e3, ms)
}

// rested takes the length of a rest, in nanoseconds.
func (w *worker) rested(rest int64) {
	const unit = 250_000
	w.tallies.rest.observe(float64(rest)/1e9, (rest+unit-1)/unit)
}

// answered takes the outcome of a publish that came at a time of Server.now.
func (w *worker) answered(outcome int, came int64) {
	const unit = 500_000
	took := w.srv.now() - came
	w.publishes[outcome].observe(float64(took)/1e9, (took+unit-1)/unit)
}
