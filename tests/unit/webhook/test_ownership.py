"""Whose pod is it: every chain, every lie, every fault."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.objects import Counted, obj, pod, ref, trial, unreadable
from webhook.cluster import JSON, NotSynced, Unreadable
from webhook.ownership import MAX_GETS, MAX_LEVELS, Memory, made_by, owners_of, suspects, trial_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def chain(*links: tuple[str, str, str], of: JSON) -> list[JSON]:
    """Objects from the Trial down, each owned by the one before it."""
    made = [of]
    for api_version, kind, name in links:
        made.append(obj(api_version, kind, name, made[-1]))
    return made


CHAINS: dict[str, list[tuple[str, str, str]]] = {
    "pod < Job": [("batch/v1", "Job", "t1")],
    "pod < PyTorchJob": [("kubeflow.org/v1", "PyTorchJob", "t1")],
    "pod < TFJob": [("kubeflow.org/v1", "TFJob", "t1")],
    "pod < XGBoostJob": [("kubeflow.org/v1", "XGBoostJob", "t1")],
    "pod < Job < MPIJob": [("kubeflow.org/v2beta1", "MPIJob", "t1"), ("batch/v1", "Job", "t1-launcher")],
    "pod < Job < JobSet < TrainJob": [
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", "t1"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", "t1"),
        ("batch/v1", "Job", "t1-node-0"),
    ],
    "pod < Workflow": [("argoproj.io/v1alpha1", "Workflow", "t1")],
    "pod < TaskRun < PipelineRun": [
        ("tekton.dev/v1", "PipelineRun", "t1"),
        ("tekton.dev/v1", "TaskRun", "t1-train"),
    ],
    "pod < RayCluster < RayJob": [("ray.io/v1", "RayJob", "t1"), ("ray.io/v1", "RayCluster", "t1-x7")],
    "pod < ReplicaSet < Deployment": [("apps/v1", "Deployment", "t1"), ("apps/v1", "ReplicaSet", "t1-5d")],
    "pod < StatefulSet < a kind nobody has heard of": [
        ("nobody.example.org/v7alpha2", "Whatever", "t1"),
        ("apps/v1", "StatefulSet", "t1-set"),
    ],
    "pod < ReplicationController": [("v1", "ReplicationController", "t1")],
}


@pytest.mark.parametrize("links", CHAINS.values(), ids=CHAINS.keys())
async def test_a_pod_is_a_trials_through_any_chain(links: list[tuple[str, str, str]]) -> None:
    made = chain(*links, of=trial(run=f"{links[0][0]} {links[0][1]}"))
    found = await trial_of(pod(made[-1]), "hpo", Counted(*made))
    assert found.trial is made[0]
    assert [link.kind for link in found.chain] == [o["kind"] for o in reversed(made)]
    assert found.made_by_trial is not None
    assert found.made_by_trial.uid == made[1]["metadata"]["uid"]


async def test_a_pod_that_the_trial_makes_itself_is_the_trials() -> None:
    t = trial("t1", run="v1 Pod")
    assert (await trial_of(pod(t, name="t1"), "hpo", Counted(t))).trial is t
    assert (await trial_of(pod(t, name="t2"), "hpo", Counted(t))).trial is None


T1 = trial("t1")
JOB = obj("batch/v1", "Job", "t1", T1)
OTHER = obj("batch/v1", "Job", "other")

NOT_OURS: dict[str, tuple[JSON, list[JSON]]] = {
    "it has no owner": (pod(), [T1]),
    "its owner has no owner": (pod(OTHER), [T1, OTHER]),
    "it only wears the labels of a trial": (
        pod(OTHER, labels={"katib.kubeflow.org/trial": "t1", "katib.kubeflow.org/experiment": "e"}),
        [T1, OTHER],
    ),
    "its owner is of a kind that the trial does not make": (
        pod(obj("apps/v1", "StatefulSet", "t1", T1)),
        [T1, obj("apps/v1", "StatefulSet", "t1", T1)],
    ),
    "its owner has the trial's kind in another group": (
        pod(obj("batch.volcano.sh/v1alpha1", "Job", "t1", T1)),
        [T1, obj("batch.volcano.sh/v1alpha1", "Job", "t1", T1)],
    ),
    "its owner bears another name than the trial": (
        pod(obj("batch/v1", "Job", "t2", T1)),
        [T1, obj("batch/v1", "Job", "t2", T1)],
    ),
    "it names the trial itself as its owner, which makes Jobs": (pod(T1), [T1]),
    "its owner vanished": (pod(JOB), [T1]),
    "its owner was made anew under the same name": (
        pod(refs=[ref(JOB, uid="of-the-old-one")]),
        [T1, JOB],
    ),
    "its owner's trial was made anew under the same name": (
        pod(JOB),
        [trial("t1", uid="new"), JOB],
    ),
    "its owner lives in another namespace": (
        pod(obj("batch/v1", "Job", "t1", T1, namespace="theirs")),
        [T1, obj("batch/v1", "Job", "t1", T1, namespace="theirs")],
    ),
    "the trial lives in another namespace": (
        pod(obj("batch/v1", "Job", "t9", trial("t9", namespace="theirs"))),
        [trial("t9", namespace="theirs"), obj("batch/v1", "Job", "t9", trial("t9", namespace="theirs"))],
    ),
    "it bears a trial's UID under another kind": (
        pod(refs=[ref(T1, kind="Job", apiVersion="batch/v1")]),
        [T1, JOB],
    ),
    "it bears a trial's UID under another name": (
        pod(obj("batch/v1", "Job", "x", uid="j")),
        [
            T1,
            obj("batch/v1", "Job", "x", uid="j")
            | {
                "metadata": {
                    "name": "x",
                    "uid": "j",
                    "namespace": "hpo",
                    "ownerReferences": [ref(T1, name="x")],
                }
            },
        ],
    ),
    "its owner is a Node": (
        pod(refs=[{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n"}]),
        [
            T1,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "n1", "uid": "n", "ownerReferences": [ref(T1)]},
            },
        ],
    ),
    "its owner is a ConfigMap": (
        pod(obj("v1", "ConfigMap", "t1", T1)),
        [T1, obj("v1", "ConfigMap", "t1", T1)],
    ),
    "its owner lives in no namespace": (
        pod(refs=[{"apiVersion": "example.org/v1", "kind": "PersistentVolume", "name": "t1", "uid": "c"}]),
        [
            T1,
            {
                "apiVersion": "example.org/v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "t1", "uid": "c"},
            },
        ],
    ),
    "its owners own each other": (
        pod(obj("a.b/v1", "A", "a")),
        [
            T1,
            obj("a.b/v1", "A", "a", obj("a.b/v1", "B", "b")),
            obj("a.b/v1", "B", "b", obj("a.b/v1", "A", "a")),
        ],
    ),
    "the trial's runSpec is missing": (
        pod(JOB),
        [obj("kubeflow.org/v1beta1", "Trial", "t1", spec={}), JOB],
    ),
    "the trial has no spec": (pod(JOB), [obj("kubeflow.org/v1beta1", "Trial", "t1"), JOB]),
}


@pytest.mark.parametrize(("given", "objects"), NOT_OURS.values(), ids=NOT_OURS.keys())
async def test_a_pod_is_no_trials_when(given: JSON, objects: list[JSON]) -> None:
    found = await trial_of(given, "hpo", Counted(*objects))
    assert found.trial is None
    assert found.unreadable == ()


HOSTILE: dict[str, JSON] = {
    "name ..": {"name": ".."},
    "name .": {"name": "."},
    "name with a slash": {"name": "../../../api/v1/secrets"},
    "name with an encoded slash": {"name": "..%2F..%2Fsecrets"},
    "name with a newline": {"name": "a\nb"},
    "name with a NUL": {"name": "a\0b"},
    "empty name": {"name": ""},
    "group with a slash": {"apiVersion": "batch/v1/namespaces"},
    "group ..": {"apiVersion": "../v1"},
    "version ..": {"apiVersion": "batch/.."},
    "version with a question mark": {"apiVersion": "batch/v1?x=y"},
    "version with an encoded slash": {"apiVersion": "batch%2Fv1"},
    "empty apiVersion": {"apiVersion": ""},
    "only a slash": {"apiVersion": "/"},
    "kind that nobody serves": {"kind": "../pods"},
    "uid that is a number": {"uid": 7},
    "name that is a list": {"name": ["t1"]},
    "kind that is null": {"kind": None},
}


@pytest.mark.parametrize("lie", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_reference_is_never_asked_of_the_api_server(lie: JSON) -> None:
    cluster = Counted(T1, JOB)
    found = await trial_of(pod(refs=[ref(JOB, **lie)]), "hpo", cluster)
    assert found.trial is None
    assert cluster.reads == []
    # And beside it, the true owner is still found.
    assert (await trial_of(pod(refs=[ref(JOB, **lie), ref(JOB)]), "hpo", cluster)).trial is T1


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSONS)
async def test_any_json_where_owner_references_should_be_is_survived(value: Any) -> None:
    assert (await trial_of({"metadata": {"ownerReferences": value}}, "hpo", Counted(T1))).trial is None
    assert owners_of({"metadata": value}) == []


async def test_the_trial_is_found_beside_other_owners() -> None:
    noise = [obj("a.b/v1", "A", f"a{n}") for n in range(5)]
    found = await trial_of(pod(*noise, JOB), "hpo", Counted(*noise, T1, JOB))
    assert found.trial is T1


async def test_the_controller_is_followed_before_other_owners() -> None:
    other = trial("t2")
    job2 = obj("batch/v1", "Job", "t2", other)
    references = [ref(JOB, controller=False), ref(job2, controller=True)]
    assert (await trial_of(pod(refs=references), "hpo", Counted(T1, other, JOB, job2))).trial is other


async def test_a_trial_that_the_watch_has_not_brought_yet_is_read_live() -> None:
    cluster = Counted(T1, JOB)
    cluster._trials.clear()
    assert (await trial_of(pod(JOB), "hpo", cluster)).trial is T1
    assert cluster.reads == ["Job/t1", "Trial/t1"]


def tower(levels: int) -> list[JSON]:
    links = [("x.example.org/v1", "Link", "t1" if n == 1 else f"link-{n}") for n in range(1, levels)]
    return chain(*links, of=trial(run="x.example.org/v1 Link"))


async def test_ten_levels_are_walked_and_one_more_is_said_to_be_too_many() -> None:
    made = tower(MAX_LEVELS)
    assert (await trial_of(pod(made[-1]), "hpo", Counted(*made))).trial is made[0]
    made = tower(MAX_LEVELS + 1)
    found = await trial_of(pod(made[-1]), "hpo", Counted(*made))
    assert found.trial is None
    assert "more than 10 owners above" in found.unreadable[0]


async def test_no_more_than_twenty_owners_are_read() -> None:
    noise = [obj("a.b/v1", "A", f"a{n}") for n in range(50)]
    cluster = Counted(*noise)
    found = await trial_of(pod(*noise), "hpo", cluster)
    assert len(cluster.reads) == MAX_GETS
    assert "more than 20 owners" in found.unreadable[0]


async def test_an_owner_that_cannot_be_read_is_said_and_not_remembered() -> None:
    cluster, memory = Counted(T1, JOB, fail=unreadable("Job")), Memory()
    found = await trial_of(pod(JOB), "hpo", cluster, memory)
    assert found.trial is None
    assert found.unreadable == ('Job "t1": 403',)
    cluster._fail = lambda _kind, _name: None
    assert (await trial_of(pod(JOB), "hpo", cluster, memory)).trial is T1


async def test_an_unreadable_owner_beside_one_that_leads_to_the_trial_does_no_harm() -> None:
    hidden = obj("a.b/v1", "Hidden", "h")
    found = await trial_of(pod(hidden, JOB), "hpo", Counted(hidden, JOB, T1, fail=unreadable("Hidden")))
    assert found.trial is T1
    assert found.unreadable == ()


async def test_an_unreadable_owner_is_not_cached_as_not_ours_through_another() -> None:
    hidden = obj("a.b/v1", "Hidden", "h")
    cluster, memory = Counted(hidden, OTHER, T1, fail=unreadable("Hidden")), Memory()
    for _ in range(2):
        assert (await trial_of(pod(hidden, OTHER), "hpo", cluster, memory)).unreadable


async def test_discovery_that_fails_counts_as_unreadable() -> None:
    class Undiscovered(Counted):
        async def scope(self, api_version: str, kind: str) -> bool:
            raise Unreadable("discovery: 500")

    assert (await trial_of(pod(JOB), "hpo", Undiscovered(T1, JOB))).unreadable == ("discovery: 500",)


async def test_nothing_is_decided_before_the_trials_have_been_listed() -> None:
    cluster = Counted(T1, JOB)
    cluster.synced = False
    with pytest.raises(NotSynced):
        await trial_of(pod(JOB), "hpo", cluster)


async def test_the_second_pod_of_an_owner_costs_no_read() -> None:
    made = chain(
        *CHAINS["pod < Job < JobSet < TrainJob"], of=trial(run="trainer.kubeflow.org/v1alpha1 TrainJob")
    )
    cluster, memory = Counted(*made), Memory()
    first = await trial_of(pod(made[-1]), "hpo", cluster, memory)
    assert cluster.reads == ["Job/t1-node-0", "JobSet/t1", "TrainJob/t1"]
    second = await trial_of(pod(made[-1]), "hpo", cluster, memory)
    assert len(cluster.reads) == 3
    assert second.trial is first.trial
    assert second.made_by_trial == first.made_by_trial
    sibling = obj("batch/v1", "Job", "t1-node-1", made[-2])
    cluster.add(sibling)
    assert (await trial_of(pod(sibling), "hpo", cluster, memory)).trial is made[0]
    assert cluster.reads[3:] == ["Job/t1-node-1"]


async def test_not_ours_is_believed_for_five_seconds_so_that_adoption_is_seen() -> None:
    clock = Clock()
    orphan = obj("batch/v1", "Job", "t1")
    cluster, memory = Counted(T1, orphan), Memory(clock)
    assert (await trial_of(pod(orphan), "hpo", cluster, memory)).trial is None
    cluster.add(JOB)  # adopted: the same UID, now owned by the trial
    clock.now = 4.9
    assert (await trial_of(pod(orphan), "hpo", cluster, memory)).trial is None
    assert cluster.reads == ["Job/t1"]
    clock.now = 5.1
    assert (await trial_of(pod(orphan), "hpo", cluster, memory)).trial is T1


async def test_not_ours_higher_up_is_never_older_than_the_walk() -> None:
    clock = Clock()
    top = obj("x.example.org/v1", "Top", "t1")
    job = obj("batch/v1", "Job", "j", top)
    cluster, memory = Counted(top, job), Memory(clock)
    assert (await trial_of(pod(top), "hpo", cluster, memory)).trial is None
    t = trial("t1", run="x.example.org/v1 Top")
    cluster.add(t)
    cluster.add(obj("x.example.org/v1", "Top", "t1", t))
    assert (await trial_of(pod(job), "hpo", cluster, memory)).trial is t


async def test_an_orphaned_owner_is_the_trials_while_the_trial_lives_and_no_longer() -> None:
    cluster, memory = Counted(T1, JOB), Memory()
    assert (await trial_of(pod(JOB), "hpo", cluster, memory)).trial is T1
    cluster.add(obj("batch/v1", "Job", "t1"))  # orphaned
    assert (await trial_of(pod(JOB), "hpo", cluster, memory)).trial is T1
    cluster.remove(T1)
    assert (await trial_of(pod(JOB), "hpo", cluster, memory)).trial is None


async def test_what_is_remembered_of_one_reference_is_not_believed_of_another_with_its_uid() -> None:
    cluster, memory = Counted(T1, JOB), Memory()
    assert (await trial_of(pod(JOB), "hpo", cluster, memory)).trial is T1
    for lie in ({"name": "t2"}, {"kind": "CronJob"}, {"apiVersion": "apps/v1"}):
        assert (await trial_of(pod(refs=[ref(JOB, **lie)]), "hpo", cluster, memory)).trial is None
    assert (await trial_of(pod(JOB), "theirs", cluster, memory)).trial is None


async def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.ownership.MAX_KNOWN", 10)
    cluster, memory = Counted(), Memory()
    for n in range(50):
        stray = obj("batch/v1", "Job", f"j{n}")
        cluster.add(stray)
        await trial_of(pod(stray), "hpo", cluster, memory)
    assert len(memory._known) == 10


FINISHED = {"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}}
SUSPECTS: dict[str, tuple[JSON, list[JSON], list[str]]] = {
    "the pod's name begins with a running trial's": (pod(name="t1-abcde"), [T1], ["t1"]),
    "only the generateName does": (
        {"metadata": {"generateName": "t1-"}},
        [T1],
        ["t1"],
    ),
    "only the owner's name does": (pod(JOB, name="weird"), [T1], ["t1"]),
    "the trial has ended": (pod(name="t1-abcde"), [T1 | FINISHED], []),
    "the trial is in another namespace": (pod(name="t1-abcde"), [trial("t1", namespace="theirs")], []),
    "no name fits": (pod(OTHER, name="web-1"), [T1], []),
    "two fit, the longer first": (
        pod(name="t1-sub-0"),
        [T1, trial("t1-sub")],
        ["t1-sub", "t1"],
    ),
}


@pytest.mark.parametrize(("given", "objects", "expected"), SUSPECTS.values(), ids=SUSPECTS.keys())
def test_which_trials_a_pod_may_belong_to_by_its_name(
    given: JSON, objects: list[JSON], expected: list[str]
) -> None:
    found = suspects(given, "hpo", Counted(*objects))
    assert list(dict.fromkeys(t["metadata"]["name"] for t in found)) == expected


VERSIONS = [("batch/v1", True), ("batch/v1beta1", True), ("batch.x/v1", False), ("v1", False)]


@pytest.mark.parametrize(("api_version", "expected"), VERSIONS)
def test_a_trial_makes_its_kind_in_any_version_of_the_group(api_version: str, expected: bool) -> None:
    (link,) = owners_of(pod(refs=[ref(JOB, apiVersion=api_version)]))
    assert made_by(T1, link) is expected
