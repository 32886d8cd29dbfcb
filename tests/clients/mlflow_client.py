"""Runs mlflow's own metrics and judges against a judge, in an environment that has mlflow-skinny, openai and pandas.

    PYTHONPATH=tests python tests/clients/mlflow_client.py http://127.0.0.1:8000/v1

Prints the value that each metric and judge read (reads.py).
"""

import os
import sys
from typing import Any

os.environ["OPENAI_API_KEY"] = "sk-none"
os.environ["OPENAI_API_BASE"] = os.environ["OPENAI_BASE_URL"] = sys.argv[1]
os.environ["MLFLOW_TRACKING_URI"] = "file:mlruns"

import pandas as pd
from clients.reads import print_reads
from mlflow.genai.judges import is_correct, is_grounded, is_safe, make_judge, meets_guidelines
from mlflow.metrics.genai import EvaluationExample, answer_correctness, answer_relevance, make_genai_metric

QUESTION, ANSWER, TRUTH = "How many apples lie on the table?", "I see four apples.", "Four apples."


def metric(graded: Any) -> Any:
    """What a metric read for the one answer."""
    targets = [pd.Series([TRUTH])] if graded.name == "answer_correctness" else []
    return graded.eval_fn(pd.Series([ANSWER]), {}, pd.Series([QUESTION]), *targets).scores[0]


def main(url: str) -> None:
    options = {"model": "openai:/gpt-4", "proxy_url": f"{url}/chat/completions"}
    own = make_genai_metric(
        name="counting",
        definition="Whether the answer counts right.",
        grading_prompt="- Score 1: wrong\n- Score 2: nearly\n- Score 3: right",
        examples=[EvaluationExample(input="How many?", output="Two.", score=1, justification="There are four.")],
        **options,
    )
    judge = {"model": "openai:/gpt-4"}
    calls = {
        "answer_correctness": lambda: metric(answer_correctness(**options)),
        "answer_relevance": lambda: metric(answer_relevance(**options)),
        "make_genai_metric": lambda: metric(own),
        "is_correct": lambda: is_correct(request=QUESTION, response=ANSWER, expected_response=TRUTH, **judge).value,
        "is_grounded": lambda: is_grounded(request=QUESTION, response=ANSWER, context=TRUTH, **judge).value,
        "is_safe": lambda: is_safe(content=ANSWER, **judge).value,
        "meets_guidelines": lambda: (
            meets_guidelines(guidelines="Be short.", context={"response": ANSWER}, **judge).value
        ),
        "make_judge": lambda: (
            make_judge(
                name="q",
                instructions="Evaluate whether {{ outputs }} answers {{ inputs }}. Rate it from 1 to 5.",
                feedback_value_type=int,
                **judge,
            )(inputs={"question": QUESTION}, outputs={"answer": ANSWER}).value
        ),
    }
    print_reads(calls)


if __name__ == "__main__":
    main(sys.argv[1])
