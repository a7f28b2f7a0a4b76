"""The plan of certificates: a machine of failures first, then the rules one by one."""

import datetime as dt
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
from cryptography import x509
from cryptography.x509 import verification
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from certs import issue, pem, plan

NAMES = ("webhook", "webhook.ns.svc")
SETTINGS = plan.Settings(NAMES, lead=30.0, stale=40.0, retire=240.0)
START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
FOREIGN = issue.authority(START, dt.timedelta(days=36500)).certificate


@cache
def trusts(bundle: bytes, served: bytes, now: dt.datetime) -> bool:
    """Whether a caller that knows `bundle` takes what is served, by another implementation than ours."""
    leaf, *chain = x509.load_pem_x509_certificates(served)
    roots = [x509.load_pem_x509_certificate(authority.pem) for authority in pem.authorities(bundle)]
    if not roots:
        return False
    policy = verification.PolicyBuilder().store(verification.Store(roots)).time(now)
    try:
        policy.build_server_verifier(x509.DNSName(NAMES[1])).verify(leaf, chain)
    except verification.VerificationError:
        return False
    return True


@dataclass
class Entry:
    """A webhook's caBundle, and whether somebody else wrote it last."""

    bundle: bytes = b""
    tampered: bool = True
    since: dict[str, float] = field(default_factory=dict)
    """When each CA was first published here by us."""

    def publish(self, bundle: bytes, seconds: float) -> None:
        self.bundle, self.tampered = bundle, False
        self.since = {a.fingerprint: self.since.get(a.fingerprint, seconds) for a in pem.authorities(bundle)}


@dataclass
class Configuration:
    """A webhook configuration: the bundle of each entry, and a version."""

    version: int
    entries: dict[str, Entry]


@dataclass
class Replica:
    """One replica: its clock's error, its memory, and what it decided at its last look but has not done."""

    skew: dt.timedelta
    started: float
    memory: plan.Memory = field(default_factory=plan.Memory)
    todo: list[plan.Action] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)


class Cluster:
    """An API server's objects with optimistic concurrency, and replicas that look and act on them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.version = 0
        self.secret: dict[str, bytes] | None = {}
        self.secret_version = 0
        self.wish = ""
        self.meddled = False
        """Whether somebody else ever wrote the Secret."""
        self.configurations: dict[str, Configuration] = {}
        self.replicas = [Replica(dt.timedelta(0), 0.0), Replica(dt.timedelta(0), 0.0)]

    @property
    def now(self) -> dt.datetime:
        return START + dt.timedelta(seconds=self.seconds)

    def bump(self) -> int:
        self.version += 1
        return self.version

    def write_secret(self, data: dict[str, bytes] | None) -> None:
        self.secret, self.secret_version = data, self.bump()

    def add_configuration(self, name: str, entries: int) -> None:
        self.configurations[name] = Configuration(self.bump(), {f"{i}": Entry() for i in range(entries)})

    def look(self, replica: Replica, *, leading: bool) -> None:
        observed = plan.Observed(
            secret=None if self.secret is None else dict(self.secret),
            configurations={
                name: {key: entry.bundle for key, entry in configuration.entries.items()}
                for name, configuration in self.configurations.items()
            },
            wish=self.wish,
            leading=leading,
            memory=replica.memory,
        )
        now = self.now + replica.skew
        replica.memory = plan.remember(observed, now, self.seconds - replica.started)
        replica.todo = list(plan.plan(replace(observed, memory=replica.memory), now, SETTINGS))
        replica.seen = {name: item.version for name, item in self.configurations.items()}
        replica.seen[""] = self.secret_version
        # A certificate is served in the moment it was decided on; a write takes its time.
        for action in [action for action in replica.todo if isinstance(action, plan.Serve)]:
            replica.todo.remove(action)
            if action.pair == replica.memory.serving:
                continue
            before = self.trusting()
            self.check_lead(replica.memory.serving, action.pair)
            replica.memory = replace(replica.memory, serving=action.pair)
            assert before <= self.trusting()

    def act(self, replica: Replica) -> None:
        """Do the first thing that is left to do; a conflict drops the rest."""
        action, before = replica.todo.pop(0), self.trusting()
        match action:
            case plan.MakeSecret():
                if self.secret is None:
                    self.write_secret({})
            case plan.WriteSecret():
                if self.secret is None or replica.seen[""] != self.secret_version:
                    replica.todo.clear()
                    return
                self.write_secret(dict(action.data))
                self.wish = "" if action.granted else self.wish
            case plan.Publish():
                configuration = self.configurations.get(action.configuration)
                if configuration is None or replica.seen[action.configuration] != configuration.version:
                    replica.todo.clear()
                    return
                configuration.version = self.bump()
                for entry in configuration.entries.values():
                    entry.publish(action.bundle, self.seconds)
        assert before <= self.trusting()

    def trusting(self) -> set[tuple[int, str, str]]:
        """Which caBundles trust what which ready replicas serve: no action of ours takes any of this away."""
        return {
            (index, name, key)
            for index, replica in enumerate(self.replicas)
            if replica.memory.serving and self.ready(replica)
            for name, configuration in self.configurations.items()
            for key, entry in configuration.entries.items()
            if trusts(entry.bundle, replica.memory.serving.certificate, self.now)
        }

    def turn(self, replica: Replica, *, leading: bool) -> bool:
        """Look and do everything; whether anything but serving was done."""
        self.look(replica, leading=leading)
        wrote = bool(replica.todo)
        while replica.todo:
            self.act(replica)
        return wrote

    def run(self, seconds: float, *, step: float = 10.0, leader: int = 0) -> None:
        """Let time pass with everybody at work and one leader."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds += step
            for index, replica in enumerate(self.replicas):
                for _ in range(20):
                    if not self.turn(replica, leading=index == leader):
                        break
                else:
                    raise AssertionError("the plan never comes to rest")

    def ready(self, replica: Replica) -> bool:
        return plan.ready(replica.memory, self.now + replica.skew, self.seconds - replica.started, SETTINGS)

    def check_lead(self, before: plan.Pair | None, after: plan.Pair) -> None:
        """A CA is published for a while before a replica goes over to it from what was trusted."""
        entries = [e for c in self.configurations.values() for e in c.entries.values() if not e.tampered]
        if before is None or not any(trusts(e.bundle, before.certificate, self.now) for e in entries):
            return
        leaf = issue.read(after.certificate)
        if leaf.issuer == issue.read(before.certificate).issuer:
            return
        for entry in entries:
            (ca,) = [a for a in pem.authorities(entry.bundle) if pem.issued(leaf, plan.Pair(a.pem, b""))]
            assert self.seconds - entry.since[ca.fingerprint] >= SETTINGS.lead

    def check(self) -> None:
        """What is served is trusted by every caBundle that nobody else wrote since we did.

        This holds as long as the Secret is ours alone: who puts another CA there, while a configuration
        is made anew, leaves nobody who knows what each replica serves until its next look.
        """
        for replica in filter(self.ready, self.replicas if not self.meddled else ()):
            assert replica.memory.serving
            for name, configuration in self.configurations.items():
                for key, entry in configuration.entries.items():
                    assert entry.tampered or trusts(
                        entry.bundle, replica.memory.serving.certificate, self.now
                    ), f"{name}/{key} does not trust what is served"

    def check_at_rest(self) -> None:
        """Everybody serves what everybody trusts, and nothing of the past is left."""
        assert self.secret
        (served,) = {replica.memory.serving for replica in self.replicas}
        assert served
        for configuration in self.configurations.values():
            for entry in configuration.entries.values():
                assert not entry.tampered
                assert entry.bundle == self.secret[plan.CA_CERTIFICATE]
                assert trusts(entry.bundle, served.certificate, self.now)
        assert set(self.secret) <= {"ca.crt", "ca.key", "tls.crt", "tls.key", "chain.crt"}


indices = st.integers(0, 1)
keys = st.sampled_from(
    ["ca.crt", "ca.key", "tls.crt", "tls.key", "next.crt", "next.key", "old.crt", "chain.crt"]
)
configurations = st.sampled_from(["mutating", "validating"])


class Failures(RuleBasedStateMachine):
    """Any order of looks, half-done work, restarts, two leaders, skewed clocks and meddling."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.backups: list[dict[str, bytes]] = []

    @initialize(entries=st.integers(0, 2), installed=st.booleans())
    def install(self, entries: int, installed: bool) -> None:
        if entries:
            self.cluster.add_configuration("mutating", entries)
        if installed:
            self.cluster.run(60)

    @rule(index=indices, leading=st.booleans())
    def look(self, index: int, leading: bool) -> None:
        self.cluster.look(self.cluster.replicas[index], leading=leading)

    @rule(index=indices)
    def act(self, index: int) -> None:
        if self.cluster.replicas[index].todo:
            self.cluster.act(self.cluster.replicas[index])

    @rule(index=indices, leading=st.booleans())
    def turn(self, index: int, leading: bool) -> None:
        self.cluster.turn(self.cluster.replicas[index], leading=leading)

    @rule(seconds=st.sampled_from([1, 9, 30, 39, 3600]))
    def wait(self, seconds: int) -> None:
        self.cluster.seconds += seconds

    @rule(days=st.sampled_from([20, 61, 300, 800, 2000]))
    def wait_long(self, days: int) -> None:
        self.cluster.seconds += days * 86400

    @rule(seconds=st.sampled_from([20, 50, 320]), leader=indices)
    def work(self, seconds: int, leader: int) -> None:
        self.cluster.run(seconds, leader=leader)

    @rule(index=indices, hours=st.integers(-11, 11))
    def restart(self, index: int, hours: int) -> None:
        self.cluster.replicas[index] = Replica(dt.timedelta(hours=hours), self.cluster.seconds)

    @rule(name=configurations, entry=st.sampled_from(["0", "1"]), foreign=st.booleans())
    def meddle_with_bundle(self, name: str, entry: str, foreign: bool) -> None:
        found = self.cluster.configurations.get(name)
        if found and entry in found.entries:
            found.entries[entry].bundle = FOREIGN if foreign else b""
            found.entries[entry].tampered = True
            found.version = self.cluster.bump()

    @rule(name=configurations)
    def add_or_remove_configuration(self, name: str) -> None:
        if self.cluster.configurations.pop(name, None) is None:
            self.cluster.add_configuration(name, 2)

    @rule()
    def delete_secret(self) -> None:
        self.cluster.meddled = True
        self.cluster.write_secret(None)

    @precondition(lambda self: self.cluster.secret is not None)
    @rule(key=keys, other=keys, how=st.sampled_from(["cut", "rubbish", "swap", "gone", "foreign"]))
    def meddle_with_secret(self, key: str, other: str, how: str) -> None:
        self.cluster.meddled = True
        data = dict(self.cluster.secret or {})
        value = data.pop(key, b"")
        new = {
            "cut": value[: len(value) // 2],
            "rubbish": b"-----BEGIN CERTIFICATE-----\n\xff\n-----END CERTIFICATE-----",
            "swap": data.get(other, b""),
            "foreign": FOREIGN,
        }
        if how in new:
            data[key] = new[how]
        self.cluster.write_secret(data)

    @precondition(lambda self: self.cluster.secret is not None)
    @rule()
    def back_up(self) -> None:
        self.backups.append(dict(self.cluster.secret or {}))

    @precondition(lambda self: self.backups)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.cluster.meddled = True
        self.cluster.write_secret(dict(data.draw(st.sampled_from(self.backups))))

    @rule(wish=st.sampled_from(["ca", "leaf", "tea"]))
    def ask(self, wish: str) -> None:
        self.cluster.wish = wish

    @invariant()
    def what_is_served_is_trusted(self) -> None:
        self.cluster.check()

    def teardown(self) -> None:
        """Left alone, all is well again."""
        for replica in self.cluster.replicas:
            replica.todo.clear()
        self.cluster.run(1200)
        self.cluster.check()
        self.cluster.check_at_rest()
        for replica in self.cluster.replicas:
            assert self.cluster.ready(replica)


Failures.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestNoSequenceOfFailuresLeavesAServedCertificateUntrusted = pytest.mark.timeout(300)(Failures.TestCase)


DAY = dt.timedelta(days=1)


@pytest.fixture
def settled() -> Cluster:
    """A cluster at rest, with two webhooks in one configuration."""
    cluster = Cluster()
    cluster.add_configuration("mutating", 2)
    cluster.run(SETTINGS.retire * 2)
    return cluster


def data(cluster: Cluster) -> dict[str, bytes]:
    assert cluster.secret is not None
    return cluster.secret


def bundles(cluster: Cluster) -> set[bytes]:
    return {entry.bundle for item in cluster.configurations.values() for entry in item.entries.values()}


def test_a_cluster_that_slept_until_its_ca_had_run_out_comes_to_rest() -> None:
    cluster = Cluster()
    cluster.add_configuration("mutating", 1)
    for days in (0, 2000, 2000):
        cluster.seconds += days * 86400
        cluster.run(320)
    assert all(cluster.ready(replica) for replica in cluster.replicas)


def test_on_an_empty_cluster_the_first_certificate_is_served_at_once() -> None:
    cluster = Cluster()
    cluster.add_configuration("mutating", 2)
    cluster.run(10)
    assert all(cluster.ready(replica) for replica in cluster.replicas)


@pytest.mark.parametrize(("share", "renewed"), [(0.6, False), (0.7, True)])
def test_a_serving_certificate_is_renewed_at_two_thirds_of_its_life(
    settled: Cluster, share: float, renewed: bool
) -> None:
    before = data(settled)
    settled.seconds += SETTINGS.leaf_life.total_seconds() * share
    settled.run(20)
    assert (data(settled)["tls.crt"] != before["tls.crt"]) == renewed
    assert data(settled)["ca.crt"] == before["ca.crt"]


def test_a_ca_is_renewed_at_two_thirds_of_its_life_old_and_new_trusted_meanwhile(settled: Cluster) -> None:
    before = data(settled)["ca.crt"]
    settled.seconds += SETTINGS.ca_life.total_seconds() * 0.7
    settled.run(10)
    (bundle,) = bundles(settled)
    assert data(settled)["ca.crt"] == before
    assert bundle == before + data(settled)["next.crt"]
    settled.run(SETTINGS.lead + 20)
    after = data(settled)["ca.crt"]
    assert after != before
    assert bundles(settled) == {after + before}
    settled.run(SETTINGS.retire + 20)
    assert bundles(settled) == {after}


def test_nothing_is_signed_by_a_ca_that_one_webhook_does_not_trust_yet(settled: Cluster) -> None:
    before = data(settled)["ca.crt"]
    settled.wish = "ca"
    # The second replica holds the Lease and is cut off from one configuration: its writes are refused.
    settled.run(10)
    next_ca = data(settled)["next.crt"]
    for _ in range(10):
        settled.configurations["mutating"].entries["0"].bundle = before
        settled.seconds += 10
        settled.look(settled.replicas[0], leading=True)
        assert data(settled)["ca.crt"] == before
        assert not [a for a in settled.replicas[0].todo if isinstance(a, plan.WriteSecret)]
    assert data(settled)["next.crt"] == next_ca


def test_new_names_give_a_new_serving_certificate_of_the_same_ca(settled: Cluster) -> None:
    observed = plan.Observed(secret=data(settled), configurations={}, leading=True)
    wider = replace(SETTINGS, names=(*NAMES, "db-manager"))
    (_, write) = plan.plan(observed, settled.now, wider)
    assert isinstance(write, plan.WriteSecret)
    assert write.data["ca.crt"] == data(settled)["ca.crt"]
    assert "db-manager" in pem.names(issue.read(write.data["tls.crt"]))


def test_a_replica_that_does_not_lead_writes_nothing(settled: Cluster) -> None:
    observed = plan.Observed(secret=None, configurations={"mutating": {"0": b""}}, wish="ca", leading=False)
    assert plan.plan(observed, settled.now, SETTINGS) == ()


def test_at_rest_nothing_is_written(settled: Cluster) -> None:
    settled.look(settled.replicas[0], leading=True)
    assert settled.replicas[0].todo == []


def test_the_db_managers_copy_follows_with_the_whole_bundle(settled: Cluster) -> None:
    observed = plan.Observed(secret=data(settled), configurations={}, copy={}, leading=True)
    (_, copy) = plan.plan(observed, settled.now, SETTINGS)
    assert isinstance(copy, plan.WriteCopy)
    assert copy.data["ca.crt"] == data(settled)["ca.crt"]
    assert "ca.key" not in copy.data


def test_a_replica_that_has_not_looked_for_long_is_not_ready(settled: Cluster) -> None:
    (replica, _) = settled.replicas
    assert settled.ready(replica)
    settled.seconds += SETTINGS.stale
    assert not settled.ready(replica)


def test_a_replica_whose_certificate_ran_out_is_not_ready(settled: Cluster) -> None:
    memory = replace(settled.replicas[0].memory, looked=0.0)
    assert plan.ready(memory, settled.now, 1.0, SETTINGS)
    assert not plan.ready(memory, settled.now + 91 * DAY, 1.0, SETTINGS)
