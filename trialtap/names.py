"""Labels, paths, ports and container names that several programs must agree on.

Source of the `katib.kubeflow.org` names and of ports and paths under `/var/log/katib`: Katib v1beta1.
"""

from typing import Final

# Katib's API.
GROUP: Final = "kubeflow.org"
API_VERSION: Final = "kubeflow.org/v1beta1"
INJECTION_LABEL: Final = "katib.kubeflow.org/metrics-collector-injection"
"""A namespace opts in with this label set to `enabled`."""
TRIAL_LABEL: Final = "katib.kubeflow.org/trial"
EXPERIMENT_LABEL: Final = "katib.kubeflow.org/experiment"
TRIAL_NAME_ENV: Final = "KATIB_TRIAL_NAME"
KATIB_CONFIG: Final = "katib-config"
KATIB_CONFIG_KEY: Final = "katib-config.yaml"
KATIB_NAMESPACE: Final = "kubeflow"

# Containers and volumes of an injected pod.
LOGGER_CONTAINER: Final = "metrics-logger-and-collector"
"""The sidecar of StdOut and File, the container from which Katib's UI and SDK read a trial's log."""
COLLECTOR_CONTAINER: Final = "metrics-collector"
"""The sidecar of every other kind."""
METRICS_VOLUME: Final = "metrics-volume"
SUGGESTION_VOLUME: Final = "suggestion-volume"
PRIVATE_VOLUME: Final = "trialtap"
TOKEN_VOLUME: Final = "trialtap-token"  # noqa: S105 - a volume's name
NO_API_TOKEN_VOLUME: Final = "trialtap-no-api-token"  # noqa: S105 - a volume's name

# Paths inside a pod.
METRICS_FILE: Final = "/var/log/katib/metrics.log"
TFEVENT_DIRECTORY: Final = "/var/log/katib/tfevent/"
PRIVATE_DIRECTORY: Final = "/var/run/trialtap"
"""The private volume: tap, its FIFO, StdOut's segments, spools and the checkpoint."""
TAP: Final = f"{PRIVATE_DIRECTORY}/tap"
TAP_CONTROL: Final = f"{PRIVATE_DIRECTORY}/control"
"""The FIFO: a byte written to it tells tap to stop the training early."""
TAP_OUTPUT: Final = f"{PRIVATE_DIRECTORY}/out"
"""PREFIX of tap's segments: `out.000001`, …, and of its end mark `out.end`."""
CHECKPOINT: Final = f"{PRIVATE_DIRECTORY}/checkpoint"
TOKEN_FILE: Final = "/var/run/trialtap-token/token"  # noqa: S105 - a path
TOKEN_AUDIENCE: Final = "trialtap"  # noqa: S105 - an audience
SERVICE_ACCOUNT_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"

# Environment of the sidecar.
POD_NAME_ENV: Final = "TRIALTAP_POD_NAME"
DB_CA_ENV: Final = "TRIALTAP_DB_CA"

# Our own annotations.
DECISION_ANNOTATION: Final = "trialtap/decision"
ATTEMPT_ANNOTATION: Final = "trialtap/attempt"
MAX_RETRIES_ANNOTATION: Final = "trialtap/max-retries"

# Ports.
DB_PORT: Final = 6789
EARLY_STOPPING_PORT: Final = 6788
KATIB_DB_PORT: Final = 6790
"""Where Katib's own programs are served when our writers must prove who they are."""
DEFAULT_DB_ADDRESS: Final = f"katib-db-manager.{KATIB_NAMESPACE}:{DB_PORT}"

UNAVAILABLE: Final = "unavailable"
"""The value of the one row that says that an objective metric never appeared."""

# Katib's finalizer on a Trial: its rows go before it does.
FINALIZER: Final = "clean-metrics-in-db"

# What the controller remembers on a Trial.
ATTEMPTS_ANNOTATION: Final = "trialtap/attempts"
"""JSON list of the attempts that ended for infrastructure reasons: attempt, reason, node, ended."""
WORKLOAD_ANNOTATION: Final = "trialtap/workload"
"""UID of the workload of the present attempt, once it was made."""
INDEX_ANNOTATION: Final = "trialtap/index"
"""Running number of the trial in its experiment, from 1, given once."""
VALUE_ANNOTATION: Final = "trialtap/value"
"""The objective's value by its strategy, once the trial has its observation: what `kubectl get trials` shows."""
