// Package kafka is the service's side of Apache Kafka, and the only importer of confluent-kafka-go. Client fills hub.Source (follow a
// partition live, read a stretch of history), publishes, and describes topics. Broadcast reading never joins a consumer group: partitions
// are assigned, so nothing is left behind in Kafka and nothing ever rebalances. For queue mode it fills group.Cluster and group.DeadLetters: one member
// of Kafka's group for each group.
//
// Who owns what. librdkafka's Close beside any other call corrupts memory (confluent-kafka-go #1569), so every client has one owner:
//
//	goroutine                     started and awaited by   owns
//	follower (Config.Consumers)   Client.Run               its consumer; the appends of the partitions it follows
//	check of partitions           its follower             nothing: one at a time, what it finds comes back as a command; so do statistics
//	history reader (…Readers)     Client.Run               its consumer, and its places in logs; it answers one request at a time
//	producer                      Client.Run               its producer, and its replacement after a fatal error; who ends the old one is awaited
//	producer events               producer                 delivery reports; ends when the producer is closed
//	producer looks                producer                 nothing: it asks for leaders in doubt
//	watcher                       Client.Run               what is known of followed topics: id, number of partitions
//	member of a group             group.Groups.Run         its consumer; one commit, one look at its topics at a time, both awaited
//	log drain                     Client.Run               the log channel of all clients; the last to end
//
// The admin client is called by many goroutines, under a read lock that only its Close takes exclusively.
//
// A follower polls without waiting, and waits for its bell (bell.go): to wait in Poll costs a quiet service most of its CPU.
package kafka
