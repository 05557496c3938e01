#!/usr/bin/env python3
"""The bars of serving on one machine: starts `galley serve` on models/nano, loads it with
`galley bench serve`, prints a table.

  bench/serving.py pace [--repeat N] [SERVE OPTION...]   streams beside a prompt of 2,000 tokens a second
  bench/serving.py host [--streams N] [SERVE OPTION...]  what a step costs the host, by thread

pace: the 99th percentile of the time between tokens over its median (bar: at most 3) and the share
of their lone rate that the prompts keep (bar: at least half). Both are ratios of one run, but a busy
machine still spoils them: have nothing else run, and look at the load that is printed. The server has
more places (48) than there are streams (32): with as many, a prompt waits for a stream to end first.

host: processor time of each of the server's threads over the steps of five seconds, from
/proc/PID/task; bar: 150 us for what decides about a step, builds and streams it, of 64 sequences.
What the step's own thread does beside its kernels cannot be told apart here: step_cost_test does."""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parent.parent
GALLEY = os.environ.get("GALLEY", str(SOURCE / "build/release/bin/galley"))


class Server:
    def __init__(self, options):
        command = [GALLEY, "serve", "-m", str(SOURCE / "models/nano"), "--port", "0",
                   "--metrics-listen", "127.0.0.1:0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True)
        self.url = self.metrics_url = None
        self.log = []
        ready = threading.Event()
        threading.Thread(target=self.read_log, args=(ready,), daemon=True).start()
        if not ready.wait(60):
            self.stop()
            sys.exit("the server did not start:\n" + "".join(self.log[-5:]))

    def read_log(self, ready):
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"address=(http://\S+/metrics)", line):
                self.metrics_url = found.group(1)
            elif found := re.search(r"address=(http://[^/\s]+)", line):
                self.url = self.url or found.group(1)
            if self.url and self.metrics_url and re.search(r"\bready\b", line):
                ready.set()
        ready.set()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def counters(self):
        text = urllib.request.urlopen(self.metrics_url, timeout=10).read().decode()
        sums = {}
        for name, value in re.findall(r"^([^#\s{]+)\{[^}]*\} (\S+)$", text, re.M):
            sums[name] = sums.get(name, 0) + float(value)
        return sums

    def thread_seconds(self):
        """Processor seconds so far, by the name of the thread."""
        seconds = {}
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            name = (task / "comm").read_text().strip()
            spent = int((task / "schedstat").read_text().split()[0]) / 1e9
            seconds[name] = seconds.get(name, 0) + spent
        return seconds


def load(server, *options):
    return [GALLEY, "bench", "serve", "--url", server.url, "--api", "completions", "--json", *options]


def pace(arguments, serve_options):
    print("| median ms | p99 ms | p99 / median | prefill alone, tokens/s | kept | output tokens/s | load |")
    print("|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    ratios, shares = [], []
    for _ in range(arguments.repeat):
        server = Server(["--sequences", "48", *serve_options])
        try:
            out = subprocess.run(
                load(server, "-n", str(arguments.requests), "--prompt-words", "20", "--max-tokens",
                     "128", "--background-rate", "1"),
                stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout
        finally:
            server.stop()
        told = json.loads(out)
        gaps, background = told["itl_ms"], told["background"]
        ratios.append(told["itl_p99_over_p50"])
        shares.append(background["kept_share"])
        print(f"| {gaps['p50']:.2f} | {gaps['p99']:.2f} | {ratios[-1]:.2f} | "
              f"{background['lone_tokens_per_s']:.0f} | {100 * shares[-1]:.1f} % | "
              f"{told['output_tokens_per_s']:.0f} | {os.getloadavg()[0]:.1f} |", flush=True)
    print(f"medians: {statistics.median(ratios):.2f} (bar 3), {100 * statistics.median(shares):.1f} % (bar 50 %)")


def host(arguments, serve_options):
    streams = str(arguments.streams)
    server = Server(["--sequences", streams, *serve_options])
    client = subprocess.Popen(
        load(server, "-n", "100000", "--concurrency", streams, "--prompt-words", "20",
             "--max-tokens", "1000"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3)
        counts, threads = server.counters(), server.thread_seconds()
        time.sleep(5)
        later, after = server.counters(), server.thread_seconds()
    finally:
        client.send_signal(signal.SIGINT)
        client.wait(30)
        server.stop()
    def grown(name):
        return later[name] - counts[name]
    steps = grown("galley:engine_steps_total")
    print(f"{steps:.0f} steps of {grown('galley:engine_rows_total') / steps:.1f} rows, "
          f"{1e3 * grown('galley:engine_step_seconds_total') / steps:.2f} ms each; "
          f"load {os.getloadavg()[0]:.1f}\n")
    print("| thread | us a step |\n|---|--:|")
    for name in sorted(after):
        print(f"| {name} | {1e6 * (after[name] - threads.get(name, 0)) / steps:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pace", "host"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--streams", type=int, default=64)
    arguments, serve_options = parser.parse_known_args()
    {"pace": pace, "host": host}[arguments.what](arguments, serve_options)


if __name__ == "__main__":
    main()
