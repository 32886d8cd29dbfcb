"""Images that may be sent and images that may not: each is refused by name, large ones before they are decoded."""

import base64
import hashlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import png_header

Picture = pytest.importorskip("PIL.Image", reason="needs Pillow")

from critic import jsonl  # noqa: E402
from critic.errors import UsageError  # noqa: E402
from critic.images import Image, ImageError, Images  # noqa: E402
from critic.page.page import PAGE_IMAGES, embed_images  # noqa: E402


def picture(path: Path, size: tuple[int, int] = (60, 40), kind: str = "PNG", mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Picture.effect_noise(size, 50).convert(mode).save(path, kind)
    return path


def open_sent(image: Image) -> Any:
    """Return the picture that an image sends."""
    return Picture.open(io.BytesIO(base64.b64decode(image.uri.partition(",")[2])))


def failure(images: Images, name: str) -> str:
    with pytest.raises(ImageError) as caught:
        images.load(name)
    return caught.value.failure


@pytest.fixture
def root(tmp_path: Path) -> Path:
    picture(tmp_path / "root" / "in" / "a.png")
    picture(tmp_path / "secret.png", (7, 7))
    return tmp_path / "root"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_the_files_own_bytes_are_sent(root: Path, kind: str) -> None:
    data = picture(root / "image", kind=kind).read_bytes()
    image = Images(root).load("image")
    head, text = image.uri.split(",")
    assert head == f"data:image/{kind.lower()};base64" and base64.b64decode(text) == data
    assert not image.resized and image.path == "image"
    assert image.sha256 == hashlib.sha256(data).hexdigest()


def test_paths_that_leave_the_root(root: Path) -> None:
    (root / "link.png").symlink_to(root.parent / "secret.png")
    (root / "out").symlink_to(root.parent)
    (root / "in" / "fine.png").symlink_to(root / "in" / "a.png")
    (root / "self.png").symlink_to(root / "self.png")
    images = Images(root)
    for name in (
        "../secret.png",
        "in/../../secret.png",
        str(root.parent / "secret.png"),
        "link.png",
        "out/secret.png",
        "http://127.0.0.1/a.png",
        f"file://{root}/in/a.png",
    ):
        assert failure(images, name) == "image_outside_root", name
    os.mkfifo(root / "pipe.png")
    for name in ("in/no.png", "in", "", "a\0b", "self.png", "x" * 5000, "pipe.png"):
        assert failure(images, name) == "image_missing", name
    # A name from Windows: found, held to the root, and no more than a name where a file is called so.
    assert failure(images, "..\\secret.png") == failure(images, "in\\..\\../secret.png") == "image_outside_root"
    assert images.load(".\\in\\a.png").sha256 == images.load("in/a.png").sha256
    other = picture(root / "in\\a.png", (5, 5))
    assert base64.b64decode(Images(root).load("in\\a.png").uri.partition(",")[2]) == other.read_bytes()
    assert images.load("in/fine.png").sha256 == images.load("in/a.png").sha256 == images.load("./in//a.png").sha256


def test_a_root_behind_a_link_is_a_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "door").symlink_to(root)
    assert Images(tmp_path / "door").load("in/a.png")
    with pytest.raises(UsageError, match="no such folder"):
        Images(tmp_path / "nowhere")


def test_the_state_of_files_changes_with_them(tmp_path: Path) -> None:
    """Some of the names belong to no file."""
    names = ["a.png", "x" * 400, "a\0b", "https://a/b.png", "data:,"]

    def state() -> str:
        return Images(tmp_path).state(names)

    missing = state()
    (tmp_path / "a.png").write_bytes(b"1")
    there = state()
    (tmp_path / "a.png").write_bytes(b"12")
    assert len({missing, there, state()}) == 3 and state() == state()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_what_is_cut_off_or_garbled_or_of_another_format(root: Path, kind: str) -> None:
    picture(root / "bitmap", kind="BMP")
    assert failure(Images(root), "bitmap") == "image_unreadable"
    data = picture(root / "whole", (300, 200), kind).read_bytes()
    for name, content in {"half": data[: len(data) // 2], "head": data[:20], "empty": b"", "text": b"no image"}.items():
        (root / name).write_bytes(content)
        assert failure(Images(root), name) == "image_unreadable", name


@pytest.mark.parametrize("side", [9_000, 12_000, 40_000])
def test_a_bomb_is_refused_by_its_header(root: Path, side: int) -> None:
    """Pillow itself refuses only the last of the three. Decoding would find that the data ends too early."""
    (root / "bomb.png").write_bytes(png_header(side, side))
    assert failure(Images(root), "bomb.png") == "image_too_large"


def test_a_file_of_too_many_bytes_is_not_read(root: Path) -> None:
    with (root / "sparse.png").open("wb") as file:
        file.truncate(10**12)
    assert failure(Images(root, max_bytes=10**9), "sparse.png") == "image_too_large"
    size = (root / "in" / "a.png").stat().st_size
    assert Images(root, max_bytes=size).load("in/a.png")
    assert failure(Images(root, max_bytes=size - 1), "in/a.png") == "image_too_large"


@pytest.mark.parametrize(
    ("size", "mode"), [((600, 300), "RGB"), ((300, 600), "RGBA"), ((1000, 1), "L"), ((1, 900), "P")]
)
def test_large_images_are_made_smaller(root: Path, size: tuple[int, int], mode: str) -> None:
    picture(root / "large.png", size, mode=mode)
    image = Images(root, resize_to=400).load("large.png")
    sent = open_sent(image)
    assert image.resized and sent.width * sent.height <= 400
    if min(size) > 1:
        assert sent.width / sent.height == pytest.approx(size[0] / size[1], rel=0.1)
    same = Images(root, resize_to=size[0] * size[1]).load("large.png")
    assert not same.resized


def test_a_page_gets_small_copies_of_images_wherever_they_lie(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judgments name their replies, and these the folder of images; what is missing, or no image, is left out."""
    picture(root / "large.png", (1000, 800))
    judged, replies = root.parent / "j.jsonl", root.parent / "r.jsonl"
    jsonl.write_json(jsonl.sidecar(judged), {"replies": {"file": str(replies)}, "images": None})
    jsonl.write_json(jsonl.sidecar(replies), {"data_root": str(root)})
    uris = embed_images(names := ["large.png", "missing.png", "../secret.png", "in/a.png", "large.png"], [judged])
    kinds = {name: uri.partition(";")[0] for name, (uri,) in uris.items()}
    assert kinds == {"large.png": "data:image/jpeg", "in/a.png": "data:image/png"}
    assert not embed_images([f"{number}.png" for number in range(PAGE_IMAGES)] + names, [judged]), "the first ones only"
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert embed_images(names, [judged]) == {}, "without Pillow there is a page all the same"


def test_a_smaller_image_of_16_bits_or_with_transparency_is_not_blank(root: Path) -> None:
    def sent(image: Any) -> Any:
        image.save(root / "large.png")
        return open_sent(Images(root, resize_to=400).load("large.png"))

    gradient = np.linspace(0, 65535, 10_000).reshape(100, 100).astype("uint16")
    assert np.asarray(sent(Picture.fromarray(gradient)).convert("L")).mean() == pytest.approx(127, abs=3)
    logo = np.zeros((100, 100, 4), "uint8")
    logo[:50, :, 3] = 255
    seen = np.asarray(sent(Picture.fromarray(logo)).convert("RGB"))
    assert seen.min() == 0 and seen.max() == 255 and seen.mean() == pytest.approx(127, abs=10)


@pytest.mark.parametrize("resize_to", [None, 200])
@pytest.mark.parametrize("name", ["turned.jpg", "turned.png", "turned.webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_stands_upright(root: Path, name: str, orientation: int, resize_to: int | None) -> None:
    """The red corner is where a browser shows it, and the tag is gone; in an image that is made smaller as well."""
    pixels = np.zeros((16, 32, 3), "uint8")
    pixels[:8, :8, 0] = 255
    image = Picture.fromarray(pixels)
    exif = image.getexif()
    exif[274] = orientation
    image.save(root / name, exif=exif)
    loaded = Images(root, resize_to=resize_to).load(name)
    sent = open_sent(loaded)
    assert loaded.uri.startswith(f"data:image/{sent.format.lower()};") and loaded.resized == (resize_to is not None)
    size = (32, 16) if resize_to is None else (20, 10)
    assert sent.size == (size if orientation < 5 else size[::-1]) and sent.getexif().get(274, 1) == 1
    corners = {1: (0, 0), 2: (1, 0), 3: (1, 1), 4: (0, 1), 5: (0, 0), 6: (1, 0), 7: (1, 1), 8: (0, 1)}
    right, low = corners[orientation]
    corner = sent.convert("RGB").getpixel((2 + right * (sent.width - 5), 2 + low * (sent.height - 5)))
    assert corner[0] > 200, corner
    if orientation == 1 and resize_to is None:
        assert base64.b64decode(loaded.uri.split(",")[1]) == (root / name).read_bytes()


def test_data_uris(root: Path) -> None:
    data = (root / "in" / "a.png").read_bytes()
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    images = Images(root, max_bytes=len(data))
    assert images.load(uri).uri == Images(root, uris={"name": uri}).load("name").uri == uri
    assert failure(images, "data:image/png;base64,@@@") == "image_unreadable"
    assert failure(images, "data:image/png,abc") == "image_unreadable"
    assert failure(images, uri + base64.b64encode(b"more of it").decode()) != ""
    assert failure(Images(root, max_bytes=len(data) - 1), uri) == "image_too_large"
    bomb = "data:image/png;base64," + base64.b64encode(png_header(40_000, 40_000)).decode()
    assert failure(images, bomb) == "image_too_large"
