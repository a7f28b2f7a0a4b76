"""Where a look-up may go: every URL that it is led to is checked here, and reached at the address checked."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import Final, NamedTuple

import httpx

from webhook.settings import EntrypointLookup

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> addresses as text; raises OSError."""

_PORTS: Final = {"https": 443, "http": 80}
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class Forbidden(LookupError):  # noqa: N818 - an answer to whoever asks, not an error of ours
    """A URL that a look-up must not follow; the message says which rule forbids it and which setting allows it."""


class Place(NamedTuple):
    """A checked URL."""

    url: httpx.URL
    """The URL with the address in the host's place."""
    host: str
    """The name, which goes into the Host header and is what the certificate must be for."""
    authority: str
    """Host, with the port where the URL has one."""


async def resolve(host: str, port: int) -> list[str]:
    """Addresses of a host, by the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def check(url: httpx.URL, settings: EntrypointLookup, resolver: Resolve = resolve) -> Place:
    """Check one URL, and pin it to an address so that a second resolution cannot lead elsewhere.

    Only https, unless the host is among `plainHosts`; only public addresses, unless it is among `privateHosts`.

    Raises:
        Forbidden: a rule forbids it.
        LookupError: the host does not resolve.
    """
    scheme, host = url.scheme, url.host
    authority = url.netloc.decode("ascii")
    if scheme not in _PORTS or not host:
        raise Forbidden(f"{_shown(url)} is neither https nor http")
    if scheme == "http" and not _listed(host, authority, settings.plain_hosts):
        raise Forbidden(
            f"{authority} would be asked over plain HTTP; entrypointLookup.plainHosts may list it"
        )
    try:
        addresses = await resolver(host, url.port or _PORTS[scheme])
    except OSError as error:
        raise LookupError(f"{host} does not resolve: {error.strerror or error}") from None
    if not addresses:
        raise LookupError(f"{host} has no address")
    if not _listed(host, authority, settings.private_hosts):
        for address in addresses:
            if not is_public(address):
                raise Forbidden(
                    f"{authority} is at an address that is not public; entrypointLookup.privateHosts may list it"
                )
    return Place(url.copy_with(host=addresses[0], userinfo=b"", fragment=None), host, authority)


def is_public(text: str) -> bool:
    """Whether an address is one of the public internet, the IPv4 address inside an IPv6 one included."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None and not is_public(str(inner)):
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def scheme_of(authority: str, settings: EntrypointLookup) -> str:
    """How a registry is asked: https, or http where `plainHosts` lists it."""
    host = httpx.URL(f"https://{authority}").host
    return "http" if _listed(host, authority, settings.plain_hosts) else "https"


def _listed(host: str, authority: str, hosts: Collection[str]) -> bool:
    return host in hosts or authority in hosts


def _shown(url: httpx.URL) -> str:
    """A URL in a message: without what may be a secret in its query."""
    return f"{url.scheme}://{url.host}"
