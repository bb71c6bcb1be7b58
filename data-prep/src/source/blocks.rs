//! bzip2 block by block, so that a damaged one is a gap and not the end: blocks can be found by the 48 bits that begin
//! them, at any bit of the file, and each carries its own checksum.

use std::io::{Error, Read, Result};

use super::damage::Gap;

/// Begins a block.
const BLOCK: u64 = 0x3141_5926_5359;
/// Ends a stream; its checksum follows, and what is left of the byte.
const END: u64 = 0x1772_4538_5090;
/// Bits of both.
const MARK: usize = 48;
const MARK_BITS: u64 = (1 << MARK) - 1;
/// No block is longer, in stored bytes: 900 kB that cannot be compressed, and some more.
const LONGEST: usize = 2 << 20;
/// Stored bytes that are read at once.
const PART: usize = 1 << 17;

const DAMAGED: &str = "bzip2: damaged block";
const FOREIGN: &str = "bzip2: bytes that are no block";

/// The text of all blocks that are whole; [`Gap`] in the place of each that is not.
pub struct Blocks<R> {
    input: R,
    ended: bool,
    /// Stored bytes; places in it are counted in bits.
    buffer: Vec<u8>,
    /// Where the next mark is looked for.
    searched: usize,
    place: Place,
    text: Vec<u8>,
    taken: usize,
}

/// Where the bits in front of `searched` belong to.
#[derive(Clone, Copy)]
enum Place {
    /// The block that begins at this bit.
    Block(usize),
    /// What begins here should be the head of a stream, or nothing.
    Head(usize),
    /// Something that was counted as damage.
    Nowhere,
}

enum Mark {
    Block(usize),
    End(usize),
}

impl<R: Read> Blocks<R> {
    /// Reads a bzip2 file of any number of streams.
    pub fn new(input: R) -> Self {
        let (buffer, text, place) = (Vec::new(), Vec::new(), Place::Head(0));
        Self { input, ended: false, buffer, searched: 0, place, text, taken: 0 }
    }

    /// Puts the text of the next block into `text`; leaves it empty at the end of the file.
    fn advance(&mut self) -> Result<()> {
        self.text.clear();
        self.taken = 0;
        while self.text.is_empty() {
            let next = self.mark()?.map(|mark| match mark {
                Mark::Block(at) => (at, Place::Block(at)),
                Mark::End(at) => (at, Place::Head((at + MARK + 32).next_multiple_of(8))),
            });
            let (end, following) = next.unwrap_or((self.buffer.len() * 8, Place::Nowhere));
            let place = std::mem::replace(&mut self.place, following);
            self.close(place, end, next.is_none())?;
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Takes what lies between `place` and the mark at bit `end`, or the end of the file.
    fn close(&mut self, place: Place, end: usize, at_end: bool) -> Result<()> {
        match place {
            Place::Block(start) => {
                if at_end || decode(&self.buffer, start, end, &mut self.text).is_err() {
                    self.text.clear();
                    return Err(Gap::error(DAMAGED));
                }
            }
            Place::Head(start) => {
                let bytes = self.buffer.get(start / 8..end / 8).unwrap_or_default();
                let is_head = end.is_multiple_of(8) && bytes.len() == 4 && bytes.starts_with(b"BZh");
                if !(is_head || at_end && bytes.is_empty()) {
                    return Err(Gap::error(FOREIGN));
                }
            }
            Place::Nowhere => {}
        }
        Ok(())
    }

    /// The next mark; `None` at the end of the file.
    fn mark(&mut self) -> Result<Option<Mark>> {
        loop {
            if let Some(mark) = find(&self.buffer, self.searched) {
                let (Mark::Block(at) | Mark::End(at)) = mark;
                self.searched = at + MARK;
                return Ok(Some(mark));
            }
            self.searched = self.searched.max((self.buffer.len() * 8).saturating_sub(MARK - 1));
            if self.ended {
                return Ok(None);
            }
            self.drop_used();
            if self.buffer.len() > LONGEST {
                let what = if matches!(self.place, Place::Head(_)) { FOREIGN } else { DAMAGED };
                self.place = Place::Nowhere;
                return Err(Gap::error(what));
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<()> {
        let filled = self.buffer.len();
        self.buffer.resize(filled + PART, 0);
        let read = self.input.read(&mut self.buffer[filled..]);
        self.buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
        self.ended = read? == 0;
        Ok(())
    }

    /// Forgets whole bytes that nothing needs any more.
    fn drop_used(&mut self) {
        let first = match self.place {
            Place::Block(at) | Place::Head(at) => at.min(self.searched),
            Place::Nowhere => self.searched,
        } / 8;
        self.buffer.drain(..first);
        self.searched -= first * 8;
        if let Place::Block(at) | Place::Head(at) = &mut self.place {
            *at -= first * 8;
        }
    }
}

impl<R: Read> Read for Blocks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.taken == self.text.len() {
            self.advance()?;
        }
        let left = &self.text[self.taken..];
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left[..count]);
        self.taken += count;
        Ok(count)
    }
}

/// The first mark that begins at bit `from` or behind it.
fn find(bytes: &[u8], from: usize) -> Option<Mark> {
    let mut window = 0_u64;
    for (index, &byte) in bytes.iter().enumerate().skip(from / 8) {
        window = window << 8 | u64::from(byte);
        // All places whose last bit lies in this byte, the earliest first.
        for after in (0..8).rev() {
            let bits = window >> after & MARK_BITS;
            let end = index * 8 + 8 - after;
            if (bits == BLOCK || bits == END) && end >= from + MARK {
                let at = end - MARK;
                return Some(if bits == BLOCK { Mark::Block(at) } else { Mark::End(at) });
            }
        }
    }
    None
}

/// Decompresses the block in the bits from `start` to `end`: as the only one of a stream that is made for it.
fn decode(bytes: &[u8], start: usize, end: usize, text: &mut Vec<u8>) -> Result<()> {
    if end < start + MARK + 32 {
        return Err(Error::other("too short for a block"));
    }
    let mut stream = Bits { bytes: b"BZh9".to_vec(), kept: 0, count: 0 };
    let (whole, rest) = ((end - start) / 8, (end - start) % 8);
    (0..whole).for_each(|index| stream.push(bits(bytes, start + index * 8, 8), 8));
    stream.push(bits(bytes, start + whole * 8, rest), rest);
    stream.push(END, MARK);
    // The checksum of a stream with one block is the block's.
    stream.push(bits(bytes, start + MARK, 32), 32);
    stream.push(0, 7);
    bzip2::read::BzDecoder::new(stream.bytes.as_slice()).read_to_end(text).map(drop)
}

/// Up to 32 bits at any place; beyond the end there are zeros.
fn bits(bytes: &[u8], at: usize, count: usize) -> u64 {
    let byte = |index: usize| u64::from(bytes.get(index).copied().unwrap_or(0));
    let word = (0..5).fold(0, |word, index| word << 8 | byte(at / 8 + index));
    word >> (40 - at % 8 - count) & ((1 << count) - 1)
}

/// Bits on their way into bytes.
struct Bits {
    bytes: Vec<u8>,
    kept: u64,
    count: usize,
}

impl Bits {
    /// Up to 48 bits; those that fill a byte are written.
    fn push(&mut self, bits: u64, count: usize) {
        self.kept = self.kept << count | bits;
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            self.bytes.push((self.kept >> self.count) as u8);
        }
        self.kept &= 0xff;
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

    /// The text that is left and the gaps in it.
    fn read(stored: &[u8]) -> (Vec<u8>, Vec<&'static str>) {
        let (mut text, mut gaps) = (Vec::new(), Vec::new());
        let mut blocks = Blocks::new(stored);
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
    fn whole_files_are_read_wholly() {
        for level in [1, 9] {
            let text = text(650_000);
            let (one, two) = text.split_at(310_001);
            let packed = [pack(one, level), pack(two, level)].concat();
            assert_eq!(read(&packed), (text.clone(), vec![]));
        }
        assert_eq!(read(&pack(b"", 9)), (vec![], vec![]));
        // Runs are compressed a second way.
        let run = vec![b'x'; 5_000_000];
        assert_eq!(read(&pack(&run, 1)), (run, vec![]));
    }

    #[test]
    fn what_is_before_and_behind_a_damaged_block_is_kept() {
        let text = text(650_000);
        let mut packed = pack(&text, 1);
        let middle = packed.len() / 2;
        packed[middle] ^= 0x10;
        let (left, gaps) = read(&packed);
        assert_eq!(gaps, [DAMAGED]);
        let lost = text.len() - left.len();
        // One block of 100 kB, less what the format keeps for itself.
        assert!((99_000..=100_000).contains(&lost), "{lost}");
        let before = left.iter().zip(&text).take_while(|(left, right)| left == right).count();
        assert!(left[before..] == text[before + lost..], "the rest is the end of the text");
    }

    #[test]
    fn cut_and_foreign_ends_are_gaps() {
        let text = text(350_000);
        let packed = pack(&text, 1);
        let (left, gaps) = read(&packed[..packed.len() - 50_000]);
        assert!(gaps == [DAMAGED] && text.starts_with(&left) && left.len() > 150_000, "{gaps:?}");
        let foreign = [packed.clone(), b"nothing that bzip2 wrote".to_vec()].concat();
        assert_eq!(read(&foreign), (text.clone(), vec![FOREIGN]));
        let between = [packed.clone(), vec![0; 5 << 20], packed].concat();
        let (left, gaps) = read(&between);
        assert_eq!((left.len(), gaps.len()), (2 * text.len(), 1), "{gaps:?}");
    }
}
