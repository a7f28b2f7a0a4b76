"""The messages of `api.proto`, in a descriptor pool of their own.

Katib's SDK registers the same names in protobuf's default pool; with a pool of our own both can live
in one process. Importing this module imports protobuf: the collector does so only when it first reports.

The stubs are the method paths with their messages, for `grpc` channels and servers alike.
"""

import os
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pool, message_factory

POOL: Final = descriptor_pool.DescriptorPool()

# Not importlib.resources nor pathlib: they bring zipfile, tempfile and more, 1 MiB in every sidecar.
with open(os.path.join(os.path.dirname(__file__), "api.binpb"), "rb") as _file:  # noqa: PTH118, PTH120, PTH123
    FILE: Final = POOL.AddSerializedFile(_file.read())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(FILE.message_types_by_name[name])


Metric = _message("Metric")
MetricLog = _message("MetricLog")
ObservationLog = _message("ObservationLog")
Origin = _message("Origin")
ReportObservationLogRequest = _message("ReportObservationLogRequest")
ReportObservationLogReply = _message("ReportObservationLogReply")
GetObservationLogRequest = _message("GetObservationLogRequest")
GetObservationLogReply = _message("GetObservationLogReply")
DeleteObservationLogRequest = _message("DeleteObservationLogRequest")
DeleteObservationLogReply = _message("DeleteObservationLogReply")
SetTrialStatusRequest = _message("SetTrialStatusRequest")
SetTrialStatusReply = _message("SetTrialStatusReply")

DB_MANAGER: Final = "api.v1.beta1.DBManager"
EARLY_STOPPING: Final = "api.v1.beta1.EarlyStopping"

NEXT_METADATA: Final = "trialtap-next"
"""Trailing metadata of FAILED_PRECONDITION: the ordinal that the server expects."""
NAMESPACE_METADATA: Final = "trialtap-namespace"
"""Metadata of SetTrialStatus: the trial's namespace."""


class Method(NamedTuple):
    """One unary method: its path for `channel.unary_unary`, and its messages."""

    service: str
    name: str
    request: Any
    reply: Any

    @property
    def path(self) -> str:
        """The HTTP/2 path, `/package.Service/Method`."""
        return f"/{self.service}/{self.name}"


REPORT: Final = Method(
    DB_MANAGER, "ReportObservationLog", ReportObservationLogRequest, ReportObservationLogReply
)
GET: Final = Method(DB_MANAGER, "GetObservationLog", GetObservationLogRequest, GetObservationLogReply)
DELETE: Final = Method(
    DB_MANAGER, "DeleteObservationLog", DeleteObservationLogRequest, DeleteObservationLogReply
)
SET_TRIAL_STATUS: Final = Method(EARLY_STOPPING, "SetTrialStatus", SetTrialStatusRequest, SetTrialStatusReply)
