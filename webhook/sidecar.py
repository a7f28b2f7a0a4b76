"""The collector's container: what it runs, may do, sees and is told."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from trialtap import argv, names
from trialtap.argv import CollectorArgs, StopRule
from trialtap.objects import Trial
from webhook import katibconfig, resources
from webhook.command import escape
from webhook.review import JSON, Reason, Refusal
from webhook.settings import Resources, Settings
from webhook.surroundings import Subject

WAIT_READY: Final = {"postStart": {"exec": {"command": ["tap", "--wait-ready"]}}}
"""Readiness: the kubelet runs it before it starts the next container, and a startupProbe costs a second."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table of collector kinds."""

    container: str
    """Name of the sidecar."""
    copies: bool = False
    """`tap` copies the training's output for it."""
    files: bool = False
    """It reads files that the training writes, and so needs their volume and their user."""
    directory: bool = False
    """Its path is a directory."""
    formatted: bool = False
    """The source's format (TEXT, JSON) is passed on."""
    port: bool = False
    """It scrapes a port."""


KINDS: Final = {
    "StdOut": Kind(names.LOGGER_CONTAINER, copies=True, formatted=True),
    "File": Kind(names.LOGGER_CONTAINER, files=True, formatted=True),
    "TensorFlowEvent": Kind(names.COLLECTOR_CONTAINER, files=True, directory=True),
    "PrometheusMetric": Kind(names.COLLECTOR_CONTAINER, port=True),
    "Custom": Kind(names.COLLECTOR_CONTAINER, files=True, formatted=True),
}
"""Collector kinds that have a sidecar. Push has none: the training itself reports."""
WITHOUT_SIDECAR: Final = ("Push", "None")


def collector_args(subject: Subject, early_stop_address: str) -> list[str]:
    """The sidecar's `args`, escaped for the kubelet, which expands `$(VAR)` and `$$` in them.

    Raises:
        Refusal: PrometheusMetric names a port that the training container does not have; or the trial asks
            for what no collector can read (a metric's name with a `;`, a rule without a number).
    """
    trial, source, settings = subject.trial, subject.trial.spec.metrics_collector, subject.settings
    kind = KINDS[source.kind]
    config = katibconfig.collector(subject.surroundings.katib_config, source.kind)
    args = CollectorArgs(
        trial=trial.metadata.name,
        metrics=trial.spec.objective.metric_names,
        objective_type=trial.spec.objective.type or "minimize",
        db_address=settings.db_address,
        path=names.TAP_OUTPUT if kind.copies else source.path,
        filters=source.filters,
        format=source.format if kind.formatted else None,
        wait_all=config.wait_all is not False,
        stop_rules=tuple(
            StopRule(rule.name, rule.value, rule.comparison, rule.start_step)
            for rule in trial.spec.early_stopping_rules or ()
        ),
        early_stop_address=early_stop_address,
        kind=source.kind,
        namespace=subject.surroundings.namespace,
        port=_port(source.port, subject) if kind.port else 0,
        grace=float(subject.grace),
        attempt=attempt(trial),
        keep=settings.sidecar.keep,
        echo=kind.copies and settings.sidecar.echo,
    )
    written = argv.write(args)
    if tuple(written) not in _READABLE:
        _check(trial, args, written)
    return [escape(word) if "$" in word else word for word in written]


_READABLE: Final[dict[tuple[str, ...], None]] = {}
"""Command lines that were read back as they were meant: one for each trial of late."""
_MAX_READABLE: Final = 1_000


def _check(trial: Trial, args: CollectorArgs, written: list[str]) -> None:
    """Refuse a trial whose collector could not read its own command line: training would run unobserved."""
    try:
        fault = "" if argv.parse(written) == args else "a metric's name is empty or holds a ';'"
    except ValueError as error:
        fault = str(error)
    if fault:
        raise Refusal(
            Reason.INVALID,
            f'Trial "{trial.metadata.name}": no collector can read what spec.objective, spec.metricsCollector and'
            f" spec.earlyStoppingRules ask for: {fault}; correct the Experiment",
        )
    while len(_READABLE) >= _MAX_READABLE:
        del _READABLE[next(iter(_READABLE))]
    _READABLE[tuple(written)] = None


def attempt(trial: Trial) -> int:
    """Number of the attempt that the trial's pods now are, from 0 (an annotation of the Trial)."""
    text = (trial.metadata.annotations or {}).get(names.ATTEMPT_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def build(subject: Subject, args: list[str], mounts: Iterable[JSON], env: Iterable[JSON] = ()) -> JSON:
    """The sidecar of every kind but Custom, a native one (init container with restartPolicy Always).

    Image, pull policy and resources are the settings'; `katib-config` has the say over resources and pull
    policy, and over the image where the settings allow it.
    """
    source, own = subject.trial.spec.metrics_collector, subject.settings.sidecar
    config = katibconfig.collector(subject.surroundings.katib_config, source.kind)
    sidecar: JSON = {
        "name": KINDS[source.kind].container,
        "image": config.image if own.image_from_katib_config and config.image else own.image,
        "imagePullPolicy": config.pull_policy or own.pull_policy,
        "args": args,
        "restartPolicy": "Always",
        "env": [*environment(subject.settings), *env],
        "volumeMounts": [*mounts, *own_mounts(subject.settings)],
        "lifecycle": WAIT_READY,
        "securityContext": security_context(
            subject.pod, subject.container, like_training=KINDS[source.kind].files
        ),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    wanted = own.resources if config.resources is None else _as_resources(config.resources)
    if given := resources.for_sidecar(subject.pod, wanted, subject.surroundings.limit_ranges):
        sidecar["resources"] = given
    return sidecar


def environment(settings: Settings) -> list[JSON]:
    """Variables of a collector of ours."""
    env: list[JSON] = [
        {
            "name": names.POD_NAME_ENV,
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
        }
    ]
    if settings.db_ca:
        env.append({"name": names.DB_CA_ENV, "value": settings.db_ca})
    return env


def own_mounts(settings: Settings) -> list[JSON]:
    """The folder of API tokens emptied, and the token for the DB manager where writers prove themselves.

    Without the first the service-account admission plugin would put the user's API token into the sidecar.
    """
    mounts: list[JSON] = [
        {"name": names.NO_API_TOKEN_VOLUME, "mountPath": names.SERVICE_ACCOUNT_DIRECTORY, "readOnly": True}
    ]
    if settings.token_audience:
        directory = names.TOKEN_FILE.rpartition("/")[0]
        mounts.append({"name": names.TOKEN_VOLUME, "mountPath": directory, "readOnly": True})
    return mounts


def own_volumes(settings: Settings) -> list[JSON]:
    """The volumes behind `own_mounts`."""
    volumes: list[JSON] = [{"name": names.NO_API_TOKEN_VOLUME, "emptyDir": {}}]
    if settings.token_audience:
        token = {"audience": settings.token_audience, "expirationSeconds": 3600, "path": "token"}
        volumes.append(
            {"name": names.TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}
        )
    return volumes


def security_context(pod: JSON, container: JSON, *, like_training: bool) -> JSON:
    """What Pod Security's `restricted` asks for, and no more than the pod itself allows.

    `runAsNonRoot` is left out where the sidecar would run as root, since the kubelet would refuse to start it.
    User and group are the training's only where files of its are read (`like_training`); elsewhere none are
    set, so that ranges such as OpenShift's hold. SELinux options are the training container's.
    """
    of_pod: JSON = pod["spec"].get("securityContext") or {}
    of_training: JSON = container.get("securityContext") or {}
    context: JSON = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    user = of_pod.get("runAsUser")
    if like_training:
        user = of_training.get("runAsUser", user)
        group = of_training.get("runAsGroup", of_pod.get("runAsGroup"))
        context.update(
            {key: value for key, value in (("runAsUser", user), ("runAsGroup", group)) if value is not None}
        )
    if user != 0:
        context["runAsNonRoot"] = True
    if labels := of_training.get("seLinuxOptions"):
        context["seLinuxOptions"] = labels
    return context


def _as_resources(resources: JSON) -> Resources:
    """katib-config's resources as settings have them; a part that is no mapping counts as absent."""

    def side(name: str) -> dict[str, str]:
        given = resources.get(name)
        return {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else {}

    return Resources(requests=side("requests"), limits=side("limits"))


def _port(port: Any, subject: Subject) -> int:
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    for known in subject.container.get("ports") or ():
        if known.get("name") == port:
            return int(known["containerPort"])
    raise Refusal(
        Reason.INVALID,
        f"{subject.whose}: spec.metricsCollector.source.httpGet.port: container {subject.container['name']!r} has no"
        f" port named {port!r};"
        " write a number, or name the port there",
    )
