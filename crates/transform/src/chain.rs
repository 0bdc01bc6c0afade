//! A list of steps that has been checked.

use std::borrow::Cow;

use crate::array::{Array, Output};
use crate::check;
use crate::draw::Draw;
use crate::error::{ChainError, TransformError};
use crate::flow::{Flow, Image};
use crate::ops::tensor;
use crate::random::Drawn;
use crate::run::Scratch;
use crate::run::fold::{self, Folded};
use crate::run::fuse;
use crate::run::image::{self, Way};
use crate::run::op::ImageSteps;
use crate::run::open::Opened;
use crate::run::tensor::{Numbers, Place, Start};
use crate::step::Step;
use crate::window::{self, Window};

/// A list of steps that fit together.
///
/// A chain that ends in an image gives it as uint8, height x width x channels. An empty chain gives
/// the sample's bytes.
#[derive(Clone, Debug)]
pub struct Chain {
    steps: Vec<Step>,
    /// How many steps came before, if this goes on where another chain has ended.
    before: usize,
    /// Whether a sample's bytes come in, or an array.
    reads_samples: bool,
    /// What flows into each step, and out of the last.
    flows: Vec<Flow>,
    output: Output,
    /// Which steps work on an image: from the first that is given one to the first that is not.
    image: Option<ImagePart>,
}

#[derive(Clone, Debug)]
struct ImagePart {
    first: usize,
    end: usize,
    folded: Folded,
}

impl Chain {
    /// Checks that every step can work on what the one before it gives.
    pub fn new(steps: Vec<Step>) -> Result<Self, ChainError> {
        Self::begin(Flow::Bytes, 0, steps)
    }

    /// A chain that goes on where a Python function has given an array.
    ///
    /// What is not known of that array is checked when it comes. `before` is how many steps of the
    /// whole chain lie before these, so that errors count as the user does and every random step
    /// has draws of its own.
    pub fn after(previous: &Output, before: usize, steps: Vec<Step>) -> Result<Self, ChainError> {
        let start = Flow::of(previous, steps.first()).map_err(|problem| {
            let name = steps.first().map_or("", Step::name);
            ChainError { index: before + 1, name, problem }
        })?;
        Self::begin(start, before, steps)
    }

    fn begin(start: Flow, before: usize, steps: Vec<Step>) -> Result<Self, ChainError> {
        let reads_samples = start == Flow::Bytes;
        let mut flows = vec![start];
        walk(&steps, before, &mut flows)?;
        let output = flows.last().map(Flow::output).unwrap_or_default();
        let image = image_part(&steps, before, &flows)?;
        Ok(Self { steps, before, reads_samples, flows, output, image })
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether a sample's bytes come in, or an array.
    pub fn reads_samples(&self) -> bool {
        self.reads_samples
    }

    /// What comes out.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// Transforms a sample into `into`, which is as long as [`Output::bytes`] says; for chains
    /// whose results are all of one shape.
    pub fn run_into(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        let opened = self.open(sample)?;
        let flows = self.settle(&opened)?;
        self.execute(&opened, &flows, draw, Way::Fused, scratch, into)
    }

    /// Transforms a sample into memory of its own.
    pub fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        self.make(&self.open(sample)?, draw, Way::Fused, scratch)
    }

    /// Transforms an array that a Python function has given; for chains made by [`Chain::after`].
    pub fn run_array(
        &self,
        array: &Array,
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        if self.reads_samples {
            let text = "an array came where the chain begins with a sample's bytes";
            return Err(TransformError(text.into()));
        }
        let opened = Opened::array(self.steps.first(), array)
            .map_err(|problem| TransformError(self.named(0, &problem.0)))?;
        self.make(&opened, draw, Way::Fused, scratch)
    }

    /// What random steps draw for an image of this size.
    pub fn drawn(&self, draw: Draw, width: u32, height: u32) -> Result<Vec<Drawn>, TransformError> {
        let Some(part) = &self.image else { return Ok(Vec::new()) };
        let Flow::Image(image) = self.flows[part.first] else { return Ok(Vec::new()) };
        let image = Image { size: Some((width, height)), ..image };
        let mut drawn = Vec::new();
        self.image_steps(part)
            .lower(image, draw, &mut Vec::new(), |place, choice| {
                drawn.push(Drawn { step: place + 1, choice });
            })
            .map_err(TransformError)?;
        Ok(drawn)
    }

    /// Whether all that this chain does to any image is one [`Window`]; otherwise which step is not.
    pub fn check_window(&self) -> Result<(), ChainError> {
        match window::obstacle(&self.steps) {
            None => Ok(()),
            Some((at, problem)) => Err(ChainError {
                index: self.before + at + 1,
                name: self.steps[at].name(),
                problem: problem.into(),
            }),
        }
    }

    /// What becomes of an image of this size, as a window; `None` if it has to be padded on the way.
    pub fn window(
        &self,
        draw: Draw,
        width: u32,
        height: u32,
    ) -> Result<Option<Window>, TransformError> {
        let size = (width, height);
        let Some(part) = &self.image else { return Ok(Some(Window::whole(width, height))) };
        let Flow::Image(image) = self.flows[part.first] else { return Ok(None) };
        let image = Image { size: Some(size), ..image };
        let mut ops = Vec::new();
        let steps = self.image_steps(part);
        steps.lower(image, draw, &mut ops, |_, _| ()).map_err(TransformError)?;
        let flip = fuse::fuse(&mut ops, size);
        Ok(Window::of(&ops, size, flip))
    }

    pub(crate) fn open<'a>(&self, sample: &'a [u8]) -> Result<Opened<'a>, TransformError> {
        if !self.reads_samples {
            let text = "a sample's bytes came where the chain goes on from an array";
            return Err(TransformError(text.into()));
        }
        Opened::sample(self.steps.first(), sample)
    }

    /// The step that takes what was opened: the first, or the one behind the step that opened it.
    fn start(&self) -> usize {
        usize::from(self.reads_samples && !self.steps.is_empty())
    }

    /// What flows into each step for this sample. What was known before is not worked out again.
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
        way: Way,
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
            return Err(TransformError("its shape does not come out of the chain".into()));
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
        way: Way,
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

    #[expect(clippy::too_many_arguments, reason = "what is run, on what, how and where to")]
    fn execute_image(
        &self,
        picture: image::Picture<'_>,
        image: Image,
        flows: &[Flow],
        draw: Draw,
        way: Way,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        let Some(part) = &self.image else { return Ok(()) };
        let steps = self.image_steps(part);
        let (pixels, flip) = image::run(&steps, picture, image, draw, way, &mut scratch.image)?;
        #[cfg(test)]
        let alone;
        let folded = match way {
            Way::Fused => &part.folded,
            #[cfg(test)]
            Way::StepByStep => {
                let end = self.steps.len().min(part.end + 1);
                alone = fold::fold(&self.steps[part.end..end]).map_err(|(_, error)| error)?;
                &alone
            }
        };
        let Folded { tables, layout, steps } = folded;
        let next = part.end + steps;
        let (steps, flows) = (&self.steps[next..], &flows[next..]);
        let mut numbers = Numbers { steps, flows, spare: &mut scratch.spare, into };
        let place = numbers.destination(0, Place::Sample);
        let room = numbers.room(place, pixels.bytes.len() * tables.dtype().size());
        tensor::write(pixels, flip, tables, *layout, room)?;
        numbers.run(&Start::There(place));
        Ok(())
    }

    fn image_steps(&self, part: &ImagePart) -> ImageSteps<'_> {
        let (first, end) = (part.first, part.end);
        ImageSteps { steps: &self.steps, first, end, before: self.before }
    }

    fn named(&self, at: usize, problem: &str) -> String {
        let name = self.steps.get(at).map_or("", Step::name);
        let error = ChainError { index: self.before + at + 1, name, problem: problem.into() };
        error.to_string()
    }
}

/// Goes on from the last flow to the end of the steps.
fn walk(steps: &[Step], before: usize, flows: &mut Vec<Flow>) -> Result<(), ChainError> {
    for (at, step) in steps.iter().enumerate().skip(flows.len() - 1) {
        let next = check::step(step, &flows[at]).map_err(|problem| ChainError {
            index: before + at + 1,
            name: step.name(),
            problem,
        })?;
        flows.push(next);
    }
    Ok(())
}

fn image_part(
    steps: &[Step],
    before: usize,
    flows: &[Flow],
) -> Result<Option<ImagePart>, ChainError> {
    let is_image = |flow: &Flow| matches!(flow, Flow::Image(_));
    let Some(first) = flows.iter().position(is_image) else { return Ok(None) };
    let end = first
        + steps[first..]
            .iter()
            .take_while(|step| step.works_on_images() && !matches!(step, Step::ToTensor { .. }))
            .count();
    let folded = fold::fold(&steps[end..]).map_err(|(at, TransformError(problem))| {
        let name = steps.get(end + at).map_or("", Step::name);
        ChainError { index: before + end + at + 1, name, problem }
    })?;
    Ok(Some(ImagePart { first, end, folded }))
}

/// Whether what comes out has the place that it is given.
fn fits(last: &Flow, opened: &Opened<'_>, room: usize) -> Result<(), TransformError> {
    let bytes = match opened {
        Opened::Bytes(bytes) => Some(bytes.len()),
        _ => last.bytes(),
    };
    if bytes == Some(room) {
        return Ok(());
    }
    Err(TransformError(format!(
        "its result has {} bytes, where there is room for {room}; give all samples one shape",
        bytes.unwrap_or_default()
    )))
}
