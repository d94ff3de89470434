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
	{ apt-get update && apt-get install -y --no-install-recommends "$package"; } >"$log" 2>&1 </dev/null || tail -n 5 "$log" >&2
	rm -f "$log"
fi
found || {
	echo "${commands[0]} is missing: install it (Debian's package is $package)" >&2
	exit 1
}
