//! Encodes JPEGs of every kind with libjpeg-turbo.

use std::ptr;

use turbojpeg_sys as tj;

/// How a JPEG is coded.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `TJSAMP_*`.
    pub sampling: i32,
    pub progressive: bool,
    pub arithmetic: bool,
    pub lossless: bool,
    /// MCUs between restart markers; 0 for none.
    pub restart: i32,
    pub quality: i32,
    /// Three, or four for CMYK.
    pub channels: u32,
}

pub const PLAIN: Kind = Kind {
    sampling: tj::TJSAMP_TJSAMP_420,
    progressive: false,
    arithmetic: false,
    lossless: false,
    restart: 0,
    quality: 90,
    channels: 3,
};

/// Returns saturated noise, in which wrong smoothing is visible.
pub fn noise(width: u32, height: u32, channels: u32, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 24) as u8
    };
    (0..width * height * channels).map(|_| next()).collect()
}

pub fn jpeg(width: u32, height: u32, kind: Kind, seed: u32) -> Vec<u8> {
    let pixels = noise(width, height, kind.channels, seed);
    let format = if kind.channels == 4 { tj::TJPF_TJPF_CMYK } else { tj::TJPF_TJPF_RGB };
    let settings = [
        (tj::TJPARAM_TJPARAM_SUBSAMP, kind.sampling),
        (tj::TJPARAM_TJPARAM_QUALITY, kind.quality),
        (tj::TJPARAM_TJPARAM_PROGRESSIVE, i32::from(kind.progressive)),
        (tj::TJPARAM_TJPARAM_ARITHMETIC, i32::from(kind.arithmetic)),
        (tj::TJPARAM_TJPARAM_LOSSLESS, i32::from(kind.lossless)),
        (tj::TJPARAM_TJPARAM_RESTARTBLOCKS, kind.restart),
    ];
    // SAFETY: the handle is created, used and destroyed here; `pixels` have the size of width,
    // height and format; the library allocates the file, which is copied before it is freed.
    unsafe {
        let handle = tj::tj3Init(signed(tj::TJINIT_TJINIT_COMPRESS));
        for (parameter, value) in settings {
            assert_eq!(tj::tj3Set(handle, signed(parameter), value), 0, "{kind:?}");
        }
        let (mut file, mut length) = (ptr::null_mut(), 0);
        let (width, height) = (signed(width), signed(height));
        let code = tj::tj3Compress8(
            handle,
            pixels.as_ptr(),
            width,
            0,
            height,
            format,
            &raw mut file,
            &raw mut length,
        );
        assert_eq!(code, 0, "{kind:?}");
        let bytes = std::slice::from_raw_parts(file, length as usize).to_vec();
        tj::tj3Free(file.cast());
        tj::tj3Destroy(handle);
        bytes
    }
}

fn signed(number: u32) -> i32 {
    number.try_into().expect("it is small")
}
