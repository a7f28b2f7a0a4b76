"""What the webhook counts, for Prometheus: base units, labels from closed sets."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

ADMISSIONS: Final = Counter(
    "trialtap_webhook_admissions",
    "Admission requests answered, by path and outcome (allowed, patched, refused, failed).",
    ["path", "outcome"],
)
REFUSALS: Final = Counter("trialtap_webhook_refusals", "Requests refused, by reason.", ["reason"])
SECONDS: Final = Histogram(
    "trialtap_webhook_admission_seconds",
    "Time from the request's last byte to the answer, in seconds.",
    ["path"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 2.5, 5, 10),
)
OWNER_UNREADABLE: Final = Counter(
    "trialtap_webhook_owner_unreadable",
    "Pods whose owners could not be read (RBAC, a failing API server, no answer in time), refused or not.",
)
API_CALLS: Final = Counter(
    "trialtap_webhook_api_calls",
    "Calls to the API server, by purpose (get, list, watch, create, discovery) and outcome (ok, not_found, failed).",
    ["purpose", "outcome"],
)
EVENTS: Final = Counter(
    "trialtap_webhook_events",
    "Events by what became of them (sent, held_back, dropped, failed).",
    ["outcome"],
)
TRIALS: Final = Gauge("trialtap_webhook_trials", "Trials in the cache.")
CERTIFICATE_EXPIRY: Final = Gauge(
    "trialtap_webhook_certificate_expiry_timestamp_seconds", "notAfter of the served certificate, Unix time."
)
