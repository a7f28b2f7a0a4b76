"""Prometheus metrics of the controller."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

RECONCILIATIONS: Final = Counter("trialtap_controller_reconciliations", "Looks at a Trial.", ["outcome"])
SECONDS: Final = Histogram("trialtap_controller_reconciliation_seconds", "Duration of a look at a Trial.")
ACTIONS: Final = Counter("trialtap_controller_actions", "What was done.", ["action"])
TRIALS: Final = Gauge(
    "trialtap_controller_trials", "Trials by the condition that is their state.", ["condition"]
)
QUEUE: Final = Gauge("trialtap_controller_queue", "Trials that wait to be looked at.")
LEADING: Final = Gauge("trialtap_controller_leading", "1 where this replica acts.")
EARLY_STOPPED: Final = Counter("trialtap_controller_early_stopped", "Trials that a collector stopped early.")
