"""Who a caller is: nobody asks (`none`), or a service-account token checked by TokenReview (`token`)."""

import base64
import binascii
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dbmanager import metrics
from dbmanager.rows import StoreError, UnavailableError
from trialtap.names import TOKEN_AUDIENCE

CACHED: Final = 4096
REFUSED_SECONDS: Final = 10.0
"""How long a refused token is refused without asking again."""
LONGEST_SECONDS: Final = 3600.0
"""How long an accepted token is accepted without asking again, when its expiry is further off or unreadable.

A token of a deleted pod stays good here for at most so long.
"""
_USER: Final = "system:serviceaccount:"


class UnauthenticatedError(StoreError):
    """No token, or one that the API server does not accept."""


class ForbiddenError(StoreError):
    """The token is good, but not for that namespace."""


@dataclass(frozen=True)
class Review:
    """An API server's word on a token: its user name, or why it is refused."""

    user: str | None
    error: str = ""


class Reviewer(Protocol):
    """Asks an API server about a token of an audience."""

    async def review(self, token: str, audience: str) -> Review:
        """The answer.

        Raises:
            UnavailableError: the API server did not answer.
        """


class Authenticator(Protocol):
    """Tells a caller's namespace from its `authorization` metadata or header."""

    async def namespace(self, authorization: str | None) -> str | None:
        """The only namespace that the caller may touch; None = any.

        Raises:
            UnauthenticatedError: nobody known.
            UnavailableError: it could not be found out.
        """


class Anyone:
    """`--auth none`: Katib's behaviour; every caller may touch every namespace."""

    async def namespace(self, authorization: str | None) -> str | None:  # noqa: ARG002
        """None."""
        return None


class Tokens:
    """`--auth token`: a service account's token of audience `trialtap` opens its own namespace.

    Answers are kept until the token expires; refusals for some seconds.
    """

    def __init__(
        self, reviewer: Reviewer, audience: str = TOKEN_AUDIENCE, clock: Callable[[], float] = time.time
    ) -> None:
        self._reviewer = reviewer
        self._audience = audience
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Review]] = OrderedDict()

    async def namespace(self, authorization: str | None) -> str:
        """The namespace of the service account that the bearer token names."""
        token = bearer(authorization)
        if token is None:
            raise UnauthenticatedError(
                f"authorization: no bearer token; send a service-account token of audience {self._audience}"
            )
        review = await self._review(token)
        if review.user is None:
            raise UnauthenticatedError(
                f"authorization: the API server does not accept the token for audience {self._audience}: "
                f"{review.error or 'not authenticated'}"
            )
        namespace, _, account = review.user.removeprefix(_USER).partition(":")
        if not review.user.startswith(_USER) or not namespace or not account:
            raise UnauthenticatedError(f"authorization: {review.user} is no service account")
        return namespace

    async def _review(self, token: str) -> Review:
        # The token itself is not kept: a core dump of this process must not hold other pods' tokens.
        key = hashlib.sha256(token.encode()).digest()
        now = self._clock()
        known = self._known.get(key)
        if known is not None and now < known[0]:
            self._known.move_to_end(key)
            return known[1]
        review = await self._reviewer.review(token, self._audience)
        metrics.TOKEN_REVIEWS.labels("refused" if review.user is None else "accepted").inc()
        if review.user is None:
            until = now + REFUSED_SECONDS
        else:
            expiry = expires(token)
            until = now + LONGEST_SECONDS if expiry is None else min(expiry, now + LONGEST_SECONDS)
        self._known[key] = (until, review)
        while len(self._known) > CACHED:
            self._known.popitem(last=False)
        return review


def bearer(authorization: str | None) -> str | None:
    """The token of `Bearer TOKEN`; None when it is no such thing."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


def expires(token: str) -> float | None:
    """The `exp` of a JWT in seconds since 1970, unverified (the API server has verified the token); else None."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None


def allowed(own: str | None, wanted: str, field: str) -> str:
    """The namespace that a request is for, given the caller's own (None = any) and what it says.

    Raises:
        ForbiddenError: it says another than its own.
    """
    if own is None:
        return wanted
    if wanted and wanted != own:
        raise ForbiddenError(f"{field}: the token is of namespace {own}, the request is for {wanted}")
    return own


class ClusterReviewer:
    """TokenReview by the Kubernetes API.

    Args:
        call: creates a TokenReview (a dict of authentication.k8s.io/v1) and answers it with its status.
    """

    def __init__(self, call: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
        self._call = call

    async def review(self, token: str, audience: str) -> Review:
        """See Reviewer; a server that does not confirm the audience counts as a refusal."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        try:
            answer = await self._call(body)
        except Exception as error:
            metrics.TOKEN_REVIEWS.labels("error").inc()
            text = " ".join(str(error).split())[:200] or type(error).__name__
            raise UnavailableError(
                f"the API server did not answer a TokenReview: {text}; send it again"
            ) from error
        status = answer.get("status") or {}
        if not status.get("authenticated"):
            return Review(None, str(status.get("error") or ""))
        if audience not in (status.get("audiences") or []):
            return Review(None, f"the API server did not confirm the audience {audience}")
        return Review(str((status.get("user") or {}).get("username") or ""))
