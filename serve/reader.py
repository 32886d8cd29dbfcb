"""The form of a verdict that people's own prompts ask for, read from a request's words, English or Chinese.

It finds a JSON Schema or an example object that the reply has to follow, a verdict in a place of its own (`[[5]]`,
`<score>4</score>`, `Score: 4`), a set of labels, or a number. A request is left alone unless its words judge something
and name one form only; what is stranger belongs into the table. Everything here is pure.
"""

import json
import re
from collections.abc import Iterable, Iterator
from string import ascii_uppercase
from typing import NamedTuple

from chinese import HAN, in_english
from labels import CODING, JUDGING, SEVERAL, WORD, Found, choices, escaped, held, labels, list_in, only_number, scale
from scales import Schema, digits_of, names_verdict, range_in, scale_of

HEAD, TAIL = 20_000, 6_000
"""Characters that are read of a long request, at its beginning and at its end."""

ABOUT_ANSWERS = re.compile(
    r"(?i)\b(?:evaluat\w*|grad(?:e|ing|er)|judg\w+|rat(?:e|ing)|assess\w*|scor(?:e|ing)|compar(?:e|ing)|verify|"
    r"critique|"
    r"check|determine|decide|classify|faithful|correctness|relevance|coherence|quality|better)\b[^.\n]{0,90}"
    r"\b(?:answers?|responses?|repl(?:y|ies)|submissions?|outputs?|completions?|solutions?|candidates?|assistants?|"
    r"summar(?:y|ies)|translations?|generations?|agents?|claims?|statements?|conversations?|generated)\b|"
    r"\b(?:two|both) (?:assistants|answers|responses|outputs)\b|\byou (?:grade|judge|rate)\b|\bmatch an answer\b"
)
"""What is judged, said by name: forms that texts of all kinds have are a verdict's only there."""

ABOUT = re.compile(
    r"(?i)\A\W*(?:please )?(?:(?:can|could) you )?(?:summari[sz]e|paraphrase|translate|rewrite|explain|shorten|extract|"
    r"continue|convert|proofread|repeat|document|let['’]?s|what do(?:es)? (?:this|the|my|our)|"
    r"how (?:do|can|should) (?:i|we)|(?:write|draft|create|design|make|generate|improve|suggest|implement|"
    r"give me) (?:me )?"
    r"(?:an?|the|this|some|my|our|two|three)\b(?! (?:answer|response|reply|output)))|"
    r"\A[^\n]+\b(?:how (?:do|can|should|could) (?:i|we)|why (?:does|do|is)|what do you think)\b[^.?\n]{0,120}\?\s*\Z"
)
"""How requests begin, or end if they are one line, that are about a text: forms that they name are its."""

WHOSE = (
    r"(?:the )?(?:(?:model|assistant|student|user|ai|candidate|predicted|generated|given|current|standard|reference|"
    r"correct|expected)(?: [a-z0-9])?(?:['’]s)? ){0,2}"
)
DATA = re.compile(
    rf"(?im)^[^\w\n]{{0,8}}(?:(?:the )?(?:begin|start)[ _](?:of[ _](?:the[ _])?)?)?{WHOSE}"
    r"(?:data|answer|response|reply|submission|output|completion|text|summary|translation|passage|context|document|"
    r"article|question|query|(?:instruction|prompt)(?!s)|input|conversation|dialogue|source|essay|assistant)s?"
    rf"(?:[ _][a-z0-9])?(?:[^\w\n]{{0,3}}:|\|?[\]>]|\*\*\n)|^#{{1,6}} {WHOSE}(?:answer|response|question|"
    rf"query)(?: [a-z0-9])? *\n"
)
"""What opens the data of a request, at the beginning of a line."""

NEAR = 250
"""Characters before an object that may ask for it."""

VERB = r"(?:return|respond|reply|output|answer|provide|produce|generate|give|write|format|print|use|using)"
OBJECT = re.compile(
    rf"(?i)\b{VERB}\b[^{{}}]{{0,160}}\b(?:json|object|dictionary|structure|format|fields|keys|schema|following)\b"
)
INSTANCE = re.compile(r"(?i)\b(?:return|respond|reply|answer|output|provide)\b[^{}]{0,200}\bschema\b")
"""What asks for an instance of a schema whatever it is about."""

SCHEMA_CUE = re.compile(r"(?i)(schema|json format)\W[^{}]{0,80}$")
EXAMPLE_CUE = re.compile(r"(?i)\b(example|instance|e\.g)\b[^{}]{0,60}$")
GIVEN = re.compile(
    r"(?i)\?\s*$|\b(?:parse|explain|convert|fix|check|validate|read|describe) (?:this|the following) (?:json|"
    r"object)\b[^{}]*$"
)
"""What is said before an object that is given, and not asked for."""

LISTED = re.compile(
    r"^ *[-*•] ?[`\"*]{0,2}(?P<name>[A-Za-z_]\w{0,30})[`\"*]{0,2} ?\((?P<type>[^()\n]{1,60})\) ?:", re.MULTILINE
)
NAMED = re.compile(
    rf"(?i)\b{VERB}\b[^.{{}}\n]{{0,40}}\bJSON\b[^.{{}}\n]{{0,40}}\b(?:keys|fields|"
    rf"properties)\b(?P<names>[^{{}}\n]{{4,300}})"
)
NAME = re.compile(r"[`\"'](?P<name>[A-Za-z_]\w{0,30})[`\"'](?: ?\((?P<type>[^()\n]{1,80})\))?")
FIELD = re.compile(
    r"\s*(?:\"(?P<quoted>[\w =<>-]{1,40})\"|'(?P<single>[\w -]{1,40})'|(?P<bare>[A-Za-z_]\w{0,39}))\s*:\s*"
)
OR = r"(?:\s*(?:\||/|or)\s*"
VALUE = re.compile(rf"\"(?:[^\"\\\n]|\\.)*\"{OR}\"[^\"\n]*\")*|'[^'\n]*'{OR}'[^'\n]*')*|<[^<>\n]*>|[^,{{}}\[\]\n\"']+")
BETWEEN = re.compile(r"\s*(?:,|(?://|#)[^\n]*)?\s*(?:(?://|#)[^\n]*\s*)?")
OBJECT_END = re.compile(r"\s*(?:\.\.\.|…)?\s*,?\s*\}")


def spans(text: str) -> Iterator[tuple[int, int]]:
    """Where outermost pairs of braces stand."""
    depth, start = 0, 0
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            start, depth = (match.start() if depth == 0 else start), depth + 1
        elif depth:
            depth -= 1
            if depth == 0:
                yield start, match.end()


def without_objects(text: str) -> str:
    """The words around objects: what their fields are called asks for nothing."""
    ends = [0, *(at for span in spans(text) for at in span), len(text)]
    return " ".join(text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))


def closed(fields: Schema) -> Schema:
    """An object of exactly these keys, in this order."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def objects(text: str, wants_object: bool, judging: bool) -> Iterator[Found]:
    known: set[tuple[str, ...]] = set()
    for start, end in spans(text):
        before, written = text[max(0, start - NEAR) : start], text[start:end]
        cue = OBJECT.search(before)
        wanted = cue and not CODING.search(cue[0]) and not CODING.search(re.split(r"[.!?]\s|\n\n", before)[-1])
        try:
            given = json.loads(written)
        except ValueError:
            given = None
        if isinstance(given, dict) and isinstance(given.get("properties"), dict):
            schema = SCHEMA_CUE.search(before) and not EXAMPLE_CUE.search(before)
            if schema and wanted and (judging or INSTANCE.search(before)):
                yield Found("json", "schema of " + ", ".join(given["properties"]), schema=given)
            continue
        fields, at = _object(written.replace("{{", "{").replace("}}", "}"), 0) if judging else ({}, -1)
        fields = {name: _told(name, field, text) for name, field in fields.items()} if at > 0 else {}
        shown = any(map(_is_verdict, fields.items())) and not GIVEN.search(before)
        if shown and (wants_object or tuple(fields) in known or wanted):
            known.add(tuple(fields))
            yield Found("json", ", ".join(fields), schema=closed(fields))


def _is_verdict(field: tuple[str, Schema]) -> bool:
    name, schema = field
    named = names_verdict(name) or (name == "category" and "enum" in schema)
    return named or any(map(names_verdict, schema.get("properties", {})))


def _told(name: str, field: Schema, text: str) -> Schema:
    """The field, with the labels that the words allow for it by name; a whole number in an example is any number where
    their scale is one of decimals."""
    if field.get("type") == "integer" and "default" in field:
        found = scale_of(text, name)
        return {**field, "type": "number"} if digits_of(found, text) else field
    said = re.search(
        rf"[\"'`]{re.escape(name)}[\"'`] (?:field )?(?:must|should|has to|can only) be [^.\n]{{2,120}}", text
    )
    told = list_in(said[0], said[0].index(" ")) if said and field == {"type": "string"} else None
    return {"enum": told} if told else field


def listed(text: str) -> Iterator[Found]:
    """An object whose fields stand in a list or a sentence, each with its type; what has none is a text, if it
    cannot be a verdict."""
    cue = OBJECT.search(text) if LISTED.search(text) or re.search("(?i)json", text) else None
    rows = list(LISTED.finditer(text, cue.end())) if cue and not CODING.search(cue[0]) else []
    sentence = NAMED.search(text) if cue and not rows else None
    if sentence and not CODING.search(sentence[0]) and JUDGING.search(text.replace(sentence[0], "")):
        rows = list(NAME.finditer(re.split(r"\.\s", sentence["names"])[0]))
    fields = {row["name"]: _typed(row["type"] or "") for row in rows}
    open_verdict = any(names_verdict(row["name"]) and not row["type"] for row in rows)
    if len(fields) > 1 and any(map(names_verdict, fields)) and not open_verdict:
        yield Found("json", ", ".join(fields), schema=closed(fields))


def _typed(words: str) -> Schema:
    """What the words behind a field's name allow."""
    values = list_in(words) if re.search("[\"'`]", words) else None
    return {"enum": values} if values else _scalar(re.sub(r"\bstr\b", "", words))


def _object(written: str, at: int) -> tuple[dict[str, Schema], int]:
    """The fields of an object as an example or a sketch writes it (`{"score": 1-5, reason: string}`), and where it
    ends; -1 where it cannot be read to its end."""
    fields: dict[str, Schema] = {}
    at += 1
    while True:
        if ended := OBJECT_END.match(written, at):
            return fields, ended.end()
        name = FIELD.match(written, at)
        field, at = _value(written, name.end()) if name else ({}, -1)
        if not name or at < 0:
            return {}, -1
        fields[name["quoted"] or name["single"] or name["bare"]] = field
        between = BETWEEN.match(written, at)
        at = between.end() if between else at


def _value(written: str, at: int) -> tuple[Schema, int]:
    if written[at : at + 1] == "{":
        fields, end = _object(written, at)
        return closed(fields), end
    if written[at : at + 1] == "[":
        inner = at + len(written[at + 1 :]) - len(written[at + 1 :].lstrip()) + 1
        item, end = (
            _value(written, inner) if written[inner : inner + 1] not in ("]", "") else ({"type": "string"}, inner)
        )
        closing = written.find("]", end) if end > 0 else -1
        return {"type": "array", "items": item}, closing + 1 if closing >= 0 else -1
    match = VALUE.match(written, at)
    return (_scalar(match[0].strip()), match.end()) if match else ({}, -1)


def _scalar(value: str) -> Schema:
    """What a value written in an example, or said in its place, allows."""
    bare, is_text = value.strip("\"'<>` "), value.startswith(('"', "'"))
    bare = bare[1:-1] if re.fullmatch(r"\[[^\[\]]*\]", bare) else bare
    quoted = set(re.findall(r"(?<!\w)['`]([A-Za-z_]{1,20})['`]", value[1:-1])) if is_text else set[str]()
    options = [option.strip("\"'` ") for option in re.split(r"\s*(?:\||(?<!\bN)/|/(?!A\b)|\bor\b)\s*", bare)]
    if len(quoted) > 1:
        return {"enum": sorted(quoted)}
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        return {"type": "number" if "." in value else "integer", "default": float(value)}
    if re.fullmatch(r"(?i)(true|false|bool(ean)?)(\s*(\||/|or)\s*(true|false))?", bare):
        return {"type": "boolean"}
    if len(options) > 1 and all(re.fullmatch(r"[\w+=<>-]{1,20}|N/A", option) for option in options):
        whole = all(re.fullmatch("-?[0-9]+", option) for option in options) and not is_text
        return {"enum": [int(option) for option in options] if whole else options}
    if found := range_in(bare):
        kind = "number" if digits_of(found, bare) or "." in bare else "integer"
        return {"type": kind, "minimum": found[0], "maximum": found[1]}
    number = None if is_text else re.search(r"(?i)\b(int(eger)?|number|float|numeric|decimal)\b", bare)
    kind = "integer" if number and number[1].lower().startswith("int") else "number" if number else "string"
    return {"type": ["string", "null"] if bare == "null" else kind}


SCORE = r"(?:overall |final )?(?:score|rating|grade)s?"
ASKS = re.compile(
    r"(?i)\W*(?:(?:based on|given|considering|according to|using|on|with|after|for|in)\b[^.,\n]{0,80}, )?"
    r"(?:(?:now|then|please|finally|first|remember(?: that)?|note that|(?:can|could|would|will) you|"
    r"(?:i|we)(?: would|['’]d)? (?:want|like|need) you to|(?:the|your) (?:task|job|goal) is to|"
    r"you(?: (?:must|should|will|can|may|have to|need to|are (?:asked )?to))?)\W+)*"
    r"(?:(?:rate|score(?= (?:the|it|each|this|from|how|on|between)\b)|grade|evaluate|assess|judge|give|assign|"
    r"provide|return|"
    r"(?:output|answer)(?= [\w\"'`\[(<{*])(?! \w\W{0,3}[:\]])|respond|reply|use|produce|print|write|generate|"
    r"on a scale|"
    rf"how would you|(?:what|which|make sure|ensure)(?: \w+){{0,3}} {SCORE}|"
    rf"(?:the|your) (?:{SCORE}|(?:{SCORE} |scoring )?scale) (?:must|should|ranges?|goes|can|has to|is (?:an?|from|"
    rf"between|on))|"
    rf"{SCORE} (?:go|ranges?|must|should|are)|"
    r"(?:the|this|it|each)(?: \w{1,20}){0,2} (?:must|should) be (?:scored|rated|graded)|"
    r"output: (?:an? )?(?:\w+ )?score|"
    r"only|just|simply|do not|don['’]t|reason|think|explain|describe|analy[sz]e|end|finish|conclude|begin|start|"
    r"determine|"
    r"decide|compare|check|verify|classify|put|place|select|choose|say|follow|format|include|as an?|for each|"
    r"(?:the|your|this|its) (?:\w{1,20} ){0,2}(?:answer|response|reply|output|verdict|judge?ment|evaluation|"
    r"format|line) "
    r"(?:must|should|has to|is (?:one of|either))|you(?:['’]re| are)|your (?:task|job|goal|role)|"
    r"(?:which|is|are|does|do|how (?:good|well|much))\b[^?.\n]{0,80}\b(?:answers?|responses?|submissions?|"
    r"statements?))\b|"
    rf"(?:your )?{SCORE}(?: ?: ?(?:an? )?(?:integer|number|float)\b| ?\([0-9]| (?:from|between) [0-9])|"
    r"[^\w\n]{0,8}(?:\w{1,20} ){0,3}(?:rubrics?|criteri(?:a|on)|scales?|tasks?|guidelines?|format|form|template|"
    r"structure|schema)\b"
    r"[^.:\n]{0,40}(?::|\Z))"
)
"""How a sentence begins that asks for something, and does not only tell it; or a heading of what counts."""

SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)[.!?]\s|\n")
CLOSES = re.compile(
    r"(?im)^[^\w\n]{0,6}(?:[<\[]/[\w -]{1,40}|(?:the )?end(?:[ _]of[ _][ \w'’]{1,40}|[ _]\w{1,20})?)[^\w\n]{1,6}$"
)
"""A line that ends a piece of data."""


class AskedText(NamedTuple):
    """What a message, or all of them, ask; `begins` is how the last of them does, and `judging` whether they judge."""

    text: str
    begins: str
    judging: bool


def parts(turns: list[tuple[str, str]]) -> list[AskedText]:
    """What the system's messages ask, and then what all do (role and text of each), in the reader's words and without
    data; nothing that is about a text, or names a form of something else than a verdict."""
    system = asked(in_english("\n\n".join(text for role, text in turns if role == "system")[:HEAD]))
    whole = asked(in_english(clipped("\n\n".join(text for _, text in turns))))
    judging = bool(JUDGING.search(without_objects(whole)))
    if not judging and not INSTANCE.search(whole):
        return []
    last = in_english(turns[-1][1][:600]) if turns else ""
    found = [
        AskedText(text, begins if len(begins) < 600 else begins[:300], judging)
        for text, begins in ((system, system), (whole, last))
    ]
    return [part for part in found if not ABOUT.search(part.begins)]


def find(part: AskedText, wants_object: bool) -> Found | None:
    """The form that is asked for, SEVERAL where that is not sure. `wants_object` says that the request asks for a JSON
    object by itself."""
    found = _only([*objects(part.text, wants_object, part.judging), *(listed(part.text) if part.judging else ())])
    if found is None and part.judging and not wants_object:
        found = _in_place(part.text) or _only(labels(part.text)) or _only(only_number(part.text))
    return found


def _only(found: Iterable[Found]) -> Found | None:
    """The form that is found, or SEVERAL where it is not the only one; of examples that differ, with both values."""
    known = list(found)
    if len({each.what for each in known}) > 1 or SEVERAL in known:
        return SEVERAL
    if len(known) < 2 or known[0].schema is None:
        return known[0] if known else None
    first: Schema = json.loads(json.dumps(known[0].schema))
    for name, field in first["properties"].items():
        values = {each.schema["properties"].get(name, {}).get("default") for each in known if each.schema}
        if field.get("type") in ("integer", "number") and "minimum" not in field and values - {None} == {0.0, 1.0}:
            first["properties"][name] = {"type": "number", "minimum": 0, "maximum": 1}
    return known[0]._replace(schema=first)


def asked(text: str, *, all_data: bool = False) -> str:
    """The text without its data, but for the names that open each piece, up to where something is asked again. What
    stands between two pieces asks only if it speaks of judging: it may be the first one's. A text that begins with
    such a name, or whose first one is of an instruction, and speaks of judging nowhere else is left as it is, unless
    it may be `all_data`."""
    masked = text
    for start, end in [*spans(text), *(match.span() for match in LINES.finditer(text))]:
        masked = f"{masked[:start]}{'x' * (end - start)}{masked[end:]}" if end - start < NEAR * 4 else masked
    filled = len(text.rstrip())
    opens = [
        match
        for match in DATA.finditer(masked)
        if match.end() < filled and not ASKS.match(text, match.start(), match.end() + NEAR)
    ]
    parts, at = [], 0
    for opened, following in zip(opens, [*(match.start() for match in opens[1:]), len(text)], strict=False):
        if opened.start() >= at:
            end = _end_of(text, opened, following)
            parts += [text[at : opened.end()], "\n" * text.count("\n", opened.end(), end)]
            at = end
    left = "".join(parts) + text[at:]
    alone = opens and (not text[: opens[0].start()].strip() or re.search("(?i)instruction|prompt", opens[0][0]))
    return text if alone and not all_data and not JUDGING.search(left) else left


def _end_of(text: str, opened: re.Match[str], following: int) -> int:
    """Where the piece of data ends that `opened` opens, at the latest where the `following` one does."""
    tag = re.fullmatch(r"[^\w\n]*<([A-Za-z]\w*)>", opened[0])
    if tag and (end := text.find(f"</{tag[1]}>", opened.end())) >= 0:
        return end
    if closing := CLOSES.search(text, opened.end(), following):
        return closing.start()
    first = re.compile(r"\s*[^\n]*\n?").match(text, opened.end(), following)
    at, judging = first.end() if first else following, len(text)
    if following < len(text):
        judging = max((match.start() for match in JUDGING.finditer(text, at, following)), default=-1)
    while at < following and at <= judging:
        stop = SENTENCE_END.search(text, at, following)
        after = stop.end() if stop else following
        if ASKS.match(text, at, after):
            return at
        at = after
    return following


LINES = re.compile(
    r"(?im)^[^\n]*\b(?:format|fields|lines|template|structure|criteria|example)\b[^\n]{0,80}\n+(?:[-=*#`]{3,}\n+)?"
    r"(?:(?:\*\*|#+ |- )?\[?[A-Za-z][\w ]{1,30}\]?:(?:\*\*)? ?[^\n]+(?:\n|\Z)){2,8}"
)
"""A form that is laid out in lines: a name there opens no data."""


NOUN = r"(?i:scores?|rating|grade|verdict|judge?ment|decision|preference|winner|choice|assessment|answer|letter)"
PLACEHOLDER = re.compile(rf"(?:(?i:your|the|final|my) ){{0,2}}(?:{NOUN}|(?i:number|option)|X|n)|[^A-Za-z{HAN}]*")
BRACKETS = re.compile(r"(?P<name>[A-Z][a-z]+[:：] ?)?\[\[(?P<inner>[^\[\]\n#]{1,30})\]\]")
LABEL = re.compile(r"[A-Z]{1,12}(?:[<>=]{1,2}[A-Z])?|(?i:tie|yes|no|neither|equal|draw|both)")
CLOSING = re.compile(
    r"(?i)\b(?:end|finish|conclude|final line|last line)\b[^\n\"'`]{0,80}[\"'`]"
    rf"(?P<name>[A-Za-z{HAN}][A-Za-z{HAN} ]{{1,20}}[:：]) ?[\[<{{(]?"
    rf"(?P<inner>[^\"'`\n\]>}})]{{1,40}})[\]>}})]?[\"'`](?P<rest>[^\n]{{0,120}})"
)


def _in_place(text: str) -> Found | None:
    """A verdict in double brackets, or behind its name on the last line."""
    if marks := [match for match in BRACKETS.finditer(text) if "[[ " not in match[0]]:
        return _in_brackets(text, marks)
    rows = list(CLOSING.finditer(text))
    if not rows or not JUDGING.search(text.replace(rows[0][0], "")):
        return None
    name = rows[0]["name"]
    each = re.findall(rf"[\"'`]{re.escape(name)} ?({WORD})[\"'`]", rows[0][0])
    several = list(dict.fromkeys(each)) if len({*each}) > 1 else None
    values = several or _first_said([rows[0]["inner"], rows[0]["rest"]])
    if values is None and PLACEHOLDER.fullmatch(rows[0]["inner"].strip()):
        values = scale(text)
    if not values or len({(row["name"].lower(), row["inner"].strip()) for row in rows}) > 1:
        return SEVERAL
    return held("line", values, "before", f"\n{name}" + " " * name.endswith(":"), never=_any_value(name))


def _in_brackets(text: str, marks: list[re.Match[str]]) -> Found:
    shown = [value for value in dict.fromkeys(mark["inner"] for mark in marks) if not PLACEHOLDER.fullmatch(value)]
    if not shown and (values := scale(text)):
        name = next((mark["name"].rstrip() + " " for mark in marks if mark["name"]), "")
        return held("line", [f"[[{value}]]" for value in values], "before", lead=f"\n{name}" if name else "\n\n")
    if len(shown) < 2 or not all(map(LABEL.fullmatch, shown)):
        return SEVERAL
    return held("labels", [f"[[{value}]]" for value in shown], "before", lead="\n\n")


def _first_said(words: list[str]) -> list[str] | None:
    """`choices` of the first words that name some."""
    return next((values for each in words if (values := choices(each)) is not None), None)


def options(text: str) -> list[str]:
    """The letters of a question's options, or all if it names none."""
    letters = {*re.findall(r"(?<![\w'’.-])([A-Z])[.):](?=\s)", text)}
    return sorted(letters | {"Z"} if {"A", "B"} <= letters else ascii_uppercase)


def clipped(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n\n{text[-TAIL:]}"


def _any_value(opening: str) -> str:
    return rf"(?i:{escaped(opening.rstrip(' :：'))})[:：] ?[A-Za-z0-9{HAN}]"
