"""TokenReviews against the Kubernetes API, from inside a cluster or by a kubeconfig."""

from typing import Any, Final

from kubernetes.aio import client, config

REVIEW_SECONDS: Final = 5.0


class Reviews:
    """Creates TokenReviews; `await close()` it at the end."""

    def __init__(self, kubeconfig: str | None) -> None:
        self._kubeconfig = kubeconfig
        self._client: Any = None

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """The TokenReview with its status, as the API has it."""
        if self._client is None:
            loader: Any = config  # ships no types
            configuration = client.Configuration()
            if self._kubeconfig is None:
                loader.load_incluster_config(client_configuration=configuration)
            else:
                await loader.load_kube_config(self._kubeconfig, client_configuration=configuration)
            self._client = client.ApiClient(configuration)
        api: Any = client.AuthenticationV1Api(self._client)
        answer = await api.create_token_review(body, _request_timeout=REVIEW_SECONDS)
        found: dict[str, Any] = self._client.sanitize_for_serialization(answer)
        return found

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.close()
