// Package e2e proves Tailrace from outside: its tests start the real binaries and a real Apache Kafka, drive them over real sockets,
// kill them, and compare what was delivered with what an independent Kafka client finds in the log.
//
// The tests run at CI size; -e2e.full gives the full size. Each prints its size and figures in a line that begins with "proof". The
// benchmarks (-bench) measure the product beside references (pollbench) in the same run and print one table; -e2e.profiles DIR keeps CPU profiles of both processes. Nothing here is imported by others.
package e2e
