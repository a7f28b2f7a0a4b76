"""What REST answers and takes, as its OpenAPI description shows it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dbmanager.rest_curves import MAX_BUCKETS

INT64: int = 2**63

Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
"""What the tables hold: 1-255 characters, no NUL."""


class Model(BaseModel):
    """camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", strict=True)


class Fault(Model):
    """The body of every 4xx and 5xx."""

    detail: str
    """What is wrong, with which parameter, and what to do."""


class Trial(Model):
    """A trial that has rows or living streams."""

    namespace: str | None
    """None when its writer did not say."""
    name: str
    live: bool
    """A stream of it is open and was heard of within a minute."""
    attempts: int
    """How many attempts reported; 0 when its writer has no streams."""
    pods: int
    last_seen: str | None
    """When a stream was last heard of, RFC 3339."""


class Trials(Model):
    """A page of trials, by namespace and name."""

    trials: list[Trial]
    next: str | None
    """`cursor` of the next page; None on the last."""


class Point(Model):
    """A stored row."""

    id: int
    trial: str
    namespace: str | None
    name: str
    """The metric."""
    value: str
    """Text, usually a number; also `nan` or anything else that was reported."""
    time: str
    """RFC 3339 in UTC, up to nine fraction digits."""
    step: int | None
    pod: str | None
    stream: str | None
    attempt: int | None


class Points(Model):
    """A page of points by time."""

    points: list[Point]
    next: str | None
    """`cursor` of the next page; None on the last."""


class Metric(Model):
    """What a metric came to."""

    name: str
    count: int
    """Rows of it, non-finite ones included."""
    min: str | None
    """The least finite value as it was written; None without one. `nan` is never the best."""
    max: str | None
    latest: str
    """Value of the newest row."""
    first_time: str
    last_time: str
    first_step: int | None
    last_step: int | None


class Attempt(Model):
    """One attempt of a trial."""

    attempt: int
    pods: list[str]
    metrics: list[Metric]


class Summary(Model):
    """A trial's metrics. `metrics` are those of its last attempt: a retried attempt does not count."""

    trial: str
    namespace: str | None
    metrics: list[Metric]
    attempts: list[Attempt]


class Deleted(Model):
    """What a deletion did."""

    rows: int


class TrialRef(Model):
    """A trial by name; without a namespace it is the only one of that name."""

    name: Name
    namespace: str | None = Field(default=None, max_length=255, pattern=r"^[^\x00]*$")


class CurvesRequest(Model):
    """Which curves to draw."""

    trials: list[TrialRef] = Field(min_length=1, max_length=500)
    metric: Name | None = None
    """None: the one that most of the trials have."""
    x: Literal["step", "time", "elapsed"] = "step"
    """`elapsed`: seconds since the series' first row."""
    buckets: int = Field(default=400, ge=1, le=MAX_BUCKETS)
    """The x axis is cut into so many parts; of each its least and greatest value are given."""
    apart: bool = False
    """True: a curve for each pod of each attempt; False: one for each trial, of its last attempt."""
    first: float | None = Field(default=None, allow_inf_nan=False)
    """Left end of the range to draw, in units of x (steps, or seconds since 1970)."""
    last: float | None = Field(default=None, allow_inf_nan=False)


class Extreme(Model):
    """A value and where it stands."""

    value: float
    x: float
    step: int | None
    time: str


class CurveAnswer(Model):
    """A drawn curve. Of the range: x, y, means…; of the whole series: the rest."""

    namespace: str | None
    trial: str
    attempt: int | None
    """None when the trial's writer has no streams."""
    pod: str | None
    """None when pods are not told apart."""
    x_is: Literal["step", "report", "time", "elapsed"]
    """`report`: some row has no step, so rows are counted from 1."""
    start: float
    """Time of the series' first row, seconds since 1970."""
    x: list[float]
    y: list[float]
    means_x: list[float]
    means: list[float]
    weights: list[int]
    least_before: float | None
    greatest_before: float | None
    count: int
    nonfinite: int
    first_nonfinite: float | None
    """x of the first value that is `nan`, infinite or no number."""
    least: Extreme | None
    greatest: Extreme | None
    latest: Extreme | None


class Curves(Model):
    """Curves of one metric."""

    metric: str | None
    metrics: list[str]
    """Every metric of these trials."""
    curves: list[CurveAnswer]
    missing: list[TrialRef]
    """Trials that are not there, or not to be told apart without a namespace."""
    cursor: int
    """Greatest row id in the curves: live events after it go on without a gap."""
