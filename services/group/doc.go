// Package group is queue mode: the records of a consumer group are dealt to any number of workers, which acknowledge them in any order. It knows
// neither Kafka nor HTTP: a Cluster gives it one membership of Kafka's group for each group of this process, a DeadLetters takes what nobody could
// process.
//
// # The path of a record
//
// The membership appends batches to the lane of their partition. A record waits in the queue of its key, or with all that have none; a queue with
// something to deal stands in its lane's line, a lane in the group's. A worker pulls: it takes its share of what stands in line, lanes and queues in
// turn, and with the first record of a key the key: the next ones are its alone until it holds none of them. An ack moves the tracker of the
// partition; its front, below which everything is done, is what the membership commits. What is given back (nack, timeout, end of the worker) waits
// at the front of its queue, or becomes a dead letter.
//
// Nothing scans: the backlog of a key costs only that key.
//
// # Who owns what
//
// One lock for each group (Group.mu), held for short sections: workers and the membership call from their own goroutines, and dealing is done by the
// worker that pulls. There is no goroutine and no timer for a worker or a delivery.
//
//	goroutine           started, awaited by   owns
//	membership          Groups.Run            Cluster.Join: the one caller of Assign, Append, Gap, Revoke, Lose, Turn, Committed of its Group
//	clock of a group    Groups.Run            timeouts, delays, the linger, what is told of stuck partitions
//	burial of a group   Groups.Run            the questions to DeadLetters
//	owner of a Worker   its creator           Pull; other methods of a Worker may be called concurrently
//
// Order of locks: Groups.mu, Group.mu. Cluster and DeadLetters are called without locks.
package group
