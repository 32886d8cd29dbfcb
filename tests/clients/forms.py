"""What each client of the table in `serve/contracts.toml` sends (forms.toml), and how it reads the reply.

The parsers follow the clients' rules, of which `shared/fixtures/golden.json` gives examples; each returns None for a
reply without a verdict.
"""

import ast
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Form(NamedTuple):
    """A request (without its model) that the contract `contract` is for. `parse` reads the client's verdict from a
    choice of the reply, `place` is where in the request a response under judgment stands."""

    contract: str
    request: dict[str, Any]
    parse: Callable[[dict[str, Any]], Any]

    def with_response(self, response: str) -> dict[str, Any]:
        """Return the request with another response under judgment."""
        request: dict[str, Any] = json.loads(json.dumps(self.request).replace(RESPONSE, json.dumps(response)[1:-1]))
        return request


RESPONSE = "The table holds four apples."
"""The response under judgment in every form: tests put attacks in its place."""


def text(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"])


def grade(letters: str) -> Callable[[dict[str, Any]], Any]:
    def parse(choice: dict[str, Any]) -> str | None:
        match = re.search(r"(?is).*(?<!\w)GRADE(?!\w)\s*:\s*(\w*)", text(choice))
        return match[1] if match and match[1] in list(letters) else None

    return parse


def first_line_pair(choice: dict[str, Any]) -> tuple[float, float] | None:
    words = text(choice).split("\n")[0].replace(",", " ").split(" ")
    try:
        return (float(words[0]), float(words[1])) if len(words) == 2 else None
    except ValueError:
        return None


def one_of(*words: str) -> Callable[[dict[str, Any]], Any]:
    return lambda choice: text(choice) if text(choice) in words else None


def rubric(*keys: str) -> Callable[[dict[str, Any]], Any]:
    def parse(choice: dict[str, Any]) -> Any:
        match = re.search(r"\{.*\}", text(choice), re.DOTALL)
        scores = json.loads(match[0]) if match else {}
        return scores if list(scores) == list(keys) and all(0 <= scores[key] <= 10 for key in keys) else None

    return parse


def share(choice: dict[str, Any]) -> float | None:
    try:
        value = float(text(choice))
    except ValueError:
        return None
    return value if 0 <= value <= 1 and "." in text(choice) else None


def dictionary(choice: dict[str, Any]) -> Any:
    reply = text(choice)
    try:
        scores = ast.literal_eval(reply[reply.find("{") : reply.rfind("}") + 1])
    except (SyntaxError, ValueError):
        return None
    return scores if len(scores) == 7 and all(1 <= score <= 10 for score in scores.values()) else None


def bracketed(choice: dict[str, Any]) -> int | None:
    ratings = re.findall(r"\[\[(\d+\.?\d*)\]\]", text(choice))
    return int(ratings[0]) if len(ratings) == 1 and 1 <= int(ratings[0]) <= 10 else None


def bracketed_pair(choice: dict[str, Any]) -> Any:
    match = re.search(r"\[\[(\d+),\s?(\d+)\]\]", text(choice))
    return match and match.groups()


def bracketed_choice(choice: dict[str, Any]) -> str | None:
    letters = [letter for letter in "ABC" if f"[[{letter}]]" in text(choice)]
    return letters[0] if len(letters) == 1 else None


def result(values: str) -> Callable[[dict[str, Any]], Any]:
    def parse(choice: dict[str, Any]) -> str | None:
        match = re.search(rf"\[RESULT\]\s*([{values}])\s*$", text(choice))
        return match[1] if match else None

    return parse


def ranking(choice: dict[str, Any]) -> Any:
    call = choice["message"]["tool_calls"][0]["function"]
    models = json.loads(call["arguments"])["ordered_models"]
    ranks = {entry["model"]: entry["rank"] for entry in models}
    return ranks if call["name"] == "make_partial_leaderboard" and sorted(ranks.values()) == [1, 2] else None


def best_output(choice: dict[str, Any]) -> Any:
    match = re.search(r"(?i)output \([ab]\)", choice["message"]["tool_calls"][0]["function"]["arguments"])
    return match and match[0]


def better(choice: dict[str, Any]) -> str | None:
    letters = [letter for letter in "ab" if f"response {letter} is better" in text(choice).lower()]
    return letters[0] if len(letters) == 1 else None


def rating(choice: dict[str, Any]) -> Any:
    match = re.search(r"Rating:(\d+)\.", text(choice))
    return match and match[1]


def extracted(choice: dict[str, Any]) -> str | None:
    if text(choice) == "Unknown":
        return "Unknown"
    answers = [letter for letter in "AB" if f"Final Answer: Response {letter}" in text(choice)]
    ratings = [letter for letter in "AB" if f"Rating: {letter}" in text(choice)]
    return answers[0] if len(answers) == 1 and answers == ratings else None


def final_rating(choice: dict[str, Any]) -> str | None:
    match = re.fullmatch(r"Final Rating: (\d+)|(Unknown)", text(choice))
    return match and (match[1] or match[2])


def last_identifier(choice: dict[str, Any]) -> str | None:
    match = re.search(r"m or M\?\n([mM])$", text(choice))
    if match and "logprobs" in choice and choice["logprobs"]["content"][-1]["token"] != match[1]:
        return None
    return match and match[1]


def python_ranks(choice: dict[str, Any]) -> Any:
    ranks = {entry["model"]: entry["rank"] for entry in ast.literal_eval(text(choice))}
    return ranks if ranks.keys() == {"model_1", "model_2"} and sorted(ranks.values()) == [1, 2] else None


def score_and_reason(low: int, high: int) -> Callable[[dict[str, Any]], Any]:
    def parse(choice: dict[str, Any]) -> Any:
        reply = json.loads(text(choice))
        return reply if isinstance(reply["reason"], str) and reply["score"] in range(low, high + 1) else None

    return parse


def passed(choice: dict[str, Any]) -> Any:
    reply = json.loads(text(choice))
    return reply if isinstance(reply["pass"], bool) and 0 <= reply["score"] <= 1 else None


def any_schema(choice: dict[str, Any]) -> Any:
    return json.loads(text(choice))["steps"]


def binary_verdicts(key: str, verdict: str) -> Callable[[dict[str, Any]], Any]:
    def parse(choice: dict[str, Any]) -> Any:
        items = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])[key]
        return items if items and all(item[verdict] in (0, 1) for item in items) else None

    return parse


def keyed(key: str, *values: Any) -> Callable[[dict[str, Any]], Any]:
    def parse(choice: dict[str, Any]) -> Any:
        said = json.loads(text(choice)).get(key)
        return said if said in values else None

    return parse


def any_call(choice: dict[str, Any]) -> Any:
    return json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["note"]


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8").replace("{RESPONSE}", RESPONSE))


def form(entry: dict[str, Any]) -> Form:
    name, *arguments = entry["parse"]
    parse = globals()[name](*arguments) if arguments else globals()[name]
    return Form(entry["contract"], {"messages": entry["messages"], **entry.get("fields", {})}, parse)


FORMS = [form(entry) for entry in TABLE["form"]]


def single_grading(row: dict[str, Any]) -> str:
    """Return FastChat's single grading of a row with its reference (the wording around its frame is ours)."""
    return (
        "[Instruction]\nJudge the answer by the reference. Explain, then rate it on a scale of 1 to 10 by strictly "
        f'following this format: "[[rating]]".\n\n[Question]\n{row["question"]}\n\n'
        f"[The Start of Reference Answer]\n{row['reference']}\n[The End of Reference Answer]\n\n"
        f"[The Start of Assistant's Answer]\n{row['response']}\n[The End of Assistant's Answer]"
    )
