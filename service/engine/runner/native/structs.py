"""The structures mirror those of the same names in `src/`, field by field; those of sampling stand in
`sampling/native.py`, that of marks in `marks.py`. They know no tensors."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_int64, c_void_p

from service.engine.runner.native.marks import MarksStruct


class LinearStruct(Structure):
    _fields_ = (
        ("kind", c_int64),
        ("outputs", c_int64),
        ("depth", c_int64),
        ("packed", c_void_p),
        ("scale", c_void_p),
        ("sums", c_void_p),
        ("bias", c_void_p),
        ("outliers", c_int64),
        ("columns", c_void_p),
        ("kept", c_void_p),
        ("group", c_int64),
        ("hadamard", c_int64),
    )


class HeadsStruct(Structure):
    _fields_ = (
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("blocks", c_int64),
        ("block_size", c_int64),
        ("kind", c_int64),
        ("window", c_int64),
        ("in_windows", c_int64),
        ("scale", c_double),
        ("softcap", c_double),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("reach", c_int64),
        ("bias", c_void_p),
        ("sinks", c_void_p),
    )


class NormStruct(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class GateStruct(Structure):
    _fields_ = (("activation", c_int64), ("alpha", c_double), ("limit", c_double))


class ExpertsStruct(Structure):
    _fields_ = (
        ("count", c_int64),
        ("active", c_int64),
        ("renormalized", c_int64),
        ("router", LinearStruct),
    )


class LayerStruct(Structure):
    _fields_ = (
        ("qkv", LinearStruct),
        ("out", LinearStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("input_norm", NormStruct),
        ("attention_norm", NormStruct),
        ("middle_norm", NormStruct),
        ("mlp_norm", NormStruct),
        ("query_norm", NormStruct),
        ("key_norm", NormStruct),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("heads", HeadsStruct),
        ("experts", ExpertsStruct),
    )


class ModelStruct(Structure):
    _fields_ = (
        ("hidden", c_int64),
        ("layers", c_int64),
        ("rotary", c_int64),
        ("parallel", c_int64),
        ("gate", GateStruct),
        ("vocabulary", c_int64),
        ("max_positions", c_int64),
        ("embedding_kind", c_int64),
        ("embedding", c_void_p),
        ("final_norm", NormStruct),
        ("eps", c_double),
        ("embedding_scale", c_double),
        ("logit_softcap", c_double),
        ("head", LinearStruct),
        ("layer", POINTER(LayerStruct)),
    )


class LowRankStruct(Structure):
    _fields_ = (
        ("kind", c_int64),
        ("rank", c_int64),
        ("first", c_int64),
        ("outputs", c_int64),
        ("a", c_void_p),
        ("b", c_void_p),
        ("scale", c_double),
    )


class AddedStruct(Structure):
    _fields_ = (("count", c_int64), ("part", POINTER(LowRankStruct)))


class AdaptersStruct(Structure):
    _fields_ = (
        ("owners", c_void_p),
        ("count", c_int64),
        ("linears", c_int64),
        ("added", POINTER(POINTER(AddedStruct))),
    )


class StepStruct(Structure):
    _fields_ = (
        ("rows", c_int64),
        ("sequences", c_int64),
        ("logit_rows", c_int64),
        ("state_rows", c_int64),
        ("table_entries", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("logit_row", c_void_p),
        ("state_row", c_void_p),
        ("tables", c_void_p * 2),
        ("sequence", c_void_p),
        ("logits", c_void_p),
        ("states", c_void_p),
        ("adapters", AdaptersStruct),
        ("marks", POINTER(MarksStruct)),
    )
