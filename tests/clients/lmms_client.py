"""Runs lmms-eval's own judging code against a judge, in an environment that has it and what the code imports.

    OPENAI_API_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none PYTHONPATH=tests python tests/clients/lmms_client.py

Prints what lmms-eval read from the reply to each call (reads.py), and the reply.
"""

from typing import Any

from clients.reads import print_reads
from lmms_eval.llm_judge import Request, ServerConfig, get_server
from lmms_eval.llm_judge.utils import JudgePromptBuilder, ResponseParser
from PIL import Image

QUESTION, TRUTH, PREDICTION = "How many apples?", "Four.", "I see four apples, perhaps five."


def main() -> None:
    server = get_server("openai", ServerConfig(model_name="gpt-4", num_retries=1))
    as_json = get_server("openai", ServerConfig(model_name="gpt-4", num_retries=1, response_format="json"))
    newer = get_server("openai", ServerConfig(model_name="o3", num_retries=1))
    rubric = {"accuracy": "does it agree with the reference", "clarity": "is it clear"}
    picture = Image.new("RGB", (32, 32), "red")
    calls = {
        "binary 0/1": lambda: server.evaluate_binary(QUESTION, TRUTH, PREDICTION),
        "binary yes/no": lambda: server.evaluate_binary(QUESTION, TRUTH, PREDICTION, output_format="yes/no"),
        "binary, reasoning model": lambda: newer.evaluate_binary(QUESTION, TRUTH, PREDICTION),
        "comparative": lambda: server.evaluate_comparative(QUESTION, PREDICTION, "Five."),
        "comparative, image": lambda: server.evaluate_comparative(QUESTION, PREDICTION, "Five.", images=[picture]),
        "rubric": lambda: server.evaluate_with_rubric(QUESTION, PREDICTION, rubric),
        "rubric, json": lambda: as_json.evaluate_with_rubric(QUESTION, PREDICTION, rubric),
    }
    prompt = JudgePromptBuilder.build_correctness_prompt(QUESTION, TRUTH, PREDICTION)

    def correctness() -> dict[str, Any]:
        reply = server.evaluate(Request(messages=[{"role": "user", "content": prompt}])).content
        read = ResponseParser.parse_binary_response(reply, "yes/no")
        return {"result": read, "raw_response": reply}

    def summarise(answer: dict[str, Any]) -> dict[str, Any]:
        read = answer["result"] if "result" in answer else answer["scores"]
        return {"read": read, "raw": answer["raw_response"][:60]}

    calls["correctness"] = correctness
    print_reads({name: lambda call=call: summarise(call()) for name, call in calls.items()})


if __name__ == "__main__":
    main()
