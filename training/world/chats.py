"""Conversations in the codec's format: about the world, about a story, sums, JSON, small talk.

Chat mode mostly; some conversations think first, and then the reasoning says the fact that the
answer follows from. Tool calls are in tools.py, long look-ups in recall.py.
"""

import chat_format
from world import facts, stories, words


def with_system(rng, messages, language="en", thinking=False):
    """Renders with one of the usual openings."""
    if rng.random() < .35:
        text = rng.choice(words.SYSTEMS_ZH if language == "zh" else words.SYSTEMS)
        messages = [{"role": "system", "content": text}] + messages
    effort = rng.choice(("low", "high", "high", "high", "max")) if thinking else "high"
    return chat_format.render(messages, thinking=thinking, effort=effort)


def render_prompt(messages, thinking=False):
    return chat_format.render(messages, thinking=thinking)


def question_turn(question, answer, reasoning=None):
    return [{"role": "user", "content": question},
            {"role": "assistant", "content": answer, "reasoning_content": reasoning or ""}]


def pick_language(rng):
    return "zh" if rng.random() < .3 else "en"


# --- the world by heart ---------------------------------------------------------------------------

def world_chat(rng):
    """Questions about the world, some of them thought about first."""
    language = pick_language(rng)
    if rng.random() < .2:
        return thinking_chat(rng, language)
    messages = []
    for _ in range(rng.randint(1, 8)):
        fact, question = facts.pick(rng, language)
        messages += question_turn(question, fact.statement)
    return with_system(rng, messages, language)


TWO_STEPS_KEPT = 5  # One question in so many is kept for the tasks.


def two_steps(rng):
    """(question, reasoning, answer, value): the answer needs two facts."""
    person = rng.choice(facts.PEOPLE)
    country = words.COUNTRIES[[t[0] for t in words.TOWNS].index(person.town[0])]
    friend = facts.PERSON[person.friend[0]]
    kind = rng.randrange(4)
    if kind == 0:
        return (f"In which country does {person.name} live?",
                f"{person.name} lives in {person.town[0]}. {person.town[0]} is in {country[0]}.",
                f"{person.name} lives in {country[0]}.", country[0])
    if kind == 1:
        return (f"Where does {person.name}'s best friend live?",
                f"{person.name}'s best friend is {friend.name}. {friend.name} lives in "
                f"{friend.town[0]}.", f"{friend.name} lives in {friend.town[0]}.", friend.town[0])
    if kind == 2:
        return (f"What is the job of {person.name}'s best friend?",
                f"{person.name}'s best friend is {friend.name}. {friend.name} is "
                f"{facts.a(friend.job[0])}.", f"{friend.name} is {facts.a(friend.job[0])}.",
                friend.job[0])
    return (f"What does the {person.job[0]} like to eat?",
            f"The {person.job[0]} is {person.name}. {person.name} likes to eat {person.food[0]}.",
            f"The {person.job[0]} likes to eat {person.food[0]}.", person.food[0])


def thinking_chat(rng, language):
    if language == "en" and rng.random() < .6:
        question, reasoning, answer, _ = two_steps(rng)
        while facts.held_out(question, TWO_STEPS_KEPT):
            question, reasoning, answer, _ = two_steps(rng)
    elif language == "en" and rng.random() < .5:
        question, reasoning, answer, _ = long_sum(rng)
    else:
        fact, question = facts.pick(rng, language)
        reasoning, answer = fact.statement, fact.statement
    messages = []
    if rng.random() < .3:
        fact, earlier = facts.pick(rng, language)
        messages = question_turn(earlier, fact.statement)
    return with_system(rng, messages + question_turn(question, answer, reasoning), language, True)


# --- stories --------------------------------------------------------------------------------------

def story_chat(rng):
    """A story told and asked about, or told on request."""
    language = pick_language(rng)
    story = stories.tell(rng, language)
    zh = language == "zh"
    asked = rng.sample(story.questions, rng.randint(1, len(story.questions)))
    if rng.random() < .3:
        messages = request_for(rng, story, zh)
    else:
        intro = rng.choice(("读故事。\n\n", "", "请看这个故事：\n\n") if zh else
                           ("Read the story.\n\n", "", "Here is a story.\n\n", "Story: "))
        messages = question_turn(intro + story.text + "\n\n" + asked[0][0], asked[0][1])
        asked = asked[1:]
    for question, answer, _ in asked:
        messages += question_turn(question, answer)
    return with_system(rng, messages, language)


def request_for(rng, story, zh):
    cast = story.cast
    if zh:
        asks = [f"给我讲一个关于{cast['A']}和{cast['B']}的故事。", f"讲一个故事，题目是《{story.title}》。"]
    else:
        asks = [f"Tell me a story about {cast['A']} and {cast['B']}.",
                f'Write a short story called "{story.title}".',
                f"Tell me a story called {story.title}.", f"Please tell {cast['A']}'s story."]
    return question_turn(rng.choice(asks), story.text)


# --- sums -----------------------------------------------------------------------------------------

SUM_ASKS = ["What is {}?", "{} =", "How much is {}?", "Calculate {}.", "{}=?"]
SUM_ASKS_ZH = ["{}等于多少？", "请计算{}。", "{}=?"]


def small_sum(rng, for_tasks=False):
    """(expression, result)."""
    while True:
        sign = rng.choice("++-x")
        if sign == "+":
            one, other = rng.randint(0, 30), rng.randint(0, 30)
            result = one + other
        elif sign == "-":
            one = rng.randint(0, 30)
            other = rng.randint(0, one)
            result = one - other
        else:
            one, other = rng.randint(0, 10), rng.randint(0, 10)
            result = one * other
        expression = f"{one} {sign} {other}"
        if facts.held_out(expression, 12) == for_tasks:
            return expression, result


def sums_chat(rng):
    messages, zh = [], rng.random() < .25
    for _ in range(rng.randint(2, 14)):
        expression, result = small_sum(rng)
        ask = rng.choice(SUM_ASKS_ZH if zh else SUM_ASKS)
        messages += question_turn(ask.format(expression), f"{expression} = {result}")
    return with_system(rng, messages, "zh" if zh else "en")


def long_sum(rng):
    """(question, reasoning, answer, value) of a sum of three small numbers."""
    one, two, three = (rng.randint(1, 15) for _ in range(3))
    part, total = one + two, one + two + three
    return (f"What is {one} + {two} + {three}?",
            f"{one} + {two} = {part}. {part} + {three} = {total}.",
            f"{one} + {two} + {three} = {total}", str(total))


def counting(rng):
    """Plain text: counting on and back, and tables of sums."""
    if rng.random() < .4:
        start, step = rng.randint(0, 60), rng.choice((1, 1, 2, 3, 5, 10, -1))
        numbers = [start + step * i for i in range(20) if 0 <= start + step * i < 130]
        return ", ".join(map(str, numbers)) + "."
    made = [small_sum(rng) for _ in range(20)]
    return "\n".join(f"{expression} = {result}" for expression, result in made)


# --- JSON -----------------------------------------------------------------------------------------

def json_case(rng):
    """(text that tells, request, object)."""
    name, thing = rng.choice(words.STRANGERS), rng.choice(words.THINGS)[0]
    values = {
        "name": name, "age": rng.randint(3, 90), "town": rng.choice(words.TOWNS)[0],
        "colour": rng.choice(words.COLOURS)[0], "thing": thing,
        "count": rng.randint(2, 40), "happy": rng.random() < .5,
    }
    told = {
        "age": f"{name} is {values['age']} years old.", "town": f"{name} lives in {values['town']}.",
        "colour": f"The favourite colour of {name} is {values['colour']}.",
        "thing": f"{name} has a {thing}.", "count": f"{name} has {values['count']} coins.",
        "happy": f"{name} is {'happy' if values['happy'] else 'not happy'}.",
    }
    keys = rng.sample(sorted(told), rng.randint(2, 4))
    sentences = [told[key] for key in keys] + ([told[rng.choice(sorted(told))]]
                                               if rng.random() < .3 else [])
    sentences = list(dict.fromkeys(sentences))
    rng.shuffle(sentences)
    keys = ["name"] + keys
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    ask = rng.choice(("Give me JSON with {}.", "Write a JSON object with {}.",
                      "Answer in JSON with the keys {}.")).format(listed)
    return " ".join(sentences), ask, {key: values[key] for key in keys}


def json_prompt(rng, case):
    """The messages before the answer."""
    text, ask, _ = case
    messages = [{"role": "user", "content": f"{text} {ask}"}]
    if rng.random() < .6:
        messages.insert(0, {"role": "system", "content": rng.choice(["", *words.SYSTEMS]),
                            "response_format": {"type": "json_object"}})
    return messages


def json_chat(rng):
    case = json_case(rng)
    messages = json_prompt(rng, case)
    for turn in range(rng.randint(1, 4)):
        if turn:
            case = json_case(rng)
            messages.append({"role": "user", "content": f"{case[0]} {case[1]}"})
        messages.append({"role": "assistant", "content": chat_format.dumps(case[2])})
    return chat_format.render(messages)


# --- small talk -----------------------------------------------------------------------------------

TALK = [
    ("{Hello|Hi|Hello!|Hi there|Good morning}", "{Hello!|Hello! How can I help you?|Hi! What can I do for you?}"),
    ("{How are you?|How do you do?}", "{I am fine, thank you.|Very well, thank you.}"),
    ("{Who are you?|What are you?|What is your name?}", "I am a small language model called nano. I run on Galley."),
    ("{Thank you.|Thanks!|Thank you very much.}", "You are welcome."),
    ("{Goodbye.|Bye!|See you.}", "Goodbye!"),
    ("{Can you help me?|I need help.}", "Of course. What do you need?"),
    ("{你好|你好！|您好}", "{你好！|你好！有什么可以帮你的吗？}"),
    ("{你是谁？|你叫什么名字？}", "我是一个小语言模型，叫nano。"),
    ("{谢谢|谢谢你！}", "不客气。"), ("{再见|再见！}", "再见！"), ("{你好吗？|你怎么样？}", "我很好，谢谢。"),
]


def small_talk(rng):
    messages = []
    for _ in range(rng.randint(1, 3)):
        ask, answer = rng.choice(TALK)
        messages += question_turn(stories.fill(rng, ask, {}), stories.fill(rng, answer, {}))
    if rng.random() < .5:
        fact, question = facts.pick(rng, pick_language(rng))
        messages += question_turn(question, fact.statement)
    return with_system(rng, messages)


# --- plain text -----------------------------------------------------------------------------------

def lexicon(rng):
    """What is true in the world, as running text."""
    if rng.random() < .6:
        person = rng.choice(facts.PEOPLE)
        language = pick_language(rng)
        known = [f.statement for f in facts.PEOPLE_FACTS[person.name] if f.language == language]
        rng.shuffle(known)
        return ("" if language == "zh" else " ").join(known)
    language = pick_language(rng)
    some = rng.sample(facts.BY_LANGUAGE[language], 12)
    return "\n".join(fact.statement for fact in some)


def story_text(rng):
    language = "zh" if rng.random() < .15 else "en"
    story = stories.tell(rng, language)
    return story.title + "\n\n" + story.text if rng.random() < .3 else story.text
