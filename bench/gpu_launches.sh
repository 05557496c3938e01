#!/usr/bin/env bash
# What launches that overlap and launches that do more bring, on a machine with an SM90:
# `bench/gpu_launches.sh [BUILD_FOLDER]`, about three minutes. Correctness first, under every switch;
# then tokens per second of nano with each switch, A/B in one run:
#   GALLEY_CUDA_OVERLAP=0  a kernel is launched when the one before it has ended
#   GALLEY_CUDA_FUSE=0     an operation is a launch of its own
# A check that fails does not stop the others; the exit code is 1 if one did.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}
failed=0
section() { printf '\n== %s\n' "$*"; }
log=$(mktemp)
requests=$(mktemp)
trap 'rm -f "$log" "$requests"' EXIT
check() { # check LINES COMMAND... : the command, bounded, and its last lines; counts a failure
  local lines=$1
  shift
  timeout 40 "$@" >"$log" 2>&1 || { printf 'FAILED (%s): %s\n' "$?" "$*"; failed=1; }
  tail -n "$lines" "$log"
}

section "order: no kernel touches memory before it waits, weights apart"
# Products of few rows and hc_enter's projection ask for weights, which are constant, before.
if command -v cuobjdump >/dev/null; then
  timeout 40 cuobjdump --dump-sass "$build/bin/galley" 2>/dev/null | awk '
    /Function :/ { if (name != "" && !waits && name ~ /_kernel/ && name !~ /fill_|read_kernel|wgmma_peak/)
                     print "NO WAIT", name
                   name = $3; waits = 0; early = 0 }
    /ACQBULK/ { if (!waits && early > 0 &&
                    name !~ /few_rows_kernel|narrow_rows_kernel|route_narrow|attention_narrow|[0-9]product_kernel|project_kernel|site_kernel|few_gate_up|few_down/)
                  print "EARLY", early, name
                waits = 1 }
    !waits && /[ \t](LDG|LDGSTS|STG|ATOMG|RED|UBLKCP)[. ]/ { ++early }
    END { print "order looked at" }'
else
  echo "no cuobjdump here: not looked at"
fi

section "correctness: both switches on, then each off"
for switches in "" "GALLEY_CUDA_OVERLAP=0" "GALLEY_CUDA_FUSE=0"; do
  echo "-- ${switches:-both on}"
  check 3 env $switches "$build/bin/kernels_test" --gtest_filter='Cuda/*' --gtest_brief=1
  check 3 env $switches "$build/bin/galley" verify tests/golden --backend cuda
done
check 14 "$build/bin/kernels_test" --gtest_filter='CudaReleased*.*' --gtest_brief=1
check 3 "$build/bin/cuda_nano_test" --gtest_brief=1
[ ! -x "$build/bin/invariance_test" ] || check 3 "$build/bin/invariance_test" --gtest_brief=1

section "nano, tokens/s: 1 and 32 sequences, then 256"
for i in $(seq 256); do
  printf '{"custom_id":"%s","prompt":"Once upon a time there was a girl, number %s.","max_tokens":128,"temperature":0}\n' \
    "$i" "$i"
done >"$requests"
for switches in "" "GALLEY_CUDA_OVERLAP=0" "GALLEY_CUDA_FUSE=0" \
  "GALLEY_CUDA_OVERLAP=0 GALLEY_CUDA_FUSE=0"; do
  echo "-- ${switches:-both on}"
  check 6 env $switches "$build/bin/galley" bench --shape model --backend cuda --model models/nano
  check 1 env $switches "$build/bin/galley" batch "$requests" --out "$(mktemp -u)" \
    --sequences 256 --json --model models/nano --backend cuda
done
exit $failed
