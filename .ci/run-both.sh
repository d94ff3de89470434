#!/usr/bin/env bash
# run-both.sh KAFKA: runs a service and an edge from .tmp/bin until Ctrl-C, or until one of them ends; then stops the other. KAFKA is
# "embedded" (with a demo topic) or bootstrap servers. The addresses can be moved by RPC, RPC_OPS, PAGE and PAGE_OPS (host:port).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kafka=$1
rpc=${RPC:-127.0.0.1:7070} rpc_ops=${RPC_OPS:-127.0.0.1:7071}
page=${PAGE:-127.0.0.1:8080} page_ops=${PAGE_OPS:-127.0.0.1:8081}
demo=()
[[ $kafka == embedded ]] && demo=(-demo)

answers() { { exec 3<>"/dev/tcp/${1%:*}/${1##*:}"; } 2>/dev/null && exec 3<&- 3>&-; }
for address in "$rpc" "$rpc_ops" "$page" "$page_ops"; do
	if answers "$address"; then
		echo "$address is taken: does Tailrace run already? Elsewhere: make run RPC=127.0.0.1:17070 RPC_OPS=127.0.0.1:17071 PAGE=127.0.0.1:18080 PAGE_OPS=127.0.0.1:18081" >&2
		exit 1
	fi
done

# Where the system can, a child also ends with this script if that is killed.
leash=()
command -v setpriv >/dev/null && leash=(setpriv --pdeathsig TERM)

# Job control gives each child a process group of its own, so that a Ctrl-C reaches only this script, which stops them in order.
set -m
stopping=
stop() {
	trap '' INT TERM HUP
	stopping=yes
	for pid in ${edge:-} ${service:-}; do
		kill -TERM "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
}
trap 'stop; exit 0' INT TERM HUP
trap '[[ -n $stopping ]] || stop' EXIT

"${leash[@]}" .tmp/bin/tailrace -listen "$rpc" -ops-listen "$rpc_ops" -kafka "$kafka" "${demo[@]}" </dev/null &
service=$!
until answers "$rpc" || ! kill -0 "$service" 2>/dev/null; do sleep 0.02; done # or the edge's first line would be that nobody answers
"${leash[@]}" .tmp/bin/tailrace-edge -listen "$page" -ops-listen "$page_ops" -upstream "http://$rpc" </dev/null &
edge=$!

alive() { kill -0 "$service" 2>/dev/null && kill -0 "$edge" 2>/dev/null; }
ready() { # host:port answers /readyz with 200
	local answer=
	{ exec 3<>"/dev/tcp/${1%:*}/${1##*:}"; } 2>/dev/null || return 1
	printf 'GET /readyz HTTP/1.0\r\nHost: %s\r\n\r\n' "$1" >&3 2>/dev/null || true
	IFS= read -r -t 2 answer <&3 || true
	exec 3<&- 3>&-
	[[ $answer == *" 200"* ]]
}

told=
while alive; do
	if ready "$rpc_ops" && ready "$page_ops"; then
		sleep 0.3 # the first lines of both logs come before
		alive || break
		printf '\n  Tailrace is running. Open  http://%s/  ·  Ctrl-C stops it.\n\n' "${page/127.0.0.1/localhost}"
		break
	fi
	if [[ -z $told && $SECONDS -ge 5 ]]; then
		told=yes
		echo "waiting for the service to reach Kafka at $kafka; http://$rpc_ops/healthz tells more" >&2
	fi
	sleep 0.1
done

code=0
wait -n "$service" "$edge" || code=$?
kill -0 "$service" 2>/dev/null && name=tailrace-edge || name=tailrace
echo "$name has ended with code $code; stopping the other" >&2
stop
exit $((code == 0 ? 1 : code))
