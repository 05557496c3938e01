"""Shows that the bundled model computes what training/'s own forward computes.

Writes a golden directory of models/nano with the PyTorch reference (Debian's torch will do) and
judges both kernels by it: `galley verify`. Exits with 77, skipped, where there is no torch.

    nano_golden.py GALLEY OUT
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SKIPPED = 77


def main():
    galley, out = sys.argv[1], pathlib.Path(sys.argv[2])
    if importlib.util.find_spec("torch") is None:
        print("skipped: this Python has no torch; ./dev setup installs python3-torch")
        return SKIPPED
    out.parent.mkdir(parents=True, exist_ok=True)
    (out.parent / "tolerances.json").unlink(missing_ok=True)
    # One thread: torch's workers wait for each other longer than these matrices take.
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    subprocess.run([sys.executable, ROOT / "training" / "golden.py", ROOT / "models" / "nano", out],
                   env=environment, check=True)
    failed = 0
    for backend in ("plain", "fast"):
        result = subprocess.run([galley, "verify", out, "--backend", backend], text=True,
                                capture_output=True, check=False)
        lines = [l for l in result.stdout.splitlines() if " info " not in l]
        print("\n".join(lines), result.stderr)
        failed += result.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
