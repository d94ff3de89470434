package hub_test

import (
	"testing"

	"tailrace.dev/tailrace/services/hub"
)

// TestMurmur2 has the vectors of Kafka's UtilsTest.testMurmur2.
func TestMurmur2(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(hub.HashMurmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestPartitionOf(t *testing.T) {
	// -973932308 & 0x7fffffff = 1173551340
	if got, want := hub.PartitionOf([]byte("21"), 7), int32(1173551340%7); got != want {
		t.Errorf("PartitionOf = %d, want %d", got, want)
	}
}
