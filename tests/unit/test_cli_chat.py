"""`dosirak chat` against a server made of answers: events, commands, refusals, Ctrl-C, pipes and JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from service import cli
from service.cli import chat
from service.cli.client import Client, Refused, server_sent
from service.cli.commands import COMMANDS
from service.cli.printing import Plain, Terminal
from service.cli.wire import Message, Messages, Receipt
from service.errors import InvalidRequest, Unavailable
from tests.unit.test_cli_window import PARTS

RECEIPT = {"policy": "window", "window": 2048, "reserved_output": 128, "used": 1000, "free": 920, "parts": PARTS}
FACTS = {"model": "demo:2", "digest": "d1", "finish_reason": "stop", "usage": {"prompt_tokens": 1000}, "timings": {}}


def stream(*texts: str, **receipt: object) -> bytes:
    """The events of one answer."""
    lines: list[dict[str, object]] = [{"token": {"text": text}, "generated_text": None} for text in texts]
    lines[-1] |= {"generated_text": "".join(texts), "session_id": "s_1", "context": {**RECEIPT, **receipt}, **FACTS}
    return b"".join(b"data: " + json.dumps(line).encode() + b"\n\n" for line in lines)


@dataclass
class Server:
    """Answers with what `replies` has for a path, else with what most routes say; remembers what it was asked."""

    replies: dict[str, list[httpx.Response]] = field(default_factory=dict)
    stored: list[dict[str, object]] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append((request.method, path, json.loads(request.content or b"{}")))
        if self.replies.get(path):
            return self.replies[path].pop(0)
        if path.endswith("/messages"):
            at = int(request.url.params.get("cursor", 0))
            more = str(at + 2) if at + 2 < len(self.stored) else None
            return httpx.Response(200, json={"data": self.stored[at : at + 2], "next_cursor": more})
        if "/messages/" in path:
            return httpx.Response(200, json=self.stored[0])
        if path.endswith("/export"):
            return httpx.Response(200, content=b'{"session": 1}\n')
        if path == "/generate" or path.endswith("/regenerate"):
            return httpx.Response(200, content=stream("안녕", "하세요"))
        return httpx.Response(200, json={"id": "s_1", "message_count": len(self.stored), "policy": "window"})

    def client(self) -> Client:
        return Client(httpx.Client(transport=httpx.MockTransport(self), base_url="http://test"))


def message(id: str, role: str, content: str, **more: object) -> dict[str, object]:
    return {"id": id, "role": role, "content": content, "pinned": False, **more}


@pytest.fixture
def server() -> Server:
    stored = [
        message("m_a", "user", "my name is kim", pinned=True),
        message("m_b", "assistant", "fine", context=RECEIPT),
        message("m_c", "user", "스시 하나 주세요"),
        message("m_d", "assistant", "네", context={**RECEIPT, "dropped": ["m_a", "m_b"], "dropped_tokens": 9}),
        message("m_e", "user", "one more"),
    ]
    return Server(stored=stored)


Typed = Callable[..., str]


@pytest.fixture
def typed(server: Server, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """What a terminal of 60 columns shows when these lines are typed."""

    def run(*lines: str, session: str | None = None, **settings: object) -> str:
        waiting = iter(lines)

        def read(prompt: str) -> str:
            line = next(waiting, None)
            if line is None:
                raise EOFError
            return line

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        shown = io.StringIO()
        assert chat.run(server.client(), session, settings, {}, Console(file=shown, width=60), False) == 0
        return shown.getvalue()

    return run


def piped(server: Server, text: str, monkeypatch: pytest.MonkeyPatch, as_json: bool = False) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return chat.run(server.client(), None, {}, {}, Console(), as_json)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_session_that_is_not_there_is_told_on_standard_error_or_as_an_object(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    refusal = {"error": "There is no session\x1b[31m", "error_type": "not_found"}
    server.replies["/v1/sessions"] = [httpx.Response(404, json=refusal)]
    assert piped(server, "hello\n", monkeypatch, as_json) == 1
    shown = capsys.readouterr()
    if as_json:
        assert "There is no session" in json.loads(shown.out)["error"] and shown.err == ""
    else:
        assert shown.out == "" and shown.err == "error: There is no session[31m\n"


def test_a_closed_standard_input_is_a_sentence(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidRequest, match="standard input is closed"):
        chat.run(server.client(), None, {}, {}, Console(), False)


def test_events_as_the_standard_has_them() -> None:
    lines = [
        ": a comment",
        "data: one",
        "",
        "event: error",
        "data:two",
        "data:  three",
        "",
        "event: none",
        "",
        "id: 4",
        "data: 5",
        "",
    ]
    assert list(server_sent(lines)) == [("message", "one"), ("error", "two\n three"), ("message", "5")]
    assert list(server_sent(["data: cut off"])) == []


def test_an_answer_its_window_and_what_was_left_out(server: Server, typed: Typed) -> None:
    server.replies["/generate"] = [
        httpx.Response(200, content=stream("네", "!", dropped=["m_a"], dropped_tokens=12, cached_tokens=640)),
        httpx.Response(200, content=stream("또", dropped=["m_a", "m_b", "m_c"], dropped_tokens=31, notes=["a note"])),
    ]
    shown = typed("안녕", "또", model="demo", policy="window")
    lines = shown.splitlines()
    assert server.asked[0] == ("POST", "/v1/sessions", {"model": "demo", "policy": "window"})
    turn = {"session_id": "s_1", "messages": [{"role": "user", "content": "안녕"}], "parameters": {}, "stream": True}
    assert ("POST", "/generate", turn) in server.asked
    assert "dosirak  네!" in lines
    assert "[tsss" + "h" * 24 + "cc" + "." * 24 + "rrrr]" in lines
    assert "1,000 of 2,048 · 128 reserved · 920 free · 640 cached" in shown.replace("\n", " · ")
    assert 'left out: 1 message, 12 tokens, up to "my name is kim"' in lines
    assert 'left out: 3 messages, 31 tokens, up to "스시 하나 주세요", 2 of them from now on' in shown.replace(
        "\n", " "
    )
    assert "a note" in lines


def test_a_session_goes_on_where_it_was(server: Server, typed: Typed) -> None:
    shown = typed("/history", session="s_1")
    assert server.asked[0] == ("GET", "/v1/sessions/s_1", {})
    greeting, rest = shown.split("http://test")
    assert "s_1: 5 messages, the last 4:" in greeting
    assert "   2  dosirak  left out  fine" in greeting and "kim" not in greeting
    assert "   1  you      left out  my name is kim" in rest
    assert "   3  you      스시 하나 주세요" in rest
    typed(session="s_1", system="Be kind.")
    assert ("PATCH", "/v1/sessions/s_1", {"system": "Be kind."}) in server.asked


def test_dropped_messages_are_struck_through(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True, color_system="standard")
    receipt = Receipt("window", 100, 0, 0, 0, {}, dropped=("m_a",), summarised=("m_c",))
    messages = [Message("m_a", "user", "gone"), Message("m_b", "user", "here"), Message("m_c", "user", "short")]
    Terminal(console).history(messages, 1, receipt)
    gone, here, short = shown.getvalue().splitlines()
    assert "\x1b[2;9mgone" in gone and "\x1b[2;9m" not in here
    assert "summarised" in short and "\x1b[2;9mshort" in short


def test_calls_and_their_results_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "\u001b서울"}'}}
    page = {
        "data": [
            {"id": "m_a", "role": "assistant", "content": "", "tool_calls": [call]},
            {"id": "m_b", "role": "tool", "content": "맑음", "tool_call_id": "c1"},
        ]
    }
    messages = msgspec.json.decode(msgspec.json.encode(page), type=Messages).data
    Terminal(Console(width=80)).history(messages, 1, None)
    Plain().history(messages, 1, None)
    told = capsys.readouterr().out.splitlines()
    assert told[0].rstrip() == '   1  dosirak  weather({"city": "서울"})' and told[1].rstrip() == "   2  result   맑음"
    assert told[2:] == ['1 assistant: weather({"city": "서울"})', "2 tool: 맑음"]


def test_what_stands_for_old_messages_is_told(server: Server, typed: Typed) -> None:
    server.replies["/generate"] = [
        httpx.Response(200, content=stream("네", summarised=["m_a", "m_b"])),
        httpx.Response(200, content=stream("또", dropped=["m_a"], recalled=["m_c"])),
    ]
    lines = typed("안녕", "또").splitlines()
    assert "in the summary: 2 messages" in lines and "back for this question: 1 message" in lines


def test_commands_say_what_they_did(server: Server, typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    server.replies["/v1/context/preview"] = [
        httpx.Response(200, json={"model": "demo:2", "context": {**RECEIPT, "dropped": ["m_a"]}}),
        httpx.Response(200, json={"model": "demo:2", "context": None, "error": "It is too long.", "window": 2048}),
    ]
    shown = typed(
        *("/pin 2", "/unpin m_a", "/edit 3 둘 주세요", "/fork 2", "/fork", "/policy middle", "/regenerate"),
        *("/preview hello", "/preview long", "/new", "/session", f"/export {file}", "/help", "/quit", "never said"),
        session="s_1",
    )
    told = [each for each in server.asked if each[0] != "GET"]
    assert told == [
        ("PATCH", "/v1/sessions/s_1/messages/m_b", {"pinned": True}),
        ("PATCH", "/v1/sessions/s_1/messages/m_a", {"pinned": False}),
        ("PATCH", "/v1/sessions/s_1/messages/m_c", {"content": "둘 주세요"}),
        ("POST", "/v1/sessions/s_1/fork", {"at": "m_b"}),
        ("POST", "/v1/sessions/s_1/fork", {"at": "m_e"}),
        ("PATCH", "/v1/sessions/s_1", {"policy": "middle"}),
        ("POST", "/v1/sessions/s_1/regenerate", {"parameters": {}, "stream": True}),
        *(
            (
                "POST",
                "/v1/context/preview",
                {"session_id": "s_1", "messages": [{"role": "user", "content": text}], "parameters": {}},
            )
            for text in ("hello", "long")
        ),
        ("POST", "/v1/sessions", {}),
    ]
    for line in ("would leave out: 1 message, 0 tokens", "It is too long.", "window 2,048", "dosirak  안녕하세요"):
        assert line in shown
    assert file.read_bytes() == b'{"session": 1}\n'
    assert all(f"\n{name}" in shown for name in COMMANDS)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/nope", "/nope is no command; there are /history"),
        ("/pin 9", "9 names no message; /history shows 1 to 5"),
        ("/pin", "Nothing names no message"),
        ("/edit 3", "/edit takes a message and its new text"),
        ("/preview", "/preview takes the text"),
        ("/history x", "/history takes how many"),
        ("/export", "/export takes a file"),
        ("/export /", "/ exists already"),
        ("/export /nowhere/x", "cannot be written"),
    ],
)
def test_a_wrong_command_is_a_sentence(typed: Typed, line: str, sentence: str) -> None:
    assert sentence in typed(line).replace("\n", " ")


def test_refusals_are_told_and_the_chat_goes_on(server: Server, typed: Typed) -> None:
    body = {"error": "The prompt has 60 tokens.", "code": "context_overflow", "window": 50, "needed_tokens": 76}
    failed = {"error": "The engine died.", "code": "generation_failed"}
    event = b'data: {"token": {"text": "he"}}\n\nevent: error\ndata: ' + json.dumps(failed).encode() + b"\n\n"
    server.replies["/generate"] = [
        httpx.Response(422, json=body),
        httpx.Response(200, content=event),
        httpx.Response(200, content=b'data: {"token": {"text": "he"}}\n\n'),
        httpx.Response(502, content=b"<html>"),
    ]
    lines = typed("one", "two", "three", "four", "five").splitlines()
    assert "refused  The prompt has 60 tokens." in lines and "window 50 · needed_tokens 76" in lines
    at = lines.index("refused  The engine died.")
    assert lines[at - 1] == "dosirak  he"
    assert "ended before its answer" in " ".join(lines) and "answered 502" in " ".join(lines)
    assert "dosirak  안녕하세요" in lines


def test_ctrl_c_stops_the_answer_only(server: Server, typed: Typed) -> None:
    closed = []

    class Interrupted(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b'data: {"token": {"text": "once upon"}}\n\n'
            raise KeyboardInterrupt

        def close(self) -> None:
            closed.append(True)

    server.replies["/generate"] = [httpx.Response(200, stream=Interrupted())]
    lines = typed("a story", "안녕").splitlines()
    assert closed == [True]
    assert "stopped: a turn without its whole answer is not stored" in lines
    assert lines.index("dosirak  once upon") < lines.index("dosirak  안녕하세요")


def test_what_a_model_says_steers_no_terminal(server: Server, typed: Typed) -> None:
    server.replies["/generate"] = [httpx.Response(200, content=stream("a\x1b[2J", "\x07[bold]\r\n👩‍💻"))]
    shown = typed("x")
    assert "a[2J[bold]\n👩‍💻" in shown and "\x1b" not in shown


def test_a_pipe_gets_answers_and_nothing_else(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(server, "one\n\n  \ntwo\n", monkeypatch) == 0
    assert capsys.readouterr().out == "안녕하세요\n안녕하세요\n"
    server.replies["/generate"] = [httpx.Response(503, json={"error": "Busy.", "code": "overloaded"})]
    assert piped(server, "one\ntwo", monkeypatch) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("안녕하세요\n", "error: Busy.\n")
    server.replies["/generate"] = [httpx.Response(200, content=stream("네", dropped=["m_a"], dropped_tokens=12))]
    assert piped(server, "one", monkeypatch) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("네\n", 'left out: 1 message, 12 tokens, up to "my name is kim"\n')


def test_json_is_one_object_a_turn(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.replies["/generate"] = [
        httpx.Response(422, json={"error": "Too long.", "code": "context_overflow", "window": 50}),
        httpx.Response(200, content=stream("네", cut={"at": "m_9", "stable_for_tokens": 4})),
    ]
    assert piped(server, "one\n/session\ntwo\n", monkeypatch, as_json=True) == 1
    refused, answer = map(json.loads, capsys.readouterr().out.splitlines())
    assert refused == {"error": "Too long.", "code": "context_overflow", "window": 50}
    assert answer["text"] == "네" and answer["usage"] == {"prompt_tokens": 1000}
    assert answer["context"] == {**RECEIPT, "cut": {"at": "m_9", "stable_for_tokens": 4}}, "as the server sent it"


def test_a_message_may_begin_with_a_slash(server: Server, typed: Typed) -> None:
    typed("//etc/hosts ?")
    assert server.asked[-1][2]["messages"] == [{"role": "user", "content": "/etc/hosts ?"}]


def test_bytes_that_are_no_text_become_text() -> None:
    assert chat.well_formed(b"\xff hi".decode("utf-8", "surrogateescape")) == "\ufffd hi"


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = Client(httpx.Client(transport=httpx.MockTransport(refuse), base_url="http://test:3000"))
    with pytest.raises(Unavailable, match="No server answers at http://test:3000: start one with `make serve`"):
        client.create({})
    for url in ("nowhere", "http://[::1"):
        with pytest.raises(InvalidRequest, match="is no address"):
            Client.of(url, {}).create({})


def test_something_else_at_that_address() -> None:
    client = Client(httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200)), base_url="http://x"))
    with pytest.raises(Unavailable, match="another language"):
        client.session("s_1")
    client = Client(httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(404)), base_url="http://x"))
    with pytest.raises(Refused, match="answered 404"):
        client.session("../s 1")


def test_options_and_settings_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def run(client: Client, *rest: object) -> int:
        seen.update(url=client.url, rest=rest[:3], key=client._http.headers.get("authorization"))
        return 0

    monkeypatch.setattr("service.cli.chat.run", run)
    monkeypatch.setenv("DOSIRAK_ADMIN_KEY", "correct horse")
    monkeypatch.setenv("DOSIRAK_PORT", "3999")
    words = ["chat", "--model", "demo:1", "--system", "Be kind.", "--max-new-tokens", "9", "--temperature", "0"]
    assert CliRunner().invoke(cli.app, words).exit_code == 0
    settings, parameters = {"model": "demo:1", "system": "Be kind."}, {"max_new_tokens": 9, "temperature": 0.0}
    assert seen == {
        "url": "http://127.0.0.1:3999",
        "rest": (None, settings, parameters),
        "key": "Bearer correct horse",
    }
    CliRunner().invoke(cli.app, ["chat", "--url", "http://far:1/", "--session", "s_9"])
    assert seen["url"] == "http://far:1" and seen["rest"] == ("s_9", {}, {})
