"""A small parser of the text form, written for the goldens alone, so that they do not depend on the library's own.

`sum(0.5 * A | B)` holds weighted branches, `residual(A)` is `sum(A | identity)`, and `identity` is an empty branch.
"""

import re
from dataclasses import dataclass

TOKEN = re.compile(r"\s*([a-z]+\d*|\d+\.?\d*|[()|*=,])")


@dataclass(frozen=True)
class Layer:
    """One layer: `conv3(stride=2)` has size 3 and stride 2, `leakyrelu(0.1)` has parameter 0.1."""

    name: str
    size: int = 0
    parameter: float | None = None
    stride: int | None = None
    dilation: int = 1


@dataclass(frozen=True)
class Sum:
    """Weighted branches, each a tuple of layers and sums."""

    weights: tuple[float, ...]
    branches: tuple[tuple, ...]


def parse(text):
    """Return a text form's layers and sums as a tuple.

    >>> parse("residual(relu conv3) globalpool")[0].branches
    ((Layer(name='relu', size=0, parameter=None, stride=None, dilation=1), \
Layer(name='conv', size=3, parameter=None, stride=None, dilation=1)), ())
    """
    if TOKEN.sub("", text).strip():
        raise ValueError(f"cannot read {TOKEN.sub('', text)!r} in {text!r}")
    tokens = TOKEN.findall(text)[::-1]
    nodes = chain(tokens)
    if tokens:
        raise ValueError(f"{tokens[-1]!r} is one too many in {text!r}")
    return nodes


def chain(tokens):
    """Read layers up to the end of a branch; `tokens` is a stack, the next token last."""
    nodes = []
    while tokens and tokens[-1] not in "|)":
        word = tokens.pop()
        if word in ("sum", "residual"):
            nodes.append(branches(tokens, residual=word == "residual"))
        elif word != "identity":
            nodes.append(layer(word, tokens))
    return tuple(nodes)


def branches(tokens, residual):
    """Read `(A | 2 * B)`."""
    weights, parts = [], []
    while tokens.pop() in "(|":  # the closing parenthesis ends it
        weighted = tokens[-2] == "*"
        weights.append(float(tokens.pop()) if weighted else 1.0)
        if weighted:
            tokens.pop()
        parts.append(chain(tokens))
    if residual:
        weights, parts = [*weights, 1.0], [*parts, ()]
    return Sum(tuple(weights), tuple(parts))


def layer(word, tokens):
    """Read the size in a layer's name and what stands in parentheses after it."""
    name, size = re.fullmatch(r"([a-z]+)(\d*)", word).groups()
    options = {"size": int(size)} if size else {}
    while tokens and tokens[-1] in "(,":
        tokens.pop()
        if tokens[-2] == "=":
            key, _, value = tokens.pop(), tokens.pop(), tokens.pop()
            options[key] = int(value)
        else:
            options["parameter"] = float(tokens.pop())
        if tokens[-1] == ")":
            tokens.pop()
            break
    return Layer(name, **options)
