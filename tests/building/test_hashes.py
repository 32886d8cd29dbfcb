"""critic build, the images: hashes as other programs make them, duplicates, and why each other image was left out."""

import io
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, assert_one_line_error, run
from PIL import Image, ImageFilter

from critic import jsonl
from critic.building import pictures
from critic.building.pictures import DroppedImage, ImageFile
from critic.images import MAX_BYTES

SAMPLES = ROOT / "data/samples"

PHASH = {
    "multiverse/images/sign.png": "bb1be42c93916e86",
    "multiverse/images/street.png": "ecc312be49659d25",
    "visitbench/images/after.png": "9ee1c11ea54a6ab5",
    "visitbench/images/before.png": "bec1c13e91ca66b4",
    "visitbench/images/chart.png": "ef849c7bd13c8c48",
    "visitbench/images/fruit.png": "bf95c24aa43c9363",
}
"""The results of `phash` in imagehash 4.3.2."""


@pytest.mark.parametrize(("name", "expected"), PHASH.items())
def test_hashes_are_those_of_imagehash(name: str, expected: str) -> None:
    hashed = pictures.hash_image(SAMPLES, name)
    assert hashed.phash == expected and hashed.failure is None and hashed.width and len(hashed.md5) == 32


def test_pictures_of_16_bits_and_transparent_ones_are_hashed_as_they_are_seen() -> None:
    """Each as its like of 8 bits, on white."""
    row, column = np.mgrid[0:96, 0:96]
    shape = (row - 40) ** 2 + (column - 52) ** 2 < 900
    grey = Image.fromarray(np.where(shape, 30, 200).astype("uint8"))
    deep = Image.fromarray(np.where(shape, 30 * 257, 200 * 257).astype("uint16"))
    assert pictures.compute_phash(deep) == pictures.compute_phash(grey)
    opaque = Image.open(SAMPLES / "visitbench/images/chart.png").convert("RGBA")
    assert pictures.compute_phash(opaque) == PHASH["visitbench/images/chart.png"]
    clear = Image.new("RGBA", (96, 96))
    clear.putalpha(Image.fromarray(shape))
    assert pictures.compute_phash(clear) == pictures.compute_phash(Image.fromarray(~shape))


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    """A pipe named like an image, and a link that leads back to itself."""
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.png").write_bytes((SAMPLES / "visitbench/images/chart.png").read_bytes())
    os.mkfifo(images / "pipe.png")
    (images / "device.png").symlink_to("/dev/zero")
    (images / "loop.png").symlink_to("loop.png")
    done = run("critic", "build", images, "--out", tmp_path / "out", "--min-side", 1)
    assert done.returncode == 0 and "files: 4 -> 1 images" in done.stdout, done.stderr
    files = {file.path: file for _, file in jsonl.read(tmp_path / "out/images.jsonl", ImageFile)}
    assert {name: file.failure for name, file in files.items() if file.failure} == {
        "pipe.png": "image_unreadable",
        "device.png": "image_unreadable",
        "loop.png": "image_missing",
    }


def image(path: str, value: int, side: int = 100) -> ImageFile:
    return ImageFile(path=path, bytes=1, md5=path, width=side, height=side, phash=f"{value:016x}")


def test_all_near_images_go_and_no_others() -> None:
    """Against every pair compared with every other."""
    draw = random.Random(3)
    values = [draw.getrandbits(64) for _ in range(300)]
    for differing in range(9):
        value = draw.choice(values)
        for bit in draw.sample(range(64), differing):
            value ^= 1 << bit
        values.append(value)
    images = [image(f"{number}", value) for number, value in enumerate(values)]
    gone = {image.path: image for image in pictures.find_duplicates(images)}
    kept = [int(image.phash or "", 16) for image in images if image.path not in gone]
    assert all((phash ^ other).bit_count() > pictures.NEAR for phash in kept for other in kept if phash is not other)
    for duplicate in gone.values():
        differing = values[int(duplicate.path)] ^ values[int(duplicate.of or "")]
        assert differing.bit_count() == duplicate.distance <= pictures.NEAR


def folder(path: Path) -> Path:
    """Photographs of the samples; a copy, a smaller copy, a blurred one, one that is cut off, a small one, a text."""
    (path / "more").mkdir(parents=True)
    for name in ("before", "chart", "fruit"):
        (path / f"{name}.png").write_bytes((SAMPLES / f"visitbench/images/{name}.png").read_bytes())
    whole = (path / "fruit.png").read_bytes()
    (path / "more/copy.png").write_bytes(whole)
    with Image.open(io.BytesIO(whole)) as opened:
        plain = opened.convert("RGB")
    plain.resize((opened.width - 8, opened.height - 8)).save(path / "more/smaller.jpg")
    plain.filter(ImageFilter.GaussianBlur(1)).resize((200, 150)).save(path / "more/blurred.jpg")
    plain.resize((20, 15)).save(path / "tiny.png")
    (path / "torn.png").write_bytes(whole[: len(whole) // 2])
    (path / "notes.txt").write_text("no image")
    return path


def dropped(out: Path) -> dict[str, str]:
    return {image.path: image.reason for _, image in jsonl.read(out / "dropped.jsonl", DroppedImage)}


def test_what_is_left_out_is_in_a_table(tmp_path: Path) -> None:
    """As no image outside of the folder is ever sent, links that leave it are left out; one within it is an image."""
    images, out = folder(tmp_path / "images"), tmp_path / "out"
    (tmp_path / "elsewhere.png").write_bytes((images / "chart.png").read_bytes())
    (images / "out.png").symlink_to(tmp_path / "elsewhere.png")
    (images / "within.png").symlink_to(images / "chart.png")
    for _ in range(2):
        assert "quality asks a model" in run("critic", "build", images, "--out", out, "--min-side", 100, code=0).stdout
        assert dropped(out) == {
            "torn.png": "image_unreadable",
            "tiny.png": "too_small",
            "more/copy.png": "near_duplicate",
            "more/smaller.jpg": "near_duplicate",
            "more/blurred.jpg": "near_duplicate",
            "out.png": "image_outside_root",
            "within.png": "near_duplicate",
        }
    assert "notes.txt" not in (out / "images.jsonl").read_text("utf-8")


def test_hashing_goes_on_where_it_was_killed_and_looks_at_repaired_images(tmp_path: Path, monkeypatch: Any) -> None:
    """What was not read is tried again; nothing else is hashed twice, but what has another size or lost its line."""
    images, out = folder(tmp_path / "images"), tmp_path / "images.jsonl"
    (images / "gone.png").symlink_to(images / "nowhere.png")
    (images / "large.png").write_bytes((images / "chart.png").read_bytes())
    with (images / "large.png").open("r+b") as file:
        file.truncate(MAX_BYTES + 1)
    hashed, plain = set[str](), pictures.hash_image

    def hash_image(root: Path, name: str) -> ImageFile:
        hashed.add(name)
        return plain(root, name)

    def failures() -> dict[str, str]:
        hashed.clear()
        return {image.path: image.failure for image in pictures.scan(images, out) if image.failure}

    monkeypatch.setattr(pictures, "hash_image", hash_image)
    said = {"gone.png": "image_missing", "large.png": "image_too_large", "torn.png": "image_unreadable"}
    assert failures() == said
    whole = out.read_bytes()
    assert failures() == said and out.read_bytes() == whole and hashed == {"gone.png", "large.png"}
    out.write_bytes(whole[: len(whole) // 2])
    assert failures() == said and out.read_bytes() == whole and 2 < len(hashed) < whole.count(b"\n")
    for name in said:
        (images / name).unlink()
        (images / name).write_bytes((images / "chart.png").read_bytes())
        said = {path: why for path, why in said.items() if path != name}
        assert failures() == said
    (images / "chart.png").write_bytes(b"other")
    assert failures() == {"chart.png": "image_unreadable"}


def test_a_name_that_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    images = folder(tmp_path / "images")
    try:
        (images / "chart.png").rename(images / os.fsdecode(b"caf\xe9.png"))
    except OSError:
        pytest.skip("no such names here")
    assert_one_line_error(run("critic", "build", images, "--out", tmp_path / "out"), "caf\\xe9.png' is not UTF-8")


def test_without_pillow_it_is_said_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    images = folder(tmp_path / "images")
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert_one_line_error(run("critic", "build", images, "--out", tmp_path / "out"), "pip install pillow")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    assert_one_line_error(run("critic", "build", tmp_path / "none", *out), "no such folder")
    (tmp_path / "file").write_text("")
    assert_one_line_error(run("critic", "build", SAMPLES, "--out", tmp_path / "file"), "file: cannot be written: ")
    assert_one_line_error(run("critic", "build", tmp_path, "--out", tmp_path / "out"), "lies in the folder of images")
    (tmp_path / "empty").mkdir()
    assert_one_line_error(run("critic", "build", tmp_path / "empty", *out), "no image")
    assert_one_line_error(run("critic", "build", SAMPLES, *out, "--plan", "x"), "--plan x", "multiverse")
