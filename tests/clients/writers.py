"""Writes a result file by a tool's own writer (`writers.py deepeval`), of six answers with scripted scores. Prints
one JSON line: the file, the ids of its answers, and the version of the tool."""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

OUT = Path("written").absolute()
QUESTIONS = [f"How many cats are in picture {number}?" for number in range(6)]
ANSWERS = [f"I see {number} cats." for number in range(6)]
SCORES = [1.0, 0.5, 0.0, 0.75, 0.25, 1.0]
ROWS = [*zip(range(6), QUESTIONS, ANSWERS, SCORES, strict=True)]
Written = tuple[Path | str, list[str]]


def inspect() -> Written:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import Score, mean, scorer

    @scorer(metrics=[mean()])
    def graded() -> Any:
        async def score(state: Any, target: Any) -> Score:
            return Score(value=SCORES[QUESTIONS.index(state.input_text)])

        return score

    replies = [ModelOutput.from_content("mockllm/model", answer) for answer in ANSWERS]
    for reply in replies:  # without, a tokenizer would be loaded from the network
        reply.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    task = Task(dataset=[Sample(input=question, target="?") for question in QUESTIONS], scorer=graded())
    model = get_model("mockllm/model", custom_outputs=replies)
    (log,) = eval(task, model=model, display="none", log_dir=str(OUT), log_format="json", max_samples=1)
    return log.location, [f"{number}/1" for number in range(1, 7)]


def lm_eval() -> Written:
    from lm_eval.loggers import EvaluationTracker

    tracker = EvaluationTracker(output_path=str(OUT))
    tracker.general_config_tracker.model_name_sanitized, tracker.date_id = "m", "now"
    rows = [
        {"doc_id": number, "doc": {"question": question}, "arguments": [(question, {})], "resps": [[answer]]}
        | {"filtered_resps": [answer], "filter": "none", "target": "?", "metrics": ["graded"], "graded": score}
        for number, question, answer, score in ROWS
    ]
    tracker.save_results_samples("qa", rows)
    return OUT / "m/samples_qa_now.jsonl", [f"{number}/none" for number in range(6)]


def mlflow() -> Written:
    import mlflow
    from mlflow.entities import AssessmentSource

    mlflow.set_tracking_uri(f"file:{OUT}/mlruns")
    for _, question, answer, score in ROWS:
        with mlflow.start_span("answer") as span:
            mlflow.update_current_trace(tags={"model": "m"}, request_preview=question, response_preview=answer)
        mlflow.flush_trace_async_logging()
        judge = AssessmentSource("LLM_JUDGE", "graded")
        mlflow.log_feedback(trace_id=span.trace_id, name="quality", value=score, source=judge)
    traces = sorted(mlflow.search_traces(return_type="list"), key=lambda trace: str(trace.info.request_preview))
    (OUT / "traces.json").write_text(f"[{','.join(trace.to_json() for trace in traces)}]")
    return OUT / "traces.json", [trace.info.trace_id for trace in traces]


def ragas() -> Written:
    from ragas import EvaluationDataset, evaluate
    from ragas.metrics.base import MetricType, SingleTurnMetric

    class Graded(SingleTurnMetric):
        async def _single_turn_ascore(self, sample: Any, callbacks: Any) -> float:
            return SCORES[QUESTIONS.index(sample.user_input)]

        def init(self, run_config: Any) -> None:
            pass

    rows = [{"user_input": question, "response": answer} for _, question, answer, _ in ROWS]
    metric = Graded(name="graded", _required_columns={MetricType.SINGLE_TURN: {"user_input", "response"}})
    result = evaluate(EvaluationDataset.from_list(rows), metrics=[metric], show_progress=False)
    OUT.mkdir(exist_ok=True)
    result.to_pandas().to_csv(OUT / "ragas.csv", index=False)
    return OUT / "ragas.csv", QUESTIONS


def deepeval() -> Written:
    from deepeval import evaluate
    from deepeval.evaluate.configs import AsyncConfig, DisplayConfig
    from deepeval.metrics import BaseMetric
    from deepeval.test_case import LLMTestCase

    class Graded(BaseMetric):
        __name__, threshold = "graded", 0.5

        def measure(self, case: Any, *_: Any, **__: Any) -> float:
            self.score = SCORES[QUESTIONS.index(case.input)]
            self.success = self.score >= self.threshold
            return self.score

        def is_successful(self) -> bool:
            return bool(self.success)

    cases = [LLMTestCase(name=str(number), input=text, actual_output=answer) for number, text, answer, _ in ROWS]
    display = DisplayConfig(results_folder=str(OUT), print_results=False, show_indicator=False)
    evaluate(cases, [Graded()], display_config=display, async_config=AsyncConfig(run_async=False))
    return next(OUT.glob("test_run_*.json")), [str(number) for number in range(6)]


def evalscope() -> Written:
    from evalscope.api.dataset import Sample
    from evalscope.api.evaluator import CacheManager, TaskState
    from evalscope.api.messages import ChatMessageUser
    from evalscope.api.metric import SampleScore, Score
    from evalscope.api.model import ModelOutput
    from evalscope.utils.io_utils import OutputsStructure

    cache = CacheManager(OutputsStructure(str(OUT)), "m", "qa")
    for number, question, answer, score in ROWS:
        sample = Sample(id=number, group_id=number, input=question, target="?")
        said, output = [ChatMessageUser(content=question)], ModelOutput.from_content("m", answer)
        state = TaskState(model="m", sample=sample, messages=said, output=output, completed=True)
        graded = Score(value={"graded": score}, prediction=answer, extracted_prediction=answer)
        cache.save_review_cache("default", state, SampleScore(score=graded, sample_id=number, group_id=number))
    cache.close()
    return cache.get_review_cache_path("default"), [f"{number}/{number}" for number in range(6)]


if __name__ == "__main__":
    file, ids = globals()[sys.argv[1]]()
    print("\n" + json.dumps({"file": str(file), "ids": ids, "version": version(sys.argv[2])}))
