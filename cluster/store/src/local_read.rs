//! Reads large local files: a reader thread fills buffers, the calling thread consumes them, usually to hash them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::hash::Hasher;

/// Small enough to stay in the shared cache between the two threads.
const PIECE: usize = 1 << 20;

/// Half of a typical L2 cache: the rest is for the consumer's data.
const INLINE_PIECE: usize = 512 << 10;

/// Buffers in circulation between the two threads.
const BUFFERS: usize = 4;

/// Passes the first `bytes` bytes of `file` to `take`, in order.
pub(crate) fn pieces(file: &Path, bytes: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = File::open(file)?;
    thread::scope(|scope| {
        let (full_sender, full) = sync_channel::<Vec<u8>>(BUFFERS);
        let (empty_sender, empty) = sync_channel::<Vec<u8>>(BUFFERS);
        let reader = scope.spawn(move || {
            let mut left = bytes;
            let mut fresh = BUFFERS;
            while left > 0 {
                let length = left.min(PIECE as u64);
                let mut buffer = next_buffer(&mut fresh, &empty);
                buffer.resize(length as usize, 0);
                file.read_exact(&mut buffer)?;
                left -= length;
                if full_sender.send(buffer).is_err() {
                    break;
                }
            }
            Ok(())
        });
        for buffer in full {
            take(&buffer);
            // The reader exits after the last read.
            let _ = empty_sender.send(buffer);
        }
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Single-threaded [`pieces`], for a `take` that is cheaper than a hand-over between threads.
pub(crate) fn pieces_inline(file: &Path, bytes: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = File::open(file)?;
    let mut buffer = vec![0; bytes.min(INLINE_PIECE as u64) as usize];
    let mut left = bytes;
    while left > 0 {
        let piece = &mut buffer[..left.min(INLINE_PIECE as u64) as usize];
        file.read_exact(piece)?;
        take(piece);
        left -= piece.len() as u64;
    }
    Ok(())
}

fn next_buffer(fresh: &mut usize, empty: &std::sync::mpsc::Receiver<Vec<u8>>) -> Vec<u8> {
    if *fresh > 0 {
        *fresh -= 1;
        return Vec::with_capacity(PIECE);
    }
    empty.recv().unwrap_or_default()
}

/// Fills `whole` from the start of `file` and returns its SHA-256.
pub(crate) fn whole(file: &Path, whole: &mut [u8]) -> io::Result<String> {
    let mut file = File::open(file)?;
    thread::scope(|scope| {
        let (sender, read) = sync_channel::<&[u8]>(whole.len() / PIECE + 1);
        let reader = scope.spawn(move || {
            for piece in whole.chunks_mut(PIECE) {
                file.read_exact(piece)?;
                if sender.send(piece).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let mut hasher = Hasher::new();
        read.iter().for_each(|piece| hasher.update(piece));
        let done: io::Result<()> = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.map(|()| hasher.finish())
    })
}
