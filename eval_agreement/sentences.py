"""Load the package's texts: the sentences of audits (`sentences.toml`) and other .toml files."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from critic.page.blocks import interval, listed, number, share, shares
from critic.stats.estimate import Estimate, Interval


def within(bounds: str) -> str:
    """Put the formatted bounds of an interval in brackets: "0.1 to 0.3" becomes " (95 % interval 0.1 to 0.3)".

    An empty text stays empty.
    """
    return f" (95 % interval {bounds})" if bounds else ""


def quote(estimate: Estimate) -> str:
    """Format an estimate with its interval, for a sentence.

    >>> quote(Estimate(n=9, value=0.5, interval=(0.25, 0.75)))
    '0.50 (95 % interval 0.25–0.75)'
    """
    return f"{number(estimate.value)}{within(interval(estimate.interval))}"


def quote_share(estimate: Estimate) -> str:
    """Format an estimated share (0..1) in per cent with its interval, for a sentence."""
    return f"{share(estimate.value)}{within(shares(estimate.interval))}"


def signed(bounds: Interval | None) -> str:
    """Format the interval of an effect, with a sign before each end, as in " [-2.00, +1.00]"; return "" for None."""
    return " [{:+.2f}, {:+.2f}]".format(*bounds) if bounds else ""


@cache
def texts_of(name: str) -> dict[str, Any]:
    """Load a .toml file of the package, given its path in the package."""
    return tomllib.loads((files("eval_agreement") / name).read_text("utf-8"))


# A sentence is full of values, which therefore stand in single braces.
_ENVIRONMENT = jinja2.Environment(
    undefined=jinja2.StrictUndefined, autoescape=False, variable_start_string="{", variable_end_string="}"
)
_ENVIRONMENT.loader = jinja2.FunctionLoader(lambda key: str(texts_of("sentences.toml")[key]))
for _filter in (interval, listed, number, quote, quote_share, share, shares, signed, within):
    _ENVIRONMENT.filters[_filter.__name__] = _filter
_ENVIRONMENT.filters["f"] = format


def say(key: str, **values: object) -> str:
    """Return the sentence `key` of `sentences.toml`, a Jinja template, with `values` filled in.

    >>> say("too_few_questions", who="gpt4", groups=12, fewest=20, more=8)
    'No decision on gpt4: 12 questions are too few, 20 are needed; label answers to 8 more.'
    """
    return _ENVIRONMENT.get_template(key).render(values)
