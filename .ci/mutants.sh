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
deadline=${MUTANT_DEADLINE:-60s}
jobs=${MUTANT_JOBS:-$(nproc)}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# What the model of a package takes.
case $package in
services/group)
	flags=(-group.seeds "${MUTANT_SEEDS:-100}")
	model=(TestModel)
	;;
*)
	flags=(-hub.seeds "${MUTANT_SEEDS:-400}" -hub.races 1 -hub.shrink 0 -hub.hang 30s)
	model=(TestModel TestRacingReaders)
	;;
esac

# Random histories first: those that fail do so again. Then what is tested in one way only. It ends with the first that fails.
run() { # folder
	local name all
	for name in "${model[@]}"; do
		play "$1" -test.run "^$name\$" || return
	done
	all=$(IFS='|' && echo "${model[*]}")
	play "$1" -test.skip "^($all)\$"
}

play() { # folder flags…
	local work=$1
	shift
	timeout --kill-after=5 150 "$work/test" -test.failfast "$@" -test.timeout "$deadline" "${flags[@]}" >>"$work/log" 2>&1
}

build() { # overlay folder
	go test -c -ldflags='-s -w' -overlay "$1" -o "$2/test" "./$package" >"$2/log" 2>&1
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
if ! build "$tmp/none.json" "$tmp" || ! run "$tmp"; then
	tail -n 40 "$tmp/log"
	echo "$package fails without any mutant"
	exit 1
fi
printf '%-36s %-12s %5ss\n' "(unpatched)" passes $((SECONDS - started))

# judge builds and runs one mutant in a folder of its own, and writes what became of it.
judge() { # patch name
	local patch=$1 name=$2 work=$tmp/$2 started=$SECONDS verdict detail="" code=0 file comma=""
	mkdir -p "$work/$package"
	cp "$package"/*.go "$work/$package/"
	if ! (cd "$work" && GIT_CEILING_DIRECTORIES=$tmp git apply -) <"$patch" >"$work/log" 2>&1; then
		verdict="NO APPLY" detail=$(head -n 1 "$work/log")
	else
		{
			echo '{"Replace":{'
			for file in "$work/$package"/*.go; do
				cmp -s "$file" "$package/${file##*/}" && continue
				printf '%s"%s":"%s"\n' "$comma" "$PWD/$package/${file##*/}" "$file"
				comma=,
			done
			echo '}}'
		} >"$work/overlay.json"
		if ! build "$work/overlay.json" "$work"; then
			verdict="NO BUILD" detail=$(grep -m 1 -o '[a-z0-9_]*\.go:.*' "$work/log" || true)
		else
			run "$work" || code=$?
			case $code in
			0) verdict=SURVIVES ;;
			124 | 137) verdict=HANGS ;;
			*)
				verdict=caught
				grep -q '^panic: test timed out' "$work/log" && verdict="TOO SLOW"
				detail=$({ grep -m 1 -oE 'seed [0-9]+.*|panic: .*' "$work/log" || grep -m 1 -oE -e '--- FAIL: .*' "$work/log"; } |
					sed 's/ (go test[^)]*)//' | cut -c1-150 || true)
				;;
			esac
		fi
	fi
	printf '%-36s %-12s %5ss  %s\n' "$name" "$verdict" $((SECONDS - started)) "$detail" >"$tmp/$name.verdict"
	rm -rf "$work"
}

# Several at a time; what became of them is told in order.
names=()
for patch in "${MUTANTS:-$package/testdata/mutants}"/*.patch; do
	name=$(basename "$patch" .patch)
	wanted "$name" "$@" || continue
	names+=("$name")
	while [[ $(jobs -rp | wc -l) -ge $jobs ]]; do wait -n || true; done
	judge "$patch" "$name" &
done
wait
caught=0 bad=0
for name in "${names[@]}"; do
	cat "$tmp/$name.verdict" || echo "$name was not judged"
	if grep -q '^[^ ]* *caught ' "$tmp/$name.verdict"; then caught=$((caught + 1)); else bad=$((bad + 1)); fi
done
echo "$((caught + bad)) mutants, $caught caught, $bad not"
[[ $bad -eq 0 && $caught -gt 0 ]]
