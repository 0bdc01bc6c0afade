//! A safe interface to libjpeg-turbo.
//!
//! An [`OpenJpeg`] borrows the handle and the bytes of a file while libjpeg has pointers to them.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

// Links the library that the C shim calls.
use turbojpeg_sys as _;

use crate::codec::{ImageFormat, cut_off, refused};
use crate::error::TransformError;
use crate::image::Rect;

/// `belady_jpeg` of the C shim.
#[repr(C)]
struct Native {
    _private: [u8; 0],
}

/// The header of a file as libjpeg reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NativeHeader {
    pub width: u32,
    pub height: u32,
    pub components: u32,
    /// Above 1 if a component has fewer columns than the image.
    pub horizontal_sampling: u32,
    /// 1 if the coefficients are in several scans, of which some may be missing.
    pub many_scans: u32,
    /// Bytes before the first scan.
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
        header: *mut NativeHeader,
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

/// A libjpeg decompressor, reused for all images.
#[derive(Debug)]
pub(super) struct JpegHandle(NonNull<Native>);

// SAFETY: a decompressor is not bound to a thread, and all use needs `&mut`.
unsafe impl Send for JpegHandle {}

impl JpegHandle {
    pub fn new() -> Result<Self, TransformError> {
        // SAFETY: no preconditions; returns an owned object or NULL.
        let native = unsafe { belady_jpeg_new() };
        NonNull::new(native)
            .map(Self)
            .ok_or_else(|| TransformError("cannot allocate memory for a JPEG decoder".into()))
    }

    /// Reads a file up to its first scan.
    pub fn open<'a>(&'a mut self, bytes: &'a [u8]) -> Result<OpenJpeg<'a>, TransformError> {
        let mut image = OpenJpeg { handle: self, bytes, header: NativeHeader::default(), row: 0 };
        // SAFETY: the object is alive and has no other image, because an image borrows it and
        // closes it. `bytes` outlive the image.
        let code = unsafe {
            belady_jpeg_open(image.native(), bytes.as_ptr(), bytes.len(), &raw mut image.header)
        };
        image.check(code)?;
        Ok(image)
    }
}

impl Drop for JpegHandle {
    fn drop(&mut self) {
        // SAFETY: created by `belady_jpeg_new` and not used afterwards.
        unsafe { belady_jpeg_free(self.0.as_ptr()) };
    }
}

/// An open JPEG file.
pub(super) struct OpenJpeg<'a> {
    handle: &'a mut JpegHandle,
    bytes: &'a [u8],
    pub header: NativeHeader,
    /// Bytes of a row, after `start`.
    row: usize,
}

impl OpenJpeg<'_> {
    /// Returns the bytes after the header of the first scan.
    pub fn scans(&self) -> &[u8] {
        self.bytes.get(self.header.consumed..).unwrap_or_default()
    }

    /// Starts to decode a part at 1 / `shrink` (1, 2, 4 or 8) of its size, in pixels of that size,
    /// to 1 (grey), 3 (RGB) or 4 (CMYK) channels. Returns the first column and the number of
    /// columns of the decoded rows.
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
        // SAFETY: `into` has `rows` rows of the bytes that libjpeg writes per row. libjpeg writes
        // no row beyond the last of the image, and none before `start`.
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
            TRUNCATED => Err(cut_off(ImageFormat::Jpeg)),
            _ => {
                // SAFETY: the message is NUL-terminated within the object and written only by calls
                // that need `&mut`.
                let message = unsafe { CStr::from_ptr(belady_jpeg_message(self.native())) };
                Err(refused(ImageFormat::Jpeg, message.to_string_lossy()))
            }
        }
    }
}

impl Drop for OpenJpeg<'_> {
    fn drop(&mut self) {
        // SAFETY: the object is alive and can be closed in any state.
        unsafe { belady_jpeg_close(self.native()) };
    }
}
