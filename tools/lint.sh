#!/usr/bin/env bash
# Checks the layout of all tracked C++ and CUDA files; with --tidy also runs clang-tidy over build/release (slow);
# with --fix rewrites instead. The layout of other clang-format versions differs, so only 14 is asked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fix='' tidy=''
for argument in "$@"; do
  case "$argument" in
    --fix) fix=1 ;;
    --tidy) tidy=1 ;;
    *) echo "usage: tools/lint.sh [--fix] [--tidy]" >&2; exit 2 ;;
  esac
done

format=''
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then format="$candidate"; break; fi
done
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cuh' '*.cu')
if [ -z "$format" ]; then
  echo "lint: clang-format 14 is not installed; layout not checked"
elif [ -n "$fix" ]; then
  "$format" -i "${files[@]}"
else
  "$format" --dry-run -Werror "${files[@]}"
  echo "lint: ${#files[@]} files are laid out as .clang-format says"
fi

if [ -n "$tidy" ]; then
  database=build/release/compile_commands.json
  [ -f "$database" ] || { echo "lint: --tidy needs $database (run tools/setup.sh)" >&2; exit 4; }
  git ls-files --cached --others --exclude-standard -- 'runtime/*.cc' 'autotune/*.cc' 'tools/*.cc' |
    while read -r file; do grep -q "/$file\"" "$database" && printf '%s\n' "$file"; done |
    xargs -r -P "$(nproc)" -n 1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option --warnings-as-errors='*' -p build/release
  echo "lint: clang-tidy is content"
fi
