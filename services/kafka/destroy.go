package kafka

/*
#include <stdint.h>

// Of the librdkafka that the binding links. Weak: this package is linked for a moment without it.
extern void rd_kafka_queue_destroy(void *queue) __attribute__((weak));
extern void rd_kafka_topic_destroy(void *topic) __attribute__((weak));
extern void rd_kafka_destroy_flags(void *client, int flags) __attribute__((weak));

static int can_destroy(void) { return rd_kafka_queue_destroy && rd_kafka_topic_destroy && rd_kafka_destroy_flags; }
static void queue_destroy(uintptr_t queue) { rd_kafka_queue_destroy((void *)queue); }
static void topic_destroy(uintptr_t topic) { rd_kafka_topic_destroy((void *)topic); }
static void client_destroy(uintptr_t client) { rd_kafka_destroy_flags((void *)client, 0x8); } // RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE
*/
import "C"

import (
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// destroy frees a consumer that a fatal error has ended. rd_kafka_consumer_close_queue refuses to close such a one, and the binding's Close waits
// for that for ever, with a thread and all of the client's memory. What a silent end needs is in librdkafka, as RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE,
// but not in the binding, so that this does what its Close would do, behind its back. Nobody else may use the consumer any more. false where the
// binding looks otherwise: then nothing was done.
func destroy(c *confluent.Consumer) bool {
	of := reflect.ValueOf(c).Elem()
	handle := of.FieldByName("handle")
	if handle.Kind() != reflect.Struct || C.can_destroy() == 0 {
		return false
	}
	closing, closed := of.FieldByName("isClosing"), of.FieldByName("isClosed")
	quit, readers := of.FieldByName("readerTermChan"), handle.FieldByName("waitGroup")
	client, queue, logs, topics := handle.FieldByName("rk"), handle.FieldByName("rkq"), handle.FieldByName("logq"), handle.FieldByName("rktCache")
	if closing.Kind() != reflect.Uint32 || closed.Kind() != reflect.Uint32 || quit.Kind() != reflect.Chan || quit.Type() != reflect.TypeFor[chan bool]() ||
		readers.Kind() != reflect.Struct || readers.Type() != reflect.TypeFor[sync.WaitGroup]() || client.Kind() != reflect.Pointer || queue.Kind() != reflect.Pointer ||
		logs.Kind() != reflect.Pointer || topics.Kind() != reflect.Map {
		return false
	}
	if !atomic.CompareAndSwapUint32(at[uint32](closing), 0, 1) {
		return true // it was done
	}
	close(*at[chan bool](quit))
	at[sync.WaitGroup](readers).Wait()
	atomic.StoreUint32(at[uint32](closed), 1)
	for _, q := range []reflect.Value{queue, logs} {
		if !q.IsNil() {
			C.queue_destroy(C.uintptr_t(q.Pointer()))
		}
	}
	for topic := topics.MapRange(); topic.Next(); {
		C.topic_destroy(C.uintptr_t(topic.Value().Pointer()))
	}
	C.client_destroy(C.uintptr_t(client.Pointer()))
	return true
}

// at is the place of a field that is not exported.
func at[T any](field reflect.Value) *T { return (*T)(unsafe.Pointer(field.UnsafeAddr())) }
