"""Number formats of the released checkpoint, in plain float32 bit arithmetic.

Rounding to e4m3 and e2m1, the three activation quantisers Q8, Q4e8 and Q4e4, the weight
quantisers (32x32 tiles, 1x32 rows) and their byte codes. Debian's torch 1.13 has no float8
types, so nothing here uses them; the same lines run on CUDA and under torch.compile. It knows
numbers only: neither tensor names nor files.
"""

import torch
import torch.nn.functional as F

INV_448 = float(torch.tensor(1.0 / 448.0, dtype=torch.float32))
INV_6 = float(torch.tensor(1.0 / 6.0, dtype=torch.float32))


def exponent_field(x):
    """Biased exponent of a non-negative or negative float32, as int32."""
    return (x.view(torch.int32) >> 23) & 0xFF


def power_of_two(field):
    """float32 with this biased exponent field and zero mantissa."""
    return (field << 23).view(torch.float32)


def round_to(v, mantissa_bits, min_exponent):
    """Nearest value with that many mantissa bits, ties to even; below 2**min_exponent the step
    stays put, which makes the subnormals. No clamp: callers keep |v| in range."""
    field = exponent_field(v).clamp(min=127 + min_exponent) - mantissa_bits
    return torch.round(v * power_of_two(254 - field)) * power_of_two(field)


def e4m3(v):
    return round_to(v.clamp(-448.0, 448.0), 3, -6)


def e2m1(v):
    return round_to(v.clamp(-6.0, 6.0), 1, 0)


def scale_p2_field(a, inverse_max):
    """Exponent field of the smallest power of two not below a * inverse_max (all in float32)."""
    bits = (a * inverse_max).view(torch.int32)
    return (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def _groups(x, g):
    return x.float().reshape(x.shape[:-1] + (x.shape[-1] // g, g))


def q8_parts(x, g=32):
    """e4m3 values [.., n/g, g] float32 and scale exponent fields [.., n/g] int32."""
    v = _groups(x, g)
    field = scale_p2_field(v.abs().amax(-1).clamp(min=1e-4), INV_448)
    return e4m3(v * power_of_two(254 - field).unsqueeze(-1)), field


def q8(x, g=32):
    q, field = q8_parts(x, g)
    return (q * power_of_two(field).unsqueeze(-1)).reshape(x.shape).to(torch.bfloat16)


def q4e8_parts(x, g=32):
    v = _groups(x, g)
    field = scale_p2_field(v.abs().amax(-1).clamp(min=6.0 * 2.0**-126), INV_6)
    return e2m1(v / power_of_two(field).unsqueeze(-1)), field


def q4e8(x, g=32):
    q, field = q4e8_parts(x, g)
    return (q * power_of_two(field).unsqueeze(-1)).reshape(x.shape).to(torch.bfloat16)


def q4e4_parts(x, g=16):
    """e2m1 values and e4m3 scales, both as float32."""
    v = _groups(x, g)
    scale = e4m3(v.abs().amax(-1).clamp(min=6.0 * 2.0**-9) / 6.0)
    return e2m1(v / scale.unsqueeze(-1)), scale


def q4e4(x, g=16):
    q, scale = q4e4_parts(x, g)
    return (q * scale.unsqueeze(-1)).reshape(x.shape).to(torch.bfloat16)


# Weights. A scale byte is the exponent field itself (UE8M0). The floor keeps an all-zero tile's
# scale a normal number; it is far below any trained weight.
WEIGHT_FLOOR = 2.0**-60


def _pad_to(w, rows, cols):
    return F.pad(w, (0, -w.shape[-1] % cols, 0, -w.shape[-2] % rows))


def fp8_tiles(w):
    """w [.., out, in] float32 -> e4m3 values (same shape), scale fields [.., out/32, in/32]."""
    out, inn = w.shape[-2:]
    p = _pad_to(w.float(), 32, 32)
    t = p.reshape(w.shape[:-2] + (p.shape[-2] // 32, 32, p.shape[-1] // 32, 32))
    field = scale_p2_field(t.abs().amax(-1).amax(-2).clamp(min=WEIGHT_FLOOR), INV_448)
    up = power_of_two(254 - field).unsqueeze(-2).unsqueeze(-1)
    return e4m3(t * up).reshape(p.shape)[..., :out, :inn], field


def spread_tiles(field, out, inn):
    """Scale fields of 32x32 tiles as a factor for each weight."""
    s = power_of_two(field)
    return s.repeat_interleave(32, -2).repeat_interleave(32, -1)[..., :out, :inn]


def fp8_weight(w):
    out, inn = w.shape[-2:]
    q, field = fp8_tiles(w)
    if out % 32 == 0 and inn % 32 == 0:
        t = q.reshape(w.shape[:-2] + (out // 32, 32, inn // 32, 32))
        return (t * power_of_two(field).unsqueeze(-2).unsqueeze(-1)).reshape(w.shape)
    return q * spread_tiles(field, out, inn)


def fp8_rows_parts(w):
    """Engram tables: one scale per row and 32 columns."""
    v = _groups(w, 32)
    field = scale_p2_field(v.abs().amax(-1).clamp(min=WEIGHT_FLOOR), INV_448)
    return e4m3(v * power_of_two(254 - field).unsqueeze(-1)), field


def fp8_rows(w):
    q, field = fp8_rows_parts(w)
    return (q * power_of_two(field).unsqueeze(-1)).reshape(w.shape)


def fp4_rows_parts(w):
    """Experts: one scale per output row and 32 inputs."""
    v = _groups(w, 32)
    field = scale_p2_field(v.abs().amax(-1).clamp(min=WEIGHT_FLOOR), INV_6)
    return e2m1(v * power_of_two(254 - field).unsqueeze(-1)), field


def fp4_rows(w):
    q, field = fp4_rows_parts(w)
    return (q * power_of_two(field).unsqueeze(-1)).reshape(w.shape)


# Byte codes.


def e4m3_code(q):
    """uint8 codes of float32 values that are already on the e4m3 grid."""
    bits = q.contiguous().view(torch.int32)
    field = (bits >> 23) & 0xFF
    normal = ((field - 120) << 3) | ((bits >> 20) & 7)
    subnormal = (q.abs() * 512.0).to(torch.int32)
    sign = (bits >> 24) & 0x80
    return (sign | torch.where(field >= 121, normal, subnormal)).to(torch.uint8)


def e4m3_value(code):
    """float32 of uint8 codes; the two NaN codes give NaN."""
    table = []
    for c in range(256):
        e, m = (c >> 3) & 15, c & 7
        v = m * 2.0**-9 if e == 0 else (1 + m / 8.0) * 2.0 ** (e - 7)
        v = float("nan") if c & 0x7F == 0x7F else v
        table.append(-v if c & 0x80 else v)
    return torch.tensor(table, dtype=torch.float32)[code.long()]


def e2m1_code(q):
    magnitude = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    code = torch.bucketize(q.abs().contiguous(), magnitude.to(q.device))
    return (code.to(torch.int32) | (((q.contiguous().view(torch.int32) >> 28) & 8))).to(torch.uint8)


def e2m1_value(code):
    half = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return torch.tensor(half + [-v for v in half], dtype=torch.float32)[code.long()]


def pack_e2m1(codes):
    """Two codes a byte, the even element in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_e2m1(packed):
    return torch.stack((packed & 15, packed >> 4), -1).reshape(packed.shape[:-1] + (-1,))


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, q):
        return q.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def straight(quantiser, x):
    """quantiser(x) in the forward pass, the identity in the backward pass."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return quantiser(x).to(x.dtype)
    return _Straight.apply(x, quantiser(x.detach()))
