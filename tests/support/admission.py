"""Cases of pod admission: a recorded request, what is changed in it, and what must come of it."""

import asyncio
import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml

from webhook import settings as settings_module
from webhook.cluster import ObjectsCluster
from webhook.events import Events
from webhook.injection import Entrypoint
from webhook.pods import Pods
from webhook.review import Verdict, parse

JSON = dict[str, Any]
TESTS = Path(__file__).parent.parent
RECORDED = TESTS / "cases" / "admission"
ABSENT = "absent"


def recorded(name: str) -> JSON:
    """`{review, objects}` of a request that an API server once sent."""
    document: JSON = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return document


def merged(document: Any, change: Any) -> Any:
    """A JSON merge patch (RFC 7386) applied to a copy."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    result = copy.deepcopy(document) if isinstance(document, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@dataclass(frozen=True)
class Case:
    """One case; the fields are the keys of its file.

    `pod`, `container` (the pod's first) and `trial` are merge patches on what the base recorded.
    """

    name: str
    rule: str
    base: str
    pod: JSON = field(default_factory=dict)
    container: JSON = field(default_factory=dict)
    trial: JSON = field(default_factory=dict)
    settings: JSON = field(default_factory=dict)
    objects: tuple[JSON, ...] = ()
    image: JSON | None = None
    """`{entrypoint, cmd}` that a look-up of any image gives; None: look-ups are off."""
    then: JSON = field(default_factory=dict)
    """JSON Pointer into the admitted pod -> the value there, or `absent`; `-1` is a list's last element."""
    refused: str = ""
    """Reason of the refusal."""
    says: tuple[str, ...] = ()
    """Texts that the warnings, or the refusal's message, hold."""
    silent: bool = False
    """There are no warnings."""
    untouched: bool = False
    """The answer allows and changes nothing."""

    @property
    def review(self) -> JSON:
        """The AdmissionReview that is sent."""
        review = copy.deepcopy(recorded(self.base)["review"])
        pod = review["request"]["object"]
        pod["spec"]["containers"][0] = merged(pod["spec"]["containers"][0], self.container)
        review["request"]["object"] = merged(pod, self.pod)
        return review

    @property
    def before(self) -> JSON:
        """The pod that is asked for."""
        pod: JSON = self.review["request"]["object"]
        return pod

    @property
    def all_objects(self) -> list[JSON]:
        """What the cluster holds."""
        objects = [
            merged(o, self.trial) if o["kind"] == "Trial" else o for o in recorded(self.base)["objects"]
        ]
        return [*objects, *self.objects]

    def answer(self, review: JSON | None = None) -> Verdict:
        """What the webhook's handler says to the request (or to another one in the same surroundings)."""
        return answer(
            self.review if review is None else review,
            self.all_objects,
            settings_module.parse(self.settings),
            self.image,
        )


def answer(
    review: JSON, objects: list[JSON], settings: settings_module.Settings, image: JSON | None = None
) -> Verdict:
    """Ask the handler of pods, over a cluster that is these objects."""

    async def look_up(pod: JSON, namespace: str, reference: str) -> Entrypoint:
        assert image is not None
        return Entrypoint(tuple(image.get("entrypoint", ())), tuple(image.get("cmd", ())))

    async def ask() -> Verdict:
        cluster = ObjectsCluster(objects)
        events = Events(cluster)
        pods = Pods(events=events, lookup=None if image is None else look_up)
        verdict = await pods.mutate(parse(orjson.dumps(review)), cluster, settings)
        await events.drain()
        return verdict

    return asyncio.run(ask())


def load_case(file: Path) -> Case:
    """Read one case's file."""
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    for key in ("objects", "says"):
        document[key] = tuple(document.get(key, ()))
    return Case(name=file.parent.name, **document)


def at(document: Any, pointer: str) -> Any:
    """What a JSON Pointer finds, or `absent`."""
    for token in pointer.removeprefix("/").split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        try:
            document = document[int(key)] if isinstance(document, list) else document[key]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return document
