"""Tool calls in the codec's markup: schemas, requests, calls, results and final answers.

Most tools are known ones; some are made up per conversation, so that names and parameters must be
copied from the schema and not recalled.
"""

import chat_format
from world import facts, words


def schema(name, description, /, **properties):
    """A function whose parameters are all required. A property is its JSON Schema type."""
    return {"type": "function", "function": {
        "name": name, "description": description,
        "parameters": {"type": "object",
                       "properties": {key: {"type": kind} for key, kind in properties.items()},
                       "required": list(properties)}}}


def _town(rng):
    return rng.choice([t[0] for t in words.TOWNS] + [c[2] for c in words.COUNTRIES])


def _town_zh(rng):
    return rng.choice([t[1] for t in words.TOWNS] + [c[3] for c in words.COUNTRIES])


def _name(rng):
    return rng.choice([p[0] for p in words.PEOPLE] + words.STRANGERS)


MESSAGES = ["I am late.", "Happy birthday!", "Dinner is ready.", "See you soon.", "Come home now.",
            "The train is late.", "I found your hat.", "Good luck!", "Bring some bread.",
            "Where are you?", "It is raining.", "Thank you for the cake."]
SONGS = ["Blue Moon", "The Long Road", "Little Star", "Winter Song", "River Dance", "Golden Days",
         "Sleepy Town", "Green Hills", "The Old Mill", "Summer Rain"]
ROOMS = ["kitchen", "bedroom", "bathroom", "hall", "garden", "cellar", "attic", "office"]


def weather(rng):
    city, day = _town(rng), rng.choice(words.DAYS)[0]
    sky, degrees = rng.choice(words.WEATHER)[0], rng.randint(-5, 35)
    ask = rng.choice((f"What is the weather in {city} on {day}?",
                      f"How will the weather be in {city} on {day}?",
                      f"Tell me the weather for {city} on {day}."))
    return (schema("get_weather", "Get the weather of a city.", city="string", day="string"), ask,
            {"city": city, "day": day}, {"sky": sky, "degrees": degrees},
            f"On {day} it will be {sky} in {city}, with {degrees} degrees.")


def weather_zh(rng):
    city, day = _town_zh(rng), rng.choice(words.DAYS)[1]
    sky, degrees = rng.choice(words.WEATHER)[1], rng.randint(-5, 35)
    ask = rng.choice((f"{city}{day}天气怎么样？", f"请告诉我{city}{day}的天气。"))
    return (schema("get_weather", "Get the weather of a city.", city="string", day="string"), ask,
            {"city": city, "day": day}, {"sky": sky, "degrees": degrees},
            f"{city}{day}是{sky}，{degrees}度。")


def add(rng):
    a, b = rng.randint(10, 999), rng.randint(10, 999)
    ask = rng.choice((f"What is {a} plus {b}?", f"Add {a} and {b}.", f"How much is {a} + {b}?"))
    return (schema("add", "Add two numbers.", a="integer", b="integer"), ask, {"a": a, "b": b},
            {"result": a + b}, f"{a} + {b} = {a + b}")


def multiply(rng):
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    ask = rng.choice((f"What is {a} times {b}?", f"Multiply {a} by {b}.", f"How much is {a} x {b}?"))
    return (schema("multiply", "Multiply two numbers.", a="integer", b="integer"), ask,
            {"a": a, "b": b}, {"result": a * b}, f"{a} x {b} = {a * b}")


def send_message(rng):
    to, text = _name(rng), rng.choice(MESSAGES)
    ask = rng.choice((f'Send a message to {to}: "{text}"', f'Tell {to}: "{text}"',
                      f'Write to {to}: "{text}"'))
    return (schema("send_message", "Send a message to a person.", to="string", text="string"), ask,
            {"to": to, "text": text}, {"sent": True}, f"I sent the message to {to}.")


def set_timer(rng):
    minutes = rng.randint(1, 90)
    ask = rng.choice((f"Set a timer for {minutes} minutes.", f"Wake me in {minutes} minutes.",
                      f"Start a timer of {minutes} minutes."))
    return (schema("set_timer", "Start a timer.", minutes="integer"), ask, {"minutes": minutes},
            {"ok": True}, f"The timer is set for {minutes} minutes.")


def switch_light(rng):
    room, on = rng.choice(ROOMS), rng.random() < .5
    word = "on" if on else "off"
    ask = rng.choice((f"Turn {word} the light in the {room}.",
                      f"Please switch {word} the {room} light."))
    return (schema("switch_light", "Turn a light on or off.", room="string", on="boolean"), ask,
            {"room": room, "on": on}, {"ok": True}, f"The light in the {room} is {word}.")


def find_person(rng):
    name, place = _name(rng), rng.choice(words.PLACES)[0]
    ask = rng.choice((f"Where is {name} now?", f"Find {name}.", f"Can you find {name} for me?"))
    return (schema("find_person", "Find out where a person is.", name="string"), ask,
            {"name": name}, {"place": place}, f"{name} is {place}.")


def buy(rng):
    thing, count, price = rng.choice(words.FOODS)[0], rng.randint(2, 30), rng.randint(1, 99)
    ask = rng.choice((f"Buy {count} {thing}.", f"Order {count} {thing} for me.",
                      f"I want to buy {count} {thing}."))
    return (schema("buy", "Buy something in the shop.", item="string", count="integer"), ask,
            {"item": thing, "count": count}, {"price": price},
            f"I bought {count} {thing} for {price} coins.")


def price_of(rng):
    thing, price = rng.choice(words.THINGS)[0], rng.randint(1, 99)
    ask = rng.choice((f"How much is a {thing}?", f"What does a {thing} cost?",
                      f"Tell me the price of a {thing}."))
    return (schema("get_price", "Get the price of a thing.", item="string"), ask, {"item": thing},
            {"price": price}, f"A {thing} costs {price} coins.")


def play_song(rng):
    song, volume = rng.choice(SONGS), rng.randint(1, 10)
    ask = rng.choice((f'Play "{song}" at volume {volume}.',
                      f'I want to hear "{song}" at volume {volume}.'))
    return (schema("play_song", "Play a song.", title="string", volume="integer"), ask,
            {"title": song, "volume": volume}, {"playing": True}, f'Now playing "{song}".')


def travel(rng):
    start, end = rng.sample([t[0] for t in words.TOWNS], 2)
    hour = rng.randint(5, 22)
    ask = rng.choice((f"When does the next train go from {start} to {end}?",
                      f"Find a train from {start} to {end}."))
    return (schema("find_train", "Find the next train.", start="string", end="string"), ask,
            {"start": start, "end": end}, {"hour": hour},
            f"The next train from {start} to {end} goes at {hour} o'clock.")


def time_in(rng):
    city, hour, minute = _town(rng), rng.randint(0, 23), rng.randint(10, 59)
    ask = rng.choice((f"What time is it in {city}?", f"Tell me the time in {city}."))
    return (schema("get_time", "Get the time in a city.", city="string"), ask, {"city": city},
            {"time": f"{hour}:{minute}"}, f"It is {hour}:{minute} in {city}.")


def make_list(rng):
    things = [t[0] for t in rng.sample(words.THINGS, rng.randint(2, 4))]
    listed = ", ".join(things[:-1]) + " and " + things[-1]
    ask = rng.choice((f"Make a list of these things: {listed}.", f"Write down: {listed}."))
    return (schema("save_list", "Save a list of things.", items="array"), ask, {"items": things},
            {"saved": len(things)}, f"I saved {len(things)} things.")


VERBS = ["open", "close", "paint", "check", "move", "count", "clean", "start", "stop", "mark",
         "lock", "bring"]
KEYS = ["color", "place", "person", "day", "number", "size"]


def invented(rng):
    """A tool nobody has seen: its name and keys stand only in the schema."""
    verb, thing = rng.choice(VERBS), rng.choice(words.THINGS)[0]
    makers = {
        "color": ("string", rng.choice(words.COLOURS)[0]), "person": ("string", _name(rng)),
        "place": ("string", rng.choice(words.PLACES)[0]), "day": ("string", rng.choice(words.DAYS)[0]),
        "number": ("integer", rng.randint(1, 99)),
        "size": ("string", rng.choice(("small", "middle", "large"))),
    }
    keys = rng.sample(KEYS, rng.randint(1, 3))
    arguments = {key: makers[key][1] for key in keys}
    told = ", ".join(f"{key} {arguments[key]}" for key in keys)
    ask = rng.choice((f"{verb.capitalize()} the {thing}: {told}.",
                      f"Please {verb} the {thing} with {told}."))
    return (schema(f"{verb}_{thing}", f"{verb.capitalize()} the {thing}.",
                   **{key: makers[key][0] for key in keys}), ask, arguments, {"ok": True},
            f"The {thing} is done.")


KNOWN = [weather, weather, weather_zh, add, multiply, send_message, set_timer, switch_light,
         find_person, buy, price_of, play_song, travel, time_in, make_list]


def case(rng):
    """(schema, request, arguments, result, answer)."""
    return (invented if rng.random() < .3 else rng.choice(KNOWN))(rng)


def offered(rng, cases):
    """The schemas of the cases and some that nobody needs, in any order."""
    tools = {c[0]["function"]["name"]: c[0] for c in cases}
    for _ in range(rng.randint(0, 2)):
        extra = case(rng)[0]
        tools.setdefault(extra["function"]["name"], extra)
    tools = list(tools.values())
    rng.shuffle(tools)
    return tools


def opening(rng, cases):
    return {"role": "system", "content": rng.choice(["", "", *words.SYSTEMS]),
            "tools": offered(rng, cases)}


def tool_chat(rng):
    """One to four requests, each called and answered; now and then one that needs no tool."""
    count = rng.choice((1, 1, 2, 3, 4))
    cases, names = [], set()
    while len(cases) < count:
        one = case(rng)
        cases.append(one)
        names.add(one[0]["function"]["name"])
    thinking = rng.random() < .2
    messages = [opening(rng, cases)]
    number = 0
    while cases:
        if rng.random() < .15:
            fact, question = facts.pick(rng, "en")
            messages += [{"role": "user", "content": question},
                         {"role": "assistant", "content": fact.statement,
                          "reasoning_content": "I know this."}]
            continue
        together = cases[:2] if len(cases) > 1 and rng.random() < .15 else cases[:1]
        cases = cases[len(together):]
        calls = []
        for one in together:
            number += 1
            calls.append({"id": f"call_{number}", "name": one[0]["function"]["name"],
                          "arguments": one[2]})
        messages.append({"role": "user", "content": " ".join(one[1] for one in together)})
        messages.append({"role": "assistant", "content": "", "tool_calls": calls,
                         "reasoning_content": "I need " + " and ".join(
                             call["name"] for call in calls) + "."})
        for one, call in zip(together, calls):
            messages.append({"role": "tool", "tool_call_id": call["id"],
                             "content": chat_format.dumps(one[3])})
        messages.append({"role": "assistant", "content": " ".join(one[4] for one in together),
                         "reasoning_content": "Now I can answer."})
    return chat_format.render(messages, thinking=thinking)
