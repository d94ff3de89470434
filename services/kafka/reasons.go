package kafka

// Stable reasons of tailrace.v1.PublishFailure; texts may change, these do not.
const (
	ReasonUnknownTopic     = "UNKNOWN_TOPIC"        // the topic does not exist
	ReasonUnknownPartition = "UNKNOWN_PARTITION"    // the topic does not have the partition that the record names
	ReasonInvalidRecord    = "INVALID_RECORD"       // a header name with NUL, a negative partition, or the broker's own judgement
	ReasonRecordTooLarge   = "RECORD_TOO_LARGE"     // larger than the topic or this service takes
	ReasonNotAuthorized    = "KAFKA_NOT_AUTHORIZED" // Kafka does not let this service write there
	ReasonKafkaUnavailable = "KAFKA_UNAVAILABLE"    // Kafka, or the partition's leader, does not answer, or has too few replicas; nothing was written
	ReasonLimit            = "LIMIT"                // others' records, or the caller's own, wait too long; come back later
	ReasonDraining         = "DRAINING"             // this process is shutting down
	ReasonCanceled         = "CANCELED"             // the caller left before the record was handed over
	ReasonOutcomeUnknown   = "OUTCOME_UNKNOWN"      // it may be in the log, or appear there
	ReasonKafkaRefused     = "KAFKA_REFUSED"        // another refusal by the broker
)
