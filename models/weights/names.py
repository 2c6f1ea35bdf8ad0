"""The names that tensors and modules have in a version's files, where they are not the model's own."""

from __future__ import annotations

from typing import Final

SCALE_SUFFIX: Final = ".weight_scale"
COLUMNS_SUFFIX: Final = ".outlier_columns"
KEPT_SUFFIX: Final = ".outlier_weight"
HADAMARD_SUFFIX: Final = ".hadamard"
GROUP_SCALE_SUFFIX: Final = ".group_scale"
GROUP_BASE_SUFFIX: Final = ".group_base"
BESIDE_WEIGHT: Final = (
    SCALE_SUFFIX,
    HADAMARD_SUFFIX,
    COLUMNS_SUFFIX,
    KEPT_SUFFIX,
    GROUP_SCALE_SUFFIX,
    GROUP_BASE_SUFFIX,
)
"""What a layer's files may hold beside its weight."""
HEAD: Final = "lm_head"
HEAD_OF_GPT_NEOX: Final = "embed_out"
"""What files of GPT-NeoX call the module that the library calls `lm_head`."""
