"""galley serve --state-dir under kill -9 at random moments: a batch goes on where it was, every line
has one answer, and each is what an undisturbed server gives."""

import json
import os
import random
import signal
import time
import unittest

from galley_program import MODEL, GalleyTest
from galley_server import Server

LINES = 120
KILLS = 6
SEED = int(os.environ.get("GALLEY_SEED", "1"))


def line(number):
    if number % 40 == 7:  # one that the model cannot take: its error is an answer too
        body = {"prompt": [5] * 3000}
    else:
        body = {"prompt": f"Number {number}", "max_tokens": 40, "temperature": 0}
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions",
                       "body": body})


class Restart(GalleyTest):
    def serve(self, *arguments):
        return Server(self, "--state-dir", "state", *arguments, model=MODEL)

    def upload(self, server, text):
        body = ("--x\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--x\r\n"
                "Content-Disposition: form-data; name=file; filename=in.jsonl\r\n\r\n"
                f"{text}\r\n--x--\r\n")
        status, _, answer = server.ask("/v1/files", body,
                                       Content_Type="multipart/form-data; boundary=x")
        self.assertEqual(status, 200, answer)
        return json.loads(answer)["id"]

    def create(self, server, file):
        status, _, answer = server.ask("/v1/batches", {
            "input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})
        self.assertEqual(status, 200, answer)
        return json.loads(answer)["id"]

    def batch(self, server, name):
        return json.loads(server.ask(f"/v1/batches/{name}")[2])

    def wait(self, server, name):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            batch = self.batch(server, name)
            if batch["status"] in ("completed", "failed", "cancelled", "expired"):
                return batch
            time.sleep(0.05)
        self.fail(batch)

    def answers(self, server, batch):
        """custom_id -> (status, text), each once."""
        answers = {}
        for field in ("output_file_id", "error_file_id"):
            for text in server.ask(f"/v1/files/{batch[field]}/content")[2].split("\n")[:-1]:
                one = json.loads(text)
                self.assertNotIn(one["custom_id"], answers)
                response = one["response"]
                choices = response["body"].get("choices", [{"text": "none"}])
                answers[one["custom_id"]] = (response["status_code"], choices[0]["text"])
        return answers

    @staticmethod
    def kill(server):
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()

    def test_kill_at_random_moments(self):
        rng = random.Random(SEED)
        text = "\n".join(line(number) for number in range(LINES))
        server = self.serve()
        calm = self.answers(server, self.wait(server, self.create(server, self.upload(server, text))))
        self.assertEqual(len(calm), LINES)
        file = self.upload(server, text)
        name = self.create(server, file)
        seen = []
        for _ in range(KILLS):
            time.sleep(rng.uniform(0, 0.4))
            self.kill(server)
            server = self.serve()
            batch = self.batch(server, name)
            counts = batch["request_counts"]
            seen.append(counts["completed"] + counts["failed"])
        done = self.wait(server, name)
        self.assertEqual(seen, sorted(seen), "answers were lost")
        self.assertEqual(done["status"], "completed")
        counts = done["request_counts"]
        self.assertEqual((counts["total"], counts["failed"]), (LINES, LINES // 40))
        self.assertEqual(self.answers(server, done), calm, f"seed {SEED}, kills at {seen}")
        # What is deleted stays deleted, the rest is there once more.
        self.assertEqual(server.ask(f"/v1/files/{file}", method="DELETE")[0], 200)
        self.kill(server)
        server = self.serve()
        self.assertEqual(server.ask(f"/v1/files/{file}")[0], 404)
        self.assertEqual(self.answers(server, self.batch(server, name)), calm)

    def test_a_batch_needs_its_key_still(self):
        made = self.galley("serve", "--new-key", "alice").stdout.decode()
        key = self.galley("serve", "--new-key", "alice")
        entry = key.stdout.decode().replace('["infer"]', '["infer", "batch"]')
        secret = key.stderr.decode().split()[-1]
        (self.folder / "keys.toml").write_text(entry)
        server = self.serve("--api-keys", "keys.toml")

        def ask(path, body=None, **fields):
            return server.ask(path, body, Authorization=f"Bearer {secret}", **fields)
        form = ("--x\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--x\r\n"
                f"Content-Disposition: form-data; name=file\r\n\r\n{line(1)}\r\n--x--\r\n")
        file = json.loads(ask("/v1/files", form, Content_Type="multipart/form-data; boundary=x")[2])
        create = {"input_file_id": file["id"], "endpoint": "/v1/completions",
                  "completion_window": "24h"}
        name = json.loads(ask("/v1/batches", create)[2])["id"]
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            batch = json.loads(ask(f"/v1/batches/{name}")[2])
            if batch["status"] == "completed":
                break
            time.sleep(0.05)
        self.assertEqual(batch["request_counts"]["completed"], 1)
        # Nothing that is kept is a key.
        for path in (self.folder / "state").rglob("*"):
            if path.is_file():
                self.assertNotIn(secret, path.read_text(errors="replace"), path)
        self.assertTrue(made)

    def test_one_server_at_a_time(self):
        self.serve()
        self.assert_fails(self.galley("serve", "-m", MODEL, "--port", "0", "--state-dir", "state"), 1,
                          "state: another server uses this state directory")


if __name__ == "__main__":
    unittest.main()
