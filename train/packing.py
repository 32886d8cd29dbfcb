"""Pack rows into one sequence without padding, with common prefixes stored once, as a prefix tree.

A judging prompt is mostly rubric, which is the same in every row, and rows of one question also share the reference.
Tokens see what is on their path from the root, at the positions they would have in a row by itself. So hidden states,
losses and gradients equal those of the separate rows.
"""

from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask

from critic.backends.answers import count_common

LEAST = 16
"""Fewest tokens that rows must share, beyond the parent node, to get a common node."""

IN_VAIN = 4096
"""Most query-key pairs that may be computed and masked out to save one call of attention."""


class Node(NamedTuple):
    """Tokens `start` to `end` of the row with index `row`, which follow the tokens of node `parent` (-1: none).

    A `leaf` belongs to only that row; other nodes are shared.
    """

    row: int
    start: int
    end: int
    parent: int
    leaf: bool


def build_prefix_tree(rows: list[list[int]], most: list[int], least: float = LEAST) -> list[Node]:
    """Return the nodes of the prefix tree of a batch. Each node comes after its parent, and each row has one leaf.

    Row i shares at most its first `most[i]` tokens, which must be fewer than it has. Shared nodes have at least `least`
    tokens; if it is infinite, rows share nothing.

    >>> for node in build_prefix_tree([[7, 7, 1, 2], [7, 7, 3]], most=[3, 2], least=2):
    ...     print(node)
    Node(row=0, start=0, end=2, parent=-1, leaf=False)
    Node(row=0, start=2, end=4, parent=0, leaf=True)
    Node(row=1, start=2, end=3, parent=0, leaf=True)
    """
    order = sorted(range(len(rows)), key=lambda row: rows[row])
    shared = [0] + [min(count_common(rows[a], rows[b]), most[a], most[b]) for a, b in pairwise(order)]
    nodes: list[Node] = []

    def grow(members: range, start: int, parent: int) -> None:
        # Sorted, rows that begin alike stand side by side, and any two share what all neighbours between them do.
        cuts = [index for index in members[1:] if shared[index] < start + least]
        for first, stop in pairwise([members.start, *cuts, members.stop]):
            row = order[first]
            # A single row shares nothing more.
            if stop - first == 1:
                nodes.append(Node(row, start, len(rows[row]), parent, leaf=True))
            else:
                end = min(shared[first + 1 : stop])
                nodes.append(Node(row, start, end, parent, leaf=False))
                grow(range(first, stop), end, len(nodes) - 1)

    grow(range(len(rows)), 0, -1)
    return nodes


def add_branches(nodes: list[Node], branches: dict[int, tuple[int, int]]) -> list[Node]:
    """Return the nodes of a prefix tree with an alternative to one token in some of its leaves.

    `branches` maps a row to (other row, position). The leaf of the row is cut before the position, and the other row's
    token at the position becomes an additional leaf after the first part.

    >>> for node in add_branches([Node(row=0, start=0, end=5, parent=-1, leaf=True)], {0: (1, 3)}):
    ...     print(node)
    Node(row=0, start=0, end=3, parent=-1, leaf=True)
    Node(row=0, start=3, end=5, parent=0, leaf=True)
    Node(row=1, start=3, end=4, parent=0, leaf=True)
    """
    tree, moved = list[Node](), list[int]()
    for node in nodes:
        trunk = len(tree)
        tree.append(node._replace(parent=moved[node.parent] if node.parent >= 0 else -1))
        if node.leaf and node.row in branches:
            row, position = branches[node.row]
            tree[trunk] = tree[trunk]._replace(end=position)
            tree.append(node._replace(start=position, parent=trunk))
            tree.append(Node(row, position, position + 1, trunk, leaf=True))
        moved.append(len(tree) - 1)
    return tree


def locate_tokens(nodes: list[Node]) -> dict[int, list[int]]:
    """Return, for each row, the index in the packed sequence of each of its tokens.

    >>> locate_tokens(build_prefix_tree([[7, 7, 1, 2], [7, 7, 3]], most=[3, 2], least=2))
    {0: [0, 1, 2, 3], 1: [0, 1, 4]}
    """
    paths, first = list[list[int]](), 0
    for node in nodes:
        # A branch leaves its trunk before the end.
        above = paths[node.parent][: node.start] if node.parent >= 0 else []
        paths.append([*above, *range(first, first + node.end - node.start)])
        first += node.end - node.start
    return {node.row: path for node, path in zip(nodes, paths, strict=True) if node.leaf}


class Tree:
    """Visibility of the tokens in a packed sequence of consecutive segments.

    Segment i has `lengths[i]` tokens. Its tokens see the segments on the path from the root (`parents[i]` < i, -1 for a
    root) and the earlier tokens of their own segment. The descendants of a segment directly follow it.

    - `spans` [2 × tokens]: position of each token on its path, and the index (exclusive) up to which later tokens see
      it.
    - `depths`: number of tokens on the path to each segment, including its own.
    - `calls`: segments that one attention call processes, as (segment whose path they look back on, range of segments).
    """

    def __init__(self, lengths: list[int], parents: list[int]) -> None:
        self.lengths, self.parents = lengths, parents
        self.depths: list[int] = []
        self.calls: list[tuple[int, range]] = []
        self._kept: dict[Any, Any] = {}
        taken = before = 0
        for segment, (length, parent) in enumerate(zip(lengths, parents, strict=True)):
            self.depths.append(length + (self.depths[parent] if parent >= 0 else 0))
            anchor, together = self.calls[-1] if self.calls else (-1, range(0))
            whole = taken + length
            in_vain = whole * (before + whole) - taken * (before + taken) - length * self.depths[-1]
            # A call costs more than a few masked pairs, so small segments of a path go together.
            if (parent == anchor or parent in together) and in_vain <= IN_VAIN:
                self.calls[-1:] = [(anchor, range(together.start, segment + 1))]
                taken = whole
            else:
                self.calls.append((parent, range(segment, segment + 1)))
                taken, before = length, self.depths[-1] - length
        last = list(accumulate(lengths))
        # Children come after parents, so the end of a subtree is known when its root is reached.
        for segment in reversed(range(len(parents))):
            if parents[segment] >= 0:
                last[parents[segment]] = max(last[parents[segment]], last[segment])
        positions = [torch.arange(depth - length, depth) for depth, length in zip(self.depths, lengths, strict=True)]
        self.spans = torch.stack([torch.cat(positions), torch.tensor(last).repeat_interleave(torch.tensor(lengths))])

    def pin_memory(self) -> "Tree":
        """Pin the memory of the tree. The data loader calls this."""
        self.spans = self.spans.pin_memory()
        return self

    def to(self, device: Any, non_blocking: bool = False) -> "Tree":
        """Move the tree to a device. accelerate calls this for a batch before its step."""
        self.spans = self.spans.to(device, non_blocking=non_blocking)
        return self

    @property
    def sizes(self) -> list[int]:
        """Number of tokens in each attention call."""
        return [sum(self.lengths[together.start : together.stop]) for _, together in self.calls]

    def keys(self, states: torch.Tensor) -> list[torch.Tensor]:
        """Return for each attention call the states [… × keys × width] that its tokens may see.

        `states` are [… × tokens × width]. A call's own states come after those of the path that it looks back on.
        """
        parts = states.split(self.lengths, dim=-2)
        paths = {-1: states[..., :0, :]}
        for segment in sorted(set(self.parents) - {-1}):
            paths[segment] = torch.cat([paths[self.parents[segment]], parts[segment]], dim=-2)
        pairs = zip(self.calls, states.split(self.sizes, dim=-2), strict=True)
        return [torch.cat([paths[anchor], own], dim=-2) for (anchor, _), own in pairs]

    def masks(self, window: int | None, like: torch.Tensor) -> list[torch.Tensor]:
        """Return the additive attention mask [1 × 1 × tokens × keys] of each call, with the device and dtype of `like`.

        `window` is the number of latest tokens, including itself, that a token sees (None: all). Masks are cached for
        all layers.
        """
        key = (window, like.device, like.dtype)
        if key not in self._kept:
            self.to(like.device)
            self._kept[key] = [self._build_mask(*call, window, like.dtype) for call in self.calls]
        masks: list[torch.Tensor] = self._kept[key]
        return masks

    def _build_mask(self, anchor: int, together: range, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        before = self.depths[anchor] if anchor >= 0 else 0
        first, stop = sum(self.lengths[: together.start]), sum(self.lengths[: together.stop])
        positions, until = self.spans[:, first:stop]
        tokens = torch.arange(first, stop, device=until.device)
        visible = torch.ones(len(tokens), before + len(tokens), dtype=torch.bool, device=until.device).tril(before)
        visible[:, before:] &= tokens[:, None] < until
        back = positions[:, None] - torch.cat([torch.arange(before, device=tokens.device), positions])
        visible &= back < (window or before + len(tokens))
        return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]

    def block_mask(self, window: int | None, device: torch.device) -> BlockMask:
        """Return the FlexAttention block mask, cached for all layers. `window` is as in `masks`.

        It is built from tiles, because all pairs of 32,000 tokens would take a gigabyte.
        """
        key = (window, device)
        if key not in self._kept:
            self._kept[key] = _build_block_mask(self.spans.to(device), window)
        return self._kept[key]


def _build_block_mask(spans: torch.Tensor, window: int | None, tile: int = 128) -> BlockMask:
    positions, until = spans

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        visible = (key <= query) & (query < until[key])
        return visible if window is None else visible & (positions[query] - positions[key] < window)

    count, padding = len(until), -len(until) % tile
    tiles = torch.arange(0, count, tile, device=until.device)
    # No key of the last tile is seen by all queries, as behind its tokens there are none.
    reach = torch.nn.functional.pad(until, (0, padding)).view(-1, tile)
    some = (tiles[:, None] >= tiles) & (reach.amax(1) > tiles[:, None])
    whole = (tiles[:, None] > tiles) & (reach.amin(1) >= tiles[:, None] + tile)
    if window is not None:
        by_tile = torch.cat([positions, positions[-1:].expand(padding)]).view(-1, tile)
        nearest, farthest = by_tile.amin(1)[:, None] - by_tile.amax(1), by_tile.amax(1)[:, None] - by_tile.amin(1)
        some, whole = some & (nearest < window), whole & (farthest < window)
    return BlockMask.from_kv_blocks(
        *_list_tiles(some & ~whole), *_list_tiles(whole), BLOCK_SIZE=tile, mask_mod=sees, seq_lengths=(count, count)
    )


def _list_tiles(tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for each row of tiles, the number of set tiles and the tile indices with the set ones first."""
    order = tiles.int().argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]


def build_sequence(nodes: list[Node], rows: list[list[int]]) -> dict[str, Any]:
    """Return a model's inputs for a packed sequence: token ids [1 × tokens], positions, and the tree.

    The empty attention mask prevents transformers from building a [tokens × tokens] mask, and causes an error in models
    that ignore the tree.
    """
    return {
        "input_ids": torch.tensor([[*chain.from_iterable(rows[node.row][node.start : node.end] for node in nodes)]]),
        "position_ids": torch.cat([torch.arange(node.start, node.end) for node in nodes])[None],
        "attention_mask": torch.zeros(1, 1, 0, 0),
        "tree": Tree([node.end - node.start for node in nodes], [node.parent for node in nodes]),
    }


def order_by_prefix(rows: list[list[int]], size: int) -> list[int]:
    """Return the indices of a step's rows in an order in which micro-batches of `size` rows share many tokens.

    Micro-batches of similar cost are adjacent, so that processes which take turns have equal work.

    >>> order_by_prefix([[1, 1, 5], [2, 2, 6], [1, 1, 7], [2, 2, 8]], size=2)
    [0, 2, 1, 3]
    """
    order = sorted(range(len(rows)), key=lambda row: rows[row])
    whole = len(rows) - len(rows) % size
    batches = [order[start : start + size] for start in range(0, whole, size)]

    def tokens(batch: list[int]) -> int:
        alike = sum(count_common(rows[first], rows[second]) for first, second in pairwise(batch))
        return sum(len(rows[row]) for row in batch) - alike

    batches.sort(key=tokens, reverse=True)
    return [*chain.from_iterable(batches), *order[whole:]]
