//! A checked list of steps.

use std::borrow::Cow;

use crate::array::{Array, Output};
use crate::check;
use crate::crop_window::{self, CropWindow};
use crate::draw::Draw;
use crate::error::{ChainError, TransformError};
use crate::flow::{Flow, ImageSpec};
use crate::ops::tensor;
use crate::random::Drawn;
use crate::run::Scratch;
use crate::run::fold::{self, Folded};
use crate::run::fuse;
use crate::run::image::{self, ExecutionMode};
use crate::run::op::ImageSteps;
use crate::run::open::Opened;
use crate::run::tensor::{NumberBuffer, Numbers, Start};
use crate::step::TransformStep;

/// A list of steps that fit together.
///
/// A chain that ends in an image gives it as uint8, height x width x channels. An empty chain gives
/// the sample's bytes.
#[derive(Clone, Debug)]
pub struct Chain {
    steps: Vec<TransformStep>,
    /// The number of steps before this chain, if it continues another one.
    before: usize,
    /// Whether the input is a sample's bytes, or an array.
    reads_samples: bool,
    /// The input of each step, and the output of the last.
    flows: Vec<Flow>,
    output: Output,
    /// The steps that work on an image.
    image: Option<ImagePart>,
}

#[derive(Clone, Debug)]
struct ImagePart {
    first: usize,
    end: usize,
    folded: Folded,
}

impl Chain {
    /// Checks that every step accepts the output of the one before it.
    ///
    /// # Errors
    /// If a step does not; the error names it.
    pub fn new(steps: Vec<TransformStep>) -> Result<Self, ChainError> {
        Self::begin(Flow::Bytes, 0, steps)
    }

    /// Creates a chain that continues after a Python function.
    ///
    /// What is unknown about the function's array is checked when it is there. `before` is the
    /// number of steps of the whole chain before these, so that errors count as the user does and
    /// every random step has its own draws.
    ///
    /// # Errors
    /// If a step does not accept its input; the error names it.
    pub fn after(
        previous: &Output,
        before: usize,
        steps: Vec<TransformStep>,
    ) -> Result<Self, ChainError> {
        let start = Flow::of(previous, steps.first())
            .map_err(|problem| wrong(&steps, before, 0, problem))?;
        Self::begin(start, before, steps)
    }

    fn begin(start: Flow, before: usize, steps: Vec<TransformStep>) -> Result<Self, ChainError> {
        let reads_samples = start == Flow::Bytes;
        let mut flows = vec![start];
        walk(&steps, before, &mut flows)?;
        let output = flows.last().map(Flow::output).unwrap_or_default();
        let image = image_part(&steps, before, &flows)?;
        Ok(Self { steps, before, reads_samples, flows, output, image })
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[TransformStep] {
        &self.steps
    }

    /// Returns whether the input is a sample's bytes, rather than an array.
    pub fn reads_samples(&self) -> bool {
        self.reads_samples
    }

    /// Returns what is known about the output.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// Transforms a sample into `into`, whose length is [`Output::bytes`]. For chains whose outputs
    /// have one shape.
    ///
    /// # Errors
    /// If the sample cannot be transformed.
    pub fn run_into(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        let opened = self.open(sample)?;
        let flows = self.settle(&opened)?;
        self.execute(&opened, &flows, draw, ExecutionMode::Fused, scratch, into)
    }

    /// Transforms a sample into a new array.
    ///
    /// # Errors
    /// If the sample cannot be transformed.
    pub fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        self.make(&self.open(sample)?, draw, ExecutionMode::Fused, scratch)
    }

    /// Transforms an array of a Python function. For chains made by [`Chain::after`].
    ///
    /// # Errors
    /// If the array cannot be transformed.
    pub fn run_array(
        &self,
        array: &Array,
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        if self.reads_samples {
            let text = "the input is an array, but the chain begins with a sample's bytes";
            return Err(TransformError(text.into()));
        }
        let opened = Opened::array(self.steps.first(), array)
            .map_err(|TransformError(problem)| wrong(&self.steps, self.before, 0, problem))
            .map_err(|error| TransformError(error.to_string()))?;
        self.make(&opened, draw, ExecutionMode::Fused, scratch)
    }

    /// Returns what the random steps draw for an image of this size.
    ///
    /// # Errors
    /// If a step does not accept the size.
    pub fn drawn(&self, draw: Draw, width: u32, height: u32) -> Result<Vec<Drawn>, TransformError> {
        let Some(part) = &self.image else { return Ok(Vec::new()) };
        let Flow::Image(image) = self.flows[part.first] else { return Ok(Vec::new()) };
        let image = ImageSpec { size: Some((width, height)), ..image };
        let mut drawn = Vec::new();
        self.image_steps(part)
            .lower(image, draw, &mut Vec::new(), |place, choice| {
                drawn.push(Drawn { step: place + 1, choice });
            })
            .map_err(TransformError)?;
        Ok(drawn)
    }

    /// Checks that the chain is one [`CropWindow`] for every image.
    ///
    /// # Errors
    /// If it is not; the error names the step.
    pub fn check_window(&self) -> Result<(), ChainError> {
        match crop_window::obstacle(&self.steps) {
            None => Ok(()),
            Some((at, problem)) => Err(wrong(&self.steps, self.before, at, problem)),
        }
    }

    /// Returns the window of an image of this size; `None` if it has to be padded.
    ///
    /// # Errors
    /// If a step does not accept the size.
    pub fn window(
        &self,
        draw: Draw,
        width: u32,
        height: u32,
    ) -> Result<Option<CropWindow>, TransformError> {
        let size = (width, height);
        let Some(part) = &self.image else { return Ok(Some(CropWindow::whole(width, height))) };
        let Flow::Image(image) = self.flows[part.first] else { return Ok(None) };
        let image = ImageSpec { size: Some(size), ..image };
        let mut ops = Vec::new();
        let steps = self.image_steps(part);
        steps.lower(image, draw, &mut ops, |_, _| ()).map_err(TransformError)?;
        let flip = fuse::fuse(&mut ops, size);
        Ok(CropWindow::of(&ops, size, flip))
    }

    pub(crate) fn open<'a>(&self, sample: &'a [u8]) -> Result<Opened<'a>, TransformError> {
        if !self.reads_samples {
            let text = "the input is a sample's bytes, but the chain continues from an array";
            return Err(TransformError(text.into()));
        }
        Opened::sample(self.steps.first(), sample)
    }

    /// Returns the step after the one that opened the input.
    fn start(&self) -> usize {
        usize::from(self.reads_samples && !self.steps.is_empty())
    }

    /// Returns the inputs of all steps for this sample. Computes only what was unknown before.
    fn settle(&self, opened: &Opened<'_>) -> Result<Cow<'_, [Flow]>, TransformError> {
        let from = self.image.as_ref().map_or(self.start(), |part| part.end + 1);
        let known = |flow: &Flow| flow.bytes().is_some();
        if self.reads_samples && self.flows.iter().skip(from).all(known) && known(self.last()) {
            return Ok(Cow::Borrowed(&self.flows));
        }
        let mut flows = self.flows[..self.start()].to_vec();
        flows.push(opened.flow(self.steps.first()));
        walk(&self.steps, self.before, &mut flows).map_err(|e| TransformError(e.to_string()))?;
        Ok(Cow::Owned(flows))
    }

    fn last(&self) -> &Flow {
        &self.flows[self.steps.len()]
    }

    pub(crate) fn make(
        &self,
        opened: &Opened<'_>,
        draw: Draw,
        way: ExecutionMode,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        let flows = self.settle(opened)?;
        let output = match (&flows[self.steps.len()], opened) {
            (Flow::Bytes, Opened::Bytes(bytes)) => {
                Output { shape: Some(vec![bytes.len()]), ..self.output.clone() }
            }
            (flow, _) => flow.output(),
        };
        let (Some(dtype), Some(shape), Some(length)) =
            (output.dtype, output.shape.clone(), output.bytes())
        else {
            return Err(TransformError("the chain does not determine its shape".into()));
        };
        let mut bytes = vec![0; length];
        self.execute(opened, &flows, draw, way, scratch, &mut bytes)?;
        Ok(Array { dtype, shape, bytes })
    }

    fn execute(
        &self,
        opened: &Opened<'_>,
        flows: &[Flow],
        draw: Draw,
        way: ExecutionMode,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        fits(&flows[self.steps.len()], opened, into.len())?;
        let first = self.start();
        let start = match opened {
            Opened::Bytes(bytes) | Opened::Raw { bytes, .. } => Start::Plain(bytes),
            Opened::Array(array) => Start::Plain(&array.bytes),
            Opened::Npy(npy) => Start::Npy(npy),
            Opened::Scalar { dtype, bytes } => Start::Plain(&bytes[..dtype.size()]),
            Opened::Image { picture, image } => {
                return self.execute_image(*picture, *image, flows, draw, way, scratch, into);
            }
        };
        let (steps, flows) = (&self.steps[first..], &flows[first..]);
        Numbers { steps, flows, spare: &mut scratch.spare, into }.run(&start);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "input, mode, scratch memory and output")]
    fn execute_image(
        &self,
        picture: image::ImageInput<'_>,
        image: ImageSpec,
        flows: &[Flow],
        draw: Draw,
        way: ExecutionMode,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        let Some(part) = &self.image else { return Ok(()) };
        let steps = self.image_steps(part);
        let (pixels, flip) = image::run(&steps, picture, image, draw, way, &mut scratch.image)?;
        #[cfg(test)]
        let alone;
        let folded = match way {
            ExecutionMode::Fused => &part.folded,
            #[cfg(test)]
            ExecutionMode::StepByStep => {
                let end = self.steps.len().min(part.end + 1);
                alone = fold::fold(&self.steps[part.end..end]).map_err(|(_, error)| error)?;
                &alone
            }
        };
        let Folded { tables, layout, steps } = folded;
        let next = part.end + steps;
        let (steps, flows) = (&self.steps[next..], &flows[next..]);
        let mut numbers = Numbers { steps, flows, spare: &mut scratch.spare, into };
        let place = numbers.destination(0, NumberBuffer::Sample);
        let buffer = numbers.buffer(place, pixels.bytes.len() * tables.dtype().size());
        tensor::write(pixels, flip, tables, *layout, buffer)?;
        numbers.run(&Start::In(place));
        Ok(())
    }

    fn image_steps(&self, part: &ImagePart) -> ImageSteps<'_> {
        let (first, end) = (part.first, part.end);
        ImageSteps { steps: &self.steps, first, end, before: self.before }
    }
}

/// Returns an error of the step at this index, with `before` steps before the chain.
fn wrong(
    steps: &[TransformStep],
    before: usize,
    at: usize,
    problem: impl Into<String>,
) -> ChainError {
    let name = steps.get(at).map_or("", TransformStep::name);
    ChainError { index: before + at + 1, name, problem: problem.into() }
}

/// Checks the steps after the last flow.
fn walk(steps: &[TransformStep], before: usize, flows: &mut Vec<Flow>) -> Result<(), ChainError> {
    for (at, step) in steps.iter().enumerate().skip(flows.len() - 1) {
        let next = check::step(step, &flows[at]);
        flows.push(next.map_err(|problem| wrong(steps, before, at, problem))?);
    }
    Ok(())
}

fn image_part(
    steps: &[TransformStep],
    before: usize,
    flows: &[Flow],
) -> Result<Option<ImagePart>, ChainError> {
    let is_image = |flow: &Flow| matches!(flow, Flow::Image(_));
    let Some(first) = flows.iter().position(is_image) else { return Ok(None) };
    let end = first
        + steps[first..]
            .iter()
            .take_while(|step| {
                step.works_on_images() && !matches!(step, TransformStep::ToTensor { .. })
            })
            .count();
    let folded = fold::fold(&steps[end..])
        .map_err(|(at, TransformError(problem))| wrong(steps, before, end + at, problem))?;
    Ok(Some(ImagePart { first, end, folded }))
}

/// Checks that the output has the length of its destination.
fn fits(last: &Flow, opened: &Opened<'_>, length: usize) -> Result<(), TransformError> {
    let bytes = match opened {
        Opened::Bytes(bytes) => Some(bytes.len()),
        _ => last.bytes(),
    };
    if bytes == Some(length) {
        return Ok(());
    }
    Err(TransformError(format!(
        "its result has {} bytes instead of {length}; give all samples one shape",
        bytes.unwrap_or_default()
    )))
}
