"""How a text is written: its characters, tokens and quotes, before anybody asks what they mean."""

import re
import unicodedata

_QUOTE = re.compile(r'"([^"\n]{1,300})"|`([^`\n]{1,300})`|(?<![\w\'])\'([^\'\n]{2,300})\'(?![\w\'])')
_END = re.compile(r"[!?\n]")
_TOKEN = re.compile(r"[$€£¥#]?\d{1,3}(?:,\d{3})+[^\s,;!?()\[\]{}<>\"`…|=*~]*|[^\s,;!?()\[\]{}<>\"`…|=*~]+")


def plain_text(text: str) -> str:
    """Compatible characters as one (full-width digits, ligatures), typographic quotes as straight ones."""
    if text.isascii():
        return text.replace("``", '"').replace("''", '"').strip()
    folded = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    return folded.replace("``", '"').replace("''", '"').strip()


# Single and double typographic quotes; en dash, em dash, minus sign, soft hyphen.
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014\u2212", "''\"\"- -", "\u00ad")


def identity_of(plain: str) -> str:
    """Equal for texts that differ in case, spacing and final punctuation only."""
    if "\n" in plain:
        # Indentation and line breaks can be code; only what is invisible at a line's end goes.
        return "\n".join(line.rstrip() for line in plain.splitlines())
    words = [token.lower() if token.strip(".,:;!?'\"-").isalpha() else token for token in plain.split()]
    return " ".join(words).rstrip(" .?!")


def quotes_of(plain: str) -> frozenset[str]:
    """What is quoted or written as code, in lower case."""
    if not ('"' in plain or "'" in plain or "`" in plain):
        return frozenset()
    return frozenset(" ".join(filter(None, parts)).strip().casefold() for parts in _QUOTE.findall(plain))


def tokens_of(plain: str) -> list[tuple[str, bool]]:
    """Each token and whether it opens a sentence."""
    found = []
    for sentence in _END.split(plain):
        opens = True
        for written in _TOKEN.findall(sentence):
            if written.isalnum():
                found.append((written, opens))
                opens = False
                continue
            token = written.strip(".:'-/&")
            if token:
                found.append((token, opens))
                opens = False
            if written.endswith((".", ":")):
                opens = True
    return found
