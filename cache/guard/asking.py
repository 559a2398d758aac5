"""What kind of answer a text asks for."""

from collections.abc import Sequence

# Behind `how`, and as the noun that `what` asks for: how far, what is the distance.
_HOW = {
    "many": "number",
    "much": "amount",
    "long": "duration",
    "often": "frequency",
    "frequently": "frequency",
    "soon": "when",
    "old": "age",
    "far": "distance",
    "tall": "height",
    "high": "height",
    "big": "size",
    "large": "size",
    "deep": "depth",
    "heavy": "weight",
    "fast": "speed",
    "quickly": "speed",
    "expensive": "price",
    "hot": "temperature",
    "cold": "temperature",
}
_NOUNS = {
    "time": "when",
    "date": "when",
    "year": "when",
    "day": "when",
    "reason": "why",
    "reasons": "why",
    "causes": "why",
    "cause": "why",
    "makes": "why",
    "way": "how",
    "ways": "how",
    "method": "how",
    "process": "how",
    "procedure": "how",
    "steps": "how",
    "step": "how",
    "cost": "price",
    "costs": "price",
    "price": "price",
    "fee": "price",
    "number": "number",
    "amount": "amount",
    "age": "age",
    "distance": "distance",
    "height": "height",
    "size": "size",
    "depth": "depth",
    "weight": "weight",
    "speed": "speed",
    "temperature": "temperature",
    "frequency": "frequency",
    "duration": "duration",
    "place": "where",
    "location": "where",
    "person": "who",
}
# Words that only say which kind is meant: they are no content once the kind is known.
CONSUMED = {
    "why": frozenset({"cause", "reason", "make", "makes", "making"}),
    "price": frozenset({"cost", "price", "charge", "expensive", "pay", "fee"}),
    "number": frozenset({"number", "total", "count"}),
    "age": frozenset({"age", "old"}),
    "distance": frozenset({"distance", "far"}),
    "height": frozenset({"height", "tall", "high"}),
    "size": frozenset({"size", "big", "large"}),
    "depth": frozenset({"depth", "deep"}),
    "weight": frozenset({"weight", "heavy", "weigh"}),
    "speed": frozenset({"speed", "fast", "quickly"}),
    "temperature": frozenset({"temperature", "hot", "cold"}),
    "frequency": frozenset({"often", "frequency", "frequently"}),
    "duration": frozenset({"long", "duration", "time", "take", "last"}),
    "when": frozenset({"time", "date", "year", "day"}),
    "where": frozenset({"place", "location", "find"}),
    "who": frozenset({"person", "name"}),
    "what": frozenset({"mean", "meaning", "define", "definition", "term"}),
    "say": frozenset({"mean", "meaning", "define", "definition", "term"}),
}
_PLAIN = {"why": "why", "when": "when", "where": "where", "who": "who", "whom": "who", "whose": "who", "which": "which"}
_BE_AND_HAVE = frozenset({"is", "are", "was", "were", "am", "has", "have", "had", "do", "does", "did"})
_AUXILIARIES = _BE_AND_HAVE | {"can", "could", "will", "would", "should", "shall", "may", "might", "must"}
_HOW_NOUNS = frozenset({"way", "ways", "steps", "guide", "instructions", "tips", "help"})
# How far behind `what` the noun that it asks for may stand: what is the usual price.
_REACH = 6
# Words this early may ask; later ones join clauses: the year when, a shop which.
_EARLY = 4


def asks(words: Sequence[str]) -> str:
    """The kind of answer that lower-case words ask for.

    A question word or a measure: how, why, when, where, who, which, what, price, number, amount, duration, frequency,
    age, distance, height, size, depth, weight, speed, temperature; `yesno`; `say` for a statement or an order.
    """
    words = _without_courtesy(words)
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if word == "how":
            return _how(following, words[at + 2 :])
        if word == "why" or (word in _PLAIN and at <= _EARLY):
            return _PLAIN[word]
        if word == "what":
            return _what(words[at + 1 : at + 1 + _REACH])
        if word in _HOW_NOUNS and "to" in words[at + 1 : at + 3]:
            return "how"
    return "yesno" if words and words[0] in _AUXILIARIES else "say"


def _without_courtesy(words: Sequence[str]) -> Sequence[str]:
    """The words behind `can you`: a wish, not a question about what you can do."""
    if len(words) > 2 and words[0] in ("can", "could", "would", "will") and words[1] == "you":
        return words[2:]
    return words


def _how(following: str, rest: Sequence[str]) -> str:
    if following == "much" and ({"cost", "pay", "charge", "price"} & set(rest) or rest[:1] in (["is"], ["are"])):
        return "price"
    return _HOW.get(following, "how")


def _what(following: Sequence[str]) -> str:
    if "should" in following[:1] and "do" in following:
        return "how"
    for word in following:
        if word in _NOUNS:
            return _NOUNS[word]
        if word in ("of", "for", "in", "between"):
            break
    return "what"
