"""Writes the evaluation sets training/tasks/*.jsonl: what training never sees, from fixed seeds.

Kept apart from training by construction: world questions and sums by the words held out in
world/facts.py and world/chats.py; stories, passing facts and requests by other random streams
(make_tasks_test.py looks for common prompts). Distractor passages come from held-out books.
"""

import argparse
import json
import pathlib
import random
import sys

import heldout
from tokenizer import Tokenizer
from world import chats, documents, facts, recall, stories, tools

FOLDER = pathlib.Path(__file__).resolve().parent / "tasks"


def case(task, bucket, number, prompt, max_tokens, kind, value):
    return {"id": f"{task}-{bucket}-{number:03}", "task": task, "bucket": bucket, "prompt": prompt,
            "max_tokens": max_tokens, "check": {"kind": kind, "value": value}}


def ask(messages_or_text, thinking=False):
    messages = messages_or_text
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return chats.render_prompt(messages, thinking)


# Tokens from the first of the fact to the end of the prompt, and how many cases are written.
DISTANCES = {"1k": (1000, 60), "3k": (3000, 30)}


def retrieval(encode, passages, scale=1):
    haystack, made = recall.Haystack(encode, passages), []
    for bucket, (distance, count) in DISTANCES.items():
        rng, number = random.Random(f"tasks retrieval {bucket}"), 0
        while number < count * scale:
            prompt, value, real = recall.single_question(
                rng, haystack, distance, distance + rng.randint(150, 600))
            if distance <= real <= distance * 1.1 + 60 and len(encode(prompt)) <= 3950:
                made.append(case("retrieval", bucket, number, prompt, 32, "contains", value))
                number += 1
    return made


def world():
    made, rng = [], random.Random("tasks world")
    kept = [(fact, q) for fact in facts.BY_LANGUAGE["en"]
            for q in facts.questions(fact, for_tasks=True)]
    for number, (fact, question) in enumerate(kept):
        made.append(case("world", "facts", number, ask(question), 32, "contains", fact.value))
    for number in range(100):
        story = stories.tell(rng)
        question, _, value = rng.choice(story.questions)
        prompt = ask(f"Read the story.\n\n{story.text}\n\n{question}")
        made.append(case("world", "story", number, prompt, 32, "contains", value))
    steps = {}
    for _ in range(2000):  # Enough to meet every question that two_steps can ask.
        question, _, _, value = chats.two_steps(rng)
        if facts.held_out(question, chats.TWO_STEPS_KEPT):
            steps[question] = value
    for number, (question, value) in enumerate(sorted(steps.items())):
        made.append(case("world", "thinking", number, ask(question, thinking=True), 64,
                         "contains", value))
    return made


def chinese():
    made, rng = [], random.Random("tasks chinese")
    kept = [(fact, q) for fact in facts.BY_LANGUAGE["zh"]
            for q in facts.questions(fact, for_tasks=True)]
    for number, (fact, question) in enumerate(kept):
        made.append(case("chinese", "facts", number, ask(question), 32, "contains", fact.value))
    for number in range(60):
        story = stories.tell(rng, "zh")
        question, _, value = rng.choice(story.questions)
        prompt = ask(f"读故事。\n\n{story.text}\n\n{question}")
        made.append(case("chinese", "story", number, prompt, 48, "contains", value))
    return made


def tool_calls():
    made, rng = [], random.Random("tasks tools")
    for bucket, count in (("known", 60), ("invented", 25), ("thinking", 15)):
        for number in range(count):
            one = (tools.invented(rng) if bucket == "invented" else rng.choice(tools.KNOWN)(rng))
            prompt = ask([tools.opening(rng, [one]), {"role": "user", "content": one[1]}],
                         thinking=bucket == "thinking")
            value = [{"name": one[0]["function"]["name"], "arguments": one[2]}]
            made.append(case("tools", bucket, number, prompt, 160, "tool_call", value))
    return made


def sums():
    made, rng, seen = [], random.Random("tasks sums"), set()
    while len(made) < 100:
        expression, result = chats.small_sum(rng, for_tasks=True)
        if expression not in seen:
            seen.add(expression)
            bucket = {"+": "plus", "-": "minus", "x": "times"}[expression.split()[1]]
            made.append(case("sums", bucket, len(made), ask(f"What is {expression}?"), 16, "exact",
                             f"{expression} = {result}"))
    return made


def json_objects():
    made, rng = [], random.Random("tasks json")
    for number in range(80):
        one = chats.json_case(rng)
        made.append(case("json", "object", number, ask(chats.json_prompt(rng, one)), 96, "json",
                         one[2]))
    return made


def world_chats():
    """Prompts without a check, to measure drafting on: the next turn of a conversation."""
    made, rng = [], random.Random("tasks chat")
    world_documents = documents.World(str.split, [])
    for number in range(64):
        name = ("world_chat", "story_chat", "tools", "sums")[number % 4]
        turns = []
        while len(turns) < 2:  # Some documents of sums are no conversations.
            turns = world_documents.document(name, rng).split("<｜Assistant｜>")
        kept = rng.randint(1, len(turns) - 1)
        start = turns[kept][:turns[kept].index(">") + 1]  # <think> or </think>
        prompt = "<｜Assistant｜>".join(turns[:kept]) + "<｜Assistant｜>" + start
        made.append({"id": f"chat-{number:03}", "task": "chat", "bucket": name, "prompt": prompt,
                     "max_tokens": 128})
    return made


def all_sets(tokenizer, corpus, scale=1):
    passages = []
    for _, text in heldout.split_stories(corpus)[1]:
        passages += documents.passages(text)
    return {"retrieval": retrieval(tokenizer.encode, passages, scale), "world": world(),
            "chinese": chinese(), "tools": tool_calls(), "sums": sums(), "json": json_objects(),
            "chat": world_chats()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--corpus", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER)
    parser.add_argument("--scale", type=int, default=1, help="retrieval cases, times this")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sets = all_sets(Tokenizer.load(options.tokenizer), options.corpus, options.scale)
    for name, cases in sets.items():
        path = options.out / f"{name}.jsonl"
        with open(path, "w", encoding="utf-8") as file:
            for one in cases:
                file.write(json.dumps(one, ensure_ascii=False) + "\n")
        print(f"{path} {len(cases)} cases, {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
