"""From a folder of images to those that a benchmark is made of: hashes, duplicates, a drawn sample, and why every other
image was left out (MultiVerse §2.1, step 1; AlignMMBench §3.2). Pillow and SciPy are imported where hashes are made."""

import hashlib
import math
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from tqdm import tqdm

from critic import jsonl
from critic.errors import UsageError
from critic.images import MAX_BYTES, ImageError, convert_to_8_bits, decode_image

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif")

NEAR = 6
"""Bits by which near-duplicates may differ. Two unrelated photographs differ by about 32."""

OTHER = "Other"
"""The category that rare ones are merged into."""


class ImageFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image by its path in the folder. `phash` are 64 bits in hexadecimal; `failure` says why there is none."""

    path: str
    bytes: int
    md5: str
    width: int = 0
    height: int = 0
    phash: str | None = None
    failure: str | None = None
    detail: str | None = None


class DroppedImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image that is left out: at which step and why; a duplicate `of` which, at how many bits' `distance`."""

    path: str
    step: str
    reason: str
    of: str | None = None
    distance: int | None = None


def perceptual_hash(image: Any) -> str:
    """The pHash of a picture of Pillow's, in 16 hexadecimal digits, bit by bit that of `imagehash.phash`: which of the
    64 lowest frequencies of the 32 x 32 grey picture (discrete cosine transform) lie above their median. But one of 16
    bits or with transparency is hashed as it is seen (`eight_bits`)."""
    from PIL import Image  # noqa: PLC0415 - not part of a plain installation
    from scipy import fft  # noqa: PLC0415 - takes half a second, which the other commands need not wait

    grey = np.asarray(convert_to_8_bits(image).convert("L").resize((32, 32), Image.Resampling.LANCZOS))
    low = fft.dct(fft.dct(grey, axis=0), axis=1)[:8, :8]
    return np.packbits(low > np.median(low)).tobytes().hex()


def image_file(root: Path, name: str) -> ImageFile:
    """An image, hashed. What cannot be read or decoded as a whole has a `failure`."""
    facts: dict[str, Any] = {"path": name, "bytes": 0, "md5": ""}
    try:
        there = (root / name).stat()
        if not stat.S_ISREG(there.st_mode):  # to read a pipe waits for whoever writes into it
            raise ImageError("image_unreadable", "no file, but a pipe, a socket or a device")
        if there.st_size > MAX_BYTES:
            raise ImageError("image_too_large", f"more than {MAX_BYTES:,} bytes")
        data = (root / name).read_bytes()
        facts |= {"bytes": len(data), "md5": hashlib.md5(data, usedforsecurity=False).hexdigest()}
        with decode_image(data) as image:
            return ImageFile(**facts, width=image.width, height=image.height, phash=perceptual_hash(image))
    except (ImageError, OSError) as error:
        failure = error.failure if isinstance(error, ImageError) else "image_missing"
        return ImageFile(**facts, failure=failure, detail=str(error))


def find_images(root: Path) -> list[str]:
    """The images below a folder by their suffixes, sorted. Raises UsageError for a folder without any, and for a name
    that is not UTF-8."""
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder")
    paths = (Path(folder, file) for folder, _, files in os.walk(root) for file in files)
    images = (path for path in paths if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))
    names = sorted(path.relative_to(root).as_posix() for path in images)
    if not names:
        raise UsageError(f"{root}: no image; expected {', '.join(SUFFIXES)}")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{root}: the name {os.fsencode(name)!r} is not UTF-8; rename the file") from None
    return names


def scan(root: Path, out: Path) -> list[ImageFile]:
    """The images of a folder, hashed, in the order of their names; each is a line of `out` once it is hashed. Killed
    and run again it goes on. What could not be read is tried again, as is an image of another size than before."""
    names = find_images(root)
    jsonl.repair(out)
    there = out.is_file() and out.stat().st_size
    known = {image.path: image for _, image in jsonl.read(out, ImageFile)} if there else {}

    def hashed(name: str) -> ImageFile:
        before, path = known.get(name), root / name
        if before is not None and before.md5 and path.is_file() and path.stat().st_size == before.bytes:
            return before
        return image_file(root, name)

    images = list[ImageFile]()
    # Pillow, hashlib and SciPy let go of the interpreter's lock for most of their work: threads keep two cores busy.
    with jsonl.Appender(out) as file, ThreadPoolExecutor(os.cpu_count()) as pool:
        for image in tqdm(pool.map(hashed, names), total=len(names), desc="hash", unit="image", disable=None):
            images.append(image)
            if image != known.get(image.path):
                file.append(image)
    jsonl.write(out, images)  # without lines of images that were replaced, or are gone
    jsonl.write_sidecar(out, {"folder": str(root), "images": len(images)})
    return images


def duplicates(images: Sequence[ImageFile]) -> list[DroppedImage]:
    """The images that show again what another shows: their hashes differ by at most NEAR bits, of copies by none. Of
    several the one with most pixels stays, then the one with most bytes. Every one that goes is as near as that to one
    that stays, so that no chain of small steps takes along what is unlike."""
    ranked = sorted(images, key=lambda image: (-image.width * image.height, -image.bytes, image.path))
    dropped, kept, hashes = list[DroppedImage](), list[str](), np.zeros(len(ranked), np.uint64)
    for image in ranked:
        own = np.uint64(int(image.phash or "0", 16))
        distances = np.bitwise_count(hashes[: len(kept)] ^ own)
        if kept and distances.min() <= NEAR:
            of, distance = kept[int(distances.argmin())], int(distances.min())
            gone = DroppedImage(path=image.path, step="duplicates", reason="near_duplicate", of=of, distance=distance)
            dropped.append(gone)
        else:
            hashes[len(kept)] = own
            kept.append(image.path)
    return dropped


def unusable(root: Path, images: Iterable[ImageFile], min_side: int) -> list[DroppedImage]:
    """Images that cannot be decoded, are links out of `root`, or are smaller than `min_side` pixels on a side."""
    dropped = []
    for image in images:
        reason = image.failure
        # As no image outside of the folder is ever sent (`Images.load`).
        if reason is None and not (root / image.path).resolve().is_relative_to(root.resolve()):
            reason = "image_outside_root"
        elif reason is None and min(image.width, image.height) < min_side:
            reason = "too_small"
        if reason is not None:
            dropped.append(DroppedImage(path=image.path, step="files", reason=reason))
    return dropped


def merged(categories: Mapping[str, str], rare: int) -> dict[str, str]:
    """The categories of images by path, those of fewer than `rare` images merged into OTHER."""
    counts = Counter(categories.values())
    return {path: name if counts[name] >= rare else OTHER for path, name in categories.items()}


def drawn(categories: Mapping[str, str], cap: int) -> set[str]:
    """At most `cap` images by path, from each category in proportion to its size (MultiVerse §2.1), by the method of
    largest remainders. Which ones follows from the paths alone, not from their order."""
    if len(categories) <= cap:
        return set(categories)
    by_category = defaultdict[str, list[str]](list)
    for path in sorted(categories, key=lambda path: hashlib.sha256(f"0/{path}".encode()).digest()):
        by_category[categories[path]].append(path)
    exact = {name: cap * len(paths) / len(categories) for name, paths in by_category.items()}
    shares = {name: math.floor(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: (shares[name] - exact[name], name))[: cap - sum(shares.values())]:
        shares[name] += 1
    return {path for name, paths in by_category.items() for path in paths[: shares[name]]}
