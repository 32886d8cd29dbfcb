# ruff: noqa: E501
"""Requests whose form stands only in their words, and requests that ask for no verdict at all. All wording is ours.

`ASKED` are what home-made judges and other frameworks send, each with what its client reads from the reply;
`PLAIN` are chat, coding, summaries, extraction and questions about judging: none of them may be constrained.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

OBJECT = {"response_format": {"type": "json_object"}}


class Asked(NamedTuple):
    """A request by name, the kind of form that its words ask for, and how its client reads the reply."""

    name: str
    kind: str
    request: dict[str, Any]
    parse: Callable[[str], Any]


def user(content: str, system: Any = None, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": [*messages, {"role": "user", "content": content}], **fields}


def keys(**types: Any) -> Callable[[str], Any]:
    """Reads a JSON object with values of these types, or among these values or in this range."""

    def fits(value: Any, wanted: Any) -> bool:
        if isinstance(wanted, range):
            return isinstance(value, int | float) and wanted.start <= value < wanted.stop
        return value in wanted if isinstance(wanted, list) else isinstance(value, wanted)

    def parse(said: str) -> Any:
        reply = json.loads(said)
        return reply if reply.keys() == types.keys() and all(fits(reply[k], v) for k, v in types.items()) else None

    return parse


def match(pattern: str) -> Callable[[str], Any]:
    return lambda said: re.fullmatch(pattern, said, re.DOTALL)


def last(pattern: str) -> Callable[[str], Any]:
    return lambda said: len(re.findall(pattern, said)) == 1 or None


SCHEMA = json.dumps(
    {
        "title": "Faithful",
        "type": "object",
        "properties": {"reason": {"type": "string"}, "verdict": {"type": "integer", "description": "0 or 1"}},
        "required": ["reason", "verdict"],
    }
)
RESPONSE = "Response: The table holds four apples.\n"
STEPS = "Assess the faithfulness of each statement to the context.\n"

ASKED = [
    Asked(
        "schema",
        "json",
        user(f"{STEPS}Return your output in a JSON format that follows this schema:\n{SCHEMA}\nNow: {RESPONSE}"),
        keys(reason=str, verdict=[0, 1]),
    ),
    Asked(
        "schema in the system's message",
        "json",
        user(
            f"Judge this. {RESPONSE}",
            f"You are a judge. Answer with an object that matches the following json_schema:\n\n{SCHEMA}",
            **OBJECT,
        ),
        keys(reason=str, verdict=[0, 1]),
    ),
    Asked(
        "schema beside an example of one",
        "json",
        user(
            "You grade answers. Give your output as a JSON instance that conforms to the JSON schema below.\n\nFor example the schema "
            '{"properties": {"foo": {"type": "string"}}} is met by {"foo": "bar"}.\n\nHere is the output schema:\n```\n'
            f"{SCHEMA}\n```\n{RESPONSE}"
        ),
        keys(reason=str, verdict=[0, 1]),
    ),
    Asked(
        "alternatives in a text",
        "json",
        user(
            f"Say whether the claim is supported; you must determine if it is. {RESPONSE}\nReply using only the following json format, without markdown.\n"
            '{\n  "rationale": "Why. Think first.",\n  "result": "yes|no"\n}'
        ),
        keys(rationale=str, result=["yes", "no"]),
    ),
    Asked(
        "placeholders with a range",
        "json",
        user(
            f'Rate the answer. {RESPONSE}Respond in JSON: {{"score": <integer from 1 to 5>, "explanation": "<why>"}}',
            **OBJECT,
        ),
        keys(score=range(1, 6), explanation=str),
    ),
    Asked(
        "range in the words",
        "json",
        user(
            f'Rate the helpfulness of the answer on a scale of 0 to 10. {RESPONSE}Output JSON only, like {{"score": 7, "reason": "..."}}'
        ),
        keys(score=range(11), reason=str),
    ),
    Asked(
        "examples that differ",
        "json",
        user(
            f'Check the rubric item against the conversation. {RESPONSE}Return a json object with the fields "explanation" and "criteria_met".\n'
            '```json\n{\n  "explanation": "It says so.",\n  "criteria_met": false\n}\n```\nReturn just the json object, for instance:\n'
            '```json\n{\n  "explanation": "All of it.",\n  "criteria_met": true\n}\n```'
        ),
        keys(explanation=str, criteria_met=bool),
    ),
    Asked(
        "a list of verdicts",
        "json",
        user(
            f"For each statement judge whether it is relevant. {RESPONSE}Generate a JSON object in the following form:\n"
            '{"verdicts": [{"verdict": "yes", "reason": "because"}, {"verdict": "no"}]}'
        ),
        lambda said: [one["verdict"] for one in json.loads(said)["verdicts"]] or True,
    ),
    Asked(
        "fields in a list",
        "json",
        user(
            f"Grade the answer. {RESPONSE}You must format your rating as a JSON object with the following fields:\n\n"
            "- result (Literal['yes', 'no']): whether it is correct\n- rationale (str): why"
        ),
        keys(result=["yes", "no"], rationale=str),
    ),
    Asked(
        "two lines",
        "lines",
        user(
            "Score the answer.\n- Score 1: wrong\n- Score 3: partly right\n- Score 5: right\n"
            f"{RESPONSE}You must return the following fields in two lines, one below the other:\n"
            "score: Your numerical score for the answer\njustification: Your reasons for the score\n\nAdd no other lines."
        ),
        match(r"score: [1-5]\njustification: \S.*"),
    ),
    Asked(
        "bracketed choice of five",
        "labels",
        user(
            f"A: {RESPONSE}B: Five.",
            "You judge two answers. Think, and then give one of: [[A>>B]] (much better), [[A>B]], [[A=B]], [[B>A]] or [[B>>A]] as verdict.",
        ),
        last(r"\[\[(?:A>>B|A>B|A=B|B>A|B>>A)\]\]"),
    ),
    Asked(
        "closing line with a rating in brackets",
        "line",
        user(
            f"Please judge the response below.\n{RESPONSE}Explain your rating, and end with it in double brackets, "
            'for example "Rating: [[5]]", on a scale of 1 to 10.'
        ),
        last(r"\[\[(?:10|[1-9])\]\]"),
    ),
    Asked(
        "two lines asked for twice",
        "lines",
        user(
            "You must return the following fields in two lines:\ngrade: pass/fail\nreason: why\n\nJudge the answer.\n"
            f"{RESPONSE}You must return the following fields in two lines:\ngrade: pass/fail\nreason: why\n"
        ),
        match(r"grade: (?:pass|fail)\nreason: \S.*"),
    ),
    Asked(
        "values in words",
        "json",
        user(
            "Rate the answer. Respond with a JSON object that matches this schema:\n"
            '{"properties": {"rating": {"type": "integer", "description": "one of 0, 2, or 4"}, "ok": {"type": "integer", "description": "binary (0/1)"}, '
            '"said": {"type": "integer", "description": "1 if it is said, 0 otherwise"}}, "required": ["rating", "ok", "said"]}'
        ),
        keys(rating=[0, 2, 4], ok=[0, 1], said=[0, 1]),
    ),
    Asked(
        "alternatives in a sentence",
        "json",
        user(
            f"Classify the text: is it safe? {RESPONSE}The result must be written using only the following json format:\n"
            '{"rationale": "why", "result": "The word \'yes\' if it is safe, or \'no\' if it is not."}\nEvaluate it now.'
        ),
        keys(rationale=str, result=["yes", "no"]),
    ),
    Asked(
        "a schema without a word of judging",
        "json",
        user(
            f"Analyse each statement.\nPlease return the output in a JSON format that complies with the following schema:\n{SCHEMA}\n{RESPONSE}"
        ),
        keys(reason=str, verdict=[0, 1]),
    ),
    Asked(
        "letters told by name",
        "json",
        user(
            f"Compare the answer with the expert's to grade it. (A) less (B) more (C) the same\n{RESPONSE}"
            'Respond only with a JSON object in this format:\n{\n  "category": "[LETTER]",\n  "reason": "[WHY]"\n}\n'
            '- The "category" must be a single letter A, B, or C.'
        ),
        keys(category=["A", "B", "C"], reason=str),
    ),
    Asked(
        "one letter",
        "labels",
        user(
            f'Grade the predicted answer.\n{RESPONSE}A: right\nB: wrong\nC: no attempt\n\nJust return the letters "A", "B", or "C", with no text around it.'
        ),
        match("[ABC]"),
    ),
    Asked(
        "one of the options",
        "labels",
        user(
            "Match an answer with the options of a question. Output a single uppercase character in A, B, C, D (if they are valid options), and Z, "
            f"if none is meant.\nOptions: A. four B. five C. six D. seven\nAnswer: {RESPONSE}Your output: "
        ),
        match("[ABCDZ]"),
    ),
    Asked(
        "one word",
        "labels",
        user(
            "You match an answer with two options, to grade it. Output a single word among the following 3 options: Yes, No, Unknown.\n"
            f"Example: it is so. Output: Yes\n{RESPONSE}Your output: "
        ),
        match("Yes|No|Unknown"),
    ),
    Asked(
        "quoted words",
        "labels",
        user(f"Evaluate the submission. {RESPONSE}Answer with only 'correct' or 'incorrect'."),
        match("correct|incorrect"),
    ),
    Asked(
        "a letter on a line of its own, after reasons",
        "labels",
        user(
            f"Assess the answer by a criterion: it is short. {RESPONSE}Is it met? First reason about it, step by step. "
            'Then print only the single character "Y" or "N" (without quotes) on its own line, and repeat it at the end.'
        ),
        match(r".*\n\n[YN]"),
    ),
    Asked(
        "a single word of two",
        "labels",
        user(
            f"Compare the answer with the text it is based on. {RESPONSE}Evaluate it. Your response must be a single word, "
            'either "true to it" or "invented".'
        ),
        match("true to it|invented"),
    ),
    Asked(
        "names with parentheses",
        "labels",
        user(f"Judge two outputs. (a) {RESPONSE}(b) Five.\nAnswer using ONLY 'Output (a)' or 'Output (b)'."),
        match(r"Output \([ab]\)"),
    ),
    Asked(
        "only a number",
        "number",
        user(
            f"PROMPT: How many apples?\n{RESPONSE}",
            "You grade how relevant a response is. Reply only as a number from 0 to 3.",
        ),
        match("[0-3]"),
    ),
    Asked(
        "only a rating, its scale elsewhere",
        "number",
        user(f"Rate the answer on an integer scale from 1 to 10. {RESPONSE}Return just the integer rating."),
        match("10|[1-9]"),
    ),
    Asked(
        "keys in a sentence",
        "json",
        user(
            f"Grade the answer. {RESPONSE}Respond with a JSON object with the keys 'why' (string), 'correct' ('yes' or 'no') "
            "and 'confidence' (0-100)."
        ),
        keys(why=str, correct=["yes", "no"], confidence=range(101)),
    ),
    Asked(
        "a share of one and nothing else",
        "number",
        user(f"Rate how faithful the answer is. {RESPONSE}Respond with only a score between 0 and 1."),
        lambda said: 0 <= float(said) <= 1 or None,
    ),
    Asked(
        "a last line with a share of one",
        "line",
        user(f'Evaluate the answer. {RESPONSE}Explain, and conclude with "Score: <float between 0.0 and 1.0>".'),
        last(r"\nScore: [01](?:\.[0-9]{1,2})?"),
    ),
    Asked(
        "labels with one for neither",
        "labels",
        user(f"Judge two answers. A: {RESPONSE}B: Five.\nOutput only A, B, or neither."),
        match("A|B|neither"),
    ),
    Asked(
        "a template that ends with the verdict",
        "line",
        user(
            f"You grade from 0 to 3. {RESPONSE}Evaluate by this template:\n\nCriteria: <what counts>\nEvidence: <why>\n"
            "Score: <the score>\n\nUse all of it."
        ),
        last(r"\nScore: [0-3]"),
    ),
    Asked(
        "two last lines to choose from",
        "line",
        user(f"Judge the answer. {RESPONSE}Explain. Your last line must be 'VERDICT: PASS' or 'VERDICT: FAIL'."),
        last(r"\nVERDICT: (?:PASS|FAIL)"),
    ),
    Asked(
        "last line",
        "line",
        user(
            f'Evaluate the answer step by step. {RESPONSE}End with a line "Final score: X" where X is a number from 1 to 5.'
        ),
        last(r"\nFinal score: [1-5]"),
    ),
    Asked(
        "last line with its options",
        "line",
        user(f'Assess the answer. {RESPONSE}Explain, and finish with "Verdict: [PASS/FAIL]".'),
        last(r"\nVerdict: (?:PASS|FAIL)"),
    ),
]

DSPY = "All text is laid out in marked fields.\n\nYour objective: judge whether the answer is faithful to its context."
END = "`[[ ## completed ## ]]`."


def marked(*names: str) -> Callable[[str], Any]:
    """Reads marked fields: all of these, in this order, each with a value."""

    def parse(said: str) -> Any:
        found = dict(re.findall(r"\[\[ ## (\w+) ## \]\]\n(.*?)(?=\n\n\[\[ ## |\Z)", said, re.DOTALL))
        return found if [*found] == [*names] or [*found] == [*names, "completed"] else None

    return parse


def tag(name: str, values: str) -> Callable[[str], Any]:
    """Reads the only text in tags of this name."""
    return lambda said: (
        re.fullmatch(values, one[0]) if len(one := re.findall(rf"<{name}>(.*?)</{name}>", said, re.S)) == 1 else None
    )


ASKED += [
    Asked(
        "a score in tags",
        "tag",
        user(
            f"Rate the answer on a scale of 1 to 5. {RESPONSE}Explain, and then put your score inside <score></score> tags."
        ),
        tag("score", "[1-5]"),
    ),
    Asked(
        "an example in tags",
        "tag",
        user(
            f"Evaluate the model's response by the rubric.\nScore 0: wrong\nScore 1: partly\nScore 2: right\n{RESPONSE}"
            "Reply in this form:\n<feedback>\nwhat you think of it\n</feedback>\n<score>\n2\n</score>"
        ),
        tag("score", "[0-2]"),
    ),
    Asked(
        "letters in tags",
        "tag",
        user(
            f"Which of the two answers is better?\nA: {RESPONSE}B: Five.\nThink, and end with <verdict>A</verdict> or <verdict>B</verdict>."
        ),
        tag("verdict", "[AB]"),
    ),
    Asked(
        "numbered tags",
        "tag",
        user(
            f"Your task is to rate the coherence of the answer.\n[Coherence: 1] (none)\n[Coherence: 5] (full)\n{RESPONSE}Scores go from 1 to 5.\n"
            "Please provide your answers between the tags: <S0>your thoughts</S0>, <S1>your explanation</S1>, <S2>your score</S2>."
        ),
        tag("S2", "[1-5]"),
    ),
    Asked(
        "words in tags",
        "tag",
        user(
            f"Assess the submission. {RESPONSE}Reason in <thinking> tags, and then output only 'correct' or 'incorrect' in <result> tags."
        ),
        tag("result", "correct|incorrect"),
    ),
    Asked(
        "a score in a box",
        "boxed",
        user(
            f"Grade the solution from 0 to 7. {RESPONSE}Reason step by step, and put your final score in \\boxed{{}}."
        ),
        last(r"\\boxed\{[0-7]\}"),
    ),
    Asked(
        "a letter in a box",
        "boxed",
        user(
            f"Compare the two responses. A: {RESPONSE}B: Five.\nGive your final verdict as \\boxed{{A}} or \\boxed{{B}}."
        ),
        last(r"\\boxed\{[AB]\}"),
    ),
    Asked(
        "marked fields",
        "fields",
        user(
            f"[[ ## answer ## ]]\n{RESPONSE}\nRespond with the corresponding output fields, starting with the field `[[ ## reasoning ## ]]`, "
            f"then `[[ ## score ## ]]` (must be formatted as a valid Python int), and then ending with the marker for {END}",
            f"{DSPY} Score it from 1 to 5.",
        ),
        marked("reasoning", "score"),
    ),
    Asked(
        "marked fields of other types",
        "fields",
        user(
            f"[[ ## answer ## ]]\n{RESPONSE}\nRespond with the corresponding output fields, starting with the field `[[ ## reasoning ## ]]`, "
            "then `[[ ## faithful ## ]]` (must be formatted as a valid Python bool), then `[[ ## label ## ]]` (must be formatted as a valid "
            f"Python Literal['good', 'bad']), and then ending with the marker for {END}",
            DSPY,
        )
        | {"max_tokens": 400},  # in 200 the markers alone have room, and what is not a verdict is left out
        marked("reasoning", "faithful", "label"),
    ),
    Asked(
        "a marked truth value",
        "fields",
        user(
            f"[[ ## answer ## ]]\n{RESPONSE}\nRespond with the corresponding output fields, starting with the field `[[ ## reasoning ## ]]`, "
            f"then `[[ ## faithful ## ]]` (must be formatted as a valid Python bool), and then ending with the marker for {END}",
            DSPY,
        )
        | {"max_tokens": 400},
        marked("reasoning", "faithful"),
    ),
    Asked(
        "alternatives in a tag",
        "tag",
        user(f"Evaluate the answer. {RESPONSE}Explain, and end with <verdict>yes, no or unclear</verdict>."),
        tag("verdict", "yes|no|unclear"),
    ),
    Asked(
        "one marked field",
        "fields",
        user(
            f"[[ ## answer ## ]]\n{RESPONSE}\nRespond with the corresponding output fields, starting with the field `[[ ## grade ## ]]` "
            f"(must be formatted as a valid Python float), and then ending with the marker for {END}",
            f"{DSPY} Give a grade from 0.0 to 1.0.",
        ),
        marked("grade"),
    ),
    Asked(
        "paragraphs with a percentage at the end",
        "lines",
        user(
            f"Judge whether the response agrees with the correct answer. {RESPONSE}\nYour judgement must be in the format and criteria below:\n\n"
            "final_answer: what the response comes to.\n\nreasoning: why it agrees or does not.\n\ncorrect: say 'yes' if it agrees, 'no' if it does "
            "not.\n\nconfidence: the response's own confidence between 0|%| and 100|%|. 100 if there is none."
        ),
        lambda said: (
            re.search(r"correct: (yes|no)\s+confidence: (\d{1,3})%?\Z", said) if said.count("correct: ") == 1 else None
        ),
    ),
    Asked(
        "lines in bold",
        "lines",
        user(
            f"You judge the quality of an AI assistant's response.\nScore 1: bad\nScore 5: good\n{RESPONSE}"
            "Your reply should strictly follow this format:\n**Reasoning:** <your feedback>\n\n**Result:** <1-5>\n\nThe data is above."
        ),
        last(r"\*\*Result:\*\* [1-5]"),
    ),
    Asked(
        "a number only, at the end",
        "number",
        user(
            f"You rate one summary on one metric.\nCoherence (1-5) - how well the sentences fit.\nSummary:\n{RESPONSE}\nEvaluation Form (scores ONLY):\n\n- Coherence:"
        ),
        match("[1-5]"),
    ),
    Asked(
        "a range and ONLY at the end",
        "number",
        user(f"Evaluate the response for fluency. {RESPONSE}Score (1-5) ONLY:"),
        match("[1-5]"),
    ),
    Asked(
        "a translation's score at the end",
        "number",
        user(
            "Score the following translation from English to German on a continuous scale from 0 to 100, where zero is no meaning kept.\n\n"
            'English source: "Four apples."\nGerman translation: "Vier Äpfel."\nScore: '
        ),
        match("100|[1-9]?[0-9]"),
    ),
    Asked(
        "a grade of two words at the end of lines",
        "labels",
        user(
            "You are a teacher grading a quiz. You score the student's answer as either CORRECT or INCORRECT.\n\nExample format:\nQUESTION: question here\n"
            f"STUDENT ANSWER: the student's\nTRUE ANSWER: the true one\nGRADE: CORRECT or INCORRECT here\n\nBegin!\n\nQUESTION: how many?\n{RESPONSE}GRADE:"
        ),
        match("CORRECT|INCORRECT"),
    ),
    Asked(
        "an explanation and a label",
        "lines",
        user(
            f"You compare an answer to a question's reference, to determine if it is right. {RESPONSE}Write out step by step an EXPLANATION. Use this response as an example:\n************\n"
            'EXPLANATION: why it is "right" or "wrong"\nLABEL: "right" or "wrong"\n************\n'
        ),
        last(r"LABEL: (?:right|wrong)"),
    ),
    Asked(
        "a score on the first line, reasons after it",
        "number",
        user(
            f"Evaluate the answer. {RESPONSE}Output one score between 1 and 5 for it. You must return your reply in a line with only the score. "
            "On a separate line give your reasoning for the score as well."
        ),
        lambda said: 1 <= float(said.split("\n")[0]) <= 5 or None,
    ),
    Asked(
        "letters with signs",
        "json",
        user(
            f"Compare two responses by a checklist. {RESPONSE}Output your analysis in JSON:\n"
            '{\n"analysis of A": "[what is good]",\n"reason of A>B": "[why]",\n"choice": "[A++ or A+ or A=B or B+ or B++]"\n}'
        ),
        lambda said: json.loads(said)["choice"] in ("A++", "A+", "A=B", "B+", "B++") or None,
    ),
    Asked(
        "a range with a tilde",
        "json",
        user(
            f"Evaluate the response on a checklist. {RESPONSE}Please output your evaluation in the JSON format:\n"
            '{\n"strengths": "[analysis]",\n"weaknesses": "[analysis]",\n"score": "[1~10]"\n}'
        ),
        lambda said: 1 <= int(json.loads(said)["score"]) <= 10 or None,
    ),
    Asked(
        "scores of several criteria, each with its reason",
        "json",
        user(
            f"Evaluate the response on a scale of 1 to 5 for each criterion. {RESPONSE}Generate a JSON object with this structure:\n"
            '{\n"accuracy": {"score": 0, "explanation": "why"},\n"clarity": {"score": 0, "explanation": "why"}\n}'
        ),
        lambda said: all(1 <= one["score"] <= 5 for one in json.loads(said).values()) or None,
    ),
]

_CHAT = """\
Hello, how are you today?
What is the capital of France?
Answer yes or no: is Paris the capital of France?
Tell me a joke about judges and lawyers.
Write a poem about a score of two goals to one.
Rate my outfit: blue jeans and a green jacket.
How would you rate the film Alien on a scale of 1 to 10?
What is the best way to grade eggs by size?
Explain how the Elo rating works.
Who won the match between the two teams in 1998, and what was the score?
Translate "The judge gave her verdict" into German.
Give me five tips to score higher in IELTS.
Which is better for a beginner, the guitar or the piano?
What does the A grade mean in the British school system?
I feel sad today. Can you only listen and not judge me?
Describe the criteria by which universities assess applicants.
Only answer in French: what is the weather like in Lyon in May?
Summarise the plot of Hamlet in a single sentence.
Is the answer to life really 42?
Suggest a name for my cat. Just one word please.
Compare Python and Go for a web server. Which one would you choose?
What are the pros and cons of electric cars?
Plan a three day trip to Rome with a budget of 300 to 500 euros.
My teacher gave me a B for this essay and I think it deserves an A. What should I do?
Can you evaluate the integral of x squared from 0 to 1?
Write a short story that ends with the words "Final verdict: guilty".
Please rewrite this in a friendlier tone: you must return the books by Friday.
Continue the list: red, green, blue
Give me the recipe for pancakes as a list of steps.
Play twenty questions with me. You answer only yes or no until I guess the animal."""
_CODE = """\
Write a Python function that returns a JSON object like {"score": 3, "reason": "x"} for a quiz.
Write a function grade(points) that returns "A", "B" or "C" and nothing else.
My API should return the following JSON: {"verdict": "pass", "score": 0.9}. Write the Flask endpoint for it.
Evaluate this code and tell me where it is slow: for i in range(10): print(i)
Review my pull request: the function rate() returns only 0 or 1.
Generate a JSON schema for a rating with a score and a comment.
Write a SQL query that selects the average score per grade.
What does this regex match: GRADE: ([ABC])
Create a TypeScript type for {"rating": 5, "label": "good"}.
Write a unit test that asserts that judge() returns {"pass": true}.
Parse this JSON and print the score: {"score": 12, "name": "Ann"}
Explain this JSON: {"verdict": "guilty", "score": 9}
Convert this dictionary to YAML: {"grade": "A", "score": 95}
Write a script that reads scores from 1 to 10 and prints a histogram.
Here is our schema: {"type": "object", "properties": {"score": {"type": "integer"}}}. Is it valid?
Implement the class Judge with a method evaluate that returns one of "yes", "no", "maybe".
Write a program which prints only "yes" or "no" depending on whether the input is a prime number.
Write an evaluation harness in Python whose judge prompt ends with "Score: X" where X is from 1 to 5.
How do I make GPT return only "A" or "B" as a verdict?
Write a prompt for a judge that grades answers and replies with [[A]] or [[B]].
Generate test data that conforms to the JSON schema below: {"type": "object", "properties": {"name": {"type": "string"}}}
Which of my rows violate this schema? {"type": "object", "properties": {"score": {"type": "integer"}}}
Give me three valid instances of the schema {"properties": {"verdict": {"type": "string"}}}"""
_TEXT = """\
Summarise the following review in two sentences: The film scores 8 out of 10. The critic's verdict is that it is worth it.
Summarise: The judges rated the dishes from 1 to 10. The winner was Ann, with a score of 9.
Extract all names and places from the text as JSON: {"people": [], "places": []}. Text: Ann went to Rome.
Write a summary of this court ruling and its criteria: the court found for the plaintiff.
List the action items from these minutes as bullet points: Bob will grade the papers by Friday.
Shorten this text: The assessment of the two responses took three weeks, and both were rated poor.
Correct the grammar: He have score two goals.
Turn these notes into an e-mail: rating meeting moved, bring the rubric, score sheets by Monday.
What is the tone of this message? "Your evaluation is due. Please return only signed forms."
Write minutes: we discussed the rubric (1-5) and agreed that each grader ends with a short comment.
Paraphrase: "Answer only yes or no," said the judge.
Explain this paragraph to a child: the jury must determine whether the claim is supported.
Draft a rubric for grading essays from 1 to 5, with a line for each score.
Write three questions for an exam, each with the options A, B, C and D, and the criteria for grading.
Give feedback on my essay about the verdict in the trial of Socrates.
Describe the format of our report: it has a score, a reason and a table."""
_CLOSE = r"""Rate limits: our API allows 1 to 10 requests per second. Respond with only the number of requests I can send in a minute if I use half.
What is the score if a team wins 3 games of 2 points each? Answer with only the number.
How old was Newton when he died? Respond only as a number.
Convert 5 miles to km. Reply with just a number between 1 and 10.
I am thinking of grading on a curve. Give me a single integer between 1 and 100 as a random seed and nothing else.
Translate to German, output only the translation: The rating is between 1 and 5.
Our survey asks people to rate us from 1 to 5. Write the invitation. Output only the text.
Is my code supported by the document API? Answer with either YES or NO.
Write HTML with <score> tags: put the score of the match inside <score> tags.
Put your essay inside <essay> tags and a title inside <title> tags. The essay is on how judges assess evidence.
Wrap the translated text inside <result></result> tags: The assessor graded the eggs.
Write a dialogue in which a teacher says 'Grade: A' or 'Grade: B' in the last line.
The last line of my poem must be 'Verdict: love' or 'Verdict: hate'. Write the poem about a jury.
Return JSON with keys "name" and "age" from this text. The assessment says Ann is 30.
Return a JSON object with keys 'title' (string), 'score' (number) and 'year' for the films Alien and Heat.
Extract the review's rating as JSON with the keys "rating" and "author". Review: 'Five stars', says Tom.
Generate five multiple choice questions with options A, B, C, D and mark the correct answer with its letter only.
Pick a card: return only one of hearts, spades, clubs.
Write a grading prompt that says: First, write out your reasoning. Then print only a single choice from "A" or "B".
Which city is bigger, (A) Rome or (B) Milan? Think step by step, then answer with only A or B.
Solve the problem step by step and put the final answer in \boxed{}. A rater gives scores 1 to 5; how many sums of two are even?
Play the judge in a mock trial. My plea is not guilty. Respond in character.
Should I use "grade" or "mark" in British English? Answer with one word only.
Respond with either "yes" or "no": do judges wear wigs in France?
Give me a number from 1 to 10.
You are a calculator. Only output numbers. What is 3 to 4 times the score of 20?
Summarize the following prompt: 'You are a judge. Respond only as a number from 0 to 3.'
Write unit tests for a grader which outputs a single integer between 1 and 5 and nothing else.
Classify the animals into mammals and birds: bat, hen, dog. Return a JSON object with a list for each.
Score this melody for four voices. Output only ABC notation.
Evaluate 17 * 23. Output only the number.
Evaluate the polynomial x^2 + 1 at x = 2. Return only the number.
Compute the average rating of these reviews: 3, 4, 5. Reply with only the number.
Our KPI is a satisfaction score from 0 to 100. What was last year's industry average? Just the number, please.
Assess the damage: the river rose from 1 to 5 metres. Write a news report of 100 words and nothing else.
What are the criteria for a grade 5 hurricane? Answer in one line with only the wind speed.
Return JSON like {"title": "Alien", "score": 8.5} for the films Alien and Heat.
Generate sample data: return a JSON object like {"player": "Ann", "score": 12}.
From this text, return JSON like {"product": "x", "rating": 4.5, "price": 10}. Text: The Acme phone got a rating of 4.5 and costs 10.
Who won? Answer in the format {"winner": "team", "score": "2:1"}. The match report: Ann beat Bob by 2 to 1.
Give me a quiz question as JSON: {"question": "...", "options": ["a", "b"], "correct": "a"}
Make a flashcard in this format: {"front": "...", "back": "...", "grade": 5} for pupils of grade 5.
List three restaurants in Rome. Use the format {"name": "...", "rating": 4.5} for each of them.
Translate the following JSON to French, and return the JSON object only: {"verdict": "guilty", "reason": "he was there"}
Fix this JSON and reply with the fixed object only: {"score": 3, "reason": "x",}
Add a field "date" to this object and return the object: {"score": 3, "pass": true}
What would our grader return for this object? {"pass": true, "score": 1}
Recommend a laptop. Respond in JSON: {"choice": "name", "reason": "why"}
Which of the two phones is better for photos, A or B? Reply in JSON as {"better": "A or B", "why": "..."}.
Pick a winner of the raffle among Ann, Bob and Cem. Output JSON: {"winner": "name"}
Help me decide: pizza or pasta? Return {"decision": "pizza|pasta"}
Parse the game log and output {"home_score": 1, "away_score": 2} in JSON. Log: goal home; goal away; goal away.
Extract entities. Return a JSON object: {"label": "PERSON", "text": "Ann"} for each. Text: Ann judged the contest.
Convert the review into JSON: {"rating": 5, "summary": "..."}. Review: Wonderful, five stars.
Simulate the sensor: respond with JSON such as {"temperature": 20, "result": "ok"}
You are an NPC in a game. Reply in JSON: {"say": "...", "action": "attack|flee", "score": 0-10}. The player enters the room.
Roll a die and respond in JSON: {"result": 1-6}
Answer the trivia question in JSON: {"answer": "...", "correct": true}. Question: capital of France?
Translate. Output JSON {"result": "<translation>"}: Good morning
Predict tomorrow's weather: return JSON {"result": "sunny|rainy", "score": 0.5}.
Write a short story about a contest. Return it in the following format: {"title": "...", "story": "...", "winner": "..."}
I'm a figure skating judge. Rate my fairness? Just kidding. Tell me about the IJS scoring system from 0 to 10.
My boss evaluates me on a scale from 1 to 5. Write only the e-mail in which I ask her for a better rating.
Grade the slope of this road: it rises 5 metres over 100. Answer with only the number.
How do I score from 1 to 5 in darts? Reply with only the best number to aim at.
Which rating agency is better, S&P or Moody's? Answer with one word only.
Please evaluate whether I should quit: yes or no only, please.
Decide for me with only "yes" or "no": should I buy the rated tyres?
Translate to English: 'Bewerten Sie die Antwort von 1 bis 5. Antworten Sie nur mit der Zahl.'
Proofread: 'Evaluate the answer. Respond with only a number from 1 to 5.'
What does the prompt 'Rate the response from 1 to 10. Return only the number.' do?
Improve this prompt: You are a judge. Output [[A]], [[B]] or [[C]].
Repeat after me: GRADE: C
I graded 30 essays from 1 to 6. Give only the mean of 2, 3, 4.
Give an example of a JSON verdict with the keys 'score' (1-5) and 'reason' (string).
Please give me an example output of a judge: {"score": 4, "reason": "..."}
Write three test cases for our grading prompt, which says: Respond in JSON: {"score": 1-5, "reason": "..."}
Document this endpoint. It returns {"verdict": "pass|fail", "score": 0-1}.
We use an LLM as a judge. It must return {"score": 1-5}. How do I make it more reliable?
You are a critic. Write a film review of Alien and end with "Rating: X/10".
Write a newspaper column that rates three cafes; end with 'Verdict: ...'.
Create a scorecard for a job interview. The last line should be 'Total: X' where X is a number from 1 to 100.
Write a fictional court ruling that ends with 'Judgment: guilty' or 'Judgment: not guilty'.
Act as a spelling bee judge. Start by giving me a word. Only one word.
Let's play: I am the contestant and you rate my jokes later. First, tell me if you understand: answer only yes or no.
Assess my French level. Ask me one question at a time, and reply with only the question.
Evaluate this integral and return only one of sin, cos or tan: the derivative of sine.
Given the criteria price and weight, which bike is better: A, B or C? A costs 5. Explain in detail.
Classify this e-mail as spam or ham. E-mail: You won!
Label the sentiment of the tweet as positive, negative or neutral. Tweet: I love it.
Is the following statement true? The moon is made of cheese.
Summarise the rubric: score 1: bad, score 2: good. Return only the summary."""
"""Close to a judge's request: numbers, objects and lines that are asked for, of what is not judged."""

_LAID_OUT = r"""What does <score>4</score> mean in this log of our grader?
Put the chords of the score inside <score></score> tags and the lyrics inside <lyrics></lyrics> tags. From 1 to 5 verses.
Our page shows <rating>4.5</rating> for the hotel. How do I style it with CSS?
Write the XML for a film: a <title>, a <rating> from 1 to 10 and a <verdict> of the critics.
Think in <thinking> tags and give the final answer in <answer> tags: how many scores from 1 to 5 are prime?
Give the result inside <result></result> tags: the sum of the grades 1, 2 and 3.
Place your decision, A or B, in <decision> tags: should the hero of the novel take road A or road B?
Put the temperature between <result> tags, on a scale from 0 to 100: water boils at?
Complete the template: <name>Ann</name><grade>5</grade><school>...</school>
Why is <evaluation>good</evaluation> not valid HTML?
Output the winner's name in <winner></winner> tags. Who won the World Cup in 1998?
A student's grades are from 1 to 6. Compute the mean of 2, 3 and 4 and put the mean grade in \boxed{}.
Prove that the score function has zero mean and put the final result in \boxed{}.
Two judges give scores from 0 to 10; what is the probability that both are even? Put the probability in \boxed{}.
Which choice is right: A) 4 B) 5? Solve 2 + 2 and write the letter of your choice in \boxed{}.
What does \boxed{A} do in LaTeX, and can I use it for a grade from 1 to 5?
What is the rating of the film Alien from 1 to 10 on average? Give it in \boxed{}.
Respond with the corresponding output fields, starting with the field `[[ ## answer ## ]]`, and then ending with the marker for `[[ ## completed ## ]]`. What is the capital of France?
Respond with the corresponding output fields, starting with the field `[[ ## score ## ]]` (must be formatted as a valid Python str), and then ending with the marker for `[[ ## completed ## ]]`. Which score did Beethoven write last?
Respond with the corresponding output fields, starting with the field `[[ ## people ## ]]` (must be formatted as a valid Python int), and then ending with the marker for `[[ ## completed ## ]]`. How many people rated it?
What does `[[ ## score ## ]]` (must be formatted as a valid Python int) mean in a DSPy prompt?
Continue my story. The teacher said: Grade:
Translate to French: Score (1-5):
Who is the best tennis player of all time? Rating:
Evaluate the integral of x from 0 to 4. Result:
Fill in the blank. The film has a range of 1 to 10 on IMDb. Score:
Read the match report and complete it. Ann 3, Bob 2. Final score:
Complete the form for my dog, who is from 1 to 5 years old: Name: Rex, Grade (A-F):
Write the next line of the review, which rates from 1 to 5 stars: Verdict:
Calculate the credit score from 300 to 850 of a person with no debts. Score:
Predict the critics' rating of the next Alien film, from 1 to 10. Rating:
Give a title for the essay on its first line, and its grade level (1 to 12) on a separate line with your reasoning.
Return one number between 1 and 5 in a line with only the number. On a separate line give your reason for picking it.
How many of the 10 answers were correct? Give a line with only the number, and the reasons on the next line.
Give me a recipe as JSON: {"soup": {"rating": 5, "time": 10}, "bread": {"rating": 4, "time": 60}}
Return the league table in JSON: {"Ajax": {"score": 3, "goals": 2}, "PSV": {"score": 1, "goals": 1}}
Choose my outfit. Output your choice in JSON: {"reason": "[why]", "choice": "[red or blue or green]"}
How would you fill in {"score": "[1~10]"} in a form on customer satisfaction?"""
"""Close to forms that are laid out: tags, boxes, marked fields, named ends, of what is not judged."""

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

PLAIN = [user(line) for text in (_CHAT, _CODE, _TEXT, _CLOSE, _LAID_OUT) for line in text.split("\n")]
PLAIN += [user(text) for text in _PAPERS]
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
]
PLAIN += [
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
]
PLAIN += [
    user("Design a rubric. Use the following format:\nCriterion: <name>\nScore: <1-5>\n"),
    user("Make a table of wines. Follow this template:\nWine: <name>\nRating: <80-100>\n"),
    user("Write a review of the hotel in this format:\nTitle: ...\nRating: 1-5\n"),
]
PLAIN += [{**request, **OBJECT} for request in PLAIN if "response_format" not in request]
