"""This server answers as Dosirak does, with texts that mean nothing, at times that it is told: load runners are tested
on it.

    python -m loadtest.fake_server --port 3999 --first-ms 20 --gap-ms 20 --log FILE

It writes a line of JSON for each stream to FILE: `id`, and when it wrote the first event, by the monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "fake:1"


@dataclass(slots=True)
class FakeServer:
    """One answer's times are the same for all. Reads requests with a `Content-Length` only."""

    first_seconds: float = 0.01
    gap_seconds: float = 0.002
    window: int = 4096
    log: Path | None = None
    requests: int = 0

    async def start(self, port: int = 0) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests += 1
                await self._answer(writer, head[0].split()[1], json.loads(body or b"{}"), headers)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: Any, headers: dict[str, str]) -> None:
        if path == "/readyz":
            return _write(writer, 200, b"")
        if path == "/tokenize":
            told = {"count": 8, "max_model_len": self.window} if "prompt" in body else []
            return _write(writer, 200, json.dumps(told).encode())
        if path not in ("/generate_stream", "/generate", "/v1/chat/completions", "/v1/completions"):
            return _write(writer, 404, b'{"error": "unknown route"}')
        await asyncio.sleep(self.first_seconds)
        count = int(body.get("max_tokens") or body.get("parameters", {}).get("max_new_tokens", 16))
        if path in ("/generate", "/v1/completions"):
            return _write(writer, 200, json.dumps(_whole(count * _prompts(body))).encode())
        first_at = time.perf_counter()
        await self._stream(writer, count, path.startswith("/v1/"))
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps({"id": headers.get("x-request-id", ""), "first_at": first_at}) + "\n")
        return None

    async def _stream(self, writer: asyncio.StreamWriter, count: int, openai: bool) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for index in range(count):
            if index:
                await asyncio.sleep(self.gap_seconds)
            _write_event(writer, _chunk(index) if openai else _event(index, count))
            await writer.drain()
        if openai:
            _write_event(writer, {"choices": [], **_whole(count)})
            _write_piece(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def _prompts(body: Any) -> int:
    prompt = body.get("prompt", "")
    return len(prompt) if isinstance(prompt, list) else 1


def _event(index: int, count: int) -> dict[str, Any]:
    last = _whole(count) if index == count - 1 else {"generated_text": None}
    return {"index": index + 1, "token": {"id": 1, "text": " word", "logprob": -0.1, "special": False}, **last}


def _chunk(index: int) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": f" word{index}"}, "finish_reason": None}]}


def _whole(count: int) -> dict[str, Any]:
    usage = {"prompt_tokens": 8, "completion_tokens": count}
    return {"generated_text": " word" * count, "model": MODEL, "usage": usage}


def _write(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _write_event(writer: asyncio.StreamWriter, said: dict[str, Any]) -> None:
    _write_piece(writer, b"data: " + json.dumps(said).encode() + b"\n\n")


def _write_piece(writer: asyncio.StreamWriter, piece: bytes) -> None:
    writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=3999)
    parser.add_argument("--first-ms", type=float, default=10)
    parser.add_argument("--gap-ms", type=float, default=2)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    server = await FakeServer(options.first_ms / 1e3, options.gap_ms / 1e3, log=options.log).start(options.port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
