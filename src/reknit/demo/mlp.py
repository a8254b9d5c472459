"""What is trained: a perceptron with two hidden layers, on points that a random teacher has labelled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEATURES, HIDDEN, CLASSES = 16, 48, 4
SAMPLES, BATCH = 4096, 32
RATE, MOMENTUM = 0.01, 0.9
_LAYERS = ((FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES))
PARAMETERS = sum(rows * columns + columns for rows, columns in _LAYERS)


def layers(flat: Floats) -> list[tuple[Floats, Floats]]:
    """Views of a flat vector of PARAMETERS numbers as (weights, biases) of each layer."""
    views: list[tuple[Floats, Floats]] = []
    at = 0
    for rows, columns in _LAYERS:
        middle, end = at + rows * columns, at + rows * columns + columns
        views.append((flat[at:middle].reshape(rows, columns), flat[middle:end]))
        at = end
    return views


def initial(seed: int) -> Floats:
    """Fresh parameters, the same for the same seed."""
    rng = np.random.default_rng(seed)
    flat = np.zeros(PARAMETERS)
    for weights, _ in layers(flat):
        weights[:] = rng.normal(0.0, np.sqrt(2.0 / weights.shape[0]), weights.shape)
    return flat


def loss_and_gradient(flat: Floats, x: Floats, labels: NDArray[np.int64]) -> tuple[float, Floats]:
    """Mean cross-entropy of a batch in nats, and its gradient, by back-propagation."""
    (w1, b1), (w2, b2), (w3, b3) = layers(flat)
    h1 = np.maximum(x @ w1 + b1, 0.0)
    h2 = np.maximum(h1 @ w2 + b2, 0.0)
    scores = h2 @ w3 + b3
    scores -= scores.max(axis=1, keepdims=True)
    odds = np.exp(scores)
    odds /= odds.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(odds[rows, labels]).mean())

    gradient = np.empty_like(flat)
    (dw1, db1), (dw2, db2), (dw3, db3) = layers(gradient)
    d3 = odds
    d3[rows, labels] -= 1.0
    d3 /= len(labels)
    d2 = (d3 @ w3.T) * (h2 > 0.0)
    d1 = (d2 @ w2.T) * (h1 > 0.0)
    for weights, biases, entering, delta in ((dw3, db3, h2, d3), (dw2, db2, h1, d2), (dw1, db1, x, d1)):
        weights[:] = entering.T @ delta
        biases[:] = delta.sum(axis=0)
    return loss, gradient


class Shard:
    """One rank's part of the data: every `size`-th sample, drawn at random by the rank's own generator."""

    def __init__(self, seed: int, rank: int, size: int) -> None:
        everybody = np.random.default_rng(seed)
        x = everybody.normal(size=(SAMPLES, FEATURES))
        teacher = everybody.normal(size=(FEATURES, CLASSES))
        labels = np.argmax(np.tanh(x) @ teacher, axis=1)
        mine = range(rank, SAMPLES, size)
        self.samples = [(x[index], int(labels[index])) for index in mine]
        self.rng = np.random.default_rng((seed, rank))

    def draw(self) -> list[tuple[Floats, int]]:
        """The samples of the next batch."""
        return [self.samples[index] for index in self.rng.integers(len(self.samples), size=BATCH)]


def collate(samples: list[tuple[Floats, int]]) -> tuple[Floats, NDArray[np.int64]]:
    """Samples as one batch. Raises ValueError where their shapes differ."""
    x = np.stack([row for row, _ in samples])
    return x, np.array([label for _, label in samples], dtype=np.int64)


_WORD = (1 << 64) - 1


def rng_words(rng: np.random.Generator) -> NDArray[np.uint64]:
    """A generator's whole state as six words, so that ranks can pass it on by all-reduce."""
    state: Any = rng.bit_generator.state
    inner = state["state"]
    parts = (inner["state"], inner["inc"])
    words = [part >> shift & _WORD for part in parts for shift in (64, 0)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def rng_restore(rng: np.random.Generator, words: NDArray[np.uint64]) -> None:
    """Put a generator back into the state that `rng_words` gave."""
    a, b, c, d, has, value = (int(word) for word in words)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": a << 64 | b, "inc": c << 64 | d},
        "has_uint32": has,
        "uinteger": value,
    }
