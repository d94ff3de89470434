package kafkatest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// SaveLog copies what a stopped broker (1, 2, 3) has of a partition, and returns what ReplaceLog takes: so a test makes a log that lost its end, as
// by an unclean election or a restored disk.
func (c *Cluster) SaveLog(t testing.TB, id int, topic string, partition int32) (saved string) {
	t.Helper()
	saved = filepath.Join(c.dir, "saved-"+strconv.FormatInt(topics.Add(1), 10))
	if err := os.CopyFS(saved, os.DirFS(c.log(id, topic, partition))); err != nil {
		t.Fatal(err)
	}
	return saved
}

// ReplaceLog puts a saved log in the place of what a stopped broker has of the partition.
func (c *Cluster) ReplaceLog(t testing.TB, id int, topic string, partition int32, saved string) {
	t.Helper()
	at := c.log(id, topic, partition)
	if err := os.RemoveAll(at); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(at, os.DirFS(saved)); err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) log(id int, topic string, partition int32) string {
	return filepath.Join(c.dir, "data", fmt.Sprintf("broker-%d", id), fmt.Sprintf("%s-%d", topic, partition))
}
