"""loading: every way in which a model directory can be broken is one line and exit code 1.

Each case breaks one thing of a tiny whole model; the program runs with little memory to spare,
so that a length from a file never becomes an allocation.
"""

import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import time
import unittest

from galley_program import BINARY, MODEL, PATIENCE, SANITIZED, GalleyTest

FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
MEMORY_BYTES = 3 << 30


def read_shard(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), data[8 + length:]


def write_shard(path, header, payload):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES,) * 2)


class Loading(GalleyTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        shutil.copytree(MODEL, self.model)
        for path in self.model.iterdir():
            path.chmod(0o644)
        self.first = self.model / FIRST
        self.second = self.model / SECOND

    def run_model(self, **options):
        return subprocess.run(
            [BINARY, "run", "--model", str(self.model), "--max-tokens", "1", "--temperature", "0",
             "x"],
            stdin=subprocess.DEVNULL, capture_output=True, env=self.environment(), timeout=60 * PATIENCE, preexec_fn=None if SANITIZED else limit_memory,
            **options)

    def assert_refused(self, *words, **options):
        result = self.run_model(**options)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, 1, message)
        self.assertEqual(result.stdout, b"")
        self.assertEqual(message.count("\n"), 1, message)
        for word in words:
            self.assertIn(word, message)
        doctor = self.galley("doctor", "--model", self.model, "--json")
        self.assertEqual(doctor.returncode, 1)
        self.assertGreaterEqual(len(json.loads(doctor.stdout)["problems"]), 1)

    def test_shard_truncated_while_in_use(self):
        process = subprocess.Popen(
            [BINARY, "run", "--model", str(self.model), "--temperature", "0", "--chat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=self.environment(), cwd=self.folder)
        self.addCleanup(self.end, process)
        # The model is mapped before the first prompt is asked for.
        mapped = pathlib.Path(f"/proc/{process.pid}/maps")
        deadline = time.monotonic() + 30 * PATIENCE
        while SECOND not in mapped.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        for path in (self.first, self.second):
            os.truncate(path, 4096)
        _, message = process.communicate(b"Hello\n", timeout=60 * PATIENCE)
        self.assertEqual(process.returncode, 1, message)
        self.assertIn(b"became shorter or unreadable while in use", message)
        self.assertIn(b".safetensors", message)

    def change_header(self, change, path=None):
        path = path or self.first
        header, payload = read_shard(path)
        changed = change(header, payload)
        write_shard(path, header, payload if changed is None else changed)

    def change_index(self, change):
        index = json.loads((self.model / INDEX).read_text())
        change(index["weight_map"])
        (self.model / INDEX).write_text(json.dumps(index))

    def change_config(self, change):
        config = json.loads((self.model / "config.json").read_text())
        change(config)
        (self.model / "config.json").write_text(json.dumps(config))

    def without(self, name):
        """Removes a tensor and its bytes from the first shard that has it."""
        for path in (self.first, self.second):
            header, payload = read_shard(path)
            if name not in header:
                continue
            begin, end = header.pop(name)["data_offsets"]
            for key, entry in header.items():
                if key != "__metadata__" and entry["data_offsets"][0] >= end:
                    entry["data_offsets"] = [x - (end - begin) for x in entry["data_offsets"]]
            write_shard(path, header, payload[:begin] + payload[end:])
            return
        self.fail(name)

    def test_whole(self):
        result = self.run_model()
        self.assertEqual(result.returncode, 0, result.stderr.decode())

    def test_links(self):
        os.rename(self.second, self.folder / "blob")
        self.second.symlink_to(self.folder / "blob")
        self.assertEqual(self.run_model().returncode, 0)

    def test_missing_shard(self):
        self.second.unlink()
        self.assert_refused(SECOND, "missing shard")

    def test_truncated_shard(self):
        data = self.second.read_bytes()
        for length in (len(data) - 1, len(data) // 2, 1000, 7, 0):
            self.second.write_bytes(data[:length])
            self.assert_refused(SECOND, "truncated")

    def test_header_longer_than_the_file(self):
        data = bytearray(self.second.read_bytes())
        for length in (len(data), 1 << 40, (1 << 64) - 1):
            data[:8] = struct.pack("<Q", length)
            self.second.write_bytes(data)
            self.assert_refused(SECOND, str(length))

    def test_overlap(self):
        def change(header, payload):
            header["head.weight"]["data_offsets"] = header["embed.weight"]["data_offsets"]
        self.change_header(change)
        self.assert_refused(FIRST, "overlap")

    def test_out_of_range(self):
        def change(header, payload):
            begin, _ = header["norm.weight"]["data_offsets"]
            header["norm.weight"]["data_offsets"] = [begin, 1 << 60]
        self.change_header(change)
        self.assert_refused(FIRST, "norm.weight")

    def test_wrong_dtype(self):
        def change(header, payload):
            header["embed.weight"]["dtype"] = "F16"
        self.change_header(change)
        self.assert_refused("embed.weight", "F16", "BF16")

    def test_wrong_shape(self):
        def change(header, payload):
            header["embed.weight"]["shape"].reverse()
        self.change_header(change)
        self.assert_refused("embed.weight", "[128, 512]", "[512, 128]")

    def test_missing_tensor(self):
        self.without("norm.weight")
        self.assert_refused("norm.weight", "missing")

    def test_missing_scale(self):
        self.without("layers.3.ffn.experts.2.w1.scale")
        self.change_index(lambda names: names.pop("layers.3.ffn.experts.2.w1.scale"))
        self.assert_refused("layers.3.ffn.experts.2.w1.scale", "missing")

    def test_unknown_tensor(self):
        def change(header, payload):
            header["layers.3.bias"] = {"dtype": "U8", "shape": [4],
                                       "data_offsets": [len(payload), len(payload) + 4]}
            return payload + b"1234"
        self.change_header(change)
        self.assert_refused("layers.3.bias")
        self.change_index(lambda names: names.update({"layers.3.bias": FIRST}))
        self.assert_refused("layers.3.bias", "unknown")

    def test_duplicate_name(self):
        header, payload = read_shard(self.first)
        text = json.dumps(header)
        entry = json.dumps(header["norm.weight"])
        write_shard(self.first, (text[:-1] + f', "norm.weight": {entry}}}').encode(), payload)
        self.assert_refused(FIRST, "norm.weight", "twice")

    def test_not_utf8(self):
        header, payload = read_shard(self.first)
        text = json.dumps(header).encode().replace(b"norm.weight", b"norm.w\xffight", 1)
        write_shard(self.first, text, payload)
        self.assert_refused(FIRST, "UTF-8")

    def test_config_and_tensors_disagree(self):
        self.change_config(lambda c: c["text_config"].update(n_routed_experts=7))
        self.assert_refused("[8, 128]", "[7, 128]")

    def test_config_names_its_field(self):
        self.change_config(lambda c: c["text_config"].update(hc_mult="four"))
        self.assert_refused("config.json", "text_config.hc_mult")

    def test_no_model(self):
        for name in (INDEX, "config.json"):
            (self.model / name).unlink()
            self.assert_refused(str(self.model))

    def test_no_permission(self):
        if os.geteuid() == 0:
            self.skipTest("root may read everything; checkpoint_test looks with nobody's eyes")
        self.second.chmod(0)
        self.assert_refused(SECOND, "Permission denied")

    def test_tokenizer(self):
        path = self.model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        tokenizer["model"]["type"] = "Unigram"
        path.write_text(json.dumps(tokenizer))
        self.assert_refused("tokenizer.json", "model.type", "Unigram")

    def test_engram_classes(self):
        self.change_config(lambda c: c["text_config"].update(engram_compressed_vocab_size=386))
        result = self.run_model()
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.decode().count("\n"), 1)
        self.assertIn("386", result.stderr.decode())


if __name__ == "__main__":
    unittest.main()
