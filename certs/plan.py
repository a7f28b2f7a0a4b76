"""What to do about certificates: one pure function of what was observed and the time.

The order of things is what keeps the API server's calls from failing, so here it is whole:

1. A new CA is written to the Secret as `next`, signing nothing.
2. Every webhook's caBundle gets it beside what stands there.
3. When this process has seen it in every caBundle for LEAD seconds, one write makes it the CA, with a
   serving certificate and, signed by the CA before, a certificate of itself; the CA before becomes `old`.
4. A replica serves a certificate only when every caBundle trusts its CA (for LEAD seconds too, unless
   what it serves now is trusted by nobody: then sooner is only better).
5. `old` leaves Secret and caBundles when the CA has been seen as it is for RETIRE seconds. A replica
   that has not looked for STALE seconds, several times less, calls itself unready.

Nothing leaves a caBundle before step 5, whoever put it there and whatever the clock says, and seconds
are counted by each process for itself on its monotonic clock: wall clocks only decide when something
is due. Each replica computes the plan; only the one that holds the Lease writes, and each write names
the version that it was computed from, so that a writer which was paused meanwhile is refused.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from certs import issue, pem
from certs.issue import Pair
from certs.pem import Authority

# Keys of the Secret.
CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
NEXT_CERTIFICATE: Final = "next.crt"
NEXT_KEY: Final = "next.key"
OLD: Final = "old.crt"
"""CA certificates that are still trusted, one PEM text."""
CHAIN: Final = "chain.crt"
"""Certificates of the CA signed by the CAs before it, newest first, one PEM text."""

STEP: Final = 10.0
"""Seconds that one look at most adds to a count: between two looks further apart nobody saw anything."""
_CHAIN_LIMIT: Final = 8
"""CAs that a running sidecar may lie behind."""


@dataclass(frozen=True)
class Settings:
    """What the administrator decides."""

    names: tuple[str, ...]
    """DNS names and IP addresses of the serving certificate."""
    ca_life: dt.timedelta = issue.CA_LIFE
    leaf_life: dt.timedelta = issue.LEAF_LIFE
    lead: float = 30.0
    """Seconds for which a new CA is published before anything signed by it is served."""
    stale: float = 15 * 60.0
    """Seconds without a look after which a replica calls itself unready."""
    retire: float = 2 * 60 * 60.0
    """Seconds after which an old CA is no longer published. A replica that looks just often enough to be
    ready needs `lead / STEP + 1` looks to change over, so this must be more than that many `stale`."""


@dataclass(frozen=True)
class Memory:
    """What one process has seen so far; it starts empty and is lost with the process."""

    looked: float | None = None
    """Monotonic seconds of the last look."""
    held: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which a CA (by fingerprint) was seen in every caBundle without a break."""
    among: frozenset[str] = frozenset()
    """The webhooks (`Observed.identities`) that `held` is about."""
    settled: tuple[str, float] = ("", 0.0)
    """The CA (by fingerprint) that has a serving certificate, and the seconds for which it was seen so."""
    good: Mapping[str, bytes] | None = None
    """The last content of the Secret that held a CA."""
    serving: Pair | None = None
    """What this replica serves."""


@dataclass(frozen=True)
class Observed:
    """What the cluster holds, and what this process remembers."""

    secret: Mapping[str, bytes] | None
    """The Secret's data; None when there is no Secret."""
    configurations: Mapping[str, Mapping[str, bytes]]
    """caBundles by webhook, by webhook configuration; only configurations that exist."""
    identities: frozenset[str] = frozenset()
    """UIDs of those configurations: one that was made anew starts every count again."""
    wish: str = ""
    """What a person asked to renew by annotation: `ca`, `leaf` or nothing."""
    copy: Mapping[str, bytes] | None = None
    """Data of the Secret that hands the serving certificate to the DB manager; None when it has none."""
    leading: bool = False
    """Whether this process holds the Lease."""
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True)
class MakeSecret:
    """Create the Secret, empty: content is only ever written over a version that was read."""


@dataclass(frozen=True)
class WriteSecret:
    """Replace the Secret's data, every key of ours, and take the wish away when it was granted."""

    data: Mapping[str, bytes] = field(repr=False)
    why: str
    granted: bool = False


@dataclass(frozen=True)
class Publish:
    """Set the caBundle of every webhook of a configuration."""

    configuration: str
    bundle: bytes = field(repr=False)


@dataclass(frozen=True)
class WriteCopy:
    """Set the data of the DB manager's Secret."""

    data: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class Serve:
    """Serve this certificate from now on; `trust` is the bundle for clients."""

    pair: Pair
    trust: bytes = field(repr=False)


Action = MakeSecret | WriteSecret | Publish | WriteCopy | Serve


@dataclass(frozen=True)
class State:
    """The Secret as far as it can be used; rubbish reads as absence."""

    ca: Pair | None = None
    leaf: Pair | None = None
    following: Pair | None = None
    """The next CA, which signs nothing yet."""
    old: tuple[Authority, ...] = ()
    chain: bytes = b""

    @classmethod
    def read(cls, data: Mapping[str, bytes], now: dt.datetime) -> "State":
        """Take what is whole, fits together and is valid at `now`."""
        get = data.get
        ca = pem.authority_pair(get(CA_CERTIFICATE, b""), get(CA_KEY, b""), now)
        leaf = ca and pem.serving_pair(get(CERTIFICATE, b""), get(KEY, b""), ca, now)
        following = pem.authority_pair(get(NEXT_CERTIFICATE, b""), get(NEXT_KEY, b""), now)
        return cls(
            ca, leaf, following, pem.authorities(get(OLD, b"")), pem.bundle(pem.authorities(get(CHAIN, b"")))
        )

    def data(self) -> dict[str, bytes]:
        """As the Secret holds it; keys of what is absent are left out."""
        pairs = (
            (CA_CERTIFICATE, CA_KEY, self.ca),
            (CERTIFICATE, KEY, self.leaf),
            (NEXT_CERTIFICATE, NEXT_KEY, self.following),
        )
        found = {k: v for c, key, pair in pairs if pair for k, v in ((c, pair.certificate), (key, pair.key))}
        return found | {k: v for k, v in ((OLD, pem.bundle(self.old)), (CHAIN, self.chain)) if v}

    def trusted(self) -> tuple[Authority, ...]:
        """Every CA that a reader is to trust, the current one first."""
        ours = [pair.certificate for pair in (self.ca, self.following) if pair]
        return (*(a for c in ours for a in pem.authorities(c)), *self.old)


def remember(observed: Observed, now: dt.datetime, monotonic: float) -> Memory:
    """The memory after a look at `monotonic` seconds of this process's clock."""
    memory = observed.memory
    passed = 0.0 if memory.looked is None else max(0.0, min(STEP, monotonic - memory.looked))
    before = memory.held if memory.among == observed.identities else {}
    state = State.read(observed.secret or {}, now)
    current = pem.fingerprint(state.ca.certificate) if state.ca and state.leaf else ""
    settled, seconds = memory.settled
    return replace(
        memory,
        looked=monotonic,
        held={ca: before[ca] + passed if ca in before else 0.0 for ca in _everywhere(observed)},
        among=observed.identities,
        settled=(current, seconds + passed if current == settled else 0.0),
        good=observed.secret if state.ca else memory.good,
    )


def plan(observed: Observed, now: dt.datetime, settings: Settings) -> tuple[Action, ...]:
    """What this process has to do, in order, `Serve` at once; nothing when all is as it should be.

    `observed.memory` is that of `remember` for the same look. After any action but Serve the caller
    looks again.
    """
    state = State.read(observed.secret or {}, now)
    writes = _writes(state, observed, now, settings) if observed.leading else ()
    return (*_serve(state, observed, now, settings), *writes)


def ready(memory: Memory, now: dt.datetime, monotonic: float, settings: Settings) -> bool:
    """Whether the replica may be called: it serves something valid, and knows what goes on."""
    if memory.serving is None or memory.looked is None or monotonic - memory.looked >= settings.stale:
        return False
    return now < issue.read(memory.serving.certificate).not_valid_after_utc


def unfinished(observed: Observed, now: dt.datetime) -> bool:
    """Whether a count is running, so that the next look should come within STEP seconds."""
    state = State.read(observed.secret or {}, now)
    served = observed.memory.serving
    return not state.leaf or state.following is not None or bool(state.old) or state.leaf != served


def _writes(state: State, observed: Observed, now: dt.datetime, settings: Settings) -> Iterator[Action]:
    if observed.secret is None:
        yield MakeSecret()
        return
    wanted, why = _wanted(state, observed, now, settings)
    data = wanted.data()
    if data != {key: value for key, value in observed.secret.items() if key in _KEYS} or observed.wish:
        yield WriteSecret(data, why or "repair", granted=bool(observed.wish))
    # What is published follows what the Secret holds, never what is only about to be written.
    kept = () if _is_settled(observed, settings) else _published(observed)
    bundle = pem.bundle((*state.trusted(), *kept))
    for name, webhooks in sorted(observed.configurations.items()):
        if bundle and any(given != bundle for given in webhooks.values()):
            yield Publish(name, bundle)
    if observed.copy is not None and state.leaf:
        copy = {CA_CERTIFICATE: bundle, CERTIFICATE: state.leaf.certificate, KEY: state.leaf.key}
        if copy != observed.copy:
            yield WriteCopy(copy)


_KEYS: Final = frozenset((CA_CERTIFICATE, CA_KEY, CERTIFICATE, KEY, NEXT_CERTIFICATE, NEXT_KEY, OLD, CHAIN))


def _wanted(state: State, observed: Observed, now: dt.datetime, settings: Settings) -> tuple[State, str]:
    """The Secret as it should be, and why it is not."""
    why = ""
    if state.ca is None and observed.memory.good is not None:
        restored = State.read(observed.memory.good, now)
        # What somebody put there meanwhile may be published already; it stays trusted like any other.
        following = state.following or restored.following
        # A remembered CA that has run out restores nothing: what the Secret holds now keeps its order.
        state = replace(restored if restored.ca else state, following=following)
        why = "restored from memory" if state.ca else ""
    if state.following and _may_sign(state.following, state, observed, settings):
        state, why = _promote(state, state.following, now, settings), "the next CA signs from now on"
    elif state.following is None and (state.ca is None or _due(state.ca, now) or observed.wish == "ca"):
        state, why = replace(state, following=issue.authority(now, settings.ca_life)), "a next CA"
    if state.ca and (state.leaf is None or _leaf_due(state.leaf, now, settings) or observed.wish == "leaf"):
        leaf = issue.leaf(state.ca, settings.names, now, settings.leaf_life, state.chain)
        state, why = replace(state, leaf=leaf), why or "a serving certificate"
    kept = () if _is_settled(observed, settings) else (*state.old, *_published(observed))
    ours = {authority.fingerprint for authority in replace(state, old=()).trusted()}
    old = {a.fingerprint: a for a in kept if a.fingerprint not in ours}
    return replace(state, old=tuple(old.values())), why or "old CAs"


def _promote(state: State, new: Pair, now: dt.datetime, settings: Settings) -> State:
    chain, old = b"", state.old
    if state.ca:
        vouched = (issue.vouch(new, state.ca), *_valid_chain(state.chain, now))
        chain = b"".join(vouched[:_CHAIN_LIMIT])
        old = (*pem.authorities(state.ca.certificate), *old)
    leaf = issue.leaf(new, settings.names, now, settings.leaf_life, chain)
    return State(ca=new, leaf=leaf, following=None, old=old, chain=chain)


def _valid_chain(chain: bytes, now: dt.datetime) -> Iterator[bytes]:
    dates = {a.fingerprint: issue.read(a.pem).not_valid_after_utc for a in pem.authorities(chain)}
    return (a.pem for a in pem.authorities(chain) if dates[a.fingerprint] > now)


def _may_sign(new: Pair, state: State, observed: Observed, settings: Settings) -> bool:
    """Whether the next CA is published long enough; at once where no other CA is trusted by anybody."""
    if not observed.configurations:
        return True
    held = observed.memory.held.get(pem.fingerprint(new.certificate))
    others = {a.fingerprint for a in _published(observed)} - {pem.fingerprint(new.certificate)}
    return held is not None and (held >= settings.lead or not (others or state.leaf))


def _serve(state: State, observed: Observed, now: dt.datetime, settings: Settings) -> Iterator[Action]:
    memory = observed.memory
    if state.ca is None or state.leaf is None:
        return
    trust = pem.bundle(state.trusted())
    if state.leaf == memory.serving or _may_serve(state.ca, observed, now, settings):
        yield Serve(state.leaf, trust)


def _may_serve(ca: Pair, observed: Observed, now: dt.datetime, settings: Settings) -> bool:
    if not observed.configurations:
        return True
    held = observed.memory.held.get(pem.fingerprint(ca.certificate))
    if held is None:
        return False
    return held >= settings.lead or not _is_trusted(observed.memory.serving, observed, now)


def _is_trusted(pair: Pair | None, observed: Observed, now: dt.datetime) -> bool:
    """Whether a caller that knows only one of the caBundles may still take what is served."""
    if pair is None:
        return False
    served = issue.read(pair.certificate)
    return served.not_valid_after_utc > now and any(
        pem.issued(served, Pair(authority.pem, b"")) for authority in _published(observed)
    )


def _is_settled(observed: Observed, settings: Settings) -> bool:
    current, seconds = observed.memory.settled
    return bool(current) and seconds >= settings.retire


def _published(observed: Observed) -> tuple[Authority, ...]:
    """Every CA of any caBundle."""
    bundles = (b for webhooks in observed.configurations.values() for b in webhooks.values())
    found = (authority for bundle in bundles for authority in pem.authorities(bundle))
    return tuple({authority.fingerprint: authority for authority in found}.values())


def _everywhere(observed: Observed) -> frozenset[str]:
    """The CAs, by fingerprint, that every caBundle holds."""
    bundles = [b for webhooks in observed.configurations.values() for b in webhooks.values()]
    sets = [frozenset(a.fingerprint for a in pem.authorities(bundle)) for bundle in bundles]
    return frozenset.intersection(*sets) if sets else frozenset()


def _due(pair: Pair, now: dt.datetime) -> bool:
    return pem.renewal(issue.read(pair.certificate)) <= now


def _leaf_due(leaf: Pair, now: dt.datetime, settings: Settings) -> bool:
    return _due(leaf, now) or pem.names(issue.read(leaf.certificate)) != frozenset(settings.names)
