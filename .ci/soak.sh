#!/usr/bin/env bash
# Runs the suites and the benchmarks at full size, one after the other, and writes what they say to .tmp/soak/DATE.txt. Goes on after a failure and fails in the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p .tmp/soak
out=.tmp/soak/$(date -u +%Y-%m-%dT%H%M%SZ).txt
failed=0

suite() { # package flags…
	local package=$1
	shift
	echo "=== $package $*"
	go test -race -v -count=1 -timeout 6h "$package" "$@" || failed=1
}

{
	echo "commit $(git describe --always --dirty), $(go version), $(nproc) cores, $(ulimit -n) descriptors"
	suite ./services/hub -hub.seeds 200000 -hub.races 100
	suite ./services/kafka/...
	suite ./services/stream/...
	suite ./edge/frame/...
	suite ./edge/upstream/... -upstream.full
	suite ./edge/console/...
	suite ./services/cmd/...
	suite ./edge/cmd/...
	suite ./edge -edge.full
	suite ./edge/e2e -e2e.full
	echo "=== ended $(date -u +%Y-%m-%dT%H:%M:%SZ)"
} > >(grep --line-buffered -vE '^=== (RUN|PAUSE|CONT|NAME)' | tee "$out") 2>&1
wait $!
echo "written to $out"
exit $failed
