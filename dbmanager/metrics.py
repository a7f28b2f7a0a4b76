"""What the DB manager tells Prometheus."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry()

REQUESTS: Final = Histogram(
    "trialtap_db_request_duration_seconds",
    "Time from a gRPC request's arrival to its answer.",
    ["method", "code"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    registry=REGISTRY,
)
ROWS_STORED: Final = Counter("trialtap_db_rows_stored_total", "Rows committed.", registry=REGISTRY)
ROWS_REPEATED: Final = Counter(
    "trialtap_db_rows_repeated_total", "Rows that a stream sent again and that were there.", registry=REGISTRY
)
ROWS_LOST: Final = Counter(
    "trialtap_db_rows_lost_total", "Rows that collectors declared lost.", registry=REGISTRY
)
ROWS_WITHOUT_TIME: Final = Counter(
    "trialtap_db_rows_without_time_total", "Rows skipped because their time is empty.", registry=REGISTRY
)
ROWS_TOO_LATE: Final = Counter(
    "trialtap_db_rows_too_late_total", "Rows of trials that were deleted, not stored.", registry=REGISTRY
)
ROWS_DELETED: Final = Counter("trialtap_db_rows_deleted_total", "Rows deleted.", ["why"], registry=REGISTRY)
DELETES_AMBIGUOUS: Final = Counter(
    "trialtap_db_deletes_ambiguous_total",
    "Deletes without a namespace that several namespaces' trials fit: nothing was deleted.",
    registry=REGISTRY,
)
ANSWERS_THINNED: Final = Counter(
    "trialtap_db_answers_thinned_total", "gRPC answers that were cut to 4 MB.", registry=REGISTRY
)
TOKEN_REVIEWS: Final = Counter(
    "trialtap_db_token_reviews_total", "TokenReviews by result.", ["result"], registry=REGISTRY
)
UP: Final = Gauge("trialtap_db_up", "1 while the database answers.", registry=REGISTRY)
WAITING: Final = Gauge(
    "trialtap_db_waiting_reports", "Reports that wait for the next transaction.", registry=REGISTRY
)
