#!/usr/bin/env bash
# Runs the compiler that it is given, and fails where ptxas says that products of wgmma wait for
# each other (C7510 and its kin), for want of registers or for a form of loop. nvcc calls that a
# piece of information and goes on; a kernel then has the right bits and takes a tenth longer, which
# a change of one instruction elsewhere in it has done before.
set -u
{ said=$("$@" 2>&1 1>&3); } 3>&1
status=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
case $said in
  *"wgmma.mma_async instructions are serialized"*)
    echo "error: products of wgmma wait for each other in the function above" >&2
    exit 1
    ;;
esac
exit $status
