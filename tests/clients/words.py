# ruff: noqa: E501
"""Requests whose form stands only in their words, and requests that ask for no verdict at all. All wording is ours.

`ASKED` (asked.toml) are what home-made judges and other frameworks send, each with what its client reads from the
reply; `PLAIN` (plain.txt, and below) are chat, coding, summaries, extraction and questions about judging, many of them
close to a judge's request: none of them may be constrained.
"""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
OBJECT = {"response_format": {"type": "json_object"}}
RESPONSE = "Response: The table holds four apples.\n"
SCHEMA = json.dumps(
    {
        "title": "Faithful",
        "type": "object",
        "properties": {"reason": {"type": "string"}, "verdict": {"type": "integer", "description": "0 or 1"}},
        "required": ["reason", "verdict"],
    }
)


class Asked(NamedTuple):
    """A request by name, the kind of form that its words ask for, and how its client reads the reply."""

    name: str
    kind: str
    request: dict[str, Any]
    parse: Callable[[str], Any]


def user(content: str, system: Any = None, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": [*messages, {"role": "user", "content": content}], **fields}


def fits(value: Any, wanted: Any) -> bool:
    if wanted in ("text", "truth"):
        return isinstance(value, str if wanted == "text" else bool)
    if isinstance(wanted, str):
        low, high = map(int, wanted.split(".."))
        return isinstance(value, int | float) and low <= value <= high
    return value in wanted


def reads(entry: dict[str, Any], said: str) -> Any:
    """What the client of an entry reads from a reply, None if it finds nothing."""
    if "match" in entry:
        return re.fullmatch(entry["match"], said, re.DOTALL)
    if "last" in entry:
        return len(re.findall(entry["last"], said)) == 1 or None
    if "tag" in entry:
        name, values = entry["tag"]
        texts = re.findall(rf"<{name}>(.*?)</{name}>", said, re.DOTALL)
        return re.fullmatch(values, texts[0]) if len(texts) == 1 else None
    if "marked" in entry:
        fields = dict(re.findall(r"\[\[ ## (\w+) ## \]\]\n(.*?)(?=\n\n\[\[ ## |\Z)", said, re.DOTALL))
        return fields if [*fields] in (entry["marked"], [*entry["marked"], "completed"]) else None
    reply, keys = json.loads(said), entry["keys"]
    return reply if reply.keys() == keys.keys() and all(fits(reply[key], keys[key]) for key in keys) else None


def asked(entry: dict[str, Any]) -> Asked:
    def filled(name: str) -> str:
        return str(entry.get(name, "")).replace("{RESPONSE}", RESPONSE).replace("{SCHEMA}", SCHEMA)

    fields = dict(OBJECT) if entry.get("object") else {}
    fields |= {"max_tokens": entry["tokens"]} if "tokens" in entry else {}
    request = user(filled("user"), filled("system"), **fields)
    return Asked(entry["name"], entry["kind"], request, lambda said: reads(entry, said))


ASKED = [asked(entry) for entry in tomllib.loads((FOLDER / "asked.toml").read_text("utf-8"))["asked"]]

_PAPERS = [
    "Predict the critics' rating of the next Alien film, from 1 to 10.\nRating:",
    "Write a lab report in the following format:\n\nAim: what you test.\n\nMethod: how.\n\nResult: positive or negative",
    "Fill in the character sheet, strictly in this format:\n**Name:** <name>\n**Class:** <class>\n**Grade:** <1-5>\n",
    "Describe a wine in the following format:\n\nname: its name.\n\nreasoning: why you like it.\n\nrating: between 0% and 100%",
    "Make a flashcard in the format below:\nQuestion: the question\nExplanation: the reasons\nCorrect: A or B\n",
    "You are a doctor's assistant. Use this example response:\n*****\nSYMPTOM: cough\nDECISION: rest or see a doctor\n*****\nI cough.",
    "Play a quiz with me in the following format:\nQUESTION: question here\nANSWER: mine\nGRADE: CORRECT or INCORRECT here\n\nFirst question!",
    "Analyse my budget for a house. Example format:\nIncome: 100\nSpending: 50\nVerdict: YES or NO\n\nIncome: 10\nSpending: 50\n",
    "Write a news item with the following fields:\n\nHeadline: short\n\nScore: 2-1 or 1-2\n\nWinner: home or away",
    "Explain what these lines of our judge's format mean:\n\nreasoning: text\n\ncorrect: 'yes' or 'no'\n\nconfidence: 0% to 100%",
    "Summarise the meeting on how we evaluate responses. Use the following format:\nTopic: <topic>\nDecision: <yes or no>\n",
]

PLAIN = [user(line) for line in [*(FOLDER / "plain.txt").read_text("utf-8").splitlines(), *_PAPERS]]
PLAIN += [
    user("What is 2 + 2?", "You are a helpful assistant."),
    user("Tell me about grading on a curve.", "You are a tutor. Answer in at most three sentences."),
    user("Extract the date and the amount.\nInvoice of May 3rd, 20 euros.", **OBJECT),
    user('Give me a user profile as JSON, like {"name": "Ann", "age": 30}.', **OBJECT),
    user("Write a review of the restaurant with a rating, in JSON.", **OBJECT),
    user("Judge not, that ye be not judged. Where is that from?", "You are a scholar."),
    user("Which of these is a fruit: apple, stone, car?"),
    user("Evaluate the expression 3 * (4 + 5) and show your steps."),
    user("How do rubrics work?", "You help teachers. Use plain words. Never give legal advice."),
    user('He said: "End with a line Score: X". What did he mean?'),
    user("Please respond using the following template:\nName: <your name>\nScore: <your favourite football score>"),
    user("Fill in this form:\nTitle: <the film>\nRating: <PG or R>\nfor the film Alien"),
    user(
        "How do I leave a rating?",
        "You are a helpful assistant that answers questions about our rating system from 1 to 5. Return only plain text.",
    ),
    user("e4 e5 Nf3. What should Black play? Only one move.", "You are a chess coach. Evaluate positions."),
    user(
        "A German 1.7 in US letters?", "You convert scores between grading scales. Reply with the converted grade only."
    ),
    user(
        "One on the French revolution, please. The grading rubric is 1-5.",
        "You generate exam questions. Use the fields question, answer, points.",
    ),
    user(
        "Da Enzo, Trastevere, 4.6 stars, $$",
        'You extract facts from restaurant pages. Return a JSON object in this format: {"name": "...", "rating": 4.5, "price": "$$"}',
    ),
    user(
        "Hi, I am in grade 6 and need help with fractions.",
        'You are a tutor. Respond in JSON: {"message": "text", "grade": "pupil\'s grade, 1 to 12"}',
    ),
    user("I open the door.", 'You are a game master. Respond with JSON: {"narration": "...", "score": 10}'),
    user("How did Ajax do?", 'You are a sports bot. Reply in JSON like {"team": "x", "score": 3}.'),
    user("Design a rubric. Use the following format:\nCriterion: <name>\nScore: <1-5>\n"),
    user("Make a table of wines. Follow this template:\nWine: <name>\nRating: <80-100>\n"),
    user("Write a review of the hotel in this format:\nTitle: ...\nRating: 1-5\n"),
    user(
        "Make a JSON object with these keys:\n- name (string): of the city\n- population (integer): as of 2020\n- founded (integer): year\nCity: Rome"
    ),
    user(
        "Extract from the invoice a JSON object with exactly these keys:\n- total: a number\n- date: a string\nInvoice: 20 euros on May 3rd."
    ),
    user(
        'Give the reply in JSON format with the following keys:\n["title", "year"]\n\nExample:\nInputs:\n{"text": "Alien came out in 1979"}\nOutputs:\n{"title": "Alien", "year": 1979}\n\nInputs:\n{"text": "Heat came out in 1995"}\nOutputs:'
    ),
    user(
        'Return JSON with the following keys:\n["score"]\nfor the match Ajax against Feyenoord, which ended three to one.'
    ),
    user("Write a markdown template for a report:\nTitle: <title>\nSummary: <text>\nScore: <number>"),
    user("Solve the problem. Finish with Answer: <number>.\nWhat is 17 * 3?"),
    user("Classify this email as spam or ham. Answer either SPAM or HAM.\nEmail: you won!"),
    user('Is the sentiment of this tweet positive or negative? Answer with only "positive" or "negative".\nI love it!'),
    user("Write a JSON schema for a user with the keys:\n- score (integer): from 1 to 5\n- why (string): the reason"),
    user(
        "Document this API. It returns a JSON object with these keys:\n- score (integer): from 1 to 5\n- verdict (string): pass or fail"
    ),
    user(
        "Generate five exam questions. Each has the fields:\n- question (string): text\n- answer (string): text\n- points (integer): from 1 to 5"
    ),
    user("How many stars are in the sky?\nstars:"),
    user("Here is a film: Alien. Guess its rating.\nrating:"),
    user('Make flashcards as JSON with the following keys:\n["question", "answer", "grade"]'),
]
PLAIN += [{**request, **OBJECT} for request in PLAIN if "response_format" not in request]
