"""Shows that rendered prompts are the released codec's, by the hashes of its published vectors."""

import hashlib
import unittest

import chat_format
from chat_format import render


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content="", **more):
    return {"role": "assistant", "content": content, **more}


def system(content="", **more):
    return {"role": "system", "content": content, **more}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
OLD = [user("First"), assistant("First answer", reasoning_content="old reasoning"), user("Second")]
CALLS = [
    {"id": "c1", "name": "get_weather",
     "arguments": {"city": "Paris", "n": 3, "o": {"a": [1, True, None]}}},
    {"id": "c2", "name": "get_weather", "arguments": {"city": "Rome"}}]

# (name, messages, options of render, first 16 hex digits of the SHA-256 of the prompt)
VECTORS = [
    ("V1", [user("Hello")], {}, "afa5497cfd279bf5"),
    ("V2", [user("Hello")], {"thinking": True}, "07aa7538f5ad045b"),
    ("V3", [system("You are a helpful assistant."), user("What is 2+2?")],
     {"thinking": True, "effort": "max"}, "1d43bb718f2f75e0"),
    ("V4", [user("Hello")], {"thinking": True, "effort": 1}, "c5969b4405e889cc"),
    ("V5", OLD, {"thinking": True}, "343caf0b31327b0e"),
    ("V6", [system(tools=[WEATHER])] + OLD, {"thinking": True}, "c478f3482b42f0db"),
    ("V7", [system(tools=[WEATHER]), user("Weather?"),
            assistant(reasoning_content="r1", tool_calls=CALLS),
            {"role": "tool", "tool_call_id": "c2", "content": "rain"},
            {"role": "tool", "tool_call_id": "c1", "content": "sun"}, user("And?")],
     {"thinking": True}, "09a9909cd34adbef"),
    ("V8", [user("question"), system("answer briefly")], {}, "709e64c38520c676"),
    ("V9", [user([{"type": "text", "text": "first"}, {"type": "image"},
                  {"type": "text", "text": "compare"}])], {}, "2f6fb759075d590d"),
    ("V10", [system("S", response_format={"type": "json_object"}), user("Give json")], {},
     "2f52676784fa8ef7"),
    ("V11", [user("a"), user("b")], {}, "3f8ab2905cecfff5"),
    ("V12", [user("Hi there", task="title")], {}, "ba9d4297e505c5a3"),
    ("V13", [user("Hi", task="action")], {"thinking": True}, "6679a37a73135bd1"),
    ("V14", [user("Finish"), assistant("The answer is ", wo_eos=True)], {}, "00fbf071abc463ca"),
    ("V15", [user("x"), assistant(tool_calls=[{"name": "f", "arguments": "not json"}])], {},
     "339bfdcb214c2718"),
    ("V16", [user("x"), assistant("t", tool_calls=[{"name": "now", "arguments": {}}])], {},
     "1a3e988f3485cfd2"),
    ("V17", [system("S", tools=[{"namespace": "web",
                                 "function": {"name": "get", "parameters": {}}}]), user("x")],
     {}, "ff90205cfb04609e"),
    ("V18", [system("S"), {"role": "latest_reminder", "content": "2026-02-21"}, user("x")], {},
     "160e7add6060c4d5"),
]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


class RenderTest(unittest.TestCase):
    def test_published_vectors(self):
        for name, messages, options, expected in VECTORS:
            with self.subTest(name):
                self.assertEqual(digest(render(messages, **options))[:16], expected)

    def test_wire_constants(self):
        self.assertEqual(digest(chat_format.TOOLS_HEAD),
                         "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d")
        self.assertEqual(digest(chat_format.TOOLS_TAIL),
                         "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7")
        self.assertEqual(digest(chat_format.FORMAT_HEAD),
                         "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112")

    def test_unknown_role_is_refused(self):
        with self.assertRaises(ValueError):
            render([{"role": "wizard", "content": "x"}])


if __name__ == "__main__":
    unittest.main()
