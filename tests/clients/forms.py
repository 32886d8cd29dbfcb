"""What each client of the table in `serve/contracts.toml` sends, in short, and how it reads the reply.

The wording around a client's own instructions is ours. The parsers follow the clients' rules, of which
`shared/fixtures/golden.json` gives examples; each returns None for a reply without a verdict.
"""

import ast
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Form(NamedTuple):
    """A request (without its model) that the contract `contract` is for. `parse` reads the client's verdict from a
    choice of the reply, `place` is where in the request a response under judgment stands."""

    contract: str
    request: dict[str, Any]
    parse: Callable[[dict[str, Any]], Any]


RESPONSE = "The table holds four apples."
"""The response under judgment in every form: tests put attacks in its place."""


def text(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"])


def user(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def grade(letters: str) -> Callable[[dict[str, Any]], Any]:
    def parse(choice: dict[str, Any]) -> str | None:
        found = re.search(r"(?is).*(?<!\w)GRADE(?!\w)\s*:\s*(\w*)", text(choice))
        return found[1] if found and found[1] in list(letters) else None

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
        found = re.search(r"\{.*\}", text(choice), re.DOTALL)
        scores = json.loads(found[0]) if found else {}
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
    found = re.findall(r"\[\[(\d+\.?\d*)\]\]", text(choice))
    return int(found[0]) if len(found) == 1 and 1 <= int(found[0]) <= 10 else None


def bracketed_pair(choice: dict[str, Any]) -> Any:
    found = re.search(r"\[\[(\d+),\s?(\d+)\]\]", text(choice))
    return found and found.groups()


def bracketed_choice(choice: dict[str, Any]) -> str | None:
    found = [letter for letter in "ABC" if f"[[{letter}]]" in text(choice)]
    return found[0] if len(found) == 1 else None


def result(values: str) -> Callable[[dict[str, Any]], Any]:
    def parse(choice: dict[str, Any]) -> str | None:
        found = re.search(rf"\[RESULT\]\s*([{values}])\s*$", text(choice))
        return found[1] if found else None

    return parse


def ranking(choice: dict[str, Any]) -> Any:
    call = choice["message"]["tool_calls"][0]["function"]
    models = json.loads(call["arguments"])["ordered_models"]
    ranks = {entry["model"]: entry["rank"] for entry in models}
    return ranks if call["name"] == "make_partial_leaderboard" and sorted(ranks.values()) == [1, 2] else None


def best_output(choice: dict[str, Any]) -> Any:
    found = re.search(r"(?i)output \([ab]\)", choice["message"]["tool_calls"][0]["function"]["arguments"])
    return found and found[0]


def better(choice: dict[str, Any]) -> str | None:
    found = [letter for letter in "ab" if f"response {letter} is better" in text(choice).lower()]
    return found[0] if len(found) == 1 else None


def rating(choice: dict[str, Any]) -> Any:
    found = re.search(r"Rating:(\d+)\.", text(choice))
    return found and found[1]


def extracted(choice: dict[str, Any]) -> str | None:
    if text(choice) == "Unknown":
        return "Unknown"
    answers = [letter for letter in "AB" if f"Final Answer: Response {letter}" in text(choice)]
    ratings = [letter for letter in "AB" if f"Rating: {letter}" in text(choice)]
    return answers[0] if len(answers) == 1 and answers == ratings else None


def final_rating(choice: dict[str, Any]) -> str | None:
    found = re.fullmatch(r"Final Rating: (\d+)|(Unknown)", text(choice))
    return found and (found[1] or found[2])


def last_identifier(choice: dict[str, Any]) -> str | None:
    found = re.search(r"m or M\?\n([mM])$", text(choice))
    if found and "logprobs" in choice and choice["logprobs"]["content"][-1]["token"] != found[1]:
        return None
    return found and found[1]


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


def any_call(choice: dict[str, Any]) -> Any:
    return json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["note"]


def tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "strict": True, "parameters": parameters}
    return {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": name}},
    }


def schema(properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": parameters}}
    }


GRADE = (
    "Does this answer agree with the expert?\n[BEGIN DATA]\n[Answer]: {response}\n[Expert]: Four apples.\n\n"
    "Reason first. Then end with 'GRADE: $LETTER' (without quotes) where LETTER is one of {letters}.\n"
)
BINARY = (
    "Assess the answer.\n\n# Input\nQuestion: how many?\nTruth: four\nPrediction: {response}\n\n"
    "# Strict Output format\n{labels}"
)
JUDGE = (
    "[Instruction]\nRate the answer. Explain, and then rate it on a scale of 1 to 10 by strictly following this "
    'format: "[[rating]]".\n\n[Question]\nHow many?\n\n[Answer]\n{response}\n'
)
PAIR = (
    "Compare the two. Explain, and then give your verdict in this format: "
    '"[[A]]" if assistant A is better, "[[B]]" if assistant B is better, and "[[C]]" for a tie.'
)
PROMETHEUS = (
    '###Task Description:\nWrite feedback, then the result: "(feedback) [RESULT] {range}"\n\n'
    "###The instruction to evaluate:\nHow many?\n\n###Response to evaluate:\n{response}\n\n###Feedback: "
)
LEADERS = {
    "ordered_models": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"model": {"type": "string"}, "rank": {"type": "number"}},
            "additionalProperties": False,
            "required": ["model", "rank"],
        },
    }
}
REASON_SCORE = {"reason": {"type": "string"}, "score": {"type": "number"}}
G_EVAL = (
    'Return a JSON object with two fields:\n- `"score"`: an integer between {range}.\n- `"reason"`: a sentence.\n\n'
    "Evaluation Steps:\nCompare.\n\nTest Case:\n{response}\n\nExample JSON:\n"
    '{{\n  "reason": "a sentence",\n  "score": 0\n}}\n\nJSON:\n'
)
RUBRIC = (
    "You grade an output by a rubric, with a JSON object of this structure: "
    "{reason: string, pass: boolean, score: number}"
    '\n\nExamples:\n\n<Output>Hi</Output>\n{"reason": "it greets", "pass": true, "score": 1.0}'
)
STRICT = (
    "Return a JSON with a `score` key that is STRICTLY EITHER 1 (it follows), OR 0 (it does not), and a reason.\n\n"
    "Evaluation Steps:\nCompare.\n\n{response}\n\nJSON:\n"
)
CONVBENCH = [
    {"role": "system", "content": "You compare two conversations about an image."},
    {"role": "user", "content": "I will give you two conversations."},
    {"role": "assistant", "content": "Sure, please provide them."},
    {
        "role": "user",
        "content": f"OK. Here are the image, the description and the responses.\nA: {RESPONSE}\n"
        "B: Five.\n\nThink, and finish your response with "
        '"Overall, Response X is better." where X is either A or B.',
    },
]
LAST = (
    f"OK. Here are the image and the response.\n{RESPONSE}\n\n"
    'Think, and finish your response with "Rating:X." where X is all a scale of 1 to 10.'
)


def rating_of_turn(form: str) -> list[dict[str, Any]]:
    asked = f"In the end, respond with {form} where X is a scale of 1 to 10. I will give it to you."
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "Sure."},
        {"role": "user", "content": LAST},
    ]


VISIT = (
    f"OK. Here is the image description and the two options.\nResponse A: {RESPONSE}\nResponse B: Five.\n\n"
    'Think, and finish your response with "Overall, Response X is better." where X is either A or B.'
)
EXTRACTION = [
    {
        "role": "system",
        "content": 'You are FinalAnswerExtractionGPT. Be short: only output "Final Answer: X" where X is A or B',
    },
    {"role": "user", "content": "I choose A."},
    {"role": "assistant", "content": "Final Answer: Response A"},
    {"role": "user", "content": f"{RESPONSE} Response B is right."},
]
FINAL_RATING = [
    {"role": "system", "content": 'You are FinalAnswerExtractionGPT. Be short: only output "Final Rating: X".'},
    {"role": "user", "content": RESPONSE},
]

FORMS = [
    Form("grade-ci", user(GRADE.format(response=RESPONSE, letters="CI"), temperature=0), grade("CI")),
    Form("grade-cpi", user(GRADE.format(response=RESPONSE, letters="CPI"), temperature=0), grade("CPI")),
    Form(
        "two-scores",
        user(
            "First output a single line containing only two values indicating the scores for Assistant 1 and 2.\n"
            f"[Assistant 1]\n{RESPONSE}\n[Assistant 2]\nFive.\n[System]\nPlease provide scores from 1 to 10.",
            max_tokens=1024,
        ),
        first_line_pair,
    ),
    Form(
        "two-scores-last",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "text",
                            "text": f"[Context]\nApples.\n[Assistant 1]\n{RESPONSE}\n[Assistant 2]\nFive.\n",
                        },
                        {"type": "text", "text": "Output a single line containing only two values: the scores."},
                    ],
                }
            ],
            "n": 1,
            "temperature": 0,
            "max_tokens": 2048,
        },
        first_line_pair,
    ),
    Form(
        "two-scores-last",
        user(
            f"[설명]\n사과.\n[어시스턴트 1]\n{RESPONSE}\n[어시스턴트 2]\nFive.\n"
            "[System]\n- `어시스턴트1_점수 어시스턴트2_점수` (예: `8 9`)\n- 설명\n\n"
        ),
        first_line_pair,
    ),
    Form("zero-one", user(BINARY.format(response=RESPONSE, labels="1 or 0"), max_tokens=1024), one_of("0", "1")),
    Form("yes-no", user(BINARY.format(response=RESPONSE, labels="Yes or No")), one_of("Yes", "No")),
    Form(
        "zero-one-only",
        user(f'Only return "1" or "0" with no additional text.\n\nQuestion: Which?\nSolution: {RESPONSE}'),
        one_of("0", "1"),
    ),
    Form(
        "yes-no-only",
        user(f'Only return "Yes" or "No" with no additional text.\n\nQuestion: Which?\nSolution: {RESPONSE}'),
        one_of("Yes", "No"),
    ),
    Form(
        "rubric-scores",
        user(
            f"Evaluate.\n\nQuestion: How many?\n\nResponse: {RESPONSE}\n\n"
            "Rubric:\n- accuracy: is it right\n- clarity: is it clear\n\n"
            "Provide a JSON response with scores for each rubric item.",
            response_format={"type": "json_object"},
            max_tokens=1024,
        ),
        rubric("accuracy", "clarity"),
    ),
    Form(
        "correctness-float",
        user(
            f"Just complete the last space of the correctness score.\n\n"
            f"Question | Ground truth | Prediction | Correctness\nHow many? | Four | {RESPONSE} | "
        ),
        share,
    ),
    Form(
        "mmdu-dictionary",
        user(
            "Explain. At the end: {'Dimension One': Score, 'Dimension Two': Score, ..., 'Overall Score': Score}.\n"
            f"[Question]\nHow many?\n[The Start of Assistant's Answer]\n{RESPONSE}",
            max_tokens=2048,
        ),
        dictionary,
    ),
    Form(
        "bracketed-rating",
        {
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": JUDGE.format(response=RESPONSE)},
            ],
            "n": 1,
            "temperature": 0,
            "max_tokens": 2048,
        },
        bracketed,
    ),
    Form(
        "bracketed-pair-of-ratings",
        user(f'Rate both as "[[rating_a,rating_b]]".\n\n[User Question]\nHow many?\n\n{RESPONSE}'),
        bracketed_pair,
    ),
    Form(
        "bracketed-choice",
        {
            "messages": [
                {"role": "system", "content": PAIR},
                {"role": "user", "content": f"[User Question]\nHow many?\n\n[A]\n{RESPONSE}\n\n[B]\nFive."},
            ],
            "n": 1,
            "temperature": 0,
            "max_tokens": 2048,
        },
        bracketed_choice,
    ),
    Form(
        "prometheus-absolute",
        {
            "messages": [
                {"role": "system", "content": "You are fair."},
                {
                    "role": "user",
                    "content": PROMETHEUS.format(response=RESPONSE, range="(an integer number between 1 and 5)"),
                },
            ],
            "temperature": 1.0,
            "top_p": 0.9,
            "max_tokens": 1024,
        },
        result("1-5"),
    ),
    Form("prometheus-relative", user(PROMETHEUS.format(response=RESPONSE, range="(A or B)")), result("AB")),
    Form(
        "best-identifier",
        user(
            f'Select a model.\n\n## Instruction\n\n{{"model_identifier": "m", "output": """{RESPONSE}"""}}\n\n'
            "Answer with one "
            "of the following model identifiers and nothing else (no quotes): m or M.\n\n## Best Model Identifier",
            max_tokens=1,
            logprobs=True,
            top_logprobs=5,
            temperature=1,
        ),
        one_of("m", "M"),
    ),
    Form(
        "best-identifier-last",
        user(
            f'Select a model.\n\n## Instruction\n\n{{"model_identifier": "m", "output": """{RESPONSE}"""}}\n\n'
            '## Your answer: "Concise explanation" followed by "Which is best, m or M?"',
            max_tokens=300,
            logprobs=True,
            top_logprobs=5,
            temperature=1,
        ),
        last_identifier,
    ),
    Form(
        "ranking-list",
        user(
            f'Here is the prompt:\n{{"model": "model_1", "answer": """{RESPONSE}"""}}\n\n'
            "Then return a list of the model names and ranks:\n[{'model': <model-name>, 'rank': <model-rank>}]\n"
            "Please provide the ranking that the majority of humans would give.\n",
            max_tokens=100,
        ),
        python_ranks,
    ),
    Form(
        "leaderboard-call",
        user(f"Rank m: {RESPONSE} and M: Five.", max_tokens=100, **tool("make_partial_leaderboard", LEADERS)),
        ranking,
    ),
    Form(
        "best-output-call",
        user(
            f"Which is best? (a) {RESPONSE} (b) Five.",
            max_tokens=50,
            **tool("print_best_model", {"best_output": {"type": "string"}}),
        ),
        best_output,
    ),
    Form("response-is-better", {"messages": CONVBENCH, "max_tokens": 512}, better),
    Form("response-is-better", user(VISIT), better),
    *(
        Form("rating-of-turn", {"messages": rating_of_turn(form), "max_tokens": 512}, rating)
        for form in ('"Rating:X."', '"Rating:X,"', '"Rating:X"', '"Rating:{X}."')
    ),
    Form("rating-of-turn-alone", user(LAST, max_tokens=512), rating),
    Form("final-answer", {"messages": EXTRACTION, "max_tokens": 512}, extracted),
    Form("final-rating", {"messages": FINAL_RATING, "max_tokens": 512}, final_rating),
    Form("score-and-reason", user(G_EVAL.format(response=RESPONSE, range="0 and 10")), score_and_reason(0, 10)),
    Form(
        "score-and-reason",
        user(G_EVAL.format(response=RESPONSE, range="2 and 5"), **schema(REASON_SCORE)),
        score_and_reason(2, 5),
    ),
    Form("zero-one-and-reason", user(STRICT.format(response=RESPONSE)), score_and_reason(0, 1)),
    Form("zero-one-and-reason", user(STRICT.format(response=RESPONSE), **schema(REASON_SCORE)), score_and_reason(0, 1)),
    Form(
        "pass-and-score",
        {
            "messages": [
                {"role": "system", "content": RUBRIC},
                {"role": "user", "content": f"<Output>{RESPONSE}</Output><Rubric>It counts.</Rubric>"},
            ]
        },
        passed,
    ),
    Form(
        "evaluation-steps",
        user(
            f'Evaluation Criteria: {RESPONSE}\n\n**\nReturn JSON:\n{{\n  "steps": <list_of_strings>\n}}\n**\n\nJSON:\n'
        ),
        any_schema,
    ),
    Form(
        "json-schema",
        user("List steps.", **schema({"steps": {"type": "array", "items": {"type": "string"}}})),
        any_schema,
    ),
    Form("tool-call", user("Take a note.", **tool("note", {"note": {"type": "string"}})), any_call),
]
