#!/usr/bin/env bash
# Builds, checks and times everything that the CUDA backend has, on a machine with an SM90
# (H100, H200, H20): `bench/gpu.sh [BUILD_FOLDER]`, some six minutes. A check that fails does not
# stop the others; the exit code is 1 if one did. Needs nvcc for building; with a folder that has the
# binaries already (built elsewhere with the same libraries) it only checks and times. Released
# steps want 20 GB of host memory and 60 of the card's.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}
failed=0
section() { printf '\n== %s\n' "$*"; }
check() { # check SECONDS COMMAND... : the command, bounded; counts a failure
  local seconds=$1
  shift
  timeout "$seconds" "$@" || { printf 'FAILED (%s): %s\n' "$?" "$*"; failed=1; return 1; }
}

if [ ! -x "$build/bin/kernels_test" ] || [ ! -x "$build/bin/galley" ]; then
  section "build"
  cmake --preset release -DGALLEY_TESTS=ON | grep CUDA
  time ninja -C build/release galley kernels_test cuda_nano_test invariance_test prefix_test \
    steps_in_flight_test cluster_test || exit 1
  build=build/release
fi

section "machine"
"$build/bin/galley" doctor --model models/nano | grep -i 'gpu' || exit 1
if "$build/bin/galley" doctor --model models/nano | grep -q 'no GPU'; then exit 1; fi

section "kernels against plain loops, and at the released shape against plain/"
check 120 "$build/bin/kernels_test" --gtest_brief=1 \
  --gtest_filter='Cuda*:WeightTiles.*:ExpertPlan*.*'

section "golden directories"
check 120 "$build/bin/galley" verify tests/golden --backend cuda | grep -v ' info \| absent ' || failed=1

section "nano: the CPU's argmax"
check 60 "$build/bin/cuda_nano_test" --gtest_brief=1

section "invariance, prefixes, steps in flight, and ranks that share experts"
for test in invariance_test prefix_test steps_in_flight_test cluster_test; do
  if [ -x "$build/bin/$test" ]; then
    check 60 "$build/bin/$test" --gtest_brief=1 --gtest_filter='*cuda*:*Cuda*:*Device*'
  fi
done

section "nano: steps"
check 60 "$build/bin/galley" bench --shape model --backend cuda

section "nano: 256 sequences"
requests=$(mktemp)
answers=$(mktemp -u)
for i in $(seq 256); do
  printf '{"custom_id":"%s","prompt":"Once upon a time there was a girl, number %s.","max_tokens":128,"temperature":0}\n' \
    "$i" "$i"
done >"$requests"
check 60 "$build/bin/galley" batch "$requests" --out "$answers" --sequences 256 --json \
  --model models/nano --backend cuda
rm -f "$requests" "$answers"

section "released shape: kernels"
check 150 "$build/bin/galley" bench kernels --backend cuda

# Making 18 GB of weights takes some seconds: the card has cooled down when few sequences are timed.
section "released shape: whole steps (few sequences, one rank of 64, prefill)"
check 120 "$build/bin/galley" bench --shape released --backend cuda

if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ]; then
  section "released shape: experts shared by two cards"
  check 120 "$build/bin/galley" bench --shape released --backend cuda --part ep2 --quick
fi

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
if [ -n "$sanitizer" ]; then
  section "compute-sanitizer"
  for tool in memcheck racecheck; do
    check 120 "$sanitizer" --tool "$tool" --error-exitcode 9 "$build/bin/kernels_test" \
      --gtest_filter='Cuda/*-*RowInvariant*' --gtest_brief=1 | tail -2 || failed=1
  done
fi
exit $failed
