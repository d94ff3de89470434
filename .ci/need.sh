#!/usr/bin/env bash
# need.sh COMMAND[|ANOTHER]… PACKAGE: makes sure that one of the commands is there. As root on Debian it installs the package; elsewhere it
# says what to install.
set -euo pipefail

IFS='|' read -ra commands <<<"$1"
package=$2
found() {
	local command
	for command in "${commands[@]}"; do
		command -v "$command" >/dev/null && return
	done
	return 1
}

found && exit
if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
	echo "installing $package" >&2
	export DEBIAN_FRONTEND=noninteractive
	log=$(mktemp)
	# A package such as nginx brings a daemon; nothing of it is to start, on port 80 of every interface, because a test wants the program.
	policy=/usr/sbin/policy-rc.d
	[[ -e $policy ]] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && trap 'rm -f "$policy"' EXIT; }
	{ apt-get update && apt-get install -y --no-install-recommends "$package"; } >"$log" 2>&1 </dev/null || tail -n 5 "$log" >&2
	rm -f "$log"
fi
found || {
	echo "${commands[0]} is missing: install it (Debian's package is $package)" >&2
	exit 1
}
