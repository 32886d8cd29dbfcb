"""Translate Chinese words that describe the form of a reply to the English words that reader.py knows.

This suffices to read the form; it is not a translation. Quoted text is kept as it is, because the reply must contain
it. All functions are pure. The words are in chinese.toml.
"""

from pathlib import Path
from string import ascii_letters, digits

import regex as re
from msgspec import toml

_TABLES = toml.decode(Path(__file__).with_name("chinese.toml").read_bytes())
HAN = "\u4e00-\u9fff"
WIDE = {ord(mark) + 0xFEE0: mark for mark in digits + ascii_letters}
WIDE |= str.maketrans(_TABLES["quotes"])
MARKS = str.maketrans(_TABLES["marks"])
QUOTED = re.compile(r"(?P<mark>[\"'`])(?P<words>[^\"'`\n]{1,80})(?P=mark)")
KEPT = "\ue000"
"""Placeholder for quoted text while the words around it are translated."""

ENDS = re.compile(rf"(?:以|用) ?(?P<quoted>{QUOTED.pattern}) ?(?:作为)?(?:结尾|结束|收尾)")
PHRASES = [(pattern.replace("{answer}", _TABLES["answer"]), english) for pattern, english in _TABLES["phrases"]]


def translate_to_english(text: str) -> str:
    """Return the text with Chinese words about the form of a reply replaced by English ones.

    A text without Chinese is returned unchanged.
    """
    if not re.search(f"[{HAN}]", text):
        return text
    # Quotation marks are part of this phrase: it is read before what they hold is set aside.
    text = ENDS.sub(r"end with \g<quoted>", text.translate(WIDE).replace(KEPT, ""))
    # A reply has to say quoted words as they are.
    quoted = (match["words"] for match in QUOTED.finditer(text))
    text = QUOTED.sub(f'"{KEPT}"', text).translate(MARKS)
    for pattern, english in PHRASES:
        text = re.sub(pattern, english, text)
    text = re.sub(f"(?<=[{HAN}])(?=[!-~])|(?<=[!-~])(?=[{HAN}])", " ", text)
    text = re.sub(r"(?<=[\[(]) +| +(?=[\])])", "", re.sub(" +", " ", text))
    restored: str = re.sub(KEPT, lambda _: next(quoted), text)
    return restored
