#!/usr/bin/env bash
# Whole steps of the released shape on one SM90, after the checks that make their numbers worth
# reading: `bench/gpu_shape.sh BUILD_FOLDER`, under four minutes. The folder has kernels_test,
# cuda_nano_test and galley. A check that fails does not stop the others; the exit code is 1 then.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}
failed=0
section() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }
check() { # check SECONDS COMMAND... : the command, bounded; counts a failure
  local seconds=$1
  shift
  timeout "$seconds" "$@" || { printf 'FAILED (%s): %s\n' "$?" "$*"; failed=1; }
}

section "folded weights, kept rows and the kernels around them, against plain/"
check 60 "$build/bin/kernels_test" --gtest_brief=1 \
  --gtest_filter='CudaReleased*.*:WeightTiles.*:HotRows.*:FoldedError.*'

section "golden directories, and the CPU's argmax"
check 30 "$build/bin/galley" verify tests/golden --backend cuda | grep -v ' info \| absent ' | tail -20
check 20 "$build/bin/cuda_nano_test" --gtest_brief=1

section "steps of the released shape: few sequences, one rank of 64, prefill"
check 110 "$build/bin/galley" bench --shape released --backend cuda --quick

section "over"
exit $failed
