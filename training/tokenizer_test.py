"""Shows that the BPE encodes as the reference did, loses nothing, and trains the same each time.

The reference encodings are those of ../shared/golden (or tests/golden); without them that test is
skipped, never passed.
"""

import json
import pathlib
import unittest

import tokenizer
from tokenizer import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = next((p for p in (ROOT / "tests/golden", ROOT / "../shared/golden")
               if (p / "units/units.json").exists()), None)

ODD_TEXTS = [
    "", " ", "\n", "a  b", "  leading", "trailing   ", "a\r\nb", "\u3000\u3000", "a\u0085b", "x\u00a0y",
    "a\u200db", ".foo bar-baz", "１２３４５", "🦀 is 12345 元 (ok)!\n\n  中文 .foo", "x\n \n\ny", " \n",
    "\x00\x01\x7f", "e\u0301\u0301", "½ Ⅷ ⅓", "٢٠٢٤", "안녕하세요 세계", "東京タワーは333mです",
    "if (a && b) { c = d ?? e; }", "\ufeffstart", "<｜User｜>hi<｜DSML｜ calls>", "</think", "｜DSML",
]

TEXT = ("One day a little girl found a kite in the old garden. " * 30 + "你好，世界！" * 20
        + "She said, \"It's 1234 o'clock.\"\n\n" * 20)


def small():
    return tokenizer.train([TEXT], vocab_size=330)


class TokenizerTest(unittest.TestCase):
    def test_pieces(self):
        self.assertEqual(
            "|".join(tokenizer.split_words("Hello, it's 12345元 (ok)!\n\n  中文 .foo")),
            "Hello|,| it|'s| |123|45|元| (|ok|)!\n\n|  |中文| .|foo")

    def test_nothing_is_lost(self):
        encoder = Tokenizer(small())
        for text in ODD_TEXTS + [TEXT]:
            for added in (True, False):
                with self.subTest(text[:20], added=added):
                    self.assertEqual(encoder.decode(encoder.encode(text, added)), text)

    def test_added_tokens(self):
        encoder = Tokenizer(small())
        for text, id_ in encoder.added.items():
            self.assertEqual(encoder.encode(text), [id_])
            self.assertNotIn(id_, encoder.encode(text, added_tokens=False))
        self.assertEqual(encoder.encode(tokenizer.BOS), [0])
        self.assertEqual(len(encoder.encode("<｜DSML｜ calls>")[0:2]), 2)

    def test_training_is_deterministic_and_full(self):
        one, two = small(), small()
        self.assertEqual(json.dumps(one), json.dumps(two))
        ids = sorted([*one["model"]["vocab"].values(),
                      *(t["id"] for t in one["added_tokens"] if t["id"] > 2)])
        self.assertEqual(ids, list(range(330)))

    def test_too_little_text_is_refused(self):
        with self.assertRaises(SystemExit):
            tokenizer.train(["ab"], vocab_size=330)

    def test_shape_is_the_released_one(self):
        if GOLDEN is None:
            self.skipTest("no golden directory")
        golden = json.loads(
            (GOLDEN / "g1-micro-text/checkpoint/tokenizer.json").read_text(encoding="utf-8"))
        ours = small()
        self.assertEqual(list(ours), list(golden))
        for key in ("version", "truncation", "padding", "normalizer", "pre_tokenizer",
                    "post_processor", "decoder"):
            self.assertEqual(ours[key], golden[key], key)
        self.assertEqual({k: v for k, v in ours["model"].items() if k not in ("vocab", "merges")},
                         {k: v for k, v in golden["model"].items() if k not in ("vocab", "merges")})

    def test_agrees_with_reference_encodings(self):
        if GOLDEN is None:
            self.skipTest("no golden directory")
        units = json.loads((GOLDEN / "units/units.json").read_text(encoding="utf-8"))
        for name, folder in (("g1", "g1-micro-text"), ("g2", "g2-micro-full")):
            encoder = Tokenizer.load(GOLDEN / folder / "checkpoint/tokenizer.json")
            cases = units[f"tokenizer.{name}"]
            self.assertGreater(len(cases), 10)
            for case in cases:
                with self.subTest(case["text"]):
                    self.assertEqual(encoder.encode(case["text"]), case["ids"])
                    self.assertEqual(encoder.decode(case["ids"]), case["decoded"])


if __name__ == "__main__":
    unittest.main()
