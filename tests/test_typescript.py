"""TypeScript's compiler accepts the published types, and a program that uses them rightly."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.clients import environments
from tests.clients.running import called

TYPES = Path(__file__).parent.parent / "docs" / "types" / "dosirak.d.ts"
PROGRAM = environments.NPM[environments.TYPESCRIPT] / "program.ts"
STRICT = ("--strict", "--noEmit", "--module", "nodenext", "--target", "es2023", "--noUncheckedIndexedAccess")


@pytest.mark.nightly
async def test_a_program_compiles_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    try:
        await asyncio.to_thread(environments.build, environments.TYPESCRIPT)
    except environments.NotBuilt as error:
        pytest.skip(str(error))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for each in (TYPES, PROGRAM):
        shutil.copy(each, tmp_path)
    compiler = environments.BUILT / environments.TYPESCRIPT / "node_modules" / ".bin" / "tsc"
    compile_it = (str(compiler), *STRICT, str(tmp_path / PROGRAM.name))
    await called(*compile_it, PATH=os.environ["PATH"])
    types = tmp_path / TYPES.name
    types.write_text(types.read_text().replace("export type ChatBody =", "export type ChatBody = any; type Was =", 1))
    with pytest.raises(AssertionError, match="Unused '@ts-expect-error' directive"):
        await called(*compile_it, PATH=os.environ["PATH"])
