"""Documents that ask for what was told hundreds or thousands of tokens earlier.

A passing fact ("The secret word of Ada is lantern.") holds in one document only. It lies among
distractors (world stories, passages of books, other passing facts, true facts of the world) and
is asked for at the end. Many facts and many questions share a document, so that nearly every
answer trains the look-up. Sizes are in tokens of the caller's encoder.
"""

import string

from world import chats, facts, stories, words


def _distinct_add(facts_list, fact, used):
    if fact and fact[1] not in used:
        used.add(fact[1])
        facts_list.append(fact)


def _name(rng):
    return rng.choice(words.STRANGERS) if rng.random() < .7 else rng.choice(words.PEOPLE)[0]


def _name_zh(rng):
    return rng.choice(words.STRANGERS_ZH) if rng.random() < .7 else rng.choice(words.PEOPLE)[1]


def secret_word(rng):
    name, word = _name(rng), rng.choice(words.SECRETS)
    said = f"The secret word of {name} is {word}."
    return said, f"What is the secret word of {name}?", said, word


def hidden_thing(rng):
    name, thing, place = _name(rng), rng.choice(words.THINGS)[0], rng.choice(words.PLACES)[0]
    said = f"{name} hid the {thing} {place}."
    return said, f"Where did {name} hide the {thing}?", said, place


def number_of(rng):
    colour, box = rng.choice(words.COLOURS)[0], rng.choice(words.BOXES)[0]
    number = rng.randint(10, 99)
    said = f"The number of the {colour} {box} is {number}."
    return said, f"What is the number of the {colour} {box}?", said, f" {number}."


def given_to(rng):
    giver, thing, taker = _name(rng), rng.choice(words.THINGS)[0], _name(rng)
    said = f"{giver} gave the {thing} to {taker}."
    return (said, f"To whom did {giver} give the {thing}?", said, f"to {taker}.") if (
        giver != taker) else None


def dreamt_of(rng):
    name, animal = _name(rng), rng.choice(words.ANIMALS)[0]
    said = f"{name} dreamt of {facts.a(rng.choice(words.COLOURS)[0])} {animal}."
    return said, f"What did {name} dream of?", said, said.split(" of ")[1]


def secret_word_zh(rng):
    name, word = _name_zh(rng), rng.choice(words.SECRETS_ZH)
    said = f"{name}的暗号是{word}。"
    return said, f"{name}的暗号是什么？", said, word


def number_of_zh(rng):
    colour, box, number = rng.choice(words.COLOURS)[1], rng.choice(words.BOXES)[1], rng.randint(10, 99)
    said = f"{colour}的{box}的号码是{number}。"
    return said, f"{colour}的{box}的号码是多少？", said, f"是{number}。"


ENGLISH = [secret_word, secret_word, secret_word, hidden_thing, hidden_thing, number_of, number_of,
           given_to, dreamt_of]
CHINESE = [secret_word_zh, secret_word_zh, number_of_zh]


def passing_facts(rng, count, kinds):
    """`count` facts, no two with the same question: (told, question, answer, value)."""
    made, used = [], set()
    for _ in range(count * 6):
        if len(made) == count:
            break
        _distinct_add(made, rng.choice(kinds)(rng), used)
    return made


class Haystack:
    """Distractor text. `passages` are paragraphs of books; none means stories only."""

    def __init__(self, encode, passages):
        self.size_of = lambda text: len(encode(text))
        self.passages = passages

    def pieces(self, rng, size, language="en"):
        """About `size` tokens of paragraphs, as (tokens, text)."""
        natural = rng.random() < .5 and self.passages and language == "en"
        made, total = [], 0
        while total < size:
            if natural and rng.random() < .85:
                text = rng.choice(self.passages)
            elif rng.random() < .15:
                person = rng.choice(facts.PEOPLE)
                known = [f.statement for f in facts.PEOPLE_FACTS[person.name]
                         if f.language == language]
                text = ("" if language == "zh" else " ").join(rng.sample(known, 5))
            else:
                text = stories.tell(rng, language).text
            tokens = self.size_of(text) + 1
            if total + tokens > size + 60 and rng.random() < .9:
                if size - total < 60:
                    break
                continue
            made.append((tokens, text))
            total += tokens
        return made


INTRO = ["Read this text and remember it.", "Here is a text. I will ask about it.", "Text:",
         "Please read.", "Remember what is said here."]
INTRO_ZH = ["请阅读下面的文字。", "请记住下面的内容。", "文字："]


def long_chat(rng, haystack, size, language="en", fact_count=None, question_count=None):
    """One user turn with facts strewn over a text of about `size` tokens, then many questions."""
    zh = language == "zh"
    kinds = CHINESE if zh else ENGLISH
    fact_count = fact_count or rng.choice((9, 20, 40, size // 50) if size >= 1000 else (
        4, 8, 16, max(3, size // 40)))
    told = passing_facts(rng, fact_count, kinds)
    question_count = question_count or max(2, min(len(told), size // 75, 40))
    # About 30 tokens a question turn and 12 a fact come on top of the text.
    text_size = max(0, size - 12 * len(told) - 30 * question_count)
    pieces = [text for _, text in haystack.pieces(rng, text_size, language)] if text_size else []
    for fact in told:
        place_fact(rng, pieces, fact[0])
    asked = rng.sample(told, question_count)
    body = "\n\n".join(pieces)
    intro = rng.choice(INTRO_ZH if zh else INTRO)
    head, join = ((intro + "\n\n", "\n\n") if rng.random() < .7 else ("", "\n\n"))
    messages = []
    for index, (_, question, answer, _) in enumerate(asked):
        content = head + body + join + question if index == 0 else question
        messages += [{"role": "user", "content": content},
                     {"role": "assistant", "content": answer}]
    return chats.with_system(rng, messages, language)


def place_fact(rng, pieces, sentence):
    """Between paragraphs, or at the end of one."""
    at = rng.randint(0, len(pieces))
    if at < len(pieces) and rng.random() < .5:
        pieces[at] += (" " if pieces[at][-1].isascii() else "") + sentence
    else:
        pieces.insert(at, sentence)


def told_in_turns(rng, haystack, size):
    """Facts told turn by turn among stories, asked later in the same conversation."""
    told, messages, used, left = [], [], set(), size
    while left > 0:
        if told and rng.random() < .55:
            _, question, answer, _ = rng.choice(told)
            messages += [{"role": "user", "content": question},
                         {"role": "assistant", "content": answer}]
            left -= 30
        elif rng.random() < .6:
            fresh = []
            for _ in range(rng.randint(1, 3)):
                _distinct_add(fresh, rng.choice(ENGLISH)(rng), used)
            if not fresh:
                continue
            told += fresh
            messages += [{"role": "user", "content": " ".join(f[0] for f in fresh)},
                         {"role": "assistant", "content": rng.choice(
                             ["I will remember that.", "All right.", "Good to know."])}]
            left -= 20 + 12 * len(fresh)
        else:
            story = stories.tell(rng)
            messages += [{"role": "user", "content": f"Tell me a story about {story.cast['A']}."},
                         {"role": "assistant", "content": story.text}]
            left -= haystack.size_of(story.text) + 20
    return chats.with_system(rng, messages)


def key_value_drill(rng, size):
    """A list of keys and values, then the same pairs again in another order."""
    style = rng.randrange(4)
    keys = [f"{rng.choice(words.COLOURS)[0]} {rng.choice(words.THINGS)[0]}" for _ in range(400)]
    if style == 1:
        keys = words.STRANGERS + [p[0] for p in words.PEOPLE]
    elif style == 2:
        keys = words.SECRETS
    keys = list(dict.fromkeys(keys))
    rng.shuffle(keys)
    keys = keys[:max(4, size // 16)]
    values = rng.choice(([p[0] for p in words.PLACES], words.SECRETS,
                         [str(n) for n in range(10, 100)], [c[0] for c in words.COLOURS]))
    pairs = [(key, rng.choice(values)) for key in keys]
    mark = rng.choice((": ", " = ", " is ", " -> "))
    stop = rng.choice(("\n", "\n", "; ", ". "))
    again = []
    while len(again) < len(pairs):
        again += rng.sample(pairs, len(pairs))
    lines = [f"{key}{mark}{value}" for key, value in pairs]
    return stop.join(lines) + stop.strip(" ") + "\n\n" + stop.join(
        f"{key}{mark}{value}" for key, value in again) + "\n"


def copy_drill(rng, size):
    """A row of unrelated words, twice: the plainest look-up."""
    pool = words.SECRETS + [t[0] for t in words.THINGS] + words.STRANGERS
    if rng.random() < .2:
        pool = list(string.ascii_letters + string.digits)
    row = " ".join(rng.choice(pool) for _ in range(max(8, size // 3)))
    return row + "\n\n" + row + "\n"


def single_question(rng, haystack, distance, total, language="en", decoys=8):
    """One fact `distance` tokens before its question, for the tasks: (prompt, value, distance).

    The same format as long_chat's first turn, with `decoys` other facts in the text.
    """
    zh = language == "zh"
    told = passing_facts(rng, decoys + 1, CHINESE if zh else ENGLISH)
    (said, question, _, value), others = told[0], told[1:]
    before, after, size = [], [], haystack.size_of(question) + 6
    for sentence in [fact[0] for fact in others]:
        if rng.random() < distance / total:
            after.append(sentence)
            size += haystack.size_of(sentence) + 2
        else:
            before.append(sentence)
    # Text goes between the fact and its question until the fact is far enough away.
    for tokens, text in haystack.pieces(rng, total, language):
        if size < distance:
            after.append(text)
            size += tokens + 1
        else:
            before.append(text)
    rng.shuffle(before)
    rng.shuffle(after)
    pieces = before + [said] + after
    content = rng.choice(INTRO_ZH if zh else INTRO) + "\n\n" + "\n\n".join(pieces + [question])
    prompt = chats.render_prompt([{"role": "user", "content": content}])
    told_at = prompt.index(said)
    return prompt, value, haystack.size_of(prompt[told_at:])
