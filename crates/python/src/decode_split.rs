//! Splits the decoding of a batch between a GPU and the CPU.
//!
//! [`PyDecodeSplit::windows`] finds the images that a GPU can decode, with the window of each.
//! [`PyDecodeSplit::run`] decodes the others in threads, into memory that Python has pinned. Both
//! process a whole batch without the interpreter, so that the training loop can run.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use belady_transform::codec::{self, ImageFormat, Orientation};
use belady_transform::{
    self as transform, CropWindow, Draw, Scratch, TransformError, TransformStep,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::prelude::*;

use crate::arguments::wrong;
use crate::batch::PyBatch;
use crate::chain::PyChain;
use crate::errors::defect;
use crate::memory::{LentBatch, SampleBytes};

/// The CPU's share of decoding for a GPU.
#[pyclass(name = "DecodeSplit", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyDecodeSplit {
    chain: Arc<transform::Chain>,
    threads: usize,
    /// The threads' scratch memory, kept for the next batch.
    scratches: Mutex<Vec<Scratch>>,
}

#[pymethods]
impl PyDecodeSplit {
    #[new]
    fn new(chain: &Bound<'_, PyChain>, threads: usize) -> PyResult<Self> {
        let chain = chain.get().0.clone();
        chain.check_window().map_err(wrong)?;
        Ok(Self { chain, threads, scratches: Mutex::default() })
    }

    /// The window of each image of a batch. `iteration` is the batch's number, if positions take
    /// part in draws.
    #[pyo3(signature = (batch, seed, epoch, iteration=None))]
    fn windows(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyBatch>,
        seed: u64,
        epoch: u32,
        iteration: Option<u32>,
    ) -> PyResult<PyDecodeWindows> {
        let lent = batch.get().lent()?;
        let image = |(at, place): (usize, &SampleBytes)| {
            // SAFETY: the batch owns the bytes, and the consumer does not write to a batch that is
            // decoded.
            let bytes = unsafe { std::slice::from_raw_parts(place.start, place.length) };
            suited(&self.chain, bytes, draw_of(seed, epoch, place.id, iteration, at))
        };
        Ok(PyDecodeWindows(py.detach(|| lent.places.iter().enumerate().map(image).collect())))
    }

    /// Total bytes of some samples of a batch.
    #[staticmethod]
    fn bytes(batch: &Bound<'_, PyBatch>, positions: Vec<usize>) -> PyResult<usize> {
        let places = chosen(batch.get().lent()?, &positions)?;
        Ok(places.iter().map(|place| place.length).sum())
    }

    /// Copies some samples of a batch one after the other into `into`, which has exactly their
    /// length, for a decoder that reads pinned memory. Returns where each ends.
    #[staticmethod]
    fn gather(
        py: Python<'_>,
        batch: &Bound<'_, PyBatch>,
        positions: Vec<usize>,
        into: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<usize>> {
        let places = chosen(batch.get().lent()?, &positions)?;
        let mut buffer = PyBuffer::<u8>::get(into)?;
        let output = output_bytes(&mut buffer, places.iter().map(|place| place.length).sum())?;
        Ok(py.detach(|| {
            let mut end = 0;
            let copy = |place: &SampleBytes| {
                // SAFETY: the batch holds the bytes.
                let bytes = unsafe { std::slice::from_raw_parts(place.start, place.length) };
                output[end..end + place.length].copy_from_slice(bytes);
                end += place.length;
                end
            };
            places.iter().map(copy).collect()
        }))
    }

    /// Transforms some samples of a batch in threads, one after the other into `into`, which has
    /// exactly their length. Returns the positions of failures and their reasons.
    #[pyo3(signature = (batch, positions, seed, epoch, into, iteration=None))]
    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyBatch>,
        positions: Vec<usize>,
        seed: u64,
        epoch: u32,
        into: &Bound<'_, PyAny>,
        iteration: Option<u32>,
    ) -> PyResult<Vec<(usize, String)>> {
        let lent = batch.get().lent()?;
        let row =
            self.chain.output().bytes().ok_or_else(|| wrong("the chain has no fixed shape"))?;
        let samples = chosen(lent, &positions)?;
        let mut buffer = PyBuffer::<u8>::get(into)?;
        let rows = output_bytes(&mut buffer, row * samples.len())?;
        let draws = positions
            .iter()
            .zip(&samples)
            .map(|(&at, place)| draw_of(seed, epoch, place.id, iteration, at))
            .collect();
        let work = SplitWork {
            share: self,
            samples,
            rows: rows.chunks_exact_mut(row).map(|row| Mutex::new(Some(row))).collect(),
            next: AtomicUsize::new(0),
            failed: Mutex::default(),
            draws,
        };
        py.detach(|| work.run());
        Ok(work.failed.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The windows of the images of a batch.
#[pyclass(name = "DecodeWindows", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyDecodeWindows(Vec<Option<SuitedImage>>);

/// An image that a GPU can decode, and its window.
#[derive(Clone, Copy, Debug)]
struct SuitedImage {
    width: u32,
    height: u32,
    window: CropWindow,
}

#[pymethods]
impl PyDecodeWindows {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Positions of images that a GPU can decode, and of the others.
    fn split(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.0.len()).partition(|&at| self.0[at].is_some())
    }

    /// The windows of these positions in the kernel's format. By position, `decoded` has the
    /// addresses of planar images, `finished` those of images that only need to be normalised.
    fn table(
        &self,
        positions: Vec<usize>,
        decoded: HashMap<usize, i64>,
        finished: HashMap<usize, i64>,
        height: u32,
        width: u32,
    ) -> PyResult<Vec<u8>> {
        let mut table = Vec::with_capacity(positions.len() * ROW);
        for at in positions {
            let row = match (decoded.get(&at), finished.get(&at), self.0.get(at).copied().flatten())
            {
                (Some(&start), _, Some(image)) => {
                    let plane = i64::from(image.width) * i64::from(image.height);
                    WindowRow {
                        start,
                        channel: plane,
                        line: image.width,
                        pixel: 1,
                        window: image.window,
                    }
                }
                (_, Some(&start), _) => WindowRow {
                    start,
                    channel: 1,
                    line: width * 3,
                    pixel: 3,
                    window: CropWindow::whole(width, height),
                },
                _ => return Err(PyIndexError::new_err("there is no image at this position")),
            };
            row.write(&mut table);
        }
        Ok(table)
    }
}

/// The bytes of a row, the kernel's `Window`.
const ROW: usize = 64;

/// An image on the device, and its window.
struct WindowRow {
    start: i64,
    /// The distances between two channels, lines and pixels.
    channel: i64,
    line: u32,
    pixel: u32,
    window: CropWindow,
}

impl WindowRow {
    fn write(&self, table: &mut Vec<u8>) {
        let CropWindow { part, flip, .. } = self.window;
        table.extend(self.start.to_le_bytes());
        table.extend(self.channel.to_le_bytes());
        for number in [
            self.line,
            self.pixel,
            part.left,
            part.top,
            part.width,
            part.height,
            self.window.resized_width,
            self.window.resized_height,
            self.window.from_left,
            self.window.from_top,
            u32::from(flip.horizontal),
            u32::from(flip.vertical),
        ] {
            table.extend(number.to_le_bytes());
        }
    }
}

/// Returns the window of an image, if a GPU can decode it.
fn suited(chain: &transform::Chain, bytes: &[u8], draw: Draw) -> Option<SuitedImage> {
    let Some(TransformStep::Decode { apply_exif_orientation, max_pixels, .. }) =
        chain.steps().first()
    else {
        return None;
    };
    let info = codec::probe(bytes).ok()?;
    let turned = *apply_exif_orientation && info.orientation != Orientation::UPRIGHT;
    let (width, height) = (info.width, info.height);
    let plain = info.format == ImageFormat::Jpeg && matches!(info.channels, 1 | 3);
    let small = u64::from(width) * u64::from(height) <= *max_pixels;
    // A GPU's decoder does not report a truncated file.
    if !plain || turned || !small || !bytes.ends_with(&[0xff, 0xd9]) {
        return None;
    }
    let window = chain.window(draw, width, height).ok().flatten()?;
    Some(SuitedImage { width, height, window })
}

/// Returns the draw of the sample at a position of a batch. With an iteration, the draw depends on
/// the position.
fn draw_of(seed: u64, epoch: u32, sample: u32, iteration: Option<u32>, position: usize) -> Draw {
    let draw = Draw { seed, epoch, sample };
    iteration.map_or(draw, |iteration| draw.at_place(iteration, position as u32))
}

/// Returns these samples of a batch.
fn chosen(lent: &LentBatch, positions: &[usize]) -> PyResult<Vec<SampleBytes>> {
    let places: Option<_> = positions.iter().map(|&at| lent.places.get(at).copied()).collect();
    places.ok_or_else(|| PyIndexError::new_err("there is no such sample in the batch"))
}

/// Returns the memory of a writable buffer of exactly this length.
fn output_bytes(buffer: &mut PyBuffer<u8>, length: usize) -> PyResult<&mut [u8]> {
    if buffer.readonly() || !buffer.is_c_contiguous() || buffer.len_bytes() != length {
        return Err(PyBufferError::new_err(
            "`into` must be writable and have exactly the length of the samples",
        ));
    }
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the buffer keeps its memory in place, and the caller must not use it during the call.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast(), length) })
}

/// Samples that threads take one after the other.
struct SplitWork<'a> {
    share: &'a PyDecodeSplit,
    samples: Vec<SampleBytes>,
    rows: Vec<Mutex<Option<&'a mut [u8]>>>,
    next: AtomicUsize,
    failed: Mutex<Vec<(usize, String)>>,
    draws: Vec<Draw>,
}

impl SplitWork<'_> {
    fn run(&self) {
        let threads = self.share.threads.clamp(1, self.samples.len().max(1));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.take());
            }
        });
    }

    fn take(&self) {
        let mut scratch = lock(&self.share.scratches).pop().unwrap_or_default();
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = self.samples.get(at) else { break };
            let done = catch_unwind(AssertUnwindSafe(|| self.make(at, place, &mut scratch)));
            let problem = done.unwrap_or_else(|_| {
                // The panic may have left it in any state.
                scratch = Scratch::default();
                Err(TransformError(defect().to_string()))
            });
            if let Err(error) = problem {
                lock(&self.failed).push((at, error.to_string()));
            }
        }
        lock(&self.share.scratches).push(scratch);
    }

    fn make(
        &self,
        at: usize,
        place: &SampleBytes,
        scratch: &mut Scratch,
    ) -> Result<(), TransformError> {
        let Some(row) = lock(&self.rows[at]).take() else { return Ok(()) };
        // SAFETY: the batch owns the bytes, and the consumer does not write to a batch that is
        // decoded.
        let bytes = unsafe { std::slice::from_raw_parts(place.start, place.length) };
        self.share.chain.run_into(bytes, self.draws[at], scratch, row)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
