"""Hours of a server's life in minutes: many clients at once that ask short and long things, whole
and streamed, in every API, cancel, leave, stall, send rubbish. Every answer is checked; in the
end nothing may be running, and memory may not have grown since the first third.

  python3 tests/e2e/soak_serve.py --seconds 3600 --seed 7      the hour
  ctest -R soak                                                three minutes of it

The seed fixes what is asked and in which order; times are the machine's."""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from galley_program import BINARY, SANITIZED, SOURCE

CLIENTS = 24
WORDS = "the dog and a cat went to see old Lily by red house in garden with ball for you".split()
MEMORY_SLACK = 1.02
# The server touches its snapshot memory as states come: so much is full before the first third ends.
SNAPSHOT_MIB = 16
SAMPLE_S = 0.5


class Wrong(Exception):
    pass


def check(condition, what):
    if not condition:
        raise Wrong(what)


class Connection:
    """HTTP/1.1 by hand: a library would not do the wrong things that clients do."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, path, body, method="POST"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
                          f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await self.writer.drain()

    async def head(self):
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in text.split("\r\n")[1:] if line)
        return int(text.split()[1]), fields

    async def body(self, fields):
        if "content-length" in fields:
            return await self.reader.readexactly(int(fields["content-length"]))
        whole = b""
        while size := int(await self.reader.readline(), 16):
            whole += await self.reader.readexactly(size + 2)
            whole = whole[:-2]
        await self.reader.readline()
        return whole

    async def answer(self):
        status, fields = await self.head()
        return status, await self.body(fields)

    def close(self):
        self.writer.close()


def text_of(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def request_of(rng):
    """(path, body, is it a stream)"""
    stream = rng.random() < 0.6
    length = rng.choice([3, 10, 60, 400])
    most = rng.choice([1, 8, 30, 120])
    text = text_of(rng, length)
    if rng.random() < 0.4:  # a beginning that others have as well
        text = text_of(random.Random(rng.randrange(4)), 150) + " " + text
    common = {"temperature": rng.choice([0, 0.7, 1.3]), "stream": stream}
    kind = rng.randrange(4)
    if kind == 0:
        return "/v1/completions", common | {"prompt": text, "max_tokens": most,
                                            "n": rng.choice([1, 1, 3])}, stream
    chat = [{"role": "user", "content": text}]
    if kind == 1:
        more = rng.choice([{}, {"stop": ["."]}, {"logprobs": True, "top_logprobs": 3},
                           {"stream_options": {"include_usage": True}} if stream else {}])
        return "/v1/chat/completions", common | more | {"messages": chat, "max_tokens": most}, stream
    if kind == 2:
        return "/v1/messages", common | {"messages": chat, "max_tokens": most, "model": "nano",
                                         "temperature": min(1, common["temperature"])}, stream
    return "/v1/responses", common | {"input": text, "max_output_tokens": most}, stream


def check_stream(path, text):
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    check(data, f"{path}: an empty stream")
    if path in ("/v1/completions", "/v1/chat/completions"):
        check(data[-1] == "[DONE]", f"{path}: the stream ends with {data[-1][:80]}")
        data.pop()
    for one in data:
        check("error" not in json.loads(one) or json.loads(one)["error"] is None, f"{path}: {one}")
    last = json.loads(data[-1])
    if path == "/v1/messages":
        check(last["type"] == "message_stop", f"{path}: ends with {last}")
    if path == "/v1/responses":
        check(last["type"] in ("response.completed", "response.incomplete"), f"{path}: {last['type']}")


class Soak:
    def __init__(self, port, seed, until):
        self.port, self.seed, self.until = port, seed, until
        self.counts = {}

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    async def polite(self, rng, connection):
        path, body, stream = request_of(rng)
        await connection.send(path, body)
        status, text = await connection.answer()
        check(status == 200, f"{path}: {status} {text[:200]}")
        if stream:
            check_stream(path, text.decode())
        else:
            check(isinstance(json.loads(text), dict), path)
        self.count("answered")

    async def leaving(self, rng, connection):
        path, body, stream = request_of(rng)
        await connection.send(path, body | {"max_tokens": 300} if "max_tokens" in body else body)
        if stream and rng.random() < 0.7:
            await connection.head()
            await connection.reader.read(1)
        else:
            await asyncio.sleep(rng.random() * 0.1)
        connection.close()
        self.count("left")

    async def rubbish(self, rng, connection):
        kind = rng.randrange(4)
        if kind == 0:
            connection.writer.write(rng.randbytes(rng.choice([10, 1000, 60000])) + b"\r\n\r\n")
            try:
                await connection.writer.drain()
                await connection.reader.read()
            except ConnectionError:
                pass
            connection.close()
        else:
            body = [b"{" * 500, b'{"prompt": 7}', b'{"messages": [{"role": "cook"}]}'][kind - 1]
            await connection.send(rng.choice(["/v1/chat/completions", "/v1/completions"]), body)
            status, text = await connection.answer()
            check(status == 400 and json.loads(text)["error"]["message"], f"{status} {text[:200]}")
        self.count("rubbish")

    async def stalling(self, rng, connection):
        connection.writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        await asyncio.sleep(rng.random())
        connection.close()
        self.count("stalled")

    async def client(self, number):
        rng = random.Random(f"{self.seed}/{number}")
        connection = None
        while time.monotonic() < self.until:
            if connection is None or connection.writer.is_closing():
                connection = await Connection.open(self.port)
            act = rng.choices([self.polite, self.leaving, self.rubbish, self.stalling],
                              [75, 12, 10, 3])[0]
            await asyncio.wait_for(act(rng, connection), 120)
            if rng.random() < 0.2:
                connection.close()
        if connection:
            connection.close()

    async def memory(self, pid, samples):
        while time.monotonic() < self.until:
            with open(f"/proc/{pid}/status") as status:
                kib = int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))
            samples.append((time.monotonic(), kib))
            await asyncio.sleep(SAMPLE_S)

    async def run(self, pid, samples):
        await asyncio.gather(self.memory(pid, samples), *map(self.client, range(CLIENTS)))

    async def running(self):
        connection = await Connection.open(self.port)
        await connection.send("/kitchen/state", b"", "GET")
        state = json.loads((await connection.answer())[1])
        connection.close()
        return state["running"] + state["waiting"]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=180)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    print(f"seed {options.seed}, {options.seconds:.0f} s, {CLIENTS} clients", flush=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GALLEY_")}
    log = tempfile.TemporaryFile("a+")  # the server appends, wherever it was read
    server = subprocess.Popen(
        [BINARY, "serve", "-m", str(SOURCE / "models/nano"), "--port", "0", "--context", "2048",
         "--sequences", "16", "--drain-grace", "0", "--snapshot-memory", str(SNAPSHOT_MIB)],
        stderr=log, env=environment)
    try:
        return soak(server, log, options)
    finally:
        if server.poll() is None:
            server.kill()
        server.wait()


def soak(server, log, options):
    port = port_of(log)
    begin = time.monotonic()
    test = Soak(port, options.seed, begin + options.seconds)
    samples = []
    try:
        asyncio.run(test.run(server.pid, samples))
        deadline = time.monotonic() + 30
        while (left := asyncio.run(test.running())) and time.monotonic() < deadline:
            time.sleep(0.1)
        check(left == 0, f"{left} sequences are still there")
        third = begin + options.seconds / 3
        warm = [kib for at, kib in samples if third <= at < third + options.seconds / 6]
        last = [kib for at, kib in samples if at >= begin + options.seconds * 5 / 6]
        before, after = statistics.median(warm), statistics.median(last)
        print(f"{test.counts}; memory {before / 1024:.1f} -> {after / 1024:.1f} MiB", flush=True)
        check(SANITIZED or after <= before * MEMORY_SLACK, "memory grew")
        server.send_signal(signal.SIGTERM)
        check(server.wait(60) == 0, f"the server ended with {server.returncode}")
    except (Wrong, OSError, ValueError, KeyError, asyncio.TimeoutError, EOFError) as error:
        print(f"seed {options.seed}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def port_of(log):
    for _ in range(600):
        log.seek(0)
        text = log.read()
        if "state=ready" in text:
            return int(re.search(r"address=http://127.0.0.1:(\d+) ", text).group(1))
        time.sleep(0.1)
    raise SystemExit("the server does not start")


if __name__ == "__main__":
    sys.exit(main())
