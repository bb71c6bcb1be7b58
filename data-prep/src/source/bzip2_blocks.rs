//! Block-wise bzip2 decompression. A damaged block becomes a gap, and reading continues after the gap. Each block
//! starts with a 48-bit marker at any bit position and has its own checksum.

use std::io::{Error, Read, Result};

use super::damage::Gap;

/// Marker at the start of a block.
const BLOCK_MARKER: u64 = 0x3141_5926_5359;
/// Marker at the end of a stream. A checksum and padding to a whole byte follow it.
const END_MARKER: u64 = 0x1772_4538_5090;
/// Length of both markers, bits.
const MARKER_BITS: usize = 48;
const MARKER_MASK: u64 = (1 << MARKER_BITS) - 1;
/// Upper limit on the compressed size of a block, bytes: 900 kB of incompressible data and some overhead.
const MAX_BLOCK_BYTES: usize = 2 << 20;
/// Compressed bytes per read.
const READ_BYTES: usize = 1 << 17;

const DAMAGED: &str = "bzip2: damaged block";
const NOT_A_BLOCK: &str = "bzip2: bytes that are no block";

/// Reads the text of all intact blocks. Returns a [`Gap`] for each damaged block.
pub struct Bzip2Blocks<R> {
    input: R,
    has_ended: bool,
    /// Compressed bytes. Positions in the buffer are counted in bits.
    buffer: Vec<u8>,
    /// Bit from which the next marker is searched.
    search_from: usize,
    region: BitRegion,
    text: Vec<u8>,
    consumed: usize,
}

/// Type of the region that ends at the next marker.
#[derive(Clone, Copy)]
enum BitRegion {
    /// A block that starts at this bit.
    Block(usize),
    /// A stream header at this bit, or the end of the file.
    StreamHeader(usize),
    /// Bytes already reported as damage.
    Damaged,
}

enum Marker {
    Block(usize),
    End(usize),
}

impl<R: Read> Bzip2Blocks<R> {
    /// Reads a bzip2 file with any number of streams.
    pub fn new(input: R) -> Self {
        let (buffer, text, region) = (Vec::new(), Vec::new(), BitRegion::StreamHeader(0));
        Self { input, has_ended: false, buffer, search_from: 0, region, text, consumed: 0 }
    }

    /// Decompresses the next block into `text`, which stays empty at the end of the file.
    fn advance(&mut self) -> Result<()> {
        self.text.clear();
        self.consumed = 0;
        while self.text.is_empty() {
            let next = self.next_marker()?.map(|marker| match marker {
                Marker::Block(at) => (at, BitRegion::Block(at)),
                Marker::End(at) => (at, BitRegion::StreamHeader((at + MARKER_BITS + 32).next_multiple_of(8))),
            });
            let (end, following) = next.unwrap_or((self.buffer.len() * 8, BitRegion::Damaged));
            let region = std::mem::replace(&mut self.region, following);
            self.finish_region(region, end, next.is_none())?;
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Processes the region up to the marker at bit `end`, or up to the end of the file.
    fn finish_region(&mut self, region: BitRegion, end: usize, at_end: bool) -> Result<()> {
        match region {
            BitRegion::Block(start) => {
                if at_end || decompress(&self.buffer, start, end, &mut self.text).is_err() {
                    self.text.clear();
                    return Err(Gap::error(DAMAGED));
                }
            }
            BitRegion::StreamHeader(start) => {
                let bytes = self.buffer.get(start / 8..end / 8).unwrap_or_default();
                let is_header = end.is_multiple_of(8) && bytes.len() == 4 && bytes.starts_with(b"BZh");
                if !(is_header || at_end && bytes.is_empty()) {
                    return Err(Gap::error(NOT_A_BLOCK));
                }
            }
            BitRegion::Damaged => {}
        }
        Ok(())
    }

    /// Finds the next marker. Returns `None` at the end of the file.
    fn next_marker(&mut self) -> Result<Option<Marker>> {
        loop {
            if let Some(marker) = find_marker(&self.buffer, self.search_from) {
                let (Marker::Block(at) | Marker::End(at)) = marker;
                self.search_from = at + MARKER_BITS;
                return Ok(Some(marker));
            }
            self.search_from = self.search_from.max((self.buffer.len() * 8).saturating_sub(MARKER_BITS - 1));
            if self.has_ended {
                return Ok(None);
            }
            self.discard_consumed();
            if self.buffer.len() > MAX_BLOCK_BYTES {
                let reason = if matches!(self.region, BitRegion::StreamHeader(_)) { NOT_A_BLOCK } else { DAMAGED };
                self.region = BitRegion::Damaged;
                return Err(Gap::error(reason));
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<()> {
        let filled = self.buffer.len();
        self.buffer.resize(filled + READ_BYTES, 0);
        let read = self.input.read(&mut self.buffer[filled..]);
        self.buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
        self.has_ended = read? == 0;
        Ok(())
    }

    /// Discards the bytes before the current region.
    fn discard_consumed(&mut self) {
        let first = match self.region {
            BitRegion::Block(at) | BitRegion::StreamHeader(at) => at.min(self.search_from),
            BitRegion::Damaged => self.search_from,
        } / 8;
        self.buffer.drain(..first);
        self.search_from -= first * 8;
        if let BitRegion::Block(at) | BitRegion::StreamHeader(at) = &mut self.region {
            *at -= first * 8;
        }
    }
}

impl<R: Read> Read for Bzip2Blocks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.consumed == self.text.len() {
            self.advance()?;
        }
        let left = &self.text[self.consumed..];
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.consumed += count;
        Ok(count)
    }
}

/// Finds the first marker at or after bit `from`.
fn find_marker(bytes: &[u8], from: usize) -> Option<Marker> {
    let mut window = 0_u64;
    for (index, &byte) in bytes.iter().enumerate().skip(from / 8) {
        window = window << 8 | u64::from(byte);
        // A marker can end at any of the eight bits of this byte. The earliest end is checked first.
        for after in (0..8).rev() {
            let bits = window >> after & MARKER_MASK;
            let end = index * 8 + 8 - after;
            if (bits == BLOCK_MARKER || bits == END_MARKER) && end >= from + MARKER_BITS {
                let at = end - MARKER_BITS;
                return Some(if bits == BLOCK_MARKER { Marker::Block(at) } else { Marker::End(at) });
            }
        }
    }
    None
}

/// Decompresses the block in the bits from `start` to `end`. For this, builds a stream that contains only this block.
fn decompress(bytes: &[u8], start: usize, end: usize, text: &mut Vec<u8>) -> Result<()> {
    if end < start + MARKER_BITS + 32 {
        return Err(Error::other("too short for a block"));
    }
    let mut stream = BitWriter { bytes: b"BZh9".to_vec(), pending: 0, count: 0 };
    let (whole, rest) = ((end - start) / 8, (end - start) % 8);
    (0..whole).for_each(|index| stream.push(read_bits(bytes, start + index * 8, 8), 8));
    stream.push(read_bits(bytes, start + whole * 8, rest), rest);
    stream.push(END_MARKER, MARKER_BITS);
    // The checksum of a stream with one block equals the checksum of the block.
    stream.push(read_bits(bytes, start + MARKER_BITS, 32), 32);
    stream.push(0, 7);
    bzip2::read::BzDecoder::new(stream.bytes.as_slice()).read_to_end(text).map(drop)
}

/// Reads up to 32 bits at any bit position. Bits after the end of `bytes` are zero.
fn read_bits(bytes: &[u8], at: usize, count: usize) -> u64 {
    let byte = |index: usize| u64::from(bytes.get(index).copied().unwrap_or(0));
    let word = (0..5).fold(0, |word, index| word << 8 | byte(at / 8 + index));
    word >> (40 - at % 8 - count) & ((1 << count) - 1)
}

/// Packs bits into bytes.
struct BitWriter {
    bytes: Vec<u8>,
    pending: u64,
    count: usize,
}

impl BitWriter {
    /// Appends up to 48 bits.
    fn push(&mut self, bits: u64, count: usize) {
        self.pending = self.pending << count | bits;
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            self.bytes.push((self.pending >> self.count) as u8);
        }
        self.pending &= 0xff;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_dataset::random::Key;
    use std::io::Write;

    fn text(bytes: usize) -> Vec<u8> {
        let mut rng = Key::new(3).rng();
        (0..bytes).map(|_| b"etaoin shrdlu\n"[rng.below(14) as usize]).collect()
    }

    fn pack(text: &[u8], level: u32) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(level));
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// Returns the text of the intact blocks, and the gaps.
    fn read(stored: &[u8]) -> (Vec<u8>, Vec<&'static str>) {
        let (mut text, mut gaps) = (Vec::new(), Vec::new());
        let mut blocks = Bzip2Blocks::new(stored);
        let mut buffer = [0; 1000];
        loop {
            match blocks.read(&mut buffer) {
                Ok(0) => return (text, gaps),
                Ok(count) => text.extend_from_slice(&buffer[..count]),
                Err(error) => gaps.push(Gap::of(&error).unwrap()),
            }
        }
    }

    #[test]
    fn intact_files_are_read_completely() {
        for level in [1, 9] {
            let text = text(650_000);
            let (one, two) = text.split_at(310_001);
            let packed = [pack(one, level), pack(two, level)].concat();
            assert_eq!(read(&packed), (text.clone(), vec![]));
        }
        assert_eq!(read(&pack(b"", 9)), (vec![], vec![]));
        // bzip2 applies run-length encoding to long runs before the block sort.
        let run = vec![b'x'; 5_000_000];
        assert_eq!(read(&pack(&run, 1)), (run, vec![]));
    }

    #[test]
    fn text_around_a_damaged_block_is_kept() {
        let text = text(650_000);
        let mut packed = pack(&text, 1);
        let middle = packed.len() / 2;
        packed[middle] ^= 0x10;
        let (left, gaps) = read(&packed);
        assert_eq!(gaps, [DAMAGED]);
        let lost = text.len() - left.len();
        // At level 1, a block has 100 kB minus the bytes that the format reserves.
        assert!((99_000..=100_000).contains(&lost), "{lost}");
        let before = left.iter().zip(&text).take_while(|(left, right)| left == right).count();
        assert!(left[before..] == text[before + lost..], "the rest is the end of the text");
    }

    #[test]
    fn truncated_and_foreign_data_are_gaps() {
        let text = text(350_000);
        let packed = pack(&text, 1);
        let (left, gaps) = read(&packed[..packed.len() - 50_000]);
        assert!(gaps == [DAMAGED] && text.starts_with(&left) && left.len() > 150_000, "{gaps:?}");
        let foreign = [packed.clone(), b"nothing that bzip2 wrote".to_vec()].concat();
        assert_eq!(read(&foreign), (text.clone(), vec![NOT_A_BLOCK]));
        let between = [packed.clone(), vec![0; 5 << 20], packed].concat();
        let (left, gaps) = read(&between);
        assert_eq!((left.len(), gaps.len()), (2 * text.len(), 1), "{gaps:?}");
    }
}
