package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"strings"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
)

// bridge is what a team builds first, written with care: for each socket a Kafka consumer that is assigned the topic's end, a goroutine that
// polls it and writes, and one that reads the socket. Frames gather in a buffer and are written when nothing more is there, or 32 KiB are.
// The consumers prefetch no more than 1 MiB, so that memory is not wasted by a default.
func bridge(address, brokers string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if err := serve(conn, brokers); err != nil {
				fmt.Fprintln(os.Stderr, "pollbench: socket:", err)
			}
		}()
	}
}

func serve(conn net.Conn, brokers string) (err error) {
	var topic string
	upgrader := ws.Upgrader{OnRequest: func(uri []byte) error {
		where, _, _ := strings.Cut(string(uri), "?")
		topic = path.Base(where)
		return nil
	}}
	if _, err := upgrader.Upgrade(conn); err != nil {
		return fmt.Errorf("upgrading: %w", err)
	}
	consumer, err := newConsumer(brokers, confluent.ConfigMap{"queued.max.messages.kbytes": 1024})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	partitions, err := assignment(consumer, topic, true)
	if err != nil {
		return err
	}
	if err := consumer.Assign(partitions); err != nil {
		return fmt.Errorf("assigning: %w", err)
	}
	out := bufio.NewWriterSize(conn, 32<<10)
	if err := errors.Join(wsutil.WriteServerText(out, []byte(started)), out.Flush()); err != nil {
		return err
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		discard(conn)
	}()
	return pump(consumer, topic, out, left)
}

// pump brings records to the socket until its client has left.
func pump(consumer *confluent.Consumer, topic string, out *bufio.Writer, left <-chan struct{}) error {
	wait := 100
	for {
		switch event := consumer.Poll(wait).(type) {
		case *confluent.Message:
			if err := wsutil.WriteServerText(out, message(topic, event)); err != nil {
				return nil //nolint:nilerr // the client has left
			}
			wait = 0 // until nothing more is there
		case confluent.Error:
			return fmt.Errorf("polling: %w", event)
		case nil:
			if err := out.Flush(); err != nil {
				return nil //nolint:nilerr // the client has left
			}
			wait = 100
			select {
			case <-left:
				return nil
			default:
			}
		}
	}
}

// message is a record in the edge's JSON.
func message(topic string, m *confluent.Message) []byte {
	type record struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		Offset    int64  `json:"offset"`
		Time      int64  `json:"time"`
		Text      string `json:"text"`
	}
	body, err := json.Marshal(struct {
		Op      string   `json:"op"`
		ID      string   `json:"id"`
		Records []record `json:"records"`
	}{"records", "0", []record{{topic, m.TopicPartition.Partition, int64(m.TopicPartition.Offset), m.Timestamp.UnixMilli(), string(m.Value)}}})
	if err != nil {
		return nil
	}
	return body
}
