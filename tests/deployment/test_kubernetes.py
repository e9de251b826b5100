"""The manifests for Kubernetes are what Kubernetes takes, and fit the server that they start."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from fedlm.commands.deployment.serve import ServeCommand
from fedlm.fl_core.composed_settings import compose, value_types
from fedlm.fl_core.deployment.security.certificates import make_request, new_key
from fedlm.fl_core.deployment.security.keys import Authority
from fedlm.fl_core.deployment.server.settings import Deployment

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
WORKLOADS = ("StatefulSet", "Deployment")
REVOKED = "fedlm-revoked"


def manifests():
    """Those that a kustomization names, as they are written."""
    named = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    assert {*named, "kustomization.yaml"} == {path.name for path in MANIFESTS.glob("*.yaml")}
    return [one for name in named for one in yaml.safe_load_all((MANIFESTS / name).read_text())]


def pods():
    """The pods by role."""
    found = [one["spec"]["template"]["spec"] for one in manifests() if one["kind"] in WORKLOADS]
    return {pod["containers"][0]["name"]: pod for pod in found}


def test_kubernetes_takes_the_manifests():
    validator = pytest.importorskip("kubernetes_validate")
    kinds = []
    for manifest in manifests():
        validator.validate(manifest, validator.latest_version(), strict=True)
        kinds.append(manifest["kind"])
    assert sorted(kinds) == sorted([*WORKLOADS, *["PersistentVolumeClaim", "Service"] * 2, "PodDisruptionBudget"])


def test_kustomize_gives_every_pod_the_image_and_settings_that_start_it_anew_when_they_change(tmp_path):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    shutil.copytree(MANIFESTS, tmp_path / "kubernetes")
    names = []
    for rounds in (1000, 2000):
        settings = tmp_path / "kubernetes" / "serve.toml"
        settings.write_text(settings.read_text().replace("rounds = 1000", f"rounds = {rounds}"))
        done = subprocess.run(["kubectl", "kustomize", settings.parent], capture_output=True, text=True, check=True)
        made = list(yaml.safe_load_all(done.stdout))
        [settings] = [one for one in made if one["kind"] == "ConfigMap"]
        assert tomllib.loads(settings["data"]["serve.toml"])["rounds"] == rounds
        for pod in (one["spec"]["template"]["spec"] for one in made if one["kind"] in WORKLOADS):
            images = {one["image"] for one in pod["containers"] + pod["initContainers"]}
            assert images == {"registry.example.org/fedlm:0.1.0"}
            maps = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
            assert maps == {settings["metadata"]["name"], REVOKED}
        names.append(settings["metadata"]["name"])
    assert names[0] != names[1]


def test_what_a_manifest_names_is_there():
    """Secrets apart, and the list of the revoked, which are made from files by hand."""
    claims = {one["metadata"]["name"] for one in manifests() if one["kind"] == "PersistentVolumeClaim"}
    [settings] = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["configMapGenerator"]
    for pod in pods().values():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for volume in volumes.values():
            assert volume.get("configMap", {"name": "fedlm"})["name"] in (settings["name"], REVOKED)
            assert volume.get("persistentVolumeClaim", {"claimName": "fedlm-run"})["claimName"] in claims
            assert volume.get("secret", {"secretName": "fedlm-keys"})["secretName"] in ("fedlm-keys", "fedlm-database")
        containers = pod["containers"] + pod["initContainers"]
        mounted = {mount["name"] for one in containers for mount in one["volumeMounts"]}
        assert mounted == volumes.keys()
    templates = [one["spec"]["template"]["metadata"]["labels"] for one in manifests() if one["kind"] in WORKLOADS]
    for service in (one for one in manifests() if one["kind"] == "Service"):
        assert service["spec"]["selector"] in templates


def test_a_pod_mounts_the_list_of_the_revoked_where_a_server_reads_it_and_none_is_among_the_manifests(tmp_path):
    """Applied again, a list among them would be made as empty as it is there; without one, no pod starts."""
    assert REVOKED not in {one["metadata"]["name"] for one in manifests()}
    authority = Authority.create(tmp_path)
    for again in (False, True):
        request = make_request(new_key())
        authority.enrol(authority.make_token("a.b_c-D9", again=again), request)
    authority.revoke("a.b_c-D9")
    # `kubectl create configmap --from-file=FOLDER` takes the files of a folder, and 1 MiB of them in all.
    [file] = (tmp_path / "revoked").iterdir()
    assert re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", file.name)
    assert 18_000 * max(len(line) + 1 for line in file.read_text().splitlines()) < 1 << 20
    for pod in pods().values():
        [path] = [one["mountPath"] for one in pod["containers"][0]["volumeMounts"] if one["name"] == "revoked"]
        assert path == f"/keys/{file.parent.name}"
        [volume] = [one for one in pod["volumes"] if one["name"] == "revoked"]
        assert volume["configMap"] == {"name": REVOKED}


@pytest.mark.parametrize("role", ["coordinator", "aggregator"])
def test_a_pod_starts_the_server_with_options_that_it_has_and_ends_after_it_has_drained(role):
    pod = pods()[role]
    [container] = pod["containers"]
    program, serve, *words = container["command"]
    assert (program, serve) == ("fedlm", "serve")
    options = dict(word.removeprefix("--").split("=", 1) for word in words)
    known = value_types(ServeCommand).keys()
    read = tomllib.loads((MANIFESTS / "serve.toml").read_text())
    assert {name.replace("-", "_") for name in options} <= known | {"config"}
    assert read.keys() <= known
    chosen = {name: value for name, value in read.items() if name in value_types(Deployment)}
    assert pod["terminationGracePeriodSeconds"] >= compose(Deployment, **chosen).drain_seconds + 120
    assert options["role"] == role
    [operators] = [one["containerPort"] for one in container["ports"] if one["name"] == "operators"]
    assert options["operator-address"] == f"0.0.0.0:{operators}"


@pytest.mark.parametrize("role", ["coordinator", "aggregator"])
def test_a_pod_asks_probes_that_want_no_token_and_may_do_nothing_that_it_need_not(role):
    pod = pods()[role]
    [container] = pod["containers"]
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {(probe["port"], probe["scheme"]) for probe in probes.values()} == {("operators", "HTTPS")}
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    for one in pod["containers"] + pod["initContainers"]:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in one["resources"]["limits"]
        # Secrets come from files.
        assert not any("password" in str(value).lower() for value in [one["command"], one.get("env")])
