#!/usr/bin/env python3
"""What a trace of bench/gpu_trace.cc says: steps of a program on the card, and where their time went.

    python3 bench/gpu_trace.py trace.tsv            # every step: begin, length, busy, launches
    python3 bench/gpu_trace.py trace.tsv --step 12  # kernels of that step, the longest sums first

A step ends where the card was idle for --gap microseconds (default 60) or more.
"""
import argparse
import collections
import re


def short(name):
    name = name.replace("galley::kernels::cuda::", "").replace("(anonymous namespace)::", "")
    name = re.sub(r"^void ", "", name)
    depth, out = 0, ""
    for char in name:
        if char == "(" and depth == 0:
            break
        depth += (char == "<") - (char == ">")
        out += char
    return out[:90]


def read(path):
    spans, names = [], {}
    for line in open(path):
        if line.startswith("#"):
            number, name = line[1:].rstrip("\n").split("\t", 1)
            names[int(number)] = name
        else:
            spans.append(tuple(int(field) for field in line.split("\t")))
    return sorted(spans), names


def steps(spans, gap_ns):
    out, current, end = [], [], None
    for span in spans:
        if end is not None and span[0] - end > gap_ns:
            out.append(current)
            current = []
        current.append(span)
        end = span[1] if end is None else max(end, span[1])
    return out + [current]


def busy_ns(step):
    busy, end = 0, 0
    for begin, until, *_ in step:
        busy += max(0, until - max(begin, end))
        end = max(end, until)
    return busy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--gap", type=float, default=60.0)
    parser.add_argument("--step", type=int)
    parser.add_argument("--least", type=float, default=0.0, help="ms of the steps shown")
    parser.add_argument("--order", action="store_true", help="kernels as they ran")
    options = parser.parse_args()
    spans, names = read(options.trace)
    every = steps(spans, options.gap * 1e3)
    if options.step is None:
        for number, step in enumerate(every):
            length = max(s[1] for s in step) - step[0][0]
            if length < options.least * 1e6:
                continue
            print(f"{number:5d} at {(step[0][0] - spans[0][0]) / 1e6:10.2f} ms, {length / 1e6:9.3f} ms, "
                  f"busy {busy_ns(step) / 1e6:9.3f}, {len(step)} launches")
        return
    step = every[options.step]
    length = max(s[1] for s in step) - step[0][0]
    if options.order:
        last = step[0][0]
        for begin, end, blocks, threads, name in step:
            print(f"{(begin - step[0][0]) / 1e3:10.1f} us  +{(begin - last) / 1e3:6.1f}  {(end - begin) / 1e3:9.1f} us  "
                  f"{blocks:6d} x {threads:4d}  {short(names[name])}")
            last = end
        return
    sums = collections.defaultdict(list)
    for begin, end, blocks, threads, name in step:
        sums[short(names[name])].append(end - begin)
    print(f"{length / 1e6:.3f} ms, busy {busy_ns(step) / 1e6:.3f} ms, {len(step)} launches")
    for name, times in sorted(sums.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(times) / 1e6:9.3f} ms {sum(times) / length * 100:5.1f} %  {len(times):5d} x {sum(times) / len(times) / 1e3:9.1f} us  {name}")


if __name__ == "__main__":
    main()
