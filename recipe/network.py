"""The network is a Llama decoder in plain torch, with the parameter names of transformers' LlamaForCausalLM.

It knows shapes and arithmetic only: no text, corpus or schedule. Its state dict loads into transformers unchanged.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The token itself has to stay visible beside what the layers add to it, or no layer can copy a token it rarely saw: so
# the embedding starts large, and the layers' outputs and the scale before the tied projection start small.
EMBEDDING_DEVIATION = 0.5
OUTPUT_DEVIATION = 0.01
FINAL_SCALE = 0.03


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model; the names are those of transformers' LlamaConfig where one exists."""

    vocab_size: int
    hidden_size: int = 256
    layers: int = 6
    heads: int = 4
    intermediate_size: int = 640
    window: int = 2048
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich, 2019).

    Its learned scale is applied by `scaled` to the matrix that follows, which is cheaper than to the activations.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1]
        return x * torch.rsqrt(mean + self.eps)

    def scaled(self, *matrices: nn.Linear) -> Tensor:
        """The rows of all `matrices` below one another, their columns scaled by the learned weight."""
        return torch.cat([matrix.weight for matrix in matrices]) * self.weight


class Attention(nn.Module):
    """Causal multi-head attention with rotary positions (rotate-half pairing, as transformers does it)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.head_dim = shape.heads, shape.head_dim
        size = shape.hidden_size
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, norm: Norm, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, size = x.shape
        mixed = F.linear(norm(x), norm.scaled(self.q_proj, self.k_proj, self.v_proj))
        split = mixed.view(batch, length, 3 * self.heads, self.head_dim).transpose(1, 2)
        turned, v = torch.split(split, [2 * self.heads, self.heads], dim=1)
        q, k = rotate(turned, cos, sin).chunk(2, dim=1)
        heads = attend(q, k, v)
        out: Tensor = self.o_proj(heads.transpose(1, 2).reshape(batch, length, size))
        return out


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention (Vaswani et al., 2017); q, k, v and the result are [batch, heads, length, head_dim].

    In bf16 on a CPU the products stand here one by one. The fused operation's backward pass took 36 % of a step there.
    """
    if q.device.type != "cpu" or v.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    batch, _, length, head_dim = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    future = torch.full((length, length), float("-inf"), dtype=q.dtype).triu(1)
    scores = torch.baddbmm(future, q, k.mT, alpha=head_dim**-0.5)
    return torch.bmm(torch.softmax(scores, -1, dtype=scores.dtype), v).view(batch, -1, length, head_dim)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions (Su et al., 2021).

    x is [batch, heads, length, head_dim]; cos and sin are [length, head_dim / 2].
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Mlp(nn.Module):
    """SwiGLU feed-forward (Shazeer, 2020)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size, wide = shape.hidden_size, shape.intermediate_size
        self.gate_proj = nn.Linear(size, wide, bias=False)
        self.up_proj = nn.Linear(size, wide, bias=False)
        self.down_proj = nn.Linear(wide, size, bias=False)

    def forward(self, x: Tensor, norm: Norm) -> Tensor:
        gate, up = F.linear(norm(x), norm.scaled(self.gate_proj, self.up_proj)).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(x, self.input_layernorm, cos, sin)
        out: Tensor = x + self.mlp(x, self.post_attention_layernorm)
        return out


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)


class Llama(nn.Module):
    """The model with its embedding tied to the output projection."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        frequencies = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.window).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.apply(initialise)
        nn.init.constant_(self.model.norm.weight, FINAL_SCALE)
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                nn.init.normal_(weight, std=OUTPUT_DEVIATION)

    def forward(self, token_ids: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the cross entropy of `targets` after `token_ids`; all three are [batch, length].

        A position of weight 0 is left out.
        """
        x = self.model.embed_tokens(token_ids)
        length = token_ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        chosen = weights > 0
        norm = self.model.norm
        logits = F.linear(norm(x[chosen]) * norm.weight, self.model.embed_tokens.weight)
        losses = F.cross_entropy(logits.float(), targets[chosen], reduction="none")
        return (losses * weights[chosen]).sum()


def initialise(module: nn.Module) -> None:
    """Normal initialisation: deviation 1/sqrt(inputs) for matrices, EMBEDDING_DEVIATION for the (tied) embedding."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=EMBEDDING_DEVIATION)
