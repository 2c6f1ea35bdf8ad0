"""Triton's own client: each of its calls that a server of texts can answer, in an order in which each finds what it
needs."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy
import tritonclient.http as http

TEXT = "도시락 hello"
MODEL = "demo"


def main(url: str, *, plain: bool = False) -> dict[str, Any]:
    """`plain`: the version stays loaded."""
    prompt = tensor("text_input", words(TEXT))
    tensors = [
        prompt,
        tensor("max_tokens", numpy.array([3], dtype=numpy.int32), "INT32"),
        tensor("temperature", numpy.array([0.0], dtype=numpy.float32), "FP32"),
        tensor("ignore_eos", numpy.array([True]), "BOOL"),
        tensor("stop_words", words("하나", "둘")),
    ]
    spelt = tensor("text_input", words(TEXT).reshape(1, 1), binary=False)
    outputs = [http.InferRequestedOutput("text_output")]
    as_json = [http.InferRequestedOutput("text_output", binary_data=False)]
    with http.InferenceServerClient(url.removeprefix("http://")) as client:
        found = {
            "server live": client.is_server_live(),
            "server ready": client.is_server_ready(),
            "server metadata": client.get_server_metadata(),
            "model metadata": client.get_model_metadata(MODEL),
            "metadata of a reference": client.get_model_metadata("demo:1"),
            "index": client.get_model_repository_index(),
            "load": client.load_model(MODEL),
            "model ready": client.is_model_ready(MODEL),
            "version ready": client.is_model_ready(MODEL, "1"),
            "infer": told(client.infer(MODEL, [prompt])),
            "infer by parameters": told(
                client.infer(MODEL, [spelt], "1", outputs=as_json, parameters={"max_tokens": 3})
            ),
            "infer by tensors": told(client.infer(MODEL, tensors, outputs=outputs, request_id="mine 1")),
        }
        if not plain:
            found["unload"] = client.unload_model("demo:1")
        try:
            client.infer("nobody", [prompt])
        except http.InferenceServerException as error:
            found["error"] = [error.status(), error.message()]
    return found


def tensor(name: str, values: Any, datatype: str = "BYTES", *, binary: bool = True) -> Any:
    made = http.InferInput(name, list(values.shape), datatype)
    return made.set_data_from_numpy(values, binary_data=binary)


def words(*texts: str) -> Any:
    return numpy.array([text.encode() for text in texts], dtype=object)


def told(result: Any) -> dict[str, Any]:
    text = result.as_numpy("text_output")
    flat = [each.decode() if isinstance(each, bytes) else each for each in text.ravel().tolist()]
    return {"id": result.get_response().get("id"), "shape": list(text.shape), "texts": flat}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], plain="plain" in sys.argv), ensure_ascii=False))
