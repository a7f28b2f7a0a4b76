"""One conversation with one registry (OCI distribution API): bounded answers, tokens, redirects, all guarded."""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import httpx
import orjson

from webhook import guard
from webhook.guard import Resolve
from webhook.imageref import DOCKER_HUB, Image
from webhook.pullsecrets import Credentials
from webhook.review import JSON
from webhook.settings import EntrypointLookup

MAX_BYTES: Final = 4 << 20
"""Longest answer that is read."""
MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_HUB_REALM: Final = "auth.docker.io"


class Answer(NamedTuple):
    """What a registry answered with 200."""

    headers: httpx.Headers
    body: bytes

    def json(self) -> JSON:
        """The body as a JSON object.

        Raises:
            LookupError: it is none.
        """
        try:
            document = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise LookupError("the registry's answer is no JSON") from None
        if not isinstance(document, dict):
            raise LookupError("the registry's answer is no JSON object")
        return document


@dataclass(slots=True)
class Session:
    """Requests for one image; a token that the registry asks for is had once."""

    client: httpx.AsyncClient
    image: Image
    settings: EntrypointLookup
    credentials: Credentials | None = None
    resolver: Resolve = guard.resolve
    _authorization: str = field(default="", init=False)

    async def get(self, path: str, accept: str = "*/*", *, method: str = "GET") -> Answer:
        """Ask for `/v2/REPOSITORY/path`.

        Raises:
            LookupError: the registry, or somebody on the way, did not give it; the message says what happened.
        """
        base = f"{guard.scheme_of(self.image.api_host, self.settings)}://{self.image.api_host}"
        url = httpx.URL(f"{base}/v2/{self.image.repository}/{path}")
        response, body = await self._ask(method, url, accept)
        if response.status_code == 401 and not self._authorization:
            self._authorization = await self._authorize(response.headers.get("www-authenticate", ""))
            response, body = await self._ask(method, url, accept)
        if response.status_code != 200:
            raise LookupError(
                f"{self.image.registry} answered {response.status_code} for {self.image.repository}"
            )
        return Answer(response.headers, body)

    async def _ask(self, method: str, url: httpx.URL, accept: str) -> tuple[httpx.Response, bytes]:
        """Send one request and follow its redirects; credentials go to the registry's own host alone."""
        home = url.netloc
        for _ in range(MAX_REDIRECTS + 1):
            headers = {"Accept": accept}
            if self._authorization and url.netloc == home:
                headers["Authorization"] = self._authorization
            response, body = await self._send(method, url, headers)
            target = response.headers.get("location")
            if response.status_code not in _REDIRECTS or not target:
                return response, body
            try:
                url = url.join(target)
            except httpx.InvalidURL:
                raise LookupError(f"{self.image.registry} redirects to something that is no URL") from None
        raise LookupError(f"{self.image.registry} redirects more than {MAX_REDIRECTS} times")

    async def _send(
        self, method: str, url: httpx.URL, headers: Mapping[str, str]
    ) -> tuple[httpx.Response, bytes]:
        place = await guard.check(url, self.settings, self.resolver)
        request = self.client.build_request(
            method,
            place.url,
            headers={**headers, "Host": place.authority, "Accept-Encoding": "identity"},
            extensions={"sni_hostname": place.host},
        )
        try:
            response = await self.client.send(request, stream=True, follow_redirects=False)
            try:
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise LookupError(f"{place.authority} sends more than {MAX_BYTES} bytes")
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise LookupError(f"{place.authority} cannot be asked: {error or type(error).__name__}") from None
        return response, bytes(body)

    async def _authorize(self, challenge: str) -> str:
        """The Authorization that a 401 asks for (Basic, or a Bearer token from the realm that it names).

        Raises:
            LookupError: the registry wants credentials that are not had, or its realm gives no token.
        """
        scheme, _, rest = challenge.partition(" ")
        parameters = dict(_CHALLENGE.findall(rest))
        if scheme.lower() == "basic" and self.credentials:
            return _basic(self.credentials)
        if scheme.lower() != "bearer" or "realm" not in parameters:
            raise LookupError(f"{self.image.registry} wants credentials for {self.image.repository} (401)")
        try:
            realm = httpx.URL(parameters["realm"])
        except httpx.InvalidURL:
            raise LookupError(f"{self.image.registry} names a token realm that is no URL") from None
        scope = parameters.get("scope") or f"repository:{self.image.repository}:pull"
        query = {"scope": scope} | ({"service": parameters["service"]} if "service" in parameters else {})
        headers = {"Accept": "application/json"}
        if self.credentials and self._may_see_credentials(realm):
            headers["Authorization"] = _basic(self.credentials)
        response, body = await self._send("GET", realm.copy_merge_params(query), headers)
        if response.status_code != 200:
            raise LookupError(
                f"{realm.host} gave no token for {self.image.repository} ({response.status_code})"
            )
        answer = Answer(response.headers, body).json()
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise LookupError(f"{realm.host} gave no token for {self.image.repository}")
        return f"Bearer {token}"

    def _may_see_credentials(self, realm: httpx.URL) -> bool:
        """Whether a realm is the registry's own: its host, a domain that the host is of, or Docker Hub's realm.

        The scheme must be the registry's, so that a password never leaves in the clear for one that is TLS.
        """
        host = httpx.URL(f"https://{self.image.api_host}").host
        if realm.scheme != guard.scheme_of(self.image.api_host, self.settings):
            return False
        if self.image.registry == DOCKER_HUB:
            return realm.host == _HUB_REALM
        return realm.host == host or ("." in realm.host and host.endswith(f".{realm.host}"))


def _basic(credentials: Credentials) -> str:
    return "Basic " + b64encode(f"{credentials.user}:{credentials.password}".encode()).decode()
