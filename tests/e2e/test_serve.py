"""galley serve from outside, with raw sockets and Python's HTTP client: what it refuses, how it
leaves, keys and limits, TLS, metrics, the admin socket, clients that go away, and one name for a
request from the client to the log."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
import unittest

from galley_program import MODEL, GalleyTest
from galley_server import NANO, Server, UnixConnection, events


class Serving(GalleyTest):
    def test_small_routes(self):
        server = Server(self, "--served-model-name", "small,other", model=MODEL)
        self.assertEqual(server.ask("/health")[0], 200)
        self.assertEqual(json.loads(server.ask("/ready")[2])["status"], "ready")
        models = json.loads(server.ask("/v1/models")[2])["data"]
        self.assertEqual([one["id"] for one in models], ["small", "other"])
        self.assertEqual(server.ask("/v1/models/other")[0], 200)
        self.assertEqual(server.ask("/v1/models/none")[0], 404)
        self.assertEqual(server.ask("/nowhere")[0], 404)
        status, fields, _ = server.ask("/v1/completions")
        self.assertEqual((status, fields["Allow"]), (405, "POST"))
        ids = json.loads(server.ask("/tokenize", {"prompt": "Once upon"})[2])["tokens"]
        text = json.loads(server.ask("/detokenize", {"tokens": ids[1:]})[2])["prompt"]
        self.assertEqual(text, "Once upon")
        page = server.ask("/")
        self.assertEqual(page[0], 200)
        self.assertIn("default-src 'none'", page[1]["Content-Security-Policy"])
        self.assertEqual(server.ask("/", If_None_Match=page[1]["ETag"])[0], 304)
        self.assertEqual(json.loads(server.ask("/kitchen/state")[2])["model"], "small")

    def test_streamed_is_whole_and_as_the_command_line_says(self):
        server = Server(self)
        run = self.galley("run", "-m", NANO, "-t", "0", "-n", "24", "--json", "Once upon a time")
        wanted = json.loads(run.stdout)["text"]
        whole = json.loads(server.generate(max_tokens=24)[2])
        self.assertEqual(whole["choices"][0]["text"], wanted)
        streamed = events(server.generate(max_tokens=24, stream=True,
                                          stream_options={"include_usage": True})[2])
        self.assertEqual("".join(c["choices"][0]["text"] for c in streamed if c["choices"]), wanted)
        for name in ("prompt_tokens", "completion_tokens"):
            self.assertEqual(streamed[-1]["usage"][name], whole["usage"][name])
        # Several at once get what each gets alone.
        answers = [None] * 12
        def ask(i):
            answers[i] = json.loads(server.generate(max_tokens=24)[2])["choices"][0]["text"]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(answers), {wanted})

    def test_stop_texts(self):
        server = Server(self)
        free = json.loads(server.generate(max_tokens=24)[2])["choices"][0]["text"]
        stop = free[10:14]
        for stream in (False, True):
            text = server.generate(max_tokens=24, stop=[stop], stream=stream)[2]
            chunks = events(text) if stream else [json.loads(text)]
            joined = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            self.assertEqual(joined, free[:free.index(stop)])
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "stop")

    def test_seeds_and_n(self):
        server = Server(self, model=MODEL)
        one = [json.loads(server.generate(temperature=1, seed=5, n=3)[2])["choices"]
               for _ in range(2)]
        self.assertEqual(one[0], one[1])
        texts = [choice["text"] for choice in one[0]]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual([choice["index"] for choice in one[0]], [0, 1, 2])

    def test_the_servers_own_seed(self):
        def two(server):
            return [json.loads(server.generate(temperature=1, max_tokens=24)[2])["choices"][0]["text"]
                    for _ in range(2)]
        fixed = two(Server(self, "--seed", "5", model=MODEL))
        self.assertEqual(fixed[0], fixed[1])
        drawn = two(Server(self, model=MODEL))
        self.assertNotEqual(drawn[0], drawn[1])

    def test_bad_requests_say_what_is_wrong(self):
        server = Server(self, model=MODEL)
        def refused(status, words, body, path="/v1/completions"):
            got, fields, text = server.ask(path, body)
            error = json.loads(text)["error"]
            self.assertEqual(got, status, text)
            self.assertIn(words, error["message"])
            self.assertEqual(error["request_id"], fields["X-Request-Id"])
        refused(400, "JSON", "{")
        refused(400, "prompt", {})
        refused(400, "n:", {"prompt": "a", "n": 1e9})
        refused(400, "temperature", {"prompt": "a", "temperature": 1e6})
        refused(400, "logit_bias", {"prompt": "a", "logit_bias": {"99999999": 1}})
        refused(404, "no model", {"prompt": "a", "model": "gpt"})
        refused(400, "deeper", "[" * 100000, "/tokenize")
        # Both numbers of what does not fit.
        long = {"prompt": [5] * 3000}
        refused(400, "3000", long)
        refused(400, "2048", long)
        # In the words of the API that was asked.
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a/b"}]}]
        refused(400, "input: images", {"input": image}, "/v1/responses")
        # Unknown fields are named, not swallowed.
        fields = server.generate(frobnicate=1)[1]
        self.assertIn("frobnicate", fields["Warning"])
        error = json.loads(server.ask("/v1/messages", "{")[2])
        self.assertEqual(error["type"], "error")

    def test_rubbish_leaves_the_next_client_alone(self):
        server = Server(self, "--max-body", "1", model=MODEL)
        for rubbish, status in ((os.urandom(65536), b""), (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100000,
                                b"431"), (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                                b"Content-Length: 10000000\r\n\r\n", b"413")):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
                try:
                    raw.sendall(rubbish)
                    self.assertIn(status, raw.recv(4096))
                except ConnectionError:
                    pass
            self.assertEqual(server.generate()[0], 200)

    def test_one_name_from_client_to_log(self):
        server = Server(self, model=MODEL)
        trace = "0af7651916cd43dd8448eb211c80319c"
        fields = server.generate(fields={"x_request_id": "my-name",
                                         "traceparent": f"00-{trace}-b7ad6b7169203331-01"})[1]
        self.assertEqual(fields["X-Request-Id"], "my-name")
        self.assertIn(trace, fields["traceparent"])
        self.assertNotIn("b7ad6b7169203331", fields["traceparent"])
        server.wait_line(f"id=my-name event=finished .*trace={trace} .*output_tokens=8")
        odd = server.generate(fields={"x_request_id": "a b"})[1]["X-Request-Id"]
        server.wait_line(f"id={odd} ")
        self.assertNotIn("Once", "".join(server.lines))  # no prompts

    def test_a_client_that_leaves_frees_its_place(self):
        server = Server(self, "--metrics-listen", "0")
        port = int(server.wait_line(r"address=http://127.0.0.1:(\d+)/metrics").group(1))
        def metric(name):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            text = server.ask("/metrics", connection=connection)[2]
            return sum(float(line.split()[-1]) for line in text.splitlines()
                       if line.startswith(name + "{"))
        def wait_running(count):
            # The engine's counts are those of its last step.
            deadline = time.monotonic() + 10
            while metric("vllm:num_requests_running") != count and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(metric("vllm:num_requests_running"), count)
        streams = [server.stream_socket() for _ in range(3)]
        wait_running(3)
        for raw in streams:
            raw.close()
        wait_running(0)
        server.wait_line('status=499 finish=abort .*"the client left"')
        self.assertEqual(server.generate()[0], 200)
        self.assertEqual(metric("vllm:request_success_total"), 4)


class Leaving(GalleyTest):
    def test_answers_in_hand_are_finished(self):
        server = Server(self, "--drain-grace", "0.5")
        raw = server.stream_socket(max_tokens=400)
        server.process.send_signal(signal.SIGTERM)
        server.wait_line("state=leaving")
        self.assertEqual(server.ask("/ready")[0], 503)
        self.assertEqual(server.ask("/health")[0], 200)
        self.assertEqual(server.generate()[0], 200)  # still taken
        text = b""
        while piece := raw.recv(65536):
            text += piece
        self.assertIn(b"[DONE]", text)
        self.assertTrue(text.endswith(b"0\r\n\r\n"), text[-100:])
        self.assertEqual(server.process.wait(30), 0)

    def test_asked_again_it_cuts_them(self):
        server = Server(self, "--drain-grace", "0")
        raw = server.stream_socket()
        server.process.send_signal(signal.SIGTERM)
        server.wait_line("state=refusing")
        server.process.send_signal(signal.SIGTERM)
        text = b""
        while piece := raw.recv(65536):
            text += piece
        self.assertIn(b"shutting down", text)
        self.assertEqual(server.process.wait(30), 0)

    def test_the_admin_socket(self):
        path = self.folder / "admin.sock"
        server = Server(self, "--admin-socket", path, "--drain-grace", "0", model=MODEL)
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        status = json.loads(server.ask("/status", connection=UnixConnection(path))[2])
        self.assertEqual(status["state"], "ready")
        self.assertEqual(server.ask("/drain", method="POST", connection=UnixConnection(path))[0], 202)
        self.assertEqual(server.process.wait(30), 0)
        self.assertFalse(path.exists())

    def test_a_taken_port(self):
        server = Server(self, model=MODEL)
        self.assert_fails(self.galley("serve", "-m", MODEL, "--port", server.port), 1,
                          str(server.port), "another port")


class Guarded(GalleyTest):
    def new_key(self, name, *lines):
        made = self.galley("serve", "--new-key", name)
        self.assertEqual(made.returncode, 0, made.stderr)
        with open(self.folder / "keys.toml", "ab") as file:
            file.write(made.stdout + "".join(f"{line}\n" for line in lines).encode())
        return made.stderr.decode().split()[-1]

    def test_keys_scopes_limits_reload(self):
        alice = self.new_key("alice", "requests-per-minute = 3")
        server = Server(self, "--api-keys", "keys.toml", model=MODEL)
        self.assertEqual(server.ask("/health")[0], 200)
        self.assertEqual(server.ask("/v1/models")[0], 401)
        self.assertEqual(server.generate(fields={"x_api_key": alice[:-1]})[0], 401)
        bearer = {"Authorization": f"Bearer {alice}"}
        for left in (2, 1, 0):
            status, fields, _ = server.generate(fields=bearer)
            self.assertEqual((status, fields["x-ratelimit-remaining-requests"]), (200, str(left)))
        status, fields, text = server.generate(fields=bearer)
        self.assertEqual(status, 429, text)
        self.assertIn(int(fields["Retry-After"]), range(1, 21))
        self.assertEqual(server.ask("/kitchen/state", **bearer)[0], 403)
        bob = self.new_key("bob")
        self.assertEqual(server.generate(fields={"x_api_key": bob})[0], 401)
        server.process.send_signal(signal.SIGHUP)
        server.wait_line("event=reloaded")
        self.assertEqual(server.generate(fields={"x_api_key": bob})[0], 200)
        (self.folder / "keys.toml").write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        server.wait_line("event=reload_failed .*keys.toml")
        self.assertEqual(server.generate(fields={"x_api_key": bob})[0], 200)
        log = "".join(server.lines)
        self.assertIn("key=alice", log)
        self.assertNotIn(alice, log)

    def test_others_are_not_let_in_by_accident(self):
        self.assert_fails(self.galley("serve", "-m", MODEL, "--host", "0.0.0.0", "--port", "0"), 1,
                          "--api-keys", "--insecure")
        self.assert_fails(self.galley("serve", "-m", MODEL, "--tls-cert", "c.pem"), 64, "--tls-key")
        self.assert_fails(self.galley("serve", "-m", MODEL, "--api-keys", "none.toml"), 1, "none.toml")
        server = Server(self, model=MODEL)
        server.wait_line('keys=none open_to="programs of this machine only"')
        self.assertEqual(server.generate(fields={"Origin": "http://evil.example"})[0], 403)
        self.assertEqual(server.generate(fields={"Host": "evil.example"})[0], 403)

    def test_tls(self):
        made = subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "k.pem", "-out",
             "c.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
            cwd=self.folder, capture_output=True, timeout=60)
        self.assertEqual(made.returncode, 0, made.stderr)
        server = Server(self, "--tls-cert", "c.pem", "--tls-key", "k.pem", model=MODEL)
        context = ssl.create_default_context(cafile=str(self.folder / "c.pem"))
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=30)
        self.addCleanup(connection.close)
        for stream in (False, True, False):  # one connection for all
            self.assertEqual(server.generate(connection, stream=stream, max_tokens=200)[0], 200)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            try:
                self.assertNotIn(b"200", plain.recv(4096))
            except ConnectionError:
                pass
        self.assertEqual(server.generate(connection)[0], 200)


if __name__ == "__main__":
    unittest.main()
