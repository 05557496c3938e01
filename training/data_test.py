"""Shows that the data is deterministic, split cleanly and encoded reversibly, without the corpus."""

import json
import lzma
import pathlib
import random
import re
import tempfile
import unittest

import numpy

import data
import heldout
import tokenizer
from world import documents, facts, recall, words


class WorldTest(unittest.TestCase):
    def setUp(self):
        self.world = documents.World(str.split, ["A paragraph of some book. " * 12])

    def test_same_seed_same_documents(self):
        for name in documents.SHARES:
            with self.subTest(name):
                one, two = (self.world.document(name, random.Random("x" + name)) for _ in range(2))
                self.assertEqual(one, two)
                self.assertNotEqual(one, self.world.document(name, random.Random("y" + name)))

    def test_documents_are_whole(self):
        rng = random.Random(7)
        for name in documents.SHARES:
            for _ in range(20):
                text = self.world.document(name, rng)
                self.assertTrue(text.startswith(tokenizer.BOS) and text.endswith(tokenizer.EOS))
                self.assertEqual(text.count(tokenizer.BOS), 1)
                self.assertNotRegex(text, r"\$[a-z]|\$[ABC]\b")  # no slot left open

    def test_each_fact_can_be_asked_in_training(self):
        kept = 0
        for fact in facts.FACTS:
            self.assertTrue(facts.questions(fact, for_tasks=False), fact.statement)
            self.assertIn(fact.value, fact.statement)
            kept += len(facts.questions(fact, for_tasks=True))
        self.assertGreater(kept, 150)

    def test_a_question_has_one_answer(self):
        answers = {}
        for fact in facts.FACTS:
            for question in fact.questions:
                self.assertIn(answers.setdefault(question, fact.statement), (fact.statement,),
                              question)

    def test_values_do_not_contain_each_other(self):
        for values in (words.SECRETS, words.SECRETS_ZH, [p[0] for p in words.PLACES]):
            for one in values:
                self.assertEqual([v for v in values if one in v], [one])

    def test_passing_facts_have_distinct_questions(self):
        told = recall.passing_facts(random.Random(3), 60, recall.ENGLISH)
        self.assertEqual(len({fact[1] for fact in told}), 60)
        for _, _, answer, value in told:
            self.assertIn(value, answer)

    def test_training_never_asks_a_kept_question(self):
        kept = {q for fact in facts.FACTS for q in facts.questions(fact, for_tasks=True)}
        rng = random.Random(11)
        for name in ("world_chat", "tools", "small_talk"):
            for _ in range(300):
                asked = re.findall("<｜User｜>([^<]*)<", self.world.document(name, rng))
                self.assertFalse(kept & set(asked))


def write_books(folder, count, sources=None):
    text = "\n<|endoftext|>\n".join(f"Book {i} tells of {i} foxes." for i in range(1, count + 1))
    with lzma.open(folder / "en_stories.txt.xz", "wt", encoding="utf-8") as file:
        file.write(text + "\n")
    lines = [json.dumps({"id": f"b{i}"}) for i in range(1, (sources or count) + 1)]
    (folder / "en_stories.sources.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


class FolderTest(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)

    def test_each_eleventh_book_is_held_out(self):
        write_books(self.folder, 24)
        training, held = heldout.split_stories(self.folder)
        self.assertEqual([id_ for id_, _ in held], ["b11", "b22"])
        self.assertEqual(held[0][1], "Book 11 tells of 11 foxes.")
        self.assertEqual(len(training), 22)
        self.assertFalse({text for _, text in held} & {text for _, text in training})

    def test_books_and_sources_must_agree(self):
        write_books(self.folder, 12, sources=13)
        with self.assertRaises(SystemExit):
            heldout.split_stories(self.folder)

    def test_a_copied_passage_is_found(self):
        words_ = [f"w{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(200)]
        held, other = " ".join(words_), "something else " + " ".join(words_[50:150])
        (share, name), _ = heldout.shared_share(held, [("far", "no " * 50), ("near", other)])
        self.assertEqual(name, "near")
        self.assertAlmostEqual(share, 88 / 188)

    def test_documents_are_framed_and_listed(self):
        encoder = tokenizer.Tokenizer(tokenizer.train(["the fox and the hen " * 30], 285))
        texts = ["the fox", tokenizer.BOS + "<｜User｜>the hen" + tokenizer.EOS]
        ids = data.encode_documents(encoder, texts)
        source = data.write_source(self.folder, "foxes", ids)
        self.assertEqual((source["tokens"], source["documents"]), (len(ids), 2))
        read = numpy.fromfile(self.folder / "foxes.u16", dtype="<u2").tolist()
        self.assertEqual(encoder.decode(read), tokenizer.BOS + "the fox" + tokenizer.EOS + texts[1])
        entry = {**source, "kind": "natural", "weight": 1, "weight_long": 1}
        data.update_mix(self.folder, "natural", [entry], vocab_size=285)
        data.update_mix(self.folder, "world", [{**entry, "kind": "world", "name": "w"}])
        data.update_mix(self.folder, "natural", [entry])  # replaced, not added again
        mix = json.loads((self.folder / "mix.json").read_text(encoding="utf-8"))
        self.assertEqual(sorted(s["name"] for s in mix["sources"]), ["foxes", "w"])
        self.assertEqual(mix["vocab_size"], 285)


if __name__ == "__main__":
    unittest.main()
