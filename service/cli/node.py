"""`dosirak node --rank K --head ADDRESS` lends this host's devices to an engine that is larger than its own host."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from service.cli.settings import settings_or_exit
from service.cli.terminal import console
from service.errors import Conflict


def node(
    rank: Annotated[int, typer.Option(help="Number of this host among the engine's, from 1; the head is 0.", min=1)],
    head: Annotated[str, typer.Option(help="Name or address of the head, in DOSIRAK_TRUSTED_NETWORK.")],
) -> None:
    """Serve a part of a model whose deployment on another host has `nodes` (vLLM); until Ctrl-C."""
    from service.addresses import SETTING, place_in
    from service.deployments.node import Node
    from service.engine.kinds.kinds import require_vllm, vllm_python
    from service.engine.vllm.releases import installed

    settings = settings_or_exit(console)
    if settings.trusted_network is None:
        raise Conflict(
            f"vLLM's nodes run what anyone who reaches their ports sends them: set {SETTING} to the network of the "
            "nodes alone, as 10.1.0.0/16"
        )
    python = vllm_python(settings.vllm_python)
    require_vllm(python)
    place = place_in(settings.trusted_network)
    member = Node(settings, rank, head, place, lambda said: console.print(Text(said)))
    member.run(python, installed(str(python)))
