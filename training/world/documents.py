"""The sources of world documents: their names, their shares of training, and how one is made.

A document is text from BOS to EOS. It depends on the random stream handed in (and, where book
passages are distractors, on the passages), so a seed gives the same text everywhere.
"""

import random

from tokenizer import BOS, EOS
from world import chats, recall, tools, words

# Per mille of sampled tokens: (main phase, long-context phase).
SHARES = {
    "world_lexicon": (8, 6), "world_stories": (25, 12), "world_chat": (40, 35),
    "story_chat": (35, 28), "sums": (15, 12), "json": (10, 9), "tools": (45, 45),
    "small_talk": (2, 2), "recall_drill": (20, 12), "recall_short": (75, 45),
    "recall_long": (0, 290),
}


def passages(text):
    """Paragraphs of books that can stand alone between others."""
    return [p for p in text.split("\n\n") if 200 <= len(p) <= 900 and "<｜" not in p]


class World:
    def __init__(self, encode, book_passages):
        self._haystack = recall.Haystack(encode, book_passages)

    def document(self, name, rng):
        text = getattr(self, "_" + name)(rng)
        return text if text.startswith(BOS) else BOS + text + EOS

    def _world_lexicon(self, rng):
        return chats.lexicon(rng)

    def _world_stories(self, rng):
        return chats.story_text(rng)

    def _world_chat(self, rng):
        return chats.world_chat(rng)

    def _story_chat(self, rng):
        return chats.story_chat(rng)

    def _sums(self, rng):
        return chats.counting(rng) if rng.random() < .15 else chats.sums_chat(rng)

    def _json(self, rng):
        return chats.json_chat(rng)

    def _tools(self, rng):
        return tools.tool_chat(rng)

    def _small_talk(self, rng):
        return chats.small_talk(rng)

    def _recall_drill(self, rng):
        size = rng.choice((60, 120, 250, 500, 900))
        return (recall.copy_drill if rng.random() < .3 else recall.key_value_drill)(rng, size)

    def _recall_short(self, rng):
        return self._recall(rng, rng.randint(40, 900))

    def _recall_long(self, rng):
        return self._recall(rng, rng.choice((1200, 2000, 3000, 3800, 3800, 3800)))

    def _recall(self, rng, size):
        if rng.random() < .15:
            return recall.told_in_turns(rng, self._haystack, size)
        language = "zh" if rng.random() < .15 else "en"
        return recall.long_chat(rng, self._haystack, size, language)


def tokenizer_sample():
    """Documents for the tokenizer to learn names and formats from; needs no encoder.

    Words that questions ask for, and numbers of two digits, come often enough to be one token:
    an answer is then one look-up.
    """
    rng = random.Random("tokenizer")
    world = World(lambda text: text.split(), [])
    counts = {"tools": 300, "recall_short": 600, "recall_drill": 300, "recall_long": 0}
    single = [str(number) for number in range(100)] + words.SECRETS + words.PET_NAMES
    single += [name for country in words.COUNTRIES for name in (country[0], country[2])]
    single += words.SECRETS_ZH + [person[1] for person in words.PEOPLE] + words.STRANGERS_ZH
    return ["\n ".join(single + [""])] * 250 + [
        world.document(name, rng) for name in SHARES for _ in range(counts.get(name, 1200))]
