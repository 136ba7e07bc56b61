"""The patches of images as a matrix in memory, for CPUs that multiply small matrices of bfloat16 by instructions.

Those are so quick that a weight's gradient by a kernel which copies what it needs of an image in float32
(`kernels.boxes`) takes twice as long as a copy of all patches and a product of matrices (`kernels.bfloat16`).
"""

from __future__ import annotations

from functools import cache

from torchgraft.codegen.kernel import Kernel, Launch, parameters
from torchgraft.kernels.geometry import GEOMETRY, Geometry, geometry_arguments
from torchgraft.kernels.products import plain_loops

_LANES = 16


def _copy_line() -> str:
    """Pixels `low` to `high` of a line of patches, whose first would lie at from[at], and zeros around them.

    Whole vectors reach beyond a line, as far as the image's patches and all images do: what is written there is
    overwritten by the next line.
    """
    lanes = ", ".join(str(lane) for lane in range(_LANES))
    whole = f"load_i16x{_LANES}(from, at + i)"
    return f"""
int i = 0;
if (stride_x == 1) {{
  for (; i < target_x && line + i + {_LANES} <= pixels; i += {_LANES}) {{
    if (high <= i || low >= i + {_LANES}) {{ store_i16x{_LANES}(to, line + i, SPLAT_short16(0)); continue; }}
    if (at + i < 0 || at + i + {_LANES} > source_end) break;
    if (low <= i && high >= i + {_LANES}) {{ store_i16x{_LANES}(to, line + i, {whole}); continue; }}
    const short16 lane = MAKE_short16({lanes}), first = SPLAT_short16((short)max(low - i, 0));
    const short16 end = SPLAT_short16((short)min(high - i, {_LANES}));
    store_i16x{_LANES}(to, line + i, SELECT((lane >= first) & (lane < end), {whole}, SPLAT_short16(0)));
  }}
}}
for (; i < target_x; ++i) to[line + i] = i >= low && i < high ? from[at + (long)i * stride_x] : 0;"""


@cache
def patches_kernel() -> Kernel:
    """P[channel, tap, image, pixel]: what the tap of the filter reads of the channel for the pixel of the result. A
    group has a channel of an image.

    Parameters: P, S, `channels`, `images`, and the geometry's.
    """
    body = f"""
const long image = GROUP_ID(0) / channels, channel = GROUP_ID(0) % channels;
const long source_pixels = (long)source_z * source_y * source_x, source_end = images * channels * source_pixels;
const long pixels = (long)target_z * target_y * target_x, plane = (image * channels + channel) * source_pixels;
GLOBAL const short* const from = (GLOBAL const short*)S;
GLOBAL short* to = (GLOBAL short*)P + (channel * taps_z * taps_y * taps_x * images + image) * pixels;
for (int kz = 0; kz < taps_z; ++kz)
  for (int ky = 0; ky < taps_y; ++ky)
    for (int kx = 0; kx < taps_x; ++kx, to += images * pixels) {{
      const int dx = kx * dilation_x - padding_x;
      const int first = dx >= 0 ? 0 : min(target_x, (-dx + stride_x - 1) / stride_x);
      const int last = source_x > dx ? min(target_x, (source_x - dx - 1) / stride_x + 1) : 0;
      long line = 0;
      for (int tz = 0; tz < target_z; ++tz)
        for (int ty = 0; ty < target_y; ++ty, line += target_x) {{
          const int z = tz * stride_z + kz * dilation_z - padding_z, y = ty * stride_y + ky * dilation_y - padding_y;
          const bool inside = (uint)z < (uint)source_z && (uint)y < (uint)source_y;
          const int low = inside ? first : target_x, high = inside ? last : 0;
          const long at = plane + ((long)z * source_y + y) * source_x + dx;
          {_copy_line()}
        }}
    }}"""
    params = parameters(f"bf16* P; const bf16* S; i32 channels, images; {GEOMETRY}")
    return Kernel("patches", params, plain_loops(body), local=(1,))


def patches_launch(g: Geometry, patches: object, image: object) -> Launch:
    """Fills `patches`: [channels of the image, taps, images, pixels of the result]."""
    arguments = {"P": patches, "S": image, "channels": g.image_channels, "images": g.batch}
    arguments |= geometry_arguments(g, g.image, g.result)
    return Launch(patches_kernel(), (g.image_channels * g.batch,), arguments)
