"""Shows that the objects compiled for an instruction set share no function with others.

A weak function (an inline one that was not inlined) outside the set's own namespace could
be the copy that the linker keeps for the whole program, which would then stop on a machine
without the set. Arguments: namespace, then the object files.
"""

import subprocess
import sys


def main() -> int:
    isa, objects = sys.argv[1], sys.argv[2:]
    if not objects:
        print("no objects given")
        return 1
    shared = []
    functions = 0
    for path in objects:
        listing = subprocess.run(["nm", "-C", path], check=True, capture_output=True, text=True)
        for line in listing.stdout.splitlines():
            kind, _, name = line[17:].partition(" ")
            functions += kind in "tTW"
            # Highway's functions live in a namespace of their instruction set, too.
            if kind == "W" and f"kernels::{isa}::" not in name and "hwy::N_" not in name:
                shared.append(f"{path}: {name}")
    for line in shared:
        print(line)
    print(f"{functions} functions in {len(objects)} objects, {len(shared)} shared with others")
    return 1 if shared or functions == 0 else 0


sys.exit(main())
