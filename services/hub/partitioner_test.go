package hub_test

import (
	"testing"
	"testing/synctest"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestPartitioners has the check value of CRC-32 and a vector of FNV-1a's reference code, whose sign is dropped.
func TestPartitioners(t *testing.T) {
	for _, c := range []struct {
		p    hub.Partitioner
		key  string
		want int32
	}{
		{hub.CRC32, "123456789", 0xcbf43926 % 17},
		{hub.CRC32, "", -1},
		{hub.FNV1a, "foobar", (1<<32 - 0xbf9cf968) % 17},
		{hub.FNV1a, "", (1<<32 - 0x811c9dc5) % 17},
		{hub.Anywhere, "foobar", -1},
		{hub.Murmur2, "21", 1173551340 % 17},
	} {
		if got := c.p.Partition([]byte(c.key), 17); got != c.want {
			t.Errorf("%v of %q = %d, want %d", c.p, c.key, got, c.want)
		}
	}
}

func TestParsePartitioner(t *testing.T) {
	for _, p := range []hub.Partitioner{hub.Murmur2, hub.CRC32, hub.FNV1a, hub.Anywhere} {
		if got, err := hub.ParsePartitioner(p.String()); got != p || err != nil {
			t.Errorf("%v becomes %v, %v", p, got, err)
		}
	}
	if _, err := hub.ParsePartitioner("random"); err == nil {
		t.Error("random is a partitioner")
	}
}

// TestKeysOfAnotherPartitioner: a subscription by key reads where the topic's partitioner says, also what is added later.
func TestKeysOfAnotherPartitioner(t *testing.T) {
	for _, p := range []hub.Partitioner{hub.CRC32, hub.FNV1a, hub.Anywhere} {
		bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
			src.SetPartitioner(p)
			src.CreateTopic("a", 5)
			key := []byte("k")
			w := newSignal()
			s := subscribe(t, h, hub.Request{Topic: "a", Keys: [][]byte{key}}, w)
			want := 1
			if p == hub.Anywhere {
				want = 5
			}
			if got := len(s.Started().Partitions); got != want {
				t.Errorf("%v: %d partitions are read, want %d", p, got, want)
			}
			src.Grow("a", 8)
			synctest.Wait()
			for i := range int32(8) {
				if at := p.Partition(key, 8); at < 0 || at == i {
					src.Append("a", i, hubtest.Text("k", "v"))
				}
			}
			got := drainTo(t, s, w, map[bool]int{true: 8, false: 1}[p == hub.Anywhere])
			for i, n := range got {
				if n > 1 {
					t.Errorf("%v: %d records of partition %d", p, n, i)
				}
			}
		})
	}
}
