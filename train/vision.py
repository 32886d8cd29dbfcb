"""Tokenize prompts in which each image takes as many tokens as the model uses for it, and load the pixels."""

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from packing import Node
from PIL import Image

from critic.backends import embed_images, list_image_names, parts_of
from critic.errors import UsageError, one_line
from critic.images import ImageError, Images, put_on_white, put_times
from critic.records import Message

TOWERS = ("vision_model", "vision_tower", "visual", "vision_encoder")
"""Names of the vision part in different model families."""

TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")
"""Model inputs that mark the image tokens, in families that need this."""

BLANK = ""
"""Name of the white image for a process whose rows have none. All processes must call the vision part."""


class SeeingTokenizer:
    """A processor and its tokenizer as one object. Unknown attributes are those of the tokenizer.

    A rendered prompt contains all tokens of each image. So image tokens count in the prompt's length. Truncation
    removes only characters of texts, and cannot affect them. `images` loads images below a data root; None if none need
    loading.
    """

    def __init__(self, processor: Any, images: Images | None) -> None:
        self.processor, self.images = processor, images

    def __getattr__(self, name: str) -> Any:
        # While it is being unpickled.
        if name.startswith("__") or name == "processor":
            raise AttributeError(name)
        return getattr(self.processor.tokenizer, name)

    def __len__(self) -> int:
        return len(self.processor.tokenizer)

    def __call__(self, text: str, **options: Any) -> Any:
        return self.processor.tokenizer(text, **options)

    def save_pretrained(self, folder: Path) -> None:
        self.processor.save_pretrained(folder)

    @property
    def chat_template(self) -> str | None:
        template: str | None = self.processor.chat_template or self.processor.tokenizer.chat_template
        return template

    @chat_template.setter
    def chat_template(self, template: str) -> None:
        self.processor.chat_template = self.processor.tokenizer.chat_template = template

    def apply_chat_template(self, messages: list[Message], *, tokenize: bool, add_generation_prompt: bool) -> str:
        """Render messages to text that contains all tokens of each image, and of each frame of a video.

        Raise ImageError if an image cannot be loaded, or if a message's text contains the image token.
        """
        sizes = {name: self._measure(name) for name in list_image_names(messages)}
        image = {"type": "image", "image": ""}
        shown = {name: put_times((time, image) for time, _ in frames) for name, frames in sizes.items()}
        in_parts = [embed_images({**message, "content": parts_of(message)}, shown) for message in messages]
        text: str = self.processor.tokenizer.apply_chat_template(
            in_parts, chat_template=self.chat_template, tokenize=tokenize, add_generation_prompt=add_generation_prompt
        )
        in_order = [size for name in list_image_names(messages) for _, size in sizes[name]]
        first, *behind = text.split(self.processor.image_token)
        # An answer that spells the image token would be read as one more image. Gemma's token for an image becomes
        # others, which receive its features.
        own = dict.fromkeys([self.processor.image_token, self.convert_ids_to_tokens(self.image_token_id)])
        if len(behind) != len(in_order) or any(token in piece for piece in (first, *behind) for token in own):
            raise ImageError("image_unreadable", f"the text holds {' or '.join(own)}")
        return first + "".join(self._expand(size) + piece for size, piece in zip(in_order, behind, strict=True))

    @cache  # noqa: B019 - one tokenizer a process
    def _measure(self, name: str) -> list[tuple[str, tuple[int, int]]]:
        """Return the size of an image as [("", size)], or of a video the time and size of each frame."""
        return [(time, picture.size) for time, picture in self.pictures(name)]

    def expansion(self, name: str) -> str:
        """Return the text of all tokens that stand for an image or a video's frames, without the frames' times.

        Raise UsageError if the processor does not tell these tokens.
        """
        return "".join(self._expand(size) for _, size in self._measure(name))

    @cache  # noqa: B019 - sizes repeat over thousands of rows
    def _expand(self, size: tuple[int, int]) -> str:
        """Return the text of all tokens that stand for an image of `size` (width, height) in pixels.

        Raise UsageError as `expansion` does.
        """
        token = self.processor.image_token
        try:
            processed = self.processor(text=[token], images=[[white(size)]], return_text_replacement_offsets=True)
            ((replaced,),) = processed["text_replacement_offsets"]
            return str(replaced["replacement"])
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            kind = type(self.processor).__name__
            raise UsageError(f"{kind} does not tell which tokens stand for an image: {one_line(error)}") from None

    def ids(self, text: str) -> list[int]:
        """Return the token ids of `text`, without adding special tokens."""
        return list(self(text, add_special_tokens=False)["input_ids"])

    @property
    def image_token_id(self) -> int:
        """Id of the token that receives an image's features. The processor lists it before the tokens around it."""
        return int(self.processor.image_token_ids[0])

    def image_tokens(self, name: str) -> int:
        """Return the number of tokens that receive the features of an image or video, without those around them."""
        return self.ids(self.expansion(name)).count(self.image_token_id)

    @property
    def types(self) -> list[str]:
        """Names of the token type inputs (TOKEN_TYPES) that the model's family needs."""
        return [name for name in TOKEN_TYPES if name in self.processor.model_input_names]

    def types_of(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the token type inputs that the model's family needs, by name: 1 at image tokens and 0 elsewhere."""
        return {name: (ids == self.image_token_id).long() for name in self.types}

    def pictures(self, name: str) -> list[tuple[str, Any]]:
        """Return an image as [("", picture)], or of a video the time and picture of each frame.

        They are as vLLM shows them: in RGB, on white. Raise ImageError if they cannot be loaded.
        """
        if name == BLANK:
            return [("", white((64, 64)))]
        assert self.images is not None
        shown = [(image.time, Image.open(io.BytesIO(image.data))) for image in self.images.load(name).shown]
        # Transparent parts would turn black.
        return [(time, put_on_white(picture).convert("RGB")) for time, picture in shown]

    def pixels(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the model's inputs for the named images and videos, in order, as the processor makes them."""
        options = getattr(self.processor.valid_processor_kwargs, "_defaults", {}).get("images_kwargs", {})
        images = [picture for name in names for _, picture in self.pictures(name)]
        computed = self.processor.image_processor(images=images, return_tensors="pt", **options)
        return {name: value for name, value in computed.items() if name in self.processor.model_input_names}


def read_processor(base: str, revision: str | None = None) -> Any:
    """Return the processor of a base. Raise UsageError, which names a missing package, if it cannot be loaded."""
    try:
        return transformers.AutoProcessor.from_pretrained(base, revision=revision)
    except ImportError as error:
        lacking = next((name for name in ("torchvision", "num2words") if name in str(error).lower()), None)
        why = f"needs {lacking}: pip install {lacking}" if lacking else f"cannot be loaded: {one_line(error)}"
        raise UsageError(f"base {base!r}: its processor {why}, or choose a base without it (train/README.md)") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"base {base!r} has no processor for images: {str(error).splitlines()[0]}") from None


def white(size: tuple[int, int]) -> Any:
    return Image.new("RGB", size, "white")


def number_images(rows: Sequence[dict[str, Any]], image_token: int) -> list[list[int]]:
    """Return the token ids of each row, with image tokens replaced by a negative number for each different image.

    So rows have a common prefix only if they show the same images. `image_token` is the id of image tokens.

    >>> number_images([{"input_ids": [5, 9, 9], "images": ["a.png"], "image_tokens": [2]}, {"input_ids": [5, 6]}], 9)
    [[5, -1, -1], [5, 6]]
    """
    numbers: dict[str, int] = {}
    apart = []
    for row in rows:
        ids = row["input_ids"]
        if row.get("images"):
            ids = np.array(ids)
            markers = [-1 - numbers.setdefault(name, len(numbers)) for name in row["images"]]
            ids[ids == image_token] = np.repeat(markers, row["image_tokens"])
            ids = ids.tolist()
        apart.append(ids)
    return apart


def list_images(nodes: Sequence[Node], rows: Sequence[dict[str, Any]], image_token: int) -> list[str]:
    """Return the names of the images in a packed sequence, in the order of their tokens."""
    names: list[str] = []
    for node in nodes:
        row = rows[node.row]
        tokens = np.flatnonzero(np.asarray(row["input_ids"]) == image_token)
        starts = tokens[np.cumsum([0, *row.get("image_tokens", [])])[:-1]]
        pairs = zip(row.get("images", []), starts, strict=True)
        names += [name for name, start in pairs if node.start <= start < node.end]
    return names
