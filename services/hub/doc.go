// Package hub is the heart of Tailrace: a ring of the newest records of each topic, history read in shared chunks, and subscriptions that
// are cursors over both. It knows neither Kafka nor HTTP: the service gives it a Source over Kafka, the edge one over the service's RPC.
//
// # The path of an entry
//
// A Source appends entries; Topic.Append puts them into the topic's arrival order (Seq) and signals. A waker goroutine feeds the logs of
// terms (keys and partitions that somebody asked for), then tells the owners of subscriptions. Owners pull. Nobody waits for a reader.
//
// A subscription to a whole topic holds one Seq: segments of the ring carry the next offsets at their start, so one number is a position in
// every partition. A filtered subscription holds the same number, and finds its records in the logs of its terms. Partitions whose
// position is not the ring's next at that Seq are kept apart (behind): below it they are read from history or from the ring until they
// meet it (the seam), above it what was delivered already is left out. A cursor that falls off the ring turns into positions behind.
//
// # Who owns what
//
//	goroutine                    started, awaited by   owns
//	wakers (GOMAXPROCS)          Hub.Run               passes over topics with news: feed the logs of terms, call Wakers
//	history readers              Hub.Run               one lane (partition) at a time: ReadAt, its chunk
//	keeper                       Hub.Run               retention, budget, linger, growth; starts tasks
//	tasks (unfollow, resolve)    Hub.Run               one blocking call of the Source
//	a Source's writer            the Source            Append of its partitions
//	owner of a Subscription      its creator           every method of the Subscription
//
// # Order of locks
//
// Hub.mu, Topic.followMu, Topic.feedMu, Topic.mu, terms.mu, term.mu, history.mu. Wakers and the Source are called without locks, except that
// Source.Follow, which returns at once, is called under followMu.
package hub
