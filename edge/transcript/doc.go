// Package transcript proves the protocol of the edge from outside: dialogues in testdata are replayed against a whole edge with a service and a
// Kafka behind it, clients misbehave while others are watched, and strict clients judge every frame. testdata/FORMAT.md says how dialogues are
// written, testdata/rules.txt which rule is proved where.
package transcript
