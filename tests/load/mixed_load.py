"""Mixed load on a running server: many kinds of clients at once, good ones and bad ones.

    python3 tests/load/mixed_load.py --galley build/release/bin/galley --minutes 60 --seed 1
    python3 tests/load/mixed_load.py --url http://127.0.0.1:8000 --pid PID

Short and long prompts, whole and streamed answers, several answers a request, clients that leave
in the middle, half requests, wrong JSON, wrong types, bodies that are too long, slow readers. The
seed decides what each client does, so a run can be repeated. Every answer is checked: JSON of the
API's shape, a stream's order and end, token counts, error objects. At the end nothing may run or
wait, the process's memory after --warm minutes must have stayed within --growth, and a server
started here (--galley) must leave with exit code 0 when asked to. Prints one line every ten seconds
and one JSON object at the end; exit code 1 when anything was wrong.
"""

import argparse
import collections
import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ANSWER_SECONDS_MAX = 90
WORDS = ("the a little house garden boat river night morning friend went found said asked saw under "
         "over near red green old small happy tired fox bird king child and but").split()


class Wrong(Exception):
    """The server did something that it must not."""


class Connection:
    """One keep-alive connection with bounded waits."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=20)
        self.socket.settimeout(ANSWER_SECONDS_MAX)
        self.held = b""

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def fill(self):
        piece = self.socket.recv(65536)
        if not piece:
            raise Wrong("the connection ended in the middle of an answer")
        self.held += piece

    def line(self):
        while b"\r\n" not in self.held:
            self.fill()
        line, self.held = self.held.split(b"\r\n", 1)
        return line

    def exactly(self, count):
        while len(self.held) < count:
            self.fill()
        data, self.held = self.held[:count], self.held[count:]
        return data

    def head(self):
        status = int(self.line().split()[1])
        fields = {}
        while line := self.line():
            name, value = line.split(b":", 1)
            fields[name.strip().lower().decode()] = value.strip().decode()
        return status, fields

    def pieces(self, fields):
        """The body as it comes."""
        if fields.get("transfer-encoding") == "chunked":
            while size := int(self.line().split(b";")[0], 16):
                yield self.exactly(size)
                self.line()
            self.line()
        else:
            yield self.exactly(int(fields.get("content-length", "0")))


def request_bytes(host, path, body, method="POST", length=None):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = (f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\n\r\n")
    return head.encode() + body


def events(pieces):
    """The data of each server-sent event."""
    held = b""
    for piece in pieces:
        held += piece
        while b"\n\n" in held:
            event, held = held.split(b"\n\n", 1)
            data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if data:
                yield b"\n".join(data)
    if held.strip():
        raise Wrong(f"a stream ended inside an event: {held[:80]!r}")


def check(condition, message):
    if not condition:
        raise Wrong(message)


class Client(threading.Thread):
    def __init__(self, number, options, totals, stop):
        super().__init__(daemon=True)
        self.random = random.Random(options.seed * 1000 + number)
        self.address, self.options, self.totals, self.stop = options.address, options, totals, stop
        self.connection = None

    def run(self):
        kinds = [(self.chat, 6), (self.stream, 8), (self.long_stream, 3), (self.leave, 4), (self.malformed, 2),
                 (self.wrong_type, 2), (self.half_request, 1), (self.too_long, 1), (self.slow_reader, 1),
                 (self.several, 1), (self.not_found, 1)]
        names, weights = zip(*kinds)
        while not self.stop.is_set():
            act = self.random.choices(names, weights)[0]
            begin = time.monotonic()
            try:
                act()
                self.totals.note(act.__name__, time.monotonic() - begin)
            except Wrong as wrong:
                self.totals.wrong(act.__name__, str(wrong))
                self.drop()
            except (OSError, ValueError, KeyError, IndexError) as error:
                self.totals.wrong(act.__name__, f"{type(error).__name__}: {error}")
                self.drop()

    def drop(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def words(self, low, high):
        return " ".join(self.random.choices(WORDS, k=self.random.randint(low, high)))

    def open(self):
        if self.connection is None:
            self.connection = Connection(self.address)
        return self.connection

    def post(self, path, body, **options):
        """Status, fields and pieces. A connection that the server closed while it idled is opened again."""
        for fresh in (self.connection is None, True):
            try:
                connection = self.open()
                connection.send(request_bytes(self.options.host, path, body, **options))
                status, fields = connection.head()
                return status, fields, connection.pieces(fields)
            except (Wrong, ConnectionError):
                self.drop()
                if fresh:
                    raise
        raise Wrong("unreachable")

    def whole(self, path, body, **options):
        status, fields, pieces = self.post(path, body, **options)
        text = b"".join(pieces)
        if fields.get("connection", "").lower() == "close":
            self.drop()
        return status, json.loads(text)

    def chat_body(self, low, high, **more):
        body = {"model": self.options.model, "messages": [{"role": "user", "content": self.words(low, high)}],
                "max_tokens": self.random.randint(1, 48), "seed": self.random.randint(0, 9)}
        return body | more

    def check_usage(self, usage, limit):
        check(usage["prompt_tokens"] > 0 and 0 < usage["completion_tokens"] <= limit
              and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"],
              f"usage does not add up: {usage}")

    def chat(self):
        body = self.chat_body(1, 60)
        status, answer = self.whole("/v1/chat/completions", body)
        check(status == 200, f"status {status}: {answer}")
        choice = answer["choices"][0]
        check(choice["message"]["role"] == "assistant", f"no assistant: {choice}")
        check(choice["finish_reason"] in ("stop", "length", "tool_calls"), f"finish: {choice}")
        self.check_usage(answer["usage"], body["max_tokens"])

    def several(self):
        body = self.chat_body(1, 40, n=3)
        status, answer = self.whole("/v1/chat/completions", body)
        check(status == 200, f"status {status}: {answer}")
        check(sorted(c["index"] for c in answer["choices"]) == [0, 1, 2], f"choices: {answer['choices']}")

    def read_stream(self, body, pause=0.0):
        status, _, pieces = self.post("/v1/chat/completions", body)
        if status != 200:
            raise Wrong(f"status {status}: {b''.join(pieces)[:200]!r}")
        finish, usage, last = None, None, None
        for data in events(pieces):
            check(last != b"[DONE]", "an event after [DONE]")
            last = data
            if data == b"[DONE]":
                continue
            event = json.loads(data)
            check("error" not in event, f"an error in a stream: {event}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                check(finish is None, "text after the finish reason")
                finish = choice["finish_reason"]
            if pause:
                time.sleep(pause)
        check(last == b"[DONE]", "a stream without [DONE]")
        check(finish in ("stop", "length", "tool_calls"), f"finish reason {finish}")
        self.check_usage(usage, body["max_tokens"])

    def stream_body(self, low, high):
        return self.chat_body(low, high, stream=True, stream_options={"include_usage": True})

    def stream(self):
        self.read_stream(self.stream_body(1, 80))

    def long_stream(self):
        self.read_stream(self.stream_body(600, 1200))

    def slow_reader(self):
        self.read_stream(self.stream_body(1, 20), pause=0.05)

    def leave(self):
        """Reads a little of a stream, then is gone."""
        status, _, pieces = self.post("/v1/chat/completions", self.stream_body(1, 900) | {"max_tokens": 400})
        check(status == 200, f"status {status}")
        stream = events(pieces)
        for _ in range(self.random.randint(0, 4)):
            if next(stream, None) is None:
                break
        self.drop()

    def refused(self, status, answer, wanted):
        check(status in wanted, f"status {status} instead of {wanted}: {answer}")
        error = answer["error"]
        check(isinstance(error["message"], str) and error["message"] and error["type"], f"error shape: {answer}")

    def malformed(self):
        body = self.random.choice((b"{", b"", b"[]", b"nonsense", b'{"model": "x", "messages": [', b"\xff\xfe",
                                   b"[" * 2000))
        self.refused(*self.whole("/v1/chat/completions", body), (400,))

    def wrong_type(self):
        body = self.chat_body(1, 5)
        name, value = self.random.choice((("messages", "x"), ("messages", []), ("max_tokens", -1), ("temperature", "a"),
                                          ("n", 0), ("stop", 7), ("logit_bias", [1]), ("top_p", 3),
                                          ("response_format", {"type": "json_schema", "json_schema": {}})))
        self.refused(*self.whole("/v1/chat/completions", body | {name: value}), (400,))

    def not_found(self):
        self.refused(*self.whole("/v1/nothing", {}), (404,))

    def half_request(self):
        """Begins a request and leaves."""
        self.drop()
        connection = Connection(self.address)
        data = request_bytes(self.options.host, "/v1/chat/completions", self.chat_body(1, 50))
        connection.send(data[: self.random.randint(1, len(data) - 1)])
        connection.close()

    def too_long(self):
        """Announces more than any server takes; the refusal may come before the body is sent."""
        self.drop()
        status, answer = self.whole("/v1/chat/completions", b"{}", length=1 << 40)
        self.refused(status, answer, (413,))
        self.drop()


class Totals:
    def __init__(self):
        self.lock = threading.Lock()
        self.counts, self.seconds, self.failures = collections.Counter(), collections.Counter(), []

    def note(self, kind, seconds):
        with self.lock:
            self.counts[kind] += 1
            self.seconds[kind] = max(self.seconds[kind], seconds)

    def wrong(self, kind, what):
        with self.lock:
            if len(self.failures) < 1000:
                self.failures.append(f"{kind}: {what[:300]}")


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def get(options, path):
    connection = Connection(options.address)
    connection.send(request_bytes(options.host, path, b"", method="GET"))
    status, fields = connection.head()
    body = b"".join(connection.pieces(fields))
    connection.close()
    return status, json.loads(body)


def run(options):
    totals, stop, begin = Totals(), threading.Event(), time.monotonic()
    if not options.model:
        options.model = get(options, "/v1/models")[1]["data"][0]["id"]
    clients = [Client(i, options, totals, stop) for i in range(options.clients)]
    for client in clients:
        client.start()
    end, said, memory = begin + 60 * options.minutes, begin, []
    while (now := time.monotonic()) < end:
        time.sleep(min(1.0, end - now))
        if options.pid and now > begin + 60 * options.warm:
            memory.append(resident_bytes(options.pid))
        if now - said > 10:
            said = now
            print(f"{now - begin:.0f} s: {sum(totals.counts.values())} requests, {len(totals.failures)} wrong"
                  + (f", {memory[-1] >> 20} MiB" if memory else ""), file=sys.stderr, flush=True)
    stop.set()
    for client in clients:
        client.join(ANSWER_SECONDS_MAX + 30)
        if client.is_alive():
            totals.wrong("end", "a request never ended")
    result = {"seconds": round(time.monotonic() - begin), "seed": options.seed, "requests": dict(totals.counts),
              "slowest_s": {k: round(v, 2) for k, v in totals.seconds.items()}}
    # Clients that left are noticed at the latest with the next token.
    for _ in range(100):
        status, state = get(options, "/health")
        busy = state.get("running", 0) + state.get("waiting", 0)
        if status == 200 and busy == 0:
            break
        time.sleep(0.1)
    else:
        totals.wrong("end", f"the server is not idle: {state}")
    if memory:
        third = max(1, len(memory) // 3)
        early, late = (sorted(part)[len(part) // 2] for part in (memory[:third], memory[-third:]))
        result |= {"resident_mib": [early >> 20, late >> 20], "growth": round(late / early - 1, 4)}
        if late > early * (1 + options.growth):
            totals.wrong("end", f"memory grew from {early >> 20} to {late >> 20} MiB")
    print(json.dumps(result | {"wrong": len(totals.failures), "first_wrong": totals.failures[:10]}))
    return 1 if totals.failures or not totals.counts else 0


def start_server(options):
    """A server of our own, on any free port; its log goes to stderr when it fails."""
    log = tempfile.TemporaryFile(mode="w+", encoding="utf-8")
    server = subprocess.Popen([options.galley, "serve", "--port", "0", "--drain-grace", "0"], stderr=log)
    address = None
    for _ in range(300):
        time.sleep(0.1)
        log.seek(0)
        text = log.read()
        if found := re.search(r"event=listening address=(\S+)", text):
            address = found[1]
        if address and "state=ready" in text:
            return server, address, log
        if server.poll() is not None:
            break
    server.kill()
    sys.exit("mixed_load: the server did not start:\n" + text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--galley", default="", help="binary to start a server of, instead of --url")
    parser.add_argument("--model", default="")
    parser.add_argument("--pid", type=int, default=0, help="of the server, to watch its memory")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--warm", type=float, default=10, help="minutes before memory counts")
    parser.add_argument("--growth", type=float, default=0.02, help="what it may grow after that")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    server = None
    if options.galley:
        server, options.url, log = start_server(options)
        options.pid = server.pid
    url = urllib.parse.urlsplit(options.url)
    options.host, options.address = url.netloc, (url.hostname, url.port or 80)
    try:
        code = run(options)
        if server:
            server.send_signal(signal.SIGTERM)
            if (left := server.wait(60)) != 0:
                print(f"mixed_load: the server left with {left}", file=sys.stderr)
                code = 1
    finally:
        if server and server.poll() is None:
            server.kill()
    return code


if __name__ == "__main__":
    sys.exit(main())
