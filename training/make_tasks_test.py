"""Shows that the committed task sets are judged rightly and share no prompt with training."""

import json
import pathlib
import random
import re
import unittest

import chat_format
import make_tasks
import tasks_check
from tokenizer import EOS
from world import documents, tools

FOLDER = pathlib.Path(__file__).resolve().parent / "tasks"


def read(name):
    with open(FOLDER / f"{name}.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def right_output(case):
    """An output that must pass."""
    value, kind = case["check"]["value"], case["check"]["kind"]
    if kind == "json":
        value = chat_format.dumps(value)
    elif kind == "tool_call":
        value = chat_format.render_calls(value)
    return ("so.</think>" if case["prompt"].endswith("<think>") else "") + value + EOS


class CheckTest(unittest.TestCase):
    def test_right_outputs_pass_and_others_fail(self):
        for name in ("retrieval", "world", "chinese", "tools", "sums", "json"):
            for case in read(name):
                with self.subTest(case["id"]):
                    self.assertTrue(tasks_check.check(case, right_output(case))["passed"])
                    for wrong in ("", EOS, "I do not know.</think>I do not know." + EOS):
                        self.assertFalse(tasks_check.check(case, wrong)["passed"])

    def test_tool_markup(self):
        good = chat_format.render_calls([
            {"name": "f", "arguments": {"a": "x\ny", "n": 3, "l": [1, None]}},
            {"name": "g", "arguments": {}}])
        self.assertEqual(tasks_check.parse_calls("text" + good),
                         [("f", {"a": "x\ny", "n": 3, "l": [1, None]}), ("g", {})])
        for broken in (good + "x", good[1:], good.replace("</｜DSML｜ invoke>\n", "", 1),
                       good.replace('string="false">3', 'string="false">three'),
                       good.replace('name="n"', 'name="a"'), good.replace("calls>", "call>"),
                       "｜DSML｜" + good, good.replace(" calls>\n", " calls>\n\n", 1)):
            with self.subTest(broken):
                self.assertIsNone(tasks_check.parse_calls(broken))

    def test_values_keep_their_types(self):
        case = {"prompt": "", "check": {"kind": "json", "value": {"a": True, "b": 1}}}
        self.assertTrue(tasks_check.check(case, '{"b": 1, "a": true}')["passed"])
        self.assertFalse(tasks_check.check(case, '{"b": 1, "a": 1}')["passed"])
        self.assertEqual(tasks_check.check(case, "[1]"), {"passed": False, "well_formed": False})


class SetsTest(unittest.TestCase):
    def test_committed_sets_are_what_the_generator_makes(self):
        # Retrieval needs the corpus and is left to make_tasks.py itself.
        for name, made in (("world", make_tasks.world()), ("chinese", make_tasks.chinese()),
                           ("tools", make_tasks.tool_calls()), ("sums", make_tasks.sums()),
                           ("json", make_tasks.json_objects()), ("chat", make_tasks.world_chats())):
            self.assertEqual(made, read(name), name)

    def test_no_prompt_of_training(self):
        turn = re.compile("<｜User｜>(.*?)<｜Assistant｜>", re.DOTALL)
        asked = {}
        for name in ("retrieval", "world", "chinese", "tools", "sums", "json"):
            for case in read(name):
                # Tool requests are short and meet known tools again; there the whole prompt counts.
                key = case["prompt"] if name == "tools" else turn.findall(case["prompt"])[-1]
                asked[key] = case["id"]
        world = documents.World(str.split, ["A paragraph of some book. " * 12])
        for name in documents.SHARES:
            rng = random.Random(f"train {name} 0")  # as data.py seeds its first shard
            for _ in range(30 if name.startswith("recall") else 400):
                text = world.document(name, rng)
                keys = turn.findall(text) + ([text[:text.index("<｜Assistant｜>") + 20]]
                                             if name == "tools" else [])
                for key in keys:
                    self.assertNotIn(key, asked)

    def test_tools_offer_what_is_called(self):
        for case in read("tools"):
            for call in case["check"]["value"]:
                self.assertIn(f'{{"name": "{call["name"]}"', case["prompt"])

    def test_generator_of_tools_is_complete(self):
        rng = random.Random(1)
        for maker in {*tools.KNOWN, tools.invented}:
            schema, _, arguments, _, _ = maker(rng)
            properties = schema["function"]["parameters"]["properties"]
            self.assertEqual(set(properties), set(arguments), maker.__name__)


if __name__ == "__main__":
    unittest.main()
