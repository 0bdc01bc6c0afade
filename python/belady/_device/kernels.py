"""Two CUDA kernels, compiled by torch when they are first used (NVRTC; no compiler is needed).

`normalise` converts the bytes of a batch to numbers in one pass over memory, by a table [C, 256].
`resample` crops, resizes, flips and normalises a batch of images of different sizes in one launch,
where torchvision takes some ten launches for each image. Its filter is the antialiased bilinear one of
torchvision and PIL, with their rounding to a byte after each pass.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_HEADERS = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
"""

_NORMALISE = r"""
extern "C" __global__ void normalise(const unsigned char* from, OUT* into, const OUT* table,
                                     long long pixels, long long plane, int channels,
                                     int into_planes) {
    // One thread a pixel; `pixels` of the whole batch, `plane` of one image.
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= pixels) return;
    const long long image = at / plane, within = at % plane;
    for (int channel = 0; channel < channels; ++channel) {
        const long long planar = (image * channels + channel) * plane + within;
        const long long side_by_side = at * channels + channel;
        into[into_planes ? planar : side_by_side] = table[channel * 256 + from[side_by_side]];
    }
}
"""

_RESAMPLE = r"""
// An image by its address and the distances of its channels, rows and pixels; the part that is taken,
// what the part is resized to, where in that the result begins, and whether it is turned around.
struct Window {
    long long pixels, channel_stride;
    int row_stride, pixel_stride;
    int left, top, across, down;
    int resized_width, resized_height, from_left, from_top;
    int flip_x, flip_y;
};

__device__ __forceinline__ float weight(int at, float centre, float narrow) {
    return fmaxf(0.0f, 1.0f - fabsf((at - centre + 0.5f) * narrow));
}

// As many columns as a result of half the width has: more are weighed again for each row.
#define COLUMNS 6
// Rows of the result that a thread makes: what is known of its column serves all of them.
#define ROWS 4

__device__ __forceinline__ void add(float* sums, float share, const unsigned char* pixel, int channels) {
    sums[0] += share * __ldg(pixel);
    sums[1] += share * __ldg(pixel + channels);
    sums[2] += share * __ldg(pixel + 2 * channels);
}

extern "C" __global__ void resample(const Window* windows, OUT* into, const OUT* table,
                                    int height, int width, int into_planes) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= width) return;
    const Window window = windows[blockIdx.z];
    const int channels = (int)window.channel_stride;
    const unsigned char* pixels = (const unsigned char*)window.pixels
        + (long long)window.top * window.row_stride + (long long)window.left * window.pixel_stride;

    const float scale_x = (float)window.across / window.resized_width;
    const float scale_y = (float)window.down / window.resized_height;
    const float wide = fmaxf(scale_x, 1.0f), high = fmaxf(scale_y, 1.0f);
    const float narrow = 1.0f / wide, flat = 1.0f / high;
    // What is not resized is its own pixel alone.
    const bool same_width = window.across == window.resized_width;
    const bool same_height = window.down == window.resized_height;

    const int to_x = window.from_left + (window.flip_x ? width - 1 - x : x);
    const float centre_x = (to_x + 0.5f) * scale_x;
    const int first_x = same_width ? to_x : max(0, (int)(centre_x - wide + 0.5f));
    const int last_x = same_width ? to_x + 1 : min(window.across, (int)(centre_x + wide + 0.5f));
    float total_x = 0.0f, shares[COLUMNS];
    #pragma unroll
    for (int at = 0; at < COLUMNS; ++at) {
        shares[at] = first_x + at < last_x ? weight(first_x + at, centre_x, narrow) : 0.0f;
        total_x += shares[at];
    }
    for (int column = first_x + COLUMNS; column < last_x; ++column)
        total_x += weight(column, centre_x, narrow);
    const float per_x = 1.0f / total_x;
    pixels += (long long)first_x * window.pixel_stride;

    #pragma unroll
    for (int step = 0; step < ROWS; ++step) {
        const int y = (blockIdx.y * ROWS + step) * blockDim.y + threadIdx.y;
        if (y >= height) return;
        const int to_y = window.from_top + (window.flip_y ? height - 1 - y : y);
        int values[3];
        if (same_width && same_height) {
            const unsigned char* pixel = pixels + (long long)to_y * window.row_stride;
            for (int channel = 0; channel < 3; ++channel) values[channel] = __ldg(pixel + channel * channels);
        } else {
            const float centre_y = (to_y + 0.5f) * scale_y;
            const int first_y = same_height ? to_y : max(0, (int)(centre_y - high + 0.5f));
            const int last_y = same_height ? to_y + 1 : min(window.down, (int)(centre_y + high + 0.5f));
            float total_y = 0.0f, sums[3] = {0.0f, 0.0f, 0.0f};
            const unsigned char* pixel = pixels + (long long)first_y * window.row_stride;
            for (int row = first_y; row < last_y; ++row, pixel += window.row_stride) {
                const float down = weight(row, centre_y, flat);
                total_y += down;
                float across[3] = {0.0f, 0.0f, 0.0f};
                #pragma unroll
                for (int at = 0; at < COLUMNS; ++at)
                    if (first_x + at < last_x) add(across, shares[at], pixel + at * window.pixel_stride, channels);
                for (int column = first_x + COLUMNS; column < last_x; ++column)
                    add(across, weight(column, centre_x, narrow),
                        pixel + (column - first_x) * window.pixel_stride, channels);
                for (int channel = 0; channel < 3; ++channel)
                    sums[channel] += down * floorf(across[channel] * per_x + 0.5f);
            }
            for (int channel = 0; channel < 3; ++channel)
                values[channel] = (int)fminf(255.0f, fmaxf(0.0f, floorf(sums[channel] / total_y + 0.5f)));
        }
        for (int channel = 0; channel < 3; ++channel) {
            const long long place = into_planes
                ? (((long long)blockIdx.z * 3 + channel) * height + y) * width + x
                : (((long long)blockIdx.z * height + y) * width + x) * 3 + channel;
            into[place] = table[channel * 256 + values[channel]];
        }
    }
}
"""

_TYPES = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}
_THREADS = 256
#: As in the source of `resample`.
_ROWS = 4


def available(device: torch.device) -> bool:
    """Whether torch compiles kernels for this device."""
    return (
        device.type == "cuda" and hasattr(torch.cuda, "_compile_kernel") and not torch.version.hip
    )


@functools.cache
def _kernel(name: str, dtype: torch.dtype) -> Any:
    source = _HEADERS + {"normalise": _NORMALISE, "resample": _RESAMPLE}[name]
    return torch.cuda._compile_kernel(source.replace("OUT*", f"{_TYPES[dtype]}*"), name)


def normalise(batch: torch.Tensor, into: torch.Tensor, table: torch.Tensor) -> None:
    """Converts bytes [B, H, W, C] to numbers [B, C, H, W] of either memory format."""
    images, channels, height, width = into.shape
    plane = height * width
    blocks = -(-images * plane // _THREADS)
    if blocks == 0:
        return
    planes = int(into.is_contiguous())
    numbers = (batch, into, table, images * plane, plane, channels, planes)
    _kernel("normalise", into.dtype)((blocks, 1, 1), (_THREADS, 1, 1), numbers)


def resample(windows: torch.Tensor, into: torch.Tensor, table: torch.Tensor) -> None:
    """Converts RGB images, one a window, to numbers [B, 3, H, W] of either memory format."""
    images, _, height, width = into.shape
    if images == 0:
        return
    blocks = (-(-width // 32), -(-height // (8 * _ROWS)), images)
    numbers = (windows, into, table, height, width, int(into.is_contiguous()))
    _kernel("resample", into.dtype)(blocks, (32, 8, 1), numbers)
