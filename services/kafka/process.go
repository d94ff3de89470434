package kafka

import (
	"crypto/rand"
	"os"
)

// memberClient stands before the name of a process in the client id of its members.
const memberClient = "tailrace-group-"

// processName tells this process from others, for people and in the descriptions of groups: its host, and something random, since two may share a
// host, and in containers even their process ids.
func processName() string {
	random := rand.Text()[:6]
	host, err := os.Hostname()
	if err != nil || host == "" {
		return random
	}
	return host + "-" + random
}
