"""Keeps the house in order: layers, sizes, links, leftovers, formatting.

Reads the include table of CONTRIBUTING.md and checks every #include of src/
against it; checks that files stay under 800 lines, that links in the documents
lead somewhere, that no FIXME is left and that clang-format agrees. Headers
compiling alone are the target `tidy_headers` (this script with --headers).
Standard library only. Prints one line a finding; exits 1 if there is any.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Longer than they should be, and known: this list only shrinks.
LONG_FILES = set()
LINES_MAX = 800


def tracked(*patterns):
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return [name for name in names if name and (ROOT / name).is_file()]


def include_table():
    """{folder: set of allowed prefixes} from the table 'target | may include'."""
    table = {}
    inside = False
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        if line.startswith("| folder | may include"):
            inside = True
        elif inside and line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if set(cells[0]) <= set("- "):
                continue
            allowed = {part.strip(" `") for part in cells[1].split(",")}
            for folder in cells[0].split(","):
                table[folder.strip(" `")] = allowed
        elif inside:
            break
    return table


def check_layers():
    table = include_table()
    if not table:
        yield "CONTRIBUTING.md: the include table is missing"
        return
    for name in tracked("src/*.h", "src/*.cc", "src/*.cu", "src/*.cuh"):
        folder = name.split("/")[1]
        if folder not in table:
            yield f"{name}: folder {folder} is not in the include table of CONTRIBUTING.md"
            continue
        allowed = table[folder]
        if "everything" in allowed:
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            match = re.match(r'#include "([^"]+)"', line)
            if not match:
                continue
            target = match.group(1)
            top = target.split("/")[0]
            if top in (folder, "base") or top in allowed or target in allowed:
                continue
            yield f"{name}:{number}: {folder} may not include {target}"


def check_sizes():
    for name in tracked("*.h", "*.cc", "*.cu", "*.cuh", "*.py", "*.cmake", "dev"):
        lines = (ROOT / name).read_text().count("\n")
        if lines > LINES_MAX and name not in LONG_FILES:
            yield f"{name}: {lines} lines; what is the second idea in it?"


def check_leftovers():
    marks = re.compile(r"\b(FIXME|TODO|XXX)\b")
    # Concatenated so that this file does not find itself.
    machine_paths = re.compile("/" + r"work/|/" + r"tmp/bash|\." + "library|registry" + r"\.npmjs")
    for name in tracked("src", "tests", "training", "bench", "docs", "dev", "*.md"):
        if name == "tests/tidy.py" or name.startswith("tests/golden/g") or "/corpus/" in name:
            continue
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if marks.search(line) and not name.endswith((".jsonl", ".txt")):
                yield f"{name}:{number}: leftover: {line.strip()[:80]}"
            if machine_paths.search(line):
                yield f"{name}:{number}: a path of one machine: {line.strip()[:80]}"


def check_read_only_loads():
    # What kernels wrote must not come by the read-only path: global_loads.cuh says why.
    path = re.compile(r"__ldg\(|ld\.global\.nc|\bconst\b[^;={]*?__restrict__")
    for name in tracked("src/kernels/cuda/*.cu", "src/kernels/cuda/*.cuh"):
        if name.endswith("/global_loads.cuh"):
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            if path.search(line.split("//")[0]):
                yield f"{name}:{number}: load_constant() or load_written() of global_loads.cuh"


def check_links():
    for name in tracked("*.md"):
        base = (ROOT / name).parent
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / name).read_text()):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not (base / target).exists():
                yield f"{name}: link leads nowhere: {target}"


def check_format():
    names = tracked("src/*.h", "src/*.cc", "src/*.cu", "src/*.cuh", "tests/*.h", "tests/*.cc")
    tool = next((t for t in ("clang-format-14", "clang-format") if _found(t)), None)
    if tool is None:
        yield "clang-format-14 is not installed: ./dev setup"
        return
    for begin in range(0, len(names), 40):
        command = [tool, "--dry-run", "-Werror", *names[begin : begin + 40]]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        wrong = sorted(set(re.findall(r"^([^:\s]+):\d+:\d+: error", result.stderr, re.M)))
        for name in wrong:
            yield f"{name}: not formatted: ./dev fmt"


def _found(tool):
    return any((pathlib.Path(p) / tool).exists() for p in os.environ.get("PATH", "").split(":") if p)


def main():
    checks = (
        check_layers,
        check_sizes,
        check_leftovers,
        check_read_only_loads,
        check_links,
        check_format,
    )
    findings = [finding for check in checks for finding in check()]
    for finding in findings:
        print(finding)
    print(f"tidy: {len(checks)} checks, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
