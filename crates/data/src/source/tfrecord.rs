//! TFRecord: TensorFlow's format of successive records.
//!
//! ```text
//! length (8 bytes, little-endian) | checksum of the length (4) | payload | checksum of the payload (4)
//! ```
//!
//! A sample is a payload. [`index`] reads and checks the headers and skips the payloads. A
//! payload's checksum lies in the [`FOOTER`] bytes behind it: a reader fetches them with the
//! payload and calls [`damage`] before it delivers the payload. Footer and next header lie between
//! two payloads, so one request that covers both payloads includes the first one's footer.
//!
//! Checksums are CRC-32C, masked as in TensorFlow, since a CRC over data that holds its own CRC is
//! weak.
//!
//! Hand-written because the `tfrecord` crate is unmaintained and reads payloads, while this walk
//! reads headers only and reports the offset of a flaw.

use std::io::{Read, Seek};
use std::path::Path;

use super::Operations;
use super::packed::{self, Flaw, IndexFileError, PackedRecord, ReadAt, ReadWindow};

/// Bytes before a payload: its length and the length's checksum.
pub const HEADER: usize = 12;
/// Bytes behind a payload: its checksum.
pub const FOOTER: usize = 4;

/// Finds the records of a file, and counts the calls.
///
/// # Errors
///
/// If the file cannot be read or is no valid TFRecord file.
pub fn index_file(
    path: &Path,
    operations: &mut Operations,
) -> Result<Vec<PackedRecord>, IndexFileError> {
    packed::index_file(path, operations, walk)
}

/// Finds the records in `length` bytes.
///
/// # Errors
///
/// If the bytes are no valid TFRecord file.
pub fn index<R: Read + Seek>(reader: R, length: u64) -> Result<Vec<PackedRecord>, Flaw> {
    walk(&mut ReadWindow::new(reader), length)
}

/// Returns what is wrong with a payload, if its checksum does not match.
pub fn damage(payload: &[u8], footer: [u8; FOOTER]) -> Option<String> {
    let (actual, stored) = (masked_crc(payload), u32::from_le_bytes(footer));
    (actual != stored)
        .then(|| format!("its checksum is {actual:08x} and the record says {stored:08x}"))
}

/// Returns the masked CRC-32C.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    // The rotation and the constant are TensorFlow's.
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn walk(bytes: &mut impl ReadAt, length: u64) -> Result<Vec<PackedRecord>, Flaw> {
    let mut records = Vec::new();
    let mut offset = 0;
    while offset < length {
        match payload_length(bytes, offset, length) {
            Ok(payload) => {
                let start = offset + HEADER as u64;
                records.push(PackedRecord {
                    offset: start,
                    length: payload,
                    key: None,
                    label: None,
                });
                offset = start + payload + FOOTER as u64;
            }
            Err(flaw) if offset == 0 => {
                return Err(packed::compression(bytes).map_or(flaw, Flaw::Compressed));
            }
            Err(flaw) => return Err(flaw.after(records.len())),
        }
    }
    Ok(records)
}

/// Returns the payload's length of the record at `offset`, which ends before `length`.
fn payload_length(bytes: &mut impl ReadAt, offset: u64, length: u64) -> Result<u64, Flaw> {
    let truncated = Flaw::Truncated { offset, whole: 0 };
    let mut header = [0; HEADER];
    if bytes.read_at(offset, &mut header)? < HEADER {
        return Err(truncated);
    }
    let [a, b, c, d, e, f, g, h, checksum @ ..] = header;
    if masked_crc(&header[..8]) != u32::from_le_bytes(checksum) {
        let damage =
            "a record's length does not match its checksum (not a TFRecord file, or damaged)";
        return Err(Flaw::Damaged { offset, whole: 0, damage: damage.to_owned() });
    }
    let payload = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let most = (length - offset).checked_sub((HEADER + FOOTER) as u64);
    match most {
        Some(most) if payload <= most => Ok(payload),
        _ => Err(truncated),
    }
}
