#!/usr/bin/env bash
# Set-up, build and the main job in one command; see README.md. Arguments go to bdcp-quickstart.
# Exit status: 0 ok, 4 the environment lacks something (the report says what), 5 a comparison failed.
set -euo pipefail
# shellcheck source=tools/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

bdcp_say "building (release)"
cmake --build "$bdcp_build" --target bdcp_programs -j "$(bdcp_build_jobs)"
status=0
"$bdcp_build/bin/bdcp-quickstart" --cache "$bdcp_root/build/kernel-cache" "$@" || status=$?
bdcp_report_missing
exit "$status"
