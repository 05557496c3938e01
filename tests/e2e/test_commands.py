"""run, tokenize, eval and the settings: what they print, what they refuse, how they exit."""

import json
import os
import pty
import shutil
import signal
import subprocess
import unittest

from galley_program import BINARY, MODEL, PATIENCE, GalleyTest

VERBS = ["run", "batch", "serve", "eval", "tokenize", "bench", "verify", "doctor"]


class Program(GalleyTest):
    def test_help_and_version(self):
        top = self.galley("--help")
        self.assertEqual(top.returncode, 0)
        for verb in VERBS:
            self.assertIn(verb.encode(), top.stdout)
        self.assertEqual(self.galley("--version").stdout.split()[0], b"galley")

    def test_every_verb_explains_itself(self):
        for verb in VERBS:
            result = self.galley(verb, "--help")
            self.assertEqual(result.returncode, 0, verb)
            self.assertIn(b"Examples", result.stdout, verb)

    def test_wrong_usage(self):
        self.assertEqual(self.galley().returncode, 64)
        self.assert_fails(self.galley("fly"), 64, "fly", "--help")
        for verb in VERBS:
            self.assert_fails(self.galley(verb, "--no-such-flag"), 64, verb, "--no-such-flag")


class Settings(GalleyTest):
    def test_order_and_where_each_came_from(self):
        (self.folder / "galley.toml").write_text(
            'model = "from-file"\n[run]\ntop-k = 7\ntemperature = 0.1\n')
        shown = self.galley("run", "--show-config", "--seed", "5",
                            env={"GALLEY_TEMPERATURE": "0.2"}).stdout.decode()
        lines = {line.split("=")[0].strip(): line for line in shown.splitlines()[1:]}
        self.assertIn('"from-file"', lines["model"])
        self.assertIn("galley.toml line 1", lines["model"])
        self.assertIn("galley.toml line 3", lines["top-k"])
        self.assertIn("0.2", lines["temperature"])
        self.assertIn("GALLEY_TEMPERATURE", lines["temperature"])
        self.assertIn("flag --seed", lines["seed"])
        self.assertIn("default", lines["min-p"])

    def test_what_it_prints_is_a_settings_file(self):
        shown = self.galley("run", "--show-config", "--top-k", "9").stdout
        (self.folder / "again.toml").write_bytes(shown)
        again = self.galley("run", "--show-config", "--config", "again.toml")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(b"top-k", again.stdout)
        self.assertIn(b"again.toml line", again.stdout)

    def test_wrong_settings(self):
        self.assert_fails(self.galley("run", "x", env={"GALLEY_TOP_K": "many"}), 64, "GALLEY_TOP_K")
        self.assert_fails(self.galley("run", "x", "-t", "-1"), 64, "temperature")
        self.assert_fails(self.galley("run", "x", "--config", "none.toml"), 64, "none.toml")
        self.assert_fails(self.galley("run", "x", "-m", MODEL, "--backend", "magic"), 64, "magic")


    def test_the_model_says_how_it_is_sampled(self):
        model = self.folder / "model"
        model.mkdir()
        wishes = model / "generation_config.json"
        wishes.write_text('{"temperature": 0.25, "top_p": 0.5}')
        for verb in ("run", "batch", "serve"):
            shown = self.galley(verb, "--show-config", "-m", "model", "--top-p", "0.75").stdout.decode()
            lines = {line.split("=")[0].strip(): line for line in shown.splitlines()[1:]}
            self.assertRegex(lines["temperature"], r"= 0\.25 .*# model/generation_config\.json")
            self.assertRegex(lines["top-p"], r"= 0\.75 .*# flag --top-p")
        wishes.write_text('{"temperature": "warm"}')
        self.assert_fails(self.galley("run", "x", "-m", "model"), 1,
                          "model/generation_config.json: temperature")


class Doctor(GalleyTest):
    def doctor(self, *arguments):
        result = self.galley("doctor", "-m", MODEL, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["serve"]

    def test_counts_what_serve_adds(self):
        plain = self.doctor()
        self.assertEqual(plain["sequences"], 32)
        self.assertTrue(plain["fits"])
        self.assertEqual(self.doctor("--sequences", "64")["page_bytes"], 2 * plain["page_bytes"])
        self.assertEqual(self.doctor("--snapshot-memory", "0")["snapshot_bytes"], 0)
        large = self.doctor("--snapshot-memory", "100000000")
        self.assertGreater(large["snapshot_bytes"], 10**12)
        self.assertFalse(large["fits"])
        text = self.galley("doctor", "-m", MODEL).stdout.decode()
        self.assertRegex(text, r"together .* fits beside the weights")
        text = self.galley("doctor", "-m", MODEL, "--snapshot-memory", "100000000").stdout.decode()
        self.assertRegex(text, r"does not fit; less --context or --snapshot-memory")


class Run(GalleyTest):
    def run_json(self, *arguments, **more):
        result = self.galley("run", "-m", MODEL, "--json", *arguments, **more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_streams_and_sums_up(self):
        result = self.galley("run", "-m", MODEL, "Once", "upon", "-n", "20")
        self.assertEqual(result.returncode, 0, result.stderr)
        result.stdout.decode()  # UTF-8 whatever the tokens
        self.assertTrue(result.stdout.endswith(b"\n"))
        summary = result.stderr.decode()
        for word in ("prompt", "prefill", "decode", "first token", "peak memory"):
            self.assertIn(word, summary)
        self.assertEqual(self.galley("run", "-m", MODEL, "x", "-n", "2", "-q").stderr, b"")

    def test_the_same_everywhere(self):
        def ids(*more):
            return self.run_json("Once upon a time", "-n", "30", "-t", "0.7", *more)["ids"]
        base = ids("--seed", "3", "--ignore-end")
        self.assertEqual(len(base), 30)
        for more in (["--threads", "1"], ["--rows", "3"], ["--context", "100"]):
            self.assertEqual(ids("--seed", "3", "--ignore-end", *more), base, more)
        self.assertNotEqual(ids("--seed", "4"), base)
        greedy = [self.run_json("Once", "-t", "0", "-n", "20", "--seed", seed)["ids"]
                  for seed in "12"]
        self.assertEqual(*greedy)

    def test_bias_and_logprobs(self):
        free = self.run_json("Once", "-t", "0", "-n", "4", "--logprobs", "2")
        for one in free["logprobs"]:
            self.assertEqual(one["id"], one["top"][0]["id"])  # greedy took the best
            self.assertLessEqual(one["top"][1]["logprob"], one["top"][0]["logprob"])
            self.assertLess(one["logprob"], 0)
        first = free["ids"][0]
        biased = self.run_json("-t", "0", "-n", "1", "--logit-bias", f"{first}=-100", "Once")
        self.assertEqual(biased["ids"], [free["logprobs"][0]["top"][1]["id"]])
        self.assert_fails(self.galley("run", "x", "--logit-bias", "a=b"), 64, "a=b")
        self.assert_fails(self.galley("run", "x", "-m", MODEL, "--logit-bias", "99999=1"), 1, "99999")

    def test_prompts_from_everywhere(self):
        (self.folder / "p.txt").write_text("Once upon")
        wanted = self.run_json("Once upon", "-t", "0", "-n", "5")["ids"]
        self.assertEqual(self.run_json("--file", "p.txt", "-t", "0", "-n", "5")["ids"], wanted)
        self.assertEqual(self.run_json("-", "-t", "0", "-n", "5", stdin=b"Once upon")["ids"], wanted)
        self.assertEqual(self.run_json("-t", "0", "-n", "5", stdin=b"Once upon")["ids"], wanted)
        ids = json.loads(self.galley("tokenize", "-m", MODEL, "-b", "--json", "Once upon").stdout)
        listed = ",".join(map(str, ids["ids"]))
        self.assertEqual(self.run_json("--ids", listed, "-t", "0", "-n", "5")["ids"], wanted)

    def test_refusals(self):
        def refused(*arguments, code=1, words=(), **more):
            self.assert_fails(self.galley("run", *arguments, **more), code, *words)
        refused("x", "-m", "nowhere", words=["nowhere"])
        refused("x", "-m", self.folder, words=[str(self.folder)])  # a folder without a model
        refused("x", "-m", MODEL, "--file", "y", code=64)
        refused("-m", MODEL, "--file", "absent.txt", words=["absent.txt"])
        refused("-m", MODEL, "--ids", "1,two", words=["two"])
        refused("-m", MODEL, "--ids", "999999", words=["999999"])
        refused("x", "-m", MODEL, "--system", "s", code=64, words=["--chat"])
        refused("-m", MODEL, stdin=b"\xff\xfe", words=["UTF-8"])
        refused("-m", MODEL, "--context", "16", stdin=b"word " * 100, words=["context"])
        refused("x", "-m", MODEL, "--context", "999999999", words=["999999999", "positions"])
        (self.folder / "m.json").write_text('[{"role": "king", "content": "x"}]')
        refused("-m", MODEL, "--messages", "m.json", words=["m.json", "role"])

    def test_the_bundled_model_is_found_beside_the_program(self):
        result = self.galley("run", "Once upon a time", "-n", "3", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout)["model"].endswith("models/nano"))
        shutil.copy(BINARY, self.folder / "alone")  # far from any model
        result = subprocess.run([self.folder / "alone", "run", "x"], capture_output=True,
                                cwd=self.folder, env=self.environment())
        self.assert_fails(result, 1, "models/nano", "--model")

    def test_interrupt_keeps_the_text(self):
        process = self.start("run", "-m", MODEL, "--backend", "plain", "--threads", "1",
                             "--ignore-end", "-n", "100000", "Once")
        first = process.stdout.read(8)
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=60 * PATIENCE)
        self.assertEqual(process.returncode, 130, stderr)
        (first + rest).decode()
        self.assertIn(b"(cancelled)", stderr)


class Conversation(GalleyTest):
    """`run --chat` on a terminal: a pseudo-terminal stands for one."""

    def talk(self, *turns):
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.folder)
            os.execve(BINARY, [BINARY, "run", "--chat", "-m", MODEL, "-n", "5", "--ignore-end"],
                      self.environment())
        text = b""
        for turn in turns:
            while not text.endswith(b"> "):
                text += os.read(terminal, 4096)
            os.write(terminal, turn)
            text += os.read(terminal, len(turn))
        try:
            while chunk := os.read(terminal, 4096):
                text += chunk
        except OSError:  # the other side is gone
            pass
        os.close(terminal)
        return text, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    def test_turns_until_an_empty_line(self):
        text, code = self.talk(b"Hello\n", b"And you?\n", b"\n")
        self.assertEqual(code, 0)
        self.assertEqual(text.count(b"answer 5 tokens"), 2)

    def test_ctrl_c_at_the_prompt_ends(self):
        text, code = self.talk(b"Hello\n", b"\x03")
        self.assertEqual(code, 130)
        self.assertEqual(text.count(b"answer 5 tokens"), 1)


class Tokenize(GalleyTest):
    def test_round_trips(self):
        for text in ("Hello, world!", "  two  spaces\n\nlines\t", "你好，世界！ 😀", "<think>a</think>"):
            ids = self.galley("tokenize", "-m", MODEL, stdin=text.encode()).stdout.decode().split()
            back = self.galley("tokenize", "-m", MODEL, "-d", *ids).stdout.decode()
            self.assertEqual(back, text + "\n")
            count = self.galley("tokenize", "-m", MODEL, "--count", stdin=text.encode()).stdout
            self.assertEqual(int(count), len(ids))

    def test_markup_counts_only_if_asked(self):
        plain = self.galley("tokenize", "-m", MODEL, "<think>").stdout.split()
        active = self.galley("tokenize", "-m", MODEL, "--markup", "<think>").stdout.split()
        self.assertEqual(len(active), 1)
        self.assertGreater(len(plain), 1)

    def test_refusals(self):
        self.assert_fails(self.galley("tokenize", "-m", MODEL, "-d", "99999"), 1, "99999")
        self.assert_fails(self.galley("tokenize", "-m", MODEL, "-d", "x"), 1, "x")
        self.assert_fails(self.galley("tokenize", "-m", "nowhere", "x"), 1, "nowhere")


class Eval(GalleyTest):
    def test_bits_per_byte(self):
        (self.folder / "a.txt").write_text("Once upon a time there was a fox. " * 20)
        (self.folder / "b.txt").write_text("你好，世界！" * 30)
        result = self.galley("eval", "-m", MODEL, "--json", "--window", "64", "a.txt", "b.txt")
        self.assertEqual(result.returncode, 0, result.stderr)
        a, b, both = map(json.loads, result.stdout.splitlines())
        self.assertEqual(a["bytes"], 34 * 20)
        self.assertEqual(b["bytes"], 18 * 30)
        self.assertAlmostEqual(both["nats"], a["nats"] + b["nats"], places=6)
        self.assertGreater(a["bits_per_byte"], 1)
        again = self.galley("eval", "-m", MODEL, "--json", "--window", "64", "--threads", "1",
                            "a.txt")
        self.assertEqual(json.loads(again.stdout)["nats"], a["nats"])

    def test_tasks(self):
        cases = [{"id": "1", "task": "t", "bucket": "b", "prompt": "x", "max_tokens": 2,
                  "check": {"kind": "contains", "value": ""}},
                 {"id": "2", "task": "t", "bucket": "b", "prompt": "x", "max_tokens": 2,
                  "check": {"kind": "exact", "value": "never"}},
                 {"id": "3", "task": "t", "bucket": "b", "prompt": "x", "max_tokens": 2}]
        (self.folder / "t.jsonl").write_text("".join(json.dumps(c) + "\n" for c in cases))
        result = self.galley("eval", "-m", MODEL, "--json", "--task", "t.jsonl", "--cases", "out")
        self.assertEqual(result.returncode, 0, result.stderr)
        tally = json.loads(result.stdout.splitlines()[0])
        self.assertEqual((tally["cases"], tally["passed"]), (2, 1))
        self.assertIn(b"1 cases have no check", result.stderr)
        self.assertEqual(len((self.folder / "out").read_text().splitlines()), 2)

    def test_refusals(self):
        self.assert_fails(self.galley("eval"), 64, "--task")
        self.assert_fails(self.galley("eval", "-m", MODEL, "absent.txt"), 1, "absent.txt")
        (self.folder / "bad.txt").write_bytes(b"\xff")
        self.assert_fails(self.galley("eval", "-m", MODEL, "bad.txt"), 1, "bad.txt", "UTF-8")
        (self.folder / "empty.txt").write_bytes(b"")
        self.assert_fails(self.galley("eval", "-m", MODEL, "empty.txt"), 1, "empty")
        (self.folder / "t.jsonl").write_text("{}\n")
        self.assert_fails(self.galley("eval", "-m", MODEL, "--task", "t.jsonl"), 1, "t.jsonl line 1")


if __name__ == "__main__":
    unittest.main()
