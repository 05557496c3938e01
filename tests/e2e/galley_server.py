"""Runs `galley serve` for the end-to-end tests: a server whose log is read, and requests to it."""

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time

from galley_program import BINARY, PATIENCE, SOURCE

NANO = str(SOURCE / "models/nano")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30 * PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


class Server:
    """A running server. Its log is read by a thread, so that it never blocks."""

    def __init__(self, test, *arguments, model=NANO, wait=True, context=2048):
        self.process = subprocess.Popen(
            [BINARY, "serve", "-m", model, "--port", "0", "--context", str(context), *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=test.environment(), cwd=test.folder)
        test.addCleanup(self.end)
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.port = int(self.wait_line(r"address[=\":]+https?://127.0.0.1:(\d+)[\" ]").group(1))
        if wait:
            self.wait_line("state=ready")

    def read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line.decode())
                self.changed.notify_all()

    def wait_line(self, pattern, timeout=60):
        """The first line of the log that matches."""
        deadline = time.monotonic() + timeout * PATIENCE
        with self.changed:
            while True:
                for line in self.lines:
                    found = re.search(pattern, line)
                    if found:
                        return found
                if not self.changed.wait(max(0, deadline - time.monotonic())):
                    raise AssertionError(f"no {pattern} in the log:\n{''.join(self.lines)}")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * PATIENCE)

    def ask(self, path, body=None, method=None, connection=None, **fields):
        """(status, fields, text)"""
        own = None if connection else self.connect()
        connection = connection or own
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, body,
                           {name.replace("_", "-"): value for name, value in fields.items()})
        answer = connection.getresponse()
        text = answer.read().decode()
        if own:
            own.close()
        return answer.status, answer.headers, text

    def generate(self, connection=None, prompt="Once upon a time", max_tokens=8, fields=None, **more):
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | more
        return self.ask("/v1/completions", body, connection=connection, **(fields or {}))

    def stream_socket(self, max_tokens=1500):
        """A raw connection in the middle of an answer that does not end by itself."""
        end = 1  # the end token: never
        body = json.dumps({"prompt": "Once", "max_tokens": max_tokens, "stream": True,
                           "logit_bias": {str(end): -100}})
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=60 * PATIENCE)
        raw.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                    f"{len(body)}\r\n\r\n{body}".encode())
        while b"data:" not in raw.recv(4096):
            pass
        return raw

    def stop(self, timeout=60):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout * PATIENCE)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(10)
        self.process.stdout.close()
        self.process.stderr.close()


def events(text):
    """The data of a stream, which must end as it should."""
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]", text[-200:]
    return [json.loads(one) for one in data[:-1]]
