"""Short coherent stories with dialogue, and the questions they answer.

A plot is a list of lines; `{a|b}` picks one wording, `$name` is filled from the cast. Every story
also yields (question, answer, value) triples, so the same text trains reading and telling.
"""

import random
import re
from dataclasses import dataclass, field

from world import facts, words

_CHOICE = re.compile(r"\{([^{}]*)\}")
_SLOT = re.compile(r"\$([A-Za-z_]+)")


@dataclass
class Story:
    title: str
    text: str
    questions: list  # (question, answer sentence, value)
    cast: dict = field(default_factory=dict)


def fill(rng, template, cast):
    text = _CHOICE.sub(lambda m: rng.choice(m.group(1).split("|")), template)
    text = _SLOT.sub(lambda m: str(cast[m.group(1)]), text)
    return re.sub(r"(^|[.!?] |[\"\n])([a-z])", _capital, text)


def _capital(match):
    # A sentence may begin with a slot such as $he; speech that goes on stays small.
    before, letter = match.groups()
    return before + (letter if before == '"' else letter.upper())


# Each plot: title, lines, [(question, answer, value)].
PLOTS = [
    ("The lost $thing", [
        "{One day|One morning|Once upon a time}, $A {was playing|went for a walk|was at home} {with a $thing|and had a $thing in $his hand}.",
        "{It was $adjective and $colour|The $thing was $adjective and $colour}, and $A {loved it very much|was proud of it}.",
        "{But then|After a while}, $A {could not find the $thing|saw that the $thing was gone}.",
        '{"Oh no! Where is my $thing?" said $A.|"My $thing is lost!" cried $A.}',
        "$B {heard this and came to help|came by and saw that $A was sad}.",
        '{"Do not cry," said $B. "We will look for it together."|"I will help you," said $B.}',
        "They looked $wrong, but {it was not there|there was nothing}.",
        "{At last|Then}, $B found the $thing $place.",
        '{"Here it is!" said $B.|"Look what I found!" said $B.}',
        "$A was {very happy|so happy} and {gave $B a big hug|said thank you}.",
        "{From that day on, they were good friends.|Then they went home together.|They played until the sun went down.}",
    ], [("What did $A lose?", "$A lost the $thing.", "$thing"),
        ("Who found the $thing?", "$B found the $thing.", "$B"),
        ("Where did $B find the $thing?", "$B found the $thing $place.", "$place"),
        ("What colour was the $thing?", "The $thing was $colour.", "$colour")]),
    ("A gift for $A", [
        "It was $A's birthday{.| and the sun was shining.}",
        "$B wanted to give $A {something nice|a present}.",
        "$B went to the market in $town and {looked at many things|walked from shop to shop}.",
        'The man at the shop said, "{I have a $wrongthing and a $thing.|Do you want a $wrongthing or a $thing?}"',
        '"{I will take|I would like} the $colour $thing," said $B, and paid $number coins.',
        "{In the evening|Later that day}, $B {came to $A's house|knocked at $A's door}.",
        '"Happy birthday!" said $B. "{This is for you.|Here is a gift for you.}"',
        "$A opened the box and saw the $thing.",
        '"{It is beautiful|What a lovely $thing}!" said $A. "{Thank you|You are so kind}, $B!"',
        "{Then they ate cake and sang songs.|They laughed and danced until night.}",
    ], [("What did $B give to $A?", "$B gave the $thing to $A.", "$thing"),
        ("Where did $B buy the $thing?", "$B bought the $thing in $town.", "$town"),
        ("How many coins did $B pay?", "$B paid $number coins.", "$number"),
        ("Whose birthday was it?", "It was $A's birthday.", "$A")]),
    ("The $animal in the storm", [
        "{It was a dark night|One evening}, and the weather was $weather.",
        "$A heard a {small|strange} sound {at the door|outside}.",
        '"{What is that|Who is there}?" asked $A.',
        "It was a {little|wet|cold} $animal. It was {lost and afraid|hungry and tired}.",
        '"{Poor little thing|You poor $animal}," said $A. "{Come in and get warm|You can stay with me}."',
        "$A gave the $animal some $food and {a warm place to sleep|put it near the fire}.",
        "{The next morning|When the sun came up}, $B came to the house.",
        '"{Have you seen|Did you see} my $animal?" asked $B. "Its name is $pet."',
        '"{Yes|Look}, $pet is here!" said $A.',
        "$B was {so glad|full of joy}. {\"Thank you for helping $pet,\" said $B.|\"You saved my $animal!\" said $B.}",
        "And $pet {jumped for joy|ran to $B}.",
    ], [("What was the weather like?", "The weather was $weather.", "$weather"),
        ("What was the name of the $animal?", "The name of the $animal was $pet.", "$pet"),
        ("What did $A give the $animal?", "$A gave the $animal some $food.", "$food"),
        ("Whose $animal was it?", "It was $B's $animal.", "$B")]),
    ("$A learns to $hobby", [
        "$A wanted to learn to $hobby, but {it was hard|$he did not know how}.",
        "{Every day|Each morning}, $A tried and tried.",
        '"{I cannot do it|It is too hard for me}!" said $A{.| and sat down.}',
        "$B, {who was very kind|the $job}, saw this.",
        '"{You must not give up|Everyone must learn}," said $B. "{I can teach you to $hobby|Let me show you how}."',
        "So they met every $day $spot.",
        "{Little by little|Week after week}, $A got better.",
        "{After $number weeks|$number weeks later}, $A could $hobby {very well|better than anyone in $town}.",
        '"{See|Well done, $A}!" said $B. "{You did not give up|I am proud of you}."',
        "{$A smiled and was proud.|$A never forgot it.}",
    ], [("What did $A want to learn?", "$A wanted to learn to $hobby.", "$hobby"),
        ("Who taught $A?", "$B taught $A.", "$B"),
        ("On which day did they meet?", "They met every $day.", "$day"),
        ("Where did they meet?", "They met $spot.", "$spot")]),
    ("The picnic", [
        "{It was a sunny $day|On $day the sky was blue}, so $A and $B went on a picnic.",
        "$A {carried|had} a $colour basket with $food, and $B {brought|had} a $thing.",
        "They sat down $spot and {began to eat|ate their lunch}.",
        "{Suddenly|Then}, a $animal came out of the bushes.",
        '"{Look, a $animal|Oh, a $animal}!" said $B. "{It wants our $food|I think it is hungry}."',
        '"{We can share|Let us give it some}," said $A.',
        "The $animal {ate and was happy|ate it all up}. {Then it ran away.|Then it lay down beside them.}",
        '"{That was fun|What a day}!" said $B{.| and laughed.}',
        "{When it got dark, they went home.|They told everyone in $town about it.}",
    ], [("What was in the basket?", "There was $food in the basket.", "$food"),
        ("Which animal came out of the bushes?", "A $animal came out of the bushes.", "$animal"),
        ("What did $B bring?", "$B brought a $thing.", "$thing"),
        ("Where did they sit down?", "They sat down $spot.", "$spot"),
        ("What colour was the basket?", "The basket was $colour.", "$colour")]),
    ("The secret door", [
        "In $town there was an old house, and nobody lived in it.",
        "{One day|One afternoon}, $A and $B {went inside|opened the window and climbed in}.",
        "Behind {a curtain|a shelf} they saw a {small|strange} $colour door.",
        '"{I am scared|It is dark in there}," said $A. "{Do not worry|I will go first}," said $B.',
        "The door was shut, but $A found a key $place.",
        "{They turned the key and the door opened.|The key fitted, and the door opened slowly.}",
        "{Inside there was|In the room they found} a $adjective $thing and $number coins.",
        '"{We are rich|A treasure}!" said $B.',
        '"{It is not ours|We must tell $C}," said $A. "{Let us bring it to $C|The house belongs to $C}."',
        "$C thanked them and {gave them the coins|let them keep the $thing}.",
    ], [("What colour was the door?", "The door was $colour.", "$colour"),
        ("Where did $A find the key?", "$A found the key $place.", "$place"),
        ("Who owned the old house?", "The old house belonged to $C.", "$C"),
        ("How many coins did they find?", "They found $number coins.", "$number")]),
    ("A walk to $town", [
        "$A {had to|wanted to} bring a $thing to $B in $town.",
        "{The way was long|It was a long walk}, and the weather was $weather.",
        "{First|On the way}, $A met a $animal.",
        '"{Where are you going|What do you have there}?" asked the $animal.',
        '"{I bring this $thing to $B|I am going to $town}," said $A.',
        '"{May I come with you?|I know a short way.}" said the $animal. {And so they went on together.|So they walked side by side.}',
        "{They came to a river|Soon there was a river}, but there was no bridge.",
        "{The $animal knew a boat $shore|They found a boat $shore}, and they {crossed the river|got across}.",
        "{At noon|In the evening} they {reached $town|came to $town}, and $B was {waiting at the gate|glad to see them}.",
        '"{Thank you, my friends|You came so far}!" said $B. "{Come and eat some $food|I have $food for you}."',
    ], [("What did $A bring to $B?", "$A brought the $thing to $B.", "$thing"),
        ("Which animal did $A meet?", "$A met a $animal.", "$animal"),
        ("Where was the boat?", "The boat was $shore.", "$shore"),
        ("Where did $B live?", "$B lived in $town.", "$town")]),
    ("The broken $thing", [
        "$A and $B were {brother and sister|good friends|neighbours}.",
        "{One day|On $day}, they {ran through the house|played with a ball}, and the $colour $thing {fell down and broke|broke in two}.",
        '"{What shall we do?|Oh dear!}" said $A. "{It belongs to $C|$C will be angry}."',
        '"{We must tell the truth|Let us say we are sorry}," said $B.',
        "So they went to $C, who was $spot.",
        '"{We broke your $thing|Your $thing is broken}," said $A. "{We are very sorry|Please do not be angry}."',
        "$C {thought for a while|looked at them} and then smiled.",
        '"{Thank you for telling me|You are honest}," said $C. "{We can mend it|It was only an old $thing}."',
        "{Together they mended it with glue.|They worked all day, and it was as good as new.}",
        "{$A and $B learned that it is good to tell the truth.|That night, everyone slept well.}",
    ], [("What broke?", "The $thing broke.", "$thing"),
        ("Whose $thing was it?", "It was $C's $thing.", "$C"),
        ("Where was $C?", "$C was $spot.", "$spot"),
        ("What colour was the $thing?", "The $thing was $colour.", "$colour")]),
    ("The race", [
        "{Every year|Once a year} there was a race in $town.",
        "This year $A, $B and $C wanted to win. {The winner would get a $colour $thing.|The prize was a $colour $thing.}",
        '"{I am the fastest|I will win}!" said $A.',
        "{The race began|They started} $spot and {everyone ran as fast as they could|all the people shouted}.",
        "{Half way|After a mile}, $A {fell and hurt $his knee|fell over a stone}.",
        "$C ran on, but $B stopped. \"{Are you hurt?|Are you hurt, $A?|Take my hand, $A!}\" said $B.",
        "So $C {came first|won the race} in $number minutes, and {the people clapped|everyone cheered}.",
        'But $C said, "{$B has the best heart|$B stopped to help. That is better than winning}."',
        "And $C handed the $thing to $B.",
        "{$B blushed and thanked $C.|They all shared $food after that.}",
    ], [("Who won the race?", "$C won the race.", "$C"),
        ("Who fell?", "$A fell.", "$A"),
        ("What was the prize?", "The prize was a $colour $thing.", "$colour $thing"),
        ("How many minutes did $C need?", "$C needed $number minutes.", "$number")]),
    ("The garden", [
        "$A had a {small|lovely} garden in $town with {many flowers|a big tree}.",
        "{One spring|One $day}, $A {planted|put into the ground} a $adjective seed that $B had given $him.",
        '"{Give it water every day|You must wait}," said $B.',
        "{The sun shone|It rained and the sun shone}, and after $number days a green leaf came out.",
        "{Soon there was|It grew and grew, and at last there was} a big $colour flower.",
        "A $animal came and {wanted to eat it|sat down beside it}.",
        '"{Please do not eat my flower|Shoo}!" said $A. "{You may have some $food|Take some $food}."',
        "The $animal {took the $food and went away|was happy with that}.",
        "{Everyone in $town came to see the flower.|$A gave the flower to $C.}",
        '"{It is the finest flower of all|How lovely it is}," said $C.',
    ], [("Who gave $A the seed?", "$B gave $A the seed.", "$B"),
        ("What colour was the flower?", "The flower was $colour.", "$colour"),
        ("Which animal came?", "A $animal came.", "$animal"),
        ("How many days did it take?", "It took $number days.", "$number")]),
]

# The same in Chinese, shorter.
PLOTS_ZH = [
    ("丢失的$thing", [
        "{有一天|一天早上}，$A{在外面玩|出去散步}，手里拿着一个$colour的$thing。",
        "{玩着玩着|过了一会儿}，$thing不见了。", "“我的$thing在哪里？”$A{说|哭着说}。",
        "$B{听见了|走过来}，说：“{别哭|别着急}，我来帮你找。”",
        "{他们找了很久|他们到处找}，最后$B在$place找到了$thing。",
        "$A{非常高兴|开心极了}，说：“谢谢你，$B！”",
    ], [("$A丢了什么？", "$A丢了$thing。", "$thing"), ("谁找到了$thing？", "$B找到了$thing。", "$B"),
        ("$B在哪里找到了$thing？", "$B在$place找到了$thing。", "$place"),
        ("$thing是什么颜色的？", "$thing是$colour的。", "$colour")]),
    ("$A的生日", [
        "今天是$A的生日，天气是$weather。", "$B去$town买礼物，{看了很多东西|走了很远的路}。",
        "$B{花了|用了}$number块钱，买了一个$colour的$thing。", "“生日快乐！”$B说，“这是给你的。”",
        "$A打开盒子，看见了$thing，{很高兴|笑了}。", "他们一起吃了$food。",
    ], [("今天是谁的生日？", "今天是$A的生日。", "$A"), ("$B买了什么？", "$B买了$thing。", "$thing"),
        ("$B花了多少钱？", "$B花了$number块钱。", "了$number块"),
        ("他们一起吃了什么？", "他们一起吃了$food。", "$food")]),
    ("雨中的$animal", [
        "{那天晚上|有一天}，天气是$weather。", "$A在$spot听见了一个声音。",
        "原来是一只小$animal，它{又冷又饿|很害怕}。", "“{可怜的|可爱的}小$animal，跟我回家吧。”$A说。",
        "$A给它吃$food。", "第二天，$B来了，说：“这是我的$animal，谢谢你！”",
    ], [("天气怎么样？", "天气是$weather。", "$weather"), ("$A给$animal吃了什么？", "$A给$animal吃了$food。", "$food"),
        ("这是谁的$animal？", "这是$B的$animal。", "$B"),
        ("$A在哪里听见了声音？", "$A在$spot听见了声音。", "$spot")]),
]


SHORES = ["under the willow", "behind a rock", "beside the mill", "near an old hut",
          "in the reeds", "under the bridge"]


def _cast(rng, language):
    zh = int(language == "zh")
    # Mostly the people of the world; their jobs and towns in stories are then the true ones.
    if zh:
        pool = [p[1] for p in words.PEOPLE] + words.STRANGERS_ZH
    else:
        pool = [p[0] for p in words.PEOPLE] * 2 + words.STRANGERS
    names = rng.sample(sorted(set(pool)), 3) if rng.random() < .4 else _distinct(rng, pool, 3)
    thing, wrongthing = rng.sample(words.THINGS, 2)
    place, wrong = rng.sample(words.PLACES, 2)
    he = {p[0]: p[2] for p in words.PEOPLE}.get(names[0], "he" if names[0] in words.MEN else "she")
    teacher = facts.PERSON.get(names[1])
    return {
        "A": names[0], "B": names[1], "C": names[2], "he": he,
        "his": "her" if he == "she" else "his", "him": "her" if he == "she" else "him",
        "thing": thing[zh], "wrongthing": wrongthing[zh], "place": place[zh], "shore": rng.choice(SHORES),
        "spot": rng.choice(words.SPOTS)[zh], "wrong": wrong[zh],
        "colour": rng.choice(words.COLOURS)[zh], "adjective": rng.choice(words.ADJECTIVES),
        "town": rng.choice(words.TOWNS)[zh], "animal": rng.choice(words.ANIMALS)[zh],
        "pet": rng.choice(words.PET_NAMES), "food": rng.choice(words.FOODS)[zh],
        "weather": rng.choice(words.WEATHER)[zh], "day": rng.choice(words.DAYS)[zh],
        "hobby": rng.choice(words.HOBBIES)[zh],
        "number": rng.randint(2, 40) if zh else rng.choice(words.NUMBERS[2:]),
        "job": teacher.job[0] if teacher else "teacher",
    }


def _distinct(rng, pool, count):
    names = []
    while len(names) < count:
        name = rng.choice(pool)
        if name not in names:
            names.append(name)
    return names


def _article(text):
    return re.sub(r"\b([Aa]) (?=(?:old|orange|owl|umbrella|apple|egg|ugly)\b)", r"\1n ", text)


def tell(rng, language="en"):
    """A new Story."""
    title, lines, asked = rng.choice(PLOTS if language == "en" else PLOTS_ZH)
    cast = _cast(rng, language)
    told = [fill(rng, line, cast) for line in lines]
    if language == "zh":
        text = "".join(told)
    else:
        known = facts.PEOPLE_FACTS.get(cast["A"])
        if known and rng.random() < .3:
            true = rng.choice([f for f in known if f.language == "en"
                               and f.statement.startswith(cast["A"])])
            told.insert(rng.choice((0, len(told))), true.statement)
        text, breath = told[0], rng.random() < .7
        for line in told[1:]:
            text += ("\n\n" if breath and rng.random() < .25 else " ") + line
        text = _article(text)
    turn = lambda s: _article(fill(rng, s, cast)) if language == "en" else fill(rng, s, cast)
    questions = [(turn(q), turn(answer), fill_value(value, cast)) for q, answer, value in asked]
    return Story(turn(title), text, questions, cast)


def fill_value(template, cast):
    return _SLOT.sub(lambda m: str(cast[m.group(1)]), template)
