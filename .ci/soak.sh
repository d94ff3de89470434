#!/usr/bin/env bash
# Runs the suites, the fuzz tests and the benchmarks at full size, one after the other, and writes what they say to .tmp/soak/DATE.txt. Goes on after a failure and fails in the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p .tmp/soak
out=.tmp/soak/$(date -u +%Y-%m-%dT%H%M%SZ).txt
failed=0

suites=()

race=-race

suite() { # package flags…
	local package=$1
	shift
	suites+=("$(go list "$package")")
	echo "=== $package $race $*"
	go test $race -v -count=1 -timeout 6h "$package" "$@" || failed=1
}

{
	echo "commit $(git describe --always --dirty), $(go version), $(nproc) cores, $(ulimit -n) descriptors"
	suite ./services/hub -hub.seeds 200000 -hub.races 100
	suite ./services/group -group.seeds 50000
	suite ./services/cmd/tailrace -tailrace.kills 200 -tailrace.rounds 20
	suite ./edge/upstream -upstream.full
	suite ./edge -edge.full
	suite ./edge/transcript -edge.full
	race= # thousands of clients in one process with the race detector do not even answer the pings of their connections in time; CI has it on
	suite ./edge/e2e -e2e.full
	race=-race
	# All others have one size.
	for package in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do
		[[ " ${suites[*]} " == *" $package "* ]] || suite "$package"
	done
	echo "=== fuzz tests, for five minutes each"
	make fuzz FUZZTIME=5m || failed=1
	echo "=== figures"
	go test -run '^$' -bench . -benchtime 1x -timeout 6h ./edge/e2e -e2e.full || failed=1
	echo "=== ended $(date -u +%Y-%m-%dT%H:%M:%SZ)"
} > >(grep --line-buffered -vE '^=== (RUN|PAUSE|CONT|NAME)' | tee "$out") 2>&1
wait $!
echo "written to $out"
exit $failed
