"""Training on images and text together: what a row counts, what is learned, and that no image is another row's."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from training import SEEING, logged, pictured, train, write_recipe, write_rows

import attention  # isort: skip
import export  # isort: skip
from objective import name_classes  # isort: skip
from recipe import OBJECTIVES, objective_of  # isort: skip
from objective import rating_tokens  # isort: skip
import recipe_keys  # isort: skip
import recipe as recipes  # isort: skip
import batches as batches_module  # isort: skip
import rows as rows_module  # isort: skip
import run as training_run  # isort: skip
import vision  # isort: skip
import msgspec
import tiny_vlm
import torch
from PIL import Image
from transformers import AutoProcessor

from critic import human_scored, jsonl
from critic.errors import UsageError
from critic.images import ImageError, Images
from critic.judging.targets import IGNORED
from eval_agreement.measures.attacks import arms


def learned(folder: Path, rows: Path, images_from: Path | None = None, **changes: Any) -> tuple[rows_module.Data, Any]:
    """Return what a model that sees learns of rows, and its tokenizer."""
    recipe = recipes.read_recipe(write_recipe(folder, **SEEING | changes))
    return rows_module.prepare(recipe, rows, folder / "cache", 1, Images(images_from or folder))


def prepared(folder: Path, **changes: Any) -> tuple[recipe_keys.Recipe, list[dict[str, Any]], Any, Any]:
    rows = pictured(folder)
    if changes.get("objective") == "pairwise":
        both = {"response_a": "It is red.", "response_b": "It is a red one.", "preference": "A"}
        rows = write_rows(folder, [json.loads(line) | both for line in rows.read_text("utf-8").splitlines()])
    data, tokenizer = learned(folder, rows, **changes)
    recipe = recipes.read_recipe(write_recipe(folder, **SEEING | changes))
    return recipe, list(data.rows.to_list()), data, tokenizer


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[recipe_keys.Recipe, list[dict[str, Any]], Any, Any]:
    return prepared(tmp_path_factory.mktemp("seeing"))


@pytest.fixture
def model(setup: Any) -> Any:
    recipe, _, _, tokenizer = setup
    return training_run.build_model(recipe, tokenizer, rating_tokens(tokenizer)).eval()


def batch(setup: Any, rows: list[dict[str, Any]], objective: Any = None, **options: Any) -> dict[str, Any]:
    recipe, _, data, tokenizer = setup
    objective = objective or objective_of(recipe)
    collate = batches_module.Batches(
        tokenizer.pad_token_id, objective.weights(data.rows), objective, seeing=tokenizer, **options
    )
    return dict(collate(rows))


def loss(model: Any, given: dict[str, Any]) -> float:
    with torch.no_grad():
        return float(model(**given, num_items_in_batch=1).loss)


def test_the_tokens_are_the_processors_own_and_only_the_verdict_is_learned(setup: Any) -> None:
    _, rows, _, tokenizer = setup
    for row in rows:
        assert len(row["images"]) == len(row["image_tokens"]) and set(row["image_tokens"]) <= {4}
        shown = tokenizer.decode(row["input_ids"][: row["source"]])
        assert ("Look at the picture" in shown) == bool(row["images"])
        text = shown.replace(tokenizer.expansion("red.png"), "<image>")
        images = [[tokenizer.pictures(name)[0][1] for name in row["images"]]] if row["images"] else None
        theirs = tokenizer.processor(text=[text], images=images, add_special_tokens=False)["input_ids"][0]
        assert list(theirs) == row["input_ids"][: row["source"]]
        assert row["input_ids"].count(tokenizer.image_token_id) == sum(row["image_tokens"])
    given = batch(setup, rows)
    learned = given["labels"] != IGNORED
    assert learned.sum(1).tolist() == [row["length"] - row["source"] for row in rows]
    assert not (learned & (given["input_ids"] == tokenizer.image_token_id)).any()
    assert not (learned & (given["attention_mask"] == 0)).any()


def test_fitting_shortens_text_alone(tmp_path: Path) -> None:
    _, rows, _, _ = prepared(tmp_path)
    longest = max(row["source"] for row in rows if len(row["images"]) == 2)
    file = tmp_path / "rows.jsonl"
    long = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    write_rows(tmp_path, [{**row, "response": "It is red, I think. " * 60} for row in long])
    data, tokenizer = learned(tmp_path, file, max_source_tokens=longest + 150)
    assert data.counts["shortened"]["response"] == len(long) and not data.counts["refused"]
    for row in data.rows:
        assert row["source"] <= longest + 150
        assert row["input_ids"].count(tokenizer.image_token_id) == 4 * len(row["images"])
    # With less room than images, rubric and what must be left of the text take, a row is refused, never its image cut.
    refused_at = []
    for limit in range(longest + 110, longest, -6):
        try:
            data, _ = learned(tmp_path, file, max_source_tokens=limit)
        except UsageError as error:
            assert "no row fits" in str(error)
            break
        refused_at += [limit] if data.counts["refused"] else []
        assert all(row["input_ids"].count(tokenizer.image_token_id) == 4 * len(row["images"]) for row in data.rows)
    assert refused_at


def test_packed_and_padded_are_the_rows_one_by_one(setup: Any, model: Any) -> None:
    _, rows, _, _ = setup
    losses = [loss(model, batch(setup, [row])) for row in rows]
    assert len({round(value, 4) for value in losses[:3]}) == 3  # the same text: the image decides
    packed = batch(setup, rows, packing=True)
    assert packed["pixel_values"].shape[1] < sum(len(row["images"]) for row in rows)
    for given in (batch(setup, rows), packed, batch(setup, rows, packing=True, share=False)):
        assert loss(model, given) == pytest.approx(sum(losses), rel=1e-5)
    # Rows that begin alike with another image share nothing from the image on.
    same = [{**rows[0], "images": ["green.png"]}, rows[0]]
    given = batch(setup, same, packing=True)
    assert given["pixel_values"].shape[1] == 2
    assert loss(model, given) == pytest.approx(sum(loss(model, batch(setup, [row])) for row in same), rel=1e-5)


def test_a_video_is_learned_as_frames_behind_their_times(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs PyAV")
    from test_videos import film

    film(tmp_path / "a.mp4")
    shown = {"images": None, "video": "a.mp4"}
    rows = [json.loads(line) | shown for line in pictured(tmp_path).read_text("utf-8").splitlines()]
    data, tokenizer = learned(tmp_path, write_rows(tmp_path, rows))
    row = data.rows[0]
    assert row["images"] == ["video:a.mp4"] and row["image_tokens"] == [4 * 8]
    text, image = tokenizer.decode(row["input_ids"][: row["source"]]), tokenizer.expansion("red.png")
    assert f"0.0 s{image}0.7 s{image}1.4 s{image}" in text and f"5.0 s{image}> Which colour?" in text
    recipe = recipes.read_recipe(write_recipe(tmp_path, **SEEING))
    given = batch((recipe, [], data, tokenizer), [row, row], packing=True)
    assert given["pixel_values"].shape[1] == 8


@pytest.mark.parametrize("family", [family for family, entry in tiny_vlm.BASES.items() if "processor" in entry])
def test_an_image_is_what_its_processor_makes_of_it(family: str, tmp_path: Path) -> None:
    """Its tokens, those among them that receive features, and its pixels, in tiles where the family cuts some."""
    processor = tiny_vlm.processor_of(family)
    Image.new("RGB", (64, 128), "red").save(tmp_path / "red.png")
    seeing = vision.SeeingTokenizer(processor, Images(tmp_path))
    theirs = processor(text=[processor.image_token], images=[[seeing.pictures("red.png")[0][1]]], return_tensors="pt")
    ids = torch.tensor([seeing.ids(seeing.expansion("red.png"))])
    assert torch.equal(ids, theirs["input_ids"])
    assert all(torch.equal(types, theirs[name]) for name, types in seeing.types_of(ids).items())
    assert seeing.image_tokens("red.png") == ids.eq(seeing.image_token_id).sum() > 1
    pixels = seeing.pixels(["red.png"])
    assert pixels.keys() == theirs.keys() - {"input_ids", "attention_mask", *seeing.types}
    assert all(torch.equal(values.flatten(), theirs[name].flatten()) for name, values in pixels.items())
    spelt = seeing.convert_ids_to_tokens(seeing.image_token_id)
    with pytest.raises(ImageError, match=f"the text holds .*{re.escape(spelt)}"):
        seeing.apply_chat_template([{"role": "user", "content": spelt}], tokenize=False, add_generation_prompt=True)


FAMILIES = [
    *(("idefics3", objective) for objective in ("raft", "head", "pairwise")),
    *(("qwen3_vl", "head"), ("qwen3_5", "raft"), ("glm4v_moe", "pairwise"), ("internvl", "raft"), ("gemma3", "raft")),
]


@pytest.mark.parametrize(("family", "kind"), FAMILIES)
def test_every_family_sees_the_rows_one_by_one(
    family: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed, where it can be, and padded; a head that is saved is the class by which vLLM knows it."""
    monkeypatch.setattr(AutoProcessor, "from_pretrained", tiny_vlm.read_processor)
    base = {"tiny": None, "vision": None, "base": str(tiny_vlm.build_base(family, tmp_path / "base"))}
    forms = {"pairwise" if kind == "pairwise" else "pointwise_short": 1.0}
    setup = prepared(tmp_path, **base, objective=kind, forms=forms, max_source_tokens=3000)
    recipe, rows, _, tokenizer = setup
    objective = objective_of(recipe, objective_of(recipe).read_tokens(tokenizer))
    model = training_run.build_model(recipe, tokenizer, objective.tokens).eval()
    if objective.is_head():
        torch.nn.init.normal_(model.score.weight, std=0.1)  # so that no comparison is certain
    losses = [loss(model, batch(setup, [row], objective, packing=False)) for row in rows]
    assert len({round(value, 6) for value in losses[:3]}) == 3, "the image decides"
    packs = training_run.choose_packing(objective, model, tokenizer)
    assert packs == (family in {"idefics3", "internvl"})
    for packing in {False, packs}:
        assert loss(model, batch(setup, rows, objective, packing=packing)) == pytest.approx(sum(losses), rel=2e-6)
        text = [row for row in rows if not row["images"]]
        plain, white = (batch(setup, text, objective, packing=packing, several=several) for several in (False, True))
        assert "pixel_values" in white and loss(model, white) == pytest.approx(loss(model, plain))
    model.save_pretrained(tmp_path / "judge")
    again = export.read_base(str(tmp_path / "judge"), name_classes(OBJECTIVES[kind].classes), "show")
    assert again.config.architectures[0].endswith("ForSequenceClassification") == objective.is_head()
    assert not objective.is_head() or torch.equal(again.score.weight.float(), model.score.weight.float())


def test_a_random_model_tells_places_apart(model: Any) -> None:
    """A white patch is another thing where it stands elsewhere."""
    with torch.no_grad():
        first, second, *_ = model.model.vision_model(pixel_values=torch.ones(1, 3, 32, 32)).last_hidden_state[0]
    assert (first - second).norm() > 0.15 * first.norm()


def test_a_white_image_where_a_process_has_none_changes_nothing(setup: Any, model: Any) -> None:
    _, rows, _, _ = setup
    text = [row for row in rows if not row["images"]]
    for packing in (False, True):
        given = batch(setup, text, packing=packing, several=True)
        assert given["pixel_values"].shape[1] == 1
        assert loss(model, given) == pytest.approx(loss(model, batch(setup, text, packing=packing)), rel=1e-6)
        assert (given["labels"] != IGNORED).sum() == sum(row["length"] - row["source"] for row in text)
        model.zero_grad()
        model(**given, num_items_in_batch=1).loss.backward()
        looked = model.model.vision_model.embeddings.patch_embedding.weight.grad
        assert looked is not None and not looked.any()


@pytest.mark.parametrize("lora", [None, recipe_keys.LoraSpec(r=4, alpha=8)], ids=["whole", "adapters"])
def test_what_looks_and_is_frozen_is_not_gone_through_backwards(setup: Any, lora: Any, tmp_path: Path) -> None:
    """Under gradient checkpointing and adapters either, and the gradients are what they would be if it were."""
    recipe, rows, _, tokenizer = setup
    training_run.build_model(recipe, tokenizer, None).save_pretrained(tmp_path)
    onto = msgspec.structs.replace(recipe, tiny=None, vision=None, base=str(tmp_path), lora=lora)
    passes: list[tuple[bool, list[torch.Tensor]]] = []
    for spared in (True, False):
        torch.manual_seed(0)
        model = training_run.build_model(onto, tokenizer, None)
        model.gradient_checkpointing_enable()
        (looks,) = (part for name, part in model.named_modules() if name.endswith("vision_model"))
        if not spared:
            del looks.forward
        kept: list[bool] = []
        looks.register_forward_hook(lambda *given, kept=kept: kept.append(given[2].last_hidden_state.requires_grad))
        model.train()(**batch(setup, rows), num_items_in_batch=1).loss.backward()
        assert not any(each.requires_grad for each in looks.parameters())
        passes.append((kept[0], [each.grad for each in model.parameters() if each.requires_grad]))
    assert [kept for kept, _ in passes] == [False, True] and passes[0][1]
    assert all(torch.equal(gradient, expected) for gradient, expected in zip(passes[0][1], passes[1][1], strict=True))


def test_images_that_cannot_be_shown_are_counted(tmp_path: Path) -> None:
    rows = pictured(tmp_path)
    (tmp_path / "green.png").unlink()
    (tmp_path / "blue.png").write_bytes((tmp_path / "blue.png").read_bytes()[:60])
    data, _ = learned(tmp_path, rows)
    assert data.counts["left_out"] == {"image_missing": 3, "image_unreadable": 3}
    assert data.counts["rows"] == 6 and all("green.png" not in row["images"] for row in data.rows)
    Image.new("RGB", (40, 24), "green").save(tmp_path / "green.png")
    again, _ = learned(tmp_path, rows)
    assert again.counts["left_out"] == {"image_unreadable": 3} and again.counts["rows"] == 9
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with_images = [json.loads(line) for line in rows.read_text("utf-8").splitlines()]
    some = write_rows(tmp_path, [row for row in with_images if row["images"]], "some.jsonl")
    with pytest.raises(UsageError, match=r"no row .* its images cannot be shown \(9 image_missing\); --data-root"):
        learned(tmp_path, some, images_from=elsewhere)


def test_a_reason_may_name_the_token_of_an_image(tmp_path: Path) -> None:
    pictured_rows = [json.loads(line) for line in pictured(tmp_path).read_text("utf-8").splitlines()]
    rows = write_rows(tmp_path, [{**row, "reason": "The <image> shows it."} for row in pictured_rows])
    data, tokenizer = learned(tmp_path, rows, forms={"pointwise": 1.0})
    assert not data.counts["left_out"] and len(data.rows) == 12
    for row in data.rows:
        assert row["input_ids"].count(tokenizer.image_token_id) == sum(row["image_tokens"])


RIGHT = ["row-0", "row-6", "row-9"]  # with an image, and scored 9


def changed(folder: Path, column: str = "task") -> tuple[Path, Path]:
    """Rows with reasons and raters, and the arms of the same rows with something else in a column."""
    pictured_rows = [json.loads(line) for line in pictured(folder).read_text("utf-8").splitlines()]
    for row in pictured_rows:
        row |= {"reason": "As said.", "annotators": {"anna": row["human_score"], "ben": row["human_score"] - 1}}
    other = write_rows(folder, [row | {column: f"{row[column]}!"} for row in pictured_rows], "other.jsonl")
    loaded = human_scored.load(other, pictures=True)
    drawn = [n for n, each in enumerate(loaded.responses) if each.question.images]
    jsonl.write(folder / "arms.jsonl", arms(loaded, drawn))
    return write_rows(folder, pictured_rows), folder / "arms.jsonl"


def test_a_changed_answer_is_worth_so_much_less(tmp_path: Path) -> None:
    rows, arms = changed(tmp_path)
    reasons = {row["id"]: row["reason"] for _, row in jsonl.read(arms, dict[str, Any])}
    assert reasons["row-0#edited"].startswith("red, not ") and reasons["row-0#swapped"] is None
    forms = {"pointwise": 1.0, "pointwise_short": 1.0, "correct": 1.0}
    data, _ = learned(tmp_path, rows, arms={"file": str(arms), "edited": 4, "weight": 0.5}, forms=forms)
    edited = [row for row in data.rows if "#" in row["id"]]
    assert {(row["id"], row["form"]) for row in edited} == {
        (f"{of}#edited", form) for of in RIGHT for form in [*forms][:2]
    }
    for row in edited:
        original = next(each for each in data.rows if each["id"] in row["id"] and each["form"] == row["form"])
        assert (original["rating"], row["rating"], original["weight"], row["weight"]) == (9, 5, 1.0, 0.5)
        assert row["people"][3:5] == original["people"][7:9] == [0.5, 0.5], "each rater's"
    assert data.counts["left_out"]["swapped, to which arms gives no points"] == 3
    assert data.counts["labels"] == {"people": 3 * 12, "arms": 6}
    swapped = [*learned(tmp_path, rows, arms={"file": str(arms), "swapped": 9})[0].rows][12:]
    assert [row["id"] for row in swapped] == [f"{of}#swapped" for of in RIGHT]
    assert all(row["rating"] == 1 and row["images"] != ["red.png"] for row in swapped), "the scale ends at 1"


def test_a_comparing_head_learns_that_the_edited_answer_is_worse(tmp_path: Path) -> None:
    rows, arms = changed(tmp_path)
    forms, worse = {"pairwise": 1.0}, {"file": str(arms), "edited": 3}
    learned_rows = learned(tmp_path, rows, arms=worse, objective="pairwise", forms=forms)[0].rows
    assert [row["id"] for row in learned_rows] == [f"{of}+{of}#edited" for of in RIGHT]
    assert all(row["people"] == [pytest.approx(3 / 9)] for row in learned_rows)


@pytest.mark.parametrize("column", ["id", "response", "question"])
def test_arms_of_other_rows_are_refused(column: str, tmp_path: Path) -> None:
    rows, arms = changed(tmp_path, column)
    with pytest.raises(UsageError, match=r"row-0!?#clean is of no answer of --train.*critic attack TRAIN --images"):
        learned(tmp_path, rows, arms={"file": str(arms), "edited": 3})


def test_changed_answers_are_no_rows_that_people_scored(tmp_path: Path) -> None:
    rows, arms = changed(tmp_path)
    with pytest.raises(UsageError, match=r"6 answers that `critic attack --images` changed \(row-0#swapped\)"):
        learned(tmp_path, arms)
    unchanged = [row for _, row in jsonl.read(arms, dict[str, Any]) if not row["flags"]]
    with pytest.raises(UsageError, match="has no answer with one fact edited or another image"):
        learned(tmp_path, rows, arms={"file": str(write_rows(tmp_path, unchanged, "none.jsonl")), "edited": 3})


class Typed:
    """A processor of a family that wants to be told which tokens are an image's."""

    model_input_names = ("input_ids", "pixel_values", "mm_token_type_ids")


def test_rows_are_padded_where_the_base_cannot_pack(
    setup: Any, model: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One line says why and what it costs; an attention for packed rows is refused."""
    recipe, _, _, tokenizer = setup
    typed, kept = vision.SeeingTokenizer(Typed(), None), ": all tokens of each row are computed, none is shared"

    def packs(given: Any, **changes: Any) -> bool:
        objective = objective_of(msgspec.structs.replace(recipe, **changes))
        return training_run.choose_packing(objective, model, given, say=True)

    assert packs(tokenizer, packing=True) and packs(tokenizer, objective="raft") and not packs(tokenizer)
    assert not packs(typed) and not capsys.readouterr().out
    wide, why = ", and of each rated row a second one", "rows are padded, idefics3 cannot pack them (mm_token_type_ids)"
    for changes, twice in (({"packing": True}, ""), ({"objective": "raft"}, wide), ({"objective": "head"}, "")):
        assert not packs(typed, **changes) and capsys.readouterr().out == f"{why}{kept}{twice}\n"
    with pytest.raises(UsageError, match=r"flex_attention is for packed rows, which this base cannot have.*mm_token"):
        packs(typed, attention="flex_attention")
    plain = training_run.build_model(msgspec.structs.replace(recipe, attention="eager"), tokenizer, None)
    assert attention.list_obstacles(plain) == ["attention eager"]


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is here")
@pytest.mark.parametrize(
    ("family", "kind", "pixels", "package"),
    [
        ("qwen3_vl", "Qwen3VLProcessor", "Qwen2VLImageProcessor", "torchvision"),
        ("smolvlm", "SmolVLMProcessor", "SmolVLMImageProcessor", "torchvision"),
        ("llava", "LlavaProcessor", "CLIPImageProcessor", None),
    ],
)
def test_a_base_whose_processor_lacks_a_package_is_one_line(
    setup: Any, family: str, kind: str, pixels: str, package: str | None, tmp_path: Path
) -> None:
    setup[3].processor.tokenizer.save_pretrained(tmp_path)
    said = {"processor_class": kind}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}), "utf-8")
    (tmp_path / "processor_config.json").write_text(json.dumps(said), "utf-8")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**said, "image_processor_type": pixels}), "utf-8")
    if package is None:
        assert type(vision.read_processor(str(tmp_path))).__name__ == kind
        return
    with pytest.raises(UsageError, match=f": its processor needs {package}: pip install {package}") as error:
        vision.read_processor(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("stage", "frozen"),
    [
        pytest.param(2, None, marks=pytest.mark.slow),
        pytest.param(3, ["vision_model"], marks=pytest.mark.slow),
        (3, None),
    ],
)
def test_two_processes_of_which_one_has_no_image_learn_as_one(
    stage: int, frozen: list[str] | None, tmp_path: Path
) -> None:
    """One row a micro-batch: in most steps a process has an image while the other has none."""
    rows = pictured(tmp_path)
    logs = {}
    for processes in (1, 2):
        training = {**SEEING["training"], "per_device_train_batch_size": 1, "learning_rate": 1e-3}
        zero = {"zero_optimization": {"stage": stage if processes == 2 else 1}}
        changes = {**SEEING, "training": training, "deepspeed": zero, "frozen": frozen}
        changes["evaluation"] = {"every": 2, "batch_size": 1}
        recipe = write_recipe(tmp_path, f"{processes}.yaml", **changes)
        train(recipe, rows, tmp_path / str(processes), processes=processes)
        logs[processes] = logged(tmp_path / str(processes))
    assert {"loss", "grad_norm"} <= set(logs[1][0]) and any("eval_mae" in line for line in logs[1])
    for line, wanted in zip(logs[2], logs[1], strict=True):
        assert line == pytest.approx(wanted, rel=1e-4, abs=1e-4)
