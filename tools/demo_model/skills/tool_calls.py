"""Functions and what users want of them: which one to call, with what, and what to make of it.

A function is a verb and a noun (`book_table`) with parameters that a sentence can carry. Pairs of
verb and noun that hash into the held-out part are never trained, so that a test can offer functions
nobody has seen.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from tools.demo_model import lexicon
from tools.demo_model.conversation import Call, Exchange, Tool, Weight, to_json
from tools.demo_model.split import is_held_out

_VERBS = (
    "get find book cancel create delete update send list check order start stop open close add "
    "remove print show move copy lock unlock track rate share save load count read"
).split()
_NOUNS = (
    "table flight hotel ticket order invoice report message note task event meeting reminder "
    "playlist song photo file folder account customer user product package recipe room door "
    "light alarm car taxi train bill payment price stock contact letter appointment review "
    "backup printer camera"
).split()
_SYNONYMS = {
    "get": ("Get", "Fetch"),
    "find": ("Find", "Look for", "Search for"),
    "create": ("Create", "Make"),
    "delete": ("Delete", "Erase"),
    "check": ("Check", "Look at"),
    "show": ("Show", "Show me"),
}
_OPENERS = ("", "", "", "Please ", "Can you ", "Could you ", "I want you to ", "Now ")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, the wording of its value in a request, and how to draw a value."""

    names: tuple[str, ...]
    cue: str
    draw: str
    description: str
    options: tuple[str, ...] = ()
    is_number: bool = False


_PARAMETERS = (
    Parameter(("city", "location", "place"), "in {v}", "city", "The city"),
    Parameter(("person", "name", "customer"), "for {v}", "person", "The name of the person"),
    Parameter(("day", "date", "weekday"), "on {v}", "day", "The day of the week"),
    Parameter(("time", "hour"), "at {v}", "time", "The time of day"),
    Parameter(("quantity", "count", "amount"), "with quantity {v}", "number", "How many",
              is_number=True),
    Parameter(("price", "limit"), "with a price of {v}", "number", "The price in dollars",
              is_number=True),
    Parameter(("id", "number"), "with the id {v}", "id", "The number of the object",
              is_number=True),
    Parameter(("code", "reference"), 'with the code "{v}"', "code", "The code"),
    Parameter(("title", "subject", "label"), 'with the title "{v}"', "words", "The title"),
    Parameter(("text", "message", "content"), 'saying "{v}"', "words", "The text"),
    Parameter(("color",), "in the color {v}", "option", "The color",
              ("red", "green", "blue", "black", "white")),
    Parameter(("size",), "in size {v}", "option", "The size", ("small", "medium", "large")),
    Parameter(("priority", "urgency"), "with priority {v}", "option", "The priority",
              ("low", "normal", "high")),
    Parameter(("recipient", "to", "email"), "to {v}", "email", "The address of the recipient"),
    Parameter(("duration", "minutes"), "for {v} minutes", "minutes", "The time in minutes",
              is_number=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its tool definition and its parameters."""

    verb: str
    noun: str
    tool: Tool
    parameters: tuple[tuple[str, Parameter], ...]
    extra: tuple[str, ...] = ()
    """Optional parameters, which requests do not mention."""

    @property
    def name(self) -> str:
        """The full name, as in `book_table`."""
        return str(self.tool["function"]["name"])


def is_unseen(verb: str, noun: str) -> bool:
    """Whether the function is excluded from training."""
    return is_held_out(f"function|{verb}|{noun}")


def function(rng: Random, *, unseen: bool = False) -> Function:
    """Generate a function. One in four is a common one, such as for the weather."""
    if not unseen and rng.random() < 0.3:
        return _familiar(rng)
    while True:
        verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS)
        if is_unseen(verb, noun) == unseen:
            break
    chosen: dict[str, Parameter] = {}
    cues: set[str] = set()
    for parameter in rng.sample(_PARAMETERS, rng.choice((0, 1, 1, 1, 2, 2, 2, 3))):
        if parameter.cue.split()[0] in cues and parameter.cue.split()[0] in {"for", "in"}:
            continue
        cues.add(parameter.cue.split()[0])
        chosen[rng.choice(parameter.names)] = parameter
    description = f"{verb.capitalize()} {lexicon.an(noun)}"
    return _build(rng, f"{verb}_{noun}", verb, noun, description, chosen)


def _familiar(rng: Random) -> Function:
    name, noun, description, parameters = rng.choice(
        (
            ("get_weather", "weather", "Get the weather of a city", (0,)),
            ("get_weather", "weather", "Get the current weather", (0,)),
            ("get_weather", "weather", "Get the current weather in a given city", (0,)),
            ("get_current_weather", "weather", "Get the current weather in a location", (0,)),
            ("get_time", "time", "Get the time in a city", (0,)),
            ("get_population", "population", "Get the population of a city", (0,)),
            ("send_email", "email", "Send an email", (13, 9)),
            ("set_timer", "timer", "Set a timer", (14,)),
        )
    )
    chosen = {}
    for index in parameters:
        names = _PARAMETERS[index].names
        chosen[names[0] if rng.random() < 0.6 else rng.choice(names)] = _PARAMETERS[index]
    return _build(rng, name, name.split("_")[0], noun, description, chosen)


def _build(
    rng: Random,
    name: str,
    verb: str,
    noun: str,
    description: str,
    chosen: dict[str, Parameter],
) -> Function:
    described = rng.random() < 0.6
    properties: dict[str, Any] = {}
    for key, parameter in chosen.items():
        properties[key] = {"type": "integer" if parameter.is_number else "string"}
        if parameter.options:
            properties[key]["enum"] = list(parameter.options)
        if described:
            properties[key]["description"] = parameter.description
    extra: tuple[str, ...] = ()
    if rng.random() < 0.2:
        key, optional = rng.choice(
            (
                ("unit", {"type": "string", "enum": ["celsius", "fahrenheit"]}),
                ("language", {"type": "string"}),
                ("verbose", {"type": "boolean"}),
                ("format", {"type": "string"}),
            )
        )
        if key not in properties:
            properties[key], extra = optional, (key,)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if chosen or rng.random() < 0.5:
        schema["required"] = list(chosen)
    if rng.random() < 0.15:
        schema["additionalProperties"] = False
    body: dict[str, Any] = {"name": name}
    if rng.random() < 0.85:
        body["description"] = description
    body["parameters"] = schema
    if rng.random() < 0.1:
        body["strict"] = True
    return Function(
        verb, noun, {"type": "function", "function": body}, tuple(chosen.items()), extra
    )


def offered(rng: Random, count: int) -> list[Function]:
    """Generate the functions of one request, with different names and at most one common one."""
    functions: dict[str, Function] = {}
    questioned: set[str] = set()
    while len(functions) < count:
        one = function(rng)
        if one.name in functions or one.noun in questioned:
            continue
        functions[one.name] = one
        if one.noun in _QUESTIONS:
            questioned.add(one.noun)
    return list(functions.values())


# --------------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one function, as a sentence without final punctuation, and its call."""

    sentence: str
    call: Call
    is_question: bool = False


def _value(rng: Random, parameter: Parameter) -> str | int:
    match parameter.draw:
        case "city":
            return lexicon.city(rng)
        case "person":
            return lexicon.person(rng)
        case "day":
            return rng.choice(lexicon.DAYS)
        case "time":
            return f"{rng.randint(7, 22)}:{rng.choice(('00', '15', '30', '45'))}"
        case "number" | "minutes":
            return rng.randint(2, 99)
        case "id":
            return rng.randint(100, 9999)
        case "code":
            return lexicon.digits(rng, 5)
        case "email":
            return f"{lexicon.person(rng).lower()}@{rng.choice(('example', 'mail', 'post'))}.com"
        case "option":
            return rng.choice(parameter.options)
        case _:
            return " ".join(lexicon.word(rng) for _ in range(rng.randint(1, 4)))


def request(rng: Random, wanted: Function) -> Request:
    """Generate a request for the function with a value for each parameter."""
    values = {key: _value(rng, parameter) for key, parameter in wanted.parameters}
    call = Call(wanted.name, values)
    cues = [parameter.cue.format(v=values[key]) for key, parameter in wanted.parameters]
    if wanted.noun in _QUESTIONS and rng.random() < 0.8:
        form = rng.choice(_QUESTIONS[wanted.noun])
        return Request(form.format(v=next(iter(values.values()))), call, is_question=True)
    if rng.random() < 0.3:
        rng.shuffle(cues)
    verb = rng.choice(_SYNONYMS.get(wanted.verb, (wanted.verb.capitalize(),)))
    article = rng.choice(("the", "a" if wanted.noun[0] not in "aeiou" else "an"))
    if wanted.noun in {"weather", "population", "time"}:
        article = "the"
    return Request(" ".join((verb, article, wanted.noun, *cues)), call)


_QUESTIONS = {
    "weather": (
        "What is the weather in {v}",
        "What's the weather in {v}",
        "How is the weather in {v}",
        "What is the weather like in {v}",
        "What's the weather like in {v} today",
        "Do you know the weather in {v}",
        "Tell me the weather in {v}",
        "How is the weather in {v} today",
        "Is it raining in {v}",
        "Is it warm in {v}",
    ),
    "time": ("What time is it in {v}", "What is the time in {v}", "How late is it in {v}"),
    "population": (
        "How many people live in {v}",
        "What is the population of {v}",
        "How big is {v}",
    ),
    "timer": ("Set a timer for {v} minutes", "Start a timer of {v} minutes"),
}


def _sentence(rng: Random, requests: list[Request]) -> str:
    joined = " and ".join(
        one.sentence if not index else one.sentence[0].lower() + one.sentence[1:]
        for index, one in enumerate(requests)
    )
    if requests[0].is_question:
        asks = requests[0].sentence.split()[0] in {"What", "What's", "How", "Do", "Is"}
        return joined + ("?" if asks else ".")
    opener = rng.choice(_OPENERS)
    if opener:
        joined = opener + joined[0].lower() + joined[1:]
    return joined + ("?" if opener.startswith(("Can", "Could")) else ".")


# -------------------------------------------------------------------------------------- exchanges


def use(rng: Random, functions: list[Function], wanted: Function | None = None) -> Exchange:
    """A request with its call, result and answer."""
    asked = request(rng, wanted or rng.choice(functions))
    return _exchange(rng, "tool_call", [asked])


def use_twice(rng: Random, functions: list[Function]) -> Exchange | None:
    """A request with two calls: of one function with two values, or of two functions."""
    if len(functions) > 1 and rng.random() < 0.4:
        both = [request(rng, wanted) for wanted in rng.sample(functions, 2)]
        return _exchange(rng, "tool_parallel", both)
    single = [one for one in functions if len(one.parameters) == 1]
    if not single:
        return None
    wanted = rng.choice(single)
    key, parameter = wanted.parameters[0]
    values = [_value(rng, parameter) for _ in range(2)]
    if values[0] == values[1]:
        return None
    asked = request(rng, wanted)
    shown = str(asked.call.arguments[key])
    cue = parameter.cue.format(v=shown)
    if cue in asked.sentence:
        joined_cues = " and ".join(parameter.cue.format(v=value) for value in values)
        sentence = asked.sentence.replace(cue, joined_cues)
    else:
        sentence = asked.sentence.replace(shown, f"{values[0]} and {values[1]}")
    calls = [Call(wanted.name, {key: value}) for value in values]
    joined = _sentence(rng, [Request(sentence, calls[0], asked.is_question)])
    return _answered(rng, "tool_parallel", joined, calls)


def _exchange(rng: Random, skill: str, requests: list[Request]) -> Exchange:
    return _answered(rng, skill, _sentence(rng, requests), [one.call for one in requests])


def _answered(rng: Random, skill: str, sentence: str, calls: list[Call]) -> Exchange:
    results = [_result(rng, call) for call in calls]
    names = lexicon.listed([call.name for call in calls])
    return Exchange(
        skill,
        f"call|{sentence}",
        sentence,
        " ".join(said for _, said in results),
        gist=f"You asked: {sentence}",
        thought=f"For this I call {names}.",
        calls=tuple(calls),
        results=tuple(text for text, _ in results),
        weight=Weight.RECALL,
        changeable=False,
    )


def _result(rng: Random, call: Call) -> tuple[str, str]:
    """Generate the result of a function and the answer about it."""
    if "weather" in call.name and rng.random() < 0.8:
        return _weather(rng, call)
    draw = rng.random()
    if draw < 0.1:
        problem = rng.choice(("not found", "no access", "timeout", "bad request", "closed"))
        key = rng.choice(("error", "error", "problem"))
        return _json(rng, {key: problem}), f"The function failed: {problem}."
    if draw < 0.2:
        text = rng.choice((str(rng.randint(0, 999)), lexicon.word(rng), lexicon.person(rng)))
        return text, f"The result is {text}."
    keys = rng.sample(
        ("id", "status", "price", "name", "city", "day", "count", "code", "owner", "room", "state"),
        rng.randint(1, 3),
    )
    values = {key: _result_value(rng, key) for key in keys}
    said = " ".join(f"The {key} is {value}." for key, value in values.items())
    return _json(rng, values), said


def _result_value(rng: Random, key: str) -> str | int:
    if key in {"id", "price", "count", "room"}:
        return rng.randint(1, 9999 if key == "id" else 200)
    if key in {"name", "owner"}:
        return lexicon.person(rng)
    if key == "city":
        return lexicon.city(rng)
    if key == "day":
        return rng.choice(lexicon.DAYS)
    if key == "code":
        return lexicon.digits(rng, 5)
    return rng.choice(("ok", "done", "open", "closed", "sent", "booked", "ready", "waiting"))


def _weather(rng: Random, call: Call) -> tuple[str, str]:
    degrees = rng.choice([heat for heat in range(-9, 40) if abs(heat) != 1])  # no "1 degrees"
    sky = rng.choice(("sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy"))
    where = next(iter(call.arguments.values()), "the city")
    said = f"It is {degrees} degrees and {sky} in {where}."
    if rng.random() < 0.2:
        return f"{sky}, {degrees} degrees", said
    heat = rng.choice(("temperature", "temperature", "temp", "degrees", "temperature_c"))
    cover = rng.choice(("condition", "conditions", "sky", "weather"))
    chance = rng.random()
    if chance < 0.1:
        return _json(rng, {cover: sky}), f"It is {sky} in {where}."
    if chance < 0.2:
        return _json(rng, {heat: degrees}), f"It is {degrees} degrees in {where}."
    fields: dict[str, Any] = {heat: degrees, cover: sky}
    if rng.random() < 0.3:
        fields = {cover: sky, heat: degrees}
    if rng.random() < 0.3:
        fields = {"city": where, **fields}
    return _json(rng, fields), said


def _json(rng: Random, value: dict[str, Any]) -> str:
    return to_json(value, compact=rng.random() < 0.3)


# ---------------------------------------------------------------------------------- not calling


def missing_value(rng: Random, functions: list[Function]) -> Exchange | None:
    """A request without a required value, for which the assistant asks."""
    single = [one for one in functions if len(one.parameters) == 1]
    if not single:
        return None
    wanted = rng.choice(single)
    key = wanted.parameters[0][0]
    # Not "What is the time?": the model answers that it does not know the time.
    is_weather = wanted.noun == "weather"
    ask = "What is the weather?" if is_weather else f"{wanted.verb.capitalize()} the {wanted.noun}."
    return Exchange(
        "tool_missing",
        f"missing value|{ask}|{key}",
        ask,
        f"Please tell me the {key}.",
        gist=f"You asked: {ask}",
        thought=f"For this I would call {wanted.name}, but I do not know the {key}.",
        changeable=False,
    )


def impossible(rng: Random, functions: list[Function]) -> Exchange:
    """A request that none of the functions can serve."""
    names = {one.name for one in functions}
    nouns = {one.noun for one in functions}
    while True:
        other = function(rng)
        if other.name not in names and other.noun not in nouns:
            break
    sentence = _sentence(rng, [request(rng, other)])
    return Exchange(
        "tool_impossible",
        f"impossible|{sentence}",
        sentence,
        "I have no function for that.",
        gist=f"You asked: {sentence}",
        thought="None of my functions can do this.",
        weight=Weight.RECALL,
        changeable=False,
    )
