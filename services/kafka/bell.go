package kafka

/*
#include <stddef.h>
#include <stdint.h>

// Of the librdkafka that the binding links, which has no name for it in Go. Weak: this package is linked for a moment without it.
extern void rd_kafka_queue_io_event_enable(void *queue, int fd, const void *payload, size_t size) __attribute__((weak));

static int bell_hang(uintptr_t queue, int fd) {
	if (!rd_kafka_queue_io_event_enable) return 0;
	rd_kafka_queue_io_event_enable((void *)queue, fd, "!", 1);
	return 1;
}
*/
import "C"

import (
	"os"
	"reflect"
	"syscall"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// bell wakes the owner of a consumer when there is something to poll, or to do. To wait for it costs a thread nothing; a Poll that waits is a
// call into C, and while one lasts Go's monitor (sysmon) wakes up thousands of times a second to see whether it has ended: most of the CPU of a
// quiet service. One goroutine hangs, waits and takes down; anyone may ring.
type bell struct {
	r, w *os.File
	buf  [64]byte
}

func newBell() (*bell, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &bell{r: r, w: w}, nil
}

// hang lets librdkafka ring whenever something comes into a consumer's empty queue. It returns false where it cannot: then poll with patience.
func (b *bell) hang(c *confluent.Consumer) bool {
	hung := false
	conn, err := b.w.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Control(func(fd uintptr) { hung = hang(c, int(fd)) })
	return err == nil && hung
}

// takeDown ends it, before the consumer is closed: nothing is written to the bell any more.
func (b *bell) takeDown(c *confluent.Consumer) { hang(c, -1) }

// hang reaches for the queue behind the binding's back; false where the binding looks otherwise.
func hang(c *confluent.Consumer, fd int) bool {
	handle := reflect.ValueOf(c).Elem().FieldByName("handle")
	if handle.Kind() != reflect.Struct {
		return false
	}
	queue := handle.FieldByName("rkq")
	if queue.Kind() != reflect.Pointer || queue.IsNil() {
		return false
	}
	return C.bell_hang(C.uintptr_t(queue.Pointer()), C.int(fd)) != 0
}

// ring never waits: a full pipe rings already.
func (b *bell) ring() {
	conn, err := b.w.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _, _ = syscall.Write(int(fd), []byte{'!'}) })
}

// wait returns when it has rung since the last wait, or the time is over: false.
func (b *bell) wait(limit time.Duration) bool {
	_ = b.r.SetReadDeadline(time.Now().Add(limit))
	n, _ := b.r.Read(b.buf[:])
	return n > 0
}

// close comes when all that were hung are taken down. Who rings later rings in vain.
func (b *bell) close() {
	b.r.Close()
	b.w.Close()
}
