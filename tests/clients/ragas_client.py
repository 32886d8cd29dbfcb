"""Runs ragas' own metrics against a judge, in an environment that has ragas and openai.

    PYTHONPATH=tests python tests/clients/ragas_client.py http://127.0.0.1:8000/v1

Prints the value that each metric read (reads.py).
"""

import asyncio
import sys

from clients.reads import print_reads
from openai import AsyncOpenAI
from ragas.llms import llm_factory
from ragas.metrics.collections import (
    AnswerAccuracy,
    ContextPrecisionWithReference,
    ContextRecall,
    ContextRelevance,
    FactualCorrectness,
    Faithfulness,
    ResponseGroundedness,
    RubricsScoreWithReference,
)

QUESTION, ANSWER, TRUTH = "How many apples lie on the table?", "I see four apples.", "Four apples."
CONTEXTS = ["Four red apples lie on a table."]


def main(url: str) -> None:
    llm = llm_factory("gpt-4", client=AsyncOpenAI(base_url=url, api_key="sk-none", timeout=120), max_tokens=1024)
    exchange = {"user_input": QUESTION, "response": ANSWER}
    calls = {
        "AnswerAccuracy": lambda: AnswerAccuracy(llm=llm).ascore(**exchange, reference=TRUTH),
        "ContextPrecision": lambda: ContextPrecisionWithReference(llm=llm).ascore(
            user_input=QUESTION, reference=TRUTH, retrieved_contexts=CONTEXTS
        ),
        "ContextRecall": lambda: ContextRecall(llm=llm).ascore(
            user_input=QUESTION, reference=TRUTH, retrieved_contexts=CONTEXTS
        ),
        "ContextRelevance": lambda: ContextRelevance(llm=llm).ascore(user_input=QUESTION, retrieved_contexts=CONTEXTS),
        "FactualCorrectness": lambda: FactualCorrectness(llm=llm).ascore(response=ANSWER, reference=TRUTH),
        "Faithfulness": lambda: Faithfulness(llm=llm).ascore(**exchange, retrieved_contexts=CONTEXTS),
        "ResponseGroundedness": lambda: ResponseGroundedness(llm=llm).ascore(
            response=ANSWER, retrieved_contexts=CONTEXTS
        ),
        "RubricsScore": lambda: RubricsScoreWithReference(llm=llm).ascore(**exchange, reference=TRUTH),
    }
    with asyncio.Runner() as runner:
        print_reads({name: lambda call=call: float(runner.run(call()).value) for name, call in calls.items()})


if __name__ == "__main__":
    main(sys.argv[1])
