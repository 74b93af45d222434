"""The manifests of deploy/spark: Kubernetes takes them, and they belong together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "deploy/spark/kubernetes.yaml"
CONTAINER = ROOT / "deploy/spark/Containerfile"
#: The oldest Kubernetes that is supported by its makers, and the newest whose schemas are there.
RELEASES = ("1.34", "1.36")

Object = dict[str, Any]


def objects() -> dict[str, Object]:
    """The objects of the manifest by kind."""
    found: list[Object] = [*yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))]
    by_kind = {one["kind"]: one for one in found}
    assert len(by_kind) == len(found)
    return by_kind


def driver() -> Object:
    """The container that runs spark-submit."""
    (container,) = objects()["Job"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def settings() -> dict[str, str]:
    """What the driver tells Spark."""
    words = (word.removeprefix("--conf=") for word in driver()["args"] if "--conf=" in word)
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_takes_every_object(release: str) -> None:
    for one in objects().values():
        kubernetes_validate.validate(one, release, strict=True)


@pytest.mark.parametrize("release", RELEASES)
def test_a_wrong_object_is_refused(release: str) -> None:
    for wrong in planted(objects()["Job"]):
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, release, strict=True)


def planted(job: Object) -> Iterator[Object]:
    """Jobs with one mistake each: a misspelt field, a number as text, a field that is missing."""
    yield {**job, "spec": {**job["spec"], "backofLimit": 3}}
    yield {**job, "spec": {**job["spec"], "backoffLimit": "3"}}
    yield {**job, "spec": {"backoffLimit": 3}}


def test_all_are_in_one_namespace_under_one_account() -> None:
    found = objects()
    namespace = found.pop("Namespace")["metadata"]["name"]
    assert {one["metadata"]["namespace"] for one in found.values()} == {namespace}
    account = found["ServiceAccount"]["metadata"]["name"]
    (subject,) = found["RoleBinding"]["subjects"]
    assert (subject["name"], subject["namespace"]) == (account, namespace)
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert found["Job"]["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert settings()["spark.kubernetes.authenticate.serviceAccountName"] == account
    assert settings()["spark.kubernetes.namespace"] == namespace


def test_executors_find_the_driver() -> None:
    found = objects()
    service = found["Service"]
    labels = found["Job"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert settings()["spark.driver.host"] == f"{name}.{namespace}.svc"
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert settings()["spark.driver.port"] == str(ports["driver"])
    assert settings()["spark.blockManager.port"] == str(ports["blocks"])
    assert {p["name"]: p["containerPort"] for p in driver()["ports"]} == ports
    (variable,) = driver()["env"]
    assert settings()["spark.kubernetes.driver.pod.name"] == f"$({variable['name']})"


def test_driver_and_executors_share_image_and_volume() -> None:
    assert settings()["spark.kubernetes.container.image"] == driver()["image"]
    claim = objects()["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (volume,) = objects()["Job"]["spec"]["template"]["spec"]["volumes"]
    (mount,) = driver()["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    assert settings()[f"{prefix}.options.claimName"] == claim["metadata"]["name"]
    assert settings()[f"{prefix}.mount.path"] == mount["mountPath"]


def test_the_job_is_there_and_takes_these_arguments() -> None:
    (at,) = (number for number, word in enumerate(driver()["args"]) if word.endswith(".py"))
    program, *arguments = driver()["args"][at:]
    _, inside = program.split("/site-packages/")
    source = ROOT / "packages/weir-mq/src" / inside
    usage = re.findall(r"usage: python -m \S+ ([A-Z ]+)", source.read_text(encoding="utf-8"))
    assert [len(words.split()) for words in usage] == [len(arguments)]
    (mount,) = driver()["volumeMounts"]
    assert all(path.startswith(f"{mount['mountPath']}/") for path in arguments[2:])


def test_the_image_has_the_python_and_the_spark_that_are_named() -> None:
    text = CONTAINER.read_text(encoding="utf-8")
    (python,) = re.findall(r"^ARG PYTHON=(\d+\.\d+)", text, re.MULTILINE)
    assert any(f"/lib/python{python}/site-packages/" in word for word in driver()["args"])
    (spark,) = re.findall(r"^ARG SPARK=(\S+)", text, re.MULTILINE)
    assert f"pyspark=={spark}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (user,) = re.findall(r"--uid (\d+)", text)
    context = objects()["Job"]["spec"]["template"]["spec"]["securityContext"]
    assert context["runAsUser"] == int(user)
