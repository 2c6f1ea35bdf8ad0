"""Calls of Triton's own client, by name, in an order in which each finds what it needs.

`tests/api/tritonclient.json` holds the requests that the client sends for them: method, path, the headers that say how
to read the body, and the body. To record them anew, delete that file and run `tests/api/test_tritonclient.py` where
tritonclient is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TEXT = "도시락 hello"
MODEL = "demo"


def calls(http: Any, numpy: Any) -> dict[str, Callable[[Any], Any]]:
    """Takes the modules `tritonclient.http` and `numpy`; each value takes a client."""

    def tensor(name: str, datatype: str, values: Any, binary: bool = True) -> Any:
        made = http.InferInput(name, list(values.shape), datatype)
        return made.set_data_from_numpy(values, binary_data=binary)

    def words(*texts: str) -> Any:
        return numpy.array([text.encode() for text in texts], dtype=object)

    prompt = tensor("text_input", "BYTES", words(TEXT))
    tensors = [
        prompt,
        tensor("max_tokens", "INT32", numpy.array([3], dtype=numpy.int32)),
        tensor("temperature", "FP32", numpy.array([0.0], dtype=numpy.float32)),
        tensor("ignore_eos", "BOOL", numpy.array([True])),
        tensor("stop_words", "BYTES", words("하나", "둘")),
    ]
    spelt = tensor("text_input", "BYTES", words(TEXT).reshape(1, 1), binary=False)
    outputs = [http.InferRequestedOutput("text_output")]
    as_json = [http.InferRequestedOutput("text_output", binary_data=False)]
    return {
        "server live": lambda client: client.is_server_live(),
        "server ready": lambda client: client.is_server_ready(),
        "server metadata": lambda client: client.get_server_metadata(),
        "model metadata": lambda client: client.get_model_metadata(MODEL),
        "metadata of a reference": lambda client: client.get_model_metadata("demo:1"),
        "index": lambda client: client.get_model_repository_index(),
        "load": lambda client: client.load_model(MODEL),
        "model ready": lambda client: client.is_model_ready(MODEL),
        "version ready": lambda client: client.is_model_ready(MODEL, "1"),
        "infer": lambda client: client.infer(MODEL, [prompt]),
        "infer by parameters": lambda client: client.infer(
            MODEL, [spelt], "1", outputs=as_json, parameters={"max_tokens": 3}
        ),
        "infer by tensors": lambda client: client.infer(MODEL, tensors, outputs=outputs, request_id="mine 1"),
        "unload": lambda client: client.unload_model("demo:1"),
    }
