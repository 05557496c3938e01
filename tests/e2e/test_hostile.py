"""galley serve under bodies that are made to cost more than they say: memory goes back to what it
was, and prompts far beyond the context are refused without being tokenised to their end."""

import json
import pathlib
import re
import time
import unittest

from galley_program import SANITIZED, GalleyTest
from galley_server import Server

BODY_BYTES = 15_000_000
# Resident memory afterwards, beyond what it was; and at most at any moment: the body as it came,
# as it is read, and what its values may take (kBodyTreeBytesMax).
REMAINING_MIB = 16
PEAK_MIB = 256


def repeated(begin, unit, end):
    return (begin + unit * ((BODY_BYTES - len(begin) - len(end)) // len(unit)) + end).encode()


def many_keys():
    return ("{" + ",".join(f'"k{i}":0' for i in range(BODY_BYTES // 12)) + "}").encode()


class Hostile(GalleyTest):
    def memory(self, server, name):
        text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        return int(re.search(name + r":\s+(\d+)", text).group(1)) >> 10

    def settled(self, server, most):
        deadline = time.monotonic() + 10
        while self.memory(server, "VmRSS") > most and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.memory(server, "VmRSS")

    def test_memory_goes_back(self):
        server = Server(self)
        server.generate()
        before = self.memory(server, "VmRSS")
        for name, status, body in (
                ("arrays", 400, repeated('{"prompt":[', "[],", "[]]}")),
                ("objects", 400, repeated('{"prompt":[', "{},", "{}]}")),
                ("numbers", 400, repeated('{"prompt":[', "1,", "1]}")),
                ("strings", 400, repeated('{"prompt":[', '"",', '""]}')),
                ("keys", 400, many_keys()),
                ("ids", 400, b'{"prompt":[' + b"5," * 1_000_000 + b"5]}"),
                ("escapes", 400, repeated('{"prompt":"', "\\u0041", '"}')),
                ("text", 400, repeated('{"prompt":"', "once upon ", '"}')),
                ("not JSON", 400, b"{" * BODY_BYTES)):
            with self.subTest(name):
                self.assertEqual(server.ask("/v1/completions", body)[0], status)
                if not SANITIZED:
                    now = self.settled(server, before + REMAINING_MIB)
                    self.assertLessEqual(now, before + REMAINING_MIB, name)
        if not SANITIZED:
            self.assertLessEqual(self.memory(server, "VmHWM"), before + PEAK_MIB)
        self.assertEqual(server.generate()[0], 200)

    def test_prompts_far_too_long(self):
        server = Server(self)
        for unit in ("once upon ", "a", "7", " ", "\n", "\U0001F600", "a1!\n"):
            prompt = unit * (10_000_000 // len(json.dumps(unit, ensure_ascii=False).encode()[1:-1]))
            for path, body in (
                    ("/v1/completions", {"prompt": prompt}),
                    ("/v1/completions", {"prompt": "a", "suffix": prompt}),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]})):
                text = json.dumps(body, ensure_ascii=False).encode()
                begin = time.monotonic()
                status, _, answer = server.ask(path, text)
                seconds = time.monotonic() - begin
                message = json.loads(answer)["error"]["message"]
                self.assertEqual(status, 400)
                found = re.search(r"has at least (\d+) tokens, the model takes at most 2048 ", message)
                self.assertTrue(found, message)
                self.assertGreater(int(found.group(1)), 2 * 2048)
                # 0.3 s on an idle machine, mostly for reading the body; tokenising took up to 2.
                self.assertLess(seconds, 5)

    def test_a_little_too_long_is_counted(self):
        server = Server(self)
        count = json.loads(server.ask("/tokenize", {"prompt": "once upon a time " * 600})[2])["count"]
        self.assertGreater(count, 2048)
        message = json.loads(server.generate(prompt="once upon a time " * 600)[2])["error"]["message"]
        self.assertIn(f"has {count} tokens, the model takes at most 2048", message)


if __name__ == "__main__":
    unittest.main()
