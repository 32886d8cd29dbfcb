"""Runs autoevals' own scorers against a judge, in an environment that has autoevals and openai.

    PYTHONPATH=tests python tests/clients/autoevals_client.py http://127.0.0.1:8000/v1

Prints the score that each scorer read (reads.py).
"""

import sys

from autoevals import init
from autoevals.llm import Battle, ClosedQA, Factuality, Humor, Possible, Security, Sql, Summary, Translation
from autoevals.ragas import AnswerCorrectness, ContextPrecision, ContextRecall, Faithfulness
from clients.reads import print_reads
from openai import OpenAI

GIVEN = {"input": "How many apples lie on the table?", "output": "I see four apples.", "expected": "Four apples."}
CONTEXT = "Four red apples lie on a table in Rome."


def main(url: str) -> None:
    init(client=OpenAI(base_url=url, api_key="sk-none", timeout=120), default_model="gpt-4")
    calls = {
        "Battle": lambda: Battle()(instructions="Count.", output="Four.", expected="Five."),
        "ClosedQA": lambda: ClosedQA()(input=GIVEN["input"], output=GIVEN["output"], criteria="It counts."),
        "Factuality": lambda: Factuality()(**GIVEN),
        "Factuality, no reasons": lambda: Factuality(use_cot=False)(**GIVEN),
        "Humor": lambda: Humor()(**GIVEN),
        "Possible": lambda: Possible()(**GIVEN),
        "Security": lambda: Security()(**GIVEN),
        "Sql": lambda: Sql()(**GIVEN),
        "Summary": lambda: Summary()(**GIVEN),
        "Translation": lambda: Translation()(**GIVEN, language="English"),
        "ContextRecall": lambda: ContextRecall()(**GIVEN, context=CONTEXT),
        "ContextPrecision": lambda: ContextPrecision()(**GIVEN, context=CONTEXT),
        "Faithfulness": lambda: Faithfulness()(**GIVEN, context=CONTEXT),
        "AnswerCorrectness": lambda: AnswerCorrectness(answer_similarity_weight=0)(**GIVEN),
    }
    print_reads({name: lambda call=call: call().score for name, call in calls.items()})


if __name__ == "__main__":
    main(sys.argv[1])
