package group

import (
	"maps"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is how a delivery ended, or, of dead and dropped, a record.
type outcome uint8

const (
	acked outcome = iota
	nacked
	timedOut
	workerEnded
	workerLeft
	takenAlong // under OrderByKey, with one of its key before it that was given back
	revoked
	lost
	dead
	dropped
	outcomes // how many
)

var outcomeNames = [outcomes]string{"acked", "nacked", "timeout", "worker_ended", "worker_left", "taken_along", "revoked", "lost", "dead_letter", "dead_letter_dropped"}

// counts are those of all groups.
type counts struct {
	delivered, redelivered atomic.Uint64
	bytes, lanes           atomic.Int64 // beyond the fronts; those that are assigned
	settled                [outcomes]atomic.Uint64
}

func (c *counts) settle(o outcome) { c.settled[o].Add(1) }

// collector reads the numbers when they are asked for.
type collector struct{ groups *Groups }

var (
	descGroups      = desc("groups", "Groups of this process.")
	descWorkers     = desc("workers", "Workers.", "group")
	descPartitions  = desc("partitions", "Partitions that are assigned to this process.", "group")
	descInFlight    = desc("in_flight", "Deliveries that workers hold.", "group")
	descWaiting     = desc("waiting", "Records that were read and are not dealt yet.", "group")
	descBytes       = desc("bytes", "Memory of records beyond the fronts.", "group")
	descPaused      = desc("partitions_paused", "Partitions that wait: for a record that holds their front, or for memory.", "group")
	descHeld        = desc("front_held_seconds", "For how long a record has held the front of its partition, which waits; those that have for longest.", "group", "topic", "partition", "offset")
	descDelivered   = desc("deliveries_total", "Records that were handed to workers.")
	descRedelivered = desc("redeliveries_total", "Of them, those that had been before.")
	descSettled     = desc("settled_total", "Ends of deliveries, and records that became dead letters.", "outcome")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tailrace_group_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descGroups, descWorkers, descPartitions, descInFlight, descWaiting, descBytes, descPaused, descHeld, descDelivered, descRedelivered, descSettled,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	infos := c.groups.Stats()
	gauge(descGroups, len(infos))
	for _, s := range infos {
		gauge(descWorkers, s.Workers, s.Group)
		gauge(descPartitions, s.Partitions, s.Group)
		gauge(descInFlight, s.InFlight, s.Group)
		gauge(descWaiting, s.Waiting, s.Group)
		gauge(descBytes, int(s.Bytes), s.Group)
		gauge(descPaused, s.Paused, s.Group)
		for _, h := range s.Holders {
			ch <- prometheus.MustNewConstMetric(descHeld, prometheus.GaugeValue, h.For.Seconds(),
				s.Group, h.Topic, strconv.Itoa(int(h.Partition.Partition)), strconv.FormatInt(h.Offset, 10))
		}
	}
	n := &c.groups.counts
	count(descDelivered, n.delivered.Load())
	count(descRedelivered, n.redelivered.Load())
	for o, name := range outcomeNames {
		count(descSettled, n.settled[o].Load(), name)
	}
}

// Stats are the numbers of one group in this process.
type Stats struct {
	Settings
	Workers, Partitions, InFlight, Waiting, Paused int
	Bytes                                          int64
	// Holders are the records that hold the fronts of partitions which wait for them: at most MaxHolders, the longest first.
	Holders []Holder
}

// Stats tells the numbers of all groups, in no order.
func (gs *Groups) Stats() []Stats {
	gs.mu.Lock()
	groups := slices.Collect(maps.Values(gs.groups))
	gs.mu.Unlock()
	stats := make([]Stats, len(groups))
	for i, g := range groups {
		stats[i] = g.stats()
	}
	return stats
}

func (g *Group) stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Stats{Settings: g.settings, Workers: len(g.workers), Partitions: len(g.lanes), Waiting: g.undealt, Paused: g.pausedN, Bytes: g.bytes, Holders: g.holders()}
	for w := range g.workers {
		s.InFlight += w.held.count
	}
	return s
}
