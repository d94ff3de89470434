package transcript_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// strictClient has one socket after the other.
type strictClient struct {
	soak     *soak
	name     int
	protocol string
	rng      *rand.Rand
	sockets  int

	topicID string
	next    map[int32]int64 // what must come next

	// Of the socket.
	socket *socket
	pings  []string // whose pongs have not come
	asked  []string // pings of ours, the op, in order
	said   []string // publishes without an answer
	number int
}

// run has sockets until all has come.
func (c *strictClient) run() error {
	for {
		done, err := c.visit()
		if err != nil || done {
			return err
		}
	}
}

func (c *strictClient) complete() bool {
	if !c.soak.over.Load() {
		return c.soak.failed.Load()
	}
	for p, at := range c.next {
		if at != c.soak.ends[p].Load() {
			return false
		}
	}
	return true
}

// visit has one socket, and leaves it in one of the ways there are.
func (c *strictClient) visit() (done bool, err error) {
	if c.socket, err = dialSocket(c.soak.w.web, "/ws", c.protocol, nil); err != nil {
		return false, err
	}
	defer c.socket.conn.Close()
	_ = c.socket.conn.SetDeadline(time.Now().Add(4 * patience))
	c.sockets++
	c.soak.sockets.Add(1)
	c.pings, c.asked, c.said, c.number = nil, nil, nil, 0
	positions := map[string]int64{}
	for p, at := range c.next {
		positions[strconv.Itoa(int(p))] = at
	}
	start, err := json.Marshal(positions)
	if err != nil {
		return false, err
	}
	subscribe := fmt.Sprintf(`{"op":"subscribe","id":"s","topic":"soak","topicId":%q,"start":{"positions":%s}}`, c.topicID, start)
	if err := c.say(subscribe); err != nil {
		return false, err
	}
	for left := 20 + c.rng.IntN(400); left > 0 && !c.complete(); left-- {
		if err := c.take(); err != nil {
			return false, err
		}
		if err := c.chat(); err != nil {
			return false, err
		}
	}
	return c.complete(), c.leave()
}

// say sends a message, sometimes in fragments with a ping between them.
func (c *strictClient) say(text string) error {
	payload, err := encodeMessage(c.protocol, text)
	if err != nil {
		return err
	}
	if c.rng.IntN(4) > 0 {
		return c.socket.write(c.socket.opcode, payload)
	}
	cut := c.rng.IntN(len(payload) + 1)
	bytes := masked(c.socket.opcode, payload[:cut])
	if c.rng.IntN(2) == 0 {
		bytes = append(bytes, c.ping()...)
	}
	return c.socket.raw(append(bytes, masked(fin|opContinuation, payload[cut:])...))
}

func (c *strictClient) ping() []byte {
	c.number++
	c.pings = append(c.pings, strconv.Itoa(c.number))
	return masked(fin|opPing, []byte(strconv.Itoa(c.number)))
}

// chat says something now and then. What is unanswered is bounded.
func (c *strictClient) chat() error {
	switch roll := c.rng.IntN(40); {
	case roll < 2 && len(c.pings) < 10:
		return c.socket.raw(c.ping())
	case roll < 4 && len(c.asked) < 10:
		c.number++
		c.asked = append(c.asked, strconv.Itoa(c.number))
		return c.say(fmt.Sprintf(`{"op":"ping","id":"%d"}`, c.number))
	case roll < 5 && len(c.said) < 10:
		c.number++
		c.said = append(c.said, strconv.Itoa(c.number))
		return c.say(fmt.Sprintf(`{"op":"publish","id":"%d","topic":"said","text":"%s","key":"k%d"}`, c.number, c.text(c.number), c.number%5))
	case roll == 5:
		return c.socket.write(opPong, []byte("unasked"))
	}
	return nil
}

func (c *strictClient) text(n int) string { return fmt.Sprintf("%d-%d-%d", c.name, c.sockets, n) }

// take takes one frame.
func (c *strictClient) take() error {
	in, err := c.socket.read()
	if err != nil {
		return err
	}
	c.soak.frames.Add(1)
	switch in.opcode {
	case opPing:
		return c.socket.write(opPong, in.payload)
	case opPong:
		// Only the newest of several is due (RFC 6455, section 5.5.3), and none comes twice or out of order.
		for len(c.pings) > 0 {
			first := c.pings[0]
			c.pings = c.pings[1:]
			if first == string(in.payload) {
				return nil
			}
		}
		return breached("the pong %q to no ping", in.payload)
	case opClose:
		return breached("the close frame %x", in.payload)
	}
	if c.protocol == protocolProto {
		return c.frame(in.payload)
	}
	return c.message(in.payload)
}

// message takes a message in JSON.
func (c *strictClient) message(payload []byte) error {
	var m struct {
		Op, ID, TopicID, Message string
		Partition                int32
		Offset                   int64
		Records                  []struct {
			Topic     string
			Partition int32
			Offset    int64
			Key       string
			Value     struct{ N *int }
		}
		Positions json.RawMessage
	}
	if err := json.Unmarshal(payload, &m); err != nil {
		return breached("%.200s: %v", payload, err)
	}
	switch m.Op {
	case "started":
		return c.started(m.TopicID)
	case "records":
		for _, r := range m.Records {
			if r.Topic != "soak" || r.Key != "k" || r.Value.N == nil || m.ID != "s" {
				return breached("%.300s", payload)
			}
			if err := c.record(r.Partition, r.Offset); err != nil {
				return err
			}
		}
		if m.Positions != nil {
			return breached("positions without a hole: %.300s", payload)
		}
		return nil
	case "published":
		return c.published(m.ID, m.Partition, m.Offset)
	case "pong":
		return c.answered(m.ID)
	case "welcome", "caughtup", "heartbeat":
		return nil
	}
	return breached("%.300s", payload)
}

// frame takes a message in protobuf.
func (c *strictClient) frame(payload []byte) error {
	m := &tailracev1.ServerFrame{}
	if err := proto.Unmarshal(payload, m); err != nil {
		return breached("%x: %v", payload, err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		return breached("unknown fields in %x", payload)
	}
	switch f := m.GetOp().(type) {
	case *tailracev1.ServerFrame_Started:
		return c.started(f.Started.GetStarted().GetTopicId())
	case *tailracev1.ServerFrame_Records:
		for _, b := range f.Records.GetRecords().GetBatches() {
			for _, r := range b.GetRecords() {
				if r.GetTopic() != "soak" || string(r.GetKey()) != "k" || r.GetPartition() != b.GetPartition() || f.Records.GetId() != "s" {
					return breached("%v", r)
				}
				if err := c.record(r.GetPartition(), r.GetOffset()); err != nil {
					return err
				}
			}
			if b.GetNext() != c.next[b.GetPartition()] {
				return breached("next is %d, the last record of partition %d was before %d", b.GetNext(), b.GetPartition(), c.next[b.GetPartition()])
			}
		}
		return nil
	case *tailracev1.ServerFrame_Published:
		return c.published(f.Published.GetId(), f.Published.GetPublished().GetPartition(), f.Published.GetPublished().GetOffset())
	case *tailracev1.ServerFrame_Pong:
		return c.answered(f.Pong.GetId())
	case *tailracev1.ServerFrame_Welcome, *tailracev1.ServerFrame_CaughtUp, *tailracev1.ServerFrame_Heartbeat:
		return nil
	}
	return breached("%v", m)
}

func (c *strictClient) started(id string) error {
	if c.topicID != "" && c.topicID != id {
		return breached("topic id %s, it was %s", id, c.topicID)
	}
	c.topicID = id
	return nil
}

func (c *strictClient) record(partition int32, offset int64) error {
	if at := c.next[partition]; at != offset {
		return breached("offset %d of partition %d, want %d", offset, partition, at)
	}
	c.next[partition]++
	return nil
}

func (c *strictClient) published(id string, partition int32, offset int64) error {
	at := slices.Index(c.said, id) // those of different partitions are answered in any order; compare looks at the order in the log
	if at < 0 {
		return breached("published %s, waiting for %v", id, c.said)
	}
	c.said = slices.Delete(c.said, at, at+1)
	n, err := strconv.Atoi(id)
	if err != nil {
		return err
	}
	c.soak.mu.Lock()
	defer c.soak.mu.Unlock()
	c.soak.acked[c.text(n)] = fmt.Sprintf("%d/%d", partition, offset)
	return nil
}

func (c *strictClient) answered(id string) error {
	if len(c.asked) == 0 || c.asked[0] != id {
		return breached("pong %s, waiting for %v", id, c.asked)
	}
	c.asked = c.asked[1:]
	return nil
}

// leave ends the socket: mostly as one should, sometimes by FIN or reset.
func (c *strictClient) leave() error {
	switch c.rng.IntN(10) {
	case 0:
		_ = c.socket.conn.SetLinger(0)
		return nil
	case 1:
		// What comes before the end must be well-formed, too; records that it holds count.
		if err := c.socket.conn.CloseWrite(); err != nil {
			return err
		}
		return c.untilEnd(false, 0)
	}
	code := []int{1000, 1001, 3000, 4000 + c.rng.IntN(1000)}[c.rng.IntN(4)]
	if err := c.socket.write(opClose, closePayload(code, "enough")); err != nil {
		return err
	}
	return c.untilEnd(true, code)
}

// untilEnd takes what was under way, up to the echo of the close frame, or to the end.
func (c *strictClient) untilEnd(echo bool, code int) error {
	before := maps.Clone(c.next)
	for {
		in, err := c.socket.read()
		if err != nil && !echo && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("leaving at %v: %w", before, err)
		}
		c.soak.frames.Add(1)
		if in.opcode == opClose {
			got, _, err := parseClose(in.payload)
			if err != nil || !echo || got != code {
				return breached("close %d (%v), ours was %d", got, err, code)
			}
			if _, err := c.socket.read(); !errors.Is(err, io.EOF) {
				return fmt.Errorf("behind the close frame: %w", err)
			}
			return nil
		}
		if in.opcode == c.socket.opcode {
			take := c.message
			if c.protocol == protocolProto {
				take = c.frame
			}
			if err := take(in.payload); err != nil {
				return err
			}
		}
	}
}
