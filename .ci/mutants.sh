#!/usr/bin/env bash
# Shows that the tests of the hub (or of MUTANT_PACKAGE) can fail: each patch in its testdata/mutants breaks it in one place, and the model test, or
# another, must notice. The tree is not touched; patched files reach the compiler by -overlay. Fails if the unpatched hub fails, a patch does not apply
# or build, or a mutant survives. A history that hangs is caught, by the deadline that the test has for each; a run that is slow as a whole
# (go test -timeout) or has to be killed is not: that says more of the machine than of the mutant.
#
# usage: mutants.sh [name…]   only the patches whose names contain one of these
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=${MUTANT_PACKAGE:-services/hub}
seeds=${MUTANT_SEEDS:-400}
deadline=${MUTANT_DEADLINE:-60s}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# Random histories first: those that fail do so again. Then what is tested in one way only.
run() { # log
	play -test.run '^TestModel$' >"$1" 2>&1 && play -test.run '^TestRacingReaders$' >>"$1" 2>&1 &&
		play -test.skip '^(TestModel|TestRacingReaders)$' >>"$1" 2>&1
}

# What the model of a package takes.
case $package in
services/group) flags=(-group.seeds "$seeds") ;;
*) flags=(-hub.seeds "$seeds" -hub.races 1 -hub.shrink 0 -hub.hang 30s) ;;
esac

play() { # flags…
	timeout --kill-after=5 150 "$tmp/test" "$@" -test.timeout "$deadline" "${flags[@]}"
}

build() { # overlay log
	go test -c -overlay "$1" -o "$tmp/test" "./$package" >"$2" 2>&1
}

wanted() {
	[[ $# -eq 1 ]] && return 0
	local name=$1 part
	shift
	for part; do [[ $name == *"$part"* ]] && return 0; done
	return 1
}

echo '{}' >"$tmp/none.json"
started=$SECONDS
if ! build "$tmp/none.json" "$tmp/log" || ! run "$tmp/log"; then
	tail -n 40 "$tmp/log"
	echo "$package fails without any mutant"
	exit 1
fi
printf '%-36s %-12s %5ss\n' "(unpatched)" passes $((SECONDS - started))

caught=0 bad=0
for patch in "${MUTANTS:-$package/testdata/mutants}"/*.patch; do
	name=$(basename "$patch" .patch)
	wanted "$name" "$@" || continue
	work=$tmp/$name
	mkdir -p "$work/$package"
	cp "$package"/*.go "$work/$package/"
	started=$SECONDS detail=""
	if ! (cd "$work" && GIT_CEILING_DIRECTORIES=$tmp git apply -) <"$patch" >"$tmp/log" 2>&1; then
		verdict="NO APPLY" detail=$(head -n 1 "$tmp/log")
	else
		{
			echo '{"Replace":{'
			comma=""
			for file in "$work/$package"/*.go; do
				cmp -s "$file" "$package/${file##*/}" && continue
				printf '%s"%s":"%s"\n' "$comma" "$PWD/$package/${file##*/}" "$file"
				comma=,
			done
			echo '}}'
		} >"$work/overlay.json"
		if ! build "$work/overlay.json" "$tmp/log"; then
			verdict="NO BUILD" detail=$(grep -m 1 -o '[a-z0-9_]*\.go:.*' "$tmp/log" || true)
		else
			code=0
			run "$tmp/log" || code=$?
			case $code in
			0) verdict=SURVIVES ;;
			124 | 137) verdict=HANGS ;;
			*)
				verdict=caught
				grep -q '^panic: test timed out' "$tmp/log" && verdict="TOO SLOW"
				detail=$({ grep -m 1 -oE 'seed [0-9]+.*|panic: .*' "$tmp/log" || grep -m 1 -oE -e '--- FAIL: .*' "$tmp/log"; } |
					sed 's/ (go test[^)]*)//' | cut -c1-150 || true)
				;;
			esac
		fi
	fi
	if [[ $verdict == caught ]]; then caught=$((caught + 1)); else bad=$((bad + 1)); fi
	printf '%-36s %-12s %5ss  %s\n' "$name" "$verdict" $((SECONDS - started)) "$detail"
	rm -rf "$work"
done
echo "$((caught + bad)) mutants, $caught caught, $bad not"
[[ $bad -eq 0 && $caught -gt 0 ]]
