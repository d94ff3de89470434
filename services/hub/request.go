package hub

import "fmt"

// validate says what is wrong with a request.
func (r *Request) validate() error {
	if r.Topic == "" {
		return &InvalidError{"topic", "is empty"}
	}
	seen := map[int32]struct{}{}
	for _, p := range r.Partitions {
		if _, twice := seen[p]; twice || p < 0 {
			return &InvalidError{"partitions", fmt.Sprintf("%d is negative or named twice", p)}
		}
		seen[p] = struct{}{}
	}
	if err := validPositions("start.positions", r.Start.Positions); err != nil {
		return err
	}
	if err := validPositions("stop.positions", r.Stop.Positions); err != nil {
		return err
	}
	switch {
	case r.Start.Kind == Last && r.Start.Last < 1:
		return &InvalidError{"start.last", "is not positive"}
	case r.Stop.Records < 0:
		return &InvalidError{"stop.records", "is negative"}
	case r.Stop.Bytes < 0:
		return &InvalidError{"stop.bytes", "is negative"}
	case r.MaxRecordBytes < 0:
		return &InvalidError{"max_record_bytes", "is negative"}
	case r.Slow > SlowFail:
		return &InvalidError{"slow_policy", "is unknown"}
	}
	return nil
}

func validPositions(field string, ps []Position) error {
	seen := make(map[int32]struct{}, len(ps))
	for _, p := range ps {
		if _, twice := seen[p.Partition]; twice || p.Partition < 0 || p.Offset < 0 {
			return &InvalidError{field, fmt.Sprintf("partition %d is negative, named twice, or at a negative offset", p.Partition)}
		}
		seen[p.Partition] = struct{}{}
	}
	return nil
}

// filters says whether less than the whole topic is asked for.
func (o *opening) filters() bool {
	return o.request.Keys != nil || o.request.Partitions != nil || o.skips()
}

// skips says whether partitions without a position are left out.
func (o *opening) skips() bool {
	return o.request.Start.Kind == AtPositions && o.request.Start.Missing == MissingSkip
}

// choose finds out which partitions are read.
func (o *opening) choose() error {
	r, count := o.request, o.topic.number
	for _, p := range r.Partitions {
		if p >= count {
			return &UnknownPartitionError{Topic: r.Topic, Partition: p, Count: count, TopicID: o.topic.id}
		}
	}
	for p := range o.named {
		if p >= count && (r.TopicID == "" || r.TopicID == o.topic.id) { // else the log that had it is gone, and recreated is told
			return &UnknownPartitionError{Topic: r.Topic, Partition: p, Count: count, TopicID: o.topic.id}
		}
	}
	var hashed map[int32]struct{}
	if o.hashes() {
		hashed, _ = o.topic.partitioner.hashed(r.Keys, count)
	}
	o.scope = o.scope[:0]
	for p := range count {
		_, isAsked := o.asked[p]
		_, isNamed := o.named[p]
		_, isHashed := hashed[p]
		switch {
		case o.asked != nil && !isAsked:
		case isNamed, !o.skips() && (hashed == nil || isHashed):
			o.scope = append(o.scope, p)
		}
	}
	return nil
}

// hashes says whether keys are looked for only where they hash to.
func (o *opening) hashes() bool {
	r := o.request
	if r.Keys == nil {
		return false
	}
	if r.KeyScope == KeyScopeDefault {
		return r.Start.Kind != Earliest && r.Start.Kind != AtTime
	}
	return r.KeyScope == KeyScopeHashed
}
