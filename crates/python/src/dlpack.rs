//! DLPack: exports tensors without a copy, for torch, JAX, numpy and others.
//!
//! A capsule holds a *managed tensor*: a description of the memory, its owner and a deleter. A
//! consumer that takes the tensor renames the capsule and calls the deleter later, on any thread.
//! If no consumer takes it, the capsule calls the deleter. Consumers may ignore the read-only flag,
//! so samples in a cache are copied first.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::LentBytes;

/// The device of ordinary memory: kDLCPU, number 0.
pub const CPU: (i32, i32) = (1, 0);

/// kDLUInt of 8 bits.
pub const UINT8: (u8, u8) = (1, 8);

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// The arguments of `__dlpack__`.
#[derive(Clone, Copy, Debug)]
pub struct DlpackRequest {
    pub stream: Option<i64>,
    pub max_version: Option<(u32, u32)>,
    pub device: Option<(i32, i32)>,
    pub copy: Option<bool>,
}

impl DlpackRequest {
    fn check(&self) -> PyResult<()> {
        if self.device.is_some_and(|device| device != CPU) {
            return Err(PyBufferError::new_err(
                "samples are in host memory: use dl_device (1, 0) and copy from there",
            ));
        }
        if self.stream.is_some_and(|stream| stream != -1) {
            return Err(PyBufferError::new_err("host memory has no streams: leave out `stream`"));
        }
        Ok(())
    }
}

/// Exports a sample as a tensor of bytes.
pub fn export_bytes<'py>(
    py: Python<'py>,
    bytes: &LentBytes,
    request: &DlpackRequest,
) -> PyResult<Bound<'py, PyAny>> {
    request.check()?;
    if bytes.is_cached() && request.copy == Some(false) {
        return Err(PyBufferError::new_err(
            "this sample is in a cache, which is read-only: leave out copy=False",
        ));
    }
    let copied = bytes.is_cached() || request.copy == Some(true);
    let bytes = if copied { py.detach(|| bytes.copied()) } else { bytes.clone() };
    let tensor = DlpackTensor {
        start: bytes.start(),
        kind: UINT8,
        shape: vec![bytes.len().cast_signed() as i64],
        strides: vec![1],
        writable: bytes.is_writable(),
        copied,
    };
    tensor.export(py, Box::new(bytes), request)
}

/// A tensor to export.
#[derive(Debug)]
pub struct DlpackTensor {
    pub start: *const u8,
    /// Type code and bits of an element.
    pub kind: (u8, u8),
    pub shape: Vec<i64>,
    pub strides: Vec<i64>,
    pub writable: bool,
    pub copied: bool,
}

impl DlpackTensor {
    /// Returns a capsule that holds `owner`, which owns the memory.
    pub fn export<'py>(
        self,
        py: Python<'py>,
        owner: Box<dyn Send>,
        request: &DlpackRequest,
    ) -> PyResult<Bound<'py, PyAny>> {
        request.check()?;
        if request.max_version.is_some_and(|(major, _)| major >= 1) {
            let flags = if self.writable { 0 } else { READ_ONLY };
            let flags = if self.copied { flags | IS_COPIED } else { flags };
            let managed = Managed::place(self, owner, |tensor, context| Versioned {
                version: [1, 0],
                context,
                deleter: Some(delete::<Versioned>),
                flags,
                tensor,
            });
            capsule(py, managed.cast(), VERSIONED_NAME, drop_capsule::<Versioned>)
        } else {
            let managed = Managed::place(self, owner, |tensor, context| Legacy {
                tensor,
                context,
                deleter: Some(delete::<Legacy>),
            });
            capsule(py, managed.cast(), NAME, drop_capsule::<Legacy>)
        }
    }
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Legacy {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

trait Managing {
    const NAME: &'static CStr;

    fn context(&self) -> *mut c_void;
}

impl Managing for Legacy {
    const NAME: &'static CStr = NAME;

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Managing for Versioned {
    const NAME: &'static CStr = VERSIONED_NAME;

    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// The structure that the consumer sees, followed by what it refers to.
struct Managed<T> {
    seen: T,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
    _owner: Box<dyn Send>,
}

impl<T> Managed<T> {
    fn place(
        tensor: DlpackTensor,
        owner: Box<dyn Send>,
        make: impl FnOnce(DlTensor, *mut c_void) -> T,
    ) -> *mut T {
        let dimensions = tensor.shape.len();
        let mut shape = tensor.shape.into_boxed_slice();
        let mut strides = tensor.strides.into_boxed_slice();
        let described = DlTensor {
            data: tensor.start.cast_mut().cast(),
            device: [CPU.0, CPU.1],
            dimensions: dimensions.cast_signed() as i32,
            type_code: tensor.kind.0,
            type_bits: tensor.kind.1,
            type_lanes: 1,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let place = Box::into_raw(Box::<Self>::new_uninit()).cast::<Self>();
        let seen = make(described, place.cast());
        // SAFETY: just allocated for one `Self`.
        unsafe {
            place.write(Self { seen, _shape: shape, _strides: strides, _owner: owner });
            &raw mut (*place).seen
        }
    }
}

/// Called once by the consumer or by the capsule, on any thread.
unsafe extern "C" fn delete<T: Managing>(managed: *mut T) {
    if managed.is_null() {
        return;
    }
    // SAFETY: made by `Managed::place`, which stored its own address as the context; called once.
    // Dropping it does not call Python.
    drop(unsafe { Box::from_raw((*managed).context().cast::<Managed<T>>()) });
}

fn capsule<'py>(
    py: Python<'py>,
    managed: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name is static, and the destructor is that of this kind of tensor.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Destroys a capsule. If it still has its name, no consumer has taken the tensor.
unsafe extern "C" fn drop_capsule<T: Managing>(capsule: *mut ffi::PyObject) {
    let name = T::NAME.as_ptr();
    // SAFETY: Python calls this once, with a capsule that `capsule` made.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, name).cast::<T>());
        }
    }
}
