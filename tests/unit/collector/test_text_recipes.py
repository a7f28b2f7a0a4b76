"""Every recipe of docs/recipes.md does what it says."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.source import Stamp
from collector.textfiles import TextFiles
from trialtap.argv import CollectorArgs

DOCUMENT = (Path(__file__).parents[3] / "docs/recipes.md").read_text(encoding="utf-8")
RECIPES = [
    (section.split("\n")[0], yaml.safe_load(block))
    for section in DOCUMENT.split("\n## ")[1:]
    for block in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
]


@pytest.mark.parametrize(("title", "recipe"), RECIPES, ids=[title for title, _ in RECIPES])
def test_recipe(title: str, recipe: dict[str, Any]) -> None:
    filters = (recipe["filter"],) if "filter" in recipe else ()
    source = TextFiles(CollectorArgs(trial="t", metrics=tuple(recipe["metrics"]), filters=filters))
    _, points = source.parser("f", Stamp(), {}).feed(recipe["prints"].encode(), final=True)
    assert [[p.name, p.value] for p in points] == [point[:2] for point in recipe["points"]]
    for point, expected in zip(points, recipe["points"], strict=True):
        assert len(expected) < 3 or point.step == expected[2]


def test_the_trainers_that_are_promised_are_there() -> None:
    titles = " ".join(title for title, _ in RECIPES)
    for name in (
        "Keras",
        "Lightning",
        "Hugging Face",
        "XGBoost",
        "LightGBM",
        "Ultralytics",
        "fastai",
        "tqdm",
    ):
        assert name in titles
