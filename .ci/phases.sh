#!/usr/bin/env bash
# phases.sh TARGET…: makes each target, goes on after a failure, tells what each took, and ends with the counts of the tests.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rm -f .tmp/logs/counts
failed=() report=()
for target; do
	echo "::: $target"
	started=$SECONDS verdict=ok
	make "$target" || { verdict=FAILED && failed+=("$target"); }
	report+=("$(printf '%-12s %-6s %4d s' "$target" "$verdict" $((SECONDS - started)))")
done
echo
printf '%s\n' "${report[@]}"
[[ ${#failed[@]} -eq 0 ]] || echo "failed: ${failed[*]}"
cat .tmp/logs/counts 2>/dev/null || echo "0 passed, 0 failed"
[[ ${#failed[@]} -eq 0 ]]
