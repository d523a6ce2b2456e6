#!/usr/bin/env bash
# Installs what the build lacks and configures build/release. Sourced by quickstart.sh and test.sh; may be run alone.
# Where nothing is missing, neither a package manager nor the network is touched.
#
#   BDCP_SKIP_INSTALL=1          install nothing; only say what is missing
#   BDCP_NO_SYSTEM_CUDA=1        act as if this machine had no CUDA toolkit (takes the pip wheels)
#   BDCP_CUDA_INCLUDE_DIRS       folders with cuda.h and nvrtc.h; "none": build without
#   BDCP_CUDA_WHEELS             pip requirements to use instead of those chosen by the driver's CUDA version
#   BDCP_VALIJSON_INCLUDE_DIR, BDCP_XXHASH_INCLUDE_DIR   where no package provides them
#   BDCP_CMAKE_ARGS              further arguments for the configure step
set -euo pipefail

bdcp_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bdcp_build="$bdcp_root/build/release"
bdcp_wheels="$bdcp_root/build/wheels"
bdcp_missing=()  # what could not be had, for the last lines of a report

bdcp_say() { printf '[set-up] %s\n' "$*"; }
bdcp_fail() { printf '[set-up] error: %s\n' "$*" >&2; exit 4; }

bdcp_as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else bdcp_say "not root and no sudo; as root, run: $*" >&2; return 1
  fi
}

# --- packages -------------------------------------------------------------------------------------------------

bdcp_has_header() {
  printf '#include <%s>\n' "$1" |
    "${CXX:-c++}" -std=c++20 -E -x c++ ${BDCP_VALIJSON_INCLUDE_DIR:+"-I$BDCP_VALIJSON_INCLUDE_DIR"} \
      ${BDCP_XXHASH_INCLUDE_DIR:+"-I$BDCP_XXHASH_INCLUDE_DIR"} - >/dev/null 2>&1
}

# Debian package and how to see that it, or the same thing from elsewhere, is there.
bdcp_missing_packages() {
  local need=()
  command -v "${CXX:-c++}" >/dev/null || need+=(g++)
  command -v cmake >/dev/null || need+=(cmake)
  command -v ninja >/dev/null || need+=(ninja-build)
  local package header
  while read -r package header; do
    bdcp_has_header "$header" || need+=("$package")
  done <<'END'
libfmt-dev fmt/format.h
libspdlog-dev spdlog/logger.h
nlohmann-json3-dev nlohmann/json.hpp
libcli11-dev CLI/CLI.hpp
libvalijson-dev valijson/validator.hpp
libxxhash-dev xxhash.h
libgtest-dev gtest/gtest.h
libgmock-dev gmock/gmock.h
libbenchmark-dev benchmark/benchmark.h
END
  printf '%s\n' "${need[@]}"
}

bdcp_apt_updated=
bdcp_apt_install() {
  command -v apt-get >/dev/null || return 1
  [ -z "${BDCP_SKIP_INSTALL:-}" ] || return 1
  if [ -z "$bdcp_apt_updated" ]; then
    bdcp_as_root apt-get update -qq || return 1
    bdcp_apt_updated=1
  fi
  bdcp_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

bdcp_install_packages() {
  local need
  # Without a compiler no header can be looked for, so the first look may name packages that are there: harmless.
  mapfile -t need < <(bdcp_missing_packages | sed '/^$/d')
  [ "${#need[@]}" -gt 0 ] || return 0
  bdcp_say "missing: ${need[*]}"
  bdcp_apt_install "${need[@]}" ||
    bdcp_fail "these packages are needed and could not be installed here: ${need[*]}" \
              "(BDCP_VALIJSON_INCLUDE_DIR and BDCP_XXHASH_INCLUDE_DIR may point at headers that no package provides)"
  mapfile -t need < <(bdcp_missing_packages | sed '/^$/d')
  [ "${#need[@]}" = 0 ] || bdcp_fail "still missing after the installation: ${need[*]}"
  bdcp_say "packages installed"
}

# --- CUDA headers and libnvrtc ----------------------------------------------------------------------------------

bdcp_system_cuda() {  # a toolkit (or its packages) with headers and libnvrtc
  [ -z "${BDCP_NO_SYSTEM_CUDA:-}" ] || return 1
  local home dir headers='' library=''
  for dir in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local /usr; do
    [ -n "$dir" ] && [ -f "$dir/include/cuda.h" ] && [ -f "$dir/include/nvrtc.h" ] && headers="$dir/include" && break
  done
  [ -n "$headers" ] || return 1
  [ -n "${BDCP_LIBNVRTC:-}" ] && return 0
  for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-*; do
    for dir in "$home"/lib64 "$home"/lib "$home"/targets/*/lib; do
      [ -n "$home" ] && compgen -G "$dir/libnvrtc.so*" >/dev/null && library=1 && break 2
    done
  done
  [ -n "$library" ] || { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -q 'libnvrtc\.so'
}

bdcp_wheel_dir() {  # the folder under build/wheels that holds FILE, whatever the wheels' layout
  local hit
  hit="$(compgen -G "$bdcp_wheels/nvidia/*/$1" | head -n 1)" || return 1
  [ -n "$hit" ] && dirname "$hit"
}
bdcp_wheels_complete() {
  bdcp_wheel_dir include/cuda.h && bdcp_wheel_dir include/nvrtc.h && bdcp_wheel_dir 'lib/libnvrtc.so.*'
} >/dev/null

bdcp_wheel_names() {  # NVRTC must not be newer than the driver's major version, where there is a driver
  if [ -n "${BDCP_CUDA_WHEELS:-}" ]; then
    echo "$BDCP_CUDA_WHEELS"
  elif command -v nvidia-smi >/dev/null && nvidia-smi 2>/dev/null | grep -q 'CUDA Version: 12\.'; then
    echo "nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"
  else
    echo "nvidia-cuda-nvrtc==13.0.* nvidia-cuda-runtime==13.0.*"
  fi
}

bdcp_fetch_wheels() {
  bdcp_wheels_complete && return 0
  [ -z "${BDCP_SKIP_INSTALL:-}" ] || return 1
  if ! python3 -m pip --version >/dev/null 2>&1; then
    bdcp_say "missing: python3-pip (for the CUDA wheels)"
    bdcp_apt_install python3-pip || return 1
  fi
  local names part="$bdcp_wheels.part"
  read -r -a names <<<"$(bdcp_wheel_names)"
  bdcp_say "no CUDA toolkit; fetching headers and libnvrtc: ${names[*]}"
  # A folder of its own, renamed when complete: an interrupted download is never mistaken for a toolkit.
  rm -rf "$part" "$bdcp_wheels"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$part" "${names[@]}" || return 1
  mv "$part" "$bdcp_wheels"
  bdcp_wheels_complete
}

bdcp_cmake_cuda=()
bdcp_find_cuda() {
  bdcp_cmake_cuda=("-DBDCP_CUDA_INCLUDE_DIRS=${BDCP_CUDA_INCLUDE_DIRS:-}" -DBDCP_WHEEL_LIBRARY_DIR=)
  if [ -n "${BDCP_CUDA_INCLUDE_DIRS:-}" ]; then
    bdcp_say "CUDA headers: $BDCP_CUDA_INCLUDE_DIRS (BDCP_CUDA_INCLUDE_DIRS)"
  elif bdcp_system_cuda; then
    bdcp_say "CUDA toolkit found"
  elif bdcp_fetch_wheels; then
    bdcp_say "CUDA headers and libnvrtc from the wheels in build/wheels"
    local library
    library="$(bdcp_wheel_dir 'lib/libnvrtc.so.*')"
    bdcp_cmake_cuda=("-DBDCP_CUDA_INCLUDE_DIRS=$(bdcp_wheel_dir include/cuda.h);$(bdcp_wheel_dir include/nvrtc.h)"
                     "-DBDCP_WHEEL_LIBRARY_DIR=$library")
    # With the switch, the toolkit that is there must not be opened either.
    if [ -n "${BDCP_NO_SYSTEM_CUDA:-}" ]; then
      BDCP_LIBNVRTC="$(compgen -G "$library/libnvrtc.so.*" | head -n 1)"
      export BDCP_LIBNVRTC
    fi
  else
    bdcp_missing+=("CUDA headers and libnvrtc (no toolkit, and the pip wheels could not be had): no CUDA backend, no kernel compilation")
    bdcp_cmake_cuda=(-DBDCP_CUDA_INCLUDE_DIRS=none -DBDCP_WHEEL_LIBRARY_DIR=)
    bdcp_say "${bdcp_missing[-1]}"
  fi
}

# --- configure --------------------------------------------------------------------------------------------------

bdcp_configure() {
  local arguments=(--preset release "${bdcp_cmake_cuda[@]}"
    "-DBDCP_VALIJSON_INCLUDE_DIR=${BDCP_VALIJSON_INCLUDE_DIR:-}" "-DBDCP_XXHASH_INCLUDE_DIR=${BDCP_XXHASH_INCLUDE_DIR:-}")
  if [ -z "${CMAKE_CXX_COMPILER_LAUNCHER:-}" ] && command -v ccache >/dev/null; then
    arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    export CCACHE_BASEDIR="$bdcp_root" CCACHE_NOHASHDIR=1
  fi
  local extra
  read -r -a extra <<<"${BDCP_CMAKE_ARGS:-}"
  local log="$bdcp_build/configure.log"
  mkdir -p "$bdcp_build"
  (cd "$bdcp_root" && cmake "${arguments[@]}" "${extra[@]}") >"$log" 2>&1 || { cat "$log" >&2; bdcp_fail "cmake failed"; }
  grep -E '^-- bdcp:' "$log" | sed 's/^-- /[set-up] /' || true
  bdcp_say "configured build/release"
}

bdcp_build_jobs() {  # about 1.5 GB a compiler
  local cores memory
  cores="$(nproc)"
  memory="$(awk '/MemAvailable/ {print int($2 / 1500000) + 1}' /proc/meminfo 2>/dev/null || echo "$cores")"
  echo $((memory < cores ? memory : cores))
}

bdcp_report_missing() {
  local line
  for line in "${bdcp_missing[@]}"; do printf 'missing on this machine: %s\n' "$line"; done
}

bdcp_install_packages
bdcp_find_cuda
bdcp_configure
