"""Claims: what an encoding's class says of itself: source, options, scope, properties and number of parameters."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import replace

from posbench.contract import check
from posbench.encoding import Encoding, Paper, Properties
from posbench.errors import UserError
from posbench.probe import SHAPES, ContractError, Subject

ARXIV = r"\d{4}\.\d{4,5}"
SIZES: tuple[dict[str, int], ...] = (
    {}, {"width": 48, "heads": 3, "layers": 3, "length": 40}, {"width": 24, "heads": 1, "layers": 1, "length": 24})


@check("P0", "declaration: paper, options, documentation", tolerance=0)
def declaration(subject: Subject) -> float:
    """The class says what it follows, and its Config is frozen, with a meaning for each option."""
    cls = subject.encoding_class
    paper = getattr(cls, "paper", None)
    if not (isinstance(paper, Paper) and paper.title and paper.equations):
        raise ContractError("cites nothing: set paper = Paper(title=..., equations=..., arxiv='YYMM.NNNNN')")
    if paper.arxiv and not re.fullmatch(ARXIV, paper.arxiv):
        raise ContractError(f"arxiv = {paper.arxiv!r} is no id such as '2104.09864': leave it out if unpublished")
    if not (dataclasses.is_dataclass(cls.Config) and cls.Config.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise ContractError("Config is no frozen dataclass: decorate it with @dataclass(frozen=True, kw_only=True)")
    for field in dataclasses.fields(cls.Config):
        if not field.metadata.get("meaning"):
            raise ContractError(f"option '{field.name}' has no meaning: make it option(DEFAULT, 'meaning with unit')")
    if not inspect.getdoc(cls) or inspect.getdoc(cls) == inspect.getdoc(Encoding):
        raise ContractError("the class has no docstring")
    claims(subject.bare())
    return 0.0


def claims(encoding: Encoding) -> None:
    """Refuses claims that mean nothing, which would be taken for others."""
    told = encoding.properties
    if not isinstance(told, Properties):
        raise ContractError(f"properties = {told!r}: make it Properties(...)")
    for field in dataclasses.fields(told):
        claim = getattr(told, field.name)
        known = ("defined", "refused") if field.name == "beyond" else (True, False, None)
        if not any(claim is word or (isinstance(word, str) and claim == word) for word in known):
            raise ContractError(f"properties.{field.name} = {claim!r}: it must be one of {', '.join(map(str, known))}")
    if encoding.scope not in ("model", "layer"):
        raise ContractError(f"scope = {encoding.scope!r}: it must be 'model' or 'layer'")
    limit = encoding.max_length
    if not (limit is None or (isinstance(limit, int) and not isinstance(limit, bool))):
        raise ContractError(f"max_length is {limit!r}: it must be a whole number, or None where positions do not end")


@check("P17", "number of parameters as the formula says", shapes=SHAPES, tolerance=0)
def parameters(subject: Subject) -> float:
    """parameter_count is what is there, in models of several sizes, which also read some tokens.

    What is right at one size alone has a number written where it should be read off.
    """
    for sizes in SIZES:
        try:
            other = subject.resized(**sizes)
            model = other.model()
        except UserError:
            if not sizes:
                raise
            continue  # refused with the reason: options may fit one width alone
        stacks = [other.dimensions]
        if subject.shape == "encoder-decoder":
            stacks.append(replace(other.dimensions, causal=False))
        config = other.bare().config
        said = sum(subject.encoding_class.parameter_count(dimensions, config) for dimensions in stacks)
        there = sum(p.numel() for p in model.encodings.parameters())
        where = "".join(f", {name} {value}" for name, value in sizes.items())
        if said != there:
            raise ContractError(f"parameter_count says {said}, the model has {there}{where}")
        if not other.read(model, other.tokens()).isfinite().all():
            raise ContractError(f"answers are not finite{where}")
    return 0.0
