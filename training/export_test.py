"""Shows that export.py writes what checkpoint.py reads: a golden checkpoint survives the round
trip value by value, name by name, and shards respect their limit. Needs torch; skips without."""

import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
GOLDEN = os.path.join(HERE, "..", "tests", "golden", "g2-micro-full", "checkpoint")

try:
    import torch
except ImportError:
    torch = None


@unittest.skipUnless(torch, "torch is not installed")
class RoundTrip(unittest.TestCase):
    def setUp(self):
        import checkpoint
        import model

        self.checkpoint = checkpoint
        self.cfg = model.Config.load(os.path.join(GOLDEN, "config.json"))
        self.model = model.Model(self.cfg)
        checkpoint.load(self.model, GOLDEN)
        self.reread = model.Model(self.cfg)

    def test_every_value_and_name_survives(self):
        import export

        with tempfile.TemporaryDirectory() as out:
            summary = export.write(self.model, GOLDEN, out)
            original = self.checkpoint.read_directory(GOLDEN)
            written = self.checkpoint.read_directory(out)
            self.assertEqual(set(original), set(written))
            self.assertEqual(summary["tensors"], len(original))
            for name, tensor in original.items():
                self.assertEqual(tensor.shape, written[name].shape, name)
                self.assertEqual(tensor.dtype, written[name].dtype, name)
            self.checkpoint.load(self.reread, out)
        for name, value in self.model.params.items():
            self.assertTrue(torch.equal(value, self.reread.params[name]), name)

    def test_shards_respect_their_limit(self):
        import export

        kept, export.SHARD_BYTES_MAX = export.SHARD_BYTES_MAX, 1 << 20
        try:
            with tempfile.TemporaryDirectory() as out:
                self.assertGreater(export.write(self.model, GOLDEN, out)["shards"], 3)
                for entry in os.scandir(out):
                    if entry.name.endswith(".safetensors"):
                        self.assertLessEqual(entry.stat().st_size, 1 << 20)
                self.checkpoint.load(self.reread, out)
        finally:
            export.SHARD_BYTES_MAX = kept


if __name__ == "__main__":
    unittest.main()
