//! libjpeg-turbo, behind a handle that cannot be used wrongly.
//!
//! An [`Image`] borrows the handle and the bytes of a file for as long as libjpeg holds pointers
//! to them.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

// The library that the shim calls is linked by this crate.
use turbojpeg_sys as _;

use crate::codec::{Format, cut_off, refused};
use crate::error::TransformError;
use crate::image::Rect;

/// What the shim calls `belady_jpeg`.
#[repr(C)]
struct Native {
    _private: [u8; 0],
}

/// What a file says of itself, as libjpeg understands it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    pub width: u32,
    pub height: u32,
    pub components: u32,
    /// More than one if some component has fewer columns than the image.
    pub horizontal_sampling: u32,
    /// One if its coefficients come in several scans, of which some may be missing.
    pub many_scans: u32,
    /// Bytes up to the first scan.
    pub consumed: usize,
}

const DONE: c_int = 0;
const TRUNCATED: c_int = 2;

unsafe extern "C" {
    fn belady_jpeg_new() -> *mut Native;
    fn belady_jpeg_free(jpeg: *mut Native);
    fn belady_jpeg_message(jpeg: *const Native) -> *const c_char;
    fn belady_jpeg_close(jpeg: *mut Native);
    fn belady_jpeg_open(
        jpeg: *mut Native,
        bytes: *const u8,
        length: usize,
        header: *mut Header,
    ) -> c_int;
    fn belady_jpeg_start(
        jpeg: *mut Native,
        channels: u32,
        shrink: u32,
        left: *mut u32,
        width: *mut u32,
        top: u32,
    ) -> c_int;
    fn belady_jpeg_read(jpeg: *mut Native, into: *mut u8, stride: usize, rows: u32) -> c_int;
}

/// A decompressor of libjpeg, used for one image after another.
#[derive(Debug)]
pub(super) struct Handle(NonNull<Native>);

// SAFETY: a decompressor has no ties to the thread that made it, and all use needs `&mut`.
unsafe impl Send for Handle {}

impl Handle {
    pub fn new() -> Result<Self, TransformError> {
        // SAFETY: it has no conditions; it gives an object that is ours, or NULL.
        let native = unsafe { belady_jpeg_new() };
        NonNull::new(native)
            .map(Self)
            .ok_or_else(|| TransformError("there is no memory left for a JPEG decoder".into()))
    }

    /// Reads a file up to its first scan.
    pub fn open<'a>(&'a mut self, bytes: &'a [u8]) -> Result<Image<'a>, TransformError> {
        let mut image = Image { handle: self, bytes, header: Header::default(), row: 0 };
        // SAFETY: the object is alive and has no other image, since an image borrows it and closes
        // it; `bytes` outlive the image.
        let code = unsafe {
            belady_jpeg_open(image.native(), bytes.as_ptr(), bytes.len(), &raw mut image.header)
        };
        image.check(code)?;
        Ok(image)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it came from `belady_jpeg_new` and nobody uses it any more.
        unsafe { belady_jpeg_free(self.0.as_ptr()) };
    }
}

/// A file that is being decoded.
pub(super) struct Image<'a> {
    handle: &'a mut Handle,
    bytes: &'a [u8],
    pub header: Header,
    /// Bytes of a row, once it has been started.
    row: usize,
}

impl Image<'_> {
    /// What comes after the header of the first scan.
    pub fn scans(&self) -> &[u8] {
        self.bytes.get(self.header.consumed..).unwrap_or_default()
    }

    /// Begins to decode a part at 1 / `shrink` (1, 2, 4 or 8) of its size, in whose pixels the part
    /// is; to 1 (grey), 3 (RGB) or 4 (CMYK) channels. Gives the columns that rows will really have:
    /// where they begin, and how many.
    pub fn start(
        &mut self,
        channels: u32,
        shrink: u32,
        part: Rect,
    ) -> Result<(u32, u32), TransformError> {
        let Rect { mut left, mut width, top, .. } = part;
        // SAFETY: the object is alive and has read a header.
        let code = unsafe {
            let (left, width) = (&raw mut left, &raw mut width);
            belady_jpeg_start(self.native(), channels, shrink, left, width, top)
        };
        self.check(code)?;
        self.row = width as usize * channels as usize;
        Ok((left, width))
    }

    /// Decodes as many rows as `into` has.
    pub fn read(&mut self, into: &mut [u8]) -> Result<(), TransformError> {
        let rows = into.len().checked_div(self.row).unwrap_or(0);
        // SAFETY: `into` has this many rows of as many bytes as libjpeg writes for one. It writes
        // none beyond the last of the image, and none at all before `start`.
        let code =
            unsafe { belady_jpeg_read(self.native(), into.as_mut_ptr(), self.row, rows as u32) };
        self.check(code)
    }

    fn native(&mut self) -> *mut Native {
        self.handle.0.as_ptr()
    }

    fn check(&mut self, code: c_int) -> Result<(), TransformError> {
        match code {
            DONE => Ok(()),
            TRUNCATED => Err(cut_off(Format::Jpeg)),
            _ => {
                // SAFETY: the message is a string that ends within the object, and is written only
                // by calls that need `&mut`.
                let message = unsafe { CStr::from_ptr(belady_jpeg_message(self.native())) };
                Err(refused(Format::Jpeg, message.to_string_lossy()))
            }
        }
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        // SAFETY: the object is alive; closing is allowed in all of its states.
        unsafe { belady_jpeg_close(self.native()) };
    }
}
