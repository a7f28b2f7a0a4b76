"""Train a softmax regression on 8x8 images of handwritten digits, by stochastic gradient descent.

Standard library only, so that it runs in any Python image. It prints what a training usually prints
and knows nothing of trialtap. The data: 1,797 rows of 64 pixels (0-16) and the digit, gzipped CSV.
"""

import argparse
import gzip
import math
import random
from pathlib import Path

Row = tuple[list[float], int]


def load(path: Path) -> list[Row]:
    """Read rows of 64 pixels, scaled to 0-1, each with a bias and its digit."""
    with gzip.open(path, "rt") as lines:
        rows = [[int(cell) for cell in line.split(",")] for line in lines]
    return [([pixel / 16 for pixel in row[:64]] + [1.0], row[64]) for row in rows]


def probabilities(weights: list[list[float]], pixels: list[float]) -> list[float]:
    """Softmax of the ten scores."""
    scores = [sum(map(float.__mul__, row, pixels)) for row in weights]
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


def train_epoch(weights: list[list[float]], rows: list[Row], rate: float) -> float:
    """Go through the rows once; returns the mean cross-entropy on the way."""
    loss = 0.0
    for pixels, digit in rows:
        guess = probabilities(weights, pixels)
        loss -= math.log(max(guess[digit], 1e-12))
        for label, row in enumerate(weights):
            step = rate * (guess[label] - (label == digit))
            for index, pixel in enumerate(pixels):
                if pixel:
                    row[index] -= step * pixel
    return loss / len(rows)


def accuracy(weights: list[list[float]], rows: list[Row]) -> float:
    """Share of rows whose likeliest digit is the right one."""
    hits = 0
    for pixels, digit in rows:
        guess = probabilities(weights, pixels)
        hits += guess.index(max(guess)) == digit
    return hits / len(rows)


def main() -> None:
    """Train and print a line an epoch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--data", type=Path, default=Path(__file__).with_name("digits.csv.gz"))
    args = parser.parse_args()

    shuffle = random.Random(1).shuffle
    rows = load(args.data)
    shuffle(rows)
    held_out, rows = rows[:360], rows[360:]
    weights = [[0.0] * 65 for _ in range(10)]
    print(f"{len(rows)} images to learn from, {len(held_out)} held out, lr {args.lr}")
    for epoch in range(1, args.epochs + 1):
        shuffle(rows)
        loss = train_epoch(weights, rows, args.lr)
        print(f"epoch={epoch} loss={loss:.4f} accuracy={accuracy(weights, held_out):.4f}")


if __name__ == "__main__":
    main()
