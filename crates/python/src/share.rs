//! A GPU decodes some samples of a batch and the processor the others.
//!
//! [`Share::windows`] says which images a GPU can make and what it has to take of each;
//! [`Share::run`] makes the others in threads, straight into memory that Python has pinned. Both
//! look at all samples of a batch without holding Python up: what runs in Python while a GPU is
//! being fed keeps the training loop from running.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use belady_transform::codec::{self, Format, Orientation};
use belady_transform::{self as transform, Draw, Scratch, Step, TransformError, Window};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::chain::Chain;
use crate::errors::{defect, wrong};
use crate::memory::{Lent, Place};

/// What a processor does for a GPU that decodes.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Share {
    chain: Arc<transform::Chain>,
    threads: usize,
    /// What threads need, kept for the next batch.
    scratches: Mutex<Vec<Scratch>>,
}

#[pymethods]
impl Share {
    #[new]
    fn new(chain: &Bound<'_, Chain>, threads: usize) -> PyResult<Self> {
        let chain = chain.get().0.clone();
        chain.check_window().map_err(wrong)?;
        Ok(Self { chain, threads, scratches: Mutex::default() })
    }

    /// What is to be taken of each image of a batch. `iteration` is its number where places take
    /// part in draws.
    #[pyo3(signature = (batch, seed, epoch, iteration=None))]
    fn windows(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, Batch>,
        seed: u64,
        epoch: u32,
        iteration: Option<u32>,
    ) -> PyResult<Windows> {
        let lent = batch.get().lent()?;
        let image = |(at, place): (usize, &Place)| {
            // SAFETY: the batch holds the bytes; nobody writes to a batch that is being decoded.
            let bytes = unsafe { std::slice::from_raw_parts(place.start, place.length) };
            suited(&self.chain, bytes, draw_of(seed, epoch, place.id, iteration, at))
        };
        Ok(Windows(py.detach(|| lent.places.iter().enumerate().map(image).collect())))
    }

    /// How many bytes some samples of a batch have together.
    #[staticmethod]
    fn bytes(batch: &Bound<'_, Batch>, positions: Vec<usize>) -> PyResult<usize> {
        let places = chosen(batch.get().lent()?, &positions)?;
        Ok(places.iter().map(|place| place.length).sum())
    }

    /// Copies some samples of a batch one after the other into `into`, which is as long as all of
    /// them, for a decoder that fetches them from pinned memory. The answer is where each ends.
    #[staticmethod]
    fn gather(
        py: Python<'_>,
        batch: &Bound<'_, Batch>,
        positions: Vec<usize>,
        into: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<usize>> {
        let places = chosen(batch.get().lent()?, &positions)?;
        let mut buffer = PyBuffer::<u8>::get(into)?;
        let room = room(&mut buffer, places.iter().map(|place| place.length).sum())?;
        Ok(py.detach(|| {
            let mut end = 0;
            let copy = |place: &Place| {
                // SAFETY: the batch holds the bytes.
                let bytes = unsafe { std::slice::from_raw_parts(place.start, place.length) };
                room[end..end + place.length].copy_from_slice(bytes);
                end += place.length;
                end
            };
            places.iter().map(copy).collect()
        }))
    }

    /// Transforms some samples of a batch in threads, one after the other into `into`, which is as
    /// long as all of them. The answer is where that failed, and why.
    #[pyo3(signature = (batch, positions, seed, epoch, into, iteration=None))]
    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, Batch>,
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
        let rows = room(&mut buffer, row * samples.len())?;
        let draws = positions
            .iter()
            .zip(&samples)
            .map(|(&at, place)| draw_of(seed, epoch, place.id, iteration, at))
            .collect();
        let work = Work {
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

/// What is to be taken of each image of a batch.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Windows(Vec<Option<Image>>);

/// An image that a GPU can decode, and what is to be taken of it.
#[derive(Clone, Copy, Debug)]
struct Image {
    width: u32,
    height: u32,
    window: Window,
}

#[pymethods]
impl Windows {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Positions of images that decoders of GPUs take, and of the others.
    fn suited(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.0.len()).partition(|&at| self.0[at].is_some())
    }

    /// The windows of these positions as the kernel reads them. `decoded` has the addresses of
    /// images in planes by their positions, `finished` of images that only have to be normalised.
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
                    Row { start, channel: plane, line: image.width, pixel: 1, window: image.window }
                }
                (_, Some(&start), _) => Row {
                    start,
                    channel: 1,
                    line: width * 3,
                    pixel: 3,
                    window: Window::whole(width, height),
                },
                _ => return Err(PyIndexError::new_err("there is no image at this position")),
            };
            row.write(&mut table);
        }
        Ok(table)
    }
}

/// Bytes of a row: `Window` of the kernel.
const ROW: usize = 64;

/// Where an image lies on the device, and what is taken of it.
struct Row {
    start: i64,
    /// From a channel to the next, from a line to the next, from a pixel to the next.
    channel: i64,
    line: u32,
    pixel: u32,
    window: Window,
}

impl Row {
    fn write(&self, table: &mut Vec<u8>) {
        let Window { part, flip, .. } = self.window;
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

/// What is to be taken of an image, if a GPU can decode it.
fn suited(chain: &transform::Chain, bytes: &[u8], draw: Draw) -> Option<Image> {
    let Some(Step::Decode { apply_exif_orientation, max_pixels, .. }) = chain.steps().first()
    else {
        return None;
    };
    let info = codec::probe(bytes).ok()?;
    let turned = *apply_exif_orientation && info.orientation != Orientation::UPRIGHT;
    let (width, height) = (info.width, info.height);
    let plain = info.format == Format::Jpeg && matches!(info.channels, 1 | 3);
    let small = u64::from(width) * u64::from(height) <= *max_pixels;
    // A GPU says nothing about a file that was cut off.
    if !plain || turned || !small || !bytes.ends_with(&[0xff, 0xd9]) {
        return None;
    }
    let window = chain.window(draw, width, height).ok().flatten()?;
    Some(Image { width, height, window })
}

/// What is drawn for the sample at a position of a batch; its place takes part if there is an iteration.
fn draw_of(seed: u64, epoch: u32, sample: u32, iteration: Option<u32>, position: usize) -> Draw {
    let draw = Draw { seed, epoch, sample };
    iteration.map_or(draw, |iteration| draw.at_place(iteration, position as u32))
}

/// Where these samples of a batch lie.
fn chosen(lent: &Lent, positions: &[usize]) -> PyResult<Vec<Place>> {
    let places: Option<_> = positions.iter().map(|&at| lent.places.get(at).copied()).collect();
    places.ok_or_else(|| PyIndexError::new_err("there is no such sample in the batch"))
}

/// Memory of Python's that is to be written to, of exactly this length.
fn room(buffer: &mut PyBuffer<u8>, length: usize) -> PyResult<&mut [u8]> {
    if buffer.readonly() || !buffer.is_c_contiguous() || buffer.len_bytes() != length {
        return Err(PyBufferError::new_err("the room for a batch must be exactly as long as it"));
    }
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the buffer holds its memory in place, and nobody else writes to it meanwhile.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast(), length) })
}

/// Samples that threads take one after the other.
struct Work<'a> {
    share: &'a Share,
    samples: Vec<Place>,
    rows: Vec<Mutex<Option<&'a mut [u8]>>>,
    next: AtomicUsize,
    failed: Mutex<Vec<(usize, String)>>,
    draws: Vec<Draw>,
}

impl Work<'_> {
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
                scratch = Scratch::default(); // it may have been left in any state
                Err(TransformError(defect().to_string()))
            });
            if let Err(error) = problem {
                lock(&self.failed).push((at, error.to_string()));
            }
        }
        lock(&self.share.scratches).push(scratch);
    }

    fn make(&self, at: usize, place: &Place, scratch: &mut Scratch) -> Result<(), TransformError> {
        let Some(row) = lock(&self.rows[at]).take() else { return Ok(()) };
        // SAFETY: the batch holds the bytes; nobody writes to a batch that is being decoded.
        let bytes = unsafe { std::slice::from_raw_parts(place.start, place.length) };
        self.share.chain.run_into(bytes, self.draws[at], scratch, row)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
