"""galley serve when something is wrong: each cause is one line and its exit code (docs/cli.md), while
it loads it says so, a stuck engine fails /health, and settings that are wrong change nothing."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
import unittest

from galley_program import BINARY, MODEL, PATIENCE, GalleyTest
from galley_server import NANO, Server


class Failures(GalleyTest):
    def refused(self, code, *words, model=MODEL, arguments=(), **options):
        result = subprocess.run(
            [BINARY, "serve", "-m", str(model), "--port", "0", *map(str, arguments)],
            stdin=subprocess.DEVNULL, capture_output=True, env=self.environment(), cwd=self.folder,
            timeout=60 * PATIENCE, **options)
        text = result.stderr.decode()
        self.assertEqual(result.returncode, code, text)
        # The log may have begun; what ended the program is one line, the last.
        last = text.splitlines()[-1]
        self.assertEqual(text.count("galley serve: "), 1, text)
        self.assertTrue(last.startswith("galley serve: "), text)
        for word in words:
            self.assertIn(word, last)

    def test_exit_codes(self):
        (self.folder / "bad.toml").write_text("[[key]]\nname = \"a\"\n")
        (self.folder / "bad.pem").write_text("nothing")
        (self.folder / "file").write_text("")
        self.refused(1, "no model at", "none", model=self.folder / "none")
        self.refused(1, "missing.toml", arguments=["--api-keys", "missing.toml"])
        self.refused(1, "bad.toml", "line 1", "sha256", arguments=["--api-keys", "bad.toml"])
        self.refused(1, "bad.pem", arguments=["--tls-cert", "bad.pem", "--tls-key", "bad.pem"])
        self.refused(1, "missing.pem",
                     arguments=["--tls-cert", "missing.pem", "--tls-key", "missing.pem"])
        self.refused(1, "file", "Not a directory", arguments=["--state-dir", "file"])
        self.refused(1, "/proc/none", arguments=["--state-dir", "/proc/none"])
        self.refused(64, "--rows", arguments=["--rows", "0"])
        self.refused(64, "log-format", arguments=["--log-format", "xml"])

    def test_a_full_disk(self):
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        self.refused(1, "state/probe", "File too large", arguments=["--state-dir", "state"],
                     preexec_fn=small_files)

    def test_the_disk_fills_while_it_runs(self):
        server = Server(self, "--state-dir", "state", model=MODEL)
        before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1000, before[1]))
        form = ("--x\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--x\r\n"
                "Content-Disposition: form-data; name=file\r\n\r\n" + "x" * 5000 + "\r\n--x--\r\n")
        kind = {"Content_Type": "multipart/form-data; boundary=x"}
        status, _, text = server.ask("/v1/files", form, **kind)
        self.assertEqual(status, 503, text)
        self.assertNotIn("state/", text)
        server.wait_line("event=state_not_kept .*File too large")
        self.assertEqual(server.generate()[0], 200)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)
        self.assertEqual(server.ask("/v1/files", form, **kind)[0], 200)

    def test_weights_that_go_away(self):
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        for path in model.iterdir():
            path.chmod(0o644)
        server = Server(self, model=str(model))
        self.assertEqual(server.generate()[0], 200)
        for path in model.glob("*.safetensors"):
            os.truncate(path, 4096)
        try:
            server.generate()
        except Exception:  # the connection breaks
            pass
        self.assertEqual(server.process.wait(30), 1)
        server.reader.join(10)
        self.assertIn("became shorter or unreadable while in use", server.lines[-1])

    def test_a_stuck_engine(self):
        # One step of 24,000 rows on one thread: no step ends for seconds, on a fast machine either.
        server = Server(self, "--rows", "24576", "--threads", "1", "--stuck-after", "1", context=4096)
        self.assertEqual(server.ask("/health")[0], 200)
        prompts = [[5 + i * k % 900 for i in range(4000)] for k in range(1, 13, 2)]
        answer = []
        thread = threading.Thread(
            target=lambda: answer.append(server.generate(prompt=prompts, max_tokens=1)[0]))
        thread.start()
        unhealthy = None
        ready = set()  # while unhealthy; the step may end between the two questions
        while thread.is_alive():
            status, _, text = server.ask("/health")
            if status == 503:
                unhealthy = json.loads(text)
                ready.add(server.ask("/ready")[0])
            time.sleep(0.1)
        self.assertIn("no step ended for", unhealthy["problem"])
        self.assertIn(503, ready)
        self.assertEqual(answer, [200])
        server.wait_line("event=unhealthy")
        server.wait_line("event=healthy")
        self.assertEqual(server.ask("/health")[0], 200)


class Loading(GalleyTest):
    def test_it_answers_while_it_loads(self):
        # A pipe that nobody writes to holds the loading up.
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        pipe = model / "tokenizer.json"
        pipe.unlink()
        os.mkfifo(pipe)
        server = Server(self, model=str(model), wait=False)
        server.wait_line("event=loading phase=tokenizer")
        self.assertEqual(server.ask("/health")[0], 200)
        status, _, text = server.ask("/ready")
        ready = json.loads(text)
        self.assertEqual((status, ready["status"], ready["phase"]), (503, "loading", "tokenizer"))
        self.assertGreaterEqual(ready["fraction"], 0)
        status, fields, text = server.generate()
        self.assertEqual(status, 503)
        self.assertIn("still loading", text)
        self.assertIn("Retry-After", fields)
        with open(pipe, "wb"):
            pass
        self.assertEqual(server.process.wait(30), 1)
        server.reader.join(10)
        self.assertRegex(server.lines[-1], "^galley serve: .*tokenizer.json")

    def test_phases_in_order(self):
        server = Server(self, "--log-format", "json", wait=False)
        server.wait_line('"state":"ready"')
        events = [json.loads(line) for line in list(server.lines)]
        phases = [event["phase"] for event in events if event["event"] == "loading"]
        self.assertEqual(phases, ["tokenizer", "checkpoint", "weights", "engine", "self_test"])
        weights = next(event for event in events if event.get("phase") == "weights")
        self.assertGreater(weights["bytes"], 20_000_000)
        self.assertEqual(json.loads(server.ask("/ready")[2])["status"], "ready")
        fields = server.generate()[1]
        server.wait_line(f'"id":"{fields["X-Request-Id"]}","event":"finished".*"output_tokens":8')

    def test_without_preloading(self):
        server = Server(self, "--preload", "off")
        self.assertNotIn("phase=weights", "".join(server.lines))
        self.assertEqual(server.generate()[0], 200)


class Reloading(GalleyTest):
    def test_what_changed_and_what_needs_a_restart(self):
        config = self.folder / "galley.toml"
        config.write_text("[serve]\nmax-output-tokens = 3\n")
        server = Server(self, model=MODEL)

        def hang_up(pattern):
            count = sum(bool(re.search("event=reload", line)) for line in server.lines)
            server.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                lines = [line for line in server.lines if "event=reload" in line]
                if len(lines) > count:
                    self.assertRegex(lines[-1], pattern)
                    return
                time.sleep(0.02)
            self.fail("nothing was reloaded")

        def tokens():
            return json.loads(server.generate(max_tokens=20, ignore_eos=True)[2])[
                "usage"]["completion_tokens"]
        self.assertEqual(tokens(), 3)
        hang_up("event=reloaded changed=nothing")
        config.write_text("[serve]\nmax-output-tokens = 5\nlog-level = \"warn\"\nsequences = 7\n")
        hang_up("event=reloaded changed=max-output-tokens,log-level needs_restart=sequences")
        self.assertEqual(tokens(), 5)
        for broken, words in (("[serve\n", "line 1"), ("[serve]\nmax-output-tokens = -1\n", "line 2"),
                              ("[serve]\nno-such = 1\n", "no-such")):
            config.write_text(broken)
            hang_up(f"event=reload_failed .*{words}.*the old settings stay in force")
            self.assertEqual(tokens(), 5)
        config.unlink()
        hang_up("event=reloaded changed=max-output-tokens,log-level")
        self.assertEqual(tokens(), 20)


class Lengths(GalleyTest):
    def test_ignore_eos_and_min_tokens(self):
        server = Server(self)
        end = 1  # likely from the first token on
        wish = {"logit_bias": {str(end): 100}, "max_tokens": 20}
        chat = {"messages": [{"role": "user", "content": "Hi"}]}

        def tokens(**more):
            answers = [json.loads(server.generate(**wish, **more)[2]),
                       json.loads(server.ask("/v1/chat/completions", chat | wish | more)[2])]
            self.assertEqual({answer["choices"][0]["finish_reason"] for answer in answers},
                             {"length" if more.get("ignore_eos") else "stop"})
            return [answer["usage"]["completion_tokens"] for answer in answers]
        self.assertEqual(tokens(), [1, 1])
        self.assertEqual(tokens(ignore_eos=True), [20, 20])
        self.assertEqual(tokens(min_tokens=7), [8, 8])
        status, fields, text = server.generate(max_tokens=3, min_tokens=4)
        self.assertEqual(status, 400)
        self.assertIn("min_tokens: is 4, more than max_tokens, 3", text)
        self.assertNotIn("Warning", server.generate(ignore_eos=True)[1])

    def test_one_tool_call_is_where_it_stops(self):
        server = Server(self, "--prefix-cache", "off")
        ask = {"messages": [{"role": "user", "content": "What is the weather in Paris and in Rome?"}],
               "tools": [{"type": "function", "function": {
                   "name": "get_weather", "parameters": {
                       "type": "object", "properties": {"city": {"type": "string"}}}}}],
               "tool_choice": "required", "temperature": 0, "max_tokens": 300}
        many = json.loads(server.ask("/v1/chat/completions", ask)[2])
        one = json.loads(server.ask("/v1/chat/completions",
                                    ask | {"parallel_tool_calls": False})[2])
        calls = [answer["choices"][0]["message"].get("tool_calls", []) for answer in (many, one)]
        if not calls[0]:
            self.skipTest("the model calls nothing")
        self.assertEqual(len(calls[1]), 1)
        self.assertEqual(one["choices"][0]["finish_reason"], "tool_calls")
        self.assertEqual(calls[1][0]["function"], calls[0][0]["function"])
        self.assertLess(one["usage"]["completion_tokens"], many["usage"]["completion_tokens"])


if __name__ == "__main__":
    unittest.main()
