"""`status` and `rotate`: what a person sees of the certificates, and asks of them."""

import asyncio
import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from certs import issue, pem, plan
from certs.cluster import WISH_ANNOTATION, Cluster, Look, Where
from trialtap.kube import API, JSON, path_of

_POLL_SECONDS: Final = 2.0


async def status(api: API, where: Where) -> tuple[list[str], list[str]]:
    """Lines that say what is there, and faults with what to do about each.

    Raises:
        Status: an object cannot be read.
        Unreachable: no answer.
    """
    if not where.mutating and not where.validating:
        where = await _found(api, where)
    look = await Cluster(api, where).look(plan.Memory(), leading=False)
    return list(_lines(look)), list(_faults(look, where))


async def _found(api: API, where: Where) -> Where:
    """With the webhook configurations that call a Service of this namespace."""

    async def named(plural: str) -> tuple[str, ...]:
        path = path_of("admissionregistration.k8s.io/v1", plural)
        items = [item async for page in api.pages(path) for item in page["items"]]
        return tuple(item["metadata"]["name"] for item in items if _calls(item, where.namespace))

    return replace(
        where,
        mutating=await named("mutatingwebhookconfigurations"),
        validating=await named("validatingwebhookconfigurations"),
    )


def _calls(configuration: JSON, namespace: str) -> bool:
    webhooks = configuration.get("webhooks") or ()
    return any((w["clientConfig"].get("service") or {}).get("namespace") == namespace for w in webhooks)


async def rotate(api: API, where: Where, what: str, seconds: float) -> str:
    """Ask the replicas to renew `ca` or `leaf`, and wait until it is done; returns what happened.

    Raises:
        ValueError: there is nothing to renew, or it is not done in time.
        Status: the Secret cannot be read or patched.
        Unreachable: no answer.
    """
    cluster = Cluster(api, where)
    before = _state(await cluster.look(plan.Memory(), leading=False))
    if before.ca is None:
        raise ValueError(
            f"Secret {where.namespace}/{where.secret} holds no CA: are the webhook's pods running? "
            f"kubectl -n {where.namespace} logs deploy/… -c certs says why not"
        )
    path = path_of("v1", "secrets", where.namespace, where.secret)
    body = {"metadata": {"annotations": {WISH_ANNOTATION: what}}}
    await api.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    until = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_POLL_SECONDS)
        now = _state(await cluster.look(plan.Memory(), leading=False))
        if now.leaf and now.leaf != before.leaf and (what == "leaf" or now.ca != before.ca):
            served = issue.read(now.leaf.certificate)
            return (
                f"renewed: {served.serial_number:x} is served, valid until {_day(served.not_valid_after_utc)}"
            )
    raise ValueError(
        f"not done after {seconds:g} s; it goes on without this command: see `python -m certs status`"
    )


def _state(look: Look) -> plan.State:
    return plan.State.read(look.observed.secret or {}, look.now)


def _lines(look: Look) -> Iterator[str]:
    state = _state(look)
    for title, pair in (("CA", state.ca), ("next CA", state.following), ("serving", state.leaf)):
        if pair is None:
            continue
        found = issue.read(pair.certificate)
        names = ", ".join(sorted(pem.names(found)))
        yield (
            f"{title:8} {found.serial_number:x}  until {_day(found.not_valid_after_utc)}, "
            f"renewed from {_day(pem.renewal(found))}" + (f"  for {names}" if names else "")
        )
    for authority in state.old:
        found = issue.read(authority.pem)
        yield f"old CA   {found.serial_number:x}  until {_day(found.not_valid_after_utc)}, still trusted"
    for path, webhooks in sorted(look.observed.configurations.items()):
        for name, bundle in sorted(webhooks.items()):
            serials = ", ".join(f"{issue.read(a.pem).serial_number:x}" for a in pem.authorities(bundle))
            yield f"{path.rpartition('/')[2]}/{name} trusts {serials or 'nobody'}"


def _faults(look: Look, where: Where) -> Iterator[str]:
    state = _state(look)
    secret = f"Secret {where.namespace}/{where.secret}"
    if look.observed.secret is None:
        yield f"{secret} is not there: the replica that holds the Lease makes it; are the webhook's pods running?"
    elif state.ca is None:
        yield f"{secret} holds no usable CA: the replica that holds the Lease makes one; are the pods running?"
    elif state.leaf is None:
        yield f"{secret} holds no usable serving certificate: are the webhook's pods running?"
    for path in where.configurations:
        name = path.rpartition("/")[2]
        if path not in look.observed.configurations:
            yield f"webhook configuration {name} is not there: `helm upgrade` makes it again"
            continue
        for webhook, bundle in sorted(look.observed.configurations[path].items()):
            trusted = {a.fingerprint for a in pem.authorities(bundle)}
            if state.ca and pem.fingerprint(state.ca.certificate) not in trusted:
                yield f"{name}/{webhook} does not trust the CA: the replica that holds the Lease mends it"


def _day(time: dt.datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC")
