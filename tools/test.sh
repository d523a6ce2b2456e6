#!/usr/bin/env bash
# Set-up, build and all tests in one command. Arguments go to ctest (-L host, -R plan, ...).
# Tests without their hardware skip themselves; the reasons are listed after ctest's summary.
set -euo pipefail
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

bdcp_say "building (release)"
cmake --build "$bdcp_build" -j "$(bdcp_build_jobs)"
status=0
junit="$bdcp_build/Testing/junit.xml"
rm -f "$junit"
# No reader of a terminal here: let tests use a cache of the build tree, not the user's.
export BDCP_CACHE_DIR="${BDCP_CACHE_DIR:-$bdcp_root/build/test-kernel-cache}"
ctest --test-dir "$bdcp_build" --output-on-failure --no-tests=error --output-junit "$junit" -j 2 "$@" || status=$?

# GoogleTest says why a case was skipped in the line after "Skipped".
log="$bdcp_build/Testing/Temporary/LastTest.log"
if [ -f "$log" ] && grep -q ': Skipped$' "$log"; then
  echo
  echo "Skipped cases by reason:"
  awk '/: Skipped$/ {getline reason; count[reason]++} END {for (r in count) printf "  %4d  %s\n", count[r], r}' "$log" | sort -rn
fi
bdcp_report_missing
[ -f "$junit" ] || exit "$status"
attribute() { sed -n "/<testsuite /,/>/p" "$junit" | tr '\n' ' ' | sed -n "s/.*[[:space:]]$1=\"\([0-9]*\)\".*/\1/p"; }
total="$(attribute tests)"; failed="$(attribute failures)"; skipped="$(attribute skipped)"; disabled="$(attribute disabled)"
echo
echo "$((total - failed - skipped - disabled)) passed, $failed failed, $((skipped + disabled)) skipped"
exit "$status"
