"""Shows that the data is deterministic, split cleanly and encoded reversibly, without the corpus."""

import random
import re
import unittest

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


if __name__ == "__main__":
    unittest.main()
