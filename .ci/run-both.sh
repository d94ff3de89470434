#!/usr/bin/env bash
# run-both.sh KAFKA: runs a service and an edge from .tmp/bin until Ctrl-C, or until one of them ends; then stops the other. A second Ctrl-C
# ends both at once. KAFKA is "embedded" (with a demo topic) or bootstrap servers. The addresses can be moved by RPC, RPC_OPS, PAGE and PAGE_OPS
# (host:port). run-both.sh check only says whether they are free.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kafka=$1
rpc=${RPC:-127.0.0.1:7070} rpc_ops=${RPC_OPS:-127.0.0.1:7071}
page=${PAGE:-127.0.0.1:8080} page_ops=${PAGE_OPS:-127.0.0.1:8081}
demo=()
[[ $kafka == embedded ]] && demo=(-demo)

answers() { { exec 3<>"/dev/tcp/${1%:*}/${1##*:}"; } 2>/dev/null && exec 3<&- 3>&-; }
seen=
for pair in "RPC=$rpc" "RPC_OPS=$rpc_ops" "PAGE=$page" "PAGE_OPS=$page_ops"; do
	name=${pair%%=*} address=${pair#*=}
	if [[ ! $address =~ ^[^:]+:[0-9]+$ ]]; then
		echo "$pair: want host:port, such as $name=127.0.0.1:18080" >&2
		exit 2
	elif [[ " $seen " == *" $address "* ]]; then
		echo "$pair: RPC, RPC_OPS, PAGE and PAGE_OPS want an address each" >&2
		exit 2
	elif answers "$address"; then
		echo "$address is taken: does Tailrace run already? Elsewhere: make run RPC=127.0.0.1:17070 RPC_OPS=127.0.0.1:17071 PAGE=127.0.0.1:18080 PAGE_OPS=127.0.0.1:18081" >&2
		exit 1
	fi
	seen+=" $address"
done
[[ $kafka != check ]] || exit 0

# Where the system can, a child also ends with this script if that is killed.
leash=()
command -v setpriv >/dev/null && leash=(setpriv --pdeathsig TERM)

# pause waits without a process of its own, which a Ctrl-C would reach instead of this script.
exec {never}<> <(:)
pause() { IFS= read -rt "$1" -u "$never" _ || true; }

# Each line says which process it is from.
export TAILRACE_LOG_FORMAT=${TAILRACE_LOG_FORMAT:-text}
from() { trap '' INT TERM HUP && exec sed -u "s/^/$1 | /"; }

# Job control gives each child a process group of its own, so that a Ctrl-C reaches only this script, which stops them in order.
set -m
asked=0 # how often it was told to end
service='' edge=''
trap 'asked=$((asked + 1))' INT TERM HUP
alive() { kill -0 "$1" 2>/dev/null; }

# stop ends the edge, then the service; all at once when asked again.
stop() {
	local pid
	for pid in $edge $service; do
		kill -TERM "$pid" 2>/dev/null || true
		while alive "$pid"; do
			if ((asked > 1)); then
				kill -KILL $edge $service 2>/dev/null || true
			fi
			wait "$pid" 2>/dev/null || true # a signal ends it, too
		done
	done
	edge='' service=''
}
trap stop EXIT

"${leash[@]}" .tmp/bin/tailrace -listen "$rpc" -ops-listen "$rpc_ops" -kafka "$kafka" "${demo[@]}" </dev/null > >(from service) 2>&1 &
service=$!
until answers "$rpc" || ! alive "$service" || ((asked)); do pause 0.02; done # or the edge's first line would be that nobody answers
if ((asked == 0)); then
	"${leash[@]}" .tmp/bin/tailrace-edge -listen "$page" -ops-listen "$page_ops" -upstream "http://$rpc" </dev/null > >(from 'edge   ') 2>&1 &
	edge=$!
fi

running() { ((asked == 0)) && alive "$service" && alive "$edge"; }
ready() { # host:port answers /readyz with 200
	local answer=
	{ exec 3<>"/dev/tcp/${1%:*}/${1##*:}"; } 2>/dev/null || return 1
	printf 'GET /readyz HTTP/1.0\r\nHost: %s\r\n\r\n' "$1" >&3 2>/dev/null || true
	IFS= read -r -t 2 answer <&3 || true
	exec 3<&- 3>&-
	[[ $answer == *" 200"* ]]
}

told=
while running; do
	if ready "$rpc_ops" && ready "$page_ops"; then
		pause 0.3 # the first lines of both logs come before
		running || break
		printf '\n  Tailrace is running. Open  http://%s/  ·  Ctrl-C stops it.\n\n' "${page/127.0.0.1/localhost}"
		break
	fi
	if [[ -z $told && $SECONDS -ge 5 ]]; then
		told=yes
		echo "waiting for the service to reach Kafka at $kafka; http://$rpc_ops/healthz tells more" >&2
	fi
	pause 0.1
done

code=0
if ((asked == 0)); then
	wait -n $service $edge || code=$?
fi
if ((asked)); then
	echo "stopping: the edge tells its clients to come back, spread over some seconds; Ctrl-C again ends both at once" >&2
	stop
	exit 0
fi
alive "$service" && name=tailrace-edge || name=tailrace
echo "$name has ended with code $code; stopping the other" >&2
stop
exit $((code == 0 ? 1 : code))
