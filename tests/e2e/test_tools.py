"""Nano calls tools: conversations of training/tasks/tools.jsonl through `galley run --messages`.

The conversation is read back from the task's prompt, the program renders it to the same prompt
again, and the answer's message has the calls that the task asks for; then the results go back in
and an answer in words comes out.
"""

import json
import unittest

from galley_program import SOURCE, GalleyTest

NANO = SOURCE / "models/nano"
TASKS = SOURCE / "training/tasks/tools.jsonl"
CALLS_MIN = 20  # of 24; greedy answers, the same on every machine up to ties


def conversation_of(prompt):
    """The messages of a task's prompt in chat mode, tools on the system message."""
    system, rest = prompt.split("<｜System｜>")[1].split("\n\n## Tools\n", 1)
    schemas, rest = rest.split("### Available Tool Schemas\n\n")[1].split("\n\nYou MUST", 1)
    user = rest.split("<｜User｜>")[1].split("<｜Assistant｜>")[0]
    tools = [{"type": "function", "function": json.loads(line)} for line in schemas.split("\n")]
    return [{"role": "system", "content": system, "tools": tools},
            {"role": "user", "content": user}]


class ToolsTest(GalleyTest):
    def run_json(self, messages, tokens=160):
        path = self.folder / "m.json"
        path.write_text(json.dumps(messages, ensure_ascii=False))
        result = self.galley("run", "-m", NANO, "--messages", path, "--json", "-t", 0,
                             "-n", tokens)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return json.loads(result.stdout)

    def tasks(self, count):
        lines = TASKS.read_text().splitlines()
        cases = [json.loads(line) for line in lines]
        return [case for case in cases if case["prompt"].endswith("</think>")][:count]

    def ids(self, *arguments):
        result = self.galley("tokenize", "-m", NANO, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return json.loads(result.stdout)["ids"]

    def test_prompts_are_the_tasks(self):
        for case in self.tasks(5):
            path = self.folder / "m.json"
            path.write_text(json.dumps(conversation_of(case["prompt"]), ensure_ascii=False))
            text = self.folder / "prompt.txt"
            text.write_text(case["prompt"])
            self.assertEqual(self.ids("--messages", path), self.ids("--markup", "--file", text))

    def test_calls_and_their_results(self):
        right = 0
        for case in self.tasks(24):
            messages = conversation_of(case["prompt"])
            message = self.run_json(messages)["message"]
            calls = [{"name": call["function"]["name"],
                      "arguments": json.loads(call["function"]["arguments"])}
                     for call in message.get("tool_calls", [])]
            if calls != case["check"]["value"]:
                continue
            right += 1
            if right > 2:
                continue
            self.assertEqual(message["content"], "")
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "{\"ok\": true}"}
                       for call in message["tool_calls"]]
            answer = self.run_json(messages + [message] + results)["message"]
            self.assertNotEqual(answer["content"], "")
            self.assertNotIn("tool_calls", answer)
        self.assertGreaterEqual(right, CALLS_MIN)


if __name__ == "__main__":
    unittest.main()
