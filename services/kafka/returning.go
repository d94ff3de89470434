package kafka

import (
	"context"
	"slices"
	"strconv"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// redriveRun is how many letters are under way to their topic at a time, at most. Those of them behind one that may work later are published again when
// it has worked.
const redriveRun = 16

// returning is a dead letter that a redrive looks at.
type returning struct {
	at      *tailracev1.Record
	skipped bool                       // it is another group's
	failure *tailracev1.PublishFailure // it does not go back
	topic   string                     // that it goes back to
	record  *tailracev1.PublishRecord
}

// goes says that it is to be published.
func (l *returning) goes() bool { return !l.skipped && l.failure == nil }

// retryable says that what failed may work at another time.
func (l *returning) retryable() bool {
	switch l.failure.GetCode() {
	case "unavailable", "resource_exhausted", "canceled", "deadline_exceeded":
		return true
	}
	return false
}

// open reads the headers of a dead letter.
func (r *redrive) open(at *tailracev1.Record) *returning {
	told := map[string]string{headerTopic: "", headerPartition: "", headerOffset: "", headerGroup: "", headerAttempts: "", headerReason: "", headerDead: "", headerHops: "", headerCut: "", headerStripped: ""}
	found := map[string]bool{}
	var own []*tailracev1.Header
	for _, h := range slices.Backward(at.GetHeaders()) { // ours are the last ones of these names
		if _, ours := told[h.GetName()]; ours && !found[h.GetName()] {
			told[h.GetName()], found[h.GetName()] = string(h.GetValue()), true
			continue
		}
		own = append(own, h)
	}
	slices.Reverse(own)
	l := &returning{at: at, topic: told[headerTopic]}
	partition, err := strconv.ParseInt(told[headerPartition], 10, 32)
	switch {
	case told[headerTopic] == "" || told[headerGroup] == "" || err != nil || partition < 0:
		l.failure = &tailracev1.PublishFailure{Reason: reasonNoLetter, Message: "the headers do not tell topic, partition and group"}
	case told[headerGroup] != r.request.GetGroup():
		l.skipped = true
	case found[headerCut]:
		l.failure = &tailracev1.PublishFailure{Reason: reasonTruncated, Message: "the value had " + told[headerCut] + " bytes, and was cut"}
	case found[headerStripped]:
		l.failure = &tailracev1.PublishFailure{Reason: reasonTruncated, Message: "left out are: " + told[headerStripped]}
	default:
		to := int32(partition)
		l.record = &tailracev1.PublishRecord{Key: at.Key, Value: at.Value, Headers: own, Partition: &to}
	}
	return l
}

// bringBack publishes letters of one partition in their order, until one may work later: its offset is returned, else -1. Neighbours of one topic go
// together, after a success twice as many: so a call that begins with the one that held up the call before publishes nothing if it still does.
func (r *redrive) bringBack(ctx context.Context, letters []*returning) (held int64) {
	for run := 1; len(letters) > 0; {
		n, going, topic := 0, 0, ""
		for ; n < len(letters) && going < run; n++ {
			l := letters[n]
			if !l.goes() {
				continue
			}
			if going > 0 && l.topic != topic {
				break
			}
			topic = l.topic
			going++
		}
		if going > 0 {
			r.publish(ctx, topic, slices.DeleteFunc(slices.Clone(letters[:n]), func(l *returning) bool { return !l.goes() }))
			run = min(2*run, redriveRun)
		}
		if held := r.told(letters[:n]); held >= 0 {
			return held
		}
		letters = letters[n:]
	}
	return -1
}

// publish publishes letters of one topic.
func (r *redrive) publish(ctx context.Context, topic string, letters []*returning) {
	o := r.origin(ctx, topic)
	records := make([]*tailracev1.PublishRecord, len(letters))
	for i, l := range letters {
		records[i] = l.record
		if l.record.GetPartition() >= o.count {
			l.record.Partition = nil
		}
	}
	failed := o.refused
	if failed == nil && !r.request.GetDryRun() {
		results, err := r.client.PublishAs(ctx, "redrive", topic, records)
		for i, result := range results {
			letters[i].failure = result.GetFailure()
		}
		if err != nil {
			failed = failureOf(ctx, err)
		}
	}
	for _, l := range letters {
		if failed != nil {
			l.failure = failed
		}
		if l.failure == nil {
			o.records++
		}
	}
}

// told adds what became of letters to the answer, as far as the first that may work later, whose offset it returns, else -1: the next call tells what
// lies behind it.
func (r *redrive) told(letters []*returning) (held int64) {
	for _, l := range letters {
		r.left--
		if l.skipped {
			r.answer.Skipped++
		}
		if l.failure == nil {
			continue
		}
		r.answer.Failures = append(r.answer.Failures, &tailracev1.RedriveFailure{
			Partition: l.at.GetPartition(), Offset: l.at.GetOffset(), Reason: l.failure.GetReason(), Message: l.failure.GetMessage(), Retryable: l.retryable(),
		})
		if l.retryable() {
			return l.at.GetOffset()
		}
	}
	return -1
}
