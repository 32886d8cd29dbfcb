"""The judge `critic` for lmms-eval. Tasks then ask the judge that `critic serve` serves, whatever model they name.

    API_TYPE=critic OPENAI_API_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none lmms-eval eval --tasks mmvet …

lmms-eval has an interface for judges (`ProviderFactory.register_provider`), but entry points only for models. So our
`register` is an entry point for models, which lmms-eval calls when it starts: it registers the judge and adds no model.
A program that imports lmms_eval.llm_judge before lmms_eval.models must call `register` itself. lm-evaluation-harness
has no interface for judges.
"""

import os
from dataclasses import replace
from pathlib import Path

from lmms_eval.llm_judge import ProviderFactory, Request, Response, ServerConfig
from lmms_eval.llm_judge.providers import OpenAIProvider


class CriticJudge(OpenAIProvider):  # type: ignore[misc]
    """The judge served at OPENAI_API_URL. Requests carry the judge's own name, which appears in lmms-eval's logs."""

    def __init__(self, config: ServerConfig | None = None) -> None:
        """Ask the server which judge it serves.

        Raises UsageError if no server answers, or if its judge is not the one in the certificate file that the
        environment variable CRITIC_CERTIFICATE names. Without this check, lmms-eval would count failed requests as
        scores of 0.
        """
        # lmms-eval imports this module whenever it starts, whichever judge is used.
        from critic.backends.openai import OpenAIBackend  # noqa: PLC0415 - as above
        from critic.certificate import check_certificate  # noqa: PLC0415 - as above

        super().__init__(config)
        self.served = OpenAIBackend(self.base_url, api_key=self.api_key).choose(None)
        processors = {self.served.name: self.served.processor} if self.served.processor else {}
        if file := os.environ.get("CRITIC_CERTIFICATE"):
            check_certificate(Path(file), processors, {}, judge=self.served.name)

    def evaluate(self, request: Request) -> Response:
        """Return the judge's reply. The model that `request.config` names (OpenAI's) is replaced by the judge."""
        config = replace(request.config or self.config, model_name=self.served.name)
        return super().evaluate(replace(request, config=config))


def register() -> list[str]:
    """Register the judge with lmms-eval as API_TYPE=critic, and return [] (no models)."""
    ProviderFactory.register_provider("critic", CriticJudge)
    return []
