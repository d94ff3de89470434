package transcript_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// world reads the settings at the head of a file.
func (s *script) world() (settings, error) {
	set := defaultSettings()
	for _, st := range s.settings {
		name, value, _ := strings.Cut(st.text, " ")
		if name == "store" {
			set.store = true
			continue
		}
		if err := set.put(name, value); err != nil {
			return set, fmt.Errorf("%s.txt:%d: %w", s.name, st.line, err)
		}
	}
	return set, set.edge.Validate()
}

func (set *settings) put(name, value string) error {
	durations := map[string]*time.Duration{
		"heartbeat-interval": &set.edge.HeartbeatInterval, "life-grace": &set.edge.LifeGrace, "stall-timeout": &set.edge.StallTimeout,
		"subscribe-timeout": &set.edge.SubscribeTimeout, "publish-timeout": &set.edge.PublishTimeout, "close-timeout": &set.edge.CloseTimeout,
		"message-timeout": &set.edge.MessageTimeout, "upstream-grace": &set.edge.UpstreamGrace, "max-connection-age": &set.edge.MaxConnectionAge,
		"slow-after": &set.hub.SlowAfter, "retain": &set.hub.Retain,
	}
	if d := durations[name]; d != nil {
		var err error
		*d, err = time.ParseDuration(value)
		return err
	}
	n, err := strconv.ParseInt(value, 10, 64)
	switch name {
	case "max-subscriptions":
		set.edge.MaxSubscriptions = int(n)
	case "max-keys":
		set.edge.MaxKeys = int(n)
	case "max-message-rate":
		set.edge.MaxMessageRate = int(n)
	case "max-per-address":
		set.edge.MaxPerAddress = int(n)
	case "max-sessions":
		set.edge.MaxSessions = int(n)
	case "max-input-bytes":
		set.edge.MaxInputBytes = n
	case "max-message-bytes":
		set.edge.MaxMessageBytes = n
	case "memory-budget":
		set.hub.MemoryBudget = n
	case "allowed-host":
		set.edge.AllowedHosts, err = append(set.edge.AllowedHosts, value), nil
	case "allowed-origin":
		set.edge.AllowedOrigins, err = append(set.edge.AllowedOrigins, value), nil
	default:
		return fmt.Errorf("unknown setting %q", name)
	}
	return err
}

// act changes the world: what follows "@ ".
func (w *world) act(p *play, text string) error {
	verb, rest, _ := strings.Cut(text, " ")
	args := strings.Fields(rest)
	number := func(i int) int64 {
		if i >= len(args) {
			return 0
		}
		n, err := strconv.ParseInt(args[i], 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	switch verb {
	case "topic", "topic-again":
		return w.createTopic(args[0], int32(number(1)), args[min(2, len(args)):])
	case "append":
		return w.appendLine(rest)
	case "grow":
		return w.grow(args[0], int32(number(1)))
	case "delete-topic":
		return w.deleteTopic(args[0])
	case "retain":
		return w.retain(args[0], int32(number(1)), number(2))
	case "service":
		if args[0] == "down" {
			w.endRPC()
			await(p.t, "the edge knows", func() bool { return !w.source.Available() })
			return nil
		}
		w.startService()
		await(p.t, "the edge knows", w.source.Available)
		return nil
	case "pass": // time that is part of the scene
		d, err := time.ParseDuration(args[0])
		<-time.After(d)
		return err
	case "drain":
		ctx := p.t.Context()
		w.serving.Go(func() { _ = w.edge.Drain(ctx) })
		await(p.t, "it drains", func() bool { return !w.edge.Ready() })
		return nil
	case "stop":
		w.endEdge()
		return nil
	case "restart":
		w.restartEdge()
		p.noteEnds()
		return nil
	case "ended":
		was := p.ended[args[0]]
		await(p.t, "a session ended: "+args[0], func() bool { return w.ended(args[0]) == was+1 })
		p.ended[args[0]]++
		return nil
	case "await":
		want := float64(number(len(args) - 1))
		label := ""
		if len(args) == 3 {
			label = args[1]
		}
		await(p.t, rest, func() bool { return w.metric(args[0], label) == want })
		return nil
	}
	if w.store == nil {
		return errNoStore
	}
	switch verb {
	case "truncate":
		w.store.Truncate(args[0], int32(number(1)), number(2))
	case "holes":
		w.store.AppendHoles(args[0], int32(number(1)), int(number(2)))
	case "unavailable":
		w.store.SetUnavailable(args[0], int32(number(1)), true)
	case "available":
		w.store.SetUnavailable(args[0], int32(number(1)), false)
	case "commit":
		w.store.Commit(args[0], int32(number(1)))
	case "abort":
		w.store.Abort(args[0], int32(number(1)))
	case "compact":
		w.store.Compact(args[0], int32(number(1)), number(2))
	case "hold-publishes":
		w.store.publishing.close()
	case "release-publishes":
		w.store.publishing.open()
	case "slow-resolve":
		w.store.SetDelays(hubtest.Delays{BeforeResolve: time.Duration(number(0)) * time.Millisecond})
	case "fail-publish":
		return w.failPublish(args)
	default:
		return fmt.Errorf("unknown action %q", verb)
	}
	return nil
}

// failPublish: code REASON refused|unknown [retry in ms].
func (w *world) failPublish(args []string) error {
	f := &tailracev1.PublishFailure{
		Code: args[0], Reason: args[1], Message: "as the test says", Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN,
	}
	if args[2] == "refused" {
		f.Outcome = tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED
	}
	if len(args) > 3 {
		ms, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		f.RetryAfter = durationpb.New(time.Duration(ms) * time.Millisecond)
	}
	w.store.failNext(f)
	return nil
}

func (w *world) createTopic(name string, partitions int32, configs []string) error {
	if w.store != nil {
		w.store.mu.Lock()
		w.store.names[name] = partitions
		w.store.mu.Unlock()
		w.store.CreateTopic(name, partitions)
		return nil
	}
	set := map[string]string{}
	for _, c := range configs {
		k, v, _ := strings.Cut(c, "=")
		set[k] = v
	}
	w.kafka.mu.Lock()
	for i := range partitions {
		delete(w.kafka.counts, fmt.Sprintf("%s/%d", name, i))
	}
	w.kafka.mu.Unlock()
	w.cluster.CreateTopic(w.t, name, partitions, set)
	return nil
}

func (w *world) grow(topic string, partitions int32) error {
	if w.store == nil {
		return w.kafka.grow(w.t.Context(), topic, int(partitions))
	}
	w.store.mu.Lock()
	w.store.names[topic] = partitions
	w.store.mu.Unlock()
	w.store.Grow(topic, partitions)
	return nil
}

func (w *world) deleteTopic(topic string) error {
	if w.store == nil {
		return w.kafka.deleteTopic(w.t.Context(), topic)
	}
	w.store.mu.Lock()
	delete(w.store.names, topic)
	w.store.mu.Unlock()
	w.store.DeleteTopic(topic)
	return nil
}

func (w *world) retain(topic string, partition int32, oldest int64) error {
	if w.store == nil {
		return w.kafka.retain(w.t.Context(), topic, partition, oldest)
	}
	w.store.Retain(topic, partition, oldest)
	return nil
}

// appendLine: TOPIC PARTITION RECORD [xN] [open]. A # in the record is the number of its copy.
func (w *world) appendLine(rest string) error {
	topic, rest, _ := strings.Cut(rest, " ")
	number, rest, _ := strings.Cut(rest, " ")
	partition, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return err
	}
	rest, isOpen := strings.CutSuffix(rest, " open")
	copies := 1
	if at := strings.LastIndex(rest, " x"); at > 0 && rest[at-1] == '}' {
		if copies, err = strconv.Atoi(rest[at+2:]); err != nil {
			return err
		}
		rest = rest[:at]
	}
	records := make([]hubtest.Record, copies)
	for i := range records {
		if records[i], err = readRecord(strings.ReplaceAll(rest, "#", strconv.Itoa(i))); err != nil {
			return err
		}
	}
	switch {
	case w.store == nil && isOpen:
		return errNoStore
	case w.store == nil:
		return w.kafka.append(w.t.Context(), topic, int32(partition), records...)
	case isOpen:
		w.store.AppendOpen(topic, int32(partition), records...)
	default:
		w.store.Append(topic, int32(partition), records...)
	}
	return nil
}

// readRecord reads a record as it is published.
func readRecord(text string) (r hubtest.Record, err error) {
	var in struct {
		Key, KeyBase64, Text, Base64 *string
		Value                        json.RawMessage
		Tombstone                    bool
		Headers                      [][2]json.RawMessage
		Time                         int64
	}
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return r, fmt.Errorf("%s: %w", text, err)
	}
	decode := func(s *string) (b []byte) {
		if s != nil {
			var bad error
			b, bad = base64.StdEncoding.DecodeString(*s)
			err = errors.Join(err, bad)
		}
		return b
	}
	switch {
	case in.Key != nil:
		r.Key = []byte(*in.Key)
	case in.KeyBase64 != nil:
		r.Key = decode(in.KeyBase64)
	}
	switch {
	case in.Text != nil:
		r.Value = []byte(*in.Text)
	case in.Base64 != nil:
		r.Value = decode(in.Base64)
	case in.Value != nil:
		r.Value = in.Value
	}
	for _, pair := range in.Headers {
		h := &tailracev1.Header{}
		err = errors.Join(err, json.Unmarshal(pair[0], &h.Name))
		var s *string
		if json.Unmarshal(pair[1], &s) == nil {
			if s != nil {
				h.Value = []byte(*s)
			}
		} else {
			var o struct{ Base64 *string }
			err = errors.Join(err, json.Unmarshal(pair[1], &o))
			h.Value = decode(o.Base64)
		}
		r.Headers = append(r.Headers, h)
	}
	r.Time = in.Time
	return r, err
}
