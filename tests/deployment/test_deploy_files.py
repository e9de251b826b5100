"""What watches a server, and the image of it, fit the server."""

import json
import re
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
ROOT = DEPLOY.parent


def rules():
    (group,) = yaml.safe_load((DEPLOY / "monitoring/fedlm.rules.yaml").read_text())["groups"]
    return group["rules"]


def panels():
    return json.loads((DEPLOY / "monitoring/grafana.json").read_text())["panels"]


def expressions():
    targets = [target["expr"] for panel in panels() for target in panel["targets"]]
    # Grafana puts what was chosen there before Prometheus reads it.
    return [rule["expr"] for rule in rules()] + [one.replace("$instance", ".*") for one in targets]


def test_prometheus_takes_every_expression():
    for expression in expressions():
        promql_parser.parse(expression)
    with pytest.raises(ValueError, match="end of input"):
        promql_parser.parse("fedlm_epsilon{")


def test_every_alert_says_what_is_wrong():
    for rule in rules():
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary"}


def test_panels_have_room_of_their_own():
    taken = [
        (column, row)
        for place in (panel["gridPos"] for panel in panels())
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(column for column, _ in taken) == 23
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_a_linter_takes_the_image():
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, DEPLOY / "Containerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_an_image_is_made_of_all_that_is_installed_and_of_no_more():
    """Docker and Podman read both files, which are at the root."""
    setup = (ROOT / "setup.cfg").read_text()
    folders = set(re.findall(r"^    fedlm\.\w+ = (\w+)", setup, re.M)) | {"fedlm"}
    wanted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    files = {"LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.cfg"}
    assert wanted == folders | files
    image = (DEPLOY / "Containerfile").read_text()
    (pod,) = {line for line in (DEPLOY / "kubernetes/aggregators.yaml").read_text().splitlines() if "runAsUser" in line}
    assert f"USER {pod.split()[-1]}:" in image, "pods run as the user of the image"
