//! The orientation in EXIF data. Written by hand, because it is the only field that is needed.

use super::orientation::Orientation;

const ORIENTATION: u16 = 0x0112;

/// Bytes of a directory entry: tag, type, count, value.
const ENTRY: usize = 12;

/// Returns the orientation of EXIF data (a TIFF header with its directories). Malformed data have
/// none, as in Pillow.
pub(super) fn orientation(data: &[u8]) -> Orientation {
    find(data).and_then(Orientation::from_exif).unwrap_or(Orientation::UPRIGHT)
}

fn find(data: &[u8]) -> Option<u32> {
    let little = match data.get(..4)? {
        b"II\x2a\0" => true,
        b"MM\0\x2a" => false,
        _ => return None,
    };
    let file = Tiff { data, little };
    let directory = file.u32(4)? as usize;
    let count = usize::from(file.u16(directory)?);
    let first = directory.checked_add(2)?;
    (0..count).map_while(|at| first.checked_add(at * ENTRY)).find_map(|at| {
        if file.u16(at)? != ORIENTATION {
            return None;
        }
        match file.u16(at + 2)? {
            1 => data.get(at + 8).map(|&byte| u32::from(byte)),
            3 => file.u16(at + 8).map(u32::from),
            4 => file.u32(at + 8),
            _ => None,
        }
    })
}

/// Numbers in either byte order.
struct Tiff<'a> {
    data: &'a [u8],
    little: bool,
}

impl Tiff<'_> {
    fn u16(&self, at: usize) -> Option<u16> {
        let bytes = self.data.get(at..)?.first_chunk()?;
        Some(if self.little { u16::from_le_bytes(*bytes) } else { u16::from_be_bytes(*bytes) })
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.data.get(at..)?.first_chunk()?;
        Some(if self.little { u32::from_le_bytes(*bytes) } else { u32::from_be_bytes(*bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn little(entries: &[[u16; 6]]) -> Vec<u8> {
        let mut data = b"II\x2a\0\x08\0\0\0".to_vec();
        data.extend((entries.len() as u16).to_le_bytes());
        data.extend(entries.iter().flatten().flat_map(|half| half.to_le_bytes()));
        data
    }

    #[test]
    fn the_entry_is_found_among_others_in_both_byte_orders() {
        let data = little(&[[0x010f, 3, 1, 0, 8, 0], [ORIENTATION, 3, 1, 0, 6, 0]]);
        assert_eq!(find(&data), Some(6));
        let big = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x05\0\0";
        assert_eq!(find(big), Some(5));
    }

    #[test]
    fn malformed_data_are_upright() {
        let data = little(&[[ORIENTATION, 3, 1, 0, 6, 0]]);
        for end in 0..data.len() - 2 {
            assert_eq!(orientation(&data[..end]), Orientation::UPRIGHT, "{end} bytes");
        }
        for value in [0, 9, 600] {
            let data = little(&[[ORIENTATION, 3, 1, 0, value, 0]]);
            assert_eq!(orientation(&data), Orientation::UPRIGHT);
        }
        assert_eq!(find(b"II\x2a\0\xff\xff\xff\xff"), None);
    }
}
