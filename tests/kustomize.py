"""The objects that `kubectl apply -k` would send: a kustomization's resources with its images and patches.

It knows what `docker/kubernetes` uses and refuses everything else: `resources`, `images` by name and tag, `patches` as
strategic merges (lists of named things by their names) and as JSON patches (`replace` alone).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

KNOWN = {"apiVersion", "kind", "resources", "images", "patches"}
MERGED_BY = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


def render(directory: Path) -> list[dict[str, Any]]:
    """All objects of the kustomization in `directory`, in the order of its resources."""
    told = yaml.safe_load((directory / "kustomization.yaml").read_text())
    assert set(told) <= KNOWN, f"{directory}: {set(told) - KNOWN}"
    objects = [each for name in told["resources"] for each in _objects(directory / name)]
    for patch in told.get("patches", []):
        _patch(objects, patch, directory)
    for image in told.get("images", []):
        _tag(objects, image)
    return objects


def named(objects: list[dict[str, Any]], kind: str, name: str = "dosirak") -> dict[str, Any]:
    return next(each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    yield from render(path) if path.is_dir() else yaml.safe_load_all(path.read_text())


def _patch(objects: list[dict[str, Any]], patch: dict[str, Any], directory: Path) -> None:
    if "path" in patch:
        given = yaml.safe_load((directory / patch["path"]).read_text())
        target = named(objects, given["kind"], given["metadata"]["name"])
        target.update(_merged(target, given))
        return
    target = named(objects, **patch["target"])
    for operation in yaml.safe_load(patch["patch"]):
        assert operation["op"] == "replace", operation
        *path, last = operation["path"].strip("/").split("/")
        at: Any = target
        for step in path:
            at = at[int(step) if isinstance(at, list) else step]
        assert last in at, f"{operation['path']} replaces nothing"
        at[last] = operation["value"]


def _merged(old: Any, new: Any, field: str = "") -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old[key], value, key) if key in old else value for key, value in new.items()}}
    if isinstance(old, list) and field in MERGED_BY:
        key = MERGED_BY[field]
        given = {each[key]: each for each in new}
        merged = [_merged(each, given.pop(each[key])) if each[key] in given else each for each in old]
        return [*given.values(), *merged]
    return copy.deepcopy(new)


def _tag(objects: list[dict[str, Any]], image: dict[str, str]) -> None:
    for each in objects:
        for container in each.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            if container["image"] == image["name"]:
                container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
