"""batch: errors as records, order, and that neither kill nor Ctrl-C loses or repeats a line."""

import json
import random
import signal
import subprocess
import time
import unittest

from galley_program import MODEL, PATIENCE, GalleyTest


def requests(count, tokens=12):
    return [{"custom_id": f"r{i}", "prompt": "Once " + "upon a time " * (i % 5),
             "max_tokens": 1 + i % tokens, "seed": i} for i in range(count)]


class Batch(GalleyTest):
    def write(self, lines, name="in.jsonl"):
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
        (self.folder / name).write_text(text)

    def batch(self, *arguments, out="out.jsonl", **more):
        return self.galley("batch", "in.jsonl", "-o", out, "-m", MODEL, *arguments, **more)

    def records(self, out="out.jsonl"):
        return [json.loads(line) for line in (self.folder / out).read_bytes().splitlines()]

    def test_answers_in_order_whatever_runs_together(self):
        self.write(requests(50))
        self.assertEqual(self.batch().returncode, 0)
        self.assertEqual([r["custom_id"] for r in self.records()], [f"r{i}" for i in range(50)])
        for i, arguments in enumerate((["--sequences", "1"], ["--sequences", "3", "--rows", "5"],
                                       ["--threads", "1"])):
            self.assertEqual(self.batch(*arguments, out=f"{i}.jsonl").returncode, 0)
            self.assertEqual((self.folder / f"{i}.jsonl").read_bytes(),
                             (self.folder / "out.jsonl").read_bytes(), arguments)

    def test_bad_lines_become_records(self):
        self.write([{"custom_id": "a", "prompt": "x", "max_tokens": 2}, "junk", "",
                    {"custom_id": "a", "prompt": "again"}, {"prompt": "nameless"},
                    {"custom_id": "b", "prompt": "x", "temperature": -1},
                    {"custom_id": "c", "ids": [999999]},
                    {"custom_id": "d", "prompt": "x", "max_tokens": 10**9},
                    {"custom_id": "e", "messages": [{"role": "user", "content": "Hi"}],
                     "max_tokens": 2}])
        result = self.batch("--json")
        self.assertEqual(result.returncode, 1, result.stderr)
        summary = json.loads(result.stdout)
        self.assertEqual((summary["answered"], summary["failed"]), (2, 6))
        records = self.records()
        failed = {r["line"]: r["error"]["message"] for r in records if "error" in r}
        self.assertEqual(sorted(failed), [2, 4, 5, 6, 7, 8])
        self.assertIn("line 1", failed[4])
        self.assertIn("custom_id", failed[5])
        self.assertIn("temperature", failed[6])
        self.assertIn("999999", failed[7])
        self.assertIn("context", failed[8])
        self.assertEqual(records[-1]["custom_id"], "e")
        before = (self.folder / "out.jsonl").read_bytes()
        self.assertEqual(self.batch().returncode, 0)  # nothing new, nothing new wrong
        self.assertEqual((self.folder / "out.jsonl").read_bytes(), before)

    def test_stop_sequences(self):
        self.write([{"custom_id": "a", "prompt": "Once", "max_tokens": 40, "seed": 5}])
        self.assertEqual(self.batch(out="free.jsonl").returncode, 0)
        text = self.records("free.jsonl")[0]["text"]
        stop = text[4:6]
        self.write([{"custom_id": str(i), "prompt": "Once", "max_tokens": 40, "seed": 5,
                     "stop": [stop, "never"]} for i in range(8)])
        self.assertEqual(self.batch("--sequences", "3").returncode, 0)
        for record in self.records():
            self.assertEqual(record["text"], text[:text.index(stop)])
            self.assertEqual(record["finish_reason"], "stop")
        run = self.galley("run", "-m", MODEL, "Once", "-n", "40", "--seed", "5", "--stop", stop,
                          "--json")
        self.assertEqual(json.loads(run.stdout)["text"], text[:text.index(stop)])
        self.assertEqual(json.loads(run.stdout)["finish_reason"], "stop")

    def test_a_mended_line_is_answered_by_the_next_run(self):
        self.write([{"custom_id": "a", "prompt": "x", "max_tokens": 2}, "junk"])
        self.assertEqual(self.batch().returncode, 1)
        self.write([{"custom_id": "a", "prompt": "x", "max_tokens": 2},
                    {"custom_id": "b", "prompt": "y", "max_tokens": 2}])
        self.assertEqual(self.batch().returncode, 0)
        self.assertEqual([r.get("custom_id") for r in self.records()], ["a", None, "b"])

    def test_kill_after_kill_loses_and_repeats_nothing(self):
        self.write(requests(200, 40) + ["junk"])
        self.assertEqual(self.batch("--sequences", "4", out="calm.jsonl").returncode, 1)
        calm = (self.folder / "calm.jsonl").read_bytes()
        dice = random.Random(1)
        out, kills = self.folder / "out.jsonl", 0
        for attempt in range(200):  # each lives a little longer: a busy machine gets there too
            process = self.start("batch", "in.jsonl", "-o", "out.jsonl", "-m", MODEL,
                                 "--sequences", "4", "--threads", "1")
            try:
                process.wait(0.03 + 0.15 * dice.random() + 0.01 * attempt)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                content = out.read_bytes() if out.exists() else b""
                if dice.random() < 0.5 and content:  # as if the kill had cut the last write
                    out.write_bytes(content[:-dice.randint(1, min(30, len(content)))])
        self.assertGreater(kills, 2)
        self.assertEqual(out.read_bytes(), calm)

    def test_interrupt_keeps_answers_and_the_next_run_goes_on(self):
        self.write(requests(100, 40))
        process = self.start("batch", "in.jsonl", "-o", "out.jsonl", "-m", MODEL, "--backend",
                             "plain", "--threads", "1", "--sequences", "4")
        out = self.folder / "out.jsonl"
        deadline = time.time() + 60
        while time.time() < deadline and not (out.exists() and out.stat().st_size > 0):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60 * PATIENCE)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn(b"goes on", stderr)
        some = len(self.records())
        self.assertTrue(0 < some < 100)
        self.assertEqual(self.batch("--backend", "plain").returncode, 0)
        self.assertEqual(sorted(r["custom_id"] for r in self.records()),
                         sorted(r["custom_id"] for r in requests(100)))

    def test_standard_input(self):
        data = "".join(json.dumps(one) + "\n" for one in requests(5)).encode()
        result = self.galley("batch", "-", "-o", "out.jsonl", "-m", MODEL, stdin=data)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.records()), 5)

    def test_refusals(self):
        self.write(requests(2))
        self.assert_fails(self.galley("batch", "in.jsonl"), 64, "--out")
        self.assert_fails(self.galley("batch", "-o", "x"), 64, "input")
        self.assert_fails(self.galley("batch", "absent", "-o", "x", "-m", MODEL), 1, "absent")
        self.assert_fails(self.galley("batch", "in.jsonl", "-o", "no/such/x", "-m", MODEL), 1,
                          "no/such/x")
        (self.folder / "other.txt").write_text("a letter\n")
        self.assert_fails(self.batch(out="other.txt"), 1, "other.txt line 1")
        self.assertEqual((self.folder / "other.txt").read_text(), "a letter\n")
        (self.folder / "empty.jsonl").write_text("")
        self.assert_fails(self.galley("batch", "empty.jsonl", "-o", "empty.jsonl", "-m", MODEL), 1,
                          "same file")


if __name__ == "__main__":
    unittest.main()
