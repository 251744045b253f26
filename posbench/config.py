"""What a trial and a study depend on: frozen settings, each with its type, default, meaning and unit in one place."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from posbench.choice import EncodingChoice
from posbench.errors import UserError
from posbench.settings import STRICT, Scalar, build, digest, layered, name_of, override, setting, to_plain
from posbench.space import SearchConfig, TuningConfig

__all__ = [
    "STRICT",
    "DataConfig",
    "DecodeConfig",
    "EncodingChoice",
    "EvaluationConfig",
    "ModelConfig",
    "Scalar",
    "StudyConfig",
    "TrainConfig",
    "TrialConfig",
    "build",
    "digest",
    "override",
    "setting",
    "to_plain",
]

Name = Annotated[str, AfterValidator(name_of)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelConfig:
    """The template around the encoding; nothing here depends on the encoding."""

    shape: Literal["encoder", "decoder", "encoder-decoder"] = setting(
        "encoder", "'decoder' lets a token see no later one; 'encoder-decoder' reads a source and writes a target"
    )
    width: int = setting(256, "features of a token", ge=1, le=65536)
    layers: int = setting(4, "blocks of each stack", ge=1, le=1000)
    heads: int = setting(4, "attention heads; they share the width", ge=1, le=1024)
    feedforward: int = setting(1024, "features inside a block's two-layer network", ge=1, le=1000000)
    norm: Literal["pre", "post"] = setting("pre", "layer norm before each sublayer, or after its residual sum (BERT)")
    activation: Literal["gelu", "relu"] = setting("gelu", "non-linearity of the two-layer network")
    dropout: float = setting(0.1, "probability to zero an element of a sublayer's output", ge=0, lt=1)
    attention_dropout: float = setting(0.0, "probability to zero an attention weight", ge=0, lt=1)
    token_types: int = setting(2, "segment embeddings that tell the texts of a pair apart; 0 for none", ge=0, le=64)
    pool: Literal["cls", "mean", "last"] = setting("cls", "which token states a sequence head reads")
    initial_std: float = setting(0.02, "standard deviation of the weights of linear layers at the start", gt=0)
    embedding_std: float = setting(0.02, "standard deviation of token embeddings at the start", gt=0)
    tied_embeddings: bool = setting(False, "a head over the vocabulary reuses the token embeddings as its matrix")
    cross_encoding: bool = setting(False, "an ablation: the encoding acts in cross attention too")
    attention: Literal["softmax", "linear"] = setting("softmax", "'linear' is kernel attention, linear in the length")
    feature_map: Literal["favor", "elu"] = setting("favor", "of linear attention: FAVOR+ of Performers, or ELU + 1")
    features: int | None = setting(None, "random features of FAVOR+; by default d log d for heads of width d", ge=1)
    rotation: Literal["before", "numerator", "both"] = setting(
        "numerator", "where linear attention turns: before the feature map, or after it in the numerator or both sums"
    )
    redraw: int = setting(1000, "training passes between two draws of FAVOR+'s features; 0 keeps the first", ge=0)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")
        if self.token_types == 1:
            raise ValueError("token_types 1 cannot tell two texts apart: give 0 for none, or 2")
        if self.cross_encoding and self.shape != "encoder-decoder":
            raise ValueError(f"cross_encoding asks for cross attention, which shape '{self.shape}' has not: "
                             "use shape 'encoder-decoder'")
        if self.attention == "linear" and self.attention_dropout:
            raise ValueError("linear attention forms no weights to drop: set attention_dropout to 0")
        if self.features is not None and (self.attention, self.feature_map) != ("linear", "favor"):
            raise ValueError("features is a setting of attention 'linear' with feature_map 'favor': leave it out")
        if self.features is not None and self.rotation != "before" and self.features % (self.width // self.heads):
            raise ValueError(f"features {self.features} is no multiple of the head width {self.width // self.heads}, "
                             "in groups of which rotations turn them: choose a multiple, or rotation 'before'")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainConfig:
    """How a model is trained; equal for all encodings of a study."""

    steps: int | None = setting(None, "optimizer updates; or state epochs", ge=1, le=100000000)
    epochs: float | None = setting(None, "passes over the training rows; or state steps", gt=0, le=100000)
    batch_size: int = setting(32, "rows of one update", ge=1, le=1000000)
    learning_rate: float = setting(1e-3, "peak of the schedule", gt=0)
    warmup: float = setting(0.1, "share of the updates in which the rate rises from 0 to its peak", ge=0, lt=1)
    weight_decay: float = setting(0.01, "AdamW's decay of matrices; never of norms, biases and position tables", ge=0)
    beta2: float = setting(0.999, "AdamW's decay of the second moment", gt=0, lt=1)
    clip: float = setting(1.0, "largest norm of the gradient", gt=0)
    evaluations: int = setting(
        4, "evaluations on validation during training, the last of them after the last update", ge=1, le=1000
    )
    select: Literal["last", "best"] = setting("last", "report the last weights, or the best on validation")
    schedule: Literal["linear", "inverse-sqrt"] = setting(
        "linear", "after the warm-up the rate falls linearly to 0, or with the inverse square root of the update"
    )
    average: int = setting(1, "score the mean of the weights at the last so many evaluations", ge=1, le=1000)
    label_smoothing: float = setting(0.0, "share of the target's probability spread over the vocabulary", ge=0, lt=1)
    batch_tokens: int | None = setting(
        None, "tokens of one update, padding included, of its longer side; in place of batch_size", ge=1, le=10**9
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where trials run; a study settles 'auto' once for all")
    threads: int = setting(1, "processor threads of one trial; more change the last bits of a sum", ge=1, le=1024)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("state either steps or epochs")
        if self.batch_tokens is not None and self.steps is None:
            raise ValueError("batch_tokens gives updates of unequal rows, which epochs cannot count: state steps")
        evaluated = min(self.evaluations, self.steps or self.evaluations)
        if self.average > evaluated:
            raise ValueError(f"average {self.average} asks for more weights than there are evaluations "
                             f"({evaluated}): raise evaluations or steps, or lower average")
        if self.average > 1 and self.select == "best":
            raise ValueError("average and select 'best' both say which weights are scored: leave one out")

    def rows(self, tokens: int) -> int:
        """Rows of an update whose rows have so many tokens each."""
        return self.batch_size if self.batch_tokens is None else max(1, self.batch_tokens // tokens)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataConfig:
    """Where rows come from and how they become tokens."""

    source: Literal["generated", "python", "folder", "hub"] = setting(
        "generated", "never replaced by another in silence; 'python' is the documentation that comes with Python"
    )
    path: str | None = setting(None, "the folder of the original files")
    revision: str | None = setting(None, "commit of the hub data set", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    tokenizer: str = setting(
        "wordpiece", "wordpiece, bpe, bytes, characters or spaced, made from the training rows; a vocabulary file; or "
        "words:FILE for one of whole words"
    )
    vocabulary: int = setting(8192, "largest number of tokens of a trained vocabulary", ge=32, le=1000000)
    max_length: int = setting(
        128, "tokens of a row with its special tokens; longer ones lose the end of the longer text", ge=4, le=1000000
    )
    train_rows: int | None = setting(None, "a seeded stratified part of the training rows; all by default", ge=1)
    evaluation_rows: int | None = setting(None, "the same for evaluation rows", ge=1)
    held_out: float = setting(
        0.1, "share of the training rows held out where there is no labelled validation", gt=0, lt=1
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluationConfig:
    """At which lengths, and with what in the encoding's place, a trained language model is scored."""

    longest: int = setting(1, "score at 1, 2, 4, ... times data.max_length, up to this many times it", ge=1, le=1024)
    threshold: float = setting(
        0.9, "primary score from which on a length counts as reached; declared beforehand", gt=0, le=1
    )
    variants: str = setting(
        "", "'rope -> rope_yarn:factor=4, ...': what takes a trained encoding's place at scoring, without training"
    )
    tokens: int | None = setting(None, "tokens of a running text's split that are scored; all by default", ge=1)
    stride: int | None = setting(
        None, "tokens by which a sliding window moves on; half of data.max_length by default", ge=1
    )

    def variants_of(self, label: str) -> tuple[EncodingChoice, ...]:
        """What takes the place of the encoding of this label."""
        return self.pairs.get(label, ())

    @property
    def pairs(self) -> dict[str, tuple[EncodingChoice, ...]]:
        """By label of a trained encoding, what takes its place.

        Raises:
            UserError: an entry that is no pair, that comes twice, or that asks for another model.
        """
        found: dict[str, tuple[EncodingChoice, ...]] = {}
        for entry in filter(None, (part.strip() for part in self.variants.split(","))):
            trained, arrow, variant = (part.strip() for part in entry.partition("->"))
            if not (trained and arrow and variant):
                raise UserError(f"evaluation.variants: '{entry}' names no pair: write 'rope -> rope_yarn:factor=4'")
            label, choice = EncodingChoice.parse(trained).label, EncodingChoice.parse(variant)
            if choice.model:
                raise UserError(f"evaluation.variants: '{variant}' changes the model, whose weights are trained: leave "
                                f"+{next(iter(choice.model))} out")
            if choice.label in {other.label for other in found.get(label, ())}:
                raise UserError(f"evaluation.variants: '{entry}' is named twice: name it once")
            found[label] = (*found.get(label, ()), choice)
        return found


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DecodeConfig:
    """How a model that writes text is asked for it; the same in training's evaluations as in the final one."""

    beam: int = setting(4, "hypotheses kept of each source; 1 is greedy", ge=1, le=1000)
    length_penalty: float = setting(0.6, "exponent of the length that scores are divided by; 0 for none", ge=0, le=10)
    max_output: int | None = setting(
        None, "tokens of an output with its end token; data.max_length by default", ge=2, le=1000000
    )
    compound_split: bool = setting(
        False, "score BLEU with words split at hyphens too, as the papers on WMT14 en-de before sacreBLEU do"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrialConfig:
    """Everything that one run depends on."""

    encoding: EncodingChoice
    suite: Name
    task: Name
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    primary: str | None = setting(None, "the metric that tables show, in place of the task's own")
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    train: TrainConfig
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    decode: DecodeConfig = dataclasses.field(default_factory=DecodeConfig)
    # Options of the encoding that a search chose: tables keep its label, which does not name them.
    searched: dict[str, Scalar] = dataclasses.field(default_factory=dict)
    tuning: TuningConfig | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StudyConfig:
    """A grid of trials that differ in nothing but encoding, task and seed, and in what a choice says of its model."""

    suite: Name
    preset: Name
    encodings: tuple[EncodingChoice, ...]
    tasks: tuple[Name, ...]
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...]
    baseline: str = setting("learned", "the encoding that the others are compared with")
    alpha: float = setting(0.05, "level of the tests, after correction", gt=0, lt=1)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    train: TrainConfig
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    decode: DecodeConfig = dataclasses.field(default_factory=DecodeConfig)
    per_task: dict[str, dict[str, Scalar]] = dataclasses.field(default_factory=dict)
    search: SearchConfig | None = None
    primary: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.search and (shared := sorted(set(self.seeds) & set(self.search.seeds))):
            raise ValueError(f"seed {', '.join(map(str, shared))} both tunes and reports: give search.seeds others")

    def trial(self, encoding: EncodingChoice, task: str, seed: int) -> TrialConfig:
        """One cell of the grid, with the settings that its task changes."""
        base = TrialConfig(
            encoding=encoding,
            suite=self.suite,
            task=task,
            seed=seed,
            primary=self.primary.get(task),
            model=self.model,
            train=self.train,
            data=self.data,
            evaluation=self.evaluation,
            decode=self.decode,
        )
        own = encoding.changes()
        return override(base, layered(self.per_task.get(task, {}), own), where=f"encoding '{encoding.label}'" if own
                        else "setting")
