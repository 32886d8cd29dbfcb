"""critic push: publish a judge on a model hub, with its licence, its audit's figures and its certificate.

critic push runs/demo/judge me/judge --certificate runs/audit/certificate.json --dry-run
critic push runs/demo/judge me/judge --certificate runs/audit/certificate.json --private
critic push runs/demo/judge me/judge --licence apache-2.0

huggingface_hub does the upload: HF_ENDPOINT names another hub, HF_TOKEN or `hf auth login` the account. All files
appear in one commit at the end; rerun an interrupted command, and what was uploaded already is not sent again.
"""

import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from critic.backends import identity
from critic.certificate import Certificate, read
from critic.errors import UsageError, refusing

LEFT_OUT = ("checkpoint-*", "tensorboard", "wandb", ".*")
"""Patterns of files and folders in a judge's folder that only its training needs; they are not published."""

FORBIDDING = re.compile(r"\bnd\b|no.?deriv", re.IGNORECASE)
"""Matches licences that forbid sharing what was made from the work: Creative Commons' with ND (section 2.a.1.B)."""


def main(
    folder: Path,
    name: str,
    certificate: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    licence: Annotated[str | None, typer.Option(metavar="ID", show_default="its base's")] = None,
    private: Annotated[bool, typer.Option("--private")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
) -> None:
    """Publish a judge on a model hub, with a card that hubs read: licence, base, data, audited figures.
    \f
    - folder: The judge's folder.
    - name: Repository on the hub: OWNER/NAME.
    - certificate: Certificate of critic audit: its figures go into the card.
    - licence: The judge's licence, as the hub names it.
    - private: Create the repository as a private one.
    - dry_run: Print the files and the card; send nothing.
    """
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415 - --help does without
    except ImportError:
        raise UsageError("critic push needs huggingface_hub: pip install huggingface_hub") from None
    facts = identity.read_notes(folder)
    audited = read(certificate) if certificate else None
    judge = identity.own_name(str(folder), facts)
    # The figures of another judge's audit would stand under this one's name.
    if audited and audited.how.judge.rpartition("@")[2] != judge.rpartition("@")[2]:
        raise UsageError(f"--certificate {certificate}: it is of {audited.how.judge}, {folder} is {judge}; audit it")
    terms = find_licence(facts, licence)
    with TemporaryDirectory() as temporary, refusing(Path(name), "not published"):
        staged = Path(temporary, "judge")
        # Links in a copy's place: a checkpoint has many gigabytes.
        shutil.copytree(folder.resolve(), staged, ignore=shutil.ignore_patterns(*LEFT_OUT), copy_function=os.symlink)
        (staged / "README.md").unlink(missing_ok=True)
        card = build_card(folder, name, facts, terms, audited)
        (staged / "README.md").write_text(card, "utf-8")
        if certificate:
            shutil.copyfile(certificate, staged / "certificate.json")
        if dry_run:
            for file in sorted(file for file in staged.rglob("*") if file.is_file()):
                print(f"{file.stat().st_size:>15,}  {file.relative_to(staged)}")
            print(f"\n{card.partition('# ')[0]}nothing was sent (--dry-run)")
            return
        repository = HfApi().create_repo(name, private=private, exist_ok=True)
        HfApi().upload_folder(repo_id=repository.repo_id, folder_path=staged, commit_message=f"Publish {judge}")
    print(f"{judge} published: {repository}")


def find_licence(facts: dict[str, Any], given: str | None) -> str | None:
    """Return the licence to publish a judge under: `given`, or else the licence of its base model.

    Return None if neither exists, because the judge was trained from random weights.
    `facts`: the judge's training notes. They contain the base's licence if `critic base` made the base; otherwise the
    hub is asked.

    Raises UsageError if the base's licence forbids publishing, or if the judge has a base but no licence is known.
    """
    base, revision = (facts.get("recipe", {}).get(key) for key in ("base", "revision"))
    known = (facts.get("base") or {}).get("licence")
    if base and not known and not Path(base).is_dir():
        from huggingface_hub import ModelCard  # noqa: PLC0415 - as above

        try:
            known = ModelCard.load(base, **({"revision": revision} if revision else {})).data.license
        except (OSError, ValueError):
            known = None  # no network, or no card: the user has to know
    if known and FORBIDDING.search(known):
        raise UsageError(f"{base}: its terms ({known}) forbid to publish what was made from it")
    if base and not (given or known):
        raise UsageError(f"the licence of {base} is not known; name the judge's: --licence ID, such as apache-2.0")
    return given or known


def build_card(folder: Path, name: str, facts: dict[str, Any], licence: str | None, audited: Certificate | None) -> str:
    """Return the model card that training wrote into `folder`, with the fields added that hubs read.

    `name`: the repository on the hub. `facts`: the judge's training notes. `audited`: the judge's certificate, or None.

    `licence` becomes `license`, or `license_name` and `license_link` if it is no identifier; the measures of agreement
    in `audited` become the `model-index`, with 95 % intervals and the SHA-256 of the labels.
    """
    from huggingface_hub import EvalResult, ModelCard  # noqa: PLC0415 - as above

    file, base = folder / "README.md", facts.get("recipe", {}).get("base")
    text = file.read_text("utf-8") if file.is_file() else f"# {name}\n"
    # A path on this machine names no model of the hub, and is nobody's business.
    if base and Path(base).is_dir():
        text = re.sub(r"(?m)^base_model:.*\n", "", text).replace(base, Path(base).name)
    card = ModelCard(text)
    data: Any = card.data
    if licence:
        named, _, link = licence.partition(", ")
        is_id = re.fullmatch(r"[\w.+-]+", licence)
        data.license, data.license_name = (licence.lower(), None) if is_id else ("other", named)
        data.license_link = link or None
    if audited:
        data.model_name = name
        data.eval_results = [
            EvalResult(
                task_type=data.pipeline_tag or "text-generation",
                dataset_type="human-scores",
                dataset_name=Path(audited.labels.file).name,
                dataset_revision=audited.labels.sha256,
                metric_type=measure,
                metric_value=estimate.value,
                metric_args={"interval_95": estimate.interval and [*estimate.interval], "n": estimate.n},
            )
            for measure, estimate in audited.agreement.items()
            if estimate.value is not None
        ]
        card.text += f"\n## Audit\n\n{audited.line()}\n\nHold to it: `critic judge --certificate certificate.json`\n"
    return str(card)
