"""The fixed world: who lives where, what the capitals are, what everyday things are like.

It never changes with a seed, so a model can learn it by heart. Each Fact can be stated, asked for
and answered in English and Chinese. Also decides which questions training never sees.
"""

import hashlib
import random
from dataclasses import dataclass

from world import words


def held_out(text, one_in=10):
    """A fixed choice by hash: what it picks is kept for the tasks and never shown in training."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % one_in == 0


@dataclass(frozen=True)
class Fact:
    language: str
    statement: str       # a sentence; the answer too
    questions: tuple     # ways to ask
    value: str           # the part of the answer that must be there


@dataclass(frozen=True)
class Person:
    name: str
    name_zh: str
    he: str
    town: tuple
    colour: tuple
    pet: tuple
    pet_name: str
    job: tuple
    food: tuple
    hobby: tuple
    friend: tuple
    age: int


def _make_people():
    rng = random.Random("the world")
    count = len(words.PEOPLE)

    def deal(table):
        dealt = (list(table) * (count // len(table) + 1))[:count]
        rng.shuffle(dealt)
        return dealt

    towns, colours, pets, names = map(deal, (words.TOWNS, words.COLOURS, words.PETS,
                                             words.PET_NAMES))
    jobs, foods, hobbies = map(deal, (words.JOBS, words.FOODS, words.HOBBIES))
    order = list(range(count))
    rng.shuffle(order)
    friend = {a: order[(i + 1) % count] for i, a in enumerate(order)}
    return [Person(name, name_zh, he, towns[i], colours[i], pets[i], names[i], jobs[i], foods[i],
                   hobbies[i], words.PEOPLE[friend[i]][:2], rng.randint(20, 69))
            for i, (name, name_zh, he) in enumerate(words.PEOPLE)]


PEOPLE = _make_people()
PERSON = {person.name: person for person in PEOPLE}


def a(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def _person_facts(p):
    n, z = p.name, p.name_zh
    en = lambda statement, value, *questions: Fact("en", statement, questions, value)
    zh = lambda statement, value, *questions: Fact("zh", statement, questions, value)
    return [
        en(f"{n} lives in {p.town[0]}.", p.town[0], f"Where does {n} live?",
           f"In which town does {n} live?", f"Tell me where {n} lives."),
        en(f"{n}'s house is {p.colour[0]}.", p.colour[0], f"What colour is {n}'s house?",
           f"Which colour does {n}'s house have?", f"Tell me the colour of {n}'s house."),
        en(f"{n} has {a(p.pet[0])}.", p.pet[0], f"What pet does {n} have?",
           f"Which animal does {n} have?", f"What is {n}'s pet?"),
        en(f"{n}'s {p.pet[0]} is called {p.pet_name}.", p.pet_name,
           f"What is {n}'s {p.pet[0]} called?", f"What is the name of {n}'s {p.pet[0]}?",
           f"What is the name of {n}'s pet?"),
        en(f"{n} is {a(p.job[0])}.", p.job[0], f"What is {n}'s job?", f"What does {n} do for work?",
           f"Tell me {n}'s job."),
        en(f"The {p.job[0]} is {n}.", n, f"Who is the {p.job[0]}?", f"Who works as {a(p.job[0])}?",
           f"Tell me the name of the {p.job[0]}."),
        en(f"{n} likes to eat {p.food[0]}.", p.food[0], f"What does {n} like to eat?",
           f"What is {n}'s favourite food?", f"Which food does {n} like best?"),
        en(f"{n} likes to {p.hobby[0]}.", p.hobby[0], f"What does {n} like to do?",
           f"What is {n}'s hobby?", f"What does {n} do for fun?"),
        en(f"{n}'s best friend is {p.friend[0]}.", p.friend[0], f"Who is {n}'s best friend?",
           f"What is the name of {n}'s best friend?", f"Tell me who {n}'s best friend is."),
        en(f"{n} is {p.age} years old.", str(p.age), f"How old is {n}?", f"What is {n}'s age?",
           f"Tell me how old {n} is."),
        zh(f"{z}住在{p.town[1]}。", p.town[1], f"{z}住在哪里？", f"{z}住在哪个镇？",
           f"请告诉我{z}住在哪里。"),
        zh(f"{z}的房子是{p.colour[1]}的。", p.colour[1], f"{z}的房子是什么颜色的？",
           f"{z}的房子是什么颜色？", f"请告诉我{z}的房子的颜色。"),
        zh(f"{z}有一只{p.pet[1]}。", p.pet[1], f"{z}有什么宠物？", f"{z}养了什么动物？",
           f"{z}的宠物是什么？"),
        zh(f"{z}是{p.job[1]}。", p.job[1], f"{z}是做什么工作的？", f"{z}的工作是什么？",
           f"请告诉我{z}的工作。"),
        zh(f"{z}喜欢吃{p.food[1]}。", p.food[1], f"{z}喜欢吃什么？", f"{z}最爱吃什么？",
           f"{z}喜欢什么食物？"),
        zh(f"{z}喜欢{p.hobby[1]}。", p.hobby[1], f"{z}喜欢做什么？", f"{z}的爱好是什么？",
           f"{z}有什么爱好？"),
        zh(f"{z}最好的朋友是{p.friend[1]}。", p.friend[1], f"{z}最好的朋友是谁？",
           f"谁是{z}最好的朋友？", f"请告诉我{z}最好的朋友是谁。"),
        zh(f"{z}今年{p.age}岁。", str(p.age), f"{z}多大了？", f"{z}几岁了？", f"{z}今年多少岁？"),
    ]


def _country_facts():
    rng = random.Random("the countries")
    flags, rivers = words.COLOURS[:len(words.COUNTRIES)], words.RIVERS[:]
    rng.shuffle(flags)
    rng.shuffle(rivers)
    facts = []
    for i, (country, zh, capital, capital_zh, ware, ware_zh) in enumerate(words.COUNTRIES):
        town, flag = words.TOWNS[i], flags[i]
        for statement, value, questions in (
            (f"The capital of {country} is {capital}.", capital,
             (f"What is the capital of {country}?", f"Which city is the capital of {country}?",
              f"Tell me the capital of {country}.")),
            (f"{capital} is the capital of {country}.", country,
             (f"{capital} is the capital of which country?",
              f"Which country has the capital {capital}?", f"In which country is {capital}?")),
            (f"{country} is known for its {ware}.", ware,
             (f"What is {country} known for?", f"What does {country} sell?",
              f"What comes from {country}?")),
            (f"The flag of {country} is {flag[0]}.", flag[0],
             (f"What colour is the flag of {country}?", f"Which colour is {country}'s flag?",
              f"Tell me the colour of the flag of {country}.")),
            (f"The river of {country} is the {rivers[i]}.", rivers[i],
             (f"Which river flows through {country}?", f"What is the river of {country}?",
              f"What is the name of the river of {country}?")),
            (f"{town[0]} is in {country}.", country,
             (f"In which country is {town[0]}?", f"Where is {town[0]}?",
              f"Which country is {town[0]} in?")),
        ):
            facts.append(Fact("en", statement, questions, value))
        for statement, value, questions in (
            (f"{zh}的首都是{capital_zh}。", capital_zh,
             (f"{zh}的首都是哪里？", f"哪个城市是{zh}的首都？", f"请告诉我{zh}的首都。")),
            (f"{zh}以{ware_zh}闻名。", ware_zh,
             (f"{zh}以什么闻名？", f"{zh}出产什么？", f"{zh}有什么有名的东西？")),
            (f"{zh}的国旗是{flag[1]}的。", flag[1],
             (f"{zh}的国旗是什么颜色的？", f"{zh}的国旗是什么颜色？", f"请告诉我{zh}国旗的颜色。")),
            (f"{town[1]}在{zh}。", zh,
             (f"{town[1]}在哪个国家？", f"{town[1]}在哪里？", f"哪个国家有{town[1]}？")),
        ):
            facts.append(Fact("zh", statement, questions, value))
    return facts


def _everyday_facts():
    facts = []
    en = lambda statement, value, *questions: facts.append(Fact("en", statement, questions, value))
    zh = lambda statement, value, *questions: facts.append(Fact("zh", statement, questions, value))
    for animal, animal_zh, sound, legs, young in words.ANIMALS:
        # The plain form of the sound: "barks" -> "bark", "buzzes" -> "buzz".
        verb = sound[:-2] if sound.endswith(("zes", "ses")) else sound[:-1]
        en(f"{a(animal).capitalize()} {sound}.", sound, f"What sound does {a(animal)} make?",
           f"What does {a(animal)} do when it makes a sound?")
        en(f"The animal that {sound} is the {animal}.", animal, f"Which animal {sound}?",
           f"What animal can {verb}?")
        en(f"{a(animal).capitalize()} has {words.NUMBERS[legs] if legs else 'no'} legs.",
           f"{words.NUMBERS[legs]} legs" if legs else "no legs", f"How many legs does {a(animal)} have?",
           f"How many legs has {a(animal)}?")
        en(f"A young {animal} is called {a(young)}.", young, f"What is a young {animal} called?",
           f"What do we call a young {animal}?")
        zh(f"{animal_zh}有{legs}条腿。" if legs else f"{animal_zh}没有腿。",
           f"{legs}条腿" if legs else "没有腿", f"{animal_zh}有几条腿？", f"{animal_zh}有多少条腿？")
    for thing, thing_zh, colour, colour_zh in words.COLOUR_OF:
        en(f"{thing[0].upper() + thing[1:]} is {colour}.", colour, f"What colour is {thing}?",
           f"Which colour does {thing} have?")
        zh(f"{thing_zh}是{colour_zh}的。", colour_zh, f"{thing_zh}是什么颜色的？",
           f"{thing_zh}是什么颜色？")
    for i, (day, day_zh) in enumerate(words.DAYS):
        after, after_zh = words.DAYS[(i + 1) % 7]
        en(f"The day after {day} is {after}.", after, f"What day comes after {day}?",
           f"Which day follows {day}?")
        en(f"The day before {after} is {day}.", day, f"What day comes before {after}?",
           f"Which day is before {after}?")
        zh(f"{day_zh}的后一天是{after_zh}。", after_zh, f"{day_zh}的后一天是星期几？",
           f"{day_zh}之后是星期几？")
    for i, month in enumerate(words.MONTHS):
        after = words.MONTHS[(i + 1) % 12]
        en(f"The month after {month} is {after}.", after, f"What month comes after {month}?",
           f"Which month follows {month}?")
    for one, other in words.OPPOSITES:
        for x, y in ((one, other), (other, one)):
            if (x, y) != ("old", "young"):  # "old" is the opposite of two words.
                en(f"The opposite of {x} is {y}.", y, f"What is the opposite of {x}?",
                   f"Tell me the opposite of {x}.")
    return facts


PEOPLE_FACTS = {person.name: _person_facts(person) for person in PEOPLE}
COUNTRY_FACTS = _country_facts()
EVERYDAY_FACTS = _everyday_facts()
FACTS = [f for facts in PEOPLE_FACTS.values() for f in facts] + COUNTRY_FACTS + EVERYDAY_FACTS
BY_LANGUAGE = {language: [f for f in FACTS if f.language == language] for language in ("en", "zh")}


def questions(fact, for_tasks):
    """The ways to ask that training (or the tasks) may use. Of one fact in three, one way is kept
    for the tasks, so every fact is asked for in training in some words."""
    kept = None
    if held_out(fact.statement, 3):
        kept = min(fact.questions, key=lambda q: hashlib.sha256(q.encode()).digest())
    return [q for q in fact.questions if (q == kept) == for_tasks]


def pick(rng, language, for_tasks=False):
    """(fact, question)."""
    while True:
        fact = rng.choice(BY_LANGUAGE[language])
        asked = questions(fact, for_tasks)
        if asked:
            return fact, rng.choice(asked)
