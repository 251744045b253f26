"""Language models of bytes: how many bits a byte costs, by the length of the window and the place in it.

RoFormer's section 4.4 compares Performers with and without rotation on enwik8 by their loss curves. 'With' may mean
three things: rotated before the feature map (the code that it cites), after it in the numerator (its Eq. 19), or after
it in both sums; 'without' is a learned table in that code. All are choices of one study here, beside softmax attention.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from posbench.suites._lm_texts import load_text

from posbench.config import DataConfig
from posbench.corpus import Corpus
from posbench.suite import SMALL_MODEL, Direction, Metric, Suite, Task, TaskData


def _bits(*, gold: np.ndarray, predicted: np.ndarray) -> float:
    """Bits a byte from `predicted`, the nats that each byte of `gold` costs: their sum over their number."""
    return float(predicted.sum() / len(gold) / np.log(2))


BITS = Metric(name="bits per byte", function=_bits, higher_is_better=False, range=(0.0, math.inf))
TASKS = {name: Task(name=name, texts=("text",), kind="language-model", metrics=(BITS,), primary="bits per byte",
                    evaluations=("test",)) for name in ("docs", "enwik8", "text8", "text")}
# Softmax attention is the control; the other four are Performers.
PERFORMER = "+attention=linear"
CHOICES = ("learned", "rope", "nope", "alibi", f"learned{PERFORMER}", f"rope{PERFORMER}+rotation=before",
           f"rope{PERFORMER}+rotation=numerator", f"rope{PERFORMER}+rotation=both")
DECODER = {
    "baseline": f"learned{PERFORMER}",
    "model.shape": "decoder",
    "model.token_types": 0,
    "evaluation.longest": 8,
}


# Claims of a direction, which any size may check: RoFormer has loss curves here, and no numbers.
PAPER = "RoFormer (Su et al. 2021, arXiv 2104.09864)"
MASKED = ("The curve of softmax attention is of masked language models (BERT's learned table against RoPE, English, "
          "lower at every step); these are causal ones.")
VARIANTS = ("The code that the paper cites turns queries and keys before the feature map, its Eq. 19 after it in the "
            "numerator alone; its switch 'on' also adds a sinusoid, and 'off' means a learned table. All three places "
            "of the rotation are held against that table here. Single runs, without seeds and intervals.")
CLAIMS = (
    ("rope", "learned", "lower", f"{PAPER}, section 4.2", MASKED),
    *((label, f"learned{PERFORMER}", "lower and faster", f"{PAPER}, section 4.4", VARIANTS)
      for label in CHOICES if label.startswith(f"rope{PERFORMER}")),
)


class LanguageModels(Suite):
    """Running texts: Python's own documentation, enwik8, text8, or any file."""

    name, title, version = "lm", "Language models", "1"
    tasks = TASKS
    encodings = CHOICES
    published = tuple(
        Direction(preset=preset, encoding=encoding, over=over, metric=BITS.name, split="test", told=told, source=source,
                  note=note)
        for preset in ("mini", "real-mini", "small", "paper") for encoding, over, told, source, note in CLAIMS
    )
    presets = {
        "mini": DECODER | {
            "seeds": (0, 1, 2),
            "tasks": ("docs",),
            "data.source": "python",
            "data.max_length": 64,
            "evaluation.tokens": 8192,
            **SMALL_MODEL,
            "model.initial_std": 0.05,
            "model.embedding_std": 0.05,
            "train.steps": 1000,
            "train.batch_size": 16,
            "train.learning_rate": 3e-3,
            "train.evaluations": 12,
        },
        # A text file of a few megabytes: an hour on two cores for eight choices and six seeds.
        "real-mini": DECODER | {
            "seeds": (0, 1, 2, 3, 4, 5),
            "tasks": ("text",),
            "data.source": "folder",
            "data.max_length": 128,
            "evaluation.tokens": 32768,
            **SMALL_MODEL,
            "model.initial_std": 0.05,
            "model.embedding_std": 0.05,
            "train.steps": 1000,
            "train.batch_size": 16,
            "train.learning_rate": 3e-3,
            "train.evaluations": 20,
        },
        # All of enwik8, one GPU, hours.
        "small": DECODER | {
            "seeds": (0, 1, 2),
            "tasks": ("enwik8",),
            "data.source": "folder",
            "data.max_length": 512,
            "evaluation.tokens": 1048576,
            "model.width": 384,
            "model.layers": 6,
            "model.heads": 6,
            "model.feedforward": 1536,
            "train.steps": 20000,
            "train.batch_size": 64,
            "train.learning_rate": 5e-4,
            "train.evaluations": 20,
        },
        # RoFormer, section 4.4: 12 layers, 768 wide, 12 heads, rate 1e-4, batch 128, length 1024. The number of updates
        # is read off its figure's axis (100 k); warm-up, decay, dropout, seeds and split are not stated.
        "paper": DECODER | {
            "seeds": (0, 1, 2, 3, 4, 5),
            "tasks": ("enwik8",),
            "data.source": "folder",
            "data.max_length": 1024,
            "model.width": 768,
            "model.layers": 12,
            "model.heads": 12,
            "model.feedforward": 3072,
            "train.steps": 100000,
            "train.batch_size": 128,
            "train.learning_rate": 1e-4,
            "train.evaluations": 50,
        },
    }

    def objective(self, task: Task) -> Any:
        return Corpus

    def load(self, task: str, data: DataConfig) -> TaskData:
        return load_text(task, data)


SUITE = LanguageModels()
"""Found by this name."""
