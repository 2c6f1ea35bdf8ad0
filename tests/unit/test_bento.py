"""What BentoML is kept from doing to every request, and that its build can still write the configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import yaml
from _bentoml_impl.server.app import ServiceAppFactory
from service.bento import Dosirak
Dosirak.inject_config()
print(*(layer.cls.__name__ for layer in ServiceAppFactory(Dosirak).middlewares))
print(yaml.safe_load(yaml.safe_dump(Dosirak.config))["traffic"])
"""


def test_no_layer_of_bentoml_keeps_a_timer_for_each_request(tmp_path: Path) -> None:
    environment = {"DOSIRAK_DATA_DIR": str(tmp_path), "BENTOML_HOME": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    layers, traffic = shown.stdout.strip().splitlines()[-2:]
    assert "ContextMiddleware" in layers and "TimeoutMiddleware" not in layers
    assert traffic == "{'timeout': 86400.0}"
