"""Two kernels for CUDA, compiled by torch when they are first used (NVRTC; no compiler is needed).

`normalise` makes numbers of the bytes of a batch in one pass over memory. `resample` crops,
resizes, flips and normalises a batch of images of different sizes in one launch, where
torchvision takes some ten launches for each image. Its filter is the antialiased bilinear one of
torchvision and PIL, with their rounding to a byte after each pass.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_COMMON = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ void keep(float* to, float value) { *to = value; }
__device__ __forceinline__ void keep(__half* to, float value) { *to = __float2half_rn(value); }
__device__ __forceinline__ void keep(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
__device__ __forceinline__ void keep(unsigned char* to, float value) { *to = (unsigned char)value; }

// As torch does it on the CPU: each operation rounded on its own. A deviation of zero leaves the byte.
__device__ __forceinline__ float normal(float value, float mean, float deviation) {
    if (deviation == 0.0f) return value;
    return __fdiv_rn(__fsub_rn(__fdiv_rn(value, 255.0f), mean), deviation);
}
"""

_NORMALISE = r"""
extern "C" __global__ void normalise(const unsigned char* from, OUT* into, const float* means,
                                     const float* deviations, long long pixels, long long plane,
                                     int channels, int from_planes, int into_planes) {
    // One thread a pixel; `pixels` of the whole batch, `plane` of one image.
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= pixels) return;
    const long long image = at / plane, within = at % plane;
    for (int channel = 0; channel < channels; ++channel) {
        const long long planar = (image * channels + channel) * plane + within;
        const long long side_by_side = at * channels + channel;
        const float value = from[from_planes ? planar : side_by_side];
        keep(into + (into_planes ? planar : side_by_side), normal(value, means[channel], deviations[channel]));
    }
}
"""

_RESAMPLE = r"""
// An image (planes of height x width), the part that is taken, what the part is resized to, where in
// that the result begins, and whether it is turned around.
struct Window {
    long long pixels;
    int height, width;
    int left, top, across, down;
    int resized_width, resized_height, from_left, from_top;
    int flip_x, flip_y;
};

__device__ __forceinline__ float weight(int at, float centre, float wide) {
    return fmaxf(0.0f, 1.0f - fabsf((at - centre + 0.5f) / wide));
}

extern "C" __global__ void resample(const Window* windows, OUT* into, const float* means,
                                    const float* deviations, int height, int width, int into_planes) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const Window window = windows[blockIdx.z];
    const unsigned char* pixels = (const unsigned char*)window.pixels;
    const long long plane = (long long)window.height * window.width;

    const float scale_x = (float)window.across / window.resized_width;
    const float scale_y = (float)window.down / window.resized_height;
    const float wide = fmaxf(scale_x, 1.0f), high = fmaxf(scale_y, 1.0f);
    const float centre_x = (window.from_left + (window.flip_x ? width - 1 - x : x) + 0.5f) * scale_x;
    const float centre_y = (window.from_top + (window.flip_y ? height - 1 - y : y) + 0.5f) * scale_y;
    const int first_x = max(0, (int)(centre_x - wide + 0.5f));
    const int first_y = max(0, (int)(centre_y - high + 0.5f));
    const int last_x = min(window.across, (int)(centre_x + wide + 0.5f));
    const int last_y = min(window.down, (int)(centre_y + high + 0.5f));

    float total_x = 0.0f, total_y = 0.0f, sums[3] = {0.0f, 0.0f, 0.0f};
    for (int column = first_x; column < last_x; ++column) total_x += weight(column, centre_x, wide);
    for (int row = first_y; row < last_y; ++row) {
        const float down = weight(row, centre_y, high);
        total_y += down;
        const unsigned char* line = pixels + (long long)(window.top + row) * window.width + window.left;
        float across[3] = {0.0f, 0.0f, 0.0f};
        for (int column = first_x; column < last_x; ++column) {
            const float share = weight(column, centre_x, wide);
            across[0] += share * line[column];
            across[1] += share * line[column + plane];
            across[2] += share * line[column + 2 * plane];
        }
        for (int channel = 0; channel < 3; ++channel)
            sums[channel] += down * floorf(across[channel] / total_x + 0.5f);
    }
    for (int channel = 0; channel < 3; ++channel) {
        const float value = fminf(255.0f, fmaxf(0.0f, floorf(sums[channel] / total_y + 0.5f)));
        const long long place = into_planes
            ? (((long long)blockIdx.z * 3 + channel) * height + y) * width + x
            : (((long long)blockIdx.z * height + y) * width + x) * 3 + channel;
        keep(into + place, normal(value, means[channel], deviations[channel]));
    }
}
"""

_TYPES = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.uint8: "unsigned char",
}
_THREADS = 256


def available(device: torch.device) -> bool:
    """Whether torch can compile kernels for this device."""
    return device.type == "cuda" and hasattr(torch.cuda, "_compile_kernel") and not torch.version.hip


@functools.cache
def _kernel(name: str, dtype: torch.dtype) -> Any:
    source = _COMMON + {"normalise": _NORMALISE, "resample": _RESAMPLE}[name]
    return torch.cuda._compile_kernel(source.replace("OUT*", f"{_TYPES[dtype]}*"), name)


def normalise(
    batch: torch.Tensor, into: torch.Tensor, means: torch.Tensor, deviations: torch.Tensor
) -> None:
    """Bytes [B, H, W, C] (or [B, C, H, W]) into numbers [B, C, H, W] of any memory format."""
    from_planes = batch.shape[1:] == into.shape[1:]
    images, channels, height, width = into.shape
    plane = height * width
    blocks = -(-images * plane // _THREADS)
    if blocks == 0:
        return
    _kernel("normalise", into.dtype)(
        (blocks, 1, 1),
        (_THREADS, 1, 1),
        (
            batch,
            into,
            means,
            deviations,
            images * plane,
            plane,
            channels,
            int(from_planes),
            int(into.is_contiguous()),
        ),
    )


def resample(
    windows: torch.Tensor, into: torch.Tensor, means: torch.Tensor, deviations: torch.Tensor
) -> None:
    """Images of RGB planes, one a window, into numbers [B, 3, H, W] of any memory format."""
    images, _, height, width = into.shape
    if images == 0:
        return
    _kernel("resample", into.dtype)(
        (-(-width // 32), -(-height // 8), images),
        (32, 8, 1),
        (windows, into, means, deviations, height, width, int(into.is_contiguous())),
    )
